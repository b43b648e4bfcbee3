"""The world model's contract with its four modules, and the target encoder's average."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dtsn.models.world_model import WorldModel, update_average

BATCH, ACTIONS, LATENT = 3, 2, 4


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def model_of(**modules: Callable[[Tensor], Tensor]) -> WorldModel:
    """Nothing moves, no rewards, V(h) = Σ h; override any of the four modules."""
    parts = {
        "encoder": lambda x: x,
        "transition": lambda h: h.new_zeros(len(h), ACTIONS, *h.shape[1:]),
        "reward": lambda h: h.new_zeros(len(h), ACTIONS),
        "value": lambda h: h.flatten(1).sum(1),
    } | modules
    return WorldModel(**{name: Lambda(part) for name, part in parts.items()}, num_actions=ACTIONS)


WRONG = [
    ("encoder", (BATCH,), "[3, ...]"),
    ("encoder", (BATCH + 1, LATENT), "[3, ...]"),
    ("transition", (BATCH, LATENT), "[3, 2, 4]"),
    ("transition", (BATCH, LATENT, ACTIONS), "[3, 2, 4]"),
    ("transition", (BATCH, 1, LATENT), "[3, 2, 4]"),  # would broadcast
    ("reward", (BATCH,), "[3, 2]"),
    ("reward", (BATCH, ACTIONS, 1), "[3, 2]"),
    ("reward", (BATCH, 1), "[3, 2]"),  # would broadcast
    ("value", (BATCH, 1), "[3]"),  # the classic: a linear layer without squeeze
    ("value", (), "[3]"),
    ("value", (BATCH, LATENT), "[3]"),
]


@pytest.mark.parametrize(("module", "shape", "expected"), WRONG)
def test_wrong_shapes_are_refused(module: str, shape: tuple[int, ...], expected: str) -> None:
    model = model_of(**{module: lambda _: torch.zeros(shape)})
    call = {"encoder": model.encode, "value": model.value}.get(module, model.expand)
    with pytest.raises(ValueError, match=rf"{module}.*{re.escape(expected)}.*{re.escape(str(list(shape)))}"):
        call(torch.zeros(BATCH, LATENT))


@pytest.mark.parametrize("num_actions", [0, -1])
def test_no_actions_are_refused(num_actions: int) -> None:
    with pytest.raises(ValueError, match=f"num_actions.*{num_actions}"):
        WorldModel(nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity(), num_actions)


@pytest.mark.parametrize("shape", [(LATENT,), (2, 3, 4)])
def test_a_zero_transition_leaves_the_state_unchanged(shape: tuple[int, ...]) -> None:
    model = model_of()
    start = latent = 3 * torch.randn(BATCH, *shape)
    for step in range(50):
        latent = model.expand(latent)[0][:, step % ACTIONS]
    assert torch.equal(latent, start)
    assert torch.equal(model.value(latent), torch.tanh(start).flatten(1).sum(1))


def test_modules_read_the_squashed_state_and_the_residual_is_inside() -> None:
    model = model_of(
        transition=lambda h: torch.stack([10 * h, -h], 1),
        reward=lambda h: torch.stack([h[:, 0], h[:, 1]], 1),
        value=lambda h: h.abs().amax(1),
    )
    latent = torch.tensor([[30.0, -0.5, 0, 1], [0.1, 2, -3, 40]])
    children, reward = model.expand(latent)
    state = torch.tanh(latent)
    assert torch.equal(children, torch.stack([latent + 10 * state, latent - state], 1))
    assert torch.equal(reward, state[:, :2])
    assert model.value(latent).max() <= 1


# --- the target encoder's average --------------------------------------------------------------------


def encoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    module(torch.randn(8, 3, dtype=torch.float64))  # moves the running statistics and the integer counter
    return module


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.5, 0.99, 1.0])
def test_update_average_formula(decay: float) -> None:
    average, module = encoder(0), encoder(1)
    module(torch.randn(8, 3, dtype=torch.float64))
    old, new = copy.deepcopy(average), copy.deepcopy(module)
    update_average(average, module, decay)
    for got, theta_old, theta_new in zip(
        average.parameters(), old.parameters(), new.parameters(), strict=True
    ):
        torch.testing.assert_close(got, decay * theta_old + (1 - decay) * theta_new, rtol=0, atol=1e-15)
        assert got.grad_fn is None
    for got, buffer in zip(average.buffers(), new.buffers(), strict=True):
        assert torch.equal(got, buffer)
    for name, value in module.state_dict().items():
        assert torch.equal(value, new.state_dict()[name])


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_update_average_is_exact_at_the_ends(decay: float) -> None:
    average, module = encoder(0).float(), encoder(1).float()
    expected = copy.deepcopy(average if decay else module)
    for _ in range(10):
        update_average(average, module, decay)
    for got, want in zip(average.parameters(), expected.parameters(), strict=True):
        assert torch.equal(got, want)


def test_update_average_does_not_alias_the_module() -> None:
    average, module = nn.Linear(2, 2), nn.Linear(2, 2)
    update_average(average, module, 0.0)
    before = average.weight.clone()
    with torch.no_grad():
        module.weight.add_(1)
    assert torch.equal(average.weight, before)


def test_update_average_of_an_encoder_without_parameters() -> None:
    update_average(nn.Flatten(), nn.Flatten(), 0.9)
