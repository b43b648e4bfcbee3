"""What autograd sees: from the path values of all nodes to Q-values and log-probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtsn.search.slots import expansion_times, root_actions

# The largest [B, iterations, N] block of open-set masks held at once: memory stays linear in T.
BLOCK_ELEMENTS = 1 << 20


class Timeline(NamedTuple):
    """When the nodes of a tree count as what: all that the backup knows of its shape."""

    slots: Tensor  # [B, T] int64  the slot expanded at iteration t; 0 where the row had stopped
    under: Tensor  # [B, T] int64  the root action whose leaves the iteration changes; −1 all, −2 none
    leaf_until: Tensor  # [B, N] int64  the iteration after which the node is no leaf any more
    open_until: Tensor  # [B, N] int64  the same for the open set
    stopped: Tensor | None  # [B, T] bool  where nothing was left to expand; None: nowhere

    @classmethod
    def of(
        cls,
        selected: Tensor,
        nodes: int,
        exists: Tensor | None = None,
        terminal: Tensor | None = None,
        alias: Tensor | None = None,
    ) -> Timeline:
        """Make one of a tree where slots may hold no node, an end or an alias, by tables ``[B, N]``."""
        actions = (nodes - 1) // selected.shape[1]
        under = root_actions(selected, actions)
        if exists is None:
            expanded_at = expansion_times(selected, nodes)
            return cls(selected, under, expanded_at, expanded_at, None)
        slots, stopped = selected.clamp(min=0), selected < 0
        # An expansion without children changes no leaf: a dead end remains one.
        idle = ~exists[:, 1:].view(*selected.shape, actions).any(2)
        no_leaf = ~exists if alias is None else ~exists | alias
        return cls(
            slots,
            under.masked_fill(idle, -2),
            expansion_times(slots, nodes, idle).masked_fill(no_leaf, 0),
            expansion_times(slots, nodes, stopped).masked_fill(
                no_leaf if terminal is None else no_leaf | is_end(terminal), 0
            ),
            stopped,
        )


def is_end(terminal: Tensor) -> Tensor:
    """Return where to stop for good: at ends, and where the episode ends more likely than not."""
    return terminal if terminal.dtype == torch.bool else terminal.detach() > 0.5


def back_up(
    rewards: Tensor,
    values: Tensor,
    path_value: Tensor,
    timeline: Timeline,
    *,
    temperature: float,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute Q ``[B, T, A]`` and log π ``[B, T]`` from tables ``[B, N]``, differentiable in the first two.

    ``path_value`` is made of ``rewards`` and ``values``; ``scale`` is γ^depth of every node, if γ ≠ 1.
    """
    result: tuple[Tensor, Tensor] = _Backup.apply(  # type: ignore[no-untyped-call]
        rewards, values, path_value, scale, temperature, *timeline
    )
    return result


def with_gradient(
    rewards: Tensor, values: Tensor, path_value: Tensor, timeline: Timeline, scale: Tensor | None
) -> Tensor:
    """Make ``path_value [B, N]`` a differentiable function of the tables that it was made of."""
    result: Tensor = _PathValue.apply(rewards, values, path_value, scale, timeline.slots)  # type: ignore[no-untyped-call]
    return result


def log_policy_of(path_value: Tensor, slots: Tensor, timeline: Timeline, temperature: float) -> Tensor:
    """Compute log π ``[B, T]`` of any open ``slots [B, T]`` before each choice; 0 at −1 and for the root.

    Differentiable in ``path_value [B, N]``. Its memory is quadratic in T.
    """
    first = torch.zeros_like(path_value[:, :1])
    if slots.shape[1] == 1:
        return first
    actions = (path_value.shape[1] - 1) // slots.shape[1]
    scores = path_value.clamp(min=torch.finfo(path_value.dtype).min)
    opened = counting(scores, timeline.open_until, actions, slice(0, slots.shape[1] - 1))  # [B, T − 1, n]
    there = slots[:, 1:] >= 0
    opened = torch.where(there[:, :, None], opened, 0.0)  # no policy over nothing
    log_policy = torch.log_softmax(tempered(opened, temperature), 2)
    chosen = log_policy.gather(2, slots[:, 1:, None].clamp(min=0)).squeeze(2)
    return torch.cat([first, chosen.where(there, 0.0)], 1)


