"""The losses: one pure function per equation of the paper, and four more, each per sample ``[B]``.

Equation names are the labels in the paper's source.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dtsn.config import LossWeights


@dataclass(frozen=True)
class LossTerms:
    """The loss of a batch: what to differentiate, and what it was made of."""

    total: Tensor  # []  λ-weighted sum, mean over the batch
    terms: dict[str, Tensor]  # name -> [B], detached, before weighting

    def means(self) -> dict[str, float]:
        """Return the total and each term's mean, for logs."""
        values = torch.stack([self.total.detach(), *(term.mean() for term in self.terms.values())]).tolist()
        return dict(zip(["loss", *self.terms], values, strict=True))


def q_loss(q_values: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """Compute ``equation_mse_loss``: (Q(s, a) − Q)², for ``q_values [B, A]`` or ``[B, T, A]``."""
    chosen = _of_action(q_values, action)
    return (chosen - _like(target, chosen)).square()


def cql_loss(q_values: Tensor, action: Tensor) -> Tensor:
    """Compute ``equation_cql_loss``: log Σ exp Q(s, ·) − Q(s, a), for ``[B, A]`` or ``[B, T, A]``."""
    return q_values.logsumexp(-1) - _of_action(q_values, action)


def transition_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Compute ``equation_transition_loss``: ‖h̄′ − h′‖², summed over the latent's dimensions."""
    return (predicted - target.detach()).square().flatten(1).sum(1)


def reward_loss(rewards: Tensor, action: Tensor, reward: Tensor) -> Tensor:
    """Compute ``equation_reward_loss``: (R(h, a) − r)², for ``rewards [B, A]`` of all actions."""
    return (_of_action(rewards, action) - reward).square()


def expansion_loss(log_probs: Tensor, losses: Tensor, telescoping: bool = True) -> Tensor:
    """Compute ``equation_tree_policy_gradient_telescopic``: Σ_t log π_t · (L_T − L_{t−1}), L_0 = 0.

    Its gradient is the REINFORCE term of the expected loss's gradient; its own value means nothing.
    Without telescoping every step is credited with the whole L_T (``equation_tree_policy_gradient``).
    ``log_probs`` and ``losses`` are ``[B, T]``.
    """
    losses = losses.detach()
    returns = losses[:, -1:]
    if telescoping:
        returns = returns - functional.pad(losses[:, :-1], (1, 0))  # L_{t−1}
    return (log_probs * returns).sum(1)


def ranking_loss(log_probs: Tensor, there: Tensor) -> Tensor:
    """Average −log π of the demonstrated open nodes, ``[B, T]`` both, over the choices with one ``there``.

    The root is no choice. Trees are taken as they are: no REINFORCE term (outside the paper).
    """
    there = there[:, 1:]
    chosen = (log_probs[:, 1:] * there).sum(1)
    return -chosen / there.sum(1).clamp(min=1)


def termination_loss(logits: Tensor, terminated: Tensor) -> Tensor:
    """Compute the cross-entropy of the ends ``terminated [B]`` under ``logits [B]`` (outside the paper)."""
    return functional.binary_cross_entropy_with_logits(logits, terminated.to(logits.dtype), reduction="none")


def conservative_reward_loss(rewards: Tensor) -> Tensor:
    """Average symlog R(h, ·) over all actions, for ``rewards [B, A]`` (outside the paper).

    Moves that the data never show become dear; the reward loss holds the others where they are. symlog,
    sign(r) · log(1 + |r|), lets a reward sink far without ruling the loss.
    """
    return (rewards.sign() * rewards.abs().log1p()).mean(1)


def conservative_value_loss(values: Tensor, target: Tensor, margin: float = 10.0) -> Tensor:
    """Compute max(0, V(h̃) − Q + margin) for values ``[B]`` of states that no data show (not in the paper).

    They should be worth less, by a margin, than the state in whose place they were drawn, of return Q.
    """
    return functional.relu(values - target + margin)


def combine(terms: dict[str, Tensor], weights: LossWeights, weight: Tensor | None = None) -> LossTerms:
    """Sum the terms ``[B]`` with their λ (``equation_final_loss``), times ``weight [B]``, mean over B."""
    total = torch.stack([getattr(weights, name) * term for name, term in terms.items()]).sum(0)
    total = total if weight is None else total * weight
    return LossTerms(total.mean(), {name: term.detach() for name, term in terms.items()})


def _of_action(table: Tensor, action: Tensor) -> Tensor:
    """Take the column of each sample's action: ``[B, A] -> [B]`` or ``[B, T, A] -> [B, T]``."""
    index = action.view(-1, *[1] * (table.dim() - 1)).expand(*table.shape[:-1], 1)
    return table.gather(-1, index).squeeze(-1)


def _like(target: Tensor, values: Tensor) -> Tensor:
    return target.view(-1, *[1] * (values.dim() - 1))
