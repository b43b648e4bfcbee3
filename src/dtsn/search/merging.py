"""Best-first *graph* search: nodes that are the same place are expanded once and share what lies below.

The first node made with a key is the *canonical* one of its place; a later one is an *alias* of it. An alias
is never expanded. It is worth its own way plus the best way on from its place,

    C(n) = returns(n) + γ^(depth n − depth c) · (max of V̄(l) over the leaves l below c − returns(c)),

where ``c`` is canonical and leaves are no aliases. If no leaf is left below c, its place is exhausted and the
alias counts for nothing; only if that is so for everything below a root action, its Q-value is the best V̄ of
its aliases. So the Q-value of an action does not vanish because another path got there first, and a
cheaper way to a known place counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtsn.errors import UserError
from dtsn.search.backup import Timeline, blocks_of, counting, into_rewards
from dtsn.search.model import LatentModel


class Merging(NamedTuple):
    """What merged trees know beyond others, of each of N slots."""

    canonical: Tensor  # [B, N] int64  the first node of the same place; the slot itself if it is the first
    returns: Tensor  # [B, N]  discounted rewards from the root
    scale: Tensor | None  # [B, N]  γ^depth; None: 1

    @property
    def alias(self) -> Tensor:
        """``[B, N]`` which nodes are aliases."""
        return self.canonical != torch.arange(self.canonical.shape[1], device=self.canonical.device)


class Places:
    """The places that the nodes of a growing tree are, by the model's keys."""

    def __init__(self, model: LatentModel, root: Tensor, nodes: int):
        self.key = key_of(model)
        self.keys = torch.zeros(root.shape[0], nodes, dtype=torch.int64, device=root.device)
        self.counts = torch.zeros_like(self.keys, dtype=torch.bool)  # ends and missing nodes are no places
        self.canonical = torch.arange(nodes, device=root.device).repeat(root.shape[0], 1)
        self.made = 0
        self.add(root[:, None], torch.zeros(root.shape[0], 1, dtype=torch.bool, device=root.device))

    def add(self, latent: Tensor, shut: Tensor) -> Tensor:
        """Note the next nodes ``latent [B, n, ...]`` save those ``shut``; which are aliases, ``[B, n]``."""
        here = slice(self.made, self.made + shut.shape[1])
        key, counts = self.key(latent.detach().flatten(0, 1)).reshape(shut.shape), ~shut
        self.keys[:, here], self.counts[:, here] = key, counts
        same = (self.keys[:, None, : here.stop] == key[:, :, None]) & self.counts[:, None, : here.stop]
        own = self.canonical[:, here]  # still the slots themselves
        first = same.byte().argmax(2).where(counts, own)
        alias: Tensor = first != own
        self.canonical[:, here], self.made = first, here.stop
        return alias


def key_of(model: LatentModel) -> Any:
    """Return the model's ``key`` with its answers checked: latents ``[n, ...]`` -> int64 ``[n]``."""
    key = getattr(model, "key", None)
    if not callable(key):
        raise UserError(f"merge needs a model with key(latent), got {type(model).__name__} without it")

    def checked(latent: Tensor) -> Tensor:
        keys: Tensor = key(latent)
        if keys.shape != latent.shape[:1] or keys.dtype != torch.int64:
            raise UserError(f"key must return int64 [{len(latent)}], got {keys.dtype} {list(keys.shape)}")
        return keys

    return checked


