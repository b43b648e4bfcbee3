"""What is written stays written: durable files, and one process at a time in a folder.

Folders may be other people's. What is written there follows no link and has names that nobody can guess;
what is read must be a regular file, since a pipe or a device could go on for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import secrets
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from dtsn.arrays import Array
from dtsn.errors import UserError

MAX_ARRAY_HEADER = 10_000  # bytes
LOCK_BYTES = 1000  # of what a lock says
HEARTBEAT = 30.0  # seconds between two signs of life of a lock
STALE_AFTER = 600.0  # seconds without one, after which a lock of another host is stale


class StorageError(UserError, OSError):
    """A file or folder that cannot be used as it is: of another kind, a link, or too large."""


class RunInUseError(UserError, OSError):
    """Another process works in the run folder."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> io.FileIO:
    """Open a regular file, unbuffered; anything else at its place is refused without waiting for it."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = (
            "not be a link" if flags & os.O_NOFOLLOW and path.is_symlink() else "be a file that can be opened"
        )
        raise StorageError(f"{path} must {kind}, got: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StorageError(f"{path} must be a regular file")
    return io.FileIO(file, {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "r+"}[flags & os.O_ACCMODE])


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StorageError(f"{path} must have at most {limit} bytes, got {size}")
        parts, room = [], limit + 1
        while room and (part := file.read(min(room, size + 1))):  # one part, unless it grows meanwhile
            parts.append(part)
            room -= len(part)
    if not room:
        raise StorageError(f"{path} must have at most {limit} bytes, got more")
    return b"".join(parts)


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """Read a JSON object of at most ``limit`` bytes, without NaN and infinity, which JSON does not have."""
    content = read_bounded(path, limit)
    try:
        found = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} must be readable JSON, got an error: {error}") from error
    if not isinstance(found, dict):
        raise StorageError(f"{path} must be a JSON object, got a {type(found).__name__}")
    return found


def parse_json(content: bytes) -> Any:
    """Parse JSON in UTF-8 by the book: no NaN and no infinity, be it a word or a number like 1e999."""
    return json.loads(content.decode(), parse_constant=_refuse_constant, parse_float=_finite)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise UserError(f"{name} is not a number of JSON")


def read_array(path: Path, limit: int) -> Array:
    """Read a plain array of numbers that ``numpy.save`` wrote, of at most ``limit`` bytes."""
    stream = io.BytesIO(read_bounded(path, limit))
    try:
        shape, fortran, dtype = read_array_header(stream)
        values = np.frombuffer(stream.read(), dtype)
        return values.reshape(shape, order="F" if fortran else "C").copy()
    except Exception as error:  # what is no array makes numpy raise nearly anything
        raise StorageError(f"{path} must be an array of numbers by numpy.save, got {error}") from error


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order (whether Fortran's) and type of an array of plain numbers by ``numpy.save``.

    NumPy reads as many bytes of a header as it claims to have before it looks at the number.
    """
    magic = stream.read(8)
    wide = magic[6:7] != b"\1"
    length = stream.read(4 if wide else 2)
    if not magic.startswith(b"\x93NUMPY") or int.from_bytes(length, "little") > MAX_ARRAY_HEADER:
        raise UserError(f"no header of at most {MAX_ARRAY_HEADER} bytes")
    header = io.BytesIO(length + stream.read(int.from_bytes(length, "little")))
    read = np.lib.format.read_array_header_2_0 if wide else np.lib.format.read_array_header_1_0
    shape, fortran, dtype = read(header)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise UserError(f"its type is {dtype}")
    return shape, fortran, dtype


def append_to(path: Path) -> io.FileIO:
    """Open a file to add to its end; links are not followed, nor is a file with other names written to."""
    file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise StorageError(f"{path} must not have other names (hard links): remove it")
    return file


