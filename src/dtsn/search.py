"""Tree search in latent space for a whole batch at once: best-first (D-TSN) and full (TreeQN).

The unit of work is the *expansion*: all A actions of one node per batch row. A search of T expansions
fills N = 1 + T·A slots by one rule: slot 0 is the root, and child ``a`` of the node expanded at
iteration ``t`` sits in slot ``1 + t·A + a``. Parents, depths and creation times follow from the
``selected`` slots alone, and nothing is allocated while searching but what the model returns.

The world is deterministic and returns add up, so the Bellman backup of a partial tree is a maximum
over its leaves: ``Q_t(a) = max of V̄(n) over the leaves n of τ_t below root action a``, where ``V̄`` is
the path value that the expansion policy needs anyway. All Q-values and log-probabilities are functions
of the one table ``V̄ [B, N]``; see docs/design.md for the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, get_args

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtsn.config import Rule

Choose = Callable[[Tensor, int], Tensor]  # (path values [B, n], −inf where closed; t) -> slots [B]

# The largest [B, iterations, N] block of open-set masks held at once: memory stays linear in T.
BLOCK_ELEMENTS = 1 << 22


class LatentModel(Protocol):
    """All that a search knows of a world model."""

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Latents ``[B, ...]`` -> the children by every action ``[B, A, ...]``, rewards ``[B, A]``."""

    def value(self, latent: Tensor) -> Tensor:
        """Latents ``[B, ...]`` -> values ``[B]``."""


@dataclass(frozen=True)
class SearchTree:
    """The search trees of a batch. B rows, T expansions, A actions, N = 1 + T·A slots."""

    q_values: Tensor  # [B, T, A]  Q(s, · | τ_t) after each iteration; [B, 1, A] for a full expansion
    log_probs: Tensor  # [B, T]  log π(n_t | τ_{t−1}) of the nodes that were expanded
    selected: Tensor  # [B, T] int64  the slot expanded at iteration t
    reward: Tensor  # [B, N]  predicted reward on the edge into the node; 0 at the root
    value: Tensor  # [B, N]  V(h_n); 0 where it is not evaluated (root; inner nodes of a full expansion)
    path_value: Tensor  # [B, N]  V̄(n), discounted rewards from the root plus the discounted value
    root_children: Tensor  # [B, A, ...]  latents one step ahead, differentiable (for the consistency loss)
    root_rewards: Tensor  # [B, A]  rewards one step ahead, differentiable

    @property
    def q(self) -> Tensor:
        """Q-values ``[B, A]`` of the finished tree."""
        return self.q_values[:, -1]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.q_values.shape[-1]

    def row(self, index: int) -> dict[str, np.ndarray]:
        """One tree of the batch as plain arrays: what it takes to draw it."""
        names = ["q_values", "log_probs", "selected", "reward", "value", "path_value"]
        names += ["parent", "depth", "root_action", "expanded_at"]
        return {name: getattr(self, name)[index].detach().cpu().numpy() for name in names}

    @cached_property
    def parent(self) -> Tensor:
        """``[B, N]`` the parent's slot; −1 for the root."""
        parents = self.selected.repeat_interleave(self.num_actions, dim=1)
        return torch.cat([parents.new_full((len(parents), 1), -1), parents], dim=1)

    @cached_property
    def depth(self) -> Tensor:
        """``[B, N]`` number of edges from the root."""
        depth = torch.zeros_like(self.parent)
        for t in range(self.selected.shape[1]):
            chosen = depth.gather(1, self.selected[:, t : t + 1])
            depth[:, _slots(t, self.num_actions)] = chosen + 1
        return depth

    @cached_property
    def expanded_at(self) -> Tensor:
        """``[B, N]`` the iteration that expanded the node; T for a leaf."""
        return _expanded_at(self.selected, self.path_value.shape[1])

    @cached_property
    def root_action(self) -> Tensor:
        """``[B, N]`` the first action on the path from the root; −1 for the root."""
        return _root_action(self.selected, self.num_actions)

    @cached_property
    def best_leaf(self) -> Tensor:
        """``[B]`` the leaf with the largest path value: where the best path ends."""
        leaf = self.expanded_at == self.selected.shape[1]
        return self.path_value.masked_fill(~leaf, -torch.inf).argmax(1)


