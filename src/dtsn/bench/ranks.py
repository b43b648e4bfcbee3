"""Whether training depends on the number of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import load_file
from torch import Tensor

from dtsn.bench.timing import Row
from dtsn.experts.collect import collect_navigation

STEPS, BATCH, ITERATIONS = 100, 16, 4


def processes_against_one(quick: bool) -> Iterator[Row]:
    """Compare the weights after training by two processes and by one."""
    if quick:
        return  # half a minute, most of it for starting processes
    with TemporaryDirectory() as folder:
        data = collect_navigation(Path(folder) / "data.h5", episodes=20)
        two, one = (train(data, Path(folder) / f"run-{count}", count) for count in (2, 1))
    differences = {name: float((two[name] - one[name]).abs().max()) for name in one}
    worst = max(differences, key=lambda name: differences[name])
    yield {
        "part": "processes",
        "steps": STEPS,
        "batch": BATCH,
        "iterations": ITERATIONS,
        "parameters": sum(tensor.numel() for tensor in one.values()),
        "largest_difference": differences[worst],
        "of": worst,
        "ratios": {"ddp2_weights_difference": (differences[worst], 0.0)},
    }


def train(data: Path, run: Path, count: int) -> dict[str, Tensor]:
    """Train a small D-TSN on Navigation with ``count`` processes, as a user would; return its weights."""
    settings = {
        "run": run,
        "steps": STEPS,
        "batch-size": BATCH,
        "search-warmup": 10,
        "search-ramp": 20,
        "solver.iterations": ITERATIONS,
        "device": "cpu",
    }
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += ["-m", "--", "dtsn", "train", str(data)]
    command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"training by {count} processes failed:\n{ended.stdout}{ended.stderr}")
    return load_file(run / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
