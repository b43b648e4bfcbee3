"""Times of functions called in turn in one process, their ratios, and the machine they were measured on.

Times of a shared machine mean little; the ratio of two functions called in turn means much more. Every ratio
is the median over rounds, its spread the middle half of the rounds.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dtsn

Row = dict[str, Any]  # one line of a result
Times = dict[str, np.ndarray]  # name -> seconds of every round


def interleave(
    functions: dict[str, Callable[[], object]], seconds: float, rounds: int = 3, calls: int = 1
) -> Times:
    """Call the functions in turn, for ``seconds`` and at least ``rounds`` times, after a call to warm up.

    A turn is so many ``calls`` in a row, and its time that of one of them.
    """
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    end, done = time.perf_counter() + seconds, 0
    while done < rounds or time.perf_counter() < end:
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - start) / calls)
        done += 1
    return {name: np.array(values) for name, values in times.items()}


def ratio(times: Times, above: str, below: str) -> tuple[float, float]:
    """Return the median over rounds of one time by another, and the width of the middle half."""
    quotients = times[above] / times[below]
    low, middle, high = np.quantile(quotients, [0.25, 0.5, 0.75])
    return float(middle), float(high - low)


def milliseconds(times: Times) -> dict[str, float]:
    """Return the medians."""
    return {name: round(1000 * float(np.median(values)), 3) for name, values in times.items()}


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    return {
        "processor": models[0].split(":")[1].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dtsn": dtsn.__version__,
    }
