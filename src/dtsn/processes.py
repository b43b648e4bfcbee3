"""Processes: how one is set up for training, and several single-threaded ones side by side."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of malloc.h


def prepare(threads: int = 1) -> None:
    """Set up this process for training: its threads, and that memory which a step frees is kept for the next.

    By default glibc gives large blocks back to the system at once and gets them anew, page fault by page
    fault: a tenth of a step. Other C libraries are left as they are.
    """
    import torch

    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 2**30)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C within the block, so that what saves on one saves on the other.

    A second SIGTERM is ignored: it must not interrupt the saving. Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Job:
    """A module of this package to run as a process."""

    module: str
    arguments: tuple[str, ...]
    log: Path  # what it prints is added to this file


def run_jobs(jobs: Mapping[Name, Job], at_once: int) -> Iterator[tuple[Name, str]]:
    """Run processes, ``at_once`` at a time; yields (name, "done" or what went wrong) as they end.

    Closing the generator stops those that still run.
    """
    waiting = list(jobs)
    running: dict[Name, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name] = _start(jobs[name])
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    yield name, "done" if process.returncode == 0 else f"failed, see {jobs[name].log}"
            time.sleep(0.5)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _start(job: Job) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with job.log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", job.module, *job.arguments], stdout=output, stderr=output, env=environment
        )
