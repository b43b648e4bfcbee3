"""Each loss against numbers worked out by hand. Q-values are logarithms, so that log Σ exp Q is one too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dtsn.config import LossWeights
from dtsn.solvers.losses import (
    combine,
    cql_loss,
    expansion_loss,
    q_loss,
    ranking_loss,
    reward_loss,
    transition_loss,
)


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ACTION = torch.tensor([1, 0])
# Q-values of 2 samples after each of 2 iterations; B = T, so that a broadcast over the wrong axis would fit.
EXP_Q = tensor([[[1, 2, 5], [3, 4, 1]], [[6, 1, 2], [1, 2, 2]]])  # [B, T, A]
Q = EXP_Q.log()


@pytest.mark.parametrize("last_only", [True, False])
def test_q_loss(last_only: bool) -> None:
    q_values = tensor([[[1, 2, 4], [1, 7, 4]], [[0, -1, 3], [5, -1, 3]]])
    # row 0, action 1, target 5: (2 − 5)² = 9, (7 − 5)² = 4; row 1, action 0, target −2: 2² = 4, 7² = 49
    expected = tensor([[9, 4], [4, 49]])
    if last_only:
        q_values, expected = q_values[:, -1], expected[:, -1]
    torch.testing.assert_close(q_loss(q_values, ACTION, tensor([5, -2])), expected)


@pytest.mark.parametrize("last_only", [True, False])
def test_cql_loss(last_only: bool) -> None:
    # row 0, action 1: log 8 − log 2, log 8 − log 4; row 1, action 0: log 9 − log 6, log 5 − log 1
    q_values, expected = Q, tensor([[4, 2], [1.5, 5]]).log()
    if last_only:
        q_values, expected = q_values[:, -1], expected[:, -1]
    torch.testing.assert_close(cql_loss(q_values, ACTION), expected)


def test_cql_loss_of_large_values_does_not_overflow() -> None:
    q_values = torch.full((2, 4), 1e4, dtype=torch.float64)
    torch.testing.assert_close(cql_loss(q_values, ACTION), tensor([4, 4]).log())


def test_cql_gradient_is_softmax_minus_one_hot() -> None:
    q_values = Q[:, 0].clone().requires_grad_()
    cql_loss(q_values, ACTION).sum().backward()
    # softmax of the logs of (1, 2, 5) and (6, 1, 2) minus the action's one-hot
    expected = tensor([[1 / 8, 2 / 8 - 1, 5 / 8], [6 / 9 - 1, 1 / 9, 2 / 9]])
    torch.testing.assert_close(q_values.grad, expected)


def test_transition_loss_sums_over_the_latent() -> None:
    predicted = tensor([[1, 2, 3, 4], [0, 0, 0, 1]])
    target = tensor([[1, 0, 3, 1], [1, 1, 1, 0]])
    # 0 + 4 + 0 + 9 and 1 + 1 + 1 + 1; the same numbers as a map [1, 2, 2]
    expected = tensor([13, 4])
    torch.testing.assert_close(transition_loss(predicted, target), expected)
    as_maps = transition_loss(predicted.view(2, 1, 2, 2), target.view(2, 1, 2, 2))
    torch.testing.assert_close(as_maps, expected)


def test_transition_loss_moves_the_prediction_only() -> None:
    predicted, target = tensor([[1, 2]]).requires_grad_(), tensor([[0, 5]]).requires_grad_()
    transition_loss(predicted, target).sum().backward()
    torch.testing.assert_close(predicted.grad, tensor([[2, -6]]))  # 2 (h̄ − h)
    assert target.grad is None


def test_reward_loss() -> None:
    rewards = tensor([[1, 2, 4], [0, -1, 3]]).requires_grad_()
    loss = reward_loss(rewards, ACTION, tensor([0.5, -3]))
    torch.testing.assert_close(loss, tensor([2.25, 9]))  # (2 − 0.5)², (0 + 3)²
    loss.sum().backward()
    torch.testing.assert_close(rewards.grad, tensor([[0, 3, 0], [6, 0, 0]]))  # only the action taken


@pytest.mark.parametrize(
    ("telescoping", "returns"),
    [
        # L = 5, 3, 2: L_T − L_{t−1} with L_0 = 0 is 2 − 0, 2 − 5, 2 − 3. L = 1, 1, 4: 4 − 0, 4 − 1, 4 − 1
        (True, tensor([[2, -3, -1], [4, 3, 3]])),
        (False, tensor([[2, 2, 2], [4, 4, 4]])),
    ],
)
def test_expansion_loss_and_its_gradient(telescoping: bool, returns: Tensor) -> None:
    log_probs = tensor([[0, -1, -2], [0, -0.5, -3]]).requires_grad_()
    losses = tensor([[5, 3, 2], [1, 1, 4]]).requires_grad_()
    loss = expansion_loss(log_probs, losses, telescoping)
    # telescoping: 0 + 3 + 2 and 0 − 1.5 − 9; whole: 2 · (−3) and 4 · (−3.5)
    torch.testing.assert_close(loss, tensor([5, -10.5]) if telescoping else tensor([-6, -14]))
    loss.sum().backward()
    torch.testing.assert_close(log_probs.grad, returns)
    assert losses.grad is None


def test_ranking_loss() -> None:
    log_probs = tensor([[0, -1, -3], [0, -5, -2], [0, -5, -2]]).requires_grad_()
    there = torch.tensor([[True, True, True], [True, False, True], [True, False, False]])
    loss = ranking_loss(log_probs, there)
    torch.testing.assert_close(loss, tensor([2, 2, 0]))  # (1 + 3) / 2, 2 / 1, nothing to rank
    loss.sum().backward()
    torch.testing.assert_close(log_probs.grad, tensor([[0, -0.5, -0.5], [0, 0, -1], [0, 0, 0]]))


def test_expansion_loss_telescopes_by_default() -> None:
    log_probs, losses = tensor([[0, -1]]), tensor([[5, 2]])
    assert expansion_loss(log_probs, losses).item() == 3  # −1 · (2 − 5)


def test_combine_weighs_sums_and_averages() -> None:
    q, reward = tensor([1, 3]).requires_grad_(), tensor([2, 6]).requires_grad_()
    result = combine({"q": q, "reward": reward}, LossWeights(q=0.5, cql=7, reward=2))
    assert result.total.item() == 9  # mean of 0.5 · 1 + 2 · 2 = 4.5 and 0.5 · 3 + 2 · 6 = 13.5
    assert result.means() == {"loss": 9, "q": 2, "reward": 4}  # terms are logged before weighting
    assert not any(term.requires_grad for term in result.terms.values())
    result.total.backward()
    assert q.grad is not None
    assert reward.grad is not None
    assert (q.grad.tolist(), reward.grad.tolist()) == ([0.25, 0.25], [1, 1])  # weight / B


@pytest.mark.parametrize("name", ["q", "cql", "transition", "reward", "expansion", "ranking"])
@pytest.mark.parametrize("weight", [-1.0, -1e-9, math.nan, math.inf, -math.inf])
def test_bad_weights_are_refused_by_name(name: str, weight: float) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b.*{weight}"):
        LossWeights(**{name: weight})
