"""Frames of a data set file, decoded chunk by chunk."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from dtsn.arrays import Array
from dtsn.data.format import CHUNK, DatasetError


class Frames:
    """The array ``[F, ...]`` of frames, read by rows.

    HDF5's own filter takes as much memory as a chunk inflates to, which may be a thousand times what it
    says; here a chunk that does not inflate to just its size is refused.
    """

    def __init__(self, array: Any) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = array.dtype
        self._id = array.id
        self._chunk_bytes = CHUNK * math.prod(self.shape[1:]) * self.dtype.itemsize
        self._stored_bytes = (
            self._chunk_bytes + self._chunk_bytes // 1000 + 64
        )  # of what deflate cannot shrink
        self._last: tuple[int, Array] | None = (
            None  # the chunk that was read last: the next rows may be in it
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Return the frames ``[n, ...]`` of n rows in a row."""
        first, last, _ = rows.indices(len(self))
        frames = np.empty((max(0, last - first), *self.shape[1:]), self.dtype)
        self.read_into(frames, first)
        return frames

    def read_into(self, frames: Array, first: int) -> None:
        """Fill ``frames [n, ...]`` with the rows from ``first`` on."""
        done = 0
        while done < len(frames):
            number, within = divmod(first + done, CHUNK)
            part = self._chunk(number)[within : within + len(frames) - done]
            frames[done : done + len(part)] = part
            done += len(part)

    def _chunk(self, number: int) -> Array:
        """Return the frames ``[CHUNK, ...]`` of a chunk; beyond the end of the array they mean nothing."""
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        place = (number * CHUNK, *(0 for _ in self.shape[1:]))
        unfiltered, stored = self._id.read_direct_chunk(place, None, np.empty(self._stored_bytes, np.uint8))
        inflater = zlib.decompressobj()
        content = inflater.decompress(stored, self._chunk_bytes + 1)
        if unfiltered or not inflater.eof or len(content) != self._chunk_bytes:
            raise DatasetError(
                f"chunk {number} of the observations must inflate to {self._chunk_bytes} bytes"
            )
        frames = np.frombuffer(content, self.dtype).reshape(CHUNK, *self.shape[1:])
        self._last = number, frames
        return frames
