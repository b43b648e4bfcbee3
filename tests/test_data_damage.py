"""Data sets that were damaged, changed or forged are refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from data_files import ARRAYS, FRAME, contents, make_episodes, take, write
from data_files import lengths as lengths
from dtsn.data import format as data_format
from dtsn.data.format import DatasetError
from dtsn.data.reader import Dataset


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


def test_damaged_frames_met_in_batches_are_named(tmp_path: Path, lengths: list[int]) -> None:
    path = write(tmp_path / "d.h5", make_episodes(lengths))
    with h5py.File(path) as file:
        chunk = file["observations"].id.get_chunk_info(3)
    with path.open("rb+") as file:
        file.seek(chunk.byte_offset)
        file.write(bytes(chunk.size))
    with Dataset(path, verify=False) as dataset, pytest.raises(DatasetError, match=str(path)):
        take(dataset.batches(1, 0), len(dataset))


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
