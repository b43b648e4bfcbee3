"""Two processes in one run folder, on one host and on two."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dtsn.data import Dataset
from dtsn.storage import STALE_AFTER, RunInUseError
from dtsn.training.loop import train_run
from dtsn.training.runs import RunFolder

from .common import TINY, Outcome, contents, ended, fork, make, vectors


def two_processes(folder: Path, size: int = 100) -> Outcome:
    """Two processes start at once in one folder; then the holder is killed and a third goes on."""
    result, path = Outcome(), vectors(folder / "data.h5")
    config = replace(TINY, steps=10**6, checkpoint_every=5)
    for number in range(size):
        run = folder / f"run-{number}"
        gate_reader, gate_writer = os.pipe()

        def work(run: Path = run, gate: int = gate_reader) -> None:
            with Dataset(path) as dataset:
                trainer = make(dataset, config)
                os.read(gate, 1)
                try:
                    for _ in train_run(run, trainer, dataset, resume=RunFolder(run).exists()):
                        run.with_suffix(".started").touch()
                except RunInUseError as error:
                    run.with_suffix(f".refused-{os.getpid()}").write_text(str(error))

        children = [fork(work, run.with_suffix(".errors")) for _ in range(2)]
        os.write(gate_writer, b"xx")
        os.close(gate_reader)
        os.close(gate_writer)
        loser, code = _first_to_end(children)
        winner = next(child for child in children if child != loser)
        _wait(lambda run=run: run.with_suffix(".started").exists())
        message = run.with_suffix(f".refused-{loser}")
        said = message.read_text() if message.exists() else run.with_suffix(".errors").read_text()
        result.check(code == 0 and f"in use by process {winner} on" in said, f"the second one: {said}")
        os.kill(winner, signal.SIGKILL)
        ended(winner)
        result.check((run / ".lock").exists(), "the killed process left no lock")
        with Dataset(path) as dataset:
            trainer = make(dataset, config)
            steps = train_run(run, trainer, dataset, resume=True)  # the lock is stale
            next(steps)
            steps.close()  # type: ignore[attr-defined]
        result.check(not (run / ".lock").exists(), "a lock is left behind")
        result.tried += 1
        shutil.rmtree(run)
    for number in range(size):
        _two_hosts(folder / f"shared-{number}", path, result, silent=10.0 * number)
    for number in range(max(1, size // 10)):
        _taken_over(folder / f"taken-{number}", path, result)
    result.notes.append("half of them with a lock of another host that no flock here knows of")
    return result


def _two_hosts(run: Path, path: Path, result: Outcome, silent: float) -> None:
    """A folder shared with a host whose flock is not ours: only its signs of life tell."""
    run.mkdir()
    lock = run / ".lock"
    lock.write_text(json.dumps({"pid": 1, "host": "another-host", "since": "2026-01-01"}))
    os.utime(lock, (time.time() - silent, time.time() - silent))
    result.tried += 1
    with Dataset(path) as dataset:
        try:
            train_run(run, make(dataset, TINY), dataset).close()  # type: ignore[attr-defined]
            result.check(
                silent >= STALE_AFTER, f"a lock of another host, seen {silent} s ago, was taken over"
            )
        except RunInUseError as error:
            result.check(silent < STALE_AFTER, f"a lock that was silent for {silent} s is held: {error}")
            result.check("another-host" in str(error), f"it is not said who: {error}")
    shutil.rmtree(run)


def _taken_over(run: Path, path: Path, result: Outcome) -> None:
    """A host that slept for so long that another took its folder over must not write there any more."""
    result.tried += 1
    with Dataset(path) as dataset:
        steps = train_run(run, make(dataset, TINY), dataset)
        next(steps)
        other = json.dumps({"pid": 1, "host": "another-host", "since": "2026-01-01"})
        (run / ".lock").write_text(other)  # no flock here knows of it
        before = contents(run)
        try:
            next(steps)
            result.failures.append("went on in a folder that another host had taken over")
        except RunInUseError as error:
            result.check("was taken over" in str(error), f"it is not said why: {error}")
        after = contents(run)
        logs = (before.pop("metrics.jsonl"), after.pop("metrics.jsonl"))
        result.check(before == after and logs[1].startswith(logs[0]), "wrote to another host's run")
        result.check((run / ".lock").read_text() == other, "removed another host's lock")
    shutil.rmtree(run)


def _first_to_end(children: list[int]) -> tuple[int, int]:
    while True:
        for child in children:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return done, os.waitstatus_to_exitcode(status)
        time.sleep(0.001)


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.002)
