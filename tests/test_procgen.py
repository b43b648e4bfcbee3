"""Procgen: levels, exact episodes, errors; and the way from the game to training data."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
import os
import re
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import dtsn.envs  # noqa: F401 (registers the environments)
from dtsn.data import Dataset, DatasetError
from dtsn.data.dgrl import import_dgrl
from dtsn.data.minari import export_minari, import_minari
from dtsn.envs import procgen
from dtsn.envs.procgen import (
    GAMES,
    NUM_ACTIONS,
    SPLITS,
    Played,
    ProcgenOptions,
    ProcgenPool,
    play_levels,
    split_range,
)
from dtsn.experts.collect import collect_procgen, random_policy

LEAPER = ProcgenOptions("leaper")  # its episodes are short


def play(levels: list[int], seed: int = 0, **settings: int) -> dict[int, Played]:
    return {p.number: p for p in play_levels(LEAPER, enumerate(levels), random_policy(seed), **settings)}


@pytest.fixture(scope="module")
def alone() -> dict[int, Played]:
    return play(list(range(500, 506)), at_once=1)


def test_splits_are_disjoint_and_fit() -> None:
    ranges = sorted(SPLITS.values())
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(ranges))
    assert ranges[-1][1] <= procgen.LEVELS_END
    assert split_range("train", 200) == (0, 200)
    assert split_range("test") == SPLITS["test"]


def test_an_episode_does_not_depend_on_the_others(alone: dict[int, Played]) -> None:
    together = play(list(range(500, 506)), at_once=6)
    begun_again = play(list(range(500, 506)), at_once=6, max_frames=60)
    for other in (together, begun_again):
        assert set(other) == set(alone) == set(range(6))
        for number, played in alone.items():
            assert played.level == 500 + number
            for one, two in zip(played, other[number], strict=True):
                np.testing.assert_array_equal(one, two)


def test_episodes_are_whole(alone: dict[int, Played]) -> None:
    for played in alone.values():
        assert len(played.observations) == len(played.actions) + 1 == len(played.rewards) + 1
        assert played.complete == (played.rewards[-1] > 0)
        assert not played.rewards[:-1].any()
    (bare,) = play_levels(LEAPER, [(0, 500)], random_policy(0), keep_frames=False)
    assert bare.observations.shape == (0, 3, 64, 64)
    np.testing.assert_array_equal(bare.actions, alone[0].actions)


def test_every_frame_is_a_new_one() -> None:
    # Space scrolls by at each step, so a frame that came twice, or one of another episode, would show.
    (played,) = play_levels(ProcgenOptions("starpilot"), [(0, 3)], random_policy(0))
    moved = (played.observations[1:] != played.observations[:-1]).mean((1, 2, 3))
    assert (moved > 0.05).all()
    assert moved[-1] < 2 * moved[:-1].max()


def test_time_outs_are_not_terminations() -> None:
    (played,) = play_levels(LEAPER, [(0, 7)], lambda frames, *_: np.full(len(frames), 4))  # stands still
    assert (len(played.actions), played.terminated, played.complete) == (500, False, False)


def test_a_pool_shows_true_last_frames_and_known_levels() -> None:
    pool, again = (ProcgenPool(LEAPER, 8, num_levels=3, seed=5) for _ in range(2))
    frames, rng = pool.reset(), np.random.default_rng(0)
    np.testing.assert_array_equal(again.reset(), frames)
    playing = [[frame] for frame in frames]
    actions: list[list[int]] = [[] for _ in frames]
    seen, ended = set(), 0
    for _ in range(150):
        chosen = rng.integers(NUM_ACTIONS, size=8)
        step = pool.step(chosen)
        np.testing.assert_array_equal(again.step(chosen).observations, step.observations)
        for slot in range(8):
            playing[slot].append(step.last[slot])
            actions[slot].append(int(chosen[slot]))
            seen.add(int(step.levels[slot]))
            if step.terminated[slot] or step.truncated[slot]:
                ended += 1
                if ended <= 4:  # the same level by itself gives the same episode
                    told = iter(actions[slot])
                    (played,) = play_levels(
                        LEAPER, [(0, int(step.levels[slot]))], lambda *_, told=told: [next(told)]
                    )
                    np.testing.assert_array_equal(played.observations, playing[slot])
                    assert played.complete == step.complete[slot]
                playing[slot], actions[slot] = [step.observations[slot]], []
            else:
                np.testing.assert_array_equal(step.last[slot], step.observations[slot])
    assert ended > 4
    assert seen == {0, 1, 2}
    assert not np.array_equal(ProcgenPool(LEAPER, 8, num_levels=3, seed=6).reset(), frames)


def test_a_pool_holds_actions_until_the_episode_ends() -> None:
    pool, rng = ProcgenPool(LEAPER, 8, num_levels=3, seed=5, action_repeat=3), np.random.default_rng(0)
    pool.reset()
    decisions: list[list[int]] = [[] for _ in range(8)]
    shown: list[list[np.ndarray]] = [[] for _ in range(8)]
    gained, lengths = np.zeros(8), []
    for _ in range(80):
        chosen = rng.integers(NUM_ACTIONS, size=8)
        step = pool.step(chosen)
        gained += step.rewards
        for slot in range(8):
            decisions[slot].append(int(chosen[slot]))
            shown[slot].append(step.last[slot])
            if step.terminated[slot] or step.truncated[slot]:
                # The same level by itself, each action played three times, gives the same episode.
                told = iter(np.repeat(decisions[slot], 3).tolist())
                level = int(step.levels[slot])
                (played,) = play_levels(LEAPER, [(0, level)], lambda *_, told=told: [next(told)])
                every_third = [*played.observations[3:-1:3], played.observations[-1]]
                np.testing.assert_array_equal(shown[slot], every_third)
                assert played.rewards.sum() == gained[slot]
                assert played.complete == step.complete[slot]
                lengths.append(len(played.actions))
                decisions[slot], shown[slot], gained[slot] = [], [], 0
    assert {length % 3 for length in lengths} == {0, 1, 2}  # episodes end while an action is held, too


def test_gymnasium_plays_the_same_levels(alone: dict[int, Played]) -> None:
    env = gym.make("dtsn/Procgen-v0", game="leaper", render_mode="rgb_array")
    played = alone[2]
    frame, info = env.reset(options={"level": played.level})
    frames = [frame]
    assert info["level"] == played.level
    for action in played.actions:
        frame, reward, terminated, truncated, info = env.step(int(action))
        frames.append(frame)
    np.testing.assert_array_equal(frames, played.observations)
    assert (reward, terminated, truncated) == (played.rewards[-1], played.terminated, not played.terminated)
    assert info["complete"] == played.complete
    np.testing.assert_array_equal(env.render(), frame.transpose(1, 2, 0))
    first, second = (env.reset(seed=3)[1]["level"] for _ in range(2))
    assert first == second < SPLITS["train"][1]


@pytest.mark.parametrize(
    ("game", "mode", "said"),
    [
        ("conrun", "easy", "game must be .* got 'conrun'; did you mean 'coinrun'?"),
        ("pong", "easy", "game must be one of bigfish, .*starpilot, got 'pong'$"),
        ("bigfish", "memory", "mode must be one of easy, hard for bigfish, got 'memory'"),
    ],
)
def test_unknown_games_and_modes(game: str, mode: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ProcgenOptions(game, mode)


def test_bad_requests() -> None:
    with pytest.raises(ValueError, match=r"level must be .* got -1"):
        play([-1])
    with pytest.raises(ValueError, match=r"level must be .* got 2147483647"):
        play([2**31 - 1])
    with pytest.raises(ValueError, match="at_once and max_frames must be at least 1, got 0"):
        play([1], at_once=0)
    with pytest.raises(ValueError, match=r"split must be .* got 'dev'"):
        split_range("dev")
    with pytest.raises(ValueError, match=r"num_levels must be .* got -1"):
        split_range("train", -1)
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        ProcgenPool(LEAPER, 0)
    with pytest.raises(gym.error.ResetNeeded):
        gym.make("dtsn/Procgen-v0").unwrapped.step(0)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procgen, "_envpool", None)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"Qt 5 .*run: pip install 'dtsn\[procgen\]'"):
            procgen.load_envpool()
    with monkeypatch.context() as patch:
        patch.setattr(
            importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(f"no {name}"))
        )
        with pytest.raises(ImportError, match=r"EnvPool.*no envpool.*run: pip install 'dtsn\[procgen\]'"):
            procgen.load_envpool()

    def no_gl(name: str, *_: int) -> None:
        raise OSError(name)

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", no_gl)
        with pytest.raises(ImportError, match=r"libGL\.so\.1; run: apt-get install libgl1"):
            procgen.load_envpool()


# --- exchange ----------------------------------------------------------------------------------------


def write_dgrl(folder: Path, number: int, steps: int, level: int, **changes: np.ndarray) -> Path:
    """An episode as gen_dgrl lays it out."""
    rng = np.random.default_rng(number)
    arrays = {
        "observations": rng.integers(0, 256, (steps + 1, 3, 64, 64)).astype(np.float32),
        "actions": rng.integers(0, 15, (steps, 1)),
        "rewards": rng.random((steps, 1)).astype(np.float32),
        "dones": np.arange(steps) == steps - 1,
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"20230101T000000_{number}_{steps}_{level}_{arrays['rewards'].sum():.2f}.npz"
    np.savez_compressed(path, **arrays)
    return path


def test_dgrl_episodes_are_imported(tmp_path: Path) -> None:
    files = [write_dgrl(tmp_path / "in", number, 3 + number, 40 + number) for number in (10, 2, 1)]
    seen: list[tuple[int, int]] = []
    out = import_dgrl(tmp_path / "in", tmp_path / "d.h5", LEAPER, progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with Dataset(out) as dataset:
        assert dataset.array("levels").tolist() == [41, 42, 50]  # by their numbers
        assert dataset.header["env_options"] == {"game": "leaper", "mode": "easy"}
        source, episode = np.load(files[0]), dataset.episode(2)
        np.testing.assert_array_equal(episode.observations[:-1], source["observations"][:-1])
        assert not episode.observations[-1].any()  # theirs is of the next episode
        np.testing.assert_array_equal(episode.actions, source["actions"][:, 0])
        np.testing.assert_array_equal(episode.rewards, source["rewards"][:, 0])
        assert episode.terminated
        batch = next(dataset.batches(len(dataset), seed=0))
        assert batch.next_valid is not None
        stand_in = ~batch.next_observation.flatten(1).any(1)
        assert torch.equal(batch.next_valid, ~stand_in)  # what is black is nothing to learn
    with Dataset(import_dgrl(tmp_path / "in", tmp_path / "e.h5", LEAPER, episodes=1)) as dataset:
        assert dataset.num_episodes == 1


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("exploded"),))


def test_bad_dgrl_files_are_named_and_nothing_in_them_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = np.empty((4, 1), object)
    pickled[:] = Bomb()
    damages = {
        "pickled": {"actions": pickled},
        "short": {"actions": np.zeros((3, 1), np.int64)},
        "endless": {"dones": np.zeros(4, bool)},
        "wide": {"rewards": np.zeros((4, 1), np.longdouble)},
        "complex": {"rewards": np.zeros((4, 1), complex)},
    }
    for name, change in damages.items():
        path = write_dgrl(tmp_path / name, 0, 4, 7)
        arrays = dict(np.load(path)) | change
        np.savez_compressed(path, **arrays)
    whole = write_dgrl(tmp_path / "cut", 0, 4, 7)
    whole.write_bytes(whole.read_bytes()[:-100])
    write_dgrl(tmp_path / "named", 0, 4, 7).rename(tmp_path / "named" / "episode.npz")
    (tmp_path / "empty").mkdir()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / whole.name)
    with zipfile.ZipFile(write_dgrl(tmp_path / "many", 0, 4, 7), "a") as archive:
        for number in range(100):
            archive.writestr(str(number), b"")
    blob = bytearray(write_dgrl(tmp_path / "locked", 0, 4, 7).read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # say that all files are encrypted
        for match in re.finditer(re.escape(signature), bytes(blob)):
            blob[match.start() + flags] |= 1
    (tmp_path / "locked" / whole.name).write_bytes(blob)
    for name in (*damages, "cut", "named", "empty", "pipe", "many", "locked"):
        with pytest.raises(DatasetError, match=name):
            import_dgrl(tmp_path / name, tmp_path / "d.h5", LEAPER)
    assert not (tmp_path / "d.h5").exists()
    assert not (tmp_path / "exploded").exists()


def test_minari_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with Dataset(collect_procgen(tmp_path / "d.h5", LEAPER, None, episodes=2, keep="all")) as dataset:
        export_minari(dataset, "procgen/leaper-v0")
        with Dataset(import_minari("procgen/leaper-v0", tmp_path / "e.h5")) as again:
            assert again.header["sha256"] == dataset.header["sha256"]
            assert again.header["env_options"] == {"game": "leaper", "mode": "easy"}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_makes_training_data(game: str, tmp_path: Path) -> None:
    for mode in GAMES[game]:
        options = ProcgenOptions(game, mode)
        path = collect_procgen(tmp_path / f"{mode}.h5", options, None, episodes=2, keep="all")
        with Dataset(path) as dataset:
            assert dataset.header["env_options"] == {"game": game, "mode": mode}
            assert dataset.num_actions == NUM_ACTIONS
            batch = next(dataset.batches(8, seed=0))
            assert batch.observation.shape == (8, 3, 64, 64)
            env = gym.make(dataset.header["env_id"], **dataset.header["env_options"])
            episode = dataset.episode(0)
            frames = [env.reset(options={"level": episode.level})[0]]
            frames += [env.step(int(action))[0] for action in episode.actions]
            np.testing.assert_array_equal(frames, episode.observations)
