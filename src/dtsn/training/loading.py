"""Solvers out of settings and out of checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from dtsn import checkpoint
from dtsn.checkpoint import CheckpointError
from dtsn.config import TrainConfig
from dtsn.data.format import MAX_ACTIONS, MAX_FRAME_VALUES, ObservationSpec
from dtsn.errors import UserError, brief
from dtsn.models.known import KnownModel
from dtsn.models.world_model import WorldModel
from dtsn.settings import config_from_dict
from dtsn.solvers.checks import overridden
from dtsn.solvers.saving import TARGET, adopt_weights, check_own, read_space, space_to_json
from dtsn.solvers.solver import Solver
from dtsn.training.runs import RunExistsError, RunFolder, checkpoint_of


def make_solver(
    config: TrainConfig,
    observation: ObservationSpec | tuple[int, ...],
    num_actions: int,
    world_model: WorldModel | KnownModel | None = None,
) -> Solver:
    """Make a fresh solver.

    Args:
        config: of the run; its seed is that of the weights.
        observation: what observations look like (``Dataset.observation``). A bare shape ``[...]`` will do
            where ``config.network.encoder`` is named: ``auto`` needs the bounds to tell maps from frames.
        num_actions: A.
        world_model: your own, instead of the one that ``config.network`` describes.
    """
    if isinstance(observation, ObservationSpec):
        space = observation.space()
    elif world_model is None and config.network.encoder == "auto" and len(observation) == 3:
        raise UserError(
            "network.encoder must be named (grid, paths, nature, strided, impala_small, impala_fast or "
            f"impala) for observations of shape {observation} whose bounds are unknown, got 'auto'"
        )
    else:
        space = gymnasium.spaces.Box(-np.inf, np.inf, observation, np.float32)
    return Solver.create(
        config.solver,
        space,
        gymnasium.spaces.Discrete(num_actions),
        network=config.network if world_model is None else None,
        world_model=world_model,
        seed=config.seed,
    )


def load_solver(
    folder: str | Path,
    device: str = "cpu",
    *,
    world_model: WorldModel | KnownModel | None = None,
    **search: Any,
) -> Solver:
    """Load a trained solver, ready to act.

    Args:
        folder: a checkpoint, an exported or saved solver, or a run folder (its newest checkpoint).
        device: where its parameters go.
        world_model: one like that which it was trained with, if that was your own; its weights are read.
        search: overrides fields of its :class:`SolverConfig`, e.g. ``act_iterations=50``.

    Returns:
        A solver in ``eval()`` mode, from observations ``[B, ...]`` to Q-values ``[B, A]``.
    """
    environment = RunFolder.of(folder).environment()
    solver = _loaded(checkpoint_of(Path(folder)), device, world_model, search)
    if environment is not None:
        solver.environment = environment.id
    return solver


def _loaded(
    folder: Path, device: str, world_model: WorldModel | KnownModel | None, search: dict[str, Any]
) -> Solver:
    state = checkpoint.load_state(folder)
    try:
        config = config_from_dict(TrainConfig, state.get("config"))
    except UserError as error:
        raise _misfit(folder, error) from error
    if "observation_space" in state:
        solver = Solver.load(folder, device=device, world_model=world_model, **search)
        shape = list(solver.observation_shape or ())
        if state.get("observation_shape", shape) != shape:
            wrong = UserError(f"observation_shape must be {shape}, that of its space, got another")
            raise _misfit(folder, wrong)
        return solver
    config = dataclasses.replace(config, solver=overridden(config.solver, search))
    check_own(folder, "world_model", bool(state.get("own_world_model")), world_model is not None)
    tensors = checkpoint.load_tensors_of(folder, "model", state)
    try:
        observation = observation_in(state)
        num_actions = checkpoint.count_in(state, "num_actions", MAX_ACTIONS)
        if world_model is None:
            with torch.device("meta"):  # takes no memory: a checkpoint may claim more than it holds
                expected = make_solver(config, observation, num_actions).state_dict()
            checkpoint.check_tensors(expected, tensors, optional=TARGET)
        solver = make_solver(config, observation, num_actions, world_model)
        checkpoint.check_tensors(solver.state_dict(), tensors, optional=TARGET)
        adopt_weights(solver, tensors)
    except (ValueError, RuntimeError) as error:
        raise _misfit(folder, error) from error
    return solver.to(device).eval()


def _misfit(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{folder} does not hold a solver of this dtsn version: {error}")


def describe_observation(observation: ObservationSpec | tuple[int, ...]) -> dict[str, Any]:
    """Return what a checkpoint's state says of observations; of a bare shape, that alone."""
    if isinstance(observation, ObservationSpec):
        space = space_to_json(observation.space())
        return {"observation_shape": list(observation.shape), "observation_space": space}
    return {"observation_shape": list(observation)}


def observation_in(state: dict[str, Any]) -> ObservationSpec | tuple[int, ...]:
    """Return the inverse of :func:`describe_observation`."""
    shape = checkpoint.shape_in(state, "observation_shape", MAX_FRAME_VALUES)
    if "observation_space" not in state:
        return shape
    space = read_space(state["observation_space"])
    if not isinstance(space, gymnasium.spaces.Box) or space.shape != shape:
        raise UserError(f"observation_space must be a Box of shape {shape}, got {brief(space)}")
    return ObservationSpec.from_space(space)


def export_solver(run: Path, out: Path) -> Path:
    """Write the solver of a run alone: what it takes to act, not to go on training."""
    if out.exists():
        raise RunExistsError(f"{out} already exists: choose another folder")
    folder = checkpoint_of(run)
    state = checkpoint.load_state(folder)
    model = checkpoint.load_tensors_of(folder, "model", state)
    acting = {name: tensor for name, tensor in model.items() if not name.startswith(TARGET)}
    kept = {name: value for name, value in state.items() if name not in ("format", "format_version", "files")}
    return checkpoint.save_checkpoint(out, {"model": acting}, kept)
