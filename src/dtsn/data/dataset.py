"""Offline data sets: the transitions of whole episodes in one checksummed HDF5 file.

The file holds eight arrays, for F frames, S transitions (steps) and E episodes:

    observations [F, ...]  the frames of all episodes one after another, T + 1 of them for T steps
    actions      [S]       what was played
    rewards      [S]       what it earned
    q_values     [S]       return-to-go of the behaviour policy
    dones        [S]       1 where the episode terminated
    frames       [S]       row of s in `observations`; s′ is the row after it
    episode_ends [E]       transition at which the next episode begins
    levels       [E]       seed of the episode's level

and a JSON header with its own checksum that says where the data came from and what each array hashes to.
Before all that HDF5 knows of stands one line with the checksum of the rest of the file.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import torch

from dtsn import __version__
from dtsn.arrays import Array
from dtsn.batch import Batch
from dtsn.storage import sync_folder

Transform = Callable[[dict[str, Array], np.random.Generator], dict[str, Array]]

FORMAT = "dtsn-dataset"
FORMAT_VERSION = 2
UNSEALED_VERSION = 1  # without the first line; still read
STEP_ARRAYS = {"actions": "<i4", "rewards": "<f4", "q_values": "<f4", "dones": "|u1", "frames": "<i8"}
EPISODE_ARRAYS = {"episode_ends": "<i8", "levels": "<i8"}
PLAIN_ARRAYS = STEP_ARRAYS | EPISODE_ARRAYS  # stored uncompressed: none can claim more than the file holds
OBSERVATION_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
HEADER_FIELDS = {
    "dtsn_version": str,
    "env_id": str,
    "env_options": dict,
    "num_actions": int,
    "discount": float,
    "provenance": dict,
    "sha256": dict,
}
CHUNK = 16  # frames compressed together
BLOCK = 4 * CHUNK  # frames read together: s′ of the last one costs a fifth chunk, so longer blocks waste less
MAX_DEFLATE_RATIO = 1032  # gzip cannot expand by more
MAX_CHUNK_BYTES = 2**26  # HDF5 decodes a chunk at once
MAX_HEADER_BYTES = 2**20
SEAL_BYTES = 512  # room for the first line: the smallest user block that HDF5 allows
_REMEDY = "the file is damaged or not a data set, so copy it again or collect it anew"


class DatasetError(ValueError):
    """A data set that cannot be used, or data that cannot go into one."""


class Episode(NamedTuple):
    """One episode of T steps, in the order of `DatasetWriter.add_episode`'s arguments."""

    observations: Array  # [T + 1, ...]
    actions: Array  # [T]
    rewards: Array  # [T]
    terminated: bool  # False when it was cut off
    level: int


