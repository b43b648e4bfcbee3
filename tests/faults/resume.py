"""A run that was stopped ends where the uninterrupted one ends, to the last bit."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import torch

from dtsn.checkpoint import latest_checkpoint
from dtsn.config import SOLVERS, NetworkConfig, TrainConfig
from dtsn.data import Dataset
from dtsn.experts.collect import collect_navigation
from dtsn.solvers.solver import Solver
from dtsn.training.loop import train_run
from dtsn.training.runs import read_metrics

from .common import TINY, Outcome, contents, make, outcome, train, vectors


def resume(folder: Path, size: int = 200) -> Outcome:
    """Stop after every step of ``size``: each checkpoint is the uninterrupted run's, bitwise."""
    result = Outcome()
    path = collect_navigation(folder / "data.h5", episodes=20)
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    for name in SOLVERS:
        solver = replace(TINY.solver, name=name)
        config = replace(TINY, solver=solver, network=network, steps=size, augment="grid_symmetries")
        with Dataset(path) as dataset:
            whole, run, expected = folder / f"whole-{name}", folder / f"run-{name}", {}
            trainer = make(dataset, config)
            for metrics in train_run(whole, trainer, dataset, validate=_score):
                expected[trainer.step] = contents(whole / f"checkpoints/step-{trainer.step}"), metrics
        for step in range(1, size + 1):
            with Dataset(path) as dataset:
                trainer = train(run, dataset, config, stop=step, validate=_score)
            newest = latest_checkpoint(run / "checkpoints")
            result.tried += 1
            result.check(
                trainer.step == step and newest is not None and contents(newest) == expected[step][0],
                f"{name} stopped after step {step} differs",
            )
        result.check(outcome(run) == outcome(whole), f"{name}: metrics differ")
        result.check(
            [row["loss"] for row in read_metrics(run / "metrics.jsonl")]
            == [m["loss"] for _, m in expected.values()],
            f"{name}: losses differ",
        )
    return result


def _score(solver: Solver) -> float:
    """Of no meaning, but of these weights."""
    return float(next(solver.parameters()).detach().double().abs().mean())


def same_seed(folder: Path, size: int = 1000) -> Outcome:
    """Two processes, each solver, one thread: the same bytes."""
    result, path = Outcome(), vectors(folder / "data.h5")
    for name in SOLVERS:
        config = replace(
            TINY, solver=replace(TINY.solver, name=name), steps=size, checkpoint_every=max(1, size // 4)
        )
        runs = [folder / f"{name}-{number}" for number in (1, 2)]
        for number, run in enumerate(runs):
            os.environ["PYTHONHASHSEED"] = str(number)  # another order of sets
            process = multiprocessing.get_context("spawn").Process(
                target=_train_apart, args=(run, path, config)
            )
            process.start()
            process.join()
        result.tried += 1
        result.check(outcome(runs[0]) == outcome(runs[1]), f"{name}: two runs of a seed differ")
    os.environ.pop("PYTHONHASHSEED")
    return result


def _train_apart(run: Path, path: Path, config: TrainConfig) -> None:
    torch.set_num_threads(1)
    with Dataset(path) as dataset:
        train(run, dataset, config)
