"""What a solver refuses: settings its world model cannot follow, and batches it cannot learn from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import gymnasium
import torch
from torch import Tensor

from dtsn.batch import Batch
from dtsn.config import SOLVERS, LossWeights, SolverConfig
from dtsn.errors import UserError
from dtsn.models.known import KnownModel
from dtsn.models.maps import MapWorldModel
from dtsn.models.world_model import WorldModel

MAX_LEAVES = 1 << 20  # of a full tree


def check_kinds(model: Any, config: Any) -> None:
    """Refuse what is no world model or no configuration."""
    if not isinstance(model, WorldModel | KnownModel):
        raise UserError(f"world_model must be a WorldModel or a KnownModel, got {type(model).__name__}")
    if config is not None and not isinstance(config, SolverConfig):
        raise UserError(f"config must be a SolverConfig, got {config!r}")


def without_given(config: SolverConfig, model: WorldModel | KnownModel) -> SolverConfig:
    """Drop weights of losses that a known world has no use for; refuse to set them."""
    off = {}
    for name in sorted(model.given):
        weight = getattr(config.weights, name)
        if weight not in (0, getattr(LossWeights(), name)):
            raise UserError(
                f"weights.{name} must be left out or 0 for a world model that knows what it would learn, "
                f"got {weight}"
            )
        off[name] = 0.0
    return dataclasses.replace(config, weights=dataclasses.replace(config.weights, **off))


def overridden(config: SolverConfig, search: dict[str, Any]) -> SolverConfig:
    """Return a configuration with other values of some fields; refuse names that it does not have."""
    unknown = set(search) - {field.name for field in dataclasses.fields(SolverConfig)}
    if unknown:
        raise UserError(f"search settings must be fields of SolverConfig, got {sorted(unknown)[0]!r}")
    return dataclasses.replace(config, **search)


def check_support(config: SolverConfig, model: WorldModel | KnownModel) -> None:
    """Refuse settings that a world model cannot follow, and full trees that no machine can hold."""
    kind = SOLVERS[config.name]
    full = "full" in (kind.training_planner, kind.acting_planner)
    if full and model.num_actions**config.depth > MAX_LEAVES:
        raise UserError(
            f"depth must make a full tree of at most {MAX_LEAVES} leaves with {model.num_actions} actions, "
            f"got {config.depth}"
        )
    if config.weights.termination and isinstance(model, KnownModel):
        raise UserError(
            "weights.termination must be 0 for a world model whose ends are known, "
            f"got {config.weights.termination}"
        )
    if config.weights.termination and model.termination is None:
        raise UserError(
            "weights.termination must be 0 for a world model without a termination head, "
            f"got {config.weights.termination}: set network.termination"
        )
    if config.weights.conservative_value and not isinstance(model, MapWorldModel):
        raise UserError(
            "weights.conservative_value must be 0 for a world model that cannot draw unseen maps, "
            f"got {config.weights.conservative_value}: set network.encoder to 'maps'"
        )
    if config.weights.ranking and SOLVERS[config.name].training_planner != "best_first":
        raise UserError(
            "weights.ranking must be 0 for a solver that does not train by best-first search, "
            f"got {config.weights.ranking} for {config.name!r}"
        )
    if config.merge and not hasattr(model, "key"):
        raise UserError(
            "merge must be False for a world model that has no key, got True: set network.encoder to 'maps'"
        )


def checked_actions(space: gymnasium.Space[Any]) -> int:
    """Return the number of actions of ``space``, which must be ``Discrete(A)`` from 0."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise UserError(f"action_space must be Discrete, got {space}: D-TSN plans over discrete actions")
    if space.start != 0:
        raise UserError(f"action_space must start at 0, got {space}: shift the actions first")
    return int(space.n)


def check_own_model(model: WorldModel | KnownModel, num_actions: int, alone: bool) -> None:
    """Refuse a caller's world model with other actions, or beside settings of modules to make."""
    if not alone:
        raise UserError("world_model must come without network and encoder, got one of them too")
    check_kinds(model, None)
    if model.num_actions != num_actions:
        raise UserError(
            f"world_model must have the {num_actions} actions of action_space, got {model.num_actions}"
        )


