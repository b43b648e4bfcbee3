"""Every system call of a save fails, or is the last one before the process or the machine dies."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtsn.checkpoint import CheckpointError, checkpoints, verified_state
from dtsn.data import Dataset
from dtsn.errors import UserError
from dtsn.solvers.solver import Solver
from dtsn.training.loop import train_run
from dtsn.training.runs import RunFolder

from .common import TINY, Outcome, ended, fork, leftovers, make, outcome, train, vectors

OPERATIONS = ("open", "write", "fsync", "close", "ftruncate", "rename", "replace", "mkdir", "unlink", "rmdir")
MODES = ("fails", "fails from then on", "dies before", "dies after", "power is lost")
DIED = 99
CONFIG = replace(TINY, steps=5, keep_checkpoints=1)


class Faults:
    """Stands in for functions of ``os``, counts their calls, and lets the one numbered ``at`` go wrong."""

    def __init__(self, at: int = 0, mode: str = "fails") -> None:
        self.at, self.mode, self.count, self.failing = at, mode, 0, False
        self._real = {name: getattr(os, name) for name in OPERATIONS}
        self._unsynced: dict[int, tuple[int, int]] = {}  # inode -> a descriptor of our own, bytes on the disk
        # Not on the disk yet, each with what the file had that it took the place of.
        self._renamed: list[tuple[Path, Path, bytes | None]] = []

    def install(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, self._stand_in(name, real))

    def _stand_in(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self._go_wrong(name, real, arguments, options)
            if self.failing:
                if name == "close":
                    real(*arguments, **options)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replaced = _content(arguments[1]) if name in ("rename", "replace") else None
            result = real(*arguments, **options)
            self._remember(name, arguments, replaced)
            return result

        return call

    def _go_wrong(self, name: str, real: Callable[..., Any], arguments: Any, options: Any) -> None:
        if self.mode == "fails":
            if name == "close":  # closes the file even where it fails
                real(*arguments, **options)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.mode == "fails from then on":
            self.failing = True
            return
        if self.mode == "dies after":
            if name == "write":
                arguments = (arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            real(*arguments, **options)
        if self.mode == "power is lost":
            self._lose()
        os._exit(DIED)

    def _remember(self, name: str, arguments: Any, replaced: bytes | None) -> None:
        """What a loss of power would undo."""
        if name == "write":
            inode = os.fstat(arguments[0]).st_ino
            if inode not in self._unsynced:
                synced = os.fstat(arguments[0]).st_size - len(arguments[1])
                self._unsynced[inode] = os.dup(arguments[0]), synced
        elif name == "fsync":
            status = os.fstat(arguments[0])
            self._unsynced.pop(status.st_ino, None)
            self._renamed = [
                renamed
                for renamed in self._renamed
                if not os.path.samestat(status, os.stat(renamed[1].parent))
            ]
        elif name in ("rename", "replace"):
            self._renamed.append((Path(arguments[0]), Path(arguments[1]), replaced))

    def _lose(self) -> None:
        for descriptor, size in self._unsynced.values():
            os.ftruncate(descriptor, size)
        for source, target, replaced in reversed(self._renamed):
            if os.path.lexists(target) and not os.path.lexists(source):
                self._real["rename"](target, source)
                if replaced is not None:
                    target.write_bytes(replaced)


def _content(path: str | Path) -> bytes | None:
    return Path(path).read_bytes() if Path(path).is_file() else None


def every_syscall_of_a_save(folder: Path, size: int = 1) -> Outcome:
    """All calls if ``size`` is 1, else one in that many: save again with a score, then save and prune."""
    result = Outcome()
    path, base = vectors(folder / "data.h5"), folder / "base"
    with Dataset(path) as dataset:
        train(base, dataset, CONFIG, stop=3)
        shutil.copytree(base, folder / "whole")
        train(folder / "whole", dataset, CONFIG, validate=_score)
        expected = outcome(folder / "whole")
        calls = _count(folder / "count", base, dataset)
        for number in range(calls * len(MODES)):
            if number % size == 0:
                at, mode = number // len(MODES) + 1, MODES[number % len(MODES)]
                _try_one(folder / "run", base, dataset, Faults(at, mode), expected, result)
    result.notes.append(f"{calls} calls, each in {len(MODES)} ways: {', '.join(MODES)}")
    return result


def _score(solver: Solver) -> float:
    """Of no meaning, but of these weights."""
    return float(next(solver.parameters()).detach().double().abs().mean())


def _go_on(run: Path, dataset: Dataset, faults: Faults, say: Callable[[int], None]) -> None:
    trainer = make(dataset, CONFIG)
    faults.install()
    for _ in train_run(run, trainer, dataset, resume=True, validate=_score):
        say(trainer.step)


def _count(run: Path, base: Path, dataset: Dataset) -> int:
    shutil.copytree(base, run)
    reader, writer = os.pipe()
    real_write = os.write

    def work() -> None:
        faults = Faults()
        _go_on(run, dataset, faults, lambda step: None)
        real_write(writer, struct.pack("<q", faults.count))

    assert ended(fork(work)) == 0
    calls: int = struct.unpack("<q", os.read(reader, 8))[0]
    os.close(reader)
    os.close(writer)
    return calls


def _try_one(
    run: Path, base: Path, dataset: Dataset, faults: Faults, expected: dict[str, bytes], result: Outcome
) -> None:
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(base, run)
    case = f"call {faults.at} {faults.mode}"
    reader, writer = os.pipe()
    real_write = os.write

    def work() -> None:
        try:
            _go_on(run, dataset, faults, lambda step: real_write(writer, struct.pack("<q", step)) and None)
        except (UserError, OSError) as error:
            if str(run) not in str(error):
                raise

    errors = run.with_suffix(".errors")
    errors.unlink(missing_ok=True)
    code = ended(fork(work, errors))
    os.close(writer)
    with open(reader, "rb") as pipe:
        saved = [step for (step,) in struct.iter_unpack("<q", pipe.read())]
    result.tried += 1
    if code not in (0, DIED):
        said = errors.read_text()[-500:] if errors.exists() else "nothing"
        result.failures.append(f"{case}: ended with {code}, said {said}")
        return
    sound = [_step(found) for found in checkpoints(run / "checkpoints")]
    newest = max(sound, default=0)
    result.check(
        newest >= max([3, *saved]), f"{case}: step {max([3, *saved])} was saved, {newest} is the newest"
    )
    try:
        train(run, dataset, CONFIG, validate=_score)
        result.check(outcome(run) == expected, f"{case}: the run ends otherwise")
        RunFolder(run).prune(CONFIG.keep_checkpoints)
        result.check(not leftovers(run), f"{case}: left behind: {leftovers(run)}")
    except (UserError, OSError) as error:
        result.failures.append(f"{case}: the run does not go on: {error}")


def _step(path: Path) -> int:
    try:
        return int(verified_state(path)["step"])
    except CheckpointError:
        return 0
