"""Formats of the future and the past."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dtsn.checkpoint import CheckpointError
from dtsn.data import Dataset, DatasetError
from dtsn.data.format import seal
from dtsn.training.loading import load_solver

from .common import TINY, Outcome, train, vectors
from .malice import seal_state


def versions(folder: Path, size: int = 1) -> Outcome:
    """Formats of the future and the past are refused with a sentence, or read as they were meant."""
    result, path = Outcome(), vectors(folder / "data.h5")
    with Dataset(path) as dataset:
        train(folder / "run", dataset, replace(TINY, steps=2))
        header = dataset.header
    good = folder / "run/checkpoints/step-2"
    for version in (-1, 0, 2, 3, 99, 2**70, 1.5, "1", "2", None, [1], {}):
        other = folder / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(good, other)
        seal_state(other, format_version=version)
        result.tried += 1
        try:
            load_solver(other)
            result.failures.append(f"checkpoint of version {version!r} was accepted")
        except CheckpointError as error:
            future = isinstance(version, int) and version > 1
            says = f"{other}" in str(error) and f"version {version!r}" in str(error)
            result.check(says and ("upgrade dtsn" in str(error)) == future, f"version {version!r}: {error}")
    for version in (-1, 0, 1, 2, 4, 99, "3", None, [1]):
        other = folder / "other.h5"
        _with_header(path, other, header | {"format_version": version})
        result.tried += 1
        try:
            Dataset(other).close()
            result.failures.append(f"data set of version {version!r} was accepted")
        except DatasetError as error:
            says = (
                str(other) in str(error) and f"version {version!r}" in str(error) and "upgrade" in str(error)
            )
            result.check(says, f"version {version!r}: {error}")
    return result


def _with_header(path: Path, other: Path, header: dict[str, Any]) -> None:
    shutil.copy(path, other)
    text = json.dumps(header, sort_keys=True).encode()
    with h5py.File(other, "r+") as file:
        file.attrs["header"] = np.bytes_(text)
        file.attrs["header_sha256"] = np.bytes_(hashlib.sha256(text).hexdigest())
    with other.open("rb+") as raw:
        raw.write(seal(raw))
