"""Trackers of experiments, offline: what is logged can be found again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dtsn.training.trackers import Tracker, open_tracker

SETTINGS = {"solver": {"name": "dtsn", "iterations": 5}, "seed": 0}


def logged(name: str, folder: Path) -> None:
    run = folder / "run-7"
    own = run / name
    own.mkdir(parents=True)
    tracker: Tracker = open_tracker(name, run, own, SETTINGS)  # type: ignore[arg-type]
    for step in (20, 40):
        tracker.log({"loss": 1 / step, "q": 2.0}, step)
    tracker.close()


def test_none_writes_nothing(tmp_path: Path) -> None:
    logged("none", tmp_path)
    assert not list((tmp_path / "run-7" / "none").iterdir())


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged("wandb", tmp_path)
    (record,) = (tmp_path / "run-7" / "wandb").rglob("*.wandb")
    assert b"train/loss" in record.read_bytes()


def test_mlflow_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged("mlflow", tmp_path)
    (curve,) = (tmp_path / "run-7").rglob("metrics/train/loss")
    assert [line.split()[2] for line in curve.read_text().splitlines()] == ["20", "40"]
    (parameter,) = (tmp_path / "run-7").rglob("params/solver.iterations")
    assert parameter.read_text() == "5"


@pytest.mark.parametrize(
    ("name", "module", "title"),
    [
        ("tensorboard", "torch.utils.tensorboard", "TensorBoard"),
        ("wandb", "wandb", "Weights & Biases"),
        ("mlflow", "mlflow.tracking", "MLflow"),
    ],
)
def test_without_the_extra(
    name: str, module: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"^{title} is not installed: pip install 'dtsn\[{name}\]'$"):
        logged(name, tmp_path)
