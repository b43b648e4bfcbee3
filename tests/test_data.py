"""Data sets: written whole or not at all, read exactly or refused, batched once per epoch."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtsn.batch import Batch
from dtsn.data import format as data_format
from dtsn.data.format import BLOCK, PLAIN_ARRAYS, DatasetError, Episode, ObservationSpec, returns_to_go
from dtsn.data.minari import export_minari, import_minari
from dtsn.data.reader import Dataset
from dtsn.data.sampling import frame_rows, transitions_before
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


def contents(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][:] for name in ARRAYS}


def assert_equal(first: Batch, second: Batch) -> None:
    assert first.tensors().keys() == second.tensors().keys()
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def take(batches: Iterator[Batch], count: int) -> list[Batch]:
    return list(itertools.islice(batches, count))


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    return [int(n) for n in np.random.default_rng(1).integers(1, 40, size=60)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> Path:
    return write(tmp_path_factory.mktemp("data") / "many.h5", make_episodes(lengths))


# Cached; pools of three blocks; pools of a single block, the fewest there can be.
CACHE_BYTES = (2**20, 3 * (BLOCK + 1) * FRAME_BYTES, 1)


# Writing


def test_round_trip(path: Path, lengths: list[int]) -> None:
    episodes = make_episodes(lengths)
    with Dataset(path) as dataset:
        assert len(dataset) == dataset.num_transitions == sum(lengths)
        assert (dataset.num_episodes, dataset.num_actions) == (len(lengths), 5)
        assert (dataset.observation_shape, dataset.observation_dtype) == (FRAME, np.int32)
        for index, episode in enumerate(episodes):
            for mine, theirs in zip(dataset.episode(index), episode, strict=True):
                assert np.array_equal(mine, theirs)
        assert np.array_equal(dataset.episode(-1).observations, episodes[-1].observations)
        info = dataset.info()
        assert dataset.header["env_options"] == {"size": 3, "sides": [1, 2]}
        assert info["provenance"] == {"split": "train", "seed": 4}
        assert info["episode_length"] == {"min": min(lengths), "mean": np.mean(lengths), "max": max(lengths)}
        assert info["q_values"]["max"] == dataset.array("q_values").max()
        assert info["terminated_episodes"] == sum(episode.terminated for episode in episodes)


@pytest.mark.parametrize("discount", [1.0, 0.97])
def test_returns_to_go(tmp_path: Path, discount: float) -> None:
    rng = np.random.default_rng(0)
    episode = make_episodes([30])[0]._replace(rewards=rng.normal(size=30).astype(np.float32))
    naive = [sum(discount**k * r for k, r in enumerate(episode.rewards[t:])) for t in range(30)]
    np.testing.assert_allclose(returns_to_go(episode.rewards, discount), naive, rtol=1e-6, atol=1e-6)
    with Dataset(write(tmp_path / "d.h5", [episode, episode], discount=discount)) as dataset:
        np.testing.assert_allclose(dataset.array("q_values"), naive * 2, rtol=1e-6, atol=1e-6)
        assert dataset.header["discount"] == discount


def test_existing_file_is_kept_unless_told(tmp_path: Path) -> None:
    path = write(tmp_path / "d.h5", make_episodes([3]))
    with pytest.raises(DatasetError, match=r"d\.h5.*overwrite=True"):
        make_writer(path)
    write(path, make_episodes([4]), overwrite=True)
    with Dataset(path) as dataset:
        assert len(dataset) == 4


@pytest.mark.parametrize("interrupt", [RuntimeError, KeyboardInterrupt])
def test_interrupted_writer_leaves_the_old_file(tmp_path: Path, interrupt: type[BaseException]) -> None:
    path = write(tmp_path / "d.h5", make_episodes([3]))
    before = path.read_bytes()

    def episodes() -> Iterator[Episode]:
        yield from make_episodes([9])
        raise interrupt

    with pytest.raises(interrupt):
        write(path, episodes(), overwrite=True)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["d.h5"]


def test_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.h5", make_episodes([3]))
    before = path.read_bytes()
    script = """
