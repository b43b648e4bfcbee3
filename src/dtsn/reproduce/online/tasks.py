"""The tasks and the agents of the online experiments, every number of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium

from dtsn.config import LossWeights, NetworkConfig, SolverConfig
from dtsn.envs.navigation import NavigationEnv
from dtsn.reproduce.online.door_key import DoorKeyEnv

if TYPE_CHECKING:
    from stable_baselines3 import DQN

AGENTS = {"dqn": "DQN", "treeqn": "TreeQN", "dtsn": "D-TSN"}
ITERATIONS = 5  # T of D-TSN
EVALUATIONS = 10  # points of a learning curve
EPISODES = 20  # played for each of them


@dataclass(frozen=True)
class Task:
    """An environment, how long it is learned, and the settings that all agents share."""

    title: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    steps: int
    gamma: float
    settings: dict[str, Any]  # of DQN
    network: NetworkConfig = field(default_factory=NetworkConfig)
    mlp: tuple[int, ...] | None = None  # hidden layers of the plain DQN; None: the encoder of the others


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
# rl-zoo has none for DQN on small grids: those of its LunarLander, with a shorter warm-up.
GRID = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 1000,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.3,
    "exploration_final_eps": 0.05,
}


def _navigation() -> gymnasium.Env[Any, Any]:
    return NavigationEnv(size=10, hall=(3, 6), max_steps=40, collision_reward=-20.0)


TASKS = {
    "cartpole": Task(
        "CartPole-v1", lambda: gymnasium.make("CartPole-v1"), 50_000, 0.99, CARTPOLE, mlp=(256, 256)
    ),
    "door_key": Task("Door and key, 6×6", DoorKeyEnv, 60_000, 0.99, GRID),
    "navigation": Task(
        "Navigation, 10×10, online", _navigation, 60_000, 0.99, GRID, NetworkConfig(value_scale=10.0)
    ),
}


def make_agent(task: Task, agent: str, seed: int) -> DQN:
    """A fresh agent in a fresh environment."""
    from stable_baselines3 import DQN

    from dtsn.integrations.sb3 import DTSN, SolverPolicy

    env = task.make()
    common = {"gamma": task.gamma, "seed": seed, "device": "cpu", **task.settings}
    if agent == "dqn":
        if task.mlp is not None:
            return DQN("MlpPolicy", env, policy_kwargs={"net_arch": list(task.mlp)}, **common)
        own = {"solver": "qnet", "network": task.network, "discount": task.gamma}
        return DQN(SolverPolicy, env, policy_kwargs=own, **common)
    config = SolverConfig(agent, iterations=ITERATIONS, discount=task.gamma, weights=LossWeights(cql=0.0))
    return DTSN(env, config, network=task.network, **common)