def write_durably(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a new file and force it to the disk; a file or link that is there already is an error."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        for part in [content] if isinstance(content, bytes) else content:
            left = memoryview(part)
            while left:
                left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a mixture."""
    partial = aside(path, "partial")
    try:
        write_durably(partial, content)
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error}") from error


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a name to write to, of the same ending, that replaces ``path`` at the end of the block."""
    partial = aside(path, f"partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def aside(path: Path, ending: str) -> Path:
    """Make up a hidden name beside ``path`` that nobody can guess, for what is not to be seen."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{ending}")


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk: a rename is durable only then."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def real_folder(folder: Path) -> Path:
    """Make a folder unless it is there; a link to one elsewhere is refused, lest we write there."""
    try:
        folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise StorageError(f"{folder} must be a folder and not a link: remove the link") from None
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error}") from error
    return folder


class RunLock:
    """Holds a run folder until it is released, or until the process ends, however it ends.

    On one host the system holds the lock (``flock``), not the file's existence: the file that a killed
    process leaves behind is stale, and whoever comes next takes it over. Shared folders do not always pass
    locks on between hosts, so the file also says who holds it and is touched every ``HEARTBEAT`` seconds: one
    of another host counts as held until ``STALE_AFTER`` seconds have passed without such a sign of life.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / ".lock"
        self._file = self._acquire()
        now = datetime.now().isoformat(" ", "seconds")
        said = {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "key": secrets.token_hex(8)}
        self._statement = json.dumps(said).encode()
        try:
            os.ftruncate(self._file.fileno(), 0)
            os.pwrite(self._file.fileno(), self._statement, 0)
        except OSError as error:
            self._give_up()
            raise StorageError(f"{run}: cannot be written ({error})") from error
        self._released = threading.Event()
        arguments = (weakref.ref(self), self._released)
        threading.Thread(target=_show_life, args=arguments, name="run lock", daemon=True).start()

    def release(self) -> None:
        """Let go of the folder; nothing is left in it."""
        self._released.set()
        self._give_up()

    def check(self) -> None:
        """Refuse to go on if another host took the folder over, as it may after a long silence of ours."""
        if not self._is_mine(missing=True):
            raise RunInUseError(
                f"{self.path.parent} was taken over by another process while this one was silent: "
                "stop one of them"
            )

    def _give_up(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):
                if self._is_mine(missing=False):
                    self.path.unlink(missing_ok=True)
            self._file.close()

    def _is_mine(self, missing: bool) -> bool:
        """Tell whether the file at the lock's place is ours; ``missing`` if there is none, as after an rm."""
        try:
            with open_regular(self.path, os.O_RDONLY | os.O_NOFOLLOW) as file:
                return os.pread(file.fileno(), LOCK_BYTES, 0) == self._statement
        except FileNotFoundError:
            return missing

    def touch(self) -> None:
        """Give a sign of life, for those on other hosts."""
        with contextlib.suppress(OSError, ValueError):  # closed in between
            if self._is_mine(missing=True):
                os.utime(self._file.fileno())

    def _acquire(self) -> io.FileIO:
        while True:
            file = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(file.fileno())
                if found.st_nlink > 1:
                    raise StorageError(f"{self.path} must not have other names (hard links): remove it")
                if self._is_at_path(found):
                    self._refuse_other_host(file, found)
                    return file
            except BlockingIOError:
                holder = _who(_said(file))
                file.close()
                raise RunInUseError(
                    f"{self.path.parent} is in use by {holder}: "
                    "wait for it, stop it, or use another run folder"
                ) from None
            except BaseException:
                file.close()
                raise
            file.close()  # whoever held it removed it after we opened it: try the new one

    def _is_at_path(self, found: os.stat_result) -> bool:
        try:
            return os.path.samestat(found, self.path.lstat())
        except FileNotFoundError:
            return False

    def _refuse_other_host(self, file: io.FileIO, found: os.stat_result) -> None:
        said = _said(file)
        silent = time.time() - found.st_mtime
        if said.get("host", socket.gethostname()) != socket.gethostname() and silent < STALE_AFTER:
            raise RunInUseError(
                f"{self.path.parent} is in use by {_who(said)}, seen {silent:.0f} s ago: "
                f"wait {STALE_AFTER - silent:.0f} s if it was killed, stop it, or use another run folder"
            )


def _show_life(lock: weakref.ref[RunLock], released: threading.Event) -> None:
    """Touch a lock until it is released or forgotten."""
    while not released.wait(HEARTBEAT):
        held = lock()
        if held is None:
            return
        held.touch()
        del held


def _said(file: io.FileIO) -> dict[str, Any]:
    """Return what a lock says of its holder; nothing where it says nothing sensible."""
    try:
        said = json.loads(os.pread(file.fileno(), LOCK_BYTES, 0))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _who(said: dict[str, Any]) -> str:
    if not {"pid", "host", "since"} <= said.keys():
        return "another process"
    return f"process {said['pid']} on {said['host']} since {said['since']}"
