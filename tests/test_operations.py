"""What a search costs in dispatched operations: times depend on the machine, counts do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dtsn.bench.acting import Constant
from dtsn.search import Expansion, backup, best_first_search, full, full_expansion
from reference import random_model


class Counter(TorchDispatchMode):
    """Counts operations, and the elements of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.largest = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += 1
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def operations(
    iterations: int, grad: bool, actions: int = 4, rows: int = 2, model_class=Constant, **options
) -> Counter:
    """Of a search with a model that costs nothing: every operation left is the search's own."""
    latent = torch.randn(rows, 5, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        model = model_class(random_model(actions), latent)
        with Counter() as counter:
            tree = best_first_search(model, latent, iterations=iterations, **options)
            if grad:
                (tree.q_values.sum() + tree.log_probs.sum()).backward()
    return counter


@pytest.mark.parametrize(
    ("grad", "options", "of_an_iteration", "besides"),
    [
        (False, {}, 22, 45),
        (False, {"rule": "greedy"}, 17, 45),
        (False, {"discount": 0.9}, 31, 50),
        (True, {}, 30, 220),
    ],
)
def test_operations_of_a_search(grad: bool, options: dict, of_an_iteration: int, besides: int) -> None:
    operations(2, grad, **options)  # what torch makes once
    ten, twenty = (operations(iterations, grad, **options).count for iterations in (10, 20))
    assert (twenty - ten) / 10 <= of_an_iteration
    assert 2 * ten - twenty <= besides


class Masked(Constant):
    """The same with masks, all valid and nothing an end."""

    def expand(self, latent: Tensor) -> Expansion:
        valid = torch.ones_like(self.reward, dtype=torch.bool)
        return Expansion(self.children, self.reward, valid, ~valid)


@pytest.mark.parametrize(("grad", "rows", "of_an_iteration"), [(False, 2, 50), (True, 2, 55), (False, 1, 8)])
def test_operations_of_a_search_with_masks(grad: bool, rows: int, of_an_iteration: int) -> None:
    operations(2, grad, rows=rows, model_class=Masked)
    ten, twenty = (operations(n, grad, rows=rows, model_class=Masked).count for n in (10, 20))
    assert (twenty - ten) / 10 <= of_an_iteration


def test_operations_of_acting_for_one_row() -> None:
    operations(2, False, rows=1)
    ten, twenty = (operations(iterations, False, rows=1).count for iterations in (10, 20))
    assert (twenty - ten) / 10 <= 8  # reading rewards and values, choosing a latent: no tables
    assert 2 * ten - twenty <= 30


@pytest.mark.parametrize("change", [{"actions": 8}, {"rows": 64}])
def test_operations_do_not_depend_on_actions_and_rows(change: dict) -> None:
    assert operations(10, True, **change).count == operations(10, True).count


def test_no_tensor_of_a_search_is_quadratic_in_its_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "BLOCK_ELEMENTS", 1 << 10)
    forty, eighty = (operations(iterations, True).largest for iterations in (40, 80))
    assert eighty <= 2.2 * forty


def test_acting_makes_no_policy_and_no_q_values_of_unfinished_trees() -> None:
    model, latent = random_model(3), torch.randn(20, 5, dtype=torch.float64)
    with torch.no_grad():
        tree = best_first_search(model, latent, iterations=12)
    assert "_outputs" not in vars(tree)
    assert torch.equal(tree.q, tree.q_values[:, -1])
    assert tree.log_probs.shape == (20, 12)


# --- a full expansion in parts -----------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_full_expansion_in_parts_is_exact(
    depth: int, discount: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, latent = (
        random_model(3, seed=depth, scale=2.0),
        torch.randn(7, 5, dtype=torch.float64).requires_grad_(),
    )
    invalid = torch.zeros(7, 3, dtype=torch.bool)
    invalid[2, 1] = True
    weight = torch.randn(7, 3, dtype=torch.float64)

    def run():
        tree = full_expansion(model, latent, depth=depth, discount=discount, invalid_actions=invalid)
        loss = (weight * tree.q_values[:, -1].masked_fill(invalid, 0)).sum() + tree.root_rewards.sum()
        return tree, torch.autograd.grad(loss, [latent, *model.parameters()])

    whole, grads = run()
    monkeypatch.setattr(full, "LEAVES_AT_ONCE", 2 * 3**depth)
    parts, grads_of_parts = run()
    for name in (
        "q",
        "reward",
        "value",
        "path_value",
        "selected",
        "root_children",
        "root_rewards",
        "best_leaf",
    ):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=0, atol=1e-12)
    for ours, theirs in zip(grads_of_parts, grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_full_expansion_in_parts_holds_no_more_than_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model, latent = random_model(4), torch.randn(8, 5, dtype=torch.float64)
    monkeypatch.setattr(full, "LEAVES_AT_ONCE", 4**4)
    with Counter() as counter:
        full_expansion(model, latent, depth=4).q.sum().backward()
    # The leaves of one row with their hidden layer of 7, or the tables of all rows.
    assert counter.largest <= max(7 * 4**4, 8 * (4**5 - 1) // 3)
