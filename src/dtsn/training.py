"""Training from a data set: a resumable loop, and the run folder that it writes.

All randomness of a step is derived from (seed, step) and the data set is read by position, so a run that
resumes from a checkpoint ends bitwise where the uninterrupted run ends (same thread count).
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
import torch

import dtsn
from dtsn import checkpoint
from dtsn.batch import Batch
from dtsn.checkpoint import CheckpointError
from dtsn.config import TrainConfig
from dtsn.data import Dataset, grid_symmetries
from dtsn.solvers import Solver

T = TypeVar("T")
TARGET = "target_encoder."  # only training needs these parameters


class DivergedError(ArithmeticError):
    """The loss or its gradient is no longer finite; the last checkpoint is still good."""


class Trainer:
    """A solver, its optimiser and the number of steps they have made."""

    def __init__(
        self, config: TrainConfig, observation_shape: tuple[int, ...], num_actions: int, device: str = "cpu"
    ):
        self.config, self.device = config, torch.device(device)
        self.observation_shape, self.num_actions = observation_shape, num_actions
        self.solver = make_solver(config, observation_shape, num_actions).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.solver.world_model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.generator = torch.Generator(self.device)
        self.step = 0
        self.whole = True  # not in the middle of changing weights

    def run(self, dataset: Dataset) -> Iterator[dict[str, float]]:
        """Train to the last step; yields each step's metrics once it is done."""
        transform = grid_symmetries if self.config.augment == "grid_symmetries" else None
        batches = dataset.batches(
            self.config.batch_size,
            self.config.seed,
            start=self.step,
            device=str(self.device),
            transform=transform,
        )
        while self.step < self.config.steps:
            yield self.update(next(batches))

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimiser step."""
        config, step = self.config, self.step
        self.solver.train()
        self.generator.manual_seed(int(np.random.SeedSequence([config.seed, step]).generate_state(1)[0]))
        rate = self._learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.solver.loss(
            batch, iterations=1 if step < config.search_warmup else None, generator=self.generator
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.solver.world_model.parameters(), config.gradient_clip)
        metrics = {**loss.means(), "gradient": float(norm), "learning_rate": rate}
        if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient"]):
            raise DivergedError(
                f"step {step + 1}: loss {metrics['loss']}, gradient norm {metrics['gradient']}; "
                "try a smaller learning_rate or gradient_clip"
            )
        self.whole = False
        try:
            self.optimizer.step()
        except RuntimeError as error:  # a learning rate beyond float32
            raise DivergedError(f"step {step + 1}: {error}; try a smaller learning_rate") from error
        self.solver.update_target()
        self.step += 1
        self.whole = True
        return {"step": self.step, **metrics}

    def _learning_rate(self, step: int) -> float:
        config = self.config
        rise = min(1.0, (step + 1) / max(1, config.learning_rate_warmup))
        return config.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / config.steps))

    def save(self, folder: Path) -> Path:
        """Write a checkpoint of this step below ``folder``; weights that are not finite are refused."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.solver.parameters()):
            raise DivergedError(f"step {self.step}: weights are not finite; try a smaller learning_rate")
        tensors = {
            "model": dict(self.solver.state_dict()),
            "optimizer": checkpoint.flatten_optimizer(self.optimizer),
        }
        return checkpoint.save_checkpoint(folder / f"step-{self.step}", tensors, self._state())

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.load_state(path)
        theirs, mine = _flat(state), _flat(json.loads(json.dumps(self._state())))
        for name in mine:
            if name not in ("step", "version") and theirs.get(name) != mine[name]:
                raise CheckpointError(
                    f"{path} was trained with {name} = {theirs.get(name)}, not {mine[name]}: "
                    "use the same settings or a new run folder"
                )
        self.solver.load_state_dict(checkpoint.load_tensors_of(path, "model", state))
        checkpoint.restore_optimizer(self.optimizer, checkpoint.load_tensors_of(path, "optimizer", state))
        self.step = int(state["step"])

    def _state(self) -> dict[str, Any]:
        return {
            "version": dtsn.__version__,
            "step": self.step,
            "config": dataclasses.asdict(self.config),
            "observation_shape": list(self.observation_shape),
            "num_actions": self.num_actions,
        }


def make_solver(config: TrainConfig, observation_shape: tuple[int, ...], num_actions: int) -> Solver:
    """A fresh solver for observations of this shape."""
    return Solver.create(
        config.solver.name,
        gymnasium.spaces.Box(-np.inf, np.inf, observation_shape, np.float32),
        gymnasium.spaces.Discrete(num_actions),
        config=config.solver,
        network=config.network,
        seed=config.seed,
    )