def returns_to_go(rewards: Array, discount: float = 1.0) -> npt.NDArray[np.float64]:
    """Q[t] = r[t] + discount · Q[t+1] for one episode's rewards [T]."""
    returns, following = np.empty(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = following = float(rewards[t]) + discount * following
    return returns


class DatasetWriter:
    """Writes episodes to `path`, which appears complete when the `with` block ends well, or not at all."""

    def __init__(
        self,
        path: str | Path,
        *,
        env_id: str,
        env_options: Mapping[str, Any],
        num_actions: int,
        observation_shape: tuple[int, ...],
        observation_dtype: npt.DTypeLike = np.uint8,
        discount: float = 1.0,
        provenance: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self._shape = tuple(observation_shape)
        self._dtype = np.dtype(observation_dtype).newbyteorder("<")
        if self.path.exists() and not overwrite:
            raise DatasetError(f"{self.path}: already exists; pass overwrite=True or choose another path")
        if num_actions < 1:
            raise DatasetError(f"{self.path}: num_actions is {num_actions}; it must be at least 1")
        if not 0 <= discount <= 1:
            raise DatasetError(f"{self.path}: discount is {discount}; it must lie in [0, 1]")
        if self._dtype.name not in OBSERVATION_DTYPES or not all(size > 0 for size in self._shape):
            raise DatasetError(
                f"{self.path}: frames of {self._dtype}{list(self._shape)} cannot be stored; "
                f"use a shape without zeros and one of {', '.join(OBSERVATION_DTYPES)}"
            )
        self._chunk_bytes = CHUNK * math.prod(self._shape) * self._dtype.itemsize
        if self._chunk_bytes > MAX_CHUNK_BYTES:
            raise DatasetError(
                f"{self.path}: frames of {self._dtype}{list(self._shape)} are too large; "
                f"a frame may take {MAX_CHUNK_BYTES // CHUNK} bytes"
            )
        self._header: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "dtsn_version": __version__,
            "env_id": env_id,
            "env_options": dict(env_options),
            "num_actions": int(num_actions),
            "discount": float(discount),
            "provenance": dict(provenance or {}),
        }
        try:  # before the episodes are played, not after
            _to_json(self._header)
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"{self.path}: env_options and provenance must be plain JSON values ({error})"
            ) from error

    def __enter__(self) -> DatasetWriter:
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        with self._cleaned_up():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # v110 checksums its metadata. The cache lets an unfinished chunk grow without being compressed
            # anew.
            cache = max(2**20, 2 * self._chunk_bytes)
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

    def add_episode(
        self, observations: Array, actions: Array, rewards: Array, terminated: bool, level: int
    ) -> None:
        """Append an episode: observations [T + 1, ...], actions [T], rewards [T]; T ≥ 1."""
        observations, actions, rewards = np.asarray(observations), np.asarray(actions), np.asarray(rewards)
        steps = len(rewards)
        if steps < 1 or actions.shape != (steps,) or rewards.shape != (steps,):
            raise DatasetError(
                f"{self.path}: an episode needs one action and one reward for each of its steps; "
                f"got actions {list(actions.shape)} and rewards {list(rewards.shape)}"
            )
        expected = (steps + 1, *self._shape)
        if observations.shape != expected or observations.dtype != self._dtype:
            raise DatasetError(
                f"{self.path}: observations are {observations.dtype}{list(observations.shape)}; "
                f"{steps} steps need {self._dtype}{list(expected)}, the frame after the last step included"
            )
        rewards = rewards.astype("<f4")
        q_values = returns_to_go(rewards, self._header["discount"]).astype("<f4")
        _check_values(self.path, self._header["num_actions"], actions, rewards, q_values)
        if not np.isfinite(observations).all():
            raise DatasetError(f"{self.path}: observations hold NaN or infinity; drop the episode")

        rows, start = len(self._arrays["observations"]), len(self._arrays["actions"])
        dones = np.zeros(steps, bool)
        dones[-1] = terminated
        episode: dict[str, Any] = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "q_values": q_values,
            "dones": dones,
            "frames": rows + np.arange(steps),
            "episode_ends": [start + steps],
            "levels": [level],
        }
        with self._cleaned_up():
            for name, values in episode.items():
                array = self._arrays[name]
                values = np.ascontiguousarray(values, array.dtype)
                array.resize(len(array) + len(values), axis=0)
                array[-len(values) :] = values
                self._digests[name].update(values.data)
            self._sink.check()

    def _finish(self) -> None:
        if not len(self._arrays["episode_ends"]):
            raise DatasetError(f"{self.path}: no episode was added; add at least one")
        digests = {name: _sealed(self._digests[name], array) for name, array in self._arrays.items()}
        header = _to_json(self._header | {"sha256": digests})
        self._file.attrs["header"] = np.bytes_(header)
        self._file.attrs["header_sha256"] = np.bytes_(hashlib.sha256(header).hexdigest())
        self._file.close()
        self._sink.check()
        self._sink.close()
        with self._temporary.open("rb+") as file:
            file.write(_seal(file).ljust(SEAL_BYTES, b"\0"))
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


