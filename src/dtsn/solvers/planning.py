"""Grow the search trees of a solver: by its planner of training or of acting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtsn.batch import Observation, map_arrays
from dtsn.config import SOLVERS, PlannerName, Rule, SolverConfig
from dtsn.models.known import KnownModel
from dtsn.models.world_model import WorldModel
from dtsn.search import SearchTree, best_first_search, full_expansion
from dtsn.solvers.observations import read_mask, read_uniforms


def grow_trees(
    model: WorldModel | KnownModel,
    config: SolverConfig,
    acting: bool,
    latent: Tensor,
    lead: tuple[int, ...],
    invalid_actions: Any = None,
    uniforms: Any = None,
    generator: torch.Generator | None = None,
    deterministic: bool = False,
    *,
    iterations: int | None = None,
) -> SearchTree:
    """Search from ``latent [B, ...]``.

    Args:
        model: expands and values latents.
        config: of the solver: its kind says which planner trains and which one acts.
        acting: plan as when acting, not as in training.
        latent: of the roots.
        lead: the leading dimensions that observations came with, whose product is B.
        invalid_actions: ``[*lead, A]`` at the roots.
        uniforms: ``[*lead, T]``, to draw expansions by.
        generator: to draw them by otherwise.
        deterministic: expand the most promising node instead of drawing one.
        iterations: T in training, if other than configured.
    """
    kind = SOLVERS[config.name]
    planner: PlannerName = kind.acting_planner if acting else kind.training_planner
    closed = read_mask(invalid_actions, lead, model.num_actions, latent.device)
    if planner != "best_first":
        depth = config.depth if planner == "full" else 1
        return full_expansion(model, latent, depth=depth, discount=config.discount, invalid_actions=closed)
    # The loss needs log-probabilities of the choices, so training draws by the expansion policy.
    rule: Rule = config.act_rule if acting else "sample"
    expansions = act_iterations(config) if acting else iterations or config.iterations
    return best_first_search(
        model,
        latent,
        iterations=expansions,
        rule="greedy" if deterministic else rule,
        temperature=config.temperature,
        epsilon=config.epsilon,
        discount=config.discount,
        invalid_actions=closed,
        uniforms=read_uniforms(uniforms, lead, expansions),
        generator=generator,
        merge=acting and config.merge,
    )


def act_iterations(config: SolverConfig) -> int:
    """Return T when acting."""
    return config.act_iterations or config.iterations


def best_values(
    model: WorldModel | KnownModel,
    config: SolverConfig,
    rows: Observation,
    wanted: Tensor,
    closed: Tensor | None,
    deterministic: bool,
) -> Tensor:
    """Compute ``max Q [B]`` by the acting planner of the ``wanted [B]`` rows, 0 of the others."""
    where = wanted.nonzero().squeeze(1)  # where all is over, nothing may be open
    if not len(where):
        return torch.zeros(len(wanted), device=wanted.device)
    latent = model.encode(map_arrays(lambda array: array[where], rows))
    closed = None if closed is None else closed[where]
    best = grow_trees(model, config, True, latent, (len(where),), closed, None, None, deterministic).q.amax(1)
    return best.new_zeros(len(wanted)).index_copy(0, where, best)
