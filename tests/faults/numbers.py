"""Models whose values and rewards are not finite: both ways to search must say the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dtsn.search import SearchTree, best_first_search, full_expansion

from .common import Outcome

PLACES, ROWS = 40, 3
RULES = ("sample", "greedy", "epsilon_greedy")


class Strange:
    """A world by table: children, rewards and values of numbered places, some of them not finite."""

    def __init__(self, rng: np.random.Generator, actions: int, number: float) -> None:
        shape = (PLACES, actions)
        self.children = torch.tensor(rng.integers(0, PLACES, shape))
        self.rewards, self.values = (
            torch.tensor(rng.normal(size=shape)),
            torch.tensor(rng.normal(size=PLACES)),
        )
        for table in (self.rewards, self.values):
            table[torch.tensor(rng.random(table.shape) < 0.15)] = number

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """States ``[B, 1]`` -> children ``[B, A, 1]`` and rewards ``[B, A]``."""
        place = latent[:, 0].long()
        return self.children[place].double()[:, :, None], self.rewards[place]

    def value(self, latent: Tensor) -> Tensor:
        """States ``[B, 1]`` -> values ``[B]``."""
        return self.values[latent[:, 0].long()]


def nan_paths_agree(folder: Path, size: int = 400) -> Outcome:
    """Search ``size`` models in a batch, with gradient, and row by row, which is another algorithm."""
    result, rng = Outcome(), np.random.default_rng(0)
    for number in range(size):
        strange = (torch.nan, -torch.inf, torch.inf)[number % 3]
        model = Strange(rng, int(rng.integers(1, 5)), strange)
        uniforms = torch.tensor(rng.random((ROWS, int(rng.integers(1, 13)))))
        rule, roots = RULES[number // 3 % len(RULES)], torch.arange(ROWS, dtype=torch.float64)[:, None]
        with torch.no_grad():
            together = _search(model, roots, rule, uniforms)
            alone = [
                _search(model, roots[row : row + 1], rule, uniforms[row : row + 1]) for row in range(ROWS)
            ]
        with_gradient = _search(model, roots.requires_grad_(), rule, uniforms)
        case = f"model {number} with {strange}, {rule}"
        result.tried += 1
        result.check(_same(together, with_gradient, slice(None)), f"{case}: gradients change the numbers")
        depth = 1 + number % 3
        full = full_expansion(model, roots.detach(), depth=depth).q
        by_hand = torch.stack([_q_by_hand(model, row, depth) for row in range(ROWS)])
        result.check(torch.allclose(full, by_hand, equal_nan=True), f"{case}: the full tree differs")
        for row, tree in enumerate(alone):
            result.check(_same(tree, together, slice(row, row + 1)), f"{case}: row {row} alone differs")
    return result


def _q_by_hand(model: Strange, place: int, depth: int) -> Tensor:
    """Q ``[A]`` of a place by recursion; NaN in a subtree is NaN above it, whatever is beside it."""
    following = [
        model.values[child] if depth == 1 else _q_by_hand(model, int(child), depth - 1).amax()
        for child in model.children[place]
    ]
    return model.rewards[place] + torch.stack(following)


def _search(model: Strange, roots: Tensor, rule: str, uniforms: Tensor) -> SearchTree:
    return best_first_search(model, roots, iterations=uniforms.shape[1], rule=rule, uniforms=uniforms)


def _same(first: SearchTree, second: SearchTree, rows: slice) -> bool:
    """Whether ``first`` is what ``second`` has at these rows."""
    chosen = torch.equal(first.selected, second.selected[rows])
    return chosen and torch.allclose(first.q, second.q.detach()[rows], equal_nan=True)
