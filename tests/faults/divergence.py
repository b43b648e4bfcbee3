"""Losses and gradients that are not finite."""

from __future__ import annotations

import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dtsn.checkpoint import checkpoints, verified_state
from dtsn.config import SOLVERS, TrainConfig
from dtsn.data import Dataset
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver
from dtsn.training.loop import train_run
from dtsn.training.runs import read_metrics
from dtsn.training.trainer import DivergedError

from .common import TINY, Outcome, make, vectors


def not_finite(folder: Path, size: int = 120) -> Outcome:
    """NaN or infinity in the loss or in a gradient, at a random step, with both settings."""
    result, rng, path = Outcome(), random.Random(0), vectors(folder / "data.h5")
    config = replace(TINY, steps=12, checkpoint_every=2)
    with Dataset(path) as dataset:
        for number in range(size):
            run = folder / f"run-{number}"
            value = (math.nan, math.inf, -math.inf)[number % 3]
            where, on_nan = ("loss", "gradient")[number // 3 % 2], ("stop", "skip")[number // 6 % 2]
            at = rng.randint(1, config.steps)
            changed = replace(
                config, on_nan=on_nan, solver=replace(TINY.solver, name=rng.choice(list(SOLVERS)))
            )
            _diverge_one(run, dataset, changed, where, value, at, result)
            result.tried += 1
            shutil.rmtree(run)
    return result


def _diverge_one(
    run: Path, dataset: Dataset, config: TrainConfig, where: str, value: float, at: int, result: Outcome
) -> None:
    case = f"{where} {value} at step {at}, {config.on_nan}"
    trainer, real = make(dataset, config), Solver.loss

    def loss(solver: Solver, *arguments: Any, **options: Any) -> LossTerms:
        terms = real(solver, *arguments, **options)
        if trainer.step + 1 != at:
            return terms
        if where == "loss":
            return replace(terms, total=terms.total * value)
        terms.total.register_hook(lambda gradient: gradient * value)
        return terms

    Solver.loss = loss  # type: ignore[method-assign]
    rows: list[dict[str, float]] = []
    try:
        for metrics in train_run(run, trainer, dataset):
            rows.append(metrics)
        result.check(config.on_nan == "skip", f"{case}: not stopped")
        result.check([r["step"] for r in rows if "skipped" in r] == [at], f"{case}: not skipped")
        result.check(trainer.step == config.steps, f"{case}: not trained to the end")
    except DivergedError as error:
        result.check(config.on_nan == "stop", f"{case}: not skipped: {error}")
        result.check(f"step {at}:" in str(error) and "diverged" in str(error), f"{case}: {error}")
    finally:
        Solver.loss = real  # type: ignore[method-assign]
    kept = run / f"diverged/step-{at}.safetensors"
    result.check(kept.exists(), f"{case}: the batch is not kept")
    if kept.exists():
        batch = next(dataset.batches(config.batch_size, config.seed, start=at - 1))
        same = load_file(kept)
        result.check(
            all(torch.equal(same[name], tensor) for name, tensor in batch.tensors().items()),
            f"{case}: another batch",
        )
    for path in checkpoints(run / "checkpoints"):
        state = verified_state(path)
        parts = [load_file(path / name) for name in state["files"]]
        finite = all(bool(t.isfinite().all()) for part in parts for t in part.values())
        result.check(finite, f"{case}: {path.name} is not finite")
    logged = read_metrics(run / "metrics.jsonl")
    result.check(
        all(math.isfinite(v) for row in logged for v in row.values()), f"{case}: the log is not finite"
    )
