"""What a world model is said to predict, against worlds whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import NetworkConfig, SolverConfig
from dtsn.errors import UserError
from dtsn.evaluation.predictions import check_predictions
from dtsn.models.world_model import WorldModel
from dtsn.solvers.solver import Solver

STEP = 0.25


class Fixed(nn.Module):
    """The same output for every state, ``[B, *shape]``."""

    def __init__(self, output: Tensor):
        super().__init__()
        self.output = nn.Parameter(output)

    def forward(self, state: Tensor) -> Tensor:
        return self.output.expand(len(state), *self.output.shape)


class Scaled(nn.Module):
    """A value ``[B]`` in proportion to a state ``[B, 1]``."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, state: Tensor) -> Tensor:
        return self.factor * state[:, 0]


def solver(
    moves: list[float], rewards: list[float], value: float = 0.0, name: str = "dtsn", iterations: int = 4
) -> Solver:
    """A walk on a line: action 0 goes right, action 1 left; `moves` and `rewards` are what the model says."""
    model = WorldModel(
        nn.Identity(),
        Fixed(torch.tensor(moves)[:, None]),
        Fixed(torch.tensor(rewards)),
        Scaled(value),
        2,
        (1,),
    )
    config = SolverConfig(name, iterations=iterations)
    return Solver.create(config, Box(-9, 9, (1,)), Discrete(2), world_model=model)


def walks(count: int = 64, last_shown: bool = True) -> Batch:
    """Transitions of the real line: right pays 3, left 1."""
    generator = torch.Generator().manual_seed(0)
    place = torch.randn(count, 1, generator=generator)
    action = torch.randint(2, (count,), generator=generator)
    reward = 3.0 - 2.0 * action
    following = place + STEP * (1 - 2 * action[:, None])
    valid = None
    if not last_shown:
        valid = torch.arange(count) < count // 2
        following = following.where(valid[:, None], torch.full_like(following, 9.0))  # shown by nobody
    end = torch.zeros(count, dtype=torch.bool)
    return Batch(place, action, reward, reward, following, end, next_valid=valid)


def test_a_perfect_model_explains_all():
    found = check_predictions(solver([STEP, -STEP], [3.0, 1.0], name="treeqn"), [walks(), walks(8)])
    assert found.transitions == 72
    assert found.transition_error == pytest.approx(0, abs=1e-6)
    assert found.reward_explained == pytest.approx(1, abs=1e-6)
    assert found.changed_actions == 0  # right is best, now and later


def test_a_model_in_which_nothing_changes_is_the_yardstick():
    found = check_predictions(solver([0.0, 0.0], [2.0, 2.0]), [walks()])
    assert found.transition_error == pytest.approx(1)
    rewards = walks().reward
    mean = float(((rewards - 2) ** 2).mean() / rewards.var(correction=0))
    assert found.reward_explained == pytest.approx(1 - mean, abs=1e-5)
    assert found.reward_explained <= 0  # a constant explains nothing


def test_a_wrong_model_is_worse_than_none():
    found = check_predictions(solver([-STEP, STEP], [1.0, 3.0]), [walks()])
    assert found.transition_error > 3  # twice as far away, so about four times the square
    assert found.reward_explained < -1


def test_unseen_next_frames_do_not_count():
    found = check_predictions(solver([STEP, -STEP], [3.0, 1.0]), [walks(last_shown=False)])
    assert found.transition_error == pytest.approx(0, abs=1e-6)


def test_a_search_changes_actions_where_the_first_step_deceives():
    """From −2, left looks better after one step (−0.20 against −0.23), right after two (0 against −0.10)."""
    batch = replace(walks(), observation=torch.full((64, 1), -2.0))
    shared = {"moves": [1.0, -1.0], "rewards": [0.0, 0.1], "value": 0.3}
    assert check_predictions(solver(**shared, name="qnet"), [batch]).changed_actions == 0
    assert check_predictions(solver(**shared, name="treeqn"), [batch]).changed_actions == 1


def test_returns_are_those_of_the_whole_search():
    found = check_predictions(solver([0.0, 0.0], [3.0, 1.0], name="qnet"), [walks()])
    assert found.return_explained == pytest.approx(1, abs=1e-6)  # Q is the reward alone


@pytest.mark.parametrize("name", ["qnet", "search", "treeqn", "dtsn"])
def test_the_same_seed_finds_the_same(name):
    network = NetworkConfig(latent=8, hidden=8)
    made = Solver.create(name, Box(-9, 9, (1,)), Discrete(2), network=network, seed=0)
    first, again = (check_predictions(made, [walks()], seed=3) for _ in range(2))
    assert first == again
    assert all(math.isfinite(number) for number in first)


def test_nothing_to_compare_is_refused():
    def none() -> Iterator[Batch]:
        yield from ()

    with pytest.raises(UserError, match="at least one batch"):
        check_predictions(solver([0.0, 0.0], [0.0, 0.0]), none())
    constant = walks()
    same = Batch(constant.observation, constant.action, torch.ones(64), torch.ones(64),
                 constant.observation, constant.terminated)  # fmt: skip
    found = check_predictions(solver([STEP, -STEP], [0.0, 0.0]), [same])
    assert math.isnan(found.transition_error)
    assert math.isnan(found.reward_explained)
