"""What diverges: training stops or skips the step, changes no weight by it, and keeps finite checkpoints."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtsn.checkpoint import checkpoints, latest_checkpoint, load_state, load_tensors_of
from dtsn.data.reader import Dataset
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver
from dtsn.training.loop import train_run
from dtsn.training.runs import read_metrics
from dtsn.training.trainer import DivergedError
from short_runs import QNET, make, train
from short_runs import dataset as dataset


def all_finite(folder: Path) -> bool:
    found = checkpoints(folder)
    states = [load_state(path) for path in found]
    return all(
        bool(tensor.isfinite().all())
        for path, state in zip(found, states, strict=True)
        for stem in ("model", "optimizer")
        for tensor in load_tensors_of(path, stem, state).values()
    )


def test_nan_loss(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = itertools.count(1), Solver.loss

    def loss(*arguments: Any, **options: Any) -> LossTerms:
        terms = real(*arguments, **options)
        return terms if next(calls) < 5 else replace(terms, total=terms.total * math.nan)

    monkeypatch.setattr(Solver, "loss", loss)
    with pytest.raises(DivergedError, match="step 5: loss nan"):
        train(tmp_path, dataset, QNET)
    assert latest_checkpoint(tmp_path / "checkpoints") == tmp_path / "checkpoints/step-3"
    assert all_finite(tmp_path / "checkpoints")
    assert all(
        math.isfinite(value) for row in read_metrics(tmp_path / "metrics.jsonl") for value in row.values()
    )


def test_nan_gradient_changes_no_weight(dataset: Dataset) -> None:
    trainer = make(dataset, QNET)
    before = [p.clone() for p in trainer.solver.parameters()]
    next(trainer.solver.world_model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(DivergedError, match="gradient norm nan"):
        next(trainer.run(dataset))
    assert trainer.step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.solver.parameters(), strict=True))


def test_skipped_steps_change_nothing_but_end(dataset: Dataset, tmp_path: Path) -> None:
    trainer = make(dataset, replace(QNET, on_nan="skip", steps=20))
    before = [p.clone() for p in trainer.solver.parameters()]
    next(trainer.solver.world_model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    rows = []
    with pytest.raises(DivergedError, match=r"step 11 after 10 skipped steps: .*diverged"):
        rows.extend(train_run(tmp_path, trainer, dataset))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.solver.parameters(), strict=True))
    assert len(os.listdir(tmp_path / "diverged")) == 10
    assert load_state(tmp_path / "checkpoints/step-9")["skips"] == 9


@pytest.mark.parametrize("rate", [1e20, 1e37])
def test_huge_learning_rate(rate: float, dataset: Dataset, tmp_path: Path) -> None:
    config = replace(QNET, learning_rate=rate, learning_rate_warmup=0, checkpoint_every=1)
    with pytest.raises(DivergedError):
        train(tmp_path, dataset, config)
    assert all_finite(tmp_path / "checkpoints")
