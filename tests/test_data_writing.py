"""Data sets are written whole or not at all, read as they were written, and bad ones refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import FRAME, make_episodes, make_writer, write
from data_files import lengths as lengths
from data_files import path as path
from dtsn.data import format as data_format
from dtsn.data.format import DatasetError, Episode, ObservationSpec, returns_to_go
from dtsn.data.reader import Dataset


def test_round_trip(path: Path, lengths: list[int]) -> None:
    episodes = make_episodes(lengths)
    with Dataset(path) as dataset:
        assert len(dataset) == dataset.num_transitions == sum(lengths)
        assert (dataset.num_episodes, dataset.num_actions) == (len(lengths), 5)
        assert (dataset.observation_shape, dataset.observation_dtype) == (FRAME, np.int32)
        for index, episode in enumerate(episodes):
            for mine, theirs in zip(dataset.episode(index), episode, strict=True):
                assert np.array_equal(mine, theirs)
        assert np.array_equal(dataset.episode(-1).observations, episodes[-1].observations)
        info = dataset.info()
        assert dataset.header["env_options"] == {"size": 3, "sides": [1, 2]}
        assert info["provenance"] == {"split": "train", "seed": 4}
        assert info["episode_length"] == {"min": min(lengths), "mean": np.mean(lengths), "max": max(lengths)}
        assert info["q_values"]["max"] == dataset.array("q_values").max()
        assert info["terminated_episodes"] == sum(episode.terminated for episode in episodes)


@pytest.mark.parametrize("discount", [1.0, 0.97])
def test_returns_to_go(tmp_path: Path, discount: float) -> None:
    rng = np.random.default_rng(0)
    episode = make_episodes([30])[0]._replace(rewards=rng.normal(size=30).astype(np.float32))
    naive = [sum(discount**k * r for k, r in enumerate(episode.rewards[t:])) for t in range(30)]
    np.testing.assert_allclose(returns_to_go(episode.rewards, discount), naive, rtol=1e-6, atol=1e-6)
    with Dataset(write(tmp_path / "d.h5", [episode, episode], discount=discount)) as dataset:
        np.testing.assert_allclose(dataset.array("q_values"), naive * 2, rtol=1e-6, atol=1e-6)
        assert dataset.header["discount"] == discount


def test_existing_file_is_kept_unless_told(tmp_path: Path) -> None:
    path = write(tmp_path / "d.h5", make_episodes([3]))
    with pytest.raises(DatasetError, match=r"d\.h5.*overwrite=True"):
        make_writer(path)
    write(path, make_episodes([4]), overwrite=True)
    with Dataset(path) as dataset:
        assert len(dataset) == 4


@pytest.mark.parametrize("interrupt", [RuntimeError, KeyboardInterrupt])
def test_interrupted_writer_leaves_the_old_file(tmp_path: Path, interrupt: type[BaseException]) -> None:
    path = write(tmp_path / "d.h5", make_episodes([3]))
    before = path.read_bytes()

    def episodes() -> Iterator[Episode]:
        yield from make_episodes([9])
        raise interrupt

    with pytest.raises(interrupt):
        write(path, episodes(), overwrite=True)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["d.h5"]


def test_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.h5", make_episodes([3]))
    before = path.read_bytes()
    script = """
import os, signal, sys
import numpy as np
from dtsn.data import DatasetWriter, Episode
with DatasetWriter(
    sys.argv[1], env_id="x", env_options={}, num_actions=2, observation_shape=(4,), overwrite=True
) as writer:
    for level in range(50):
        writer.add_episode(Episode(np.zeros((9, 4), np.uint8), np.zeros(8, int), np.zeros(8), True, level))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.array([0, 5])}, "integers from 0 to 4, got 0 to 5"),
        ({"actions": np.array([0, -1])}, "got -1 to 0"),
        ({"actions": np.array([0.0, 1.0])}, "must be integers.*float64"),
        ({"actions": np.array([0])}, r"one action and one reward.*\[1\]"),
        ({"rewards": np.array([0, np.nan])}, "rewards.*NaN"),
        ({"observations": np.zeros((2, *FRAME), np.int32)}, "the frame after the last step"),
        ({"observations": np.zeros((3, *FRAME), np.uint8)}, "uint8"),
    ],
)
def test_bad_episodes_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = make_episodes([2])[0]
    with make_writer(tmp_path / "d.h5") as writer:
        with pytest.raises(DatasetError, match=rf"d\.h5.*{message}"):
            writer.add_episode(good._replace(**change))
        writer.add_episode(good)  # what was refused left no trace
    with Dataset(tmp_path / "d.h5") as dataset:
        assert len(dataset) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_actions": 0}, "num_actions must be 1 to 4096, got 0"),
        ({"discount": 1.5}, "discount must lie in .*, got 1.5"),
        ({"observation_dtype": object}, "dtype must be one of uint8.*, got 'object'"),
        ({"observation_dtype": np.longdouble}, "dtype must be one of"),
        ({"observation_shape": (2**23,)}, "must take at most 4194304 bytes"),
        ({"observation_low": 3, "observation_high": 3}, "low < high"),
        ({"num_actions": 10**7}, "num_actions must be 1 to 4096"),
        ({"observation_shape": (0, 3)}, "shape must have positive sizes"),
        ({"env_options": {"f": print}}, "JSON"),
        ({"provenance": {"f": float("nan")}}, "JSON"),
    ],
)
def test_bad_writer_options_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        make_writer(tmp_path / "d.h5", **change)


def test_empty_data_set_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="at least one episode"), make_writer(tmp_path / "d.h5"):
        pass
    assert not os.listdir(tmp_path)


def test_observation_spec_round_trip() -> None:
    for dtype in data_format.OBSERVATION_DTYPES:
        spec = ObservationSpec.of((3, 4), dtype)
        assert ObservationSpec.from_json((3, 4), json.loads(json.dumps(spec.to_json()))) == spec
        space = spec.space()
        assert (space.shape, space.dtype) == ((3, 4), np.dtype(dtype))
        assert ObservationSpec.from_space(space) == spec
    assert ObservationSpec.of((2,), np.uint8, high=1).space().high.max() == 1


def test_observations_beyond_their_bounds_are_refused(tmp_path: Path) -> None:
    with make_writer(tmp_path / "d.h5", observation_low=0, observation_high=5) as writer:
        with pytest.raises(DatasetError, match=r"observations must lie in \[0.0, 5.0\], got 0 to 9"):
            writer.add_episode(make_episodes([9])[0])
        writer.add_episode(make_episodes([5])[0])
    with Dataset(tmp_path / "d.h5") as dataset:
        assert (dataset.observation.low, dataset.observation.high) == (0, 5)


def test_headers_cannot_steer_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07"
    options: dict[str, Any] = {
        "env_id": evil,
        "env_options": {evil: [evil]},
        "provenance": {"a": {"b": evil}},
    }
    with Dataset(write(tmp_path / "d.h5", make_episodes([3]), **options)) as dataset:
        assert "\x1b" not in str(dataset.info())
        assert "owned" in dataset.header["env_id"]
        assert all(ord(c) >= 32 for c in json.dumps(dataset.header, ensure_ascii=False))
