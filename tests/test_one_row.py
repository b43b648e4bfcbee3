"""Fast acting: NumPy in place of torch's modules for one row, and whole decisions as one function."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from dtsn.config import NetworkConfig, SolverConfig
from dtsn.models import one_row
from dtsn.models.build import make_world_model
from dtsn.models.heads import ActionMLP, RewardMLP, ValueMLP
from dtsn.models.world_model import WorldModel
from dtsn.search import best_first_search
from dtsn.solvers import acting_kernel
from dtsn.solvers.solver import Solver

T, ACTIONS = 7, 3
SPACE = Box(-1, 1, (5,))
RULES = acting_kernel.RULES


def make(seed: int = 0, **config: object) -> Solver:
    network = NetworkConfig(latent=6, hidden=9, value_scale=3.0)
    options = SolverConfig("dtsn", iterations=T, **config)
    return Solver.create(options, SPACE, Discrete(ACTIONS), network=network, seed=seed).eval()


class OnTensors:
    """A world model that offers no arrays."""

    def __init__(self, model: WorldModel):
        self.expand, self.value = model.expand, model.value


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_arrays_find_the_tree_of_tensors(rule: str, discount: float, dtype: torch.dtype) -> None:
    for seed in range(10):
        model = make(seed).world_model.to(dtype)
        assert model.for_one_row() is not None
        latent = 3 * numbers(1, 6, seed=seed).to(dtype)
        closed = torch.tensor([[False, seed % 2 == 1, False]])
        options = {
            "iterations": T,
            "rule": rule,
            "temperature": 0.5,
            "epsilon": 0.5,
            "discount": discount,
            "uniforms": numbers(1, T, seed=seed + 100),
            "invalid_actions": closed if seed % 3 else None,
        }
        ours = best_first_search(model, latent, **options)
        theirs = best_first_search(OnTensors(model), latent, **options)
        assert torch.equal(ours.selected, theirs.selected)
        for name in ("q", "reward", "value", "path_value", "q_values"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_arrays_are_of_the_weights_as_they_are() -> None:
    model, latent = make().world_model, numbers(1, 6, seed=0)

    def agree() -> bool:
        both = model, OnTensors(model)
        ours, theirs = (best_first_search(m, latent, iterations=2, rule="greedy").q for m in both)
        return bool(torch.allclose(ours, theirs, atol=1e-5))

    before = best_first_search(model, latent, iterations=2, rule="greedy").q
    for parameter in model.parameters():  # as an optimiser does
        parameter.add_(0.3)
    assert agree()
    assert not torch.allclose(before, best_first_search(model, latent, iterations=2, rule="greedy").q)
    model.reward_head.first.weight = nn.Parameter(torch.randn(9, 6))
    assert agree()
    model.double()
    latent = latent.double()
    assert agree()


class Doubled(WorldModel):
    def value(self, latent: Tensor) -> Tensor:
        return 2 * super().value(latent)


def subclass(model: WorldModel) -> WorldModel:
    return Doubled(model.encoder, model.transition, model.reward_head, model.value_head, ACTIONS)


def hooked(model: WorldModel) -> WorldModel:
    model.value_head.last.register_forward_hook(lambda *_: None)
    return model


def own_module(model: WorldModel) -> WorldModel:
    model.reward_head = nn.Linear(6, ACTIONS)
    return model


def patched(model: WorldModel) -> WorldModel:
    model.value = lambda latent: latent.sum(1)  # type: ignore[method-assign]
    return model


def half(model: WorldModel) -> WorldModel:
    return model.bfloat16()


@pytest.mark.parametrize("change", [subclass, hooked, own_module, patched, half])
def test_modules_that_arrays_do_not_know_run_on_tensors(change) -> None:
    assert change(make().world_model).for_one_row() is None


@torch.no_grad()
def test_merging_reads_keys_of_tensors() -> None:
    model, latent = make().world_model, numbers(1, 6, seed=0)
    model.key = lambda latent: latent[:, 0].round().long()  # type: ignore[assignment]
    assert best_first_search(model, latent, iterations=T, rule="greedy", merge=True).q.isfinite().all()


def test_large_products_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_row, "LARGEST", ACTIONS * 6 * 9)
    assert make().world_model.for_one_row() is not None
    monkeypatch.setattr(one_row, "LARGEST", ACTIONS * 6 * 9 - 1)
    assert make().world_model.for_one_row() is None


def test_map_latents_run_on_tensors() -> None:
    network = NetworkConfig(encoder="grid", spatial=True, latent=2, hidden=4)
    assert make_world_model(Box(0, 1, (3, 5, 5)), ACTIONS, network).for_one_row() is None


# --- the whole decision as one function --------------------------------------------------------------


def as_it_is(function):
    return function


@pytest.fixture(params=["plain", pytest.param("numba", marks=pytest.mark.slow)])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """The kernel uncompiled, and compiled by Numba: ten seconds."""
    if request.param == "numba":
        pytest.importorskip("numba")
        return acting_kernel.compiled_kernel()
    made = acting_kernel.make_kernel(as_it_is, as_it_is)
    monkeypatch.setattr(acting_kernel, "compiled_kernel", lambda: made)
    return made


@pytest.mark.parametrize("rule", RULES)
@torch.no_grad()
def test_kernel_finds_the_q_values_of_the_search(rule: str, kernel) -> None:
    for seed in range(4):
        model, latent = make(seed).world_model, 3 * numbers(8, 6, seed=seed)
        uniforms = numbers(8, T, seed=seed + 100)
        closed = torch.zeros(8, ACTIONS, dtype=torch.bool)
        closed[1::2, 1] = closed[1::4, 2] = True
        expected = best_first_search(
            OnTensors(model),
            latent,
            iterations=T,
            rule=rule,
            temperature=0.5,
            epsilon=0.5,
            discount=0.9,
            uniforms=uniforms,
            invalid_actions=closed,
        )
        weights = one_row.perceptrons(model)
        index = RULES.index(rule)
        arrays = latent.numpy(), closed.numpy(), uniforms.numpy()
        found = kernel(weights, *arrays, T, index, 0.5, 0.5, 0.9)
        np.testing.assert_allclose(found, expected.q.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_compiled_acting_chooses_as_acting_does(rule: str, kernel) -> None:
    solver = make(act_rule=rule)
    quick = copy.deepcopy(solver)
    quick.compile_acting()
    for seed in range(20):
        observation, given = 2 * numbers(5, seed=seed) - 1, {"uniforms": numbers(T, seed=seed)}
        masked = given | {"invalid_actions": torch.tensor([False, seed % 3 == 0, False])}
        for options in ({}, given, {"deterministic": True}, masked):
            drawn = {"generator": torch.Generator().manual_seed(seed)}
            expected = solver.act(observation, **options, **drawn)
            drawn = {"generator": torch.Generator().manual_seed(seed)}
            assert torch.equal(quick.act(observation[None], **(lift(options) | drawn))[0], expected)
            drawn = {"generator": torch.Generator().manual_seed(seed)}
            assert quick.act(observation.numpy(), **options, **drawn) == expected


@pytest.mark.parametrize("rule", RULES)
def test_compiled_acting_chooses_for_a_batch_as_acting_does(rule: str, kernel) -> None:
    solver = make(act_rule=rule)
    quick = copy.deepcopy(solver)
    quick.compile_acting()
    observation = 2 * numbers(3, 4, 5, seed=0) - 1
    closed = numbers(3, 4, ACTIONS, seed=1) < 0.4
    closed[..., 0] &= ~closed.all(-1)
    given = {"uniforms": numbers(T, 4, 3, seed=2).permute(2, 1, 0)}  # not contiguous
    for options in ({}, given, {"deterministic": True}, {"invalid_actions": closed}):
        expected, found = (
            each.act(observation, **options, generator=torch.Generator().manual_seed(3))
            for each in (solver, quick)
        )
        assert torch.equal(found, expected)


@torch.no_grad()
def test_kernel_knows_hidden_layers_of_different_sizes(kernel) -> None:
    encoder = nn.Linear(5, 6)
    parts = ActionMLP(6, 9, ACTIONS, 6), RewardMLP(6, 14, ACTIONS), ValueMLP(6, 3, 1.0)
    model, latent = WorldModel(encoder, *parts, ACTIONS), 3 * numbers(4, 6, seed=0)
    expected = best_first_search(model, latent, iterations=T, rule="greedy").q.numpy()
    none, closed = np.zeros((4, T), np.float32), np.zeros((4, ACTIONS), bool)
    found = kernel(one_row.perceptrons(model), latent.numpy(), closed, none, T, 0, 1.0, 0.1, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def lift(options: dict) -> dict:
    """Options of one observation as those of a batch of one."""
    return {name: value[None] if isinstance(value, Tensor) else value for name, value in options.items()}


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_compiled_acting_follows_weights_and_copies(clone, kernel) -> None:
    solver = make()
    solver.compile_acting()
    observations = 2 * numbers(30, 5, seed=1) - 1

    def actions(of: Solver) -> list[int]:
        return [int(of.act(observation, deterministic=True)) for observation in observations]

    def expected(of: Solver) -> list[int]:
        return of.plan(observations, deterministic=True).q.argmax(1).tolist()

    before = actions(solver)
    assert before == expected(solver)
    other = clone(solver)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    assert actions(other) == expected(other) != before
    assert actions(solver) == before
    solver.load_state_dict(other.state_dict())
    assert actions(solver) == actions(other)


def test_compiled_acting_refuses_what_acting_refuses(kernel) -> None:
    solver = make()
    solver.compile_acting()
    observation = np.zeros(5, np.float32)
    for options, said in (
        ({"invalid_actions": torch.ones(ACTIONS, dtype=torch.bool)}, "leaves no action open"),
        ({"uniforms": torch.full((T,), 1.5)}, r"uniforms must lie in \[0, 1\)"),
        ({"uniforms": torch.zeros(T + 1)}, "uniforms must have shape"),
    ):
        with pytest.raises(ValueError, match=said):
            solver.act(observation, **options)


def test_what_the_kernel_does_not_know_goes_through_torch_compile(
    kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compile_(function, **_):
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(acting_kernel, "LARGEST_BATCH", 2 * ACTIONS * 6 * 9)
    for solver, observation in (
        (make(), numbers(3, 5, seed=0)),  # a row too many
        (make().double(), numbers(2, 5, seed=0)),
        (Solver.create("qnet", SPACE, Discrete(ACTIONS), seed=0).eval(), numbers(5, seed=0)),
    ):
        compiled.clear()
        expected = solver.act(observation, deterministic=True)
        solver.compile_acting()
        assert torch.equal(solver.act(observation, deterministic=True), expected)
        assert len(compiled) == 1
    alone = make().double()
    alone.compile_acting()
    alone.act(numbers(5, seed=0))
    assert len(compiled) == 1  # one row is searched on plain numbers


@torch.no_grad()
def test_kernel_of_a_diverged_model_says_so(kernel) -> None:
    model = make().world_model
    model.value_head.last.bias.fill_(float("nan"))
    noise = np.full((1, T), 0.5, np.float32)
    latent, closed = np.zeros((1, 6), np.float32), np.zeros((1, ACTIONS), bool)
    for rule in range(3):
        found = kernel(one_row.perceptrons(model), latent, closed, noise, T, rule, 1.0, 0.1, 1.0)
        assert np.isnan(found).any()
