"""Set up a process for training."""

from __future__ import annotations

import ctypes

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