def merged_q(
    rewards: Tensor,
    values: Tensor,
    path_value: Tensor,
    timeline: Timeline,
    merging: Merging,
    *,
    last: bool = False,
) -> Tensor:
    """Compute Q ``[B, T, A]`` (``[B, 1, A]``: the ``last`` tree alone), differentiable in the first two."""
    batch, iterations = timeline.slots.shape
    blocks = [slice(iterations - 1, iterations)] if last else blocks_of(iterations, batch * iterations**2)
    with torch.no_grad():
        finder = _Finder(path_value, timeline, merging)
        found = [finder.best(block) for block in blocks]
    node, leaf = (torch.cat(slots, 1) for slots in zip(*found, strict=True))  # [B, T, A]
    shape, node, leaf = node.shape, node.flatten(1), leaf.flatten(1)
    returns = _Returns.apply(rewards, merging.returns, timeline.slots, merging.scale)  # type: ignore[no-untyped-call]
    scale = merging.scale
    full = returns + (values if scale is None else values * scale)  # V̄, differentiable, without −inf
    place = merging.canonical.gather(1, node)
    onward = full.gather(1, leaf) - returns.gather(1, place)
    if scale is not None:
        onward = onward * (scale.gather(1, node) / scale.gather(1, place))
    q = torch.where(node == leaf, full.gather(1, node), returns.gather(1, node) + onward)
    missing = path_value.gather(1, node) == -torch.inf  # the Q of an invalid action
    return q.masked_fill(missing, -torch.inf).view(shape)


def leaf_worth(path_value: Tensor, timeline: Timeline, merging: Merging, root_action: Tensor) -> Tensor:
    """Compute what each leaf and alias of the finished trees counts, ``[B, N]``; −inf for other nodes."""
    iterations = timeline.slots.shape[1]
    worth, last_resort, value = _Finder(path_value, timeline, merging).worth(
        slice(iterations - 1, iterations)
    )
    exhausted = (value[:, 0] == -torch.inf).gather(1, root_action.clamp(min=0)) & (root_action >= 0)
    return torch.where(exhausted, last_resort[:, 0], worth[:, 0])


class _Returns(torch.autograd.Function):
    """Rewards ``[B, N]`` -> discounted rewards from the root, which the search has summed up already."""

    @staticmethod
    def forward(ctx: Any, rewards: Tensor, returns: Tensor, slots: Tensor, scale: Tensor | None) -> Tensor:
        ctx.save_for_backward(slots, scale)
        return returns.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return into_rewards(grad, *ctx.saved_tensors), None, None, None


