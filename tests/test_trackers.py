"""Trackers of experiments, offline: what is logged can be found again."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dtsn.data.reader import Dataset
from dtsn.training.trackers import Tracker, open_tracker
from short_runs import QNET, train
from short_runs import dataset as dataset

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
    until = time.monotonic() + 30  # a process of wandb's own writes it
    while b"train/loss" not in record.read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    assert b"train/loss" in record.read_bytes()


def test_mlflow_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged("mlflow", tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path / 'run-7' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dtsn")
    (run,) = client.search_runs([experiment.experiment_id])
    curve = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in curve] == [(20, 1 / 20), (40, 1 / 40)]
    assert run.data.params["solver.iterations"] == "5"
    assert run.info.status == "FINISHED"


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


def test_tensorboard(dataset: Dataset, tmp_path: Path) -> None:
    train(tmp_path, dataset, replace(QNET, steps=20, batch_size=1), track="tensorboard")
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()


def test_without_tensorboard(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train(tmp_path / "none", dataset, replace(QNET, steps=1))
    assert sorted(os.listdir(tmp_path / "none")) == ["checkpoints", "config.json", "metrics.jsonl"]
    with pytest.raises(
        ImportError, match=r"^TensorBoard is not installed: pip install 'dtsn\[tensorboard\]'$"
    ):
        train(tmp_path / "board", dataset, replace(QNET, steps=1), track="tensorboard")
