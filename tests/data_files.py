"""Small data sets whose frames and rewards tell where they stand in the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dtsn.batch import Batch
from dtsn.data.format import PLAIN_ARRAYS, Episode
from dtsn.data.writer import DatasetWriter

ARRAYS = ("observations", *PLAIN_ARRAYS)
FRAME = (2, 3)  # int32, so 24 bytes
FRAME_BYTES = 24


def make_episodes(lengths: list[int], seed: int = 0) -> list[Episode]:
    """Episodes whose frames hold their own row in the file, and whose rewards are all different."""
    rng = np.random.default_rng(seed)
    rows, steps = itertools.count(), itertools.count(1)
    return [
        Episode(
            observations=np.stack([np.full(FRAME, next(rows), np.int32) for _ in range(length + 1)]),
            actions=rng.integers(5, size=length),
            rewards=np.array([next(steps) for _ in range(length)], np.float32),
            terminated=bool(number % 3),
            level=1000 + 7 * number,
        )
        for number, length in enumerate(lengths)
    ]


def make_writer(path: Path, **changes: Any) -> DatasetWriter:
    options: dict[str, Any] = {
        "env_id": "test/Env-v0",
        "env_options": {"size": 3, "sides": [1, 2]},
        "num_actions": 5,
        "observation_shape": FRAME,
        "observation_dtype": np.int32,
        "provenance": {"split": "train", "seed": 4},
    }
    return DatasetWriter(path, **(options | changes))


def write(path: Path, episodes: Iterable[Episode], **changes: Any) -> Path:
    with make_writer(path, **changes) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return path


def contents(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][:] for name in ARRAYS}


def take(batches: Iterator[Batch], count: int) -> list[Batch]:
    return list(itertools.islice(batches, count))


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    return [int(n) for n in np.random.default_rng(1).integers(1, 40, size=60)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> Path:
    return write(tmp_path_factory.mktemp("data") / "many.h5", make_episodes(lengths))
