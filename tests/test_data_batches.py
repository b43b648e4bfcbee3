"""Batches: every transition once per epoch, in an order that the seed determines, within bounded memory."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_files import FRAME_BYTES, contents, make_episodes, make_writer, take, write
from data_files import lengths as lengths
from data_files import path as path
from dtsn.batch import Batch
from dtsn.data.format import BLOCK, Episode
from dtsn.data.reader import Dataset
from dtsn.data.sampling import frame_rows, transitions_before

# Cached; pools of three blocks; pools of a single block, the fewest there can be.
CACHE_BYTES = (2**20, 3 * (BLOCK + 1) * FRAME_BYTES, 1)


def slow_rows(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The row of each transition's frame, counted one by one."""
    rows, row, start = [], 0, 0
    for end in arrays["episode_ends"]:
        for _ in range(start, end):
            rows.append(row)
            row += 1
        row += 1  # the last frame of an episode begins no transition
        start = end
    return np.array(rows)


def assert_equal(first: Batch, second: Batch) -> None:
    assert first.tensors().keys() == second.tensors().keys()
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


@pytest.mark.parametrize("cache_bytes", CACHE_BYTES)
def test_every_transition_once_per_epoch(path: Path, cache_bytes: int) -> None:
    arrays = contents(path)
    steps, size = len(arrays["actions"]), 7
    with Dataset(path, cache_bytes=cache_bytes) as dataset:
        batches = dataset.batches(size, seed=3)
        orders = []
        for _ in range(3):
            epoch = take(batches, steps // size)
            chosen = torch.cat([batch.reward for batch in epoch]).numpy().astype(int) - 1
            assert len(np.unique(chosen)) == len(chosen) == steps // size * size
            orders.append(chosen)
            start = 0
            for batch in epoch:
                rows = slow_rows(arrays)[chosen[start : start + size]]
                assert np.array_equal(batch.observation, arrays["observations"][rows])
                assert np.array_equal(batch.next_observation, arrays["observations"][rows + 1])
                for name, stored in (
                    ("action", "actions"),
                    ("q_target", "q_values"),
                    ("terminated", "dones"),
                ):
                    expected = arrays[stored][chosen[start : start + size]]
                    assert np.array_equal(getattr(batch, name), expected)
                start += size
    assert not np.array_equal(orders[0], orders[1])
    # Early batches draw from all over the file, as far as the pool reaches.
    reach = dict(zip(CACHE_BYTES, (steps / 2, 2 * BLOCK, BLOCK / 2), strict=True))
    assert np.ptp(orders[0][: 4 * size]) > reach[cache_bytes]


def test_batch_types_and_last_frame_of_an_episode(tmp_path: Path) -> None:
    with Dataset(write(tmp_path / "d.h5", make_episodes([4, 4]))) as dataset:
        batch = next(dataset.batches(8, seed=0))
    assert batch.observation.dtype == batch.next_observation.dtype == torch.int32
    assert (batch.action.dtype, batch.terminated.dtype) == (torch.int64, torch.bool)
    assert (batch.reward.dtype, batch.q_target.dtype) == (torch.float32, torch.float32)
    last = batch.reward == 8  # the last step of the second, terminated episode
    assert batch.terminated[last].item()
    assert (batch.next_observation[last] == 9).all()  # and not a frame of another episode
    assert not batch.terminated[batch.reward == 4].item()  # the first one was cut off


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    batch_size=st.integers(1, 20),
    start=st.integers(0, 60),
    blocks=st.sampled_from([0, 1, 2, 100]),
    seed=st.integers(0, 2**40),
)
def test_start_is_the_same_as_skipping(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    batch_size: int,
    start: int,
    blocks: int,
    seed: int,
) -> None:
    path = write(tmp_path_factory.mktemp("start") / "d.h5", make_episodes(lengths))
    with Dataset(path, cache_bytes=blocks * (BLOCK + 1) * FRAME_BYTES) as dataset:
        batch_size = min(batch_size, len(dataset))
        whole = take(dataset.batches(batch_size, seed, transform=jitter), start + 3)
        for expected, batch in zip(
            whole[start:], dataset.batches(batch_size, seed, start, transform=jitter), strict=False
        ):
            assert_equal(batch, expected)


def jitter(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return arrays | {"reward": arrays["reward"] + rng.random(len(arrays["reward"]), np.float32)}


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_rows_of_frames(lengths: list[int]) -> None:
    ends = np.cumsum(lengths)
    rows = slow_rows({"episode_ends": ends})
    assert np.array_equal(frame_rows(ends, np.arange(ends[-1])), rows)
    places = np.arange(ends[-1] + len(ends) + 3)
    assert np.array_equal(transitions_before(ends, places), [(rows < place).sum() for place in places])


def test_stand_ins_for_last_frames_are_marked(tmp_path: Path) -> None:
    episodes = make_episodes([4, 1, 3])
    with Dataset(write(tmp_path / "real.h5", episodes)) as dataset:
        assert next(dataset.batches(8, seed=0)).next_valid is None
    with Dataset(write(tmp_path / "stand-in.h5", episodes, real_last_frames=False)) as dataset:
        batch = next(dataset.batches(8, seed=0))
    assert batch.next_valid is not None
    assert batch.next_valid.dtype == torch.bool
    ends = torch.tensor([4.0, 5.0, 8.0])  # the rewards of last steps, cut off or not
    assert torch.equal(batch.next_valid, ~torch.isin(batch.reward, ends))


@pytest.mark.parametrize("cache_bytes", CACHE_BYTES)
def test_seed_determines_the_batches(path: Path, cache_bytes: int) -> None:
    with Dataset(path, cache_bytes=cache_bytes) as one, Dataset(path, cache_bytes=cache_bytes) as two:
        first, same, other = (take(d.batches(32, seed), 9) for d, seed in ((one, 0), (two, 0), (two, 1)))
    for expected, batch in zip(first, same, strict=True):
        assert_equal(batch, expected)
    assert not all(torch.equal(a.reward, b.reward) for a, b in zip(first, other, strict=True))


def test_interleaved_iterators_do_not_disturb_each_other(path: Path) -> None:
    for cache_bytes in CACHE_BYTES:
        with Dataset(path, cache_bytes=cache_bytes) as dataset:
            alone = take(dataset.batches(50, 0), 30)
            for expected, batch, _ in zip(
                alone, dataset.batches(50, 0), dataset.batches(50, 1), strict=False
            ):
                assert_equal(batch, expected)


def test_pool_memory_is_bounded(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "d.h5"
    with make_writer(path, observation_shape=(3, 64, 64), observation_dtype=np.uint8) as writer:
        for level in range(20):
            frames = rng.integers(4, size=(101, 3, 64, 64), dtype=np.uint8)
            writer.add_episode(Episode(frames, np.zeros(100, int), np.zeros(100), True, level))
    budget = 4 * 2**20  # of the 25 MB that the frames take
    tracemalloc.start()
    try:
        with Dataset(path, cache_bytes=budget) as dataset:
            for batch in itertools.islice(dataset.batches(16, 0), 125):
                assert len(batch) == 16
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < budget + 2 * 2**20  # a few batches and blocks on their way


@pytest.mark.parametrize(("size", "seed", "start"), [(0, 0, 0), (10**6, 0, 0), (2, -1, 0), (2, 0, -1)])
def test_bad_batch_requests_are_refused(path: Path, size: int, seed: int, start: int) -> None:
    with Dataset(path) as dataset, pytest.raises(ValueError, match=r"batch_size must be|negative"):
        dataset.batches(size, seed, start)
