"""Whether a world model predicts: next states and rewards against data, and what the search changes.

A search through a model that predicts nothing cannot plan, however well its Q-values fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from dtsn.batch import Batch
from dtsn.errors import UserError
from dtsn.models.world_model import WorldModel
from dtsn.search import full_expansion
from dtsn.solvers.losses import transition_loss
from dtsn.solvers.solver import Solver


class Predictions(NamedTuple):
    """What a learned world model is worth on some transitions."""

    transitions: int  # how many there were
    transition_error: float  # squared error of next states ÷ that of "nothing changes"; NaN if nothing does
    reward_explained: float  # share of the rewards' variance, below 0 worse than their mean; NaN if constant
    return_explained: float  # the same of the returns, by Q of the data's action after the search
    changed_actions: float  # share of best actions that the search changes, against a single expansion


def check_predictions(solver: Solver, batches: Iterable[Batch], seed: int = 0) -> Predictions:
    """Compare what a solver's world model and search predict with transitions of a data set.

    Args:
        solver: with a learned world model.
        batches: transitions, best those of levels that it was not trained on.
        seed: of what its search draws.
    """
    model = solver.world_model
    if not isinstance(model, WorldModel):
        raise UserError("world_model must be a learned one, got a known world: it has nothing to predict")
    solver.eval()
    columns: list[Tensor] = []
    with torch.no_grad():
        for number, batch in enumerate(batches):
            generator = torch.Generator(solver.device).manual_seed(seed + number)
            columns.append(_compare(solver, model, batch.to(solver.device), generator))
    if not columns:
        raise UserError("batches must hold at least one batch, got none")
    error, still, reward, said, target, q, changed, shown = torch.cat(columns, 1).double()
    moved = float((still * shown).sum())
    return Predictions(
        transitions=len(reward),
        transition_error=float((error * shown).sum()) / moved if moved else float("nan"),
        reward_explained=_explained(said, reward),
        return_explained=_explained(q, target),
        changed_actions=float(changed.mean()),
    )


def _compare(solver: Solver, model: WorldModel, batch: Batch, generator: torch.Generator) -> Tensor:
    """Return the columns ``[8, B]`` that :func:`check_predictions` aggregates."""
    rows = torch.arange(len(batch.action), device=batch.action.device)
    tree = solver.plan(batch.observation, generator=generator)
    latent, following = model.encode(batch.observation), model.encode(batch.next_observation)
    one_step = full_expansion(model, latent, depth=1, discount=solver.config.discount)
    state, predicted = model.state(following), model.state(one_step.root_children[rows, batch.action])
    shown = torch.ones_like(batch.reward) if batch.next_valid is None else batch.next_valid
    columns = (
        transition_loss(predicted, state),
        transition_loss(model.state(latent), state),
        batch.reward,
        one_step.root_rewards[rows, batch.action],
        batch.q_target,
        tree.q[rows, batch.action],
        tree.q.argmax(1) != one_step.q.argmax(1),
        shown,
    )
    return torch.stack([column.float() for column in columns])


def _explained(predicted: Tensor, actual: Tensor) -> float:
    """Return the share of the variance of ``actual [N]`` that is explained; NaN if there is none."""
    variance = (actual - actual.mean()).square().mean()
    return float(1 - (predicted - actual).square().mean() / variance) if variance > 0 else float("nan")