class Dataset:
    """A data set opened for reading; frames come from the file as batches ask for them.

    `verify` compares every array with its checksum, which reads the file once. Frames that take no more
    than `cache_bytes` decoded are kept in memory; otherwise that many of them are, in a shuffle pool.
    """

    def __init__(self, path: str | Path, verify: bool = True, cache_bytes: int = 256 * 2**20) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise DatasetError(f"{self.path}: no such file; collect a data set or correct the path")
        with _boundary(self.path):
            self._file = h5py.File(self.path, "r")
            try:
                self.header = self._read_header()
                if strangers := set(self._file) - {"observations", *PLAIN_ARRAYS}:
                    raise DatasetError(
                        f"{self.path}: holds {sorted(strangers)} besides its arrays; {_REMEDY}"
                    )
                self._observations = self._open_array("observations")
                self._arrays = {name: self._open_array(name)[:] for name in PLAIN_ARRAYS}
                self._check_contents()
                if verify:
                    self._verify()
                    self._verify_seal()
            except BaseException:
                self._file.close()
                raise

        frame_bytes = math.prod(self.observation_shape) * self.observation_dtype.itemsize
        rows = len(self._observations)
        # One block of all frames makes the pool a cache: the whole file, read once.
        self._cached = rows * frame_bytes <= cache_bytes
        self._block = rows if self._cached else BLOCK
        self._pool_blocks = max(1, cache_bytes // ((self._block + 1) * frame_bytes))
        self._cache: _Pool | None = None

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
        return hashlib.sha256(_to_json(self.header["sha256"])).hexdigest()

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
        return tuple(self._observations.shape[1:])

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """Type of a frame's values, in the file and in batches."""
        dtype: np.dtype[Any] = self._observations.dtype
        return dtype

    def array(self, name: str) -> Array:
        """A copy of one of the arrays of steps or episodes: actions, rewards, q_values, dones, …"""
        array: Array = self._arrays[name]
        return array.copy()

    def info(self) -> dict[str, Any]:
        """What the file holds, as plain values."""
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
        """The whole episode number `index`."""
        index = range(self.num_episodes)[index]
        end = int(self._arrays["episode_ends"][index])
        start = int(self._arrays["episode_ends"][index - 1]) if index else 0
        with _boundary(self.path):
            observations = self._observations[start + index : end + index + 1]
        return Episode(
            observations,
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
    ) -> Iterator[Batch]:
        """Batches without end, beginning with batch number `start`.

        In each epoch every transition comes once, in an order that `seed` determines, save for the last
        ones that do not fill a batch. Batch number k is the same whichever `start` leads to it, so
        training resumes where it stopped; nothing before it is read. (Frames too large to be cached are
        shuffled by pools, whose size, and so the order, depends on `cache_bytes`.)

        `transform(arrays, rng)` may change a batch's arrays, named as in `Batch`, before they become tensors.
        """
        if not 1 <= batch_size <= self.num_transitions:
            raise ValueError(
                f"batch_size is {batch_size}; {self.path} has {self.num_transitions} transitions, "
                "so choose a size from 1 to that"
            )
        if seed < 0 or start < 0:
            raise ValueError(f"seed is {seed} and start is {start}; neither may be negative")
        return self._batches(batch_size, seed, start, device, transform)

    def _batches(
        self, batch_size: int, seed: int, start: int, device: torch.device | str, transform: Transform | None
    ) -> Iterator[Batch]:
        per_epoch = self.num_transitions // batch_size
        pool = self._make_pool()
        for epoch in itertools.count(start // per_epoch):
            order = self._shuffle(np.random.default_rng([seed, 0, epoch]))
            for k in range(start % per_epoch, per_epoch):
                arrays = self._gather(pool, order, k * batch_size, (k + 1) * batch_size)
                if transform is not None:
                    arrays = transform(arrays, np.random.default_rng([seed, 1, epoch * per_epoch + k]))
                tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
                yield Batch(**tensors).to(device)
            start = 0

    def _make_pool(self) -> _Pool:
        if not self._cached:
            return _Pool(self._observations, self._block, self._pool_blocks)
        if self._cache is None:
            self._cache = _Pool(self._observations, self._block, slots=1)
        return self._cache

    def _shuffle(self, rng: np.random.Generator) -> _Order:
        """An epoch's order: blocks of frames are dealt to pools, and transitions shuffled within each."""
        num_blocks = -(-len(self._observations) // self._block)
        pools = np.array_split(rng.permutation(num_blocks), -(-num_blocks // self._pool_blocks))
        first = np.searchsorted(self._arrays["frames"], np.arange(num_blocks + 1) * self._block)
        shares = [np.concatenate([np.arange(first[b], first[b + 1]) for b in blocks]) for blocks in pools]
        for share in shares:
            rng.shuffle(share)
        return _Order(np.concatenate(shares), pools, np.cumsum([len(share) for share in shares]))

    def _gather(self, pool: _Pool, order: _Order, start: int, stop: int) -> dict[str, Array]:
        """The transitions at places start … stop of an epoch, which may lie in several pools."""
        frames = np.empty((stop - start, *self.observation_shape), self.observation_dtype)
        following = np.empty_like(frames)
        done = 0
        while start + done < stop:
            number = int(np.searchsorted(order.ends, start + done, side="right"))
            part = slice(done, min(stop, int(order.ends[number])) - start)
            with _boundary(self.path):
                pool.load(order.pools[number])
            rows = self._arrays["frames"][order.transitions[start:stop][part]]
            frames[part], following[part] = pool.fetch(rows)
            done = part.stop
        chosen = order.transitions[start:stop]
        return {
            "observation": frames,
            "action": self._arrays["actions"][chosen].astype(np.int64),
            "reward": self._arrays["rewards"][chosen],
            "q_target": self._arrays["q_values"][chosen],
            "next_observation": following,
            "terminated": self._arrays["dones"][chosen].astype(bool),
        }

    def _read_header(self) -> dict[str, Any]:
        texts = []
        for name in ("header", "header_sha256"):
            if name not in self._file.attrs:
                raise DatasetError(f"{self.path}: not a {FORMAT} file; give one that `DatasetWriter` wrote")
            attribute = self._file.attrs.get_id(name)
            if attribute.shape != () or attribute.dtype.kind != "S":
                raise DatasetError(f"{self.path}: {name} is not a text; {_REMEDY}")
            if attribute.dtype.itemsize > MAX_HEADER_BYTES:
                raise DatasetError(
                    f"{self.path}: {name} takes {attribute.dtype.itemsize} bytes, more than "
                    f"{MAX_HEADER_BYTES}; {_REMEDY}"
                )
            texts.append(bytes(self._file.attrs[name]))
        header = json.loads(texts[0])
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise DatasetError(f"{self.path}: not a {FORMAT} file; give one that `DatasetWriter` wrote")
        version = header.get("format_version")
        if version not in (UNSEALED_VERSION, FORMAT_VERSION):
            raise DatasetError(
                f"{self.path}: format version {version!r} cannot be read by dtsn {__version__}, which reads "
                f"versions {UNSEALED_VERSION} to {FORMAT_VERSION}; upgrade dtsn or collect the data anew"
            )
        if hashlib.sha256(texts[0]).hexdigest().encode() != texts[1]:
            raise DatasetError(f"{self.path}: the header differs from its checksum; {_REMEDY}")
        for field, kind in HEADER_FIELDS.items():
            if type(header.get(field)) is not kind:
                raise DatasetError(
                    f"{self.path}: header field {field} is {header.get(field)!r}, not a {kind.__name__}; "
                    f"{_REMEDY}"
                )
        return header

    def _open_array(self, name: str) -> Any:
        """One array, known to lie plainly in this file and to claim no more than the file can hold."""
        if self._file.get(name, getclass=True, getlink=True) is not h5py.HardLink:
            raise DatasetError(f"{self.path}: {name} is missing or a link to elsewhere; {_REMEDY}")
        array = self._file[name]
        if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
            raise DatasetError(f"{self.path}: {name} is not an array stored in this file; {_REMEDY}")
        compressed = name == "observations"
        properties = array.id.get_create_plist()
        filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
        if filters != [h5py.h5z.FILTER_DEFLATE] * compressed:  # others may load foreign code
            raise DatasetError(f"{self.path}: {name} is stored with unknown filters {filters}; {_REMEDY}")
        rank_fits = array.shape is not None and (compressed or len(array.shape) == 1)
        allowed = OBSERVATION_DTYPES if compressed else (np.dtype(PLAIN_ARRAYS[name]).name,)
        if not rank_fits or array.dtype not in [np.dtype(kind).newbyteorder("<") for kind in allowed]:
            raise DatasetError(
                f"{self.path}: {name} is {array.dtype}{array.shape}, not {' or '.join(allowed)}; {_REMEDY}"
            )
        claimed = max(math.prod(array.shape), math.prod(array.chunks or ())) * array.dtype.itemsize
        if claimed > self.path.stat().st_size * (MAX_DEFLATE_RATIO if compressed else 1):
            raise DatasetError(
                f"{self.path}: {name} claims {claimed} bytes, more than the file can hold; {_REMEDY}"
            )
        chunk_bytes = math.prod(array.chunks or ()) * array.dtype.itemsize
        if compressed and (not array.chunks or chunk_bytes > MAX_CHUNK_BYTES):
            raise DatasetError(
                f"{self.path}: {name} are stored in chunks of {chunk_bytes} bytes, not 1 to "
                f"{MAX_CHUNK_BYTES}; {_REMEDY}"
            )
        return array

    def _check_contents(self) -> None:
        ends, steps = self._arrays["episode_ends"], len(self._arrays["actions"])
        lengths = {name: len(array) for name, array in self._arrays.items()}
        expected = {name: steps if name in STEP_ARRAYS else len(ends) for name in PLAIN_ARRAYS}
        if lengths != expected or len(self._observations.shape) < 1:
            raise DatasetError(f"{self.path}: arrays have lengths {lengths} that do not agree; {_REMEDY}")
        if not len(ends) or ends[0] < 1 or (np.diff(ends) < 1).any() or ends[-1] != steps:
            raise DatasetError(f"{self.path}: episode_ends do not rise from 1 to {steps}; {_REMEDY}")
        episode = np.searchsorted(ends, np.arange(steps), side="right")  # [S] the episode of each step
        rows = len(self._observations)
        if rows != steps + len(ends) or (self._arrays["frames"] != np.arange(steps) + episode).any():
            raise DatasetError(
                f"{self.path}: frames do not fit {rows} observations of {len(ends)} episodes, {steps} steps "
                f"in all; {_REMEDY}"
            )
        dones = self._arrays["dones"]
        if dones.max() > 1 or np.delete(dones, ends - 1).any():
            raise DatasetError(f"{self.path}: dones are set within an episode or not 0 or 1; {_REMEDY}")
        values = (self._arrays[name] for name in ("actions", "rewards", "q_values"))
        _check_values(self.path, self.num_actions, *values)

    def _verify(self) -> None:
        for name in ("observations", *PLAIN_ARRAYS):
            array, digest = self._file[name], hashlib.sha256()
            rows = BLOCK if name == "observations" else 2**16
            for row in range(0, len(array), rows):
                digest.update(np.ascontiguousarray(array[row : row + rows]).data)
            if _sealed(digest, array) != self.header["sha256"].get(name):
                raise DatasetError(f"{self.path}: {name} differ from their checksum; {_REMEDY}")

    def _verify_seal(self) -> None:
        """What no array covers, too: names, padding, spare room."""
        if self.header["format_version"] == UNSEALED_VERSION:
            return
        with self.path.open("rb") as file:
            expected = _seal(file).ljust(SEAL_BYTES, b"\0")
            if file.read(SEAL_BYTES) != expected:
                raise DatasetError(f"{self.path}: the file differs from its checksum; {_REMEDY}")


class _Order(NamedTuple):
    """The order of one epoch."""

    transitions: npt.NDArray[np.int64]  # [S]
    pools: list[npt.NDArray[np.int64]]  # the blocks of frames that each pool holds
    ends: npt.NDArray[np.int64]  # [pools] where in `transitions` each pool's share ends


class _Pool:
    """A bounded number of frames in memory: `slots` blocks, each with the frame that follows it."""

    def __init__(self, source: Any, block: int, slots: int) -> None:
        self._source, self._block = source, block
        self._stride = min(block + 1, len(source))
        self._frames = np.empty((slots * self._stride, *source.shape[1:]), source.dtype)
        self._begin = np.zeros(-(-len(source) // block), np.int64)  # place of each block's first frame
        self._held: Array | None = None

    def load(self, blocks: npt.NDArray[np.int64]) -> None:
        """Hold these blocks, instead of those before."""
        if self._held is not None and np.array_equal(blocks, self._held):
            return
        self._held = None
        for slot, block in enumerate(np.sort(blocks)):
            first, place = int(block) * self._block, slot * self._stride
            last = min(first + self._stride, len(self._source))
            self._source.read_direct(self._frames, np.s_[first:last], np.s_[place : place + last - first])
            self._begin[block] = place
        self._held = blocks

    def fetch(self, rows: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Frames at these rows [B] of the source, and the frames after them."""
        block, within = np.divmod(rows, self._block)
        places = self._begin[block] + within
        return self._frames[places], self._frames[places + 1]


def grid_symmetries(arrays: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Turn and mirror each sample of a batch at random; a `transform` for `Dataset.batches`.

    For square grids seen from above, observations [B, C, H, H], whose actions 0 … 3 go east, south, west
    and north: one of the square's 8 symmetries moves both frames and the action together.
    """
    frames = {name: np.empty_like(arrays[name]) for name in ("observation", "next_observation")}
    action = np.empty_like(arrays["action"])
    symmetry = rng.integers(8, size=len(action))
    for mirror, turns in itertools.product((False, True), range(4)):
        chosen = np.flatnonzero(symmetry == 4 * mirror + turns)
        for name, turned in frames.items():
            grid = arrays[name][chosen]
            turned[chosen] = np.rot90(grid[..., ::-1] if mirror else grid, -turns, axes=(-2, -1))  # clockwise
        east_to_west = 2 - arrays["action"][chosen] if mirror else arrays["action"][chosen]
        action[chosen] = (east_to_west + turns) % 4  # the actions go clockwise, too
    return {**arrays, **frames, "action": action}


@contextmanager
def _boundary(path: Path) -> Iterator[None]:
    """Whatever reading a file raises becomes a DatasetError that names it."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:  # damaged files make HDF5 raise nearly anything
        raise DatasetError(f"{path}: cannot be read ({error}); {_REMEDY}") from error


def _check_values(path: Path, num_actions: int, actions: Array, rewards: Array, q_values: Array) -> None:
    if actions.dtype.kind not in "iu" or actions.min() < 0 or actions.max() >= num_actions:
        raise DatasetError(
            f"{path}: actions range from {actions.min()} to {actions.max()} as {actions.dtype}; "
            f"they must be integers from 0 to {num_actions - 1}"
        )
    if not (np.isfinite(rewards).all() and np.isfinite(q_values).all()):
        raise DatasetError(f"{path}: rewards or their sums hold NaN or infinity; they must be finite float32")


def _seal(file: io.BufferedReader | io.BufferedRandom) -> bytes:
    """The first line of a data set: the checksum of all after it; leaves the file at its beginning."""
    file.seek(SEAL_BYTES)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return f"{FORMAT} sha256 {digest}\n".encode()


def _sealed(digest: Any, array: Any) -> str:
    """Checksum of an array's content, dtype and shape; `digest` has seen the content."""
    digest.update(f"{array.dtype.str}{list(array.shape)}".encode())
    return str(digest.hexdigest())


def _summary(values: Array) -> dict[str, float]:
    return {"min": float(values.min()), "mean": float(values.mean(dtype=float)), "max": float(values.max())}


def _to_json(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, allow_nan=False).encode()
