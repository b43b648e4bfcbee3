"""The paper's runtime table: time and peak memory of a training step on 64×64 frames."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import numpy as np
import torch

from dtsn.batch import Batch
from dtsn.bench.timing import Row, interleave, ratio
from dtsn.config import NetworkConfig, SolverConfig
from dtsn.solvers.solver import Solver

# name -> (solver, the paper's milliseconds a step); 2080 Ti, batch 256.
RUNTIME_TABLE = {
    "Q-network": (SolverConfig("qnet"), 43),
    "TreeQN (depth 2)": (SolverConfig("treeqn", depth=2), 357),
    "TreeQN (depth 3)": (SolverConfig("treeqn", depth=3), None),
    "D-TSN (T=5)": (SolverConfig("dtsn", iterations=5), 153),
    "D-TSN (T=10)": (SolverConfig("dtsn", iterations=10), 294),
}

DEPTHS = (1, 50, 100, 200)  # T at which D-TSN's memory is measured


def frames_step(config: SolverConfig, precision: str = "float32", batch: int = 256) -> Callable[[], object]:
    """Return a training step, forward and backward, on 64×64 frames: A=15, Nature encoder, latent 256."""
    space = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
    network = NetworkConfig(encoder="nature", latent=256, hidden=256, precision=precision)  # type: ignore[arg-type]
    solver = Solver.create(config, space, gymnasium.spaces.Discrete(15), network=network, seed=0)
    rng = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (2, batch, 3, 64, 64), dtype=torch.uint8, generator=rng)
    data = Batch(
        observation=frames[0],
        action=torch.randint(15, (batch,), generator=rng),
        reward=torch.randn(batch, generator=rng),
        q_target=torch.randn(batch, generator=rng),
        next_observation=frames[1],
        terminated=torch.zeros(batch, dtype=torch.bool),
    )

    def step() -> None:
        solver.zero_grad()
        solver.loss(data).total.backward()  # type: ignore[no-untyped-call]

    return step


def peak_memory(config: SolverConfig, batch: int = 256) -> tuple[float, float]:
    """Measure the peak resident memory in GB of a process that makes one training step, and its seconds."""
    torch.set_num_threads(1)
    step, start = frames_step(config, batch=batch), time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    # Not getrusage: its peak is inherited from the parent that started this process.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9, seconds


def runtime_table(quick: bool) -> Iterator[Row]:
    """Time the paper's runtime table: training steps of the solvers on 64×64 frames."""
    names = [name for name in RUNTIME_TABLE if name != "TreeQN (depth 3)"]  # too slow to repeat
    steps = {name: frames_step(RUNTIME_TABLE[name][0]) for name in names}
    steps["bfloat16"] = frames_step(RUNTIME_TABLE["D-TSN (T=10)"][0], "bfloat16")
    times = interleave(steps, 0, 2 if quick else 5)
    # A fresh process each: the peak of a process never falls again.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {name: pool.apply(peak_memory, [config]) for name, (config, _) in RUNTIME_TABLE.items()}
        deep = {t: pool.apply(peak_memory, [SolverConfig("dtsn", iterations=t), 32])[0] for t in DEPTHS}
    ratios = {
        "dtsn10_over_qnet": ratio(times, "D-TSN (T=10)", "Q-network"),
        "treeqn2_over_dtsn10": ratio(times, "TreeQN (depth 2)", "D-TSN (T=10)"),
        "treeqn3_peak_gb": (memory["TreeQN (depth 3)"][0], 0.0),
    }
    for name, (_, paper) in RUNTIME_TABLE.items():
        peak, once = memory[name]
        seconds = float(np.median(times[name])) if name in times else once
        yield {
            "part": "runtime",
            "solver": name,
            "seconds": round(seconds, 3),
            "over_qnet": round(seconds / float(np.median(times["Q-network"])), 2),
            "paper_over_qnet": None if paper is None else round(paper / 43, 2),
            "peak_gb": round(peak, 2),
            "ratios": ratios,
        }
    yield {
        "part": "memory",
        "batch": 32,
        "iterations": list(DEPTHS),
        "peak_gb": [round(gb, 2) for gb in deep.values()],
    }
    yield {
        "part": "precision",
        "solver": "D-TSN (T=10)",
        "seconds": round(float(np.median(times["bfloat16"])), 3),
        "float32_over_bfloat16": round(ratio(times, "D-TSN (T=10)", "bfloat16")[0], 2),
    }
