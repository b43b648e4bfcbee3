"""Environment steps a second, and what loading data costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dtsn.bench.timing import Row, interleave, milliseconds, ratio
from dtsn.data.reader import Dataset
from dtsn.envs.navigation import NavigationVectorEnv, grid_symmetries
from dtsn.envs.procgen import ProcgenOptions, ProcgenPool
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.training.trainer import Trainer


def pipeline(quick: bool) -> Iterator[Row]:
    """Time environment steps, and loading data against training on it."""
    envs = NavigationVectorEnv(256)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    times = interleave({"step": lambda: envs.step(rng.integers(4, size=256))}, 0.5 if quick else 2.0)
    yield {
        "part": "environment",
        "name": "navigation",
        "steps_per_second": round(256 / np.median(times["step"])),
    }
    yield from _procgen(quick)
    with tempfile.TemporaryDirectory() as folder:
        path = collect_navigation(Path(folder) / "navigation.h5", episodes=50)
        with Dataset(path) as dataset:
            trainer = Trainer(NAVIGATION, dataset.observation_shape, dataset.num_actions)
            trainer.step = NAVIGATION.search_warmup + NAVIGATION.search_ramp  # now with the whole search
            batches = dataset.batches(NAVIGATION.batch_size, seed=0, transform=grid_symmetries)
            batch = next(batches)
            functions = {"load": lambda: next(batches), "train": lambda: trainer.update(batch)}
            times = interleave(functions, 1.0 if quick else 4.0)
    yield {
        "part": "data",
        "name": "navigation",
        "ms": milliseconds(times),
        "load_over_train": [round(x, 4) for x in ratio(times, "load", "train")],
    }


def _procgen(quick: bool) -> Iterator[Row]:
    try:
        pool = ProcgenPool(ProcgenOptions("coinrun"), 64)
    except ImportError:  # without the extra dtsn[procgen]
        return
    pool.reset()
    rng = np.random.default_rng(0)
    times = interleave({"step": lambda: pool.step(rng.integers(15, size=64))}, 0.5 if quick else 2.0)
    rate = round(64 / np.median(times["step"]))
    yield {"part": "environment", "name": "procgen (coinrun)", "steps_per_second": rate}
