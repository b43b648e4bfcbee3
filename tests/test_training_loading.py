"""Trained solvers that are loaded and exported, and checkpoints that hold none."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtsn.checkpoint import CheckpointError, load_state, load_tensors_of, save_checkpoint
from dtsn.data.reader import Dataset
from dtsn.training.loading import export_solver, load_solver
from short_runs import CONFIG, Whole, contents, make
from short_runs import dataset as dataset
from short_runs import whole as whole


def test_load_solver(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    run = whole("dtsn")
    trainer = make(dataset)
    trainer.restore(run / "checkpoints/step-8")
    exported = export_solver(run, tmp_path / "dtsn")
    assert sorted(os.listdir(exported)) == ["model.safetensors", "state.json"]
    frames = dataset.episode(0).observations
    uniforms = torch.rand(len(frames), 3)
    expected = trainer.solver.plan(frames, uniforms=uniforms).q
    for folder in (run, str(run), run / "checkpoints/step-8", exported):
        solver = load_solver(folder)
        assert not solver.training
        assert solver.config == CONFIG.solver
        assert torch.equal(solver.plan(frames, uniforms=uniforms).q, expected)


def test_export_replaces_no_other_folder(whole: Whole, tmp_path: Path) -> None:
    """A folder of the user's own is not for us to delete, nor is the run that is exported."""
    (tmp_path / "thesis.txt").write_text("years of work")
    run = tmp_path / "run"
    shutil.copytree(whole("qnet"), run)
    before = contents(tmp_path)
    for out in (tmp_path, run, run / "checkpoints"):
        with pytest.raises((FileExistsError, ValueError), match=str(out)):
            export_solver(run, out)
        assert contents(tmp_path) == before


def test_load_solver_that_searches_otherwise(whole: Whole) -> None:
    solver = load_solver(whole("dtsn"), act_iterations=7, act_rule="greedy")
    assert solver.act_iterations == 7
    assert solver.config == replace(CONFIG.solver, act_iterations=7, act_rule="greedy")
    with pytest.raises(ValueError, match="act_iterations must be at least 1, got 0"):
        load_solver(whole("dtsn"), act_iterations=0)
    with pytest.raises((TypeError, ValueError), match="act_iteration") as error:
        load_solver(whole("dtsn"), act_iteration=7)
    assert "does not hold a solver" not in str(error.value)  # the checkpoint is not to blame


def test_load_solver_without_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=str(folder)):
            load_solver(folder)


OF_ANOTHER_VERSION: dict[str, dict[str, Any]] = {
    "unknown field": {"config": {**asdict(CONFIG), "dropout": 0.1}},
    "unknown solver": {"config": {**asdict(CONFIG), "solver": {"name": "muzero"}}},
    "other network": {"config": {**asdict(CONFIG), "network": {"encoder": "grid", "latent": 17}}},
    "config of no fields": {"config": [1]},
    "no config": {"config": None},
    "four actions": {"num_actions": "four"},
    "negative actions": {"num_actions": -1},
    "a scalar": {"observation_shape": 3},
    "no planes": {"observation_shape": [3, 20]},
}


@pytest.mark.parametrize("kind", OF_ANOTHER_VERSION)
def test_load_solver_of_another_version(kind: str, whole: Whole, tmp_path: Path) -> None:
    path = whole("dtsn") / "checkpoints/step-8"
    state = load_state(path)
    model = load_tensors_of(path, "model", state)
    del state["files"]
    save_checkpoint(tmp_path / "other", {"model": model}, {**state, **OF_ANOTHER_VERSION[kind]})
    with pytest.raises(CheckpointError, match=str(tmp_path / "other")):
        load_solver(tmp_path / "other")
