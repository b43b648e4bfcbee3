"""The data set format: the transitions of whole episodes in one checksummed HDF5 file.

The file holds seven arrays, for F frames, S transitions (steps) and E episodes:

    observations [F, ...]  the frames of all episodes one after another, T + 1 of them for T steps
    actions      [S]       what was played
    rewards      [S]       what it earned
    q_values     [S]       return-to-go of the behaviour policy
    dones        [S]       1 where the episode terminated
    episode_ends [E]       transition at which the next episode begins
    levels       [E]       seed of the episode's level

and a JSON header with its own checksum that says where the data came from, what observations look like and
what each array hashes to. The frame before step t of episode e is row t + e of `observations`; the one after
it is the next row. Before all that HDF5 knows of stands one line with the checksum of the rest of the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from dtsn.arrays import Array
from dtsn.errors import UserError, brief, printable

FORMAT = "dtsn-dataset"
FORMAT_VERSION = 3
STEP_ARRAYS = {"actions": "<i4", "rewards": "<f4", "q_values": "<f4", "dones": "|u1"}
EPISODE_ARRAYS = {"episode_ends": "<i8", "levels": "<i8"}
PLAIN_ARRAYS = STEP_ARRAYS | EPISODE_ARRAYS  # stored uncompressed: none can claim more than the file holds
OBSERVATION_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
HEADER_FIELDS = {
    "dtsn_version": str,
    "env_id": str,
    "env_options": dict,
    "num_actions": int,
    "observation": dict,
    "real_last_frames": bool,
    "discount": float,
    "provenance": dict,
    "sha256": dict,
}
CHUNK = 16  # frames compressed together
BLOCK = 4 * CHUNK  # frames read together: s′ of the last one costs a fifth chunk, so longer blocks waste less
MAX_CHUNK_BYTES = 2**26  # HDF5 decodes a chunk at once
MAX_FRAME_BYTES = MAX_CHUNK_BYTES // CHUNK
MAX_FRAME_VALUES = MAX_FRAME_BYTES
MAX_STEPS = 2**24  # their arrays are held in memory
MAX_ACTIONS = 2**12
MAX_HEADER_BYTES = 2**20
SEAL_BYTES = 512  # room for the first line: the smallest user block that HDF5 allows
REMEDY = "the file is damaged or not a data set, so copy it again or collect it anew"


class DatasetError(UserError):
    """A data set that cannot be used, or data that cannot go into one."""


class Episode(NamedTuple):
    """One episode of T steps."""

    observations: Array  # [T + 1, ...]
    actions: Array  # [T]
    rewards: Array  # [T]
    terminated: bool  # False when it was cut off
    level: int


@dataclass(frozen=True)
class ObservationSpec:
    """What one observation looks like: a Box space with one bound for all its values."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse what no file can hold; a shape or type must be storable, bounds in order."""
        if self.dtype not in OBSERVATION_DTYPES:
            raise UserError(
                f"observation dtype must be one of {', '.join(OBSERVATION_DTYPES)}, got {brief(self.dtype)}"
            )
        if not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise UserError(f"observation shape must have positive sizes, got {brief(self.shape)}")
        if self.frame_bytes > MAX_FRAME_BYTES:
            raise UserError(
                f"an observation must take at most {MAX_FRAME_BYTES} bytes, "
                f"got {self.frame_bytes} for {self.dtype}{list(self.shape)}"
            )
        integers = np.dtype(self.dtype).kind in "iu"
        if not self.low < self.high or (integers and not math.isfinite(self.low + self.high)):
            raise UserError(f"observation bounds must be low < high, got {self.low} and {self.high}")

    @classmethod
    def of(
        cls, shape: tuple[int, ...], dtype: npt.DTypeLike, low: float | None = None, high: float | None = None
    ) -> ObservationSpec:
        """Return the spec of a shape and type; bounds that are not given are those of the type."""
        kind = np.dtype(dtype)
        floating = kind.kind not in "iu"
        least, most = (-math.inf, math.inf) if floating else (np.iinfo(kind).min, np.iinfo(kind).max)
        return cls(
            tuple(int(size) for size in shape),
            kind.name,
            float(least if low is None else low),
            float(most if high is None else high),
        )

    @classmethod
    def from_space(cls, space: gymnasium.spaces.Box) -> ObservationSpec:
        """Return the spec of a Box; bounds that differ between values become the widest."""
        return cls.of(space.shape, space.dtype, float(space.low.min()), float(space.high.max()))

    @classmethod
    def from_json(cls, shape: tuple[int, ...], said: object) -> ObservationSpec:
        """Return the spec out of a file, which says null for no bound."""
        if not isinstance(said, dict) or set(said) != {"dtype", "low", "high"}:
            raise UserError(f"observation must have dtype, low and high, got {brief(said)}")
        low, high = said["low"], said["high"]
        for bound in (low, high):
            if bound is not None and type(bound) not in (int, float):
                raise UserError(f"observation bounds must be numbers or null, got {brief(bound)}")
        if not isinstance(said["dtype"], str):
            raise UserError(f"observation dtype must be a name, got {brief(said['dtype'])}")
        return cls(shape, said["dtype"], _bound(low, -math.inf), _bound(high, math.inf))

    def to_json(self) -> dict[str, Any]:
        """Return the type and bounds as plain JSON, without infinities; the shape is stored elsewhere."""
        bounds = {"low": self.low, "high": self.high}
        return {"dtype": self.dtype, **{k: v if math.isfinite(v) else None for k, v in bounds.items()}}

    def space(self) -> gymnasium.spaces.Box:
        """Return the same as a Gymnasium space."""
        dtype: Any = np.dtype(self.dtype).type
        low, high = self.low, self.high
        if np.dtype(dtype).kind in "iu":  # as floats, the bounds of int64 are beyond it
            limits = np.iinfo(dtype)
            low, high = max(int(low), limits.min), min(int(high), limits.max)
        return gymnasium.spaces.Box(dtype(low), dtype(high), self.shape, dtype)

    @property
    def frame_bytes(self) -> int:
        """Of one observation."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _bound(value: float | None, none: float) -> float:
    try:
        return none if value is None else float(value)
    except OverflowError:
        raise UserError(f"observation bounds must fit a float, got {brief(value)}") from None


def returns_to_go(rewards: Array, discount: float = 1.0) -> npt.NDArray[np.float64]:
    """Compute Q[t] = r[t] + discount · Q[t+1] for one episode's rewards [T]."""
    returns, following = np.empty(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = following = float(rewards[t]) + discount * following
    return returns


def check_values(path: Path, num_actions: int, actions: Array, rewards: Array, q_values: Array) -> None:
    """Refuse actions out of range and numbers that are not finite."""
    if actions.dtype.kind not in "iu" or actions.min() < 0 or actions.max() >= num_actions:
        raise DatasetError(
            f"{path}: actions must be integers from 0 to {num_actions - 1}, "
            f"got {actions.min()} to {actions.max()} as {actions.dtype}"
        )
    if not (np.isfinite(rewards).all() and np.isfinite(q_values).all()):
        raise DatasetError(f"{path}: rewards and their sums must be finite float32, got NaN or infinity")


def seal(file: io.BufferedReader | io.BufferedRandom) -> bytes:
    """Return the first line of a data set: the checksum of all after it; leaves the file at its beginning."""
    file.seek(SEAL_BYTES)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return f"{FORMAT} sha256 {digest}\n".encode()


def sealed(digest: Any, array: Any) -> str:
    """Return the checksum of an array's content, dtype and shape; `digest` has seen the content."""
    digest.update(f"{array.dtype.str}{list(array.shape)}".encode())
    return str(digest.hexdigest())


def to_json(header: dict[str, Any]) -> bytes:
    """Return a header as it is stored and hashed."""
    return json.dumps(header, sort_keys=True, allow_nan=False).encode()


def without_controls(value: Any) -> Any:
    """Return the same JSON value with control characters shown as escapes, so that it can be printed."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [without_controls(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): without_controls(item) for name, item in value.items()}
    return value
