"""Train a solver from a data set, step by step, resumably.

All randomness of a step is derived from (seed, step) and the data set is read by position, so a run that
resumes from a checkpoint ends bitwise where the uninterrupted run ends (on a CPU, same thread count). Several
processes (`dtsn.training.ranks`) share the rows of each batch and end where one does, but for rounding.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import dtsn
from dtsn import checkpoint
from dtsn.batch import Batch
from dtsn.checkpoint import CheckpointError
from dtsn.config import Augmentation, TrainConfig
from dtsn.data.format import ObservationSpec
from dtsn.data.reader import Dataset
from dtsn.data.sampling import Transform
from dtsn.envs.navigation import grid_symmetries
from dtsn.errors import UserError
from dtsn.models.known import KnownModel
from dtsn.models.world_model import WorldModel
from dtsn.settings import config_from_dict, difference, flat, plain
from dtsn.training import schedule
from dtsn.training.loading import describe_observation, make_solver
from dtsn.training.ranks import ParallelLoss, Ranks

MAX_SKIPS = 10  # steps in a row without a finite gradient: more of them are no accident
AUGMENTATIONS: dict[Augmentation, Transform | None] = {"none": None, "grid_symmetries": grid_symmetries}
CHECKPOINT_SETTINGS = {f"config.{name}" for name in ("checkpoint_every", "keep_checkpoints", "on_nan")}
# Between a checkpoint and the run after it. More steps prolong a run: its learning rate then follows the
# cosine of the new total from the step where it resumes.
RESUME_MAY_CHANGE = CHECKPOINT_SETTINGS | {"config.steps", "step", "version", "skips", "data"}


class DivergedError(UserError, ArithmeticError):
    """The loss or its gradient is no longer finite; the last checkpoint is still good."""


class Trainer:
    """A solver, its optimiser and the number of steps they have made.

    Args:
        config: every number of the run.
        observation: what one observation looks like (``Dataset.observation``), or its bare shape, without
            B, where ``config.network.encoder`` is named.
        num_actions: A.
        device: where to train.
        world_model: your own, instead of the one that ``config.network`` describes; with fresh weights.
        ranks: this process among those that train the run together; the only one if not given.
    """

    def __init__(
        self,
        config: TrainConfig,
        observation: ObservationSpec | tuple[int, ...],
        num_actions: int,
        device: str = "cpu",
        world_model: WorldModel | KnownModel | None = None,
        ranks: Ranks | None = None,
    ):
        self.config, self.device = config, torch.device(device)
        self.ranks = ranks or Ranks(device=device)
        self.ranks.part(config.batch_size)  # refuses one with too few rows
        self.observation, self.num_actions = observation, num_actions
        self.solver = make_solver(config, observation, num_actions, world_model).to(self.device)
        # Fused: one pass over all weights instead of a dozen small operations on each.
        self.optimizer = torch.optim.AdamW(
            self.solver.world_model.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.generator = torch.Generator(self.device)
        self.step = 0
        self.skips = 0  # steps in a row that changed nothing
        self.weights_consistent = True  # False between optimiser.step() and update_target()
        self.data: str | None = None  # SHA-256 of the data set, once it is known
        self.batch: tuple[int, Batch] | None = None  # the step that was tried last, and its batch
        self._parallel: ParallelLoss | None = None

    def run(self, dataset: Dataset) -> Generator[dict[str, float], None, None]:
        """Train to the last step; yields each step's metrics once it is done."""
        batches = dataset.batches(
            self.config.batch_size,
            self.config.seed,
            start=self.step,
            device=str(self.device),
            transform=AUGMENTATIONS[self.config.augment],
            path=self.config.solver.iterations if self.config.solver.weights.ranking else 0,
        )
        while self.step < self.config.steps:
            if self.ranks.stopping:
                raise KeyboardInterrupt
            self.batch = (self.step + 1, next(batches))
            yield self.update(self.batch[1])

    def update(self, batch: Batch) -> dict[str, float]:
        """Make an optimiser step; without a finite loss and gradient, skip or refuse it (`on_nan`)."""
        config, step = self.config, self.step
        self.solver.train()
        self.generator.manual_seed(int(np.random.SeedSequence([config.seed, step]).generate_state(1)[0]))
        rate = self._learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        means = self._backward(
            batch,
            iterations=schedule.iterations(config, step),
            generator=self.generator,
            conservative_ramp=schedule.conservative_ramp(config, step),
        )
        norm = torch.nn.utils.clip_grad_norm_(self.solver.world_model.parameters(), config.gradient_clip)
        metrics = {**means, "gradient": float(norm), "learning_rate": rate}
        if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient"]):
            return self._skip(metrics)
        self.weights_consistent = False
        try:
            self.optimizer.step()
        except RuntimeError as error:  # a learning rate beyond float32
            raise DivergedError(f"step {step + 1}: {error}; try a smaller learning_rate") from error
        self.solver.update_target()
        self.step, self.skips = step + 1, 0
        self.weights_consistent = True
        return {"step": self.step, **metrics}

    def _backward(self, batch: Batch, **settings: Any) -> dict[str, float]:
        """Differentiate the mean loss of a batch, of which every process has all rows; returns the means."""
        if self.ranks.count == 1:
            loss = self.solver.loss(batch, **settings)
            loss.total.backward()  # type: ignore[no-untyped-call]
            return loss.means()
        if self._parallel is None:
            self._parallel = ParallelLoss(self.solver, self.ranks)
        return self._parallel.backward(batch, **settings)

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
        tensors, state = self.snapshot(validation)
        return checkpoint.save_checkpoint(folder / f"step-{self.step}", tensors, state)

    def snapshot(
        self, validation: float | None = None
    ) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """Return what a checkpoint of this step holds: tensors by file, and the state."""
        tensors = {
            "model": dict(self.solver.state_dict()),
            "optimizer": checkpoint.flatten_optimizer(self.optimizer),
        }
        if not all(bool(tensor.isfinite().all()) for part in tensors.values() for tensor in part.values()):
            raise DivergedError(f"step {self.step}: weights are not finite; try a smaller learning_rate")
        return tensors, self._state() | ({} if validation is None else {"validation": validation})

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint of the same run; ``steps`` may have grown."""
        state = checkpoint.load_state(path)
        try:
            config = config_from_dict(TrainConfig, state.get("config"))
            step = checkpoint.count_in(state, "step", config.steps)
            skips = checkpoint.count_in(state, "skips", MAX_SKIPS)
        except UserError as error:
            raise _misfit(path, error) from error
        self._check_same_run(path, plain(state | {"config": dataclasses.asdict(config)}))
        if self.config.steps < config.steps:
            raise CheckpointError(
                f"{path}: steps must be at least {config.steps}, as before, got {self.config.steps}"
            )
        model = checkpoint.load_tensors_of(path, "model", state)
        try:
            checkpoint.check_tensors(self.solver.state_dict(), model)
            optimizer = checkpoint.load_tensors_of(path, "optimizer", state)  # one foreign file at a time
            if not optimizer and step != skips:
                raise UserError("the optimiser's state must not be empty after a step")
            self._adopt(step, skips, model, optimizer)
        except CheckpointError:
            raise
        except (UserError, RuntimeError) as error:
            raise _misfit(path, error) from error

    def _adopt(
        self, step: int, skips: int, model: dict[str, torch.Tensor], optimizer: dict[str, torch.Tensor]
    ) -> None:
        checkpoint.check_tensors(self.solver.state_dict(), model)
        checkpoint.restore_optimizer(self.optimizer, optimizer)
        self.solver.load_state_dict(model)
        self.step, self.skips = step, skips

    def start_together(self) -> None:
        """Go on where the first process is; one with other settings or data is refused."""
        if self.ranks.count == 1:
            return
        tensors, state = self.snapshot()
        said = json.loads(self.ranks.from_first(json.dumps(plain(state)).encode()))
        mine = plain(state) | {name: said[name] for name in ("step", "skips")}
        if differs := difference(said, mine):
            raise UserError(
                f"process {self.ranks.rank} must have the settings and data of the first one: {differs}"
            )
        parts = [
            self.ranks.from_first(save_tensors({name: each.contiguous() for name, each in part.items()}))
            for part in tensors.values()
        ]
        if not self.ranks.first:
            self._adopt(said["step"], said["skips"], *map(load_tensors, parts))

    def _check_same_run(self, path: Path, state: dict[str, Any]) -> None:
        theirs, mine = flat(state), flat(plain(self._state()))
        for name in mine:
            if name not in RESUME_MAY_CHANGE and theirs.get(name) != mine[name]:
                raise CheckpointError(
                    f"{path} was trained with {name} = {theirs.get(name)!r}, not {mine[name]!r}: "
                    "use the same settings or a new run folder"
                )
        if None not in (self.data, state.get("data")) and state["data"] != self.data:
            raise CheckpointError(
                f"{path} was trained on other data (SHA-256 {str(state['data'])[:12]}…, not "
                f"{str(self.data)[:12]}…): use the same data set or a new run folder"
            )

    def _state(self) -> dict[str, Any]:
        return {
            "version": dtsn.__version__,
            "step": self.step,
            "skips": self.skips,
            "config": dataclasses.asdict(self.config),
            **describe_observation(self.observation),
            "num_actions": self.num_actions,
            "data": self.data,
            **({"own_world_model": True} if self.solver.own == "world_model" else {}),
        }


def _misfit(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} does not fit this dtsn version: {error}")
