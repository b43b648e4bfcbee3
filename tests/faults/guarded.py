"""Read a file made to harm in a child with little memory and time."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from dtsn.errors import UserError

from .common import ended, fork

MEMORY = 2**30  # what reading may take beyond what is taken already
SECONDS = 30  # of work; the machine may be busy with other things as well
WAITING = 120  # seconds in all: what waits, say for a pipe, does not work


def read_guarded(path: Path, read: Callable[[Path], object], said: Path, accept: bool = False) -> str | None:
    """What is wrong with how a bad file is refused, or ``accept``-ed; None if nothing is."""

    def work() -> None:
        signal.alarm(WAITING)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        before = resident("VmRSS")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        sys.stdin.close()
        try:
            read(path)
            problem = "" if accept else "accepted"
        except UserError as error:
            problem = "" if str(path) in str(error) and "\n\n" not in str(error) else f"unclear: {error}"
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        peak = resident("VmHWM") - before
        if peak > MEMORY:
            problem = f"took {peak >> 20} MB"
        said.write_text(json.dumps([problem, peak]))

    said.unlink(missing_ok=True)
    code = ended(fork(work))
    if code or not said.exists():
        return f"the process ended with {code}"
    return json.loads(said.read_text())[0] or None


def resident(field: str) -> int:
    """Bytes of this process in memory, now (VmRSS) or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
