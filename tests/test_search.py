"""The batched search against the recursive reference, by value and by gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dtsn.search import Replay, backup, best_first_search, full_expansion
from dtsn.solvers.losses import cql_loss, expansion_loss, q_loss
from reference import all_trees, brute_force_full_tree, random_model, reference_search

TOLERANCE = 1e-12


def gradients(scalar: Tensor, model: torch.nn.Module, root: Tensor) -> list[Tensor]:
    inputs = [*model.parameters(), root]
    grads = torch.autograd.grad(scalar, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]


@pytest.mark.parametrize("case", range(70))
def test_equals_the_recursive_search_in_values_and_gradients(case: int) -> None:
    # 1000 trees and more; the recursion is slow, so fewer rows where the tree is large.
    rng = torch.Generator().manual_seed(case)
    draw = lambda low, high: int(torch.randint(low, high + 1, (), generator=rng))  # noqa: E731
    actions, iterations = draw(2, 15), draw(1, 20)
    rows = 25 if actions * iterations < 100 else 5
    latent = (draw(2, 6),) if case % 3 else (2, 3, 4)
    discount = (1.0, 0.97)[case % 2]
    temperature = (1.0, 0.5)[case % 5 == 0]
    model = random_model(actions, latent, seed=case, scale=2.0)
    root = torch.randn(rows, *latent, generator=rng, dtype=torch.float64).requires_grad_()
    tree = best_first_search(
        model, root, iterations=iterations, discount=discount, temperature=temperature, generator=rng
    )
    references = [
        reference_search(model, root[row : row + 1], tree.selected[row].tolist(), discount, temperature)
        for row in range(rows)
    ]
    q_values = torch.stack([reference.q_values for reference in references])
    log_probs = torch.stack([reference.log_probs for reference in references])
    torch.testing.assert_close(tree.q_values, q_values, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(tree.log_probs, log_probs, rtol=0, atol=TOLERANCE)
    # A random linear function of every output, so that no gradient can hide behind another.
    weight_q = torch.randn(q_values.shape, generator=rng, dtype=torch.float64) / q_values.numel()
    weight_p = torch.randn(log_probs.shape, generator=rng, dtype=torch.float64) / log_probs.numel()
    ours = gradients((weight_q * tree.q_values).sum() + (weight_p * tree.log_probs).sum(), model, root)
    theirs = gradients((weight_q * q_values).sum() + (weight_p * log_probs).sum(), model, root)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)


def test_gradients_of_parts_of_the_output_and_of_a_second_backward() -> None:
    """Parts leave some gradients undefined on the way: each against the reference's same part."""
    model = random_model(3, seed=1)
    root = torch.randn(4, 5, dtype=torch.float64).requires_grad_()
    tree = best_first_search(model, root, iterations=6, generator=torch.Generator().manual_seed(0))
    references = [
        reference_search(model, root[row : row + 1], tree.selected[row].tolist()) for row in range(4)
    ]
    q_values = torch.stack([reference.q_values for reference in references])
    log_probs = torch.stack([reference.log_probs for reference in references])
    for ours, theirs in (
        (tree.q_values[:, 2], q_values[:, 2]),
        (tree.q_values[:, 0], q_values[:, 0]),
        (tree.log_probs[:, 3], log_probs[:, 3]),
        (tree.q, q_values[:, -1]),
    ):
        inputs = [*model.parameters(), root]
        first, again, expected = (
            torch.autograd.grad(output.sum(), inputs, retain_graph=True, allow_unused=True)
            for output in (ours, ours, theirs)
        )
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, again, strict=True))
        for our, their, of in zip(first, expected, inputs, strict=True):
            our, their = (torch.zeros_like(of) if g is None else g for g in (our, their))
            torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(4, seed=2)
    root = torch.randn(3, 5, dtype=torch.float64).requires_grad_()

    def run() -> tuple[Tensor, Tensor, list[Tensor]]:
        tree = best_first_search(model, root, iterations=9, generator=torch.Generator().manual_seed(0))
        total = tree.q_values.square().sum() + tree.log_probs.square().sum()
        return tree.q_values, tree.log_probs, gradients(total, model, root)

    whole = run()
    monkeypatch.setattr(backup, "BLOCK_ELEMENTS", 3 * 37 * 2)
    blocks = run()
    for a, b in zip((whole[0], whole[1], *whole[2]), (blocks[0], blocks[1], *blocks[2]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


# --- one row on plain numbers ------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sample", "greedy", "epsilon_greedy"])
@pytest.mark.parametrize("case", range(12))
def test_one_row_without_gradient_is_the_same_tree_as_on_tensors(case: int, rule: str) -> None:
    rng = torch.Generator().manual_seed(case)
    actions, iterations = 1 + case, (1, 2, 10, 30)[case % 4]
    latent = (4,) if case % 3 else (2, 3, 4)
    model = random_model(actions, latent, seed=case, scale=2.0)
    root = torch.randn(1, *latent, generator=rng, dtype=torch.float64)
    invalid = torch.rand(1, actions, generator=rng) < 0.4 if case % 2 else None
    if invalid is not None:
        invalid[0, case % actions] = False
    options = {
        "iterations": iterations,
        "rule": rule,
        "discount": (1.0, 0.9)[case % 2],
        "temperature": (1.0, 0.3)[case % 3 == 0],
        "invalid_actions": invalid,
        "uniforms": torch.rand(1, iterations, generator=rng),
    }
    expected = best_first_search(model, root, **options)
    with torch.no_grad():
        tree = best_first_search(model, root, **options)
    assert torch.equal(tree.selected, expected.selected)
    for name in ("q", "q_values", "reward", "value", "path_value", "root_children"):
        ours, theirs = getattr(tree, name), getattr(expected, name).detach()
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=TOLERANCE, msg=lambda text, n=name: f"{n}: {text}"
        )
    for ours, theirs in zip(tree.row(0).values(), expected.row(0).values(), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rows", [1, 3])
def test_rules_without_chance_draw_nothing(rows: int) -> None:
    model, root = random_model(3), torch.randn(rows, 5, dtype=torch.float64)
    before = torch.get_rng_state()
    with torch.no_grad():
        best_first_search(model, root, iterations=4, rule="greedy")
        best_first_search(model, root, iterations=4, rule=lambda values, t: values.argmax(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_values_may_be_columns() -> None:
    class Columns:
        def __init__(self) -> None:
            self.expand, self.model = random_model(3).expand, random_model(3)

        def value(self, latent: Tensor) -> Tensor:
            return self.model.value(latent)[:, None]

    root = torch.randn(2, 5, dtype=torch.float64)
    with torch.no_grad():
        both = best_first_search(Columns(), root, iterations=4, rule="greedy")
        one = best_first_search(Columns(), root[:1], iterations=4, rule="greedy")
    torch.testing.assert_close(one.q, both.q[:1])


@pytest.mark.parametrize("rows", [1, 4])
def test_outputs_may_be_strided(rows: int) -> None:
    """A model may return views of its own, as one whose rewards are the same everywhere does."""

    class Strided:
        def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
            children, reward = model.expand(latent)
            return children.transpose(0, 1).contiguous().transpose(0, 1), reward.T.contiguous().T

        def value(self, latent: Tensor) -> Tensor:
            return model.value(latent).repeat_interleave(2)[::2]

    model = random_model(3, seed=2)
    root = torch.randn(rows, 5, dtype=torch.float64)
    for search in (
        lambda of: full_expansion(of, root, depth=3),
        lambda of: best_first_search(of, root, iterations=6, rule="greedy"),
    ):
        torch.testing.assert_close(search(Strided()).q, search(model).q, rtol=0, atol=0)


def test_one_row_draws_what_it_draws_in_a_batch() -> None:
    model, root = random_model(4, seed=3), torch.randn(8, 5, dtype=torch.float64)
    uniforms = torch.rand(8, 12)
    with torch.no_grad():
        together = best_first_search(model, root, iterations=12, uniforms=uniforms)
        for row in range(8):
            here = slice(row, row + 1)
            alone = best_first_search(model, root[here], iterations=12, uniforms=uniforms[here])
            assert torch.equal(alone.selected, together.selected[here])
        first, second = (
            best_first_search(model, root[:1], iterations=12, generator=torch.Generator().manual_seed(7))
            for _ in range(2)
        )
    assert torch.equal(first.selected, second.selected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_row_of_a_diverged_model_still_ends(bad: float) -> None:
    model, root = random_model(3, seed=4), torch.randn(1, 5, dtype=torch.float64)
    with torch.no_grad():
        model.value_head.last.bias.fill_(bad)
        for rule in ("sample", "greedy", "epsilon_greedy"):
            tree = best_first_search(model, root, iterations=6, rule=rule)
            assert not tree.q.isfinite().all()  # its Q-values say so


# --- the expected loss -------------------------------------------------------------------------------


def sample_loss(q_values: Tensor) -> Tensor:
    """L_t ``[B, T]`` for a fixed action and target."""
    action = torch.zeros(len(q_values), dtype=torch.int64)
    target = torch.full((len(q_values),), 0.7, dtype=torch.float64)
    return q_loss(q_values, action, target) + 0.5 * cql_loss(q_values, action)


def exact_expected_loss(model, root: Tensor, actions: int, iterations: int) -> Tensor:
    """Σ_τ π(τ) L(τ) over all trees, by the recursive reference."""
    total = root.new_zeros(())
    for selected in all_trees(actions, iterations):
        result = reference_search(model, root, selected)
        loss = sample_loss(result.q_values[None])[0, -1]
        total = total + result.log_probs.sum().exp() * loss
    return total


def estimates(model, root: Tensor, actions: int, iterations: int, telescoping: bool):
    """The probability [K] of every tree and the single-sample gradient estimate [K, P] there."""
    trees = torch.tensor(list(all_trees(actions, iterations)))
    probs, grads = [], []
    for selected in trees.split(1):
        tree = best_first_search(model, root, iterations=iterations, rule=Replay(selected))
        loss = sample_loss(tree.q_values)
        surrogate = loss[:, -1] + expansion_loss(tree.log_probs, loss, telescoping)
        probs.append(tree.log_probs.sum().exp().detach())
        grads.append(torch.cat([g.flatten() for g in gradients(surrogate.sum(), model, root)]))
    return torch.stack(probs), torch.stack(grads)


@pytest.mark.parametrize(("actions", "iterations"), [(2, 3), (2, 4), (3, 3)])
@pytest.mark.parametrize("telescoping", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_estimate_is_unbiased(actions: int, iterations: int, telescoping: bool, seed: int) -> None:
    model = random_model(actions, seed=seed, scale=1.5)
    root = torch.randn(1, 5, dtype=torch.float64).requires_grad_()
    probs, grads = estimates(model, root, actions, iterations, telescoping)
    exact = gradients(exact_expected_loss(model, root, actions, iterations), model, root)
    assert abs(float(probs.sum()) - 1) < TOLERANCE
    expected = torch.cat([g.flatten() for g in exact])
    torch.testing.assert_close((probs[:, None] * grads).sum(0), expected, rtol=0, atol=TOLERANCE)


def test_telescoping_lowers_the_variance(record_property) -> None:
    ratios = []
    for seed in range(15):
        model = random_model(2, seed=seed, scale=1.5)
        root = torch.randn(1, 5, dtype=torch.float64).requires_grad_()
        variance = {}
        for telescoping in (True, False):
            probs, grads = estimates(model, root, 2, 4, telescoping)
            mean = (probs[:, None] * grads).sum(0)
            variance[telescoping] = float((probs[:, None] * (grads - mean).square()).sum())
        ratios.append(variance[True] / variance[False])
    ratio = float(torch.tensor(ratios).log().mean().exp())
    record_property("variance_ratio_telescoped_over_plain", ratio)
    print(f"variance, telescoped / plain: {ratio:.3f} (geometric mean of {len(ratios)} networks)")
    assert ratio < 1


def test_greedy_loss_jumps_and_expected_loss_does_not() -> None:
    # Along a line in parameter space, halve the grid: a jump keeps its height, a slope's step halves.
    from continuity import line_losses

    coarse, fine = line_losses(100), line_losses(200)
    largest = {
        name: (float(coarse[name].diff().abs().max()), float(fine[name].diff().abs().max()))
        for name in ("greedy", "expected")
    }
    assert largest["greedy"][1] > 0.8 * largest["greedy"][0]
    assert largest["expected"][1] < 0.6 * largest["expected"][0]


# --- the full tree -----------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.97])
@pytest.mark.parametrize(("actions", "depth"), [(2, 1), (3, 2), (2, 4), (4, 3)])
def test_full_expansion_equals_brute_force(actions: int, depth: int, discount: float) -> None:
    model = random_model(actions, seed=depth)
    root = torch.randn(3, 5, dtype=torch.float64).requires_grad_()
    tree = full_expansion(model, root, depth=depth, discount=discount)
    expected = torch.stack(
        [brute_force_full_tree(model, root[row : row + 1], depth, discount) for row in range(3)]
    )
    torch.testing.assert_close(tree.q, expected, rtol=0, atol=TOLERANCE)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    ours, theirs = (gradients((weight * q).sum(), model, root) for q in (tree.q, expected))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("actions", "depth"), [(2, 3), (3, 2)])
def test_best_first_that_opens_the_whole_tree_is_the_full_expansion(actions: int, depth: int) -> None:
    model = random_model(actions, seed=3)
    root = torch.randn(2, 5, dtype=torch.float64)
    full = full_expansion(model, root, depth=depth)
    best_first = best_first_search(model, root, iterations=full.selected.shape[1], rule=Replay(full.selected))
    torch.testing.assert_close(best_first.q, full.q, rtol=0, atol=TOLERANCE)
    for name in ("parent", "depth", "root_action", "expanded_at"):
        assert torch.equal(getattr(best_first, name), getattr(full, name)), name
    torch.testing.assert_close(best_first.reward, full.reward, rtol=0, atol=TOLERANCE)
    assert torch.equal(best_first.best_leaf, full.best_leaf)


# --- selection ---------------------------------------------------------------------------------------


def test_row_alone_equals_row_in_the_batch() -> None:
    model = random_model(5, seed=4).float()
    root, uniforms = torch.randn(16, 5), torch.rand(16, 12)
    batch = best_first_search(model, root, iterations=12, uniforms=uniforms)
    for row in range(16):
        alone = best_first_search(model, root[row : row + 1], iterations=12, uniforms=uniforms[row : row + 1])
        assert torch.equal(alone.selected[0], batch.selected[row])
        torch.testing.assert_close(alone.q_values[0], batch.q_values[row], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["sample", "greedy", "epsilon_greedy"])
def test_same_generator_same_tree(rule) -> None:
    model = random_model(3, seed=5)
    root = torch.randn(8, 5, dtype=torch.float64)
    trees = [
        best_first_search(
            model, root, iterations=9, rule=rule, epsilon=0.5, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert torch.equal(trees[0].selected, trees[1].selected)
    assert torch.equal(trees[0].q_values, trees[1].q_values)
    assert torch.equal(trees[0].selected, trees[2].selected) == (rule == "greedy")


def test_sampling_follows_the_policy() -> None:
    # One root, many draws: frequencies of the second expansion against π over the root's children.
    model = random_model(4, seed=6, scale=2.0)
    root = torch.randn(1, 5, dtype=torch.float64).expand(20000, 5)
    for temperature in (1.0, 0.3):
        tree = best_first_search(
            model, root, iterations=2, temperature=temperature, generator=torch.Generator().manual_seed(0)
        )
        policy = torch.softmax(tree.path_value[0, 1:5] / temperature, 0)
        counts = torch.bincount(tree.selected[:, 1] - 1, minlength=4) / 20000
        assert float((counts - policy).abs().max()) < 0.015
        torch.testing.assert_close(tree.log_probs[:, 1], policy.log()[tree.selected[:, 1] - 1])


def test_greedy_expands_the_best_open_node_and_epsilon_mixes_in_any() -> None:
    model = random_model(3, seed=7, scale=2.0)
    root = torch.randn(2000, 5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for rule, share in (("greedy", 1.0), ("epsilon_greedy", 0.7 + 0.3 / 5)):
        tree = best_first_search(model, root, iterations=3, rule=rule, epsilon=0.3, generator=generator)
        # Five nodes are open before the third expansion: two siblings and three children.
        is_open = (tree.expanded_at[:, :7] >= 2) & (torch.arange(7) > 0)
        best = tree.path_value[:, :7].masked_fill(~is_open, -torch.inf).argmax(1)
        assert abs(float((tree.selected[:, 2] == best).double().mean()) - share) < 0.03
        assert bool(is_open.gather(1, tree.selected[:, 2:]).all())


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-24])
@pytest.mark.parametrize("rule", ["sample", "epsilon_greedy"])
def test_extreme_uniforms_pick_open_nodes(uniform: float, rule) -> None:
    model = random_model(3, seed=8, scale=5.0).float()
    root = torch.randn(64, 5) * 3
    tree = best_first_search(model, root, iterations=15, rule=rule, uniforms=torch.full((64, 15), uniform))
    assert all(len(set(row)) == 15 for row in tree.selected.tolist())


def test_invalid_root_actions_are_never_expanded() -> None:
    model = random_model(4, seed=9)
    root = torch.randn(50, 5, dtype=torch.float64).requires_grad_()
    invalid = torch.rand(50, 4) < 0.5
    invalid[:, 2] = False
    tree = best_first_search(
        model, root, iterations=8, invalid_actions=invalid, generator=torch.Generator().manual_seed(0)
    )
    assert bool((tree.q_values == -torch.inf)[invalid[:, None].expand(-1, 8, -1)].all())
    assert bool(tree.q_values[~invalid[:, None].expand(-1, 8, -1)].isfinite().all())
    used = tree.root_action.gather(1, tree.selected[:, 1:])
    assert not bool(invalid.gather(1, used).any())
    loss = cql_loss(tree.q_values, torch.full((50,), 2)).sum() + tree.log_probs.sum()
    assert all(bool(g.isfinite().all()) for g in gradients(loss, model, root))
    full = full_expansion(model, root, depth=2, invalid_actions=invalid)
    assert torch.equal(full.q == -torch.inf, invalid)


def test_one_action_is_a_chain_and_t_may_exceed_any_tree() -> None:
    model = random_model(1, seed=10)
    root = torch.randn(1, 5, dtype=torch.float64)
    tree = best_first_search(model, root, iterations=200)
    assert tree.selected.tolist() == [list(range(200))]
    assert tree.depth[0, -1] == 200
    assert not bool(tree.log_probs.any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_runs_with_float32_tables(dtype: torch.dtype) -> None:
    model = random_model(3, seed=11).float()
    root = torch.randn(4, 5).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        tree = best_first_search(model, root, iterations=7, generator=torch.Generator().manual_seed(0))
    assert tree.q_values.dtype == tree.path_value.dtype == torch.float32
    grads = gradients(tree.q_values.sum() + tree.log_probs.sum(), model, root)
    assert all(bool(g.isfinite().all()) for g in grads)
    exact = best_first_search(model.double(), root.double(), iterations=7, rule=Replay(tree.selected))
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(tree.q_values.double(), exact.q_values, rtol=0, atol=tolerance)


def test_log_probs_keep_their_precision_at_large_path_values() -> None:
    model = random_model(3, seed=12)
    with torch.no_grad():
        model.value_head.last.bias.fill_(-3000.0)
    root = torch.randn(4, 5, dtype=torch.float64)
    exact = best_first_search(model, root, iterations=6, generator=torch.Generator().manual_seed(0))
    rough = best_first_search(model.float(), root.float(), iterations=6, rule=Replay(exact.selected))
    assert float((rough.log_probs.double() - exact.log_probs).detach().abs().max()) < 2e-3


def test_searching_leaves_no_trace_in_the_model() -> None:
    model = random_model(3, seed=13)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        best_first_search(model, torch.randn(2, 5, dtype=torch.float64), iterations=5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