class _Finder:
    """Finds where Q-values come from, on detached tables. n nodes are made by ``block.stop`` iterations."""

    def __init__(self, path_value: Tensor, timeline: Timeline, merging: Merging):
        self.timeline, self.merging, self.alias = timeline, merging, merging.alias
        self.actions = (path_value.shape[1] - 1) // timeline.slots.shape[1]
        self.scores = path_value.clamp(min=torch.finfo(path_value.dtype).min)
        self.below = _below(timeline.slots, self.actions)
        slot = torch.arange(path_value.shape[1], device=path_value.device)
        self.created = (slot - 1).div(self.actions, rounding_mode="floor")  # [N]
        # γ^(depth n − depth c) of each node and the one it is an alias of
        scale = merging.scale
        self.factor = None if scale is None else scale / scale.gather(1, merging.canonical)

    def best(self, block: slice) -> tuple[Tensor, Tensor]:
        """Find the best leaf or alias (slots ``[B, t, A]``) below each root action, and where it leads."""
        onward_leaf, worth, last_resort = self._worth(block)
        value, node = self._best_below(worth)
        node = torch.where(value == -torch.inf, self._best_below(last_resort)[1], node)
        return node, onward_leaf.gather(2, node)

    def worth(self, block: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the worth of leaves and aliases, the last resort ``[B, t, n]``, the best ``[B, t, A]``."""
        _, worth, last_resort = self._worth(block)
        return worth, last_resort, self._best_below(worth)[0]

    def _best_below(self, worth: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest ``worth [B, t, n]`` below each root action and its slot, ``[B, t, A]``."""
        families = _in_families(worth, self.actions).amax(3)  # [B, t, iterations]
        action = torch.arange(self.actions, device=worth.device)[:, None]
        here = self.timeline.under[:, None, None, : families.shape[2]] == action  # [B, 1, A, iterations]
        own = worth[:, :, 1 : 1 + self.actions, None]  # the root's child itself, or else what is below it
        value, family = torch.cat([own, torch.where(here, families[:, :, None], -torch.inf)], 3).max(3)
        below = _best_of(worth, (family - 1).clamp(min=0), self.actions)
        return value, torch.where(family == 0, 1 + action[:, 0], below)

    def _onward(self, leaves: Tensor, block: slice) -> tuple[Tensor, Tensor]:
        """Find the best path value ``[B, t, n]`` of the leaves at or below each node's place, and its slot.

        −inf and the node itself where there is none.
        """
        made, nodes = block.stop, leaves.shape[2]
        families = _in_families(leaves, self.actions).amax(3)  # [B, t, iterations]
        inside = self.below[:, None, :made, :made]
        best, family = torch.where(inside, families[:, :, None], -torch.inf).max(3)  # [B, t, iterations]
        leaf = _best_of(leaves, family, self.actions)
        place = self.merging.canonical[:, None, :nodes].expand_as(leaves)
        expanded = self.timeline.leaf_until[:, None, :nodes].expand_as(leaves).gather(2, place)
        own = leaves.gather(2, place)
        is_leaf, expanded = own != -torch.inf, expanded.clamp(max=made - 1)
        onward = torch.where(is_leaf, own, best.gather(2, expanded))
        slot = torch.where(is_leaf, place, leaf.gather(2, expanded))
        itself = torch.arange(nodes, device=leaves.device)
        alias = self.alias[:, None, :nodes] & (onward != -torch.inf)
        return onward, torch.where(alias, slot, itself)

    def _worth(self, block: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return where nodes lead, the worth of leaves and aliases, V̄ of aliases: ``[B, t, n]``."""
        leaves = counting(self.scores, self.timeline.leaf_until, self.actions, block)  # no aliases
        onward, onward_leaf = self._onward(leaves, block)
        nodes = leaves.shape[2]
        returns, canonical = self.merging.returns, self.merging.canonical
        rest = onward - returns.gather(1, canonical)[:, None, :nodes]
        if self.factor is not None:
            rest = rest * self.factor[:, None, :nodes]
        t = torch.arange(block.start, block.stop, device=leaves.device)[:, None]
        is_alias = self.alias[:, None, :nodes] & (self.created[:nodes] <= t)
        worth = torch.where(is_alias, returns[:, None, :nodes] + rest, leaves)
        return onward_leaf, worth, torch.where(is_alias, self.scores[:, None, :nodes], -torch.inf)


def _in_families(table: Tensor, actions: int) -> Tensor:
    """Put siblings among the nodes of ``table [B, t, n]`` side by side, ``[B, t, iterations, A]``."""
    return table[:, :, 1:].view(*table.shape[:2], -1, actions)


def _best_of(worth: Tensor, family: Tensor, actions: int) -> Tensor:
    """Find the best slot among the children of iterations ``family [B, t, k]``, by ``worth [B, t, n]``."""
    slots = 1 + family[..., None] * actions + torch.arange(actions, device=worth.device)  # [B, t, k, A]
    best = worth.gather(2, slots.flatten(2)).view_as(slots).argmax(3)
    return 1 + family * actions + best


def _below(slots: Tensor, actions: int) -> Tensor:
    """Tell whether the second iteration expands the node of the first, or one below it, ``[B, T, T]``."""
    iterations = slots.shape[1]
    creator = (slots - 1).div(actions, rounding_mode="floor").clamp(min=0)  # the iteration that made the node
    one = torch.eye(iterations, device=slots.device).expand(slots.shape[0], -1, -1)
    reach = one.scatter(1, creator[:, None], 1.0)  # by at most one edge; by twice as many every time
    for _ in range((iterations - 1).bit_length()):
        reach = (reach @ reach).clamp(max=1)
    return reach > 0
