"""The finished search: plain tables of a batch of trees, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dtsn.errors import UserError
from dtsn.search.backup import Timeline, back_up, is_end, log_policy_of, with_gradient
from dtsn.search.merging import Merging, leaf_worth, merged_q
from dtsn.search.slots import expansion_times, root_actions, slots_of, slots_on_path

# The ways to choose nodes for which log_probs are those of the choices made.
WITH_LOG_PROBS = ("sample", "replay", "full")


@dataclass(frozen=True)
class SearchTree:
    """The search trees of a batch. B rows, T expansions, A actions, N = 1 + T·A slots."""

    q: Tensor  # [B, A]  Q(s, ·) of the finished tree
    selected: Tensor  # [B, T] int64  the slot expanded at iteration t; −1 where nothing was left to expand
    reward: Tensor  # [B, N]  predicted reward on the edge into the node; 0 at the root
    # V(h_n), times the chance that the episode goes on; 0 where it is not evaluated (root; inner nodes of a
    # full expansion without masks).
    value: Tensor  # [B, N]
    path_value: Tensor  # [B, N]  V̄(n), discounted rewards and value from the root; −inf where no node is
    root_children: Tensor  # [B, A, ...]  latents one step ahead, differentiable (for the consistency loss)
    root_rewards: Tensor  # [B, A]  rewards one step ahead, differentiable
    root_terminal: Tensor | None  # [B, A]  ends one step ahead, differentiable where they are probabilities
    rule: str  # what chose the nodes: a Rule, "replay", "custom", or "full" for all of them
    temperature: float = 1.0  # of the softmax policy over the open set
    node_mask: Tensor | None = None  # [B, N] bool  which slots hold a node; None: all do
    terminal: Tensor | None = None  # [B, N] bool, or chances that the episode ends there; None: nowhere
    merging: Merging | None = None  # which nodes are the same place, where such are merged
    # q_values [B, T, A] and log π [B, T] where they carry a gradient; otherwise made when asked for.
    backed_up: tuple[Tensor, Tensor] | None = None
    # Rewards and values [B, N] with their gradient, and γ^depth [B, N] if γ ≠ 1; None without a gradient.
    inputs: tuple[Tensor, Tensor, Tensor | None] | None = None

    @cached_property
    def _outputs(self) -> tuple[Tensor, Tensor]:
        if self.backed_up is not None:
            return self.backed_up
        tables = self.reward, self.value, self.path_value, self._timeline
        q_values, log_probs = back_up(*tables, temperature=self.temperature)
        return q_values if self.merging is None else merged_q(*tables, self.merging), log_probs

    @cached_property
    def _timeline(self) -> Timeline:
        alias = None if self.merging is None else self.merging.alias
        nodes = self.path_value.shape[1]
        return Timeline.of(self.selected, nodes, self.node_mask, self.terminal, alias)

    @property
    def q_values(self) -> Tensor:
        """``[B, T, A]`` Q(s, · | τ_t) after each iteration; ``[B, 1, A]`` for a full expansion."""
        return self._outputs[0]

    @property
    def log_probs(self) -> Tensor:
        """``[B, T]`` log π(n_t | τ_{t−1}) of the nodes that were expanded, for rules that draw from π."""
        if self.rule not in WITH_LOG_PROBS:
            raise UserError(
                f"log_probs must be of a search by rule 'sample' (or Replay), got rule {self.rule!r}: "
                "its choices are not drawn from the softmax policy"
            )
        return self._outputs[1]

    def demonstrated(self, path: Tensor) -> tuple[Tensor, Tensor]:
        """Find the open node on the path of actions ``path [B, K]`` (−1: no more) before each choice.

        Returns its slots ``[B, T]``, −1 where none is open, and log π ``[B, T]`` of them with gradient.
        """
        closed = None if self.node_mask is None else ~self.node_mask
        if closed is not None and self.terminal is not None:
            closed = closed | is_end(self.terminal)
        slots = slots_on_path(self.selected, path, self.num_actions, closed)
        path_value = self.path_value
        if self.inputs is not None:
            rewards, values, scale = self.inputs
            path_value = with_gradient(rewards, values, path_value, self._timeline, scale)
        return slots, log_policy_of(path_value, slots, self._timeline, self.temperature)

    @property
    def num_actions(self) -> int:
        """A."""
        return self.q.shape[1]

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Return one tree of the batch as plain arrays: what it takes to draw it.

        ``log_probs`` are of the softmax policy, whatever rule chose the nodes.
        """
        names = ["selected", "reward", "value", "path_value"]
        names += ["parent", "depth", "root_action", "expanded_at", "exists", "leaf", "leaf_value"]
        tables = {"q_values": self._outputs[0], "log_probs": self._outputs[1]}
        tables |= {name: getattr(self, name) for name in names}
        return {name: table[index].detach().cpu().numpy() for name, table in tables.items()}

    @cached_property
    def exists(self) -> Tensor:
        """``[B, N]`` whether the slot holds a node: its action was valid and the row still searching."""
        if self.node_mask is not None:
            return self.node_mask
        return torch.ones_like(self.path_value, dtype=torch.bool)

    @cached_property
    def leaf(self) -> Tensor:
        """``[B, N]`` whether the node is a leaf of the finished tree.

        Nodes that were not expanded, and those whose expansion found no valid action.
        """
        children = self.exists[:, 1:].view(*self.selected.shape, self.num_actions)
        slots = self.selected.clamp(min=0)
        until = expansion_times(slots, self.path_value.shape[1], ~children.any(2))
        return (until == self.selected.shape[1]) & self.exists

    @cached_property
    def leaf_value(self) -> Tensor:
        """``[B, N]`` what each leaf counts: Q-values are the maxima below the root's actions. −inf elsewhere.

        Path values, save for aliases in merged trees.
        """
        if self.merging is not None:
            return leaf_worth(self.path_value, self._timeline, self.merging, self.root_action)
        return self.path_value.masked_fill(~self.leaf, -torch.inf)

    @cached_property
    def parent(self) -> Tensor:
        """``[B, N]`` the parent's slot; −1 for the root and for slots that were never reached."""
        parents = self.selected.repeat_interleave(self.num_actions, dim=1)
        return torch.cat([parents.new_full((len(parents), 1), -1), parents], dim=1)

    @cached_property
    def depth(self) -> Tensor:
        """``[B, N]`` number of edges from the root; −1 for slots that were never reached."""
        depth = torch.zeros_like(self.parent)
        for t in range(self.selected.shape[1]):
            slot = self.selected[:, t : t + 1]
            below = depth.gather(1, slot.clamp(min=0)) + 1
            depth[:, slots_of(t, self.num_actions)] = below.masked_fill(slot < 0, -1)
        return depth

    @cached_property
    def expanded_at(self) -> Tensor:
        """``[B, N]`` the iteration that expanded the node; T for one that was not expanded."""
        slots, stopped = self.selected.clamp(min=0), self.selected < 0
        return expansion_times(slots, self.path_value.shape[1], stopped)

    @cached_property
    def root_action(self) -> Tensor:
        """``[B, N]`` the first action on the path from the root; −1 for the root and slots never reached."""
        below = root_actions(self.selected, self.num_actions)[:, 1:].repeat_interleave(self.num_actions, 1)
        first = torch.arange(-1, self.num_actions, device=below.device)
        return torch.cat([first.expand(len(below), -1), below.clamp(min=-1)], 1)

    @cached_property
    def best_leaf(self) -> Tensor:
        """``[B]`` the leaf that counts most: where the best path ends.

        In a merged tree that may be an alias: from there, the path goes on from the node it stands for.
        """
        return self.leaf_value.argmax(1)