def best_first_search(
    model: LatentModel,
    root: Tensor,
    *,
    iterations: int,
    rule: Rule | Choose = "sample",
    temperature: float = 1.0,
    epsilon: float = 0.1,
    discount: float = 1.0,
    invalid_actions: Tensor | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SearchTree:
    """Algorithm 1 of the paper on latents ``root [B, ...]``: T expansions, then the backup.

    ``rule`` picks the open node to expand: ``sample`` from π = softmax(V̄ / temperature), ``greedy``,
    ``epsilon_greedy``, or any callable ``(V̄ [B, n], t) -> slots [B]``. Random rules use one uniform number
    per row and iteration, ``uniforms [B, T]`` in [0, 1), drawn from ``generator`` if not given: what one
    row draws never depends on the other rows. ``invalid_actions [B, A]`` (bool) closes root actions:
    they are never expanded and their Q-value is −inf.
    """
    _check_search(root, iterations, rule, temperature, epsilon, discount, uniforms)
    batch = root.shape[0]
    choose = (
        rule
        if callable(rule)
        else _chooser(rule, root, iterations, temperature, epsilon, uniforms, generator)
    )
    expansions: list[tuple[Tensor, Tensor]] = []  # (rewards, values), each [B, A]
    selected = [torch.zeros(batch, dtype=torch.int64, device=root.device)]
    latent, latents = root, None
    for t in range(iterations):
        children, reward = model.expand(latent)
        actions = children.shape[1]
        value = model.value(children.flatten(0, 1)).view(batch, actions)
        expansions.append((reward, value))
        if t == 0:
            root_children, root_rewards = children, reward
            _check_invalid_actions(invalid_actions, batch, actions)
            tables = _Tables(batch, actions, iterations, discount, reward, invalid_actions)
            latents = children.new_empty(iterations - 1, *children.shape)
            row = torch.arange(batch, device=root.device)
        tables.add(t, selected[t], reward.detach(), value.detach())
        if t + 1 < iterations:
            slot = choose(tables.open_values(t + 1), t + 1)
            tables.close(slot)
            selected.append(slot)
            created, action = (slot - 1).div(actions, rounding_mode="floor"), (slot - 1) % actions
            index = (created * batch + row) * actions + action  # of the slot in latents [T−1, B, A, ...]
            latent, latents = _NextLatent.apply(children, latents, t, index)  # type: ignore[no-untyped-call]
    chosen = torch.stack(selected, 1)
    rewards = torch.stack([reward for reward, _ in expansions], 1).to(tables.dtype)
    values = torch.stack([value for _, value in expansions], 1).to(tables.dtype)
    q_values, log_probs = _Backup.apply(rewards, values, tables.path_value, tables.scale, chosen, temperature)  # type: ignore[no-untyped-call]
    zero = rewards.new_zeros(batch, 1)
    return SearchTree(
        q_values=q_values,
        log_probs=log_probs,
        selected=chosen,
        reward=torch.cat([zero, rewards.detach().flatten(1)], 1),
        value=torch.cat([zero, values.detach().flatten(1)], 1),
        path_value=tables.path_value,
        root_children=root_children,
        root_rewards=root_rewards,
    )


def full_expansion(
    model: LatentModel,
    root: Tensor,
    *,
    depth: int,
    discount: float = 1.0,
    invalid_actions: Tensor | None = None,
) -> SearchTree:
    """TreeQN: expand every node down to ``depth`` and back up with max; depth 1 is the plain Q-network.

    The tree is a best-first tree whose nodes are expanded in breadth-first order, so slot ``t`` is the
    node expanded at iteration ``t`` and the slot rule holds.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    _check_latent(root)
    batch = root.shape[0]
    latent, returns = root, root.new_zeros(batch, 1, dtype=_table_dtype(root))  # [B·n, ...], [B, n]
    rewards, path_values = [], [returns.detach()]
    for level in range(depth):
        children, reward = model.expand(latent)
        actions = children.shape[1]
        if level == 0:
            root_children, root_rewards = children, reward
            _check_invalid_actions(invalid_actions, batch, actions)
        reward = reward.view(batch, -1)  # [B, n·A]
        returns = returns.repeat_interleave(actions, 1) + discount**level * reward
        latent = children.flatten(0, 1)
        rewards.append(reward.detach())
        path_values.append(returns.detach())
    value = model.value(latent).view(batch, -1)
    leaf_values = (returns + discount**depth * value).view(batch, actions, -1)  # [B, A, A^(d−1)]
    if invalid_actions is not None:
        leaf_values = leaf_values.masked_fill(invalid_actions[:, :, None], -torch.inf)
    path_values[-1] = leaf_values.detach().flatten(1)
    expanded = sum(actions**level for level in range(depth))
    inner = 1 + sum(actions**level for level in range(1, depth))
    dtype = returns.dtype
    zero = torch.zeros(batch, inner, dtype=dtype, device=root.device)
    return SearchTree(
        q_values=leaf_values.max(-1).values[:, None],
        log_probs=zero[:, :1],
        selected=torch.arange(expanded, device=root.device).expand(batch, expanded),
        reward=torch.cat([zero[:, :1], *rewards], 1),
        value=torch.cat([zero, value.detach().to(dtype)], 1),
        path_value=torch.cat(path_values, 1),
        root_children=root_children,
        root_rewards=root_rewards,
    )


# --- the open set ------------------------------------------------------------------------------------


class _Tables:
    """What selection needs while the tree grows, on detached numbers: path values and the open set."""

    def __init__(
        self, batch: int, actions: int, iterations: int, discount: float, like: Tensor, invalid: Tensor | None
    ):
        nodes = 1 + iterations * actions
        self.actions, self.discount, self.invalid = actions, discount, invalid
        self.dtype = _table_dtype(like)
        table = torch.zeros(3, batch, nodes, dtype=self.dtype, device=like.device)
        self.path_value, self.open, self.returns = table.unbind(0)  # each [B, N]
        # γ^depth of every node; a plain 1 spares two operations an iteration where nothing is discounted.
        self.scale = torch.ones_like(self.path_value) if discount != 1 else self.path_value.new_ones(())

    def add(self, t: int, selected: Tensor, reward: Tensor, value: Tensor) -> None:
        """Put the children of the nodes ``selected [B]`` into their slots and into the open set."""
        slots = _slots(t, self.actions)
        parent = selected[:, None]
        if self.discount != 1:
            scale = self.scale.gather(1, parent)  # [B, 1]
            reward, value = reward * scale, value * (scale * self.discount)
            self.scale[:, slots] = scale * self.discount
        returns = self.returns.gather(1, parent) + reward
        self.returns[:, slots] = returns
        path_value = returns + value
        if t == 0 and self.invalid is not None:
            path_value = path_value.masked_fill(self.invalid, -torch.inf)
        self.path_value[:, slots] = path_value
        self.open[:, slots] = path_value
        if t == 0:
            self.open[:, 0] = -torch.inf  # the root was expanded first

    def open_values(self, t: int) -> Tensor:
        """Path values ``[B, n]`` of the nodes made before iteration ``t``, −inf where not open."""
        return self.open[:, : 1 + t * self.actions]

    def close(self, slot: Tensor) -> None:
        """Take the chosen nodes ``[B]`` out of the open set."""
        self.open.scatter_(1, slot[:, None], -torch.inf)


def _chooser(
    rule: Rule,
    root: Tensor,
    iterations: int,
    temperature: float,
    epsilon: float,
    uniforms: Tensor | None,
    generator: torch.Generator | None,
) -> Choose:
    """A selection rule as a function of the open set."""
    if rule == "greedy":
        return lambda open_values, t: open_values.argmax(1)
    if uniforms is None:
        device = root.device if generator is None else generator.device
        uniforms = torch.rand(root.shape[0], iterations, generator=generator, device=device)
    # Below 1 by more than a rounding error, so that the inverse CDF never runs off the end.
    noise = uniforms.to(root.device, _table_dtype(root)).clamp(max=1 - 1e-6)[:, :, None]

    def sample(open_values: Tensor, t: int) -> Tensor:
        scaled = open_values if temperature == 1 else open_values / temperature
        return _inverse_cdf(torch.softmax(scaled, 1), noise[:, t])

    def epsilon_greedy(open_values: Tensor, t: int) -> Tensor:
        is_open = open_values.isfinite()
        probs = is_open * (epsilon / is_open.sum(1, keepdim=True))
        best = open_values.argmax(1, keepdim=True)
        return _inverse_cdf(
            probs.scatter_add(1, best, torch.full_like(probs[:, :1], 1 - epsilon)), noise[:, t]
        )

    return sample if rule == "sample" else epsilon_greedy


def _inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """One slot ``[B]`` per row of ``probs [B, n]``; a slot of probability 0 is never taken."""
    cdf = probs.cumsum(1)
    return torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).squeeze(1)


# --- what autograd sees ------------------------------------------------------------------------------


class _NextLatent(torch.autograd.Function):
    """Store the children of iteration ``t`` and read the latents to expand next.

    A node is expanded at most once, so the gradient of reading is a row *write*; one buffer, handed from
    iteration to iteration as the gradient of ``latents``, collects all of them.
    """

    @staticmethod
    def forward(ctx: Any, children: Tensor, latents: Tensor, t: int, index: Tensor) -> tuple[Tensor, Tensor]:
        latents[t].copy_(children)
        ctx.mark_dirty(latents)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index)
        ctx.t, ctx.shape = t, latents.shape
        return latents.flatten(0, 2).index_select(0, index), latents

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_latent: Tensor | None, grad_latents: Tensor | None) -> tuple[Any, ...]:
        if grad_latent is None:
            return (None if grad_latents is None else grad_latents[ctx.t]), grad_latents, None, None
        if grad_latents is None:  # the last reader: no other iteration writes before it
            grad_latents = grad_latent.new_zeros(ctx.shape)
        (index,) = ctx.saved_tensors
        grad_latents.flatten(0, 2).index_copy_(0, index, grad_latent)
        return grad_latents[ctx.t], grad_latents, None, None


class _Backup(torch.autograd.Function):
    """Path values ``V̄ [B, N]`` -> Q-values ``[B, T, A]`` and log π ``[B, T]``, with the analytic gradient.

    ``rewards`` and ``values [B, T, A]`` are there for their gradients: V̄ is made of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rewards: Tensor,
        values: Tensor,
        path_value: Tensor,
        scale: Tensor,
        selected: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        _, iterations, actions = rewards.shape
        expanded_at = _expanded_at(selected, path_value.shape[1])
        leaf = _best_leaves(path_value, selected, expanded_at, actions)  # [B, T, A]
        log_probs = torch.cat(
            [
                _log_policy(path_value, expanded_at, actions, temperature, block).gather(
                    2, selected[:, block, None]
                )
                for block in _blocks(path_value, iterations)
            ],
            1,
        )
        ctx.save_for_backward(path_value, scale, selected, expanded_at, leaf)
        ctx.temperature, ctx.actions = temperature, actions
        ctx.set_materialize_grads(False)
        return path_value.gather(1, leaf.flatten(1)).view_as(rewards), log_probs.squeeze(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor | None, grad_log_probs: Tensor | None) -> tuple[Any, ...]:
        path_value, scale, selected, expanded_at, leaf = ctx.saved_tensors
        iterations = selected.shape[1]
        grad = torch.zeros_like(path_value)  # dL / dV̄
        if grad_q is not None:  # one-hot at the best leaf of each root action
            grad.scatter_add_(1, leaf.flatten(1), grad_q.flatten(1))
        if grad_log_probs is not None:  # one-hot at the chosen node minus π over the open set
            weight = grad_log_probs / ctx.temperature
            grad.scatter_add_(1, selected, weight)
            for block in _blocks(path_value, iterations):
                policy = _log_policy(path_value, expanded_at, ctx.actions, ctx.temperature, block).exp()
                grad[:, : policy.shape[2]] -= (weight[:, None, block] @ policy).squeeze(1)
        grad[:, 0] = 0
        # The reward into a node is part of every path value below it: sum over subtrees, youngest first.
        below = grad.clone()
        for t in reversed(range(1, iterations)):
            subtree = below[:, _slots(t, ctx.actions)].sum(1, keepdim=True)
            below.scatter_add_(1, selected[:, t : t + 1], subtree)
        grad_rewards, grad_values = below[:, 1:], grad[:, 1:]
        if scale.dim():  # discounted: scale is γ^depth of each node
            grad_values = grad_values * scale[:, 1:]
            grad_rewards = grad_rewards * scale.gather(1, selected).repeat_interleave(ctx.actions, 1)
        shape = (*selected.shape, ctx.actions)
        return grad_rewards.view(shape), grad_values.view(shape), None, None, None, None


def _best_leaves(path_value: Tensor, selected: Tensor, expanded_at: Tensor, actions: int) -> Tensor:
    """``[B, T, A]`` the slot of the best leaf of τ_t below each root action.

    An iteration changes only the root action it works under: find that one's new best leaf for every
    iteration, then carry the others forward.
    """
    iterations = selected.shape[1]
    root_action = _root_action(selected, actions)  # [B, N]
    under = root_action.gather(1, selected)  # [B, T]; −1 at t = 0
    created = _created(path_value.shape[1], actions, selected.device)
    best = []
    for block in _blocks(path_value, iterations):
        t = torch.arange(block.start, block.stop, device=selected.device)[:, None]
        nodes = 1 + block.stop * actions
        leaf = (created[:nodes] <= t) & (expanded_at[:, None, :nodes] > t)  # [B, block, n]
        leaf &= root_action[:, None, :nodes] == under[:, block, None]
        best.append(torch.where(leaf, path_value[:, None, :nodes], -torch.inf).argmax(2))
    best_leaf = torch.cat(best, 1)  # [B, T]
    action = torch.arange(actions, device=selected.device)
    steps = torch.arange(iterations, device=selected.device)[:, None]
    # [B, T, A] the last iteration, up to t, that worked under each root action; 0 if none has.
    last = torch.where(under[:, :, None] == action, steps, 0).cummax(1).values
    carried = best_leaf.gather(1, last.flatten(1)).view_as(last)
    return torch.where(last > 0, carried, 1 + action)


def _log_policy(
    path_value: Tensor, expanded_at: Tensor, actions: int, temperature: float, block: slice
) -> Tensor:
    """log π(n | τ_{t−1}) ``[B, block, n]`` over the open set: made before iteration t, not yet expanded."""
    t = torch.arange(block.start, block.stop, device=path_value.device)[:, None]
    nodes = 1 + block.stop * actions
    created = _created(nodes, actions, path_value.device)
    is_open = (created < t) & (expanded_at[:, None, :nodes] >= t)
    scores = torch.where(is_open, path_value[:, None, :nodes] / temperature, -torch.inf)
    return torch.log_softmax(scores, 2)


# --- the slot rule -----------------------------------------------------------------------------------


def _slots(t: int, actions: int) -> slice:
    """The slots of the children made at iteration ``t``."""
    return slice(1 + t * actions, 1 + (t + 1) * actions)


def _created(nodes: int, actions: int, device: torch.device) -> Tensor:
    """``[N]`` the iteration that made each slot; −1 for the root."""
    return (torch.arange(nodes, device=device) - 1).div(actions, rounding_mode="floor")


def _expanded_at(selected: Tensor, nodes: int) -> Tensor:
    """``[B, N]`` the iteration that expanded each slot; T for a leaf."""
    batch, iterations = selected.shape
    never = torch.full((batch, nodes), iterations, device=selected.device)
    return never.scatter_(1, selected, torch.arange(iterations, device=selected.device).expand(batch, -1))


def _root_action(selected: Tensor, actions: int) -> Tensor:
    """``[B, N]`` the first action on the way to each slot, by pointer jumping; −1 for the root."""
    batch, iterations = selected.shape
    steps = torch.arange(iterations, device=selected.device).expand(batch, -1)
    creator = (selected - 1).div(actions, rounding_mode="floor").clamp(min=0)  # [B, T]
    # For each iteration, the one on its path that expanded a child of the root; twice as far every jump.
    jump = torch.where(creator > 0, creator, steps)
    for _ in range((iterations - 1).bit_length()):
        jump = jump.gather(1, jump)
    below = (selected.gather(1, jump) - 1)[:, 1:].repeat_interleave(actions, 1)
    first = torch.arange(-1, actions, device=selected.device).expand(batch, -1)
    return torch.cat([first, below], 1)


def _blocks(path_value: Tensor, iterations: int) -> list[slice]:
    """Iterations in blocks small enough for their ``[B, block, N]`` masks."""
    size = max(1, BLOCK_ELEMENTS // max(1, path_value.numel()))
    return [slice(t, min(t + size, iterations)) for t in range(0, iterations, size)]


# --- the boundary ------------------------------------------------------------------------------------


def _table_dtype(like: Tensor) -> torch.dtype:
    """Half precision is for the networks; path values are kept in float32 (float64 for float64 models)."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _check_latent(root: Tensor) -> None:
    if root.dim() < 2 or not root.is_floating_point():
        raise ValueError(
            f"root must be floating-point latents [B, ...], got {root.dtype} {tuple(root.shape)}"
        )


def _check_search(
    root: Tensor,
    iterations: int,
    rule: Rule | Choose,
    temperature: float,
    epsilon: float,
    discount: float,
    uniforms: Tensor | None,
) -> None:
    _check_latent(root)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if not callable(rule) and rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
    if not 0 <= discount <= 1:
        raise ValueError(f"discount must lie in [0, 1], got {discount}")
    if uniforms is not None and uniforms.shape != (root.shape[0], iterations):
        expected = (root.shape[0], iterations)
        raise ValueError(
            f"uniforms must have shape {expected} (batch, iterations), got {tuple(uniforms.shape)}"
        )


def _check_invalid_actions(invalid: Tensor | None, batch: int, actions: int) -> None:
    if invalid is None:
        return
    if invalid.shape != (batch, actions) or invalid.dtype != torch.bool:
        raise ValueError(
            f"invalid_actions must be bool {(batch, actions)} (batch, actions), "
            f"got {invalid.dtype} {tuple(invalid.shape)}"
        )
    if bool(invalid.all(1).any()):
        row = int(invalid.all(1).nonzero()[0])
        raise ValueError(f"invalid_actions leaves no action open in row {row}")