import os, signal, sys
import numpy as np
from dtsn.data import DatasetWriter, Episode
with DatasetWriter(
    sys.argv[1], env_id="x", env_options={}, num_actions=2, observation_shape=(4,), overwrite=True
) as writer:
    for level in range(50):
        writer.add_episode(Episode(np.zeros((9, 4), np.uint8), np.zeros(8, int), np.zeros(8), True, level))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.array([0, 5])}, "integers from 0 to 4, got 0 to 5"),
        ({"actions": np.array([0, -1])}, "got -1 to 0"),
        ({"actions": np.array([0.0, 1.0])}, "must be integers.*float64"),
        ({"actions": np.array([0])}, r"one action and one reward.*\[1\]"),
        ({"rewards": np.array([0, np.nan])}, "rewards.*NaN"),
        ({"observations": np.zeros((2, *FRAME), np.int32)}, "the frame after the last step"),
        ({"observations": np.zeros((3, *FRAME), np.uint8)}, "uint8"),
    ],
)
def test_bad_episodes_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = make_episodes([2])[0]
    with make_writer(tmp_path / "d.h5") as writer:
        with pytest.raises(DatasetError, match=rf"d\.h5.*{message}"):
            writer.add_episode(good._replace(**change))
        writer.add_episode(good)  # what was refused left no trace
    with Dataset(tmp_path / "d.h5") as dataset:
        assert len(dataset) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_actions": 0}, "num_actions must be 1 to 4096, got 0"),
        ({"discount": 1.5}, "discount must lie in .*, got 1.5"),
        ({"observation_dtype": object}, "dtype must be one of uint8.*, got 'object'"),
        ({"observation_dtype": np.longdouble}, "dtype must be one of"),
        ({"observation_shape": (2**23,)}, "must take at most 4194304 bytes"),
        ({"observation_low": 3, "observation_high": 3}, "low < high"),
        ({"num_actions": 10**7}, "num_actions must be 1 to 4096"),
        ({"observation_shape": (0, 3)}, "shape must have positive sizes"),
        ({"env_options": {"f": print}}, "JSON"),
        ({"provenance": {"f": float("nan")}}, "JSON"),
    ],
)
def test_bad_writer_options_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        make_writer(tmp_path / "d.h5", **change)


def test_empty_data_set_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="at least one episode"), make_writer(tmp_path / "d.h5"):
        pass
    assert not os.listdir(tmp_path)


# Batches


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


@pytest.mark.parametrize("cache_bytes", [2**20, 1])
def test_a_file_that_is_changed_while_it_is_open(cache_bytes: int, tmp_path: Path) -> None:
    path = write(tmp_path / "d.h5", make_episodes([30] * 10))
    with Dataset(path, cache_bytes=cache_bytes) as dataset:
        os.utime(path, ns=(0, 0))
        with pytest.raises(DatasetError, match=r"d\.h5: was changed while it was open"):
            take(dataset.batches(8, 0), 1)
        with pytest.raises(DatasetError, match="was changed"):
            dataset.episode(0)


def test_a_file_whose_bytes_are_spoilt_while_it_is_open(tmp_path: Path) -> None:
    """What cannot be decompressed any more was changed, too: that is the reason to tell."""
    path = write(tmp_path / "d.h5", make_episodes([30] * 10))
    with Dataset(path, cache_bytes=1) as dataset:
        path.write_bytes(b"\xff" * path.stat().st_size)
        with pytest.raises(DatasetError, match=r"d\.h5: was changed while it was open"):
            dataset.episode(0)


