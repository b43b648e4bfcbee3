"""A run folder: the configuration, the metrics and the checkpoints of one training run.

``config.json`` says what was trained on what, ``metrics.jsonl`` has a line for each step, ``checkpoints/``
holds ``step-N/``. Whoever writes holds the folder's lock; anybody may read.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import dtsn
from dtsn import checkpoint
from dtsn.checkpoint import CheckpointError
from dtsn.errors import UserError, brief
from dtsn.settings import plain
from dtsn.storage import (
    RunLock,
    StorageError,
    append_to,
    aside,
    open_regular,
    parse_json,
    read_bounded,
    read_json,
    real_folder,
    replace_durably,
    sync_folder,
    write_durably,
)

MAX_CONFIG_BYTES = 1 << 20
MAX_METRICS_BYTES = 1 << 26  # to be read at once; resuming takes any number
MAX_ROWS = 1 << 20
MAX_LINE_BYTES = 1 << 16

_LEFTOVER = re.compile(r"\.(config\.json|metrics\.jsonl)\.[0-9a-f]{16}\.partial")


class RunError(UserError):
    """A run folder whose content cannot be used."""


class NoRunError(RunError, FileNotFoundError):
    """There is no run to resume."""


class RunExistsError(RunError, FileExistsError):
    """There is a run already."""


class Environment(NamedTuple):
    """What the data of a run were of."""

    id: str
    options: dict[str, Any]


class RunFolder:
    """Reads a run folder, and writes it while it is open.

    Use :meth:`open` to write: it locks the folder until the ``with`` block, or the process, ends.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.metrics_path = self.path / "metrics.jsonl"
        self.config_path = self.path / "config.json"
        self._lock: RunLock | None = None
        self._log: io.FileIO | None = None

    @classmethod
    def of(cls, folder: str | Path) -> RunFolder:
        """Return the run that a folder or one of its checkpoints belongs to."""
        path = Path(folder)
        return cls(path.parent.parent if path.parent.name == "checkpoints" else path)

    # Reading

    def exists(self) -> bool:
        """Tell whether there is a run, be it one without a checkpoint yet."""
        return self.config_path.exists() or bool(checkpoint.checkpoints(self.checkpoints))

    def newest(self) -> Path | None:
        """Return the newest sound checkpoint."""
        return checkpoint.latest_checkpoint(self.checkpoints)

    def best(self) -> Path | None:
        """Return the sound checkpoint with the highest validation score."""
        return checkpoint.best_checkpoint(self.checkpoints)

    def newest_state(self) -> dict[str, Any] | None:
        """Return the state of the newest sound checkpoint."""
        newest = self.newest()
        return None if newest is None else checkpoint.load_state(newest)

    def metrics(self) -> list[dict[str, float]]:
        """Return the logged steps; none where there is no log."""
        return read_metrics(self.metrics_path)

    def config(self) -> dict[str, Any]:
        """Return what ``config.json`` says; nothing where there is none."""
        try:
            return read_json(self.config_path, MAX_CONFIG_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RunError(f"cannot read {self.config_path}: {error}") from error

    def environment(self) -> Environment | None:
        """Return what the run was trained on; None where its ``config.json`` does not say."""
        said = self.config().get("env")
        if said is None:
            return None
        if (
            not isinstance(said, dict)
            or not isinstance(said.get("id"), str)
            or not isinstance(said.get("options"), dict)
        ):
            raise RunError(f"{self.config_path}: env must have an id and options, got {brief(said)}")
        return Environment(said["id"], said["options"])

    # Writing

    def open(self, resume: bool) -> RunFolder:
        """Lock the folder for a new run or to go on with the one that is there.

        A new run may follow one that was stopped before its first checkpoint.
        """
        if resume and not self.exists():
            raise NoRunError(f"{self.path} holds no run to resume: correct the folder, or start a new run")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(self.path)
        try:
            with self._named():
                for path in self.path.iterdir():
                    if _LEFTOVER.fullmatch(path.name):
                        path.unlink()  # of a process that was killed
            real_folder(self.checkpoints)
            newest = self.newest()
            if newest is None and checkpoint.checkpoints(self.checkpoints):
                raise CheckpointError(f"no checkpoint in {self.checkpoints} can be read: all are damaged")
            if newest is not None and not resume:
                raise RunExistsError(
                    f"{self.path} already has a training run: resume it, or use another folder"
                )
        except BaseException:
            self.close()
            raise
        return self

    def start(self, settings: dict[str, Any], step: int) -> None:
        """Write what is trained, and forget what was logged after ``step``: those steps are made again."""
        truncate_metrics(self.metrics_path, step)
        described = plain({"dtsn": dtsn.__version__, **settings})
        replace_durably(self.config_path, json.dumps(described, indent=1).encode())
        self._log = append_to(self.metrics_path)

    def log(self, metrics: dict[str, float]) -> None:
        """Add a step's metrics."""
        assert self._log is not None, "start first"
        left = (json.dumps(metrics) + "\n").encode()
        with self._named():
            while left:
                left = left[os.write(self._log.fileno(), left) :]

    def forget_after(self, step: int) -> None:
        """Drop what was logged after ``step``."""
        truncate_metrics(self.metrics_path, step)

    def save(self, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Path:
        """Write a checkpoint of ``state["step"]``."""
        if self._lock is not None:
            self._lock.check()
        if self._log is not None:
            with self._named():
                os.fsync(self._log.fileno())  # what leads to a checkpoint is logged once it is there
        real_folder(self.checkpoints)
        return checkpoint.save_checkpoint(self.checkpoints / f"step-{state['step']}", tensors, state)

    def prune(self, keep: int) -> None:
        """Delete old checkpoints, save the newest ones and the best one."""
        if self._lock is not None:
            self._lock.check()
        with self._named():
            checkpoint.prune_checkpoints(self.checkpoints, keep)

    def folder(self, name: str) -> Path:
        """Return a folder of the run's own, say for kept batches; links to elsewhere are refused."""
        folder = real_folder(self.path / name)
        for above, folders, files in os.walk(folder):
            for path in (Path(above, entry) for entry in (*folders, *files)):
                if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                    raise StorageError(f"{path} must not be a link to elsewhere: remove the link")
        return folder

    def close(self) -> None:
        """Let go of the folder."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in errors of the block: a full disk names none."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot be written ({error}); the last checkpoint stands"
            ) from error


def checkpoint_of(folder: Path) -> Path:
    """Return the folder itself if it is a checkpoint, else the newest one of a run."""
    if (folder / "state.json").exists():
        return folder
    newest = RunFolder(folder).newest()
    if newest is None:
        raise CheckpointError(f"{folder} is neither a checkpoint nor a run folder with one")
    return newest


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the rows of a ``metrics.jsonl``, if there is one; a half-written last line is passed over."""
    try:
        content = read_bounded(path, MAX_METRICS_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error
    if content.count(b"\n") > MAX_ROWS:
        raise RunError(f"{path} must have at most {MAX_ROWS} lines to be read at once, got more")
    lines = content.split(b"\n")
    rows = [_row(path, number, line) for number, line in enumerate(lines[:-1], 1)]
    return rows  # a line ends with a line break, so the last piece is empty or half-written


def truncate_metrics(path: Path, step: int) -> None:
    """Forget what was logged after a checkpoint's step: those steps will be made again."""
    if not os.path.lexists(path):
        replace_durably(path, b"")
        return
    partial = aside(path, "partial")
    try:
        with io.BufferedReader(open_regular(path)) as log:
            write_durably(partial, _lines_until(path, log, step))
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageError(f"cannot write {path}: {error}") from error
        raise


def _lines_until(path: Path, log: io.BufferedReader[io.FileIO], step: int) -> Iterator[bytes]:
    """Yield the lines of a log up to a step, a few at a time; a half-written last one is dropped."""
    kept = bytearray()
    for number, line in enumerate(iter(lambda: log.readline(MAX_LINE_BYTES), b""), 1):
        if line.endswith(b"\n"):
            if _row(path, number, line)["step"] <= step:
                kept += line
        elif log.read(1):
            raise RunError(f"{path} line {number} must have at most {MAX_LINE_BYTES} bytes")
        if len(kept) >= MAX_LINE_BYTES:
            yield bytes(kept)
            kept.clear()
    yield bytes(kept)


def _row(path: Path, number: int, line: bytes) -> dict[str, float]:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        row = None
    numbers = isinstance(row, dict) and all(type(value) in (int, float) for value in row.values())
    if not numbers or type(row.get("step")) is not int or row["step"] < 0:
        raise RunError(
            f"{path} line {number} must be a JSON object of numbers with a step, got {brief(line[:100])}: "
            "correct or remove that line"
        )
    return dict(row)
