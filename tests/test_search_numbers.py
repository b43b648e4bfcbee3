"""Numbers that are not finite, extreme temperatures and options that are none: both paths and every rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dtsn.search import Expansion, Replay, best_first_search, full_expansion
from reference import MaskedModel, random_model
from test_search import gradients

RULES = ["sample", "greedy", "epsilon_greedy"]


class Strange:
    """A tree world by table: children, rewards and values of numbered places; some are not finite."""

    def __init__(self, seed: int, actions: int, numbers: list[float], masks: bool):
        generator = np.random.default_rng(seed)
        shape = (40, actions)
        self.next = torch.tensor(generator.integers(0, 40, shape))
        self.reward = torch.tensor(generator.normal(size=shape))
        self.values = torch.tensor(generator.normal(size=40))
        for table in (self.reward, self.values):
            table[torch.tensor(generator.random(table.shape) < 0.15)] = torch.tensor(
                generator.choice(numbers), dtype=torch.float64
            )
        self.valid = torch.tensor(generator.random(shape) < 0.7)
        self.valid[:, 0] = True
        self.terminal = torch.tensor(generator.random(shape) < 0.2)
        self.masks = masks

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor] | Expansion:
        place = latent[:, 0].long()
        children = self.next[place].double()[:, :, None]
        if not self.masks:
            return children, self.reward[place]
        return Expansion(children, self.reward[place], self.valid[place], self.terminal[place])

    def value(self, latent: Tensor) -> Tensor:
        return self.values[latent[:, 0].long()]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    actions=st.integers(1, 4),
    numbers=st.lists(st.sampled_from([torch.nan, torch.inf, -torch.inf]), min_size=1, max_size=3),
    masks=st.booleans(),
    rule=st.sampled_from(RULES),
    iterations=st.integers(1, 12),
)
def test_paths_agree_on_numbers_that_are_not_finite(
    seed: int, actions: int, numbers: list[float], masks: bool, rule: str, iterations: int
) -> None:
    model = Strange(seed, actions, numbers, masks)
    uniforms = torch.rand(3, iterations, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    root = torch.arange(3, dtype=torch.float64)[:, None]
    options = {"iterations": iterations, "rule": rule, "temperature": (1.0, 0.5)[seed % 2]}
    together = best_first_search(model, root, uniforms=uniforms, **options)
    with_gradient = best_first_search(model, root.clone().requires_grad_(), uniforms=uniforms, **options)
    for row in range(3):
        slots = [slot for slot in together.selected[row].tolist() if slot >= 0]
        assert len(set(slots)) == len(slots)  # no node is expanded twice, whatever the model says
        assert bool(together.exists[row, slots].all())
        here = slice(row, row + 1)
        with torch.no_grad():
            alone = best_first_search(model, root[here], uniforms=uniforms[here], **options)
        assert torch.equal(alone.selected, together.selected[here])
        for name in ("q", "q_values", "path_value"):
            ours, theirs = getattr(alone, name), getattr(together, name)[here]
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    torch.testing.assert_close(together.q, together.q_values[:, -1], equal_nan=True)
    torch.testing.assert_close(together.q, with_gradient.q, equal_nan=True)


def test_q_of_an_invalid_action_has_no_gradient() -> None:
    model = random_model(3, seed=1)
    root = torch.randn(4, 5, dtype=torch.float64).requires_grad_()
    invalid = torch.zeros(4, 3, dtype=torch.bool)
    invalid[:, 1] = True
    for tree in (
        best_first_search(model, root, iterations=1, invalid_actions=invalid),
        best_first_search(model, root, iterations=6, invalid_actions=invalid),
        full_expansion(model, root, depth=2, invalid_actions=invalid),
    ):
        assert bool((tree.q[:, 1] == -torch.inf).all())
        for gradient in gradients(tree.q_values[:, :, 1].sum(), model, root):
            assert not bool(gradient.any())


@pytest.mark.parametrize("scale", [1.0, 1e9, 1e30])
@pytest.mark.parametrize("temperature", [1e-30, 1e-20, 1e-3, 1e30])
def test_extreme_temperatures_give_log_probs(temperature: float, scale: float) -> None:
    model = random_model(3, seed=2).float()
    with torch.no_grad():
        model.value_head.last.weight.mul_(scale)
        model.value_head.last.bias.fill_(scale)
    root = torch.randn(5, 5).requires_grad_()
    tree = best_first_search(model, root, iterations=8, temperature=temperature)
    assert not bool(tree.log_probs.isnan().any())
    assert bool((tree.log_probs <= 0).all())
    if temperature <= 1e-20:  # as good as greedy
        greedy = best_first_search(model, root, iterations=8, rule="greedy")
        assert torch.equal(tree.selected, greedy.selected)
        assert not bool(tree.log_probs.any())
    with torch.no_grad():
        alone = best_first_search(
            model, root[:1], iterations=8, temperature=temperature, uniforms=torch.rand(1, 8)
        )
    assert not bool(alone.log_probs.isnan().any())


def test_an_empty_batch_is_refused() -> None:
    model, root = random_model(3), torch.empty(0, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="root must hold at least one row"):
        full_expansion(model, root, depth=2)
    with pytest.raises(ValueError, match="root must hold at least one row"):
        best_first_search(model, root, iterations=2)


@pytest.mark.parametrize(
    "value", [torch.tensor(0.5), torch.ones(1, requires_grad=True), True, "1", None, [1.0]]
)
@pytest.mark.parametrize("option", ["temperature", "epsilon", "discount"])
def test_options_must_be_plain_numbers(option: str, value: object) -> None:
    root = torch.randn(2, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"{option} must be a number, got .*{type(value).__name__}"):
        best_first_search(random_model(3), root, iterations=2, **{option: value})


@pytest.mark.parametrize("value", [2.0, True, torch.tensor(2), "2", None])
def test_counts_must_be_whole_numbers(value: object) -> None:
    model, root = random_model(3), torch.randn(2, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="iterations must be a whole number"):
        best_first_search(model, root, iterations=value)
    with pytest.raises(ValueError, match="depth must be a whole number"):
        full_expansion(model, root, depth=value)


def test_scalars_of_numpy_and_integers_are_numbers() -> None:
    model, root = random_model(3), torch.randn(2, 5, dtype=torch.float64)
    uniforms = torch.rand(2, 4)
    expected = best_first_search(model, root, iterations=4, temperature=2.0, discount=1.0, uniforms=uniforms)
    for iterations, temperature, discount in ((np.int64(4), np.float32(2), 1), (4, 2, np.float64(1))):
        tree = best_first_search(
            model, root, iterations=iterations, temperature=temperature, discount=discount, uniforms=uniforms
        )
        assert torch.equal(tree.q_values, expected.q_values)


@pytest.mark.parametrize("rule", ["greedy", "epsilon_greedy", lambda values, t: values.argmax(1)])
def test_rules_that_draw_nothing_from_the_policy_have_no_log_probs(rule) -> None:
    model, root = random_model(3), torch.randn(2, 5, dtype=torch.float64)
    tree = best_first_search(model, root, iterations=4, rule=rule)
    with pytest.raises(ValueError, match="log_probs must be of a search by rule 'sample'"):
        _ = tree.log_probs
    again = best_first_search(model, root, iterations=4, rule=Replay(tree.selected))
    assert torch.equal(again.q_values, tree.q_values)
    assert bool((again.log_probs <= 0).all())


def test_replay_of_a_search_that_stopped_early() -> None:
    model = MaskedModel(random_model(2, seed=3), 3, invalid=0.6)
    root = model.roots(8, (5,), torch.Generator().manual_seed(0)).requires_grad_()
    tree = best_first_search(model, root, iterations=9, generator=torch.Generator().manual_seed(0))
    assert bool((tree.selected < 0).any())
    again = best_first_search(model, root, iterations=9, rule=Replay(tree.selected))
    for name in ("selected", "q_values", "log_probs"):
        assert torch.equal(getattr(again, name), getattr(tree, name))


def two_ways(theta: float) -> tuple[float, float]:
    """Q of the left action, by greedy search of two expansions and by the full tree, as θ moves.

    Left is worth θ at first sight and hides 16 θ; right is worth 2 at first sight and hides nothing better.
    """

    class World:
        def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
            children = torch.stack([2 * latent + 1, 2 * latent + 2], 1)
            return children, torch.zeros(len(latent), 2, dtype=torch.float64)

        def value(self, latent: Tensor) -> Tensor:
            table = torch.tensor([0.0, 8 * theta, 16.0, 16 * theta, 0.0, 1.0, 1.0], dtype=torch.float64)
            return table[latent[:, 0].long()]

    root = torch.zeros(1, 1, dtype=torch.float64)
    greedy = best_first_search(World(), root, iterations=2, rule="greedy")
    return float(greedy.q[0, 0]), float(full_expansion(World(), root, depth=2).q[0, 0])


def test_greedy_search_jumps_where_the_choice_changes() -> None:
    """At θ = 2 the better of two open nodes changes, and Q leaps from 16 to 32; the full tree's does not."""
    below, above = two_ways(2 - 1e-9), two_ways(2 + 1e-9)
    assert below[0] == pytest.approx(16, abs=1e-6)
    assert above[0] == pytest.approx(32, abs=1e-6)
    assert below[1] == pytest.approx(above[1], abs=1e-6)
