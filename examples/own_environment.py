"""Train a D-TSN on a Gymnasium environment of your own: environment, expert, data set, training, score.

    python examples/own_environment.py

docs/tutorial.md explains it step by step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dtsn import Dataset, DatasetWriter, Episode, NetworkConfig, Solver, SolverConfig, TrainConfig, Trainer

MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])
Policy = Callable[[Any], int]  # observation [4] -> action


class Taxi(gymnasium.Env):  # type: ignore[misc]
    """A taxi drives to its guest on a 6×6 grid; every step costs 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        places = self.np_random.permutation(36)[:2]  # two different cells
        self.taxi, self.guest = np.stack(np.divmod(places, 6), axis=1)
        self.time = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taxi, self.time = np.clip(self.taxi + MOVES[action], 0, 5), self.time + 1
        arrived = bool((self.taxi == self.guest).all())
        return self.observe(), -1.0, arrived, self.time >= 20 and not arrived, {}

    def observe(self) -> Any:
        return np.concatenate([self.taxi, self.guest]).astype(np.float32) / 5

    def expert(self) -> int:
        """Drive along the row first."""
        rows, columns = self.guest - self.taxi
        return (0 if columns > 0 else 2) if columns else (1 if rows > 0 else 3)


def play(env: Taxi, policy: Policy, seed: int) -> Episode:
    """Play one episode; the seed is the number of its level."""
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, terminated, truncated = [observation], [], [], False, False
    while not (terminated or truncated):
        actions.append(policy(observation))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
    return Episode(np.array(observations), np.array(actions), np.array(rewards), terminated, seed)


def collect(env: Taxi, path: Path, episodes: int) -> None:
    """Write the expert's episodes as a data set."""
    space = env.observation_space
    with DatasetWriter(
        path,
        env_id="Taxi",
        env_options={},
        num_actions=4,
        observation_shape=space.shape,
        observation_dtype=space.dtype,
    ) as writer:
        for level in range(episodes):
            writer.add_episode(play(env, lambda _: env.expert(), level))


def train(path: Path, steps: int) -> Solver:
    """Train a small D-TSN with five expansions."""
    network = NetworkConfig(latent=32, hidden=64, value_scale=5.0)
    config = TrainConfig(
        SolverConfig(iterations=5),
        network,
        steps=steps,
        batch_size=64,
        search_warmup=steps // 3,
        learning_rate=3e-3,
    )
    with Dataset(path) as data:
        trainer = Trainer(config, data.observation, data.num_actions)
        for _ in trainer.run(data):
            pass
    return trainer.solver.eval()


def main(episodes: int = 300, steps: int = 300, tests: int = 100) -> dict[str, float]:
    """Return the mean returns of D-TSN, the expert and chance on episodes that the data do not have."""
    env = Taxi()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "taxi.h5"
        collect(env, path, episodes)
        solver = train(path, steps)

    def score(policy: Policy) -> float:
        return float(
            np.mean([play(env, policy, seed).rewards.sum() for seed in range(10_000, 10_000 + tests)])
        )

    scores = {
        "D-TSN": score(lambda observation: int(solver.act(observation[None])[0])),
        "expert": score(lambda _: env.expert()),
        "chance": score(lambda _: int(env.np_random.integers(4))),
    }
    print(", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    return scores


if __name__ == "__main__":
    main()