def check_batch(batch: Batch, size: int, actions: int) -> None:
    """Refuse a batch whose fields are not of ``size`` rows, or hold what cannot be learned from."""
    now, then = batch.observation, batch.next_observation
    if isinstance(now, Tensor) and isinstance(then, Tensor) and now.shape != then.shape:
        raise UserError(f"batch.next_observation must have shape {list(now.shape)}, got {list(then.shape)}")
    for name in ("action", "reward", "q_target"):
        tensor = getattr(batch, name)
        if tensor.shape != (size,):
            raise UserError(f"batch.{name} must have shape [{size}], got {list(tensor.shape)}")
    valid = batch.next_valid
    if valid is not None and (valid.shape != (size,) or valid.dtype != torch.bool):
        raise UserError(f"batch.next_valid must be bool [{size}], got {valid.dtype} {list(valid.shape)}")
    if batch.action.dtype != torch.int64:
        raise UserError(f"batch.action must be int64, got {batch.action.dtype}")
    known = (batch.action >= 0) & (batch.action < actions)
    numbers = {name: getattr(batch, name) for name in ("reward", "q_target")}
    real = not any(tensor.is_complex() for tensor in numbers.values())
    # One answer to wait for where all is well, which is nearly always.
    if real and bool((known & batch.reward.isfinite() & batch.q_target.isfinite()).all()):
        return
    if not bool(known.all()):
        wrong = int(batch.action[~known][0])
        raise UserError(f"batch.action must lie in 0..{actions - 1}, got {wrong}")
    for name, tensor in numbers.items():
        if tensor.is_complex() or not bool(tensor.isfinite().all()):
            raise UserError(f"batch.{name} must be real and finite, got {tensor.dtype} with other entries")


def check_valid(action: Tensor, exists: Tensor | None) -> None:
    """Refuse actions ``[B]`` that the world model calls invalid; ``exists [B, N]`` is of a search tree."""
    if exists is None:
        return
    there = exists.gather(1, 1 + action[:, None]).squeeze(1)
    if not bool(there.all()):
        row = int((~there).nonzero()[0])
        raise UserError(
            f"batch.action must be valid by the world model, got {int(action[row])}, invalid, in row {row}"
        )


def checked_path(batch: Batch, actions: int) -> Tensor:
    """Return the demonstrated actions ``[B, K]`` of a batch, for the ranking loss."""
    path, size = batch.path, len(batch)
    if path is None:
        raise UserError("batch.path must hold the demonstrated actions for weights.ranking, got none")
    if path.dim() != 2 or len(path) != size or not path.shape[1] or path.dtype != torch.int64:
        raise UserError(f"batch.path must be int64 [{size}, K], got {path.dtype} {list(path.shape)}")
    low, high = (int(x) for x in path.aminmax())
    if low < -1 or high >= actions:
        raise UserError(f"batch.path must lie in -1..{actions - 1}, got {low if low < -1 else high}")
    if not torch.equal(path[:, 0], batch.action):
        raise UserError("batch.path must begin with batch.action, got other first actions")
    return path


def checked_column(name: str, given: Any, lead: tuple[int, ...], like: Tensor) -> Tensor:
    """Return one entry per observation, with their leading dimensions, on the device of ``like``."""
    column = torch.as_tensor(given, device=like.device)
    if column.shape != lead:
        raise UserError(f"{name} must have shape {list(lead)}, got {list(column.shape)}")
    return column


def checked_discount_of(
    config: SolverConfig, given: Any, lead: tuple[int, ...], like: Tensor
) -> float | Tensor:
    """Return the discount of targets: the search's, or one number per transition of the caller's."""
    if given is None:
        return config.discount
    column = torch.as_tensor(given, device=like.device)
    if column.dim():
        return checked_column("discount", column, lead, like).to(like.dtype)
    if not math.isclose(float(column), config.discount, rel_tol=1e-6):
        raise UserError(
            f"discount must be that of the solver's search, {config.discount:g}, got {float(column):g}: "
            f"make the solver with SolverConfig(discount={float(column):g})"
        )
    return config.discount


def checked_weight(weight: Any, size: int, like: Tensor) -> Tensor:
    """Return the weights ``[B]`` of the samples, with the type and device of ``like``."""
    tensor = torch.as_tensor(weight, device=like.device).to(like.dtype)
    if tensor.shape != (size,):
        raise UserError(f"weight must have shape [{size}], got {list(tensor.shape)}")
    if not bool(((tensor >= 0) & tensor.isfinite()).all()):
        raise UserError("weight must be finite and not negative, got other entries")
    return tensor
