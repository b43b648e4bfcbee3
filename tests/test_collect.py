"""Collected data: shortest ways through distinct levels of the split."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import dtsn.envs  # noqa: F401 (registers the environments)
from dtsn.collect import collect_navigation
from dtsn.data import Dataset
from dtsn.envs.navigation import SPLITS, NavigationOptions, make_levels
from dtsn.experts.value_iteration import optimal_q, optimal_steps, optimal_values

EPISODES = 300


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(collect_navigation(tmp_path_factory.mktemp("collect") / "d.h5", episodes=EPISODES))


def test_episodes_are_shortest_ways_to_the_goal(dataset: Dataset) -> None:
    levels = make_levels(dataset.array("levels"))
    steps = np.diff(dataset.array("episode_ends"), prepend=0)
    assert np.array_equal(steps, optimal_steps(levels))
    assert dataset.array("dones").sum() == EPISODES
    starts = dataset.array("episode_ends") - steps
    assert np.array_equal(dataset.array("q_values")[starts], -steps)
    for index in range(EPISODES):
        last = dataset.episode(index).observations[-1]
        assert np.array_equal(last[1], last[2])  # the robot is at the goal


def test_levels_are_distinct_and_of_the_split(dataset: Dataset) -> None:
    levels = dataset.array("levels")
    assert len(set(levels)) == EPISODES
    assert levels.min() >= SPLITS["train"][0]
    assert levels.max() < SPLITS["train"][1]


def test_environment_replays_the_episodes(dataset: Dataset) -> None:
    env = gym.make(dataset.header["env_id"], **dataset.header["env_options"])
    for index in range(20):
        episode = dataset.episode(index)
        frames = [env.reset(options={"level": episode.level})[0]]
        for action, reward in zip(episode.actions, episode.rewards, strict=True):
            frame, earned, terminated, truncated, _ = env.step(int(action))
            frames.append(frame)
            assert earned == reward
        assert np.array_equal(frames, episode.observations)
        assert (terminated, truncated) == (True, False)


def test_seed_determines_the_data(dataset: Dataset, tmp_path: Path) -> None:
    with Dataset(collect_navigation(tmp_path / "same.h5", episodes=EPISODES)) as same:
        assert same.header == dataset.header  # and so the checksums
    with Dataset(collect_navigation(tmp_path / "other.h5", episodes=EPISODES, seed=1)) as other:
        assert len(set(other.array("levels")) & set(dataset.array("levels"))) < EPISODES / 10


def test_ties_are_broken_evenly(dataset: Dataset) -> None:
    levels = make_levels(dataset.array("levels"))
    level = np.repeat(np.arange(EPISODES), np.diff(dataset.array("episode_ends"), prepend=0))  # [S]
    planes = np.concatenate([dataset.episode(index).observations[:-1, 2] for index in range(EPISODES)])
    q = optimal_q(optimal_values(levels.walls, levels.goal)[level], np.argwhere(planes)[:, 1:])  # [S, 4]
    tied = (q == q.max(axis=1, keepdims=True)).sum(axis=1) == 2
    assert tied.sum() > 300
    assert 0.45 < np.mean(dataset.array("actions")[tied] == q[tied].argmax(axis=1)) < 0.55


def test_options_split_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options = NavigationOptions(exits=1, size=12, hall=(3, 8), max_steps=5)
    path = collect_navigation(
        tmp_path / "d.h5",
        episodes=270,
        options=options,
        split="test",
        discount=0.5,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(256, 270), (270, 270)]
    with Dataset(path) as dataset:
        assert dataset.header["env_options"]["exits"] == 1
        assert dataset.header["provenance"] == {"policy": "value iteration", "split": "test", "seed": 0}
        assert dataset.observation_shape == (3, 12, 12)
        assert dataset.array("levels").min() >= SPLITS["test"][0]
        steps = np.diff(dataset.array("episode_ends"), prepend=0)
        terminated = dataset.array("dones")[dataset.array("episode_ends") - 1]
        wanted = optimal_steps(make_levels(dataset.array("levels"), options))
        assert np.array_equal(steps, np.minimum(wanted, 5))
        assert np.array_equal(terminated, wanted <= 5)  # the others were cut off
        assert 0 < terminated.sum() < len(wanted)


@pytest.mark.parametrize("change", [{"split": "dev"}, {"episodes": 0}, {"episodes": 10**6 + 1}, {"seed": -1}])
def test_bad_requests_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"{name} is"):
        collect_navigation(tmp_path / "d.h5", **change)  # type: ignore[arg-type]
