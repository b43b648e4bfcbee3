"""Train in a run folder: resume, log, score, save and prune."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from dtsn.config import TrackerName, TrainConfig
from dtsn.data.reader import Dataset
from dtsn.errors import UserError
from dtsn.solvers.solver import Solver
from dtsn.storage import replace_durably
from dtsn.training.ranks import PeerError
from dtsn.training.runs import RunFolder
from dtsn.training.trackers import Tracker, open_tracker
from dtsn.training.trainer import DivergedError, Trainer

Validate = Callable[[Solver], float]  # a score of the solver as it is: higher is better

MAX_KEPT_BATCHES = 10
TRACK_EVERY = 20  # steps between two points of a tracker's curves


def has_run(run: str | Path) -> bool:
    """Tell whether a folder holds a training run, be it one without a checkpoint yet."""
    return RunFolder(run).exists()


def train_run(
    run: str | Path,
    trainer: Trainer,
    dataset: Dataset,
    *,
    resume: bool = False,
    validate: Validate | None = None,
    track: TrackerName = "none",
) -> Generator[dict[str, float], None, None]:
    """Train in a run folder: yields the metrics of every step.

    The trainer is restored before this returns, and the folder is this run's alone until the generator ends.
    Closing it, as Ctrl-C does, saves a checkpoint. Of several processes the first alone uses the folder,
    validates and tracks; every one must read the generator to its end.

    Args:
        run: the folder, which gets config.json, metrics.jsonl and checkpoints/.
        trainer: fresh, or of the settings that the run was begun with; ``steps`` may be more.
        dataset: to learn from; the one that the run was begun with.
        resume: go on with the run that is there, from its newest checkpoint.
        validate: scores every regular checkpoint, and the best one is kept beside the newest.
        track: where metrics go besides metrics.jsonl: tensorboard, wandb or mlflow.

    Returns:
        A generator that trains as it is read: the metrics of each step by name.
    """
    _check_discount(trainer.config, dataset)
    trainer.data = dataset.sha256
    if not trainer.ranks.first:
        trainer.start_together()
        return trainer.run(dataset)
    folder = RunFolder(run).open(resume)
    try:
        newest = folder.newest()
        if newest is not None:
            trainer.restore(newest)
        environment = {"id": dataset.header["env_id"], "options": dataset.header["env_options"]}
        settings = {"data": str(dataset.path), "env": environment, **dataclasses.asdict(trainer.config)}
        tracker = _tracker(track, folder, settings)
        folder.start(settings, trainer.step)
        trainer.start_together()
    except BaseException:
        folder.close()
        raise
    return _steps(folder, trainer, dataset, validate, tracker)


def _check_discount(config: TrainConfig, dataset: Dataset) -> None:
    mine, theirs = config.solver.discount, dataset.header["discount"]
    if mine != theirs:
        raise UserError(
            f"solver.discount must be {theirs:g}, by which the returns of {dataset.path} are discounted, "
            f"got {mine:g}"
        )


def _steps(
    folder: RunFolder, trainer: Trainer, dataset: Dataset, validate: Validate | None, tracker: Tracker
) -> Generator[dict[str, float], None, None]:
    with folder:
        logged = trainer.step
        try:
            if validate is not None and trainer.step and _is_due(trainer) and not _is_scored(folder):
                _save(folder, trainer, validate)  # a run that was stopped while validating makes up for it
            for metrics in trainer.run(dataset):
                folder.log(metrics)
                logged = trainer.step
                if "skipped" in metrics:
                    _keep_batch(folder, trainer)
                if _is_due(trainer):
                    metrics |= _save(folder, trainer, validate)
                if trainer.step % TRACK_EVERY == 0 or "validation" in metrics:
                    tracker.log(metrics, trainer.step)
                yield metrics
        except (GeneratorExit, KeyboardInterrupt, PeerError):
            _save_on_interrupt(folder, trainer, logged)
            raise
        except DivergedError as error:
            raise DivergedError(f"{error}; {_keep_batch(folder, trainer)}") from error
        finally:
            tracker.close()


def _is_due(trainer: Trainer) -> bool:
    return trainer.step % trainer.config.checkpoint_every == 0 or trainer.step == trainer.config.steps


def _is_scored(folder: RunFolder) -> bool:
    return (folder.newest_state() or {}).get("validation") is not None


def _save(folder: RunFolder, trainer: Trainer, validate: Validate | None) -> dict[str, float]:
    """Score and save a step, and prune; returns the score as a metric, if there is one."""
    score = None
    if validate is not None:
        with trainer.ranks.interruptible():
            score = float(validate(trainer.solver))
    if score is not None and not math.isfinite(score):
        raise UserError(f"step {trainer.step}: the score of validate must be finite, got {score}")
    folder.save(*trainer.snapshot(score))
    folder.prune(trainer.config.keep_checkpoints)
    return {} if score is None else {"validation": score}


def _save_on_interrupt(folder: RunFolder, trainer: Trainer, logged: int) -> None:
    saved = int((folder.newest_state() or {"step": 0})["step"])
    if not trainer.weights_consistent or trainer.step != logged:
        # Stopped within a step: the last checkpoint stands, and the log ends where it does.
        folder.forget_after(saved)
    elif trainer.step != saved:
        folder.save(*trainer.snapshot())


def _keep_batch(folder: RunFolder, trainer: Trainer) -> str:
    """Write the batch that led to no finite gradient, for inspection; says where it is."""
    assert trainer.batch is not None
    step, batch = trainer.batch
    kept = folder.path / "diverged"
    path = kept / f"step-{step}.safetensors"  # named as the fields of `Batch`
    try:
        folder.folder(kept.name)
        if path.exists() or len(list(kept.iterdir())) < MAX_KEPT_BATCHES:
            tensors = {name: tensor.contiguous() for name, tensor in batch.to("cpu").tensors().items()}
            replace_durably(path, save_tensors(tensors))
    except OSError as error:
        return f"its batch could not be saved ({error})"
    return f"its batch is in {path}" if path.exists() else f"earlier batches are in {kept}"


def _tracker(name: TrackerName, folder: RunFolder, settings: dict[str, Any]) -> Tracker:
    own = folder.path if name == "none" else folder.folder(name)
    return open_tracker(name, folder.path, own, settings)
