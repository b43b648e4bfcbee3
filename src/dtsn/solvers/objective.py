"""Put the paper's loss together from the terms of :mod:`dtsn.solvers.losses`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from dtsn.batch import Batch, Observation, Part
from dtsn.config import SolverConfig
from dtsn.models.known import KnownModel
from dtsn.models.maps import MapWorldModel
from dtsn.models.world_model import WorldModel
from dtsn.search import SearchTree
from dtsn.solvers import losses
from dtsn.solvers.checks import checked_path


def loss_terms(
    names: Collection[str],
    config: SolverConfig,
    model: WorldModel | KnownModel,
    batch: Batch,
    tree: SearchTree,
    target: Tensor | None,
) -> dict[str, Tensor]:
    """Compute the terms ``[B]`` of a solver's loss after its search.

    Args:
        names: of the losses that the solver has.
        config: weights and telescoping.
        model: what the tree was grown with.
        batch: B transitions.
        tree: of the batch's observations.
        target: states of the next observations by the target encoder, if there is a transition loss.
    """
    weights = config.weights
    q_loss = losses.q_loss(tree.q_values, batch.action, batch.q_target)  # [B, T]
    cql_loss = losses.cql_loss(tree.q_values, batch.action)  # [B, T]
    terms = {"q": q_loss[:, -1], "cql": cql_loss[:, -1]}
    if target is not None:
        assert isinstance(model, WorldModel)
        predicted = model.state(_child_of(tree.root_children, batch.action))
        terms["transition"] = losses.transition_loss(predicted, target)
        if batch.next_valid is not None:  # what no environment showed is nothing to learn
            terms["transition"] = terms["transition"].where(batch.next_valid, 0.0)
    if "reward" in names:
        terms["reward"] = losses.reward_loss(tree.root_rewards, batch.action, batch.reward)
    if "expansion" in names and weights.expansion:
        after_each = weights.q * q_loss + weights.cql * cql_loss  # L_t
        terms["expansion"] = losses.expansion_loss(tree.log_probs, after_each, config.telescoping)
    if weights.ranking:
        slots, log_probs = tree.demonstrated(checked_path(batch, model.num_actions))
        terms["ranking"] = losses.ranking_loss(log_probs, slots >= 0)
    if weights.termination:
        assert isinstance(model, WorldModel)
        logits = model.end_logits(_child_of(tree.root_children, batch.action))
        terms["termination"] = losses.termination_loss(logits, batch.terminated)
    if "reward" in names and weights.conservative_reward:
        terms["conservative_reward"] = losses.conservative_reward_loss(tree.root_rewards)
    return terms


def conservative_value(
    model: WorldModel | KnownModel,
    observation: Observation,
    q_target: Tensor,
    generator: torch.Generator | None,
    part: Part | None,
) -> Tensor:
    """Compute the term ``[B]`` that keeps values of states which no data show below the targets ``[B]``."""
    assert isinstance(model, MapWorldModel)
    unseen = model.unseen(observation, generator, part)
    return losses.conservative_value_loss(model.value(model.encode(unseen)), q_target)


def _child_of(children: Tensor, action: Tensor) -> Tensor:
    """Take from children ``[B, A, ...]`` the one by each sample's action, ``[B, ...]``."""
    return children[torch.arange(len(action), device=action.device), action]
