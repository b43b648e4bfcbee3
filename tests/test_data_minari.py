"""Data sets go to Minari and back bit by bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from data_files import contents, make_episodes, write
from data_files import lengths as lengths
from data_files import path as path
from dtsn.data.minari import export_minari, import_minari
from dtsn.data.reader import Dataset
from dtsn.errors import UserError


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_minari_round_trip_is_bitwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type[np.generic]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rng = np.random.default_rng(0)
    shape = (40, 40, 3)  # which Minari would take for pictures, and compress with loss
    episodes = [
        episode._replace(
            observations=rng.integers(256, size=(len(episode.actions) + 1, *shape)).astype(dtype)
        )
        for episode in make_episodes([3, 1, 8, 2])
    ]
    frames: dict[str, Any] = {"observation_shape": shape, "observation_dtype": dtype}
    first = write(tmp_path / "first.h5", episodes, discount=0.9, **frames)
    with Dataset(first) as dataset:
        export_minari(dataset, "test/round-v0")
        header = dataset.header
    second = import_minari("test/round-v0", tmp_path / "second.h5", discount=0.9)
    with Dataset(second) as dataset:
        assert dataset.header == header  # and the checksums with it
    for name, array in contents(first).items():
        assert np.array_equal(array, contents(second)[name])
    with Dataset(import_minari("test/round-v0", tmp_path / "third.h5")) as dataset:
        assert dataset.array("q_values")[0] == episodes[0].rewards.sum()


def test_what_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with pytest.raises(UserError, match=r"minari download mine/none-v0"):
        import_minari("mine/none-v0", tmp_path / "none.h5")
    shifted = minari.data_collector.EpisodeBuffer(
        observations=np.zeros((3, 2), np.float32),
        actions=np.array([1, 2]),
        rewards=np.zeros(2),
        terminations=np.array([False, True]),
        truncations=np.zeros(2, bool),
        infos={},
    )
    minari.create_dataset_from_buffers(
        "mine/shifted-v0",
        [shifted],
        observation_space=Box(-1, 1, (2,)),
        action_space=Discrete(2, start=1),
    )
    with pytest.raises(UserError, match=r"actions must start at 0, got Discrete\(2, start=1\)"):
        import_minari("mine/shifted-v0", tmp_path / "shifted.h5")


def test_missing_minari_says_how_to_install_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with Dataset(path) as dataset, pytest.raises(ImportError, match=r"pip install 'dtsn\[minari\]'"):
        export_minari(dataset, "test/x-v0")
