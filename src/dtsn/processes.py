"""Set up a process for training: threads, memory, signals."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dtsn.errors import UserError

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of malloc.h


def prepare(threads: int = 1) -> None:
    """Set up this process for training: its threads, and that memory which a step frees is kept for the next.

    By default glibc gives large blocks back to the system at once and gets them anew, page fault by page
    fault: a tenth of a step. Other C libraries are left as they are.
    """
    import torch

    if threads < 1:
        raise UserError(f"threads must be at least 1, got {threads}")
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
