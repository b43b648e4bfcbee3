"""The slot rule: where the nodes of a search of T expansions sit in its N = 1 + T·A slots.

Slot 0 is the root, and child ``a`` of the node expanded at iteration ``t`` sits in slot ``1 + t·A + a``.
Parents, depths and creation times follow from the ``selected [B, T]`` slots alone. Where a row had nothing
left to expand, ``selected`` is −1 and the slots of that iteration hold no node.
"""

from __future__ import annotations

import torch
from torch import Tensor


def slots_of(t: int, actions: int) -> slice:
    """Return the slots of the children made at iteration ``t``."""
    return slice(1 + t * actions, 1 + (t + 1) * actions)


def expansion_times(slots: Tensor, nodes: int, idle: Tensor | None = None) -> Tensor:
    """Return the iteration ``[B, N]`` that expanded each slot; T where none did, or only ``idle [B, T]``."""
    batch, iterations = slots.shape
    never = torch.full((batch, nodes), iterations, device=slots.device)
    times = torch.arange(iterations, device=slots.device).expand(batch, -1)
    if idle is None:
        return never.scatter_(1, slots, times)
    return never.scatter_reduce_(1, slots, times.masked_fill(idle, iterations), "amin")


def slots_on_path(selected: Tensor, path: Tensor, actions: int, closed: Tensor | None) -> Tensor:
    """Find the open node ``[B, T]`` on a path of actions ``[B, K]`` from the root, before each choice.

    −1 where there is none: the path is over (its actions −1), or leads to nodes that are ``closed [B, N]``.
    """
    slot = torch.zeros_like(selected[:, 0])
    depth = torch.zeros_like(slot)
    # A last column of −1: no path goes on for ever.
    path = torch.cat([path, path.new_full((len(path), 1), -1)], 1)
    found = []
    for t in range(selected.shape[1]):
        found.append(slot)
        step = (selected[:, t] == slot) & (slot >= 0)
        action = path.gather(1, depth.clamp(max=path.shape[1] - 1)[:, None]).squeeze(1)
        child = 1 + t * actions + action.clamp(min=0)
        over = action < 0
        if closed is not None:
            over = over | closed.gather(1, child[:, None]).squeeze(1)
        slot = torch.where(step, child.masked_fill(over, -1), slot)
        depth = depth + step
    return torch.stack(found, 1)


def root_actions(selected: Tensor, actions: int) -> Tensor:
    """Find the root action ``[B, T]`` below which each iteration expands, by pointer jumping.

    −1 where it expands the root, −2 where it expands nothing.
    """
    iterations = selected.shape[1]
    creator = (selected - 1).div(actions, rounding_mode="floor")  # the iteration that made the node
    # For each iteration, the one on its path that expanded a child of the root; twice as far every jump.
    jump = torch.where(creator > 0, creator, torch.arange(iterations, device=selected.device))
    for _ in range((iterations - 1).bit_length()):
        jump = jump.gather(1, jump)
    return selected.gather(1, jump) - 1
