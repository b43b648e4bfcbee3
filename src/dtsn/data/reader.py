"""Data sets opened for reading: checked first, then read as batches or episodes ask for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from dtsn.arrays import Array
from dtsn.batch import Batch
from dtsn.data.format import PLAIN_ARRAYS, DatasetError, Episode, ObservationSpec, to_json
from dtsn.data.frames import Frames
from dtsn.data.sampling import Sampler, Transform
from dtsn.data.verification import (
    boundary,
    check_contents,
    open_arrays,
    read_header,
    read_observation,
    signature,
)
from dtsn.data.verification import (
    verify as verify_checksums,
)
from dtsn.errors import UserError


class Dataset:
    """A data set opened for reading; frames come from the file as batches ask for them.

    Args:
        path: the file.
        verify: compare every array with its checksum, which reads the file once.
        cache_bytes: frames that take no more than this decoded are kept in memory; otherwise that many of
            them are, in a shuffle pool.
    """

    def __init__(self, path: str | Path, verify: bool = True, cache_bytes: int = 256 * 2**20) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise DatasetError(f"{self.path}: must be a data set file, got a folder")
        if not self.path.is_file():
            raise DatasetError(f"{self.path}: no such file; collect a data set or correct the path")
        with boundary(self.path):
            self._file = h5py.File(self.path, "r")
            try:
                self._signature = signature(self._file)
                self.header = read_header(self.path, self._file)
                arrays = open_arrays(self.path, self._file)
                arrays["observations"] = self._observations = Frames(arrays["observations"])
                self.observation: ObservationSpec = read_observation(
                    self.path, self.header, self._observations
                )
                self._arrays: dict[str, Array] = {name: arrays[name][:] for name in PLAIN_ARRAYS}
                check_contents(self.path, self.num_actions, len(self._observations), self._arrays)
                if verify:
                    verify_checksums(self.path, self.header, arrays)
                self._check_unchanged()
            except BaseException:
                self._file.close()
                raise
        self._sampler = Sampler(
            self._observations,
            self._arrays,
            real_last_frames=self.header["real_last_frames"],
            cache_bytes=cache_bytes,
            read=self._guarded,
        )

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_transitions

    def close(self) -> None:
        """Close the file; batches that read from it end with an error."""
        self._file.close()

    @property
    def sha256(self) -> str:
        """What the data hash to: the same for the same arrays, wherever and whenever they were written."""
        return hashlib.sha256(to_json(self.header["sha256"])).hexdigest()

    @property
    def num_transitions(self) -> int:
        """S, the number of steps."""
        return len(self._arrays["actions"])

    @property
    def num_episodes(self) -> int:
        """E, the number of episodes."""
        return len(self._arrays["episode_ends"])

    @property
    def num_actions(self) -> int:
        """A, the number of actions there are to choose from."""
        return int(self.header["num_actions"])

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return self.observation.shape

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """Type of a frame's values, in the file and in batches."""
        return np.dtype(self.observation.dtype)

    def array(self, name: str) -> Array:
        """Return a copy of one of the arrays of steps or episodes: actions, rewards, q_values, dones, …"""
        return self._arrays[name].copy()

    def info(self) -> dict[str, Any]:
        """Return what the file holds, as plain values."""
        fields = ("format_version", "dtsn_version", "env_id", "env_options", "provenance", "discount")
        return {
            "path": str(self.path),
            "file_bytes": self.path.stat().st_size,
            **{field: self.header[field] for field in fields},
            "num_actions": self.num_actions,
            "observation_shape": list(self.observation_shape),
            "observation_dtype": str(self.observation_dtype),
            "num_episodes": self.num_episodes,
            "num_transitions": self.num_transitions,
            "terminated_episodes": int(self._arrays["dones"].sum()),
            "episode_length": _summary(np.diff(self._arrays["episode_ends"], prepend=0)),
            "q_values": _summary(self._arrays["q_values"]),
        }

    def episode(self, index: int) -> Episode:
        """Return the whole episode number `index`."""
        index = range(self.num_episodes)[index]
        end = int(self._arrays["episode_ends"][index])
        start = int(self._arrays["episode_ends"][index - 1]) if index else 0
        frames: list[Array] = []
        self._guarded(lambda: frames.append(self._observations[start + index : end + index + 1]))
        return Episode(
            frames[0],
            self._arrays["actions"][start:end].copy(),
            self._arrays["rewards"][start:end].copy(),
            bool(self._arrays["dones"][end - 1]),
            int(self._arrays["levels"][index]),
        )

    def batches(
        self,
        batch_size: int,
        seed: int,
        start: int = 0,
        device: torch.device | str = "cpu",
        transform: Transform | None = None,
        path: int = 0,
    ) -> Iterator[Batch]:
        """Yield batches without end, beginning with batch number `start`.

        In each epoch every transition comes once, in an order that `seed` determines, save for the last
        ones that do not fill a batch. Batch number k is the same whichever `start` leads to it, so
        training resumes where it stopped; nothing before it is read. (Frames too large to be cached are
        shuffled by pools, whose size, and so the order, depends on `cache_bytes`.)

        Args:
            batch_size: B, at most the number of transitions.
            seed: of the order.
            start: number of the first batch.
            device: where the tensors go.
            transform: ``transform(arrays, rng)`` may change a batch's arrays, named as in `Batch`, before
                they become tensors.
            path: K, how many of the actions that follow to put into ``Batch.path``; 0: none.

        Returns:
            A generator of batches: observations ``[B, ...]`` as stored, the other fields ``[B]``.
        """
        if not 1 <= batch_size <= self.num_transitions:
            raise UserError(
                f"batch_size must be 1 to {self.num_transitions}, the transitions of {self.path}, "
                f"got {batch_size}"
            )
        for name, value in (("seed", seed), ("start", start), ("path", path)):
            if value < 0:
                raise UserError(f"{name} must not be negative, got {value}")
        return self._sampler.batches(batch_size, seed, start, device, transform, path)

    def _guarded(self, load: Callable[[], None]) -> None:
        """Read from the file as it was when it was checked."""
        with boundary(self.path):
            try:
                load()
            finally:
                self._check_unchanged()  # also the likely reason if what was read is damaged

    def _check_unchanged(self) -> None:
        if signature(self._file) != self._signature:
            raise DatasetError(f"{self.path}: was changed while it was open; open it again to check it anew")


def _summary(values: Array) -> dict[str, float]:
    return {"min": float(values.min()), "mean": float(values.mean(dtype=float)), "max": float(values.max())}
