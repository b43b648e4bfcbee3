"""The journal of a search: what Optuna keeps in it, in a folder that may be somebody else's.

Optuna's own file backend follows links, reads files of any size, waits for ever for a lock that is a broken
link (as that of a killed process is, if the folder was given by a relative path), and cannot go on after a
process was killed while it wrote a line.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dtsn.errors import UserError, brief
from dtsn.storage import StorageError, aside, open_regular, parse_json, read_bounded

MAX_BYTES, MAX_LINES = 2**24, 2**16  # thousands of trials
GRACE = 30.0  # seconds after which a lock that nobody touched is of a killed process
PAUSE = 0.02  # seconds between two looks at a lock


class Journal:
    """A file of JSON lines to which several processes add, as Optuna's ``JournalStorage`` wants it.

    Others are kept out by a file that must not exist when it is made, which also works on shared folders.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, path.with_name(f"{path.name}.lock")
        self._opened().close()

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Read the lines from a number on; a half-written last one is passed over."""
        content = read_bounded(self.path, MAX_BYTES)
        if content.count(b"\n") > MAX_LINES:
            raise StorageError(f"{self.path} must have at most {MAX_LINES} lines, got more")
        *lines, half = content.split(b"\n")
        if half and not half.startswith(b"{"):  # of nothing that we write, so it is not ours to cut off
            raise StorageError(
                f"{self.path} must be a journal of dtsn tune, got {brief(half[:100])} at its end"
            )
        later = enumerate(lines[log_number_from:], log_number_from + 1)
        return [self._parsed(number, line) for number, line in later]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add lines to the end, durably; what a killed process wrote of a line goes."""
        content = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        try:
            with self._held(), self._opened() as file:
                os.ftruncate(file.fileno(), self._whole(file))
                while content:
                    content = content[os.write(file.fileno(), content) :]
                os.fsync(file.fileno())
        except OSError as error:
            if isinstance(error, UserError):
                raise
            raise StorageError(f"cannot write {self.path}: {error}") from error

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            found = parse_json(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or type(found.get("op_code")) is not int:
            raise StorageError(
                f"{self.path} line {number} must be a line of a search's journal, got {brief(line[:100])}"
            )
        return found

    def _opened(self) -> io.FileIO:
        file = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        if os.fstat(file.fileno()).st_nlink > 1:
            file.close()
            raise StorageError(f"{self.path} must not have other names (hard links): remove it")
        return file

    def _whole(self, file: io.FileIO) -> int:
        """Bytes up to the end of the last whole line."""
        content = read_bounded(self.path, MAX_BYTES)
        return min(content.rfind(b"\n") + 1, os.fstat(file.fileno()).st_size)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        seen, since = None, time.monotonic()
        while True:
            try:
                os.close(os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                break
            except FileExistsError:
                found = self._sign()
                if found != seen:
                    seen, since = found, time.monotonic()
                elif found is not None and time.monotonic() - since > GRACE:
                    self._break()
                time.sleep(PAUSE)
        try:
            yield
        finally:
            self._lock.unlink(missing_ok=True)

    def _sign(self) -> tuple[int, int] | None:
        """Which lock it is; None if it is gone meanwhile."""
        try:
            found = self._lock.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(f"{self._lock} must be a file that dtsn tune made: remove it")
        return found.st_ino, found.st_mtime_ns

    def _break(self) -> None:
        """Put a stale lock out of the way, unless another process was faster."""
        with contextlib.suppress(FileNotFoundError):
            away = aside(self._lock, "old")
            os.rename(self._lock, away)
            away.unlink()
