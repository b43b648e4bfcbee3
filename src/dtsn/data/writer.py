"""Data sets are written episode by episode, aside, and appear when they are complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from dtsn import __version__
from dtsn.data.format import (
    CHUNK,
    FORMAT,
    FORMAT_VERSION,
    MAX_ACTIONS,
    MAX_STEPS,
    PLAIN_ARRAYS,
    SEAL_BYTES,
    DatasetError,
    Episode,
    ObservationSpec,
    check_values,
    returns_to_go,
    seal,
    sealed,
    to_json,
)
from dtsn.errors import UserError
from dtsn.storage import aside, sync_folder


class DatasetWriter:
    """Writes episodes to `path`, which appears complete when the `with` block ends well, or not at all.

    Args:
        path: the file to write.
        env_id: the environment that was played.
        env_options: what it was made with, as plain JSON.
        num_actions: A.
        observation_shape: of one frame, without the dimension of time.
        observation_dtype: of its values.
        observation_low: their least value; that of the type if not given.
        observation_high: their largest value, by which `auto` tells 0/1 maps from frames.
        real_last_frames: False where the frame after an episode's last step is a stand-in; no loss then
            learns to predict it.
        discount: of the returns-to-go.
        provenance: where the data came from, as plain JSON.
        overwrite: replace a file that is there.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        env_id: str,
        env_options: Mapping[str, Any],
        num_actions: int,
        observation_shape: tuple[int, ...],
        observation_dtype: npt.DTypeLike = np.uint8,
        observation_low: float | None = None,
        observation_high: float | None = None,
        real_last_frames: bool = True,
        discount: float = 1.0,
        provenance: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and not overwrite:
            raise DatasetError(f"{self.path}: already exists; pass overwrite=True or choose another path")
        if not 1 <= num_actions <= MAX_ACTIONS:
            raise DatasetError(f"{self.path}: num_actions must be 1 to {MAX_ACTIONS}, got {num_actions}")
        if not 0 <= discount <= 1:
            raise DatasetError(f"{self.path}: discount must lie in [0, 1], got {discount}")
        try:
            self.observation = ObservationSpec.of(
                observation_shape, observation_dtype, observation_low, observation_high
            )
        except UserError as error:
            raise DatasetError(f"{self.path}: {error}") from error
        self._shape = self.observation.shape
        self._dtype = np.dtype(self.observation.dtype).newbyteorder("<")
        self._header: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "dtsn_version": __version__,
            "env_id": env_id,
            "env_options": dict(env_options),
            "num_actions": int(num_actions),
            "observation": self.observation.to_json(),
            "real_last_frames": bool(real_last_frames),
            "discount": float(discount),
            "provenance": dict(provenance or {}),
        }
        try:  # before the episodes are played, not after
            to_json(self._header)
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"{self.path}: env_options and provenance must be plain JSON values ({error})"
            ) from error

    def __enter__(self) -> DatasetWriter:
        self._temporary = aside(self.path, "tmp")
        with self._cleaned_up():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # v110 checksums its metadata. The cache lets an unfinished chunk grow without being compressed
            # anew.
            cache = max(2**20, 2 * self.observation.frame_bytes * CHUNK)
            self._sink = _Sink(self._temporary)
            self._file = h5py.File(
                self._sink, "w", libver="v110", userblock_size=SEAL_BYTES, rdcc_nbytes=cache
            )
            self._file.create_dataset(
                "observations",
                shape=(0, *self._shape),
                maxshape=(None, *self._shape),
                dtype=self._dtype,
                chunks=(CHUNK, *self._shape),
                compression="gzip",
                compression_opts=1,
            )
            for name, dtype in PLAIN_ARRAYS.items():
                self._file.create_dataset(name, shape=(0,), maxshape=(None,), dtype=dtype, chunks=(1024,))
        self._arrays = {name: self._file[name] for name in self._file}
        self._digests = {name: hashlib.sha256() for name in self._arrays}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        with self._cleaned_up():
            self._finish()

    def add_episode(self, episode: Episode) -> None:
        """Append an episode of T ≥ 1 steps: observations ``[T + 1, ...]``, actions and rewards ``[T]``."""
        observations, actions, rewards = (np.asarray(x) for x in episode[:3])
        steps = len(rewards) if rewards.ndim else 0
        if steps < 1 or actions.shape != (steps,) or rewards.shape != (steps,):
            raise DatasetError(
                f"{self.path}: an episode must have one action and one reward for each of its steps, "
                f"got actions {list(actions.shape)} and rewards {list(rewards.shape)}"
            )
        expected = (steps + 1, *self._shape)
        if observations.shape != expected or observations.dtype != self._dtype:
            raise DatasetError(
                f"{self.path}: observations must be {self._dtype}{list(expected)} for {steps} steps, "
                f"the frame after the last step included, got {observations.dtype}{list(observations.shape)}"
            )
        if len(self._arrays["actions"]) + steps > MAX_STEPS:
            raise DatasetError(f"{self.path}: a data set must have at most {MAX_STEPS} steps: write several")
        rewards = rewards.astype("<f4")
        q_values = returns_to_go(rewards, self._header["discount"]).astype("<f4")
        check_values(self.path, self._header["num_actions"], actions, rewards, q_values)
        if not np.isfinite(observations).all():
            raise DatasetError(f"{self.path}: observations must be finite, got NaN or infinity")
        low, high = observations.min(), observations.max()
        if low < self.observation.low or high > self.observation.high:
            raise DatasetError(
                f"{self.path}: observations must lie in {[self.observation.low, self.observation.high]}, "
                f"got {low} to {high}"
            )
        start = len(self._arrays["actions"])
        dones = np.zeros(steps, bool)
        dones[-1] = episode.terminated
        added: dict[str, Any] = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "q_values": q_values,
            "dones": dones,
            "episode_ends": [start + steps],
            "levels": [episode.level],
        }
        with self._cleaned_up():
            for name, values in added.items():
                array = self._arrays[name]
                values = np.ascontiguousarray(values, array.dtype)
                array.resize(len(array) + len(values), axis=0)
                array[-len(values) :] = values
                self._digests[name].update(values.data)
            self._sink.check()

    def _finish(self) -> None:
        if not len(self._arrays["episode_ends"]):
            raise DatasetError(f"{self.path}: must have at least one episode, got none")
        digests = {name: sealed(self._digests[name], array) for name, array in self._arrays.items()}
        header = to_json(self._header | {"sha256": digests})
        self._file.attrs["header"] = np.bytes_(header)
        self._file.attrs["header_sha256"] = np.bytes_(hashlib.sha256(header).hexdigest())
        self._file.close()
        self._sink.check()
        self._sink.close()
        with self._temporary.open("rb+") as file:
            file.write(seal(file).ljust(SEAL_BYTES, b"\0"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._temporary, self.path)
        sync_folder(self.path.parent)

    @contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        """Leave nothing behind on an error; a disk that fails becomes a DatasetError that names the file."""
        try:
            yield
        except BaseException as error:
            self._discard()
            if isinstance(error, (OSError, RuntimeError)):  # HDF5 raises either
                raise DatasetError(
                    f"{self.path}: cannot be written ({error}); nothing was changed"
                ) from error
            raise

    def _discard(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
        if hasattr(self, "_sink"):
            self._sink.close()
        self._temporary.unlink(missing_ok=True)


class _Sink:
    """A file for HDF5 to write, on which no write fails: a failed one would break the process for good.

    Once the disk refuses a write, this and all later ones are kept in memory instead, so that HDF5 can be
    closed; `check` raises the error. They are few, as the writer checks after every episode.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb+", buffering=0)
        self._place = self._end = 0
        self._refused: list[tuple[int, bytes]] = []
        self._error: OSError | None = None

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._file.close()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + (self._end if whence == os.SEEK_END else 0)
        return self._place

    def tell(self) -> int:
        return self._place

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        start, size = self._place, len(left)
        try:
            while left and self._error is None:
                left = left[os.pwrite(self._file.fileno(), left, start + size - len(left)) :]
        except OSError as error:
            self._error = error
        if left:
            self._refused.append((start, bytes(data)))
        self._place = start + size
        self._end = max(self._end, self._place)
        return size

    def read(self, size: int) -> bytes:
        content = bytearray(os.pread(self._file.fileno(), size, self._place).ljust(size, b"\0"))
        for start, data in self._refused:
            first, last = max(start, self._place), min(start + len(data), self._place + size)
            if first < last:
                content[first - self._place : last - self._place] = data[first - start : last - start]
        self._place += size
        return bytes(content)

    def truncate(self, size: int) -> int:
        try:
            self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
        self._end = size
        return size

    def flush(self) -> None:
        pass
