"""Invalid actions, ends and dead ends: the searches against the recursive reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dtsn.search import Expansion, Replay, backup, best_first_search, full, full_expansion
from dtsn.solvers.losses import expansion_loss
from reference import MaskedModel, all_masked_trees, brute_force_full_tree, random_model, reference_search
from test_search import TOLERANCE, gradients, sample_loss

ENDS = ["bool", "probability", "none"]
TABLES = ("selected", "reward", "value", "path_value", "exists", "leaf", "parent", "depth", "root_action")


def masked_model(case: int, actions: int, latent: tuple[int, ...], ends: str | None = None) -> MaskedModel:
    base = random_model(actions, latent, seed=case, scale=2.0)
    share = (0.0, 0.3, 0.6, 0.8)[case % 4]
    return MaskedModel(base, case, invalid=share, ends=ends or ENDS[case % 3])


def masked_case(case: int, rows: int) -> tuple[MaskedModel, Tensor, dict, Tensor]:
    """A model, roots, options of a search, and which root actions the caller closes ``[B, A]``."""
    rng = torch.Generator().manual_seed(case)
    actions, iterations = 1 + case % 5, 1 + case % 12
    latent = (4,) if case % 3 else (2, 3, 4)
    model = masked_model(case, actions, latent)
    root = model.roots(rows, latent, rng)
    invalid = torch.rand(len(root), actions, generator=rng) < 0.3
    with torch.no_grad():
        invalid &= ~(invalid | ~model.expand(root).valid).all(1, keepdim=True)
    options = {
        "iterations": iterations,
        "discount": (1.0, 0.9)[case % 2],
        "temperature": (1.0, 0.5)[case % 5 == 0],
        "uniforms": torch.rand(len(root), iterations, generator=rng),
    }
    if case % 2:
        options["invalid_actions"] = invalid
    return model, root, options, invalid if case % 2 else torch.zeros_like(invalid)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("case", range(60))
def test_equals_the_recursive_search(case: int, blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if blocks:
        monkeypatch.setattr(backup, "BLOCK_ELEMENTS", 50)
    model, root, options, invalid = masked_case(case, rows=12)
    root.requires_grad_()
    tree = best_first_search(model, root, **options)
    discount, temperature = options["discount"], options["temperature"]
    references = [
        reference_search(
            model,
            root[row : row + 1],
            tree.selected[row].tolist(),
            discount,
            temperature,
            invalid[row].tolist(),
        )
        for row, slots in enumerate(tree.selected.tolist())
    ]
    q_values = torch.stack([reference.q_values for reference in references])
    log_probs = torch.stack([reference.log_probs for reference in references])
    torch.testing.assert_close(tree.q_values, q_values, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(tree.log_probs, log_probs, rtol=0, atol=TOLERANCE)
    rng = torch.Generator().manual_seed(case)
    weight_q = torch.randn(q_values.shape, generator=rng, dtype=torch.float64) / q_values.numel()
    weight_p = torch.randn(log_probs.shape, generator=rng, dtype=torch.float64) / log_probs.numel()
    finite = q_values.isfinite()
    ours = gradients(
        (weight_q * tree.q_values)[finite].sum() + (weight_p * tree.log_probs).sum(), model, root
    )
    theirs = gradients((weight_q * q_values)[finite].sum() + (weight_p * log_probs).sum(), model, root)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rule", ["sample", "greedy", "epsilon_greedy"])
@pytest.mark.parametrize("case", range(24))
def test_one_row_on_numbers_is_the_same_tree_as_on_tensors(case: int, rule: str) -> None:
    model, root, options, _ = masked_case(case, rows=3)
    together = best_first_search(model, root, rule=rule, **options)
    for row in range(len(root)):
        here = slice(row, row + 1)
        own = {n: v[here] if isinstance(v, Tensor) else v for n, v in options.items()}
        with torch.no_grad():
            alone = best_first_search(model, root[here], rule=rule, **own)
        for name in ("q", "q_values", "terminal", "root_terminal", *TABLES):
            ours, theirs = getattr(alone, name), getattr(together, name)
            if theirs is None:
                assert ours is None, name
            else:
                torch.testing.assert_close(ours, theirs[here].detach(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", range(12))
def test_without_gradient_the_batch_is_the_same(case: int) -> None:
    model, root, options, _ = masked_case(case, rows=6)
    expected = best_first_search(model, root, **options)
    with torch.no_grad():
        tree = best_first_search(model, root, **options)
    assert tree.backed_up is None
    for name in ("q", "q_values", "log_probs", *TABLES):
        torch.testing.assert_close(
            getattr(tree, name), getattr(expected, name).detach(), rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("case", range(9))
def test_full_expansion_equals_brute_force(
    case: int, depth: int, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions, discount = 2 + case % 2, (1.0, 0.9)[case % 2]
    if parts:
        monkeypatch.setattr(full, "LEAVES_AT_ONCE", 2 * actions**depth)
    rng = torch.Generator().manual_seed(case)
    model = masked_model(1 + case % 3, actions, (4,), ENDS[case // 3])
    root = model.roots(5, (4,), rng).requires_grad_()
    valid = model.expand(root).valid
    closed = valid & (valid.cumsum(1) > 1) if case % 2 else torch.zeros_like(valid)
    options = {"invalid_actions": closed} if case % 2 else {}
    tree = full_expansion(model, root, depth=depth, discount=discount, **options)
    expected = torch.stack(
        [
            brute_force_full_tree(model, root[row : row + 1], depth, discount, closed[row].tolist())
            for row in range(5)
        ]
    )
    torch.testing.assert_close(tree.q, expected, rtol=0, atol=TOLERANCE)
    weight = torch.randn(expected.shape, generator=rng, dtype=torch.float64)
    finite = expected.isfinite()
    ours, theirs = (gradients((weight * q)[finite].sum(), model, root) for q in (tree.q, expected))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)
    best = tree.path_value.gather(1, tree.best_leaf[:, None])[:, 0]
    torch.testing.assert_close(best, tree.q.detach().amax(1), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("iterations", [2, 3, 4])
@pytest.mark.parametrize("telescoping", [True, False])
@pytest.mark.parametrize("ends", ENDS)
def test_gradient_estimate_is_unbiased(iterations: int, telescoping: bool, ends: str) -> None:
    """By enumeration of all trees, some of which stop early."""
    lengths, share = set(), 0.7 if ends == "none" else 0.35
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        model = MaskedModel(random_model(2, seed=seed, scale=1.5), seed, invalid=share, ends=ends)
        root = model.roots(1, (5,), rng).requires_grad_()
        total, exact = 0.0, root.new_zeros(())
        estimate = [torch.zeros_like(x) for x in (*model.parameters(), root)]
        for selected in all_masked_trees(model, root, 2, iterations):
            reference = reference_search(model, root, selected)
            tree = best_first_search(
                model, root, iterations=iterations, rule=Replay(torch.tensor([selected]))
            )
            assert tree.selected.tolist() == [selected]
            lengths.add(selected.count(-1))
            # Q of an invalid action is −inf: the loss is of those that exist.
            there = reference.q_values[0].isfinite()
            loss = sample_loss(tree.q_values[:, :, there])
            surrogate = loss[:, -1] + expansion_loss(tree.log_probs, loss, telescoping)
            probability = reference.log_probs.sum().exp()
            total += float(probability.detach())
            losses = sample_loss(reference.q_values[None][:, :, there])
            exact = exact + probability * losses[0, -1]
            for sum_, part in zip(estimate, gradients(surrogate.sum(), model, root), strict=True):
                sum_ += probability.detach() * part
        assert abs(total - 1) < TOLERANCE
        for ours, theirs in zip(estimate, gradients(exact, model, root), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
    assert iterations == 2 or lengths - {0}  # some did stop


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    actions=st.integers(1, 5),
    iterations=st.integers(1, 15),
    invalid=st.sampled_from([0.0, 0.2, 0.5, 0.8]),
    ends=st.sampled_from(ENDS),
    rule=st.sampled_from(["sample", "greedy", "epsilon_greedy"]),
)
def test_properties(seed: int, actions: int, iterations: int, invalid: float, ends: str, rule: str) -> None:
    rng = torch.Generator().manual_seed(seed)
    model = MaskedModel(random_model(actions, (3,), seed=seed, scale=2.0), seed, invalid, ends)
    root = model.roots(4, (3,), rng)
    uniforms = torch.rand(len(root), iterations, generator=rng)
    tree = best_first_search(model, root, iterations=iterations, rule=rule, uniforms=uniforms)
    for row in range(len(root)):
        selected = [slot for slot in tree.selected[row].tolist() if slot >= 0]
        assert len(set(selected)) == len(selected)
        assert tree.selected[row].tolist() == selected + (iterations - len(selected)) * [-1]
        assert bool(tree.exists[row, selected].all())  # an invalid action is never chosen
        if tree.terminal is not None:
            assert not bool((tree.terminal[row, selected] > 0.5).any())  # nor an end
        open_nodes = tree.exists[row] & (tree.expanded_at[row] == iterations)
        if tree.terminal is not None:
            open_nodes &= ~(tree.terminal[row] > 0.5)
        assert len(selected) == iterations or not bool(open_nodes.any())  # stops only with nothing left
        alone = best_first_search(
            model, root[row : row + 1], iterations=iterations, rule=rule, uniforms=uniforms[row : row + 1]
        )
        assert torch.equal(alone.selected[0], tree.selected[row])
        torch.testing.assert_close(alone.q_values[0], tree.q_values[row], rtol=0, atol=TOLERANCE)
    assert torch.equal(tree.exists, tree.path_value != -torch.inf)
    below = tree.root_action[:, :, None] == torch.arange(actions)
    leaves = tree.path_value.masked_fill(~tree.leaf, -torch.inf)[:, :, None].where(below, -torch.inf)
    torch.testing.assert_close(tree.q, leaves.amax(1), rtol=0, atol=TOLERANCE)
    stopped = tree.selected < 0
    for t in range(1, iterations):  # a row that stopped keeps its Q-values
        here = stopped[:, t]
        assert torch.equal(tree.q_values[here, t], tree.q_values[here, t - 1])
    if rule == "sample":
        assert not bool(tree.log_probs[stopped].any())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    actions=st.integers(1, 3),
    depth=st.integers(1, 4),
    invalid=st.sampled_from([0.0, 0.3, 0.7]),
    ends=st.sampled_from(ENDS),
    discount=st.sampled_from([1.0, 0.8]),
)
def test_properties_of_a_full_expansion(
    seed: int, actions: int, depth: int, invalid: float, ends: str, discount: float
) -> None:
    model = MaskedModel(random_model(actions, (3,), seed=seed, scale=2.0), seed, invalid, ends)
    root = model.roots(3, (3,), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        tree = full_expansion(model, root, depth=depth, discount=discount)
        for row in range(len(root)):
            slow = brute_force_full_tree(model, root[row : row + 1], depth, discount)
            torch.testing.assert_close(tree.q[row], slow, rtol=0, atol=TOLERANCE)
            chosen = tree.selected[row][tree.selected[row] >= 0]
            assert bool(tree.exists[row, chosen].all())
            if tree.terminal is not None:
                assert not bool((tree.terminal[row, chosen] > 0.5).any())
    assert torch.equal(tree.exists, tree.path_value != -torch.inf)


class Line:
    """A corridor of five cells, −1 a step to the right; the last is the goal. Right is action 1."""

    def __init__(self, goal: float = 10.0):
        self.goal = goal

    def expand(self, latent: Tensor) -> Expansion:
        children = torch.stack([latent - 1, latent + 1], 1)
        place = children[:, :, 0]
        reward = torch.where(place == 4, self.goal, -1.0).double()
        return Expansion(children, reward, (place >= 0) & (place <= 4), place == 4)

    def value(self, latent: Tensor) -> Tensor:
        return latent[:, 0] * 0 - 50.0


@pytest.mark.parametrize("rows", [1, 3])
def test_the_worth_of_arriving_is_not_destroyed_by_searching_on(rows: int) -> None:
    with torch.no_grad():
        for iterations in (1, 4, 30):
            root = torch.full((rows, 1), 3.0, dtype=torch.float64)
            tree = best_first_search(Line(), root, iterations=iterations, rule="greedy")
            assert tree.q[:, 1].tolist() == rows * [10.0]
            assert tree.best_leaf.tolist() == rows * [2]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_world_that_is_exhausted_stops_the_search(rows: int) -> None:
    class Two(Line):
        """One step, then nowhere to go: a dead end is worth what the model says."""

        def expand(self, latent: Tensor) -> Expansion:
            children, reward, _, _ = super().expand(latent)
            return Expansion(children, reward, (latent == 1).expand(-1, 2))

    root = torch.ones(rows, 1, dtype=torch.float64)
    with torch.no_grad():
        tree = best_first_search(Two(), root, iterations=6, rule="greedy")
    assert tree.selected.tolist() == rows * [[0, 1, 2, -1, -1, -1]]
    assert tree.q.tolist() == rows * [[-51.0, -51.0]]
    assert tree.leaf[0].nonzero().flatten().tolist() == [1, 2]
    assert tree.exists.sum(1).tolist() == rows * [3]


def test_masks_may_be_integers_or_numpy_arrays() -> None:
    class Other(Line):
        def __init__(self, change):
            super().__init__()
            self.change = change

        def expand(self, latent: Tensor) -> Expansion:
            children, reward, valid, terminal = super().expand(latent)
            return Expansion(children, reward, self.change(valid), self.change(terminal))

    root = torch.full((2, 1), 2.0, dtype=torch.float64)
    plain = best_first_search(Line(), root, iterations=5, rule="greedy")
    for change in (
        Tensor.numpy,
        lambda mask: mask.numpy().astype("int8"),
        lambda mask: mask.to(torch.uint8),
        lambda mask: mask.long(),
    ):
        tree = best_first_search(Other(change), root, iterations=5, rule="greedy")
        assert torch.equal(tree.selected, plain.selected)
        assert torch.equal(tree.q, plain.q)
        for invalid in (change(torch.tensor([[True, False]] * 2)),):
            assert (
                best_first_search(Line(), root, iterations=2, invalid_actions=invalid).q.tolist()
                == full_expansion(Line(), root, depth=2, invalid_actions=invalid).q.tolist()
            )


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("valid", "terminal", "words"),
    [
        (lambda m: m.float(), None, "valid must be bool"),
        (lambda m: m[:, :1], None, r"valid must be bool .*got torch.bool"),
        (lambda m: m.long() * 2, None, "valid must be .*got 2"),
        (lambda m: m & False, None, "valid action at the root, got none in row 0"),
        (None, lambda m: m.double() * 1.5, r"terminal must be .*\[0, 1\], got 1.5"),
        (None, lambda m: m.double() * -0.5, r"terminal must be .*\[0, 1\], got -0.5"),
        (None, lambda m: m.long() * 3, "terminal must be .*got 3"),
        (None, lambda m: m.double()[0], "terminal must have shape"),
        (None, lambda m: ["x"], "a mask must be"),
    ],
)
def test_bad_masks(rows: int, valid, terminal, words: str) -> None:
    class Bad(Line):
        def expand(self, latent: Tensor) -> Expansion:
            children, reward, _, _ = super().expand(latent)
            masks = (
                change and change(torch.ones_like(reward, dtype=torch.bool)) for change in (valid, terminal)
            )
            return Expansion(children, reward, *masks)

    with torch.no_grad():
        root = torch.zeros(rows, 1, dtype=torch.float64)
        with pytest.raises(ValueError, match=words):
            best_first_search(Bad(), root, iterations=3, rule="greedy")
        with pytest.raises(ValueError, match=words):
            full_expansion(Bad(), root, depth=2)


def test_masks_that_come_only_later_are_refused() -> None:
    class Late(Line):
        def expand(self, latent: Tensor) -> Expansion:
            children, reward, valid, _ = super().expand(latent)
            return Expansion(children, reward, valid if bool((latent != 2).any()) else None)

    for rows in (1, 2):
        root = torch.full((rows, 1), 2.0, dtype=torch.float64)
        with torch.no_grad(), pytest.raises(ValueError, match="masks for the root too"):
            best_first_search(Late(), root, iterations=3, rule="greedy")


def test_three_values_are_no_expansion() -> None:
    class Three(Line):
        def expand(self, latent: Tensor):
            return super().expand(latent)[:3]

    with pytest.raises(ValueError, match="got 3 values"):
        best_first_search(Three(), torch.zeros(1, 1), iterations=2)


def test_half_precision_runs_with_masks() -> None:
    model = MaskedModel(random_model(3, seed=11), 0, ends="probability").float()
    model.phase = model.phase.float()
    root = torch.randn(4, 5).requires_grad_()
    root = root[model.expand(root).valid.any(1)].detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        tree = best_first_search(model, root, iterations=7, generator=torch.Generator().manual_seed(0))
    assert tree.q_values.dtype == tree.path_value.dtype == torch.float32
    loss = tree.q_values[tree.q_values.isfinite()].sum() + tree.log_probs.sum()
    assert all(bool(g.isfinite().all()) for g in gradients(loss, model, root))