def final_q(path_value: Tensor, selected: list[Tensor], exists: Tensor | None = None) -> Tensor:
    """Compute Q ``[B, A]`` of the finished tree alone, without gradient: Bellman backups, youngest first.

    ``selected`` are T columns ``[B, 1]``.
    """
    backed_up = path_value.clone()
    families = backed_up[:, 1:].view(path_value.shape[0], len(selected), -1).unbind(1)  # T views [B, A]
    if exists is not None:
        idle = ~exists[:, 1:].view(path_value.shape[0], len(selected), -1).any(2)
    for t in reversed(range(1, len(selected))):
        slot, best = selected[t], families[t].amax(1, keepdim=True)
        if exists is not None:
            slot = slot.clamp(min=0)
            best = torch.where(idle[:, t : t + 1], backed_up.gather(1, slot), best)
        backed_up.scatter_(1, slot, best)
    return families[0]


class _Backup(torch.autograd.Function):
    """Path values ``V̄ [B, N]`` -> Q-values ``[B, T, A]`` and log π ``[B, T]``, with the analytic gradient.

    ``rewards`` and ``values [B, N]`` are there for their gradients: V̄ is made of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rewards: Tensor,
        values: Tensor,
        path_value: Tensor,
        scale: Tensor | None,
        temperature: float,
        slots: Tensor,
        under: Tensor,
        leaf_until: Tensor,
        open_until: Tensor,
        stopped: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.actions = (path_value.shape[1] - 1) // slots.shape[1]
        ctx.temperature, ctx.blocks = temperature, blocks_of(slots.shape[1], path_value.numel())
        # As in selection, −inf is for nodes that cannot be chosen, not for what a diverged model says.
        scores = path_value.clamp(min=torch.finfo(path_value.dtype).min)
        best, log_probs = [], [path_value.new_zeros(slots.shape[0], 1)]  # the root is chosen for certain
        for block in ctx.blocks:
            leaves = counting(scores, leaf_until, ctx.actions, block)  # [B, block, n]
            best.append(_best_leaf(leaves, under, ctx.actions, block))
            # The leaves of τ_t are the open set of iteration t + 1, ends aside.
            opened = leaves
            if leaf_until is not open_until:
                opened = counting(scores, open_until, ctx.actions, block)
            log_policy = torch.log_softmax(tempered(opened, temperature), 2)
            chosen = slots[:, block.start + 1 : block.stop + 1, None]
            log_probs.append(log_policy[:, : chosen.shape[1]].gather(2, chosen).squeeze(2))
        leaf = _carry_forward(torch.cat(best, 1), under, ctx.actions)
        # What fits one block is small enough to keep for the backward pass; otherwise it is made again.
        kept = [opened] if len(ctx.blocks) == 1 else []
        ctx.save_for_backward(path_value, scores, scale, slots, open_until, leaf, stopped, *kept)
        ctx.set_materialize_grads(False)
        log_prob = torch.cat(log_probs, 1)
        if stopped is not None:
            log_prob.masked_fill_(stopped, 0)
        return path_value.gather(1, leaf.flatten(1)).view_as(leaf), log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor | None, grad_log_probs: Tensor | None) -> tuple[Any, ...]:
        path_value, scores, scale, slots, open_until, leaf, stopped, *kept = ctx.saved_tensors
        grad = torch.zeros_like(scores)  # dL / dV̄
        if grad_q is not None:  # one-hot at the best leaf of each root action
            grad.scatter_add_(1, leaf.flatten(1), grad_q.flatten(1))
        if grad_log_probs is not None:  # one-hot at the chosen node minus π over the open set
            if stopped is not None:
                grad_log_probs = grad_log_probs.masked_fill(stopped, 0)
            weight = grad_log_probs[:, 1:] / ctx.temperature  # of iterations 1 to T − 1, by τ_0 to τ_{T−2}
            grad.scatter_add_(1, slots[:, 1:], weight)
            for block in ctx.blocks:
                opened = kept[0] if kept else counting(scores, open_until, ctx.actions, block)
                weights = weight[:, None, block]  # [B, 1, block], one less in the last block
                policy = torch.softmax(tempered(opened[:, : weights.shape[2]], ctx.temperature), 2)
                if stopped is not None:  # no policy over nothing
                    policy.masked_fill_(stopped[:, 1:][:, block, None], 0)
                grad[:, : policy.shape[2]] -= (weights @ policy).squeeze(1)
        if stopped is not None:  # what does not exist has no gradient, not even as the Q of an invalid action
            grad.masked_fill_(path_value == -torch.inf, 0)
        below = into_rewards(grad, slots, scale)
        return below, grad if scale is None else grad * scale, *[None] * 8


class _PathValue(torch.autograd.Function):
    """Rewards and values ``[B, N]`` -> the path values ``[B, N]`` that are known already."""

    @staticmethod
    def forward(
        ctx: Any, rewards: Tensor, values: Tensor, path_value: Tensor, scale: Tensor | None, slots: Tensor
    ) -> Tensor:
        ctx.save_for_backward(scale, slots)
        return path_value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        scale, slots = ctx.saved_tensors
        return into_rewards(grad, slots, scale), grad if scale is None else grad * scale, None, None, None


def into_rewards(grad: Tensor, slots: Tensor, scale: Tensor | None) -> Tensor:
    """Return the gradient of rewards ``[B, N]`` from that of the returns from the root, ``grad [B, N]``.

    The reward into a node is part of all returns below it: sum over subtrees, youngest first.
    """
    below = grad.clone()
    children = below[:, 1:].view(*slots.shape, -1).unbind(1)  # T views [B, A]
    parents = slots[:, :, None].unbind(1)  # T views [B, 1]
    for t in reversed(range(1, len(parents))):
        below.scatter_add_(1, parents[t], children[t].sum(1, keepdim=True))
    if scale is not None:  # discounted: scale is γ^depth of each node
        below[:, 1:] *= scale.gather(1, slots).repeat_interleave(children[0].shape[1], 1)
    return below


def tempered(path_value: Tensor, temperature: float) -> Tensor:
    """Return what the expansion policy is the softmax of (over the last dimension), safe from overflow."""
    if temperature == 1:
        return path_value
    return (path_value - path_value.amax(-1, keepdim=True)) / temperature


def counting(scores: Tensor, until: Tensor, actions: int, block: slice) -> Tensor:
    """Mask ``scores [B, block, n]``: nodes made by iteration t that count ``until`` later, else −inf."""
    t = torch.arange(block.start, block.stop, device=scores.device)[:, None]
    nodes = 1 + block.stop * actions
    created = (torch.arange(nodes, device=scores.device) - 1).div(actions, rounding_mode="floor")
    counts = (until[:, None, :nodes] > t) & (created <= t)
    return torch.where(counts, scores[:, None, :nodes], -torch.inf)


def _best_leaf(leaves: Tensor, under: Tensor, actions: int, block: slice) -> Tensor:
    """Find the slot ``[B, block]`` of the best of ``leaves [B, block, n]`` below the action worked under.

    First the best siblings, then the best among them: siblings share their root action, save for the root's
    children, and of those the one worked under is no leaf.
    """
    families = leaves[:, :, 1:].view(*leaves.shape[:2], -1, actions).amax(3)  # [B, block, iterations so far]
    here = under[:, None, : families.shape[2]] == under[:, block, None]
    family = torch.where(here, families, -torch.inf).argmax(2, keepdim=True)  # [B, block, 1]
    slots = 1 + family * actions + torch.arange(actions, device=leaves.device)  # [B, block, A]
    return 1 + family.squeeze(2) * actions + leaves.gather(2, slots).argmax(2)


def _carry_forward(best: Tensor, under: Tensor, actions: int) -> Tensor:
    """Find the best leaf of τ_t below each root action, ``[B, T, A]``.

    An iteration changes only the root action it works ``under [B, T]``, to ``best [B, T]``; the others keep
    theirs. Before an action's first turn that is the root's child itself.
    """
    action = torch.arange(actions, device=best.device)
    steps = torch.arange(actions, actions + best.shape[1], device=best.device)[:, None]
    # Columns of [root children | best]: of each action's last turn up to t.
    latest = torch.where(under[:, :, None] == action, steps, action).cummax(1).values
    choices = torch.cat([(1 + action).expand(best.shape[0], -1), best], 1)
    return choices.gather(1, latest.flatten(1)).view_as(latest)


def blocks_of(iterations: int, elements: int) -> list[slice]:
    """Cut iterations into blocks small enough for masks of so many ``elements`` an iteration."""
    size = max(1, BLOCK_ELEMENTS // elements)
    return [slice(t, min(t + size, iterations)) for t in range(0, iterations, size)]
