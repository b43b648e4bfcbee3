"""Which node to expand next: the open set and the rules that choose from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from dtsn.config import Rule
from dtsn.errors import UserError
from dtsn.search.backup import tempered
from dtsn.search.slots import slots_of

Choose = Callable[[Tensor, int], Tensor]  # (path values [B, n], −inf where closed; t) -> slots [B]


@dataclass(frozen=True)
class Replay:
    """A rule that expands given slots again: the tree of known choices, with its gradient and log π."""

    selected: Tensor  # [B, T] int64, as in SearchTree

    def __call__(self, open_values: Tensor, t: int) -> Tensor:
        """Return the slots ``[B]`` of iteration ``t``."""
        return self.selected[:, t]


def name_of(rule: Rule | Choose) -> str:
    """Return what a tree calls the rule that made it; an error for rules that are none."""
    if isinstance(rule, Replay):
        return "replay"
    if callable(rule):
        return "custom"
    if rule not in get_args(Rule):
        raise UserError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
    return rule


class Tables:
    """What selection needs while the tree grows, on detached numbers: returns and the open set.

    Small searches cost what their operations cost to *launch*, so each is worth sparing: the slots of an
    iteration are views made in advance and written in place.
    """

    def __init__(self, like: Tensor, iterations: int, discount: float):
        batch, self.actions = like.shape
        self.discount, self.dtype = discount, table_dtype(like)
        self.lowest = torch.finfo(self.dtype).min
        shape = [1] + iterations * [self.actions]  # the root, then the children of each iteration
        self.returns = torch.zeros(batch, sum(shape), dtype=self.dtype, device=like.device)
        self.open = torch.full_like(self.returns, -torch.inf)  # path values of open nodes
        # γ^depth of every node, where something is discounted.
        self.scale = torch.ones_like(self.returns) if discount != 1 else None
        self.returns_of = torch.split_with_sizes(self.returns, shape, 1)[1:]  # T views [B, A]
        self.open_of = torch.split_with_sizes(self.open, shape, 1)[1:]
        # Latents [B, stored, ...] are kept of nodes that may be chosen: not the root, not the last children.
        self.stored = (iterations - 1) * self.actions
        self.offset = torch.arange(batch, device=like.device)[:, None] * self.stored - 1

    def add(self, t: int, parent: Tensor, reward: Tensor, value: Tensor, shut: Tensor | None) -> None:
        """Put the children of the nodes ``parent [B, 1]`` into their slots and into the open set.

        ``shut [B, A]`` are those that can never be chosen.
        """
        with torch.no_grad():  # not as a decorator, which would break a compiled graph in two
            self._add(t, parent, reward, value, shut)

    def _add(self, t: int, parent: Tensor, reward: Tensor, value: Tensor, shut: Tensor | None) -> None:
        returns, open_values = self.returns_of[t], self.open_of[t]  # [B, A]
        if self.scale is not None:
            scale = self.scale.gather(1, parent)  # [B, 1]
            reward, value = reward * scale, value * (scale * self.discount)
            self.scale[:, slots_of(t, self.actions)] = scale * self.discount
        if torch.compiler.is_compiling():  # a compiled graph breaks at `out=` into a view
            returns.copy_(self.returns.gather(1, parent) + reward)
            open_values.copy_(returns + value)
        else:
            torch.add(self.returns.gather(1, parent), reward, out=returns)
            torch.add(returns, value, out=open_values)
        open_values.clamp_(min=self.lowest)  # −inf is for closed nodes, not for what a diverged model says
        if shut is not None:
            open_values.masked_fill_(shut, -torch.inf)

    def open_values(self, t: int) -> Tensor:
        """Return the path values ``[B, n]`` of the nodes made before iteration ``t``, −inf where not open."""
        return self.open.narrow(1, 0, 1 + t * self.actions)

    def close(self, slot: Tensor) -> None:
        """Take the chosen nodes ``[B, 1]`` out of the open set."""
        self.open.scatter_(1, slot, -torch.inf)

    def flat_index(self, slot: Tensor) -> Tensor:
        """Return where the latents of the nodes ``[B, 1]`` are in ``[B·stored, ...]``: indices ``[B]``."""
        return (slot + self.offset).view(-1)

    def path_value(self, value: Tensor, exists: Tensor | None) -> Tensor:
        """Compute ``V̄ [B, N]`` of all nodes from their values ``[B, N]``, −inf where there is none."""
        path_value = self.returns + (value if self.scale is None else value * self.scale)
        return path_value if exists is None else path_value.masked_fill_(~exists, -torch.inf)


def table_dtype(like: Tensor) -> torch.dtype:
    """Choose float32 for path values beside half-precision networks, float64 beside float64 ones."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def draw_noise(
    like: Tensor, iterations: int, uniforms: Tensor | None, generator: torch.Generator | None
) -> Tensor:
    """Draw a number ``[B, T]`` in [0, 1) for every choice, to be used beside rewards ``like [B, A]``."""
    if uniforms is None:
        device = like.device if generator is None else generator.device
        uniforms = torch.rand(like.shape[0], iterations, generator=generator, device=device)
    # Below 1 by more than a rounding error, so that the inverse CDF never runs off the end.
    return uniforms.to(like.device, table_dtype(like)).clamp(max=1 - 1e-6)


