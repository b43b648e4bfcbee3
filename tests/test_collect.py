"""Collected data: shortest paths through Navigation's levels, successful episodes of Procgen."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import dtsn.envs  # noqa: F401 (registers the environments)
from dtsn.cli import main as cli
from dtsn.config import PPG_CPU
from dtsn.data import Dataset, DatasetError
from dtsn.envs.navigation import SPLITS, NavigationOptions, make_levels
from dtsn.envs.procgen import Played, ProcgenOptions
from dtsn.experts import collect
from dtsn.experts.collect import collect_navigation, collect_procgen
from dtsn.experts.ppg import train_expert
from dtsn.experts.ppg_policy import load_expert
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
    with pytest.raises(ValueError, match=f"{name} must"):
        collect_navigation(tmp_path / "d.h5", **change)  # type: ignore[arg-type]


# --- Procgen -----------------------------------------------------------------------------------------

GAME = ProcgenOptions("leaper")  # one random episode in five is successful, and they are short


@pytest.fixture(scope="module")
def successes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect_procgen(tmp_path_factory.mktemp("procgen") / "d.h5", GAME, None, episodes=4)


def test_only_successful_episodes_are_kept(successes: Path) -> None:
    with Dataset(successes) as dataset:
        assert dataset.num_episodes == dataset.array("dones").sum() == 4
        ends = dataset.array("episode_ends")
        assert (dataset.array("rewards")[ends - 1] == 10).all()  # the far side was reached
        assert (dataset.array("q_values") == 10).all()
        assert dataset.header["provenance"]["keep"] == "successful"
        assert len(set(dataset.array("levels"))) == 4
        env = gym.make(dataset.header["env_id"], **dataset.header["env_options"])
        episode = dataset.episode(1)
        frames = [env.reset(options={"level": episode.level})[0]]
        frames += [env.step(int(action))[0] for action in episode.actions]
        np.testing.assert_array_equal(frames, episode.observations)
    assert not list(successes.parent.glob(".*"))  # nothing is left behind


def test_a_collection_stopped_with_enough_episodes_still_owes_the_longer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episode 0 ends last: whoever stops before it has enough others, and must not do without it."""

    def play(options, levels, policy, at_once, **_):
        short, long = deque(), deque()
        for number, level in levels:
            (long if number == 0 else short).append((number, level))
            if len(short) + len(long) < at_once:
                continue
            yield played(*short.popleft(), steps=2)
        for number, level in short:
            yield played(number, level, steps=2)
        for number, level in long:
            yield played(number, level, steps=20)

    def played(number: int, level: int, steps: int) -> Played:
        frames = np.zeros((steps + 1, 3, 64, 64), np.uint8)
        rewards = np.zeros(steps, np.float32)
        return Played(number, level, frames, np.zeros(steps, np.int64), rewards, True, True)

    monkeypatch.setattr(collect, "play_levels", play)
    whole = collect_procgen(tmp_path / "whole.h5", GAME, None, episodes=4)

    def interrupt(done: int, total: int, *_: object) -> None:
        if done == total:
            raise KeyboardInterrupt

    stopped = tmp_path / "stopped.h5"
    with pytest.raises(KeyboardInterrupt):
        collect_procgen(stopped, GAME, None, episodes=4, progress=interrupt)
    collect_procgen(stopped, GAME, None, episodes=4)
    with Dataset(whole) as one, Dataset(stopped) as other:
        assert len(one.episode(0).actions) == 20
        assert one.header == other.header  # and so the checksums


def test_an_interrupted_collection_ends_as_if_it_had_not_been(successes: Path, tmp_path: Path) -> None:
    path, ended = tmp_path / "d.h5", 0

    def interrupt(*_: object) -> None:
        nonlocal ended
        ended += 1
        if ended in (3, 9):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            collect_procgen(path, GAME, None, episodes=4, progress=interrupt)
        assert not path.exists()
    parts = tmp_path / ".d.h5.parts"
    with (parts / "rejected.txt").open("a") as file:
        file.write("12")  # half a line
    (parts / ".episode-000000001.h5.12345678.tmp").touch()
    with pytest.raises(DatasetError, match="other settings"):
        collect_procgen(path, GAME, None, episodes=4, seed=1)
    collect_procgen(path, GAME, None, episodes=4, progress=interrupt)
    with Dataset(path) as one, Dataset(successes) as other:
        assert one.header == other.header  # and so the checksums
    assert not parts.exists()


