"""Training from a data set: a resumable loop, and the run folder that it writes.

All randomness of a step is derived from (seed, step) and the data set is read by position, so a run that
resumes from a checkpoint ends bitwise where the uninterrupted run ends (on a CPU, same thread count).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
import torch
from safetensors.torch import save as save_tensors

import dtsn
from dtsn import checkpoint
from dtsn.batch import Batch
from dtsn.checkpoint import CheckpointError
from dtsn.config import TrainConfig
from dtsn.data.dataset import Dataset, grid_symmetries
from dtsn.settings import config_from_dict, flat
from dtsn.solvers.solver import Solver
from dtsn.storage import RunLock, replace_durably
from dtsn.training import schedule

T = TypeVar("T")
Validate = Callable[[Solver], float]  # a score of the solver as it is: higher is better

TARGET = "target_encoder."  # only training needs these parameters
MAX_SKIPS = 10  # steps in a row without a finite gradient: more of them are no accident
MAX_KEPT_BATCHES = 10
MAX_FRAME_VALUES = 1 << 24  # in an observation of a checkpoint that is to be believed
OF_KEEPING = {f"config.{name}" for name in ("checkpoint_every", "keep_checkpoints", "on_nan")}
MAY_DIFFER = OF_KEEPING | {"step", "version", "skips", "data"}  # between a checkpoint and the run after it


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
        self.skips = 0  # steps in a row that changed nothing
        self.whole = True  # not in the middle of changing weights
        self.data: str | None = None  # SHA-256 of the data set, once it is known
        self.batch: tuple[int, Batch] | None = None  # the step that was tried last, and its batch

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
            self.batch = (self.step + 1, next(batches))
            yield self.update(self.batch[1])

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimiser step; without a finite loss and gradient it is skipped or refused (`on_nan`)."""
        config, step = self.config, self.step
        self.solver.train()
        self.generator.manual_seed(int(np.random.SeedSequence([config.seed, step]).generate_state(1)[0]))
        rate = self._learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.solver.loss(
            batch,
            iterations=schedule.iterations(config, step),
            generator=self.generator,
            conservative_ramp=schedule.conservative_ramp(config, step),
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.solver.world_model.parameters(), config.gradient_clip)
        metrics = {**loss.means(), "gradient": float(norm), "learning_rate": rate}
        if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient"]):
            return self._skip(metrics)
        self.whole = False
        try:
            self.optimizer.step()
        except RuntimeError as error:  # a learning rate beyond float32
            raise DivergedError(f"step {step + 1}: {error}; try a smaller learning_rate") from error
        self.solver.update_target()
        self.step, self.skips = step + 1, 0
        self.whole = True
        return {"step": self.step, **metrics}

    def _skip(self, metrics: dict[str, float]) -> dict[str, float]:
        if self.config.on_nan == "stop" or self.skips == MAX_SKIPS:
            skipped = f" after {self.skips} skipped steps" if self.skips else ""
            raise DivergedError(
                f"step {self.step + 1}{skipped}: loss {metrics['loss']}, "
                f"gradient norm {metrics['gradient']}; try a smaller learning_rate or gradient_clip"
            )
        self.step, self.skips = self.step + 1, self.skips + 1
        return {"step": self.step, "skipped": 1.0, "learning_rate": metrics["learning_rate"]}

    def _learning_rate(self, step: int) -> float:
        config = self.config
        rise = min(1.0, (step + 1) / max(1, config.learning_rate_warmup))
        return config.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / config.steps))

    def save(self, folder: Path, validation: float | None = None) -> Path:
        """Write a checkpoint of this step below ``folder``; weights that are not finite are refused."""
        tensors = {
            "model": dict(self.solver.state_dict()),
            "optimizer": checkpoint.flatten_optimizer(self.optimizer),
        }
        if not all(bool(tensor.isfinite().all()) for part in tensors.values() for tensor in part.values()):
            raise DivergedError(f"step {self.step}: weights are not finite; try a smaller learning_rate")
        state = self._state() | ({} if validation is None else {"validation": validation})
        return checkpoint.save_checkpoint(folder / f"step-{self.step}", tensors, state)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.load_state(path)
        try:  # an older checkpoint knows less: what it does not name had the default
            config = dataclasses.asdict(config_from_dict(TrainConfig, state["config"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} does not fit this dtsn version: {error}") from error
        theirs, mine = flat(state | {"config": config}), flat(json.loads(json.dumps(self._state())))
        for name in mine:
            if name not in MAY_DIFFER and theirs.get(name) != mine[name]:
                raise CheckpointError(
                    f"{path} was trained with {name} = {theirs.get(name)}, not {mine[name]}: "
                    "use the same settings or a new run folder"
                )
        if None not in (self.data, state.get("data")) and state["data"] != self.data:
            raise CheckpointError(
                f"{path} was trained on other data (SHA-256 {str(state['data'])[:12]}…, not "
                f"{str(self.data)[:12]}…): use the same data set or a new run folder"
            )
        try:
            self.solver.load_state_dict(checkpoint.load_tensors_of(path, "model", state))
            checkpoint.restore_optimizer(self.optimizer, checkpoint.load_tensors_of(path, "optimizer", state))
            self.step, self.skips = int(state["step"]), int(state.get("skips", 0))
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit this dtsn version: {error}") from error

    def _state(self) -> dict[str, Any]:
        return {
            "version": dtsn.__version__,
            "step": self.step,
            "skips": self.skips,
            "config": dataclasses.asdict(self.config),
            "observation_shape": list(self.observation_shape),
            "num_actions": self.num_actions,
            "data": self.data,
        }


def make_solver(config: TrainConfig, observation_shape: tuple[int, ...], num_actions: int) -> Solver:
    """A fresh solver for observations of this shape."""
    if config.network.encoder == "auto" and len(observation_shape) == 3:
        raise ValueError(
            f"network.encoder is 'auto', which cannot tell maps from frames by the shape {observation_shape} "
            "alone: name one of grid, paths, nature, impala_fast, impala"
        )
    return Solver.create(
        config.solver,
        gymnasium.spaces.Box(-np.inf, np.inf, observation_shape, np.float32),
        gymnasium.spaces.Discrete(num_actions),
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
    tensors = checkpoint.load_tensors_of(folder, "model", state)
    try:
        shape, num_actions = tuple(state["observation_shape"]), state["num_actions"]
        if math.prod(shape) > MAX_FRAME_VALUES:
            raise ValueError(f"observation_shape {list(shape)} is beyond {MAX_FRAME_VALUES} values")
        if not isinstance(num_actions, int) or num_actions < 1:
            raise ValueError(f"num_actions must be a positive int, got {num_actions!r}")
        with torch.device("meta"):  # takes no memory: a checkpoint may claim more than it holds
            _check_tensors(make_solver(config, shape, num_actions).state_dict(), tensors)
        solver = make_solver(config, shape, num_actions)
        solver.load_state_dict(tensors, strict=False)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder} does not hold a solver of this dtsn version: {error}") from error
    return solver.to(device).eval()


def _check_tensors(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    """Refuse tensors that are not those of a solver; the target's may be missing."""
    for name, tensor in found.items():
        if name not in expected or expected[name].shape != tensor.shape:
            shape = list(expected[name].shape) if name in expected else "absent"
            raise ValueError(f"{name} is {list(tensor.shape)} where {shape} is expected")
    missing = [name for name in expected if name not in found and not name.startswith(TARGET)]
    if missing:
        raise ValueError(f"{missing[0]} is missing")


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


def has_run(run: Path) -> bool:
    """Whether a folder holds a training run, be it one without a checkpoint yet."""
    return (run / "config.json").exists() or bool(checkpoint.checkpoints(run / "checkpoints"))


def train_run(
    run: Path,
    trainer: Trainer,
    dataset: Dataset,
    *,
    resume: bool = False,
    validate: Validate | None = None,
) -> Iterator[dict[str, float]]:
    """Open a run folder (config, metrics, checkpoints) and train in it: yields the metrics of every step.

    The trainer is restored before this returns, and the folder is this run's alone until the generator ends.
    Closing it, as Ctrl-C does, saves a checkpoint. With `validate`, every regular checkpoint is scored, and
    the best one is kept beside the newest.
    """
    if resume and not has_run(run):
        raise FileNotFoundError(f"{run} holds no run to resume: correct the folder or leave out --resume")
    run.mkdir(parents=True, exist_ok=True)
    lock = RunLock(run)
    try:
        _open_run(run, trainer, dataset, resume)
    except BaseException:
        lock.release()
        raise
    return _locked_steps(run, trainer, dataset, validate, lock)


def _open_run(run: Path, trainer: Trainer, dataset: Dataset, resume: bool) -> None:
    folder = run / "checkpoints"
    latest = checkpoint.latest_checkpoint(folder)
    if latest is None and checkpoint.checkpoints(folder):
        raise CheckpointError(f"no checkpoint in {folder} can be read: all are damaged")
    if latest is not None and not resume:
        raise FileExistsError(f"{run} already has a training run: use --resume or another folder")
    discount, theirs = trainer.config.solver.discount, dataset.header["discount"]
    if discount != theirs:
        raise ValueError(
            f"{dataset.path} has returns discounted by {theirs:g}, but solver.discount is {discount:g}: "
            f"set solver.discount to {theirs:g}"
        )
    trainer.data = dataset.sha256
    if latest is not None:
        trainer.restore(latest)
    checkpoint.truncate_metrics(run / "metrics.jsonl", trainer.step)
    description = {
        "dtsn": dtsn.__version__,
        "data": str(dataset.path),
        "env": {"id": dataset.header["env_id"], "options": dataset.header["env_options"]},
        **dataclasses.asdict(trainer.config),
    }
    replace_durably(run / "config.json", json.dumps(description, indent=1).encode())


def _locked_steps(
    run: Path, trainer: Trainer, dataset: Dataset, validate: Validate | None, lock: RunLock
) -> Iterator[dict[str, float]]:
    try:
        yield from _logged_steps(run, trainer, dataset, validate)
    except OSError as error:  # of the log: full disks name no file
        raise OSError(f"{run}: cannot be written ({error}); the last checkpoint stands") from error
    finally:
        lock.release()


def _logged_steps(
    run: Path, trainer: Trainer, dataset: Dataset, validate: Validate | None
) -> Iterator[dict[str, float]]:
    folder, metrics_path = run / "checkpoints", run / "metrics.jsonl"
    board, logged = _tensorboard(run), trainer.step
    with metrics_path.open("a") as log:
        try:
            if validate is not None and trainer.step and _is_due(trainer) and not _is_scored(folder):
                _save(folder, trainer, validate)  # a run that was stopped while validating makes up for it
            for metrics in trainer.run(dataset):
                log.write(json.dumps(metrics) + "\n")
                logged = trainer.step
                if "skipped" in metrics:
                    _keep_batch(run, trainer)
                if _is_due(trainer):
                    log.flush()
                    metrics |= _save(folder, trainer, validate)
                if board is not None and (trainer.step % 20 == 0 or "validation" in metrics):
                    for name, value in metrics.items():
                        board.add_scalar(f"train/{name}", value, trainer.step)
                yield metrics
        except (GeneratorExit, KeyboardInterrupt):
            log.flush()
            newest = checkpoint.latest_checkpoint(folder)
            saved = int(checkpoint.load_state(newest)["step"]) if newest else 0
            if not trainer.whole or trainer.step != logged:
                # Stopped within a step: the last checkpoint stands, and the log ends where it does.
                checkpoint.truncate_metrics(metrics_path, saved)
            elif trainer.step != saved:
                trainer.save(folder)
            raise
        except DivergedError as error:
            raise DivergedError(f"{error}; {_keep_batch(run, trainer)}") from error
        finally:
            if board is not None:
                board.close()


def _is_due(trainer: Trainer) -> bool:
    return trainer.step % trainer.config.checkpoint_every == 0 or trainer.step == trainer.config.steps


def _is_scored(folder: Path) -> bool:
    newest = checkpoint.latest_checkpoint(folder)
    return newest is not None and checkpoint.load_state(newest).get("validation") is not None


def _save(folder: Path, trainer: Trainer, validate: Validate | None) -> dict[str, float]:
    """Score and save a step, and prune; returns the score as a metric, if there is one."""
    score = None if validate is None else float(validate(trainer.solver))
    if score is not None and not math.isfinite(score):
        raise ValueError(f"step {trainer.step}: validate gave {score}; a score must be finite")
    trainer.save(folder, score)
    checkpoint.prune_checkpoints(folder, trainer.config.keep_checkpoints)
    return {} if score is None else {"validation": score}


def _keep_batch(run: Path, trainer: Trainer) -> str:
    """Write the batch that led to no finite gradient, for inspection; says where it is."""
    assert trainer.batch is not None
    step, batch = trainer.batch
    folder = run / "diverged"
    path = folder / f"step-{step}.safetensors"  # named as the fields of `Batch`
    try:
        folder.mkdir(exist_ok=True)
        if path.exists() or len(list(folder.iterdir())) < MAX_KEPT_BATCHES:
            tensors = {name: tensor.contiguous() for name, tensor in vars(batch.to("cpu")).items()}
            replace_durably(path, save_tensors(tensors))
    except OSError as error:
        return f"its batch could not be saved ({error})"
    return f"its batch is in {path}" if path.exists() else f"earlier batches are in {folder}"


def _tensorboard(run: Path) -> Any:
    """A TensorBoard writer, or None where ``dtsn[tensorboard]`` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"))
