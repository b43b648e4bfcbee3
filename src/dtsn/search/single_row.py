"""Best-first search for a single row without gradient, on plain numbers: the fast path of acting.

A small tree is a few dozen numbers. A tensor operation costs a microsecond or two to launch, more than all
the arithmetic it does here, so only the world model runs on tensors, or on arrays where it offers to
(:func:`for_one_row`). The slots are those of :mod:`dtsn.search.slots`; the trees are those of the batched
search too, up to rounding.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp
from typing import cast

from torch import Tensor

from dtsn.config import Rule
from dtsn.search.merging import key_of
from dtsn.search.model import Children, LatentModel, expand, expand_plainly

LOWEST = -sys.float_info.max  # −inf is for closed nodes, not for what a diverged model says


@dataclass
class RowTree:
    """A tree of T expansions: slot 0 is the root, child a of the t-th expanded node is 1 + t·A + a."""

    discount: float
    selected: list[int] = field(default_factory=lambda: [0])  # T slots, −1 where nothing was left to expand
    # Of every slot:
    reward: list[float] = field(default_factory=lambda: [0.0])  # on the edge into the node
    value: list[float] = field(default_factory=lambda: [0.0])
    returns: list[float] = field(default_factory=lambda: [0.0])  # discounted rewards from the root
    scale: list[float] = field(default_factory=lambda: [1.0])  # γ^depth
    path_value: list[float] = field(default_factory=lambda: [0.0])
    open: list[float] = field(default_factory=lambda: [-math.inf])  # path values, −inf where closed
    # Of every slot, where the model tells of masks:
    exists: list[bool] | None = None
    terminal: list[float] | None = None  # whether (bool), or how likely, the node is an end
    latents: list[Tensor] = field(default_factory=list)  # T times [A, ...]
    # Where places are merged: the first node of each place, by its key and for every slot.
    first: dict[int, int] = field(default_factory=dict)
    canonical: list[int] | None = None

    def add(self, children: Children, values: list[float], keys: list[int]) -> None:
        """Put the children of the last selected node into their slots and into the open set.

        ``keys`` name the places of the children, where places are merged.
        """
        rewards = children.reward.tolist()[0]
        missing, ends = self._masks(children)
        if ends:
            values = [0.0 if d is True else v * (1 - d) for v, d in zip(values, ends, strict=True)]
        for action in missing:
            rewards[action] = values[action] = 0.0
        parent = self.selected[-1]
        base, scale = self.returns[parent], self.scale[parent]
        returns = [base + scale * reward for reward in rewards]
        scale *= self.discount
        path_values = [r + scale * v for r, v in zip(returns, values, strict=True)]
        opened = [max(value, LOWEST) for value in path_values]
        for action in missing:
            path_values[action] = opened[action] = -math.inf
        for action, end in enumerate(ends):
            if end > 0.5:
                opened[action] = -math.inf
        for action, key in enumerate(keys):
            slot = canonical = len(self.path_value) + action
            if opened[action] != -math.inf:
                canonical = self.first.setdefault(key, slot)
                if canonical != slot:
                    opened[action] = -math.inf
            cast(list[int], self.canonical).append(canonical)
        self.latents.append(children.latent[0])
        self.reward += rewards
        self.value += values
        self.returns += returns
        self.scale += len(rewards) * [scale]
        self.path_value += path_values
        self.open += opened

    def _masks(self, children: Children) -> tuple[list[int], list[float]]:
        """Note which children exist and which are ends: the actions missing, and the ends (or nothing)."""
        if self.exists is None:
            return [], []
        actions = children.reward.shape[1]
        valid = actions * [True] if children.valid is None else children.valid.tolist()[0]
        ends = [] if children.terminal is None else children.terminal.tolist()[0]
        if ends and self.terminal is None:
            self.terminal = [False for _ in self.exists]
        self.exists += valid
        if self.terminal is not None:
            given = ends or actions * [False]
            self.terminal += [end if here else False for end, here in zip(given, valid, strict=True)]
        return [action for action, here in enumerate(valid) if not here], ends

    def stop(self, iterations: int) -> None:
        """Leave the slots of the remaining iterations empty: nothing is left to expand."""
        rest = iterations - len(self.selected)
        slots = rest * ((len(self.path_value) - 1) // len(self.selected))
        self.selected += rest * [-1]
        self.reward += slots * [0.0]
        self.value += slots * [0.0]
        self.path_value += slots * [-math.inf]
        if self.exists is not None:
            self.exists += slots * [False]
        if self.terminal is not None:
            self.terminal += slots * [False]
        if self.canonical is not None:
            self.returns += slots * [0.0]
            self.scale += slots * [1.0]
            self.canonical += range(len(self.canonical), len(self.canonical) + slots)

    def q_values(self) -> list[float]:
        """Compute Q(s, ·) ``[A]`` of the finished tree: Bellman backups, youngest first."""
        actions = (len(self.path_value) - 1) // len(self.selected)
        if self.canonical is None:
            return self._backed_up(self.path_value)[1 : 1 + actions]
        worth, last_resort = self._worth(self.canonical)
        q_values = self._backed_up(worth)[1 : 1 + actions]
        instead = self._backed_up(last_resort)[1 : 1 + actions]
        return [r if q == -math.inf else q for q, r in zip(q_values, instead, strict=True)]

    def _backed_up(self, leaves: list[float]) -> list[float]:
        """Return the best of ``leaves`` at or below every slot."""
        actions = (len(leaves) - 1) // len(self.selected)
        best = leaves.copy()
        for t in reversed(range(len(self.selected))):
            family = slice(1 + t * actions, 1 + (t + 1) * actions)
            if self.exists is None or any(self.exists[family]):
                children = best[family]
                best[self.selected[t]] = children[_argmax(children)]
        return best

    def _worth(self, canonical: list[int]) -> tuple[list[float], list[float]]:
        """Compute the worth of leaves and aliases (:mod:`dtsn.search.merging`), and of aliases alone."""
        aliases = [n for n, c in enumerate(canonical) if n != c]
        worth = self.path_value.copy()
        last_resort = len(worth) * [-math.inf]
        for n in aliases:
            worth[n], last_resort[n] = -math.inf, self.path_value[n]
        onward = self._backed_up(worth)
        for n in aliases:
            c = canonical[n]
            worth[n] = self.returns[n] + self.scale[n] / self.scale[c] * (onward[c] - self.returns[c])
        return worth, last_resort


def grow(
    model: LatentModel,
    children: Children,
    iterations: int,
    choose: Callable[[list[float], int], int],
    discount: float,
    merge_from: Tensor | None = None,
) -> RowTree:
    """Grow a tree of one row below the root's ``children``; ``choose(open, t)`` names the slot to expand.

    ``merge_from [1, ...]`` is the root's latent if nodes of the same place are to be merged.
    """
    if merge_from is None:
        model, children = for_one_row(model, children)
    tree, actions = RowTree(discount), children.reward.shape[1]
    masked = children.masked or merge_from is not None
    tree.exists = [True] if masked else None
    if merge_from is not None:
        key = key_of(model)
        tree.canonical, tree.first = [0], {int(key(merge_from)): 0}
    for t in range(iterations):
        latents = children.latent[0]  # [A, ...]
        keys = [] if merge_from is None else key(latents).tolist()
        tree.add(children, model.value(latents).flatten().tolist(), keys)
        if t + 1 == iterations:
            break
        if masked and tree.open[_argmax(tree.open)] == -math.inf:
            tree.stop(iterations)
            break
        slot = choose(tree.open, t + 1)
        if tree.open[slot] == -math.inf:  # a diverged model made the policy NaN
            slot = _argmax(tree.open)
        tree.open[slot] = -math.inf
        tree.selected.append(slot)
        family, action = divmod(slot - 1, actions)
        latent = tree.latents[family][action : action + 1]  # [1, ...]
        children = expand(model, latent) if masked else expand_plainly(model, latent)
    return tree


def for_one_row(model: LatentModel, children: Children) -> tuple[LatentModel, Children]:
    """Return the model and the root's children on arrays, if the model's ``for_one_row`` offers them.

    Arrays do all that a tree asks of tensors: slices, ``flatten`` and ``tolist``.
    """
    offer = getattr(model, "for_one_row", None)
    on_arrays = None if offer is None else offer()
    if on_arrays is None:
        return model, children
    latent, reward = (cast(Tensor, tensor.numpy()) for tensor in (children.latent, children.reward))
    return on_arrays, children._replace(latent=latent, reward=reward)


def chooser(
    rule: Rule, temperature: float, epsilon: float, uniforms: list[float]
) -> Callable[[list[float], int], int]:
    """Make a selection rule on the path values of slots, −inf where closed; ``uniforms`` [T] decide draws."""

    def greedy(values: list[float], t: int) -> int:
        return _argmax(values)

    def sample(values: list[float], t: int) -> int:
        top = max(values)
        if temperature == 1:
            return _inverse_cdf([exp(value - top) for value in values], uniforms[t])
        return _inverse_cdf([exp((value - top) / temperature) for value in values], uniforms[t])

    def epsilon_greedy(values: list[float], t: int) -> int:
        is_open = [value != -math.inf for value in values]
        share = epsilon / sum(is_open)
        weights = [share * here for here in is_open]
        weights[_argmax(values)] += 1 - epsilon
        return _inverse_cdf(weights, uniforms[t])

    return {"greedy": greedy, "sample": sample, "epsilon_greedy": epsilon_greedy}[rule]


def _argmax(values: list[float]) -> int:
    """Return the index that torch gives: of the first NaN if there is one, else of the first maximum."""
    if math.isnan(sum(values)):  # NaN, or −inf beside +inf
        for index, value in enumerate(values):
            if value != value:
                return index
    return values.index(max(values))


def _inverse_cdf(weights: list[float], uniform: float) -> int:
    """Return a slot in proportion to the weights; one of weight 0 is never taken."""
    cdf = list(accumulate(weights))
    # The minimum matters where a diverged model made the weights NaN: its Q-values will say so.
    return min(bisect_right(cdf, uniform * cdf[-1]), len(cdf) - 1)
