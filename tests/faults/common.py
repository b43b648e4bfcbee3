"""What the faults share: a small data set, short runs, and children that can be killed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dtsn.config import NetworkConfig, SolverConfig, TrainConfig
from dtsn.data import Dataset, DatasetWriter, Episode
from dtsn.training.loop import train_run
from dtsn.training.runs import RunFolder
from dtsn.training.trainer import Trainer

ROOT = Path(__file__).parents[2]

TINY = TrainConfig(
    SolverConfig(iterations=3),
    NetworkConfig(encoder="mlp", latent=8, hidden=8),
    steps=30,
    batch_size=8,
    learning_rate_warmup=2,
    search_warmup=3,
    checkpoint_every=1,
)


@dataclass
class Outcome:
    """What a test tried, what failed, and what else is worth knowing."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self, right: object, failure: str) -> None:
        if not right:
            self.failures.append(failure)


def vectors(path: Path, seed: int = 0, episodes: int = 20) -> Path:
    """A data set of short vectors, for steps that take milliseconds."""
    rng = np.random.default_rng(seed)
    with DatasetWriter(
        path,
        env_id="test/Vectors-v0",
        env_options={},
        num_actions=3,
        observation_shape=(4,),
        observation_dtype=np.float32,
    ) as writer:
        for level in range(episodes):
            frames = rng.normal(size=(16, 4)).astype(np.float32)
            writer.add_episode(Episode(frames, rng.integers(3, size=15), rng.normal(size=15), True, level))
    return path


def make(dataset: Dataset, config: TrainConfig) -> Trainer:
    return Trainer(config, dataset.observation, dataset.num_actions)


def train(
    run: Path, dataset: Dataset, config: TrainConfig, stop: int | None = None, **options: Any
) -> Trainer:
    """Train in a folder, from where it stands, to the end or to a step."""
    trainer = make(dataset, config)
    steps = train_run(run, trainer, dataset, resume=RunFolder(run).exists(), **options)
    for metrics in steps:
        if metrics["step"] == stop:
            steps.close()  # type: ignore[attr-defined]
    return trainer


def outcome(run: Path) -> dict[str, bytes]:
    """The bytes of all that a run leads to."""
    newest = RunFolder(run).newest()
    assert newest is not None, run
    return {path.name: path.read_bytes() for path in (*newest.iterdir(), run / "metrics.jsonl")}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def leftovers(folder: Path) -> list[str]:
    return [str(p) for p in folder.rglob("*") if p.name.endswith((".partial", ".tmp", ".old", ".pruned"))]


def fork(work: Callable[[], None], errors: Path | None = None) -> int:
    """Run ``work`` in a child: a prepared process, which spares the imports; 0 if it returns, else 1."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        if errors is not None:
            errors.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def without_tensorboard() -> Iterator[None]:
    """Event files by the thousand are of no interest here."""
    name = "torch.utils.tensorboard"
    before = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
