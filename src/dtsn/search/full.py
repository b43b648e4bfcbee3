"""Full expansion, the search of TreeQN: every node down to a depth, level by level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dtsn.search.backup import is_end
from dtsn.search.boundary import check_latent, checked_count, checked_discount, root_mask
from dtsn.search.ends import as_counted, terminal_table
from dtsn.search.model import Children, LatentModel, expand, expand_plainly
from dtsn.search.selection import table_dtype
from dtsn.search.tree import SearchTree

# The most leaves that a full expansion holds at once. Depth 2 at 15 actions and batch 256 is just below.
LEAVES_AT_ONCE = 1 << 16


class Grown(NamedTuple):
    """Full trees: K candidate leaves below each root action, N nodes, E of which may be expanded."""

    candidates: Tensor  # [B, A, K]  path values, differentiable; −inf where a candidate is no leaf
    reward: Tensor  # [B, N]
    value: Tensor  # [B, N]  0 where it is not evaluated
    path_value: Tensor  # [B, N]  −inf where no node is
    selected: Tensor  # [B, E]  as in SearchTree
    exists: Tensor | None  # [B, N] bool
    terminal: Tensor | None  # [B, N]


def full_expansion(
    model: LatentModel,
    root: Tensor,
    *,
    depth: int,
    discount: float = 1.0,
    invalid_actions: Tensor | np.ndarray | None = None,
) -> SearchTree:
    """Expand every node down to ``depth`` and back up with max (TreeQN); depth 1 is the plain Q-network.

    The tree is a best-first tree whose nodes are expanded in breadth-first order, so slot ``t`` is the
    node expanded at iteration ``t`` and the slot rule holds.

    Trees with more than ``LEAVES_AT_ONCE`` leaves in all are grown a few rows at a time and without gradient.
    Then only the best path below each root action is run again with gradient. That is exact, because a
    maximum passes its gradient to one leaf, and takes the memory of a tree of depth 2.

    Args:
        model: Expands latents and values them; may tell of invalid actions and ends (:class:`Expansion`).
        root: Latents ``[B, ...]`` to search from; states that are whole numbers may be ``[B]``.
        depth: Of the leaves; ends and dead ends above it are leaves too.
        discount: γ.
        invalid_actions: ``[B, A]`` (bool or 0/1) closes root actions besides those that the model closes.

    Returns:
        The trees, one a row: ``q [B, A]``; ``q_values`` is ``[B, 1, A]``.
    """
    depth, discount = checked_count("depth", depth), checked_discount(discount)
    check_latent(root)
    children = expand(model, root)
    children = children._replace(valid=root_mask(invalid_actions, children))
    actions = children.reward.shape[1]
    rows = max(1, LEAVES_AT_ONCE // actions**depth)
    if torch.compiler.is_exporting() or root.shape[0] <= rows:  # an exported graph has no batch size yet
        grown = _grow(model, root, children, depth, discount)
        q = grown.candidates.max(2).values
    else:
        grown = _grow_in_parts(model, root, children, depth, discount, rows)
        leaf = grown.candidates.argmax(2)
        q = _follow(model, root, children, leaf, depth, discount)
        if children.valid is not None:
            q = q.masked_fill(~children.valid, -torch.inf)
    return SearchTree(
        q=q,
        selected=grown.selected,
        reward=grown.reward,
        value=grown.value,
        path_value=grown.path_value,
        root_children=children.latent,
        root_rewards=children.reward,
        root_terminal=children.terminal,
        rule="full",
        node_mask=grown.exists,
        terminal=grown.terminal,
        backed_up=(q[:, None], torch.zeros_like(grown.path_value[:, :1])),
    )


def _grow(model: LatentModel, root: Tensor, children: Children, depth: int, discount: float) -> Grown:
    """Return all nodes below the root's ``children``, level by level; values are those of the last level."""
    if children.masked:
        return _grow_masked(model, root, children, depth, discount)
    batch, actions = children.reward.shape
    returns = children.reward.to(table_dtype(children.reward))  # [B, n]
    zero = torch.zeros_like(returns[:, :1])
    rewards, inner = [zero, returns.detach()], [zero]
    for level in range(1, depth):
        inner.append(returns.detach())
        children = expand_plainly(model, children.latent.flatten(0, 1))
        reward = children.reward.reshape(batch, -1)  # [B, n·A]
        returns = returns.repeat_interleave(actions, 1) + discount**level * reward
        rewards.append(reward.detach())
    value = model.value(children.latent.flatten(0, 1)).reshape(batch, -1)
    leaves = returns + discount**depth * value
    not_evaluated = torch.zeros_like(torch.cat(inner, 1))
    return Grown(
        candidates=leaves.view(batch, actions, -1),
        reward=torch.cat(rewards, 1),
        value=torch.cat([not_evaluated, value.detach()], 1),
        path_value=torch.cat([*inner, leaves.detach()], 1),
        selected=torch.arange(not_evaluated.shape[1], device=root.device).expand(batch, -1),
        exists=None,
        terminal=None,
    )