def test_all_episodes_may_be_kept_with_discounted_returns(tmp_path: Path) -> None:
    path = collect_procgen(tmp_path / "d.h5", GAME, None, episodes=12, keep="all", num_levels=5, discount=0.5)
    with Dataset(path) as dataset:
        assert dataset.num_episodes == 12
        assert set(dataset.array("levels")) <= set(range(5))
        before = dataset.array("q_values")[dataset.array("episode_ends") - 2]
        assert set(before) == {0, 5}  # some were successful, some not


def test_hopeless_collections_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MAX_INITIAL_FAILURES", 3)
    starpilot = ProcgenOptions("starpilot")
    with pytest.raises(ValueError, match=r"none of the first 3 episodes of starpilot .easy. was"):
        collect_procgen(tmp_path / "d.h5", starpilot, None, episodes=1)


def test_experts_play_their_own_game(tmp_path: Path) -> None:
    tiny = {"num_envs": 4, "rollout": 4, "minibatches": 1, "latent": 8, "steps": 16}
    config = dataclasses.replace(PPG_CPU, game="leaper", **tiny)
    list(train_expert(tmp_path / "run", config))
    expert = load_expert(tmp_path / "run")
    with pytest.raises(ValueError, match=r"must play coinrun .easy., got one of leaper .easy."):
        collect_procgen(tmp_path / "d.h5", ProcgenOptions("coinrun"), expert)
    path = collect_procgen(tmp_path / "d.h5", GAME, expert, episodes=2, keep="all")
    with Dataset(path) as dataset:
        assert dataset.header["provenance"]["expert"] == {"steps": 16, "sha256": expert.sha256}
    with pytest.raises(DatasetError, match="already exists"):
        collect_procgen(path, GAME, expert)


@pytest.mark.parametrize(
    "change", [{"episodes": 0}, {"seed": -1}, {"keep": "best"}, {"num_levels": -1}, {"discount": 2.0}]
)
def test_bad_procgen_requests_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))} must"):
        collect_procgen(tmp_path / "d.h5", GAME, None, **change)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def run_cli(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dtsn", *arguments])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--num-envs", "4", "--rollout", "4", "--minibatches", "1", "--latent", "8", "--steps", "32")
    assert run_cli(monkeypatch, "expert", "procgen", "--game", "leaper", *sizes) == 0
    assert run_cli(monkeypatch, "expert", "procgen", "--game", "leaper", *sizes) == 2
    assert "resume it" in capsys.readouterr().err
    again = (*sizes[:-1], "48", "--resume")
    assert run_cli(monkeypatch, "expert", "procgen", "--game", "leaper", *again) == 0
    assert "dtsn collect procgen --game leaper" in capsys.readouterr().out
    some = ("--episodes", "2", "--keep", "all")
    assert run_cli(monkeypatch, "collect", "procgen", "--game", "leaper", *some) == 0
    assert Dataset("data/leaper.h5").num_episodes == 2
    assert run_cli(monkeypatch, "collect", "procgen", "--game", "leper", "--policy", "random") == 2
    assert "did you mean 'leaper'" in capsys.readouterr().err
    assert run_cli(monkeypatch, "collect", "procgen", "--game", "coinrun") == 2
    assert "runs/expert-coinrun" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_collection_goes_on(successes: Path, tmp_path: Path) -> None:
    asked = f"collect procgen --game leaper --policy random --episodes 4 --out {tmp_path / 'd.h5'}"
    command = [sys.executable, "-m", "dtsn", *asked.split()]
    process = subprocess.Popen(command)
    while not list(tmp_path.glob(".d.h5.parts/episode-*.h5")) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "d.h5").exists()
    subprocess.run(command, check=True)
    with Dataset(tmp_path / "d.h5") as one, Dataset(successes) as other:
        assert one.header == other.header
