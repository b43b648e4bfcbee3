"""Invalid actions and ends of episodes, as a model tells of them while its tree grows."""

from __future__ import annotations

import torch
from torch import Tensor

from dtsn.search.backup import is_end
from dtsn.search.model import Children, check_probabilities


def as_counted(
    reward: Tensor, value: Tensor, missing: Tensor, terminal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return rewards and values of children, all of one shape: 0 if ``missing``, no value behind ends."""
    if terminal is not None:
        is_bool = terminal.dtype == torch.bool
        value = value.masked_fill(terminal, 0) if is_bool else value * (1 - terminal)
    return reward.masked_fill(missing, 0), value.masked_fill(missing, 0)


def terminal_table(told: list[Tensor | None], like: list[Tensor]) -> Tensor | None:
    """Join what a model told of ends, ``[B, N]`` and detached; None where nothing is told at all.

    Parts that are None are filled up by the shapes of ``like``.
    """
    dtype = next((part.dtype for part in told if part is not None), None)
    if dtype is None:
        return None
    parts = zip(told, like, strict=True)
    table = torch.cat(
        [like.new_zeros(like.shape, dtype=dtype) if part is None else part for part, like in parts], 1
    )
    check_probabilities(table)
    return table.detach()


class Ends:
    """Which nodes exist, which are ends, and which rows have nothing left to expand."""

    def __init__(self, root: Tensor):
        self.root = root  # [B, ...]
        self.stuck = torch.zeros(root.shape[0], 1, dtype=torch.bool, device=root.device)
        # Of the root [B, 1], then of each iteration [B, A]:
        self.exists = [~self.stuck]
        self.terminal: list[Tensor | None] = [None]

    def add(self, children: Children, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards and values ``[B, A]`` as they count, and which children can never be chosen."""
        reward, valid, terminal = children.reward, children.valid, children.terminal
        missing = self.stuck.expand_as(reward) if valid is None else self.stuck | ~valid
        self.exists.append(~missing)
        self.terminal.append(None if terminal is None else terminal.masked_fill(missing, 0))
        shut = missing if terminal is None else missing | is_end(terminal)
        return *as_counted(reward, value, missing, terminal), shut

    def redirect(self, slot: Tensor, open_values: Tensor) -> Tensor:
        """Return the chosen slots ``[B, 1]``, each an open one, or the newest of its row if none is left.

        The newest slot of a stopped row is read once and by nobody else, as the gradient of reading demands.
        """
        self.stuck = open_values.amax(1, keepdim=True) == -torch.inf
        closed = open_values.gather(1, slot) == -torch.inf  # stuck, or the policy is NaN
        newest = open_values.shape[1] - 1
        return torch.where(closed, open_values.argmax(1, keepdim=True).masked_fill(self.stuck, newest), slot)

    def latent(self, latent: Tensor) -> Tensor:
        """Return what to expand ``[B, ...]``: a stopped row expands its root once more, for nothing."""
        return torch.where(self.stuck.view(-1, *[1] * (latent.dim() - 1)), self.root, latent)

    def all_stuck(self) -> bool:
        """Tell whether no row has anything left to expand; elsewhere than on a CPU asking costs more."""
        return (
            not torch.compiler.is_compiling() and self.stuck.device.type == "cpu" and bool(self.stuck.all())
        )

    def tables(self, missing: int) -> tuple[Tensor, Tensor | None]:
        """Return which slots hold a node ``[B, N]``, and the ends; ``missing`` iterations were not made."""
        exists = [*self.exists, *missing * [torch.zeros_like(self.exists[-1])]]
        return torch.cat(exists, 1), terminal_table([*self.terminal, *missing * [None]], exists)
