"""Best-first search for a single row without gradient, on plain numbers: the fast path of acting.

A small tree is a few dozen numbers. A tensor operation costs a microsecond or two to launch, more than all
the arithmetic it does here, so only the world model runs on tensors. The slots are those of
:mod:`dtsn.search`; the trees are too, up to rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from torch import Tensor

from dtsn.config import Rule

if TYPE_CHECKING:
    from dtsn.search import LatentModel


@dataclass
class OneTree:
    """A tree of T expansions: slot 0 is the root, child a of the t-th expanded node is 1 + t·A + a."""

    selected: list[int] = field(default_factory=lambda: [0])  # T slots
    # Of every slot:
    reward: list[float] = field(default_factory=lambda: [0.0])  # on the edge into the node
    value: list[float] = field(default_factory=lambda: [0.0])
    returns: list[float] = field(default_factory=lambda: [0.0])  # discounted rewards from the root
    scale: list[float] = field(default_factory=lambda: [1.0])  # γ^depth
    path_value: list[float] = field(default_factory=lambda: [0.0])
    open: list[float] = field(default_factory=lambda: [-math.inf])  # path values, −inf where closed
    children: list[Tensor] = field(default_factory=list)  # T times [1, A, ...]

    def add(self, children: Tensor, rewards: list[float], values: list[float], discount: float) -> None:
        """Put the children of the last selected node into their slots and into the open set."""
        parent = self.selected[-1]
        base, scale = self.returns[parent], self.scale[parent]
        returns = [base + scale * reward for reward in rewards]
        scale *= discount
        path_values = [r + scale * v for r, v in zip(returns, values, strict=True)]
        self.children.append(children)
        self.reward += rewards
        self.value += values
        self.returns += returns
        self.scale += len(rewards) * [scale]
        self.path_value += path_values
        self.open += path_values

    def q_values(self) -> list[float]:
        """Q(s, ·) ``[A]`` of the finished tree: Bellman backups, youngest first."""
        actions = (len(self.path_value) - 1) // len(self.selected)
        backed_up = self.path_value.copy()
        for t in reversed(range(1, len(self.selected))):
            backed_up[self.selected[t]] = max(backed_up[1 + t * actions : 1 + (t + 1) * actions])
        return backed_up[1 : 1 + actions]


def grow_one(
    model: LatentModel,
    children: Tensor,
    reward: Tensor,
    iterations: int,
    choose: Callable[[list[float], int], int],
    discount: float,
    invalid_actions: list[bool],
) -> OneTree:
    """A tree below the root's ``children [1, A, ...]``; expands the open slot that ``choose(open, t)`` names.

    ``reward [1, A]`` is of the root's actions, ``invalid_actions`` (A of them, or none) closes some.
    """
    tree, actions = OneTree(), reward.shape[1]
    for t in range(iterations):
        value = model.value(children.flatten(0, 1))
        tree.add(children, reward.tolist()[0], value.flatten().tolist(), discount)
        if t == 0:
            for action in (action for action, invalid in enumerate(invalid_actions) if invalid):
                tree.path_value[1 + action] = tree.open[1 + action] = -math.inf
        if t + 1 < iterations:
            slot = choose(tree.open, t + 1)
            tree.open[slot] = -math.inf
            tree.selected.append(slot)
            family, action = divmod(slot - 1, actions)
            children, reward = model.expand(tree.children[family].select(1, action))
    return tree


def chooser(
    rule: Rule, temperature: float, epsilon: float, uniforms: list[float]
) -> Callable[[list[float], int], int]:
    """A selection rule on the path values of all slots, −inf where closed; ``uniforms`` [T] decide draws."""

    def greedy(values: list[float], t: int) -> int:
        return values.index(max(values))

    def sample(values: list[float], t: int) -> int:
        top = max(values)
        return _inverse_cdf([math.exp((value - top) / temperature) for value in values], uniforms[t])

    def epsilon_greedy(values: list[float], t: int) -> int:
        is_open = [math.isfinite(value) for value in values]
        share = epsilon / max(1, sum(is_open))
        weights = [share * here for here in is_open]
        weights[greedy(values, t)] += 1 - epsilon
        return _inverse_cdf(weights, uniforms[t])

    return {"greedy": greedy, "sample": sample, "epsilon_greedy": epsilon_greedy}[rule]


def _inverse_cdf(weights: list[float], uniform: float) -> int:
    """A slot in proportion to the weights; one of weight 0 is never taken."""
    cdf = list(accumulate(weights))
    # The minimum matters where a diverged model made the weights NaN: its Q-values will say so.
    return min(bisect_right(cdf, uniform * cdf[-1]), len(cdf) - 1)
