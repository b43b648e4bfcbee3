"""The tasks and the agents of the online experiments, every number of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium

from dtsn.config import NetworkConfig
from dtsn.envs.navigation import NavigationEnv
from dtsn.reproduce.online.door_key import DoorKeyEnv

if TYPE_CHECKING:
    from stable_baselines3 import DQN

AGENTS = {"dqn": "DQN", "treeqn": "TreeQN", "dtsn": "D-TSN"}
EVALUATIONS = 10  # points of a learning curve
EPISODES = 20  # played for each of them


@dataclass(frozen=True)
class Task:
    """An environment, how long it is learned, and the settings that all agents share."""

    title: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    steps: int  # of all environments together
    gamma: float
    settings: dict[str, Any]  # of DQN
    network: NetworkConfig = field(default_factory=NetworkConfig)
    mlp: tuple[int, ...] | None = None  # hidden layers of the plain DQN; None: the encoder of the others
    envs: int = 1  # side by side
    reward_scale: float = 1.0  # of what is learned from; returns are reported without it


# rl-zoo's settings for DQN on CartPole, MLP included.
CARTPOLE = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}
# rl-zoo has none for DQN on small grids: learning rate, buffer and target network are those of its
# LunarLander, the batch that of its Atari games; updates lie between the two, and exploring lasts longer.
GRID = {
    "learning_rate": 6.3e-4,
    "batch_size": 32,
    "buffer_size": 50_000,
    "learning_starts": 1000,
    "target_update_interval": 250,
    "train_freq": 1,  # of 8 environments: 8 steps, 4 updates
    "gradient_steps": 4,
    "exploration_fraction": 0.3,
    "exploration_final_eps": 0.05,
}
SMALL = NetworkConfig(latent=64, hidden=64, value_scale=10.0, channels="first")


def _navigation() -> gymnasium.Env[Any, Any]:
    # As dear as never arriving: whoever cannot find the way must not gain by crashing.
    return NavigationEnv(size=7, hall=(2, 4), max_steps=30, collision_reward=-30.0)


TASKS = {
    "cartpole": Task(
        "CartPole-v1", lambda: gymnasium.make("CartPole-v1"), 30_000, 0.99, CARTPOLE, SMALL, mlp=(256, 256)
    ),
    "door_key": Task("Door and key, 4×4", DoorKeyEnv, 16_000, 0.95, GRID, SMALL, envs=8),
    "navigation": Task("Navigation, 7×7", _navigation, 20_000, 0.99, GRID, SMALL, envs=8, reward_scale=0.1),
}


def make_agent(task: Task, agent: str, seed: int) -> DQN:
    """Make a fresh agent in fresh environments."""
    from gymnasium.wrappers import TransformReward
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import DummyVecEnv

    from dtsn.integrations.sb3 import DTSN, SolverPolicy

    def make() -> gymnasium.Env[Any, Any]:
        return TransformReward(task.make(), lambda reward: task.reward_scale * float(reward))

    env = DummyVecEnv([make] * task.envs)
    common = {"gamma": task.gamma, "seed": seed, "device": "cpu", **task.settings}
    if agent == "dqn":
        if task.mlp is not None:
            return DQN("MlpPolicy", env, policy_kwargs={"net_arch": list(task.mlp)}, **common)
        own = {"solver": "qnet", "network": task.network, "discount": task.gamma}
        return DQN(SolverPolicy, env, policy_kwargs=own, **common)
    return DTSN(env, agent, network=task.network, **common)