def test_a_file_that_is_replaced_while_it_is_open(tmp_path: Path) -> None:
    """What is open is the old file, as it was checked."""
    path = write(tmp_path / "d.h5", make_episodes([30]))
    with Dataset(path) as dataset:
        write(path, make_episodes([3]), overwrite=True)
        assert len(dataset.episode(0).actions) == 30


def test_observation_spec_round_trip() -> None:
    for dtype in data_format.OBSERVATION_DTYPES:
        spec = ObservationSpec.of((3, 4), dtype)
        assert ObservationSpec.from_json((3, 4), json.loads(json.dumps(spec.to_json()))) == spec
        space = spec.space()
        assert (space.shape, space.dtype) == ((3, 4), np.dtype(dtype))
        assert ObservationSpec.from_space(space) == spec
    assert ObservationSpec.of((2,), np.uint8, high=1).space().high.max() == 1


def test_observations_beyond_their_bounds_are_refused(tmp_path: Path) -> None:
    with make_writer(tmp_path / "d.h5", observation_low=0, observation_high=5) as writer:
        with pytest.raises(DatasetError, match=r"observations must lie in \[0.0, 5.0\], got 0 to 9"):
            writer.add_episode(make_episodes([9])[0])
        writer.add_episode(make_episodes([5])[0])
    with Dataset(tmp_path / "d.h5") as dataset:
        assert (dataset.observation.low, dataset.observation.high) == (0, 5)


def test_headers_cannot_steer_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07"
    options: dict[str, Any] = {
        "env_id": evil,
        "env_options": {evil: [evil]},
        "provenance": {"a": {"b": evil}},
    }
    with Dataset(write(tmp_path / "d.h5", make_episodes([3]), **options)) as dataset:
        assert "\x1b" not in str(dataset.info())
        assert "owned" in dataset.header["env_id"]
        assert all(ord(c) >= 32 for c in json.dumps(dataset.header, ensure_ascii=False))


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


def test_damaged_frames_met_in_batches_are_named(tmp_path: Path, lengths: list[int]) -> None:
    path = write(tmp_path / "d.h5", make_episodes(lengths))
    with h5py.File(path) as file:
        chunk = file["observations"].id.get_chunk_info(3)
    with path.open("rb+") as file:
        file.seek(chunk.byte_offset)
        file.write(bytes(chunk.size))
    with Dataset(path, verify=False) as dataset, pytest.raises(DatasetError, match=str(path)):
        take(dataset.batches(1, 0), len(dataset))


# Damage and malice


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("small") / "small.h5", make_episodes([5, 20, 1]))


def assert_refused_or_same(path: Path, original: dict[str, np.ndarray], header: dict[str, Any]) -> bool:
    try:
        with Dataset(path) as dataset:
            assert dataset.header == header
            for name, array in original.items():
                stored = dataset._observations[:] if name == "observations" else dataset.array(name)
                assert np.array_equal(stored, array), name
                assert stored.dtype == array.dtype
    except DatasetError as error:
        assert str(path) in str(error)  # noqa: PT017 (either outcome is right)
        return True
    return False


def test_no_flipped_bit_goes_unnoticed(small: Path, tmp_path: Path) -> None:
    rng, data, path = np.random.default_rng(0), small.read_bytes(), tmp_path / "flipped.h5"
    original = contents(small)
    with Dataset(small) as dataset:
        header = dataset.header
    # Half of the flips anywhere, half where there is more than padding.
    used = np.flatnonzero(np.frombuffer(data, np.uint8))
    places = np.concatenate([rng.integers(len(data), size=200), rng.choice(used, 200)])
    refused = 0
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        refused += assert_refused_or_same(path, original, header)
    assert refused == len(places)  # also where nothing is stored