def load_solver(folder: str | Path, device: str = "cpu", **search: Any) -> Solver:
    """A trained solver from a checkpoint or a run folder (its newest checkpoint), ready to act.

    ``search`` overrides fields of its :class:`SolverConfig`, e.g. ``act_iterations=50``.
    """
    folder = _checkpoint_of(Path(folder))
    state = checkpoint.load_state(folder)
    try:
        config = config_from_dict(TrainConfig, state["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} does not hold a solver of this dtsn version: {error}") from error
    config = dataclasses.replace(config, solver=dataclasses.replace(config.solver, **search))
    try:
        solver = make_solver(config, tuple(state["observation_shape"]), state["num_actions"])
        missing, unexpected = solver.load_state_dict(
            checkpoint.load_tensors_of(folder, "model", state), strict=False
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder} does not hold a solver of this dtsn version: {error}") from error
    wrong = [*unexpected, *(name for name in missing if not name.startswith(TARGET))]
    if wrong:
        raise CheckpointError(f"{folder} does not fit this dtsn version: {wrong[0]}")
    return solver.to(device).eval()


def export_solver(run: Path, out: Path) -> Path:
    """Write the solver of a run alone: what it takes to act, not to go on training."""
    if out.exists():
        raise FileExistsError(f"{out} already exists: choose another folder")
    folder = _checkpoint_of(run)
    state = checkpoint.load_state(folder)
    model = checkpoint.load_tensors_of(folder, "model", state)
    acting = {name: tensor for name, tensor in model.items() if not name.startswith(TARGET)}
    kept = {name: value for name, value in state.items() if name not in ("format", "format_version", "files")}
    return checkpoint.save_checkpoint(out, {"model": acting}, kept)


def _checkpoint_of(folder: Path) -> Path:
    """The folder itself if it is a checkpoint, else the newest one of a run."""
    if (folder / "state.json").exists():
        return folder
    newest = checkpoint.latest_checkpoint(folder / "checkpoints")
    if newest is None:
        raise CheckpointError(f"{folder} is neither a checkpoint nor a run folder with one")
    return newest


# --- the run folder ----------------------------------------------------------------------------------


def train_run(
    run: Path, trainer: Trainer, dataset: Dataset, *, resume: bool = False
) -> Iterator[dict[str, float]]:
    """Open a run folder (config, metrics, checkpoints) and train in it: yields the metrics of every step.

    The trainer is restored before this returns. Closing the generator, as Ctrl-C does, saves a checkpoint.
    """
    config = trainer.config
    folder, metrics_path = run / "checkpoints", run / "metrics.jsonl"
    latest = checkpoint.latest_checkpoint(folder)
    if latest is None and checkpoint.checkpoints(folder):
        raise CheckpointError(f"no checkpoint in {folder} can be read: all are damaged")
    if latest is not None and not resume:
        raise FileExistsError(f"{run} already has a training run: use --resume or another folder")
    run.mkdir(parents=True, exist_ok=True)
    if latest is not None:
        trainer.restore(latest)
    _truncate_metrics(metrics_path, trainer.step)
    description = {"dtsn": dtsn.__version__, "data": str(dataset.path), **dataclasses.asdict(config)}
    checkpoint.replace_durably(run / "config.json", json.dumps(description, indent=1).encode())
    return _logged_steps(run, trainer, dataset)


def _logged_steps(run: Path, trainer: Trainer, dataset: Dataset) -> Iterator[dict[str, float]]:
    config, folder, metrics_path = trainer.config, run / "checkpoints", run / "metrics.jsonl"
    board, logged = _tensorboard(run), trainer.step
    with metrics_path.open("a") as log:
        try:
            for metrics in trainer.run(dataset):
                log.write(json.dumps(metrics) + "\n")
                logged = trainer.step
                if board is not None and trainer.step % 20 == 0:
                    for name, value in metrics.items():
                        board.add_scalar(f"train/{name}", value, trainer.step)
                if trainer.step % config.checkpoint_every == 0 or trainer.step == config.steps:
                    log.flush()
                    trainer.save(folder)
                    checkpoint.prune_checkpoints(folder, config.keep_checkpoints)
                yield metrics
        except (GeneratorExit, KeyboardInterrupt):
            log.flush()
            if trainer.step and trainer.whole and trainer.step == logged:
                trainer.save(folder)
            else:  # stopped within a step: the last checkpoint stands, and the log ends where it does
                newest = checkpoint.latest_checkpoint(folder)
                _truncate_metrics(metrics_path, checkpoint.load_state(newest)["step"] if newest else 0)
            raise
        finally:
            if board is not None:
                board.close()


def _tensorboard(run: Path) -> Any:
    """A TensorBoard writer, or None where ``dtsn[tensorboard]`` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a ``metrics.jsonl``; a half-written last line is passed over."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _truncate_metrics(path: Path, step: int) -> None:
    """Forget what was logged after the checkpoint: those steps will be made again."""
    rows = [row for row in (read_metrics(path) if path.exists() else []) if row["step"] <= step]
    checkpoint.replace_durably(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``{"config.solver.iterations": 10, ...}``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def config_from_dict(cls: type[T], values: dict[str, Any]) -> T:
    """A nested configuration dataclass from plain JSON; unknown fields are errors."""
    hints = typing.get_type_hints(cls)
    unknown = set(values) - set(hints)
    if unknown:
        raise TypeError(f"{cls.__name__} has no field {sorted(unknown)[0]!r}")
    return cls(
        **{
            name: config_from_dict(hints[name], value) if dataclasses.is_dataclass(hints[name]) else value
            for name, value in values.items()
        }
    )
