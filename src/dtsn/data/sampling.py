"""Batches of a data set: every transition once per epoch, with a bounded number of frames in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from dtsn.arrays import Array, Ints
from dtsn.batch import Batch
from dtsn.data.format import BLOCK
from dtsn.data.frames import Frames

Transform = Callable[[dict[str, Array], np.random.Generator], dict[str, Array]]


def frame_rows(ends: Ints, transitions: Ints) -> Ints:
    """Return the rows [B] of the frames before these transitions [B]; `ends` [E] are the episodes'."""
    return transitions + np.searchsorted(ends, transitions, side="right")


def transitions_before(ends: Ints, rows: Ints) -> Ints:
    """Count the transitions whose frames are before these rows [B]: an episode's last frame has none."""
    first = np.concatenate([[0], ends[:-1]]) + np.arange(len(ends))  # [E] row of each episode's first frame
    episode = np.searchsorted(first, rows, side="right") - 1
    before: Ints = np.minimum(rows - episode, ends[episode])
    return before


class Sampler:
    """Draws batches from frames on disk and the arrays of steps in memory.

    Frames that take no more than `cache_bytes` are kept; otherwise that many of them are, in a shuffle pool.
    `read(load)` is asked to call `load`, so that the owner of the file can say what went wrong.
    """

    def __init__(
        self,
        frames: Frames,
        arrays: Mapping[str, Array],
        *,
        real_last_frames: bool,
        cache_bytes: int,
        read: Callable[[Callable[[], None]], None],
    ) -> None:
        self._source, self._arrays, self._read = frames, arrays, read
        self._ends = arrays["episode_ends"]
        self._real_last_frames = real_last_frames
        frame_bytes = int(np.prod(frames.shape[1:])) * frames.dtype.itemsize
        # One block of all frames makes the pool a cache: the whole file, read once.
        self._cached = len(frames) * frame_bytes <= cache_bytes
        self._block = len(frames) if self._cached else BLOCK
        self._pool_blocks = max(1, cache_bytes // ((self._block + 1) * frame_bytes))
        self._cache: _Pool | None = None

    def batches(
        self,
        batch_size: int,
        seed: int,
        start: int,
        device: torch.device | str,
        transform: Transform | None,
        path: int = 0,
    ) -> Iterator[Batch]:
        """Yield batches without end, beginning with number `start`; `path` is the length of their paths."""
        per_epoch = len(self._arrays["actions"]) // batch_size
        pool = self._make_pool()
        for epoch in itertools.count(start // per_epoch):
            order = self._shuffle(np.random.default_rng([seed, 0, epoch]))
            for k in range(start % per_epoch, per_epoch):
                arrays = self._gather(pool, order, k * batch_size, (k + 1) * batch_size, path)
                if transform is not None:
                    arrays = transform(arrays, np.random.default_rng([seed, 1, epoch * per_epoch + k]))
                tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
                yield Batch(**tensors).to(device)
            start = 0

    def _make_pool(self) -> _Pool:
        if not self._cached:
            return _Pool(self._source, self._block, self._pool_blocks)
        if self._cache is None:
            self._cache = _Pool(self._source, self._block, slots=1)
        return self._cache

    def _shuffle(self, rng: np.random.Generator) -> _Order:
        """Draw an epoch's order: deal blocks of frames to pools, and shuffle transitions within each."""
        num_blocks = -(-len(self._source) // self._block)
        pools = np.array_split(rng.permutation(num_blocks), -(-num_blocks // self._pool_blocks))
        first = transitions_before(self._ends, np.arange(num_blocks + 1) * self._block)
        shares = [np.concatenate([np.arange(first[b], first[b + 1]) for b in blocks]) for blocks in pools]
        for share in shares:
            rng.shuffle(share)
        return _Order(np.concatenate(shares), pools, np.cumsum([len(share) for share in shares]))

    def _gather(self, pool: _Pool, order: _Order, start: int, stop: int, path: int) -> dict[str, Array]:
        """Return the transitions at places start … stop of an epoch, which may lie in several pools."""
        frames = np.empty((stop - start, *self._source.shape[1:]), self._source.dtype)
        following = np.empty_like(frames)
        chosen = order.transitions[start:stop]
        rows = frame_rows(self._ends, chosen)
        done = 0
        while start + done < stop:
            number = int(np.searchsorted(order.ends, start + done, side="right"))
            part = slice(done, min(stop, int(order.ends[number])) - start)
            blocks = order.pools[number]
            if not pool.holds(blocks):
                self._read(lambda blocks=blocks: pool.load(blocks))  # type: ignore[misc]
            frames[part], following[part] = pool.fetch(rows[part])
            done = part.stop
        batch = {
            "observation": frames,
            "action": self._arrays["actions"][chosen].astype(np.int64),
            "reward": self._arrays["rewards"][chosen],
            "q_target": self._arrays["q_values"][chosen],
            "next_observation": following,
            "terminated": self._arrays["dones"][chosen].astype(bool),
        }
        if path:
            ends = self._ends[np.searchsorted(self._ends, chosen, side="right")]
            steps = chosen[:, None] + np.arange(path)  # [B, K]
            over = steps >= ends[:, None]
            batch["path"] = np.where(
                over, -1, self._arrays["actions"][np.where(over, 0, steps)].astype(np.int64)
            )
        if not self._real_last_frames:
            episode = np.searchsorted(self._ends, chosen, side="right")
            batch["next_valid"] = chosen + 1 != self._ends[episode]
        return batch


class _Order(NamedTuple):
    """The order of one epoch."""

    transitions: Ints  # [S]
    pools: list[Ints]  # the blocks of frames that each pool holds
    ends: Ints  # [pools] where in `transitions` each pool's share ends


class _Pool:
    """A bounded number of frames in memory: `slots` blocks, each with the frame that follows it."""

    def __init__(self, source: Frames, block: int, slots: int) -> None:
        self._source, self._block = source, block
        self._stride = min(block + 1, len(source))
        self._frames = np.empty((slots * self._stride, *source.shape[1:]), source.dtype)
        self._begin = np.zeros(-(-len(source) // block), np.int64)  # place of each block's first frame
        self._held: Array | None = None

    def holds(self, blocks: Ints) -> bool:
        """Tell whether these blocks, and no others, are in memory."""
        return self._held is not None and np.array_equal(blocks, self._held)

    def load(self, blocks: Ints) -> None:
        """Hold these blocks, instead of those before."""
        self._held = None
        for slot, block in enumerate(np.sort(blocks)):
            first, place = int(block) * self._block, slot * self._stride
            last = min(first + self._stride, len(self._source))
            self._source.read_into(self._frames[place : place + last - first], first)
            self._begin[block] = place
        self._held = blocks

    def fetch(self, rows: Ints) -> tuple[Array, Array]:
        """Read the frames at these rows [B] of the source, and the frames after them."""
        block, within = np.divmod(rows, self._block)
        places = self._begin[block] + within
        return self._frames[places], self._frames[places + 1]