def make_chooser(rule: Rule | Choose, temperature: float, epsilon: float, uniforms: Tensor) -> Choose:
    """Make a selection rule as a function of the open set that answers with a column ``[B, 1]``.

    What it answers for a row without open nodes is of no consequence.
    """
    if callable(rule):
        return lambda open_values, t: _checked_choice(rule(open_values, t), open_values)
    if rule == "greedy":
        return lambda open_values, t: open_values.argmax(1, keepdim=True)
    noise = uniforms[:, :, None].unbind(1)  # T times [B, 1]

    def sample(open_values: Tensor, t: int) -> Tensor:
        return _inverse_cdf(torch.softmax(tempered(open_values, temperature), 1), noise[t])

    def epsilon_greedy(open_values: Tensor, t: int) -> Tensor:
        is_open = open_values != -torch.inf
        probs = is_open * (epsilon / is_open.sum(1, keepdim=True))
        best = open_values.argmax(1, keepdim=True)
        return _inverse_cdf(probs.scatter_add(1, best, torch.full_like(probs[:, :1], 1 - epsilon)), noise[t])

    return sample if rule == "sample" else epsilon_greedy


def _inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return one slot ``[B, 1]`` per row of ``probs [B, n]``; a slot of probability 0 is never taken."""
    cdf = probs.cumsum(1)
    total = cdf.narrow(1, cdf.shape[1] - 1, 1)  # 1 but for rounding
    if torch.compiler.is_exporting():  # ONNX does not know searchsorted
        return (cdf <= uniform * total).sum(1, keepdim=True).clamp(max=cdf.shape[1] - 1)
    # The clamp matters where a diverged model made the policy NaN: its Q-values will say so.
    return torch.searchsorted(cdf, uniform * total, right=True).clamp_(max=cdf.shape[1] - 1)


def _checked_choice(slot: Tensor, open_values: Tensor) -> Tensor:
    """Return the slots ``[B]`` that a caller's rule chose as a column ``[B, 1]``, if they are open."""
    if slot.shape != open_values.shape[:1] or slot.dtype != torch.int64:
        expected = f"int64 [{len(open_values)}]"
        raise UserError(f"rule must return {expected} slots, got {slot.dtype} {list(slot.shape)}")
    inside = (slot >= 0) & (slot < open_values.shape[1])
    is_open = inside & (open_values.gather(1, (slot * inside)[:, None]).squeeze(1) != -torch.inf)
    refused = ~is_open & (open_values != -torch.inf).any(1)
    if bool(refused.any()):
        raise UserError(f"rule must return slots of open nodes, got {int(slot[refused][0])}")
    return (slot * inside)[:, None]
