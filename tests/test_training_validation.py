"""Validation while training: the best checkpoint is kept, and scores change nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dtsn.checkpoint import best_checkpoint, checkpoints, latest_checkpoint
from dtsn.data.reader import Dataset
from dtsn.solvers.solver import Solver
from dtsn.training.loop import train_run
from short_runs import CONFIG, QNET, Whole, make, outcome
from short_runs import dataset as dataset
from short_runs import whole as whole

SCORES = {3: 0.9, 6: 0.2, 8: 0.5}


def test_best_checkpoint_is_kept(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    config = replace(CONFIG, keep_checkpoints=1)
    trainer = make(dataset, config)
    steps = train_run(tmp_path, trainer, dataset, validate=lambda _: SCORES[trainer.step])
    shown = {row["step"]: row["validation"] for row in steps if "validation" in row}
    assert shown == SCORES
    folder = tmp_path / "checkpoints"
    assert [path.name for path in checkpoints(folder)] == ["step-3", "step-8"]
    assert best_checkpoint(folder) == folder / "step-3"
    for name in ("model.safetensors", "metrics.jsonl"):  # scoring changes nothing
        assert outcome(tmp_path)[name] == outcome(whole("dtsn"))[name]


def test_stopped_while_validating(dataset: Dataset, tmp_path: Path) -> None:
    """The step is saved without a score, and scored when the run goes on."""

    def interrupted(_: Solver) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(train_run(tmp_path, make(dataset, QNET), dataset, validate=interrupted))
    folder = tmp_path / "checkpoints"
    assert latest_checkpoint(folder) == folder / "step-3"
    assert best_checkpoint(folder) is None
    list(train_run(tmp_path, make(dataset, QNET), dataset, resume=True, validate=lambda _: 1.0))
    assert best_checkpoint(folder) == folder / "step-3"


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_score_that_is_no_number(score: float, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"step 3: the score of validate must be finite, got {score}"):
        list(train_run(tmp_path, make(dataset, QNET), dataset, validate=lambda _: score))
