"""Runs of a few steps on a small data set: uninterrupted, stopped after a step, and what they lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dtsn.checkpoint import latest_checkpoint
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig, TrackerName, TrainConfig
from dtsn.data.reader import Dataset
from dtsn.experts.collect import collect_navigation
from dtsn.training.loop import train_run
from dtsn.training.trainer import Trainer

STEPS = 8
CONFIG = TrainConfig(
    SolverConfig(iterations=3),
    NetworkConfig(encoder="grid", latent=16, hidden=16),
    steps=STEPS,
    batch_size=8,
    learning_rate_warmup=2,
    search_warmup=3,
    augment="grid_symmetries",
    checkpoint_every=3,
)
QNET = replace(CONFIG, solver=SolverConfig("qnet"))
each_solver = pytest.mark.parametrize("name", SOLVERS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(collect_navigation(tmp_path_factory.mktemp("training") / "data.h5", episodes=20))


def of(name: str) -> TrainConfig:
    return replace(CONFIG, solver=replace(CONFIG.solver, name=name))


def make(dataset: Dataset, config: TrainConfig = CONFIG) -> Trainer:
    return Trainer(config, dataset.observation, dataset.num_actions)


def train(
    run: Path,
    dataset: Dataset,
    config: TrainConfig = CONFIG,
    *,
    resume: bool = False,
    stop: int | None = None,
    track: TrackerName = "none",
) -> Trainer:
    """Train to the end, or close the run after a step."""
    trainer = make(dataset, config)
    steps = train_run(run, trainer, dataset, resume=resume, track=track)
    for metrics in steps:
        if metrics["step"] == stop:
            steps.close()
    return trainer


def outcome(run: Path) -> dict[str, bytes]:
    """The bytes of all that a run leads to: weights, target, optimiser state, metrics."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    return {path.name: path.read_bytes() for path in (*newest.iterdir(), run / "metrics.jsonl")}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a solver's uninterrupted training, made at first use."""
    runs: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp(name)
            train(runs[name], dataset, of(name))
        return runs[name]

    return get


Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def started(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("started")
    train(run, dataset, QNET, stop=2)
    return run