def _grow_masked(model: LatentModel, root: Tensor, children: Children, depth: int, discount: float) -> Grown:
    """Return the same where some nodes do not exist and some above the last level are leaves."""
    batch, actions = children.reward.shape
    returns = torch.zeros(batch, 1, dtype=table_dtype(children.reward), device=root.device)  # [B, n]
    inner = torch.ones(batch, 1, dtype=torch.bool, device=root.device)  # [B, n]  nodes to expand
    rewards, values, path_values, exists, expanded = [returns], [returns], [returns], [inner], []
    ends: list[Tensor | None] = [None]
    candidates: list[Tensor] = []  # [B, A, n / A] of each level
    for level in range(1, depth + 1):
        expanded.append(inner)
        here = inner.repeat_interleave(actions, 1)  # [B, n·A]
        if children.valid is not None:
            here = here & children.valid.reshape(batch, -1)
        if level > 1:  # a dead end remains a leaf: an expansion that found nothing is none
            inner = inner & here.view(batch, -1, actions).any(2)
            candidates.append(path_values[-1].masked_fill(inner, -torch.inf))
        value = model.value(children.latent.flatten(0, 1)).reshape(batch, -1)
        terminal = None if children.terminal is None else children.terminal.reshape(batch, -1)
        reward, value = as_counted(children.reward.reshape(batch, -1), value, ~here, terminal)
        returns = returns.repeat_interleave(actions, 1) + discount ** (level - 1) * reward
        inner = here if terminal is None else here & ~is_end(terminal)
        rewards.append(reward)
        values.append(value)
        path_values.append((returns + discount**level * value).masked_fill(~here, -torch.inf))
        exists.append(here)
        ends.append(None if terminal is None else terminal.masked_fill(~here, 0))
        if level < depth:
            latent = children.latent.flatten(0, 1)
            children = expand(model, _or_root(inner, latent, root))
    candidates.append(path_values[-1])
    order = torch.arange(sum(table.shape[1] for table in expanded), device=root.device)
    return Grown(
        candidates=torch.cat([table.view(batch, actions, -1) for table in candidates], 2),
        reward=torch.cat(rewards, 1).detach(),
        value=torch.cat(values, 1).detach(),
        path_value=torch.cat(path_values, 1).detach(),
        selected=order.where(torch.cat(expanded, 1), -1),
        exists=torch.cat(exists, 1),
        terminal=terminal_table(ends, exists),
    )


def _grow_in_parts(
    model: LatentModel, root: Tensor, children: Children, depth: int, discount: float, rows: int
) -> Grown:
    """Return the same, ``rows`` rows at a time and without gradient."""
    parts = []
    with torch.no_grad():
        for start in range(0, root.shape[0], rows):
            part = slice(start, start + rows)
            here = Children(*(None if table is None else table[part] for table in children))  # type: ignore[arg-type]
            parts.append(_grow(model, root[part], here, depth, discount))
    tables = (None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True))
    return Grown(*tables)  # type: ignore[arg-type]


def _follow(
    model: LatentModel, root: Tensor, children: Children, leaf: Tensor, depth: int, discount: float
) -> Tensor:
    """Sum path values ``[B, A]`` of one ``leaf [B, A]`` below each root action, as :class:`Grown` does."""
    batch, actions = children.reward.shape
    leaf, row = leaf.flatten(), torch.arange(batch * actions, device=leaf.device)  # [B·A]
    level_of_leaf = torch.full_like(leaf, depth)
    if children.masked:  # candidates are of all levels, A^(level − 1) of each
        first = torch.tensor([sum(actions**i for i in range(level)) for level in range(depth)])
        level_of_leaf = torch.bucketize(leaf, first.to(leaf.device), right=True)
        leaf = leaf - first.to(leaf.device)[level_of_leaf - 1]
    latent, reward = children.latent.flatten(0, 1), children.reward.flatten()
    terminal = None if children.terminal is None else children.terminal.flatten()
    returns = reward.to(table_dtype(reward))
    for level in range(1, depth):
        inner = level_of_leaf > level
        below = expand(model, _or_root(inner, latent, root))
        # The leaf's number, written in base A, is the sequence of actions that lead to it.
        action = (
            leaf.div(actions ** (level_of_leaf - 1 - level).clamp(min=0), rounding_mode="floor") % actions
        )
        latent = torch.where(_beside(inner, latent), below.latent[row, action], latent)
        returns = returns + discount**level * below.reward[row, action].masked_fill(~inner, 0)
        if terminal is not None and below.terminal is not None:
            terminal = torch.where(inner, below.terminal[row, action], terminal)
    value = model.value(latent).flatten()
    _, value = as_counted(value, value, torch.zeros_like(row, dtype=torch.bool), terminal)
    scale = discount ** level_of_leaf.to(returns.dtype)
    return (returns + scale * value).view(batch, actions)


def _or_root(expandable: Tensor, latent: Tensor, root: Tensor) -> Tensor:
    """Keep latents ``[B·n, ...]`` where ``expandable [B, n]`` or ``[B·n]``; put the root's elsewhere."""
    roots = root.repeat_interleave(len(latent) // root.shape[0], 0)
    return torch.where(_beside(expandable, latent), latent, roots)


def _beside(mask: Tensor, latent: Tensor) -> Tensor:
    """Return a mask of rows in a shape that fits ``latent [n, ...]``."""
    return mask.reshape(-1, *[1] * (latent.dim() - 1))