def test_truncated_files_are_refused(small: Path, tmp_path: Path) -> None:
    rng, data, path = np.random.default_rng(0), small.read_bytes(), tmp_path / "cut.h5"
    for size in (0, 1, 8, len(data) - 1, *rng.integers(len(data), size=40)):
        path.write_bytes(data[:size])
        with pytest.raises(DatasetError, match=str(path)):
            Dataset(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    class Exploit:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    for name, data in {"pickle": pickle.dumps(Exploit()), "text": b"episode,reward\n0,1\n"}.items():
        (tmp_path / f"{name}.h5").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "zip.h5", "w") as archive:
        archive.writestr("observations.npy", bytes(100))
    torch.save({"observations": torch.zeros(3)}, tmp_path / "torch.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["observations"] = np.zeros(3)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 5
    for path in (*files, tmp_path / "missing.h5", tmp_path):
        with pytest.raises(DatasetError, match=str(path)):
            Dataset(path)
    assert not (tmp_path / "executed").exists()


def forge(source: Path, path: Path, change: Any, fields: dict[str, Any] | None = None) -> None:
    """A file with right checksums whose makers wished us ill."""
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        change(file)
        header = json.loads(bytes(file.attrs["header"])) | (fields or {})
        for name in ARRAYS:
            kind = file.get(name, getclass=True, getlink=True)
            if kind is h5py.HardLink and isinstance(file[name], h5py.Dataset) and file[name].size < 10**6:
                digest = hashlib.sha256(np.ascontiguousarray(file[name][:]))
                header["sha256"][name] = data_format.sealed(digest, file[name])
        text = data_format.to_json(header)
        file.attrs["header"] = np.bytes_(text)
        file.attrs["header_sha256"] = np.bytes_(hashlib.sha256(text).hexdigest())
    reseal(path)


def reseal(path: Path) -> None:
    with path.open("rb+") as file:
        file.write(data_format.seal(file))


def replaced(name: str, values: Any, **options: Any) -> Any:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, data=values, **options)

    return change


def linked(link: Any) -> Any:
    def change(file: h5py.File) -> None:
        file.move("actions", "elsewhere") if isinstance(link, h5py.SoftLink) else file.pop("actions")
        file["actions"] = link

    return change


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((26,), "<i4")
    layout[:] = h5py.VirtualSource("other.h5", "actions", (26,))
    del file["actions"]
    file.create_virtual_dataset("actions", layout)


def external(file: h5py.File) -> None:
    del file["actions"]
    file.create_dataset("actions", (26,), "<i4", external=[("/etc/hostname", 0, 104)])


def huge_frames(file: h5py.File) -> None:
    del file["observations"]
    file.create_dataset("observations", (29, 10**8), "u1", chunks=(16, 10**8), compression="gzip")


def wide_frames(file: h5py.File) -> None:
    """Frames of 9 GB in chunks of a few bytes."""
    del file["observations"]
    shape, chunk = (29, 49152, 49152), (16, 64, 64)
    file.create_dataset("observations", shape, "<i4", chunks=chunk, compression="gzip")


def huge_steps(file: h5py.File) -> None:
    file["actions"].resize((10**15,))


def no_change(file: h5py.File) -> None:
    pass


