"""Jobs of a campaign and who runs them: local processes, or anything else with the same one method.

A job is a module of this package with arguments. It resumes what it has begun and skips what is done, so that
an executor need not know more about it than whether it ended well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from dtsn.storage import append_to

Name = TypeVar("Name", bound=Hashable)
DONE = "done"
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """A module to run as a program."""

    module: str
    arguments: tuple[str, ...]
    log: Path  # what it prints is added to this file


class Executor(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Mapping[Name, Job]) -> Iterator[tuple[Name, str]]:
        """Run jobs in order; yields (name, ``DONE`` or what went wrong) as they end.

        Closing the generator stops those that still run.
        """


@dataclass(frozen=True)
class LocalProcesses:
    """Single-threaded processes on this machine, ``at_once`` side by side."""

    at_once: int

    def run(self, jobs: Mapping[Name, Job]) -> Generator[tuple[Name, str], None, None]:
        """Run jobs in order; yields (name, ``DONE`` or what went wrong) as they end."""
        waiting = list(jobs)
        running: dict[Name, subprocess.Popen[bytes]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.at_once:
                    name = waiting.pop(0)
                    running[name] = start(jobs[name])
                for name, process in list(running.items()):
                    if process.poll() is not None:
                        del running[name]
                        yield name, outcome(jobs[name], process.returncode)
                time.sleep(POLL_SECONDS)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()


def outcome(job: Job, code: int) -> str:
    """Return how a job ended whose program did so with this code."""
    return DONE if code == 0 else f"failed, see {job.log}"


def start(job: Job) -> subprocess.Popen[bytes]:
    """Start a job's program, single-threaded; its output goes to the log."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with append_to(job.log) as output:
        return subprocess.Popen(
            [sys.executable, "-m", job.module, *job.arguments], stdout=output, stderr=output, env=environment
        )
