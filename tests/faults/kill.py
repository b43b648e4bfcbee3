"""`kill -9` while a run trains and saves."""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtsn.checkpoint import CheckpointError, checkpoints, prune_checkpoints, verified_state
from dtsn.config import TrainConfig
from dtsn.data import Dataset
from dtsn.training.loop import train_run
from dtsn.training.runs import RunFolder

from .common import TINY, Outcome, ended, fork, leftovers, make, outcome, train, vectors

FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.listdir"}


def kill(folder: Path, size: int = 1000) -> Outcome:
    """SIGKILL at random moments of training with a checkpoint at every step; a fifth at file operations."""
    result, rng = Outcome(), random.Random(0)
    path = vectors(folder / "data.h5")
    config = replace(TINY, steps=60)
    with Dataset(path) as dataset:
        train(folder / "whole", dataset, config)
    expected = outcome(folder / "whole")
    run, announced, finished, between = folder / "run-0", 0, 0, 0
    while result.tried < size:
        operation = rng.randint(1, 120) if result.tried % 5 == 0 else None
        moment = (rng.randint(0, 3), rng.uniform(0, 0.03))
        step, killed = _kill_one(run, path, config, operation, moment, folder / "errors.txt")
        announced = max(announced, step)
        sound = []
        for found in checkpoints(run / "checkpoints"):
            try:
                sound.append(int(verified_state(found)["step"]))
            except CheckpointError as error:
                result.failures.append(f"unreadable after a kill: {error}")
        newest = max(sound, default=0)
        result.check(newest >= announced, f"step {announced} was saved, {newest} is the newest after a kill")
        between += bool(leftovers(run))
        if killed:
            result.tried += 1
        else:
            if (folder / "errors.txt").exists():
                result.failures.append(f"a resumed run failed: {(folder / 'errors.txt').read_text()[-1000:]}")
                break
            result.check(outcome(run) == expected, f"{run.name} ends otherwise than the uninterrupted run")
            prune_checkpoints(run / "checkpoints", config.keep_checkpoints)
            result.check(not leftovers(run), f"left behind: {leftovers(run)}")
            finished += 1
            run, announced = folder / f"run-{finished}", 0
            if result.failures:
                break
    result.notes.append(
        f"{finished} runs ended after being killed again and again, bitwise as the uninterrupted one; "
        f"{between} kills fell into the writing or deleting of a checkpoint"
    )
    return result


def _kill_one(
    run: Path,
    path: Path,
    config: TrainConfig,
    operation: int | None,
    moment: tuple[int, float],
    errors: Path,
) -> tuple[int, bool]:
    """Train in a child and kill it; the last step that it had saved by then, and whether it was killed.

    It is killed before its file operation number ``operation``, or some steps and seconds after its start.
    """
    reader, writer = os.pipe()

    def work() -> None:
        count = 0

        def hook(event: str, _: Any) -> None:
            nonlocal count
            if event in FILE_OPERATIONS:  # and not at the event of the kill itself
                count += 1
                if count == operation:
                    os.kill(os.getpid(), signal.SIGKILL)

        with Dataset(path) as dataset:
            trainer = make(dataset, config)
            if operation is not None:
                sys.addaudithook(hook)
            for _ in train_run(run, trainer, dataset, resume=RunFolder(run).exists()):
                os.write(writer, struct.pack("<q", trainer.step))

    child = fork(work, errors)
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        said = b""
        if operation is None:
            steps, seconds = moment
            while len(said) < 8 * steps and (more := pipe.read(8)):
                said += more
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)  # it is ours until it is waited for
        code = ended(child)
        said += pipe.read()
    announced = [step for (step,) in struct.iter_unpack("<q", said[: len(said) // 8 * 8])]
    return max(announced, default=0), code == -signal.SIGKILL