STEPS = 26
FORGERIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "external link": (linked(h5py.ExternalLink("other.h5", "/actions")), {}, "actions is missing or a link"),
    "soft link": (linked(h5py.SoftLink("/elsewhere")), {}, "elsewhere"),
    "stray link": (lambda f: f.__setitem__("more", h5py.ExternalLink("o.h5", "/")), {}, "more"),
    "missing array": (lambda f: f.pop("levels"), {}, "levels is missing"),
    "group": (lambda f: (f.pop("levels"), f.create_group("levels")), {}, "levels must be an array"),
    "virtual": (virtual, {}, "actions must be an array stored"),
    "external storage": (external, {}, "actions must be an array stored"),
    "filter": (replaced("actions", np.zeros(STEPS, "<i4"), compression="lzf"), {}, "filters"),
    "dtype": (replaced("actions", np.zeros(STEPS, "<f8")), {}, "actions must be int32, got float64"),
    "byte order": (replaced("rewards", np.zeros(STEPS, ">f4")), {}, "rewards must be float32, got >f4"),
    "strings": (replaced("levels", ["a", "b", "c"]), {}, "levels must be int64, got object"),
    "rank": (replaced("rewards", np.zeros((STEPS, 1), "<f4")), {}, "rewards must be float32"),
    "length": (replaced("rewards", np.zeros(STEPS - 1, "<f4")), {}, "do not agree"),
    "no steps": (replaced("episode_ends", np.zeros(0, "<i8")), {}, "do not agree"),
    "action": (replaced("actions", np.full(STEPS, 5, "<i4")), {}, "actions must be integers"),
    "reward": (replaced("rewards", np.full(STEPS, np.inf, "<f4")), {}, "rewards"),
    "q value": (replaced("q_values", np.full(STEPS, np.nan, "<f4")), {}, "rewards and their sums"),
    "done": (replaced("dones", np.ones(STEPS, "u1")), {}, "dones"),
    "ends": (replaced("episode_ends", np.array([25, 5, 26])), {}, "episode_ends"),
    "frames": (
        replaced(
            "observations", np.zeros((STEPS, *FRAME), np.int32), chunks=(16, *FRAME), compression="gzip"
        ),
        {},
        "observations must be 29 for 26 steps of 3 episodes, got 26",
    ),
    "chunks": (
        replaced("observations", np.zeros((29, *FRAME), np.int32), chunks=(1, *FRAME), compression="gzip"),
        {},
        "chunks of 16 frames",
    ),
    "wide frames": (wide_frames, {}, "observations claims 280246616064 bytes"),
    "huge frames": (huge_frames, {}, "observations claims"),
    "huge steps": (huge_steps, {}, "actions claims 4000000000000000 bytes"),
    "future": (no_change, {"format_version": 4}, "version 4 .*upgrade dtsn"),
    "past": (no_change, {"format_version": 2}, "version 2 .*collect the data anew"),
    "format": (no_change, {"format": "other"}, "not a dtsn-dataset"),
    "field": (no_change, {"num_actions": "5"}, "num_actions must be a int, got '5'"),
    "many actions": (no_change, {"num_actions": 5_000_000}, "num_actions must be 1 to 4096, got 5000000"),
    "no actions": (no_change, {"num_actions": True}, "num_actions must be a int, got True"),
    "bounds": (
        no_change,
        {"observation": {"dtype": "int32", "low": "a", "high": None}},
        "bounds must be numbers",
    ),
    "huge bound": (
        no_change,
        {"observation": {"dtype": "int32", "low": 0, "high": 10**400}},
        "must fit a float",
    ),
    "other dtype": (
        no_change,
        {"observation": {"dtype": "float32", "low": 0, "high": 1}},
        "must be float32 by the header",
    ),
    "discount": (no_change, {"discount": 7.0}, "discount must lie in"),
    "header": (no_change, {}, "header differs from its checksum"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_are_refused(small: Path, tmp_path: Path, name: str) -> None:
    change, fields, message = FORGERIES[name]
    shutil.copy(small, tmp_path / "other.h5")  # what the links lead to does exist
    path = tmp_path / "forged.h5"
    forge(small, path, change, fields)
    if name == "header":
        with h5py.File(path, "r+") as file:
            file.attrs["header_sha256"] = np.bytes_("0" * 64)
    for verify in (True, False):
        with pytest.raises(DatasetError, match=rf"forged\.h5.*{message}"):
            Dataset(path, verify=verify)


def test_an_honest_forgery_is_read(small: Path, tmp_path: Path) -> None:
    forge(small, tmp_path / "same.h5", no_change)
    Dataset(tmp_path / "same.h5").close()


# Minari


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


def test_missing_minari_says_how_to_install_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with Dataset(path) as dataset, pytest.raises(ImportError, match=r"pip install 'dtsn\[minari\]'"):
        export_minari(dataset, "test/x-v0")
