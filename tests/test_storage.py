"""Files and folders of other people: no link is followed, no pipe waited for, one process at a time."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dtsn import storage
from dtsn.errors import UserError, printable
from dtsn.storage import (
    RunInUseError,
    RunLock,
    StorageError,
    append_to,
    read_array,
    read_bounded,
    read_json,
    real_folder,
    replace_durably,
    write_durably,
)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"", b"old", bytes(10**6)):
        replace_durably(path, content)
        assert read_bounded(path, 10**6) == content
    with append_to(path) as file:
        file.write(b"x")
    with pytest.raises(StorageError, match="at most 1000000 bytes, got 1000001"):
        read_bounded(path, 10**6)
    assert os.listdir(tmp_path) == ["a"]


def test_no_link_is_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    link = tmp_path / "link"
    link.symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        write_durably(link, b"x")
    with pytest.raises(OSError, match="link"):
        append_to(link)
    replace_durably(link, b"mine")  # takes the link's place
    assert not link.is_symlink()
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="must be a folder and not a link"):
        real_folder(tmp_path / "folder")
    assert outside.read_bytes() == b"precious"


def test_names_that_were_guessed(tmp_path: Path) -> None:
    """The names that earlier versions wrote to first."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    (tmp_path / ".config.json.partial").symlink_to(outside)
    replace_durably(tmp_path / "config.json", b"{}")
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to a pipe"])
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe") if "link" in kind else os.rename(tmp_path / "pipe", path)
    for read in (lambda: read_bounded(path, 10), lambda: read_json(path, 10), lambda: append_to(path)):
        with pytest.raises(OSError, match=str(path)):
            read()


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"a": NaN}', '{"a": Infinity}', "[" * 10**5, "\xff"])
def test_json_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, "latin-1")
    with pytest.raises(StorageError, match=str(path)):
        read_json(path, 10**6)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, np.float64, ">f4"])
def test_arrays(dtype: object, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for each in (array, array.T, array[0, 0]):
        np.save(tmp_path / "a.npy", each)
        found = read_array(tmp_path / "a.npy", 1000)
        assert found.dtype == each.dtype
        assert np.array_equal(found, each)


def npy(header: str, content: bytes = bytes(8)) -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + content


NO_ARRAYS = {
    "empty": b"",
    "text": b"hello",
    "magic alone": b"\x93NUMPY",
    "no such version": b"\x93NUMPY\x09\0",
    "huge": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2000000000,)}"),
    "overflow": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2**62, 4)}"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
    "long double": npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", bytes(16)),
    "code": npy("__import__('os').mkdir('executed')"),
    "broken header": npy("{'descr':"),
    "short": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}"),
}


@pytest.mark.parametrize("kind", NO_ARRAYS)
def test_arrays_that_are_none(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npy").write_bytes(NO_ARRAYS[kind])
    with pytest.raises(StorageError, match=r"a\.npy must be an array of numbers by numpy\.save"):
        read_array(tmp_path / "a.npy", 1000)
    assert os.listdir(tmp_path) == ["a.npy"]


def lock_of(folder: Path, host: str, age: float) -> None:
    (folder / ".lock").write_text(json.dumps({"pid": 7, "host": host, "since": "2026"}))
    os.utime(folder / ".lock", (time.time() - age, time.time() - age))


def test_locks_of_this_host_are_the_systems(tmp_path: Path) -> None:
    lock_of(tmp_path, socket.gethostname(), age=0)  # of a process that was killed a moment ago
    lock = RunLock(tmp_path)
    with pytest.raises(RunInUseError, match=f"in use by process {os.getpid()} on"):
        RunLock(tmp_path)
    lock.release()
    assert os.listdir(tmp_path) == []


def test_locks_of_other_hosts_need_signs_of_life(tmp_path: Path) -> None:
    """A shared folder may not pass the system's lock on, so none holds this one here."""
    lock_of(tmp_path, "elsewhere", age=100)
    with pytest.raises(RunInUseError, match=r"process 7 on elsewhere since 2026, seen 100 s ago: wait 500 s"):
        RunLock(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["host"] == "elsewhere"
    lock_of(tmp_path, "elsewhere", age=storage.STALE_AFTER + 5)
    RunLock(tmp_path).release()


def test_a_lock_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HEARTBEAT", 0.01)
    lock = RunLock(tmp_path)
    os.utime(lock.path, (0, 0))
    end = time.monotonic() + 30
    while lock.path.stat().st_mtime < time.time() - 100:
        assert time.monotonic() < end
        time.sleep(0.01)
    lock.release()
    threads = [thread for thread in threading.enumerate() if thread.name == "run lock"]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_forgotten_lock_lets_go(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    del lock
    RunLock(tmp_path).release()


@pytest.mark.parametrize(
    "said", ["", "[]", "null", '{"pid": 1}', "[" * 900, '{"pid": "\x1b[31m", "host": 3}']
)
def test_a_lock_that_says_nothing_sensible(said: str, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(said)
    RunLock(tmp_path).release()


def test_a_lock_with_other_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    os.link(tmp_path / "precious", tmp_path / ".lock")
    with pytest.raises(StorageError, match="hard links"):
        RunLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "years of work"


def test_errors_cannot_steer_a_terminal() -> None:
    assert str(UserError("a\x1b[31mb\nλ")) == "a\\x1b[31mb\nλ"
    assert printable("\u202e\x07") == "\\u202e\\x07"
