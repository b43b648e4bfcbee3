"""What is written stays written: durable files, and one process at a time in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import TextIO


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and force it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a mixture."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write_durably(partial, content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(f"cannot write {path}: {error}") from error
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk: a rename is durable only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RunInUseError(OSError):
    """Another process works in the run folder."""


class RunLock:
    """Holds a run folder until it is released, or until the process ends, however it ends.

    The system holds the lock, not the file's existence: the file that a killed process leaves behind is
    stale, and whoever comes next takes it over. It says who holds the folder.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / ".lock"
        self._file = self._acquire()
        now = datetime.now().isoformat(" ", "seconds")
        said = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now})
        try:
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), said.encode())
        except OSError as error:
            self.release()
            raise OSError(f"{run}: cannot be written ({error})") from error

    def release(self) -> None:
        """Let go of the folder; nothing is left in it."""
        if not self._file.closed:
            self.path.unlink(missing_ok=True)
            self._file.close()

    def _acquire(self) -> TextIO:
        while True:
            file = self.path.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path(file):
                    return file
            except BlockingIOError:
                raise RunInUseError(
                    f"{self.path.parent} is in use by {_holder(file)}: "
                    "wait for it, stop it, or use another run folder"
                ) from None
            except BaseException:
                file.close()
                raise
            file.close()  # whoever held it removed it after we opened it: try the new one

    def _is_at_path(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


def _holder(file: TextIO) -> str:
    with file:
        file.seek(0)
        try:
            said = json.loads(file.read(1000))
            return f"process {int(said['pid'])} on {said['host']} since {said['since']}"
        except (ValueError, TypeError, KeyError):  # it has not yet said so
            return "another process"
