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
from functools import cached_property, partial
from typing import Any, Protocol, get_args

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtsn import one_tree
from dtsn.config import Rule

Choose = Callable[[Tensor, int], Tensor]  # (path values [B, n], −inf where closed; t) -> slots [B]

# The largest [B, iterations, N] block of open-set masks held at once: memory stays linear in T.
BLOCK_ELEMENTS = 1 << 20

# The most leaves that a full expansion holds at once. Depth 2 at 15 actions and batch 256 is just below.
LEAVES_AT_ONCE = 1 << 16


class LatentModel(Protocol):
    """All that a search knows of a world model."""

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Latents ``[B, ...]`` -> the children by every action ``[B, A, ...]``, rewards ``[B, A]``."""

    def value(self, latent: Tensor) -> Tensor:
        """Latents ``[B, ...]`` -> values ``[B]``."""


@dataclass(frozen=True)
class SearchTree:
    """The search trees of a batch. B rows, T expansions, A actions, N = 1 + T·A slots."""

    q: Tensor  # [B, A]  Q(s, ·) of the finished tree
    backup: Callable[[], tuple[Tensor, Tensor]]  # makes q_values and log_probs: acting has no use for them
    selected: Tensor  # [B, T] int64  the slot expanded at iteration t
    reward: Tensor  # [B, N]  predicted reward on the edge into the node; 0 at the root
    value: Tensor  # [B, N]  V(h_n); 0 where it is not evaluated (root; inner nodes of a full expansion)
    path_value: Tensor  # [B, N]  V̄(n), discounted rewards from the root plus the discounted value
    root_children: Tensor  # [B, A, ...]  latents one step ahead, differentiable (for the consistency loss)
    root_rewards: Tensor  # [B, A]  rewards one step ahead, differentiable

    @cached_property
    def _backed_up(self) -> tuple[Tensor, Tensor]:
        return self.backup()

    @property
    def q_values(self) -> Tensor:
        """``[B, T, A]`` Q(s, · | τ_t) after each iteration; ``[B, 1, A]`` for a full expansion."""
        return self._backed_up[0]

    @property
    def log_probs(self) -> Tensor:
        """``[B, T]`` log π(n_t | τ_{t−1}) of the nodes that were expanded."""
        return self._backed_up[1]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.q.shape[1]

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
        below = _under(self.selected, self.num_actions)[:, 1:].repeat_interleave(self.num_actions, 1)
        first = torch.arange(-1, self.num_actions, device=below.device)
        return torch.cat([first.expand(len(below), -1), below], 1)

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
    is_random = rule in ("sample", "epsilon_greedy")
    noise = _noise(root, iterations, uniforms, generator) if is_random else root.new_empty(len(root), 0)
    children, reward = model.expand(root)
    invalid_actions = _checked_invalid(invalid_actions, reward)
    if not callable(rule) and _is_small(root):
        numbers = one_tree.chooser(rule, temperature, epsilon, noise[0].tolist())
        invalid = [] if invalid_actions is None else invalid_actions[0].tolist()
        tree = one_tree.grow_one(model, children, reward, iterations, numbers, discount, invalid)
        return _from_numbers(tree, reward, temperature)
    choose = _chooser(rule, temperature, epsilon, noise)
    tables, root_children = _Tables(reward, iterations, discount, invalid_actions), children
    rewards: list[Tensor] = []  # T times [B, A]
    values: list[Tensor] = []  # T times [B, A]
    selected = [torch.zeros(len(root), 1, dtype=torch.int64, device=root.device)]  # T times [B, 1]
    latents = children.new_empty(len(root), tables.stored, *children.shape[2:])
    for t in range(iterations):
        value = model.value(children.flatten(0, 1)).view(reward.shape)
        rewards.append(reward)
        values.append(value)
        tables.add(t, selected[t], reward.detach(), value.detach())
        if t + 1 < iterations:
            slot = choose(tables.open_values(t + 1), t + 1)
            tables.close(slot)
            selected.append(slot)
            latent, latents = _next_latent(children, latents, t, tables.flat_index(slot))
            children, reward = model.expand(latent)
    zero = rewards[0].new_zeros(len(root), 1)
    rewards_table = torch.cat([zero, *rewards], 1).to(tables.dtype)
    values_table = torch.cat([zero, *values], 1).to(tables.dtype)
    chosen = torch.cat(selected, 1)
    path_value = tables.path_value(values_table.detach())
    backup = partial(
        _Backup.apply, rewards_table, values_table, path_value, tables.scale, chosen, temperature
    )
    if rewards_table.requires_grad or values_table.requires_grad:
        backed_up = backup()  # now: later may be under another grad mode
        q, backup = backed_up[0][:, -1], partial(tuple, backed_up)
    else:
        q = _final_q(path_value, selected)
    return SearchTree(
        q=q,
        backup=backup,
        selected=chosen,
        reward=rewards_table.detach(),
        value=values_table.detach(),
        path_value=path_value,
        root_children=root_children,
        root_rewards=rewards[0],
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

    Trees with more than ``LEAVES_AT_ONCE`` leaves in all are grown a few rows at a time and without gradient.
    Then only the best path below each root action is run again with gradient. That is exact, because a
    maximum passes its gradient to one leaf, and takes the memory of a tree of depth 2.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    _check_discount(discount)
    _check_latent(root)
    batch = root.shape[0]
    children, reward = model.expand(root)
    actions = children.shape[1]
    invalid_actions = _checked_invalid(invalid_actions, reward)
    rows = max(1, LEAVES_AT_ONCE // actions**depth)
    if batch <= rows:
        rewards, inner, value, leaf_values = _grow(model, children, reward, depth, discount)
        q_values = leaf_values.view(batch, actions, -1).max(2).values
    else:
        with torch.no_grad():
            parts = zip(children.split(rows), reward.split(rows), strict=True)  # type: ignore[no-untyped-call]
            grown = [_grow(model, *part, depth, discount) for part in parts]
            rewards, inner, value, leaf_values = (torch.cat(tables) for tables in zip(*grown, strict=True))
        leaf = leaf_values.view(batch, actions, -1).argmax(2)
        q_values = _follow(model, children, reward, leaf, depth, discount)
    leaf_values = leaf_values.detach()
    if invalid_actions is not None:
        q_values = q_values.masked_fill(invalid_actions, -torch.inf)
        leaf_values = leaf_values.masked_fill(
            invalid_actions.repeat_interleave(actions ** (depth - 1), 1), -torch.inf
        )
    expanded = sum(actions**level for level in range(depth))
    return SearchTree(
        q=q_values,
        backup=lambda: (q_values[:, None], torch.zeros_like(inner[:, :1])),
        selected=torch.arange(expanded, device=root.device).expand(batch, expanded),
        reward=rewards,
        value=torch.cat([torch.zeros_like(inner), value], 1),
        path_value=torch.cat([inner, leaf_values], 1),
        root_children=children,
        root_rewards=reward,
    )


def _grow(
    model: LatentModel, children: Tensor, reward: Tensor, depth: int, discount: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All nodes below the root's ``children [B, A, ...]``, level by level.

    Rewards ``[B, N]``, path values of inner nodes ``[B, N − L]`` and values of leaves ``[B, L]``, detached;
    path values of leaves ``[B, L]``, differentiable.
    """
    batch, actions = reward.shape
    returns = reward.to(_table_dtype(reward))  # [B, n]
    rewards, inner = [torch.zeros_like(returns[:, :1]), returns.detach()], [torch.zeros_like(returns[:, :1])]
    for level in range(1, depth):
        inner.append(returns.detach())
        children, reward = model.expand(children.flatten(0, 1))
        reward = reward.view(batch, -1)  # [B, n·A]
        returns = returns.repeat_interleave(actions, 1) + discount**level * reward
        rewards.append(reward.detach())
    value = model.value(children.flatten(0, 1)).view(batch, -1)
    leaf_values = returns + discount**depth * value
    return torch.cat(rewards, 1), torch.cat(inner, 1), value.detach().to(returns.dtype), leaf_values


def _follow(
    model: LatentModel, children: Tensor, reward: Tensor, leaf: Tensor, depth: int, discount: float
) -> Tensor:
    """Path values ``[B, A]`` of one ``leaf [B, A]`` below each root action, out of A^(depth − 1)."""
    batch, actions = reward.shape
    returns = reward.to(_table_dtype(reward)).flatten()  # [B·A]
    latent, row = children.flatten(0, 1), torch.arange(batch * actions, device=leaf.device)
    for level in range(1, depth):
        children, reward = model.expand(latent)
        # The leaf's number, written in base A, is the sequence of actions that lead to it.
        action = leaf.flatten().div(actions ** (depth - 1 - level), rounding_mode="floor") % actions
        latent, returns = children[row, action], returns + discount**level * reward[row, action]
    return (returns + discount**depth * model.value(latent)).view(batch, actions)


# --- the open set ------------------------------------------------------------------------------------


class _Tables:
    """What selection needs while the tree grows, on detached numbers: returns and the open set.

    Small searches cost what their operations cost to *launch*, so each is worth sparing: the slots of an
    iteration are views made in advance and written in place.
    """

    def __init__(self, like: Tensor, iterations: int, discount: float, invalid: Tensor | None):
        batch, self.actions = like.shape
        self.discount, self.invalid, self.dtype = discount, invalid, _table_dtype(like)
        shape = [1] + iterations * [self.actions]  # the root, then the children of each iteration
        self.returns = torch.zeros(batch, sum(shape), dtype=self.dtype, device=like.device)
        self.open = torch.full_like(self.returns, -torch.inf)  # path values of open nodes
        # γ^depth of every node; a plain 1 spares operations where nothing is discounted.
        self.scale = torch.ones_like(self.returns) if discount != 1 else self.returns.new_ones(())
        self.returns_of = torch.split_with_sizes(self.returns, shape, 1)[1:]  # T views [B, A]
        self.open_of = torch.split_with_sizes(self.open, shape, 1)[1:]
        # Latents [B, stored, ...] are kept of nodes that may be chosen: not the root, not the last children.
        self.stored = (iterations - 1) * self.actions
        self.offset = torch.arange(batch, device=like.device)[:, None] * self.stored - 1

    def add(self, t: int, parent: Tensor, reward: Tensor, value: Tensor) -> None:
        """Put the children of the nodes ``parent [B, 1]`` into their slots and into the open set."""
        returns, open_values = self.returns_of[t], self.open_of[t]  # [B, A]
        if self.discount != 1:
            scale = self.scale.gather(1, parent)  # [B, 1]
            reward, value = reward * scale, value * (scale * self.discount)
            self.scale[:, _slots(t, self.actions)] = scale * self.discount
        torch.add(self.returns.gather(1, parent), reward, out=returns)
        torch.add(returns, value, out=open_values)
        if t == 0 and self.invalid is not None:
            open_values.masked_fill_(self.invalid, -torch.inf)

    def open_values(self, t: int) -> Tensor:
        """Path values ``[B, n]`` of the nodes made before iteration ``t``, −inf where not open."""
        return self.open.narrow(1, 0, 1 + t * self.actions)

    def close(self, slot: Tensor) -> None:
        """Take the chosen nodes ``[B, 1]`` out of the open set."""
        self.open.scatter_(1, slot, -torch.inf)

    def flat_index(self, slot: Tensor) -> Tensor:
        """Where the latents of the nodes ``[B, 1]`` are in ``[B·stored, ...]``: indices ``[B]``."""
        return (slot + self.offset).view(-1)

    def path_value(self, value: Tensor) -> Tensor:
        """``V̄ [B, N]`` of all nodes from their values ``[B, N]``."""
        path_value = self.returns + (value * self.scale if self.discount != 1 else value)
        if self.invalid is not None:
            path_value[:, _slots(0, self.actions)].masked_fill_(self.invalid, -torch.inf)
        return path_value


def _noise(
    root: Tensor, iterations: int, uniforms: Tensor | None, generator: torch.Generator | None
) -> Tensor:
    """One number ``[B, T]`` in [0, 1) for every choice."""
    if uniforms is None:
        device = root.device if generator is None else generator.device
        uniforms = torch.rand(len(root), iterations, generator=generator, device=device)
    # Below 1 by more than a rounding error, so that the inverse CDF never runs off the end.
    return uniforms.to(root.device, _table_dtype(root)).clamp(max=1 - 1e-6)


def _chooser(rule: Rule | Choose, temperature: float, epsilon: float, uniforms: Tensor) -> Choose:
    """A selection rule as a function of the open set that answers with a column ``[B, 1]``."""
    if callable(rule):
        return lambda open_values, t: _checked_choice(rule(open_values, t), open_values)
    if rule == "greedy":
        return lambda open_values, t: open_values.argmax(1, keepdim=True)
    noise = uniforms[:, :, None].unbind(1)  # T times [B, 1]

    def sample(open_values: Tensor, t: int) -> Tensor:
        return _inverse_cdf(torch.softmax(_scores(open_values, temperature), 1), noise[t])

    def epsilon_greedy(open_values: Tensor, t: int) -> Tensor:
        is_open = open_values.isfinite()
        probs = is_open * (epsilon / is_open.sum(1, keepdim=True))
        best = open_values.argmax(1, keepdim=True)
        return _inverse_cdf(probs.scatter_add(1, best, torch.full_like(probs[:, :1], 1 - epsilon)), noise[t])

    return sample if rule == "sample" else epsilon_greedy


def _inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """One slot ``[B, 1]`` per row of ``probs [B, n]``; a slot of probability 0 is never taken."""
    cdf = probs.cumsum(1)
    total = cdf.narrow(1, cdf.shape[1] - 1, 1)  # 1 but for rounding
    # The clamp matters where a diverged model made the policy NaN: its Q-values will say so.
    return torch.searchsorted(cdf, uniform * total, right=True).clamp_(max=cdf.shape[1] - 1)


# --- one row on plain numbers ------------------------------------------------------------------------


def _is_small(root: Tensor) -> bool:
    """Whether to grow the tree on plain numbers: one row on the CPU and no gradient to carry."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return len(root) == 1 and root.device.type == "cpu"


def _from_numbers(tree: one_tree.OneTree, root_rewards: Tensor, temperature: float) -> SearchTree:
    """The tree as a batch of one."""
    numbers = [tree.reward, tree.value, tree.path_value, tree.scale]
    tables = torch.tensor(numbers, dtype=_table_dtype(root_rewards))  # [4, N]
    reward, value, path_value, scale = tables[:, None].unbind(0)
    selected = torch.tensor([tree.selected])
    return SearchTree(
        q=torch.tensor([tree.q_values()], dtype=tables.dtype),
        backup=partial(_Backup.apply, reward, value, path_value, scale, selected, temperature),
        selected=selected,
        reward=reward,
        value=value,
        path_value=path_value,
        root_children=tree.children[0],
        root_rewards=root_rewards,
    )


# --- what autograd sees ------------------------------------------------------------------------------


def _next_latent(children: Tensor, latents: Tensor, t: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """Store the children of iteration ``t`` and read the latents ``[B, ...]`` to expand next."""
    if children.requires_grad:
        return _NextLatent.apply(children, latents, t, index)  # type: ignore[no-untyped-call, no-any-return]
    actions = children.shape[1]
    latents.narrow(1, t * actions, actions).copy_(children)
    return latents.flatten(0, 1).index_select(0, index), latents


class _NextLatent(torch.autograd.Function):
    """:func:`_next_latent` with a gradient.

    A node is expanded at most once, so the gradient of reading is a row *write*; one buffer, handed from
    iteration to iteration as the gradient of ``latents``, collects all of them.
    """

    @staticmethod
    def forward(ctx: Any, children: Tensor, latents: Tensor, t: int, index: Tensor) -> tuple[Tensor, Tensor]:
        ctx.mark_dirty(latents)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index)
        ctx.first, ctx.actions, ctx.shape = t * children.shape[1], children.shape[1], latents.shape
        return _next_latent(children.detach(), latents, t, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_latent: Tensor | None, grad_latents: Tensor | None) -> tuple[Any, ...]:
        if grad_latent is not None:
            if grad_latents is None:  # the last reader: no other iteration writes before it
                grad_latents = grad_latent.new_zeros(ctx.shape)
            grad_latents.flatten(0, 1).index_copy_(0, ctx.saved_tensors[0], grad_latent)
        mine = None if grad_latents is None else grad_latents.narrow(1, ctx.first, ctx.actions)
        return mine, grad_latents, None, None


def _final_q(path_value: Tensor, selected: list[Tensor]) -> Tensor:
    """Q-values ``[B, A]`` of the finished tree alone, without gradient: Bellman backups, youngest first."""
    backed_up = path_value.clone()
    families = backed_up[:, 1:].view(len(path_value), len(selected), -1).unbind(1)  # T views [B, A]
    for t in reversed(range(1, len(selected))):
        backed_up.scatter_(1, selected[t], families[t].amax(1, keepdim=True))
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
        scale: Tensor,
        selected: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.actions = (path_value.shape[1] - 1) // selected.shape[1]
        ctx.temperature, ctx.blocks = temperature, _blocks(path_value, selected.shape[1])
        expanded_at = _expanded_at(selected, path_value.shape[1])
        under = _under(selected, ctx.actions)
        best, log_probs = [], [path_value.new_zeros(len(selected), 1)]  # the root is chosen for certain
        for block in ctx.blocks:
            leaves = _leaf_values(path_value, expanded_at, ctx.actions, block)  # [B, block, n]
            best.append(_best_leaf(leaves, under, ctx.actions, block))
            # The leaves of τ_t are the open set of iteration t + 1.
            log_policy = torch.log_softmax(_scores(leaves, temperature), 2)
            chosen = selected[:, block.start + 1 : block.stop + 1, None]
            log_probs.append(log_policy[:, : chosen.shape[1]].gather(2, chosen).squeeze(2))
        leaf = _carry_forward(torch.cat(best, 1), under, ctx.actions)
        # What fits one block is small enough to keep for the backward pass; otherwise it is made again.
        kept = [leaves] if len(ctx.blocks) == 1 else []
        ctx.save_for_backward(path_value, scale, selected, expanded_at, leaf, *kept)
        ctx.set_materialize_grads(False)
        return path_value.gather(1, leaf.flatten(1)).view_as(leaf), torch.cat(log_probs, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor | None, grad_log_probs: Tensor | None) -> tuple[Any, ...]:
        path_value, scale, selected, expanded_at, leaf, *kept = ctx.saved_tensors
        grad = torch.zeros_like(path_value)  # dL / dV̄
        if grad_q is not None:  # one-hot at the best leaf of each root action
            grad.scatter_add_(1, leaf.flatten(1), grad_q.flatten(1))
        if grad_log_probs is not None:  # one-hot at the chosen node minus π over the open set
            weight = grad_log_probs[:, 1:] / ctx.temperature  # of iterations 1 to T − 1, by τ_0 to τ_{T−2}
            grad.scatter_add_(1, selected[:, 1:], weight)
            for block in ctx.blocks:
                leaves = kept[0] if kept else _leaf_values(path_value, expanded_at, ctx.actions, block)
                weights = weight[:, None, block]  # [B, 1, block], one less in the last block
                policy = torch.softmax(_scores(leaves[:, : weights.shape[2]], ctx.temperature), 2)
                grad[:, : policy.shape[2]] -= (weights @ policy).squeeze(1)
        # The reward into a node is part of every path value below it: sum over subtrees, youngest first.
        below = grad.clone()
        children = below[:, 1:].view(*selected.shape, ctx.actions).unbind(1)  # T views [B, A]
        parents = selected[:, :, None].unbind(1)  # T views [B, 1]
        for t in reversed(range(1, len(parents))):
            below.scatter_add_(1, parents[t], children[t].sum(1, keepdim=True))
        if scale.dim():  # discounted: scale is γ^depth of each node
            grad = grad * scale
            below[:, 1:] *= scale.gather(1, selected).repeat_interleave(ctx.actions, 1)
        return below, grad, None, None, None, None


def _scores(path_value: Tensor, temperature: float) -> Tensor:
    """What the expansion policy is the softmax of."""
    return path_value if temperature == 1 else path_value / temperature


def _leaf_values(path_value: Tensor, expanded_at: Tensor, actions: int, block: slice) -> Tensor:
    """``V̄ [B, block, n]`` of the leaves of τ_t (made by iteration t, not yet expanded) or −inf."""
    t = torch.arange(block.start, block.stop, device=path_value.device)[:, None]
    nodes = 1 + block.stop * actions
    created = (torch.arange(nodes, device=path_value.device) - 1).div(actions, rounding_mode="floor")
    leaf = (expanded_at[:, None, :nodes] > t) & (created <= t)
    return torch.where(leaf, path_value[:, None, :nodes], -torch.inf)


def _best_leaf(leaves: Tensor, under: Tensor, actions: int, block: slice) -> Tensor:
    """``[B, block]`` the slot of the best of ``leaves [B, block, n]`` below the root action worked under.

    First the best siblings, then the best among them: siblings share their root action, save for the root's
    children, and of those the one worked under is no leaf.
    """
    families = leaves[:, :, 1:].view(*leaves.shape[:2], -1, actions).amax(3)  # [B, block, iterations so far]
    here = under[:, None, : families.shape[2]] == under[:, block, None]
    family = torch.where(here, families, -torch.inf).argmax(2, keepdim=True)  # [B, block, 1]
    slots = 1 + family * actions + torch.arange(actions, device=leaves.device)  # [B, block, A]
    return 1 + family.squeeze(2) * actions + leaves.gather(2, slots).argmax(2)


def _carry_forward(best: Tensor, under: Tensor, actions: int) -> Tensor:
    """``[B, T, A]`` the best leaf of τ_t below each root action.

    An iteration changes only the root action it works ``under [B, T]``, to ``best [B, T]``; the others keep
    theirs. Before an action's first turn that is the root's child itself.
    """
    action = torch.arange(actions, device=best.device)
    steps = torch.arange(actions, actions + best.shape[1], device=best.device)[:, None]
    # Columns of [root children | best]: of each action's last turn up to t.
    latest = torch.where(under[:, :, None] == action, steps, action).cummax(1).values
    choices = torch.cat([(1 + action).expand(len(best), -1), best], 1)
    return choices.gather(1, latest.flatten(1)).view_as(latest)


# --- the slot rule -----------------------------------------------------------------------------------


def _slots(t: int, actions: int) -> slice:
    """The slots of the children made at iteration ``t``."""
    return slice(1 + t * actions, 1 + (t + 1) * actions)


def _expanded_at(selected: Tensor, nodes: int) -> Tensor:
    """``[B, N]`` the iteration that expanded each slot; T for a leaf."""
    batch, iterations = selected.shape
    never = torch.full((batch, nodes), iterations, device=selected.device)
    return never.scatter_(1, selected, torch.arange(iterations, device=selected.device).expand(batch, -1))


def _under(selected: Tensor, actions: int) -> Tensor:
    """``[B, T]`` the root action below which each iteration expands, by pointer jumping; −1 at the root."""
    iterations = selected.shape[1]
    creator = (selected - 1).div(actions, rounding_mode="floor")  # the iteration that made the node
    # For each iteration, the one on its path that expanded a child of the root; twice as far every jump.
    jump = torch.where(creator > 0, creator, torch.arange(iterations, device=selected.device))
    for _ in range((iterations - 1).bit_length()):
        jump = jump.gather(1, jump)
    return selected.gather(1, jump) - 1


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


def _check_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ValueError(f"discount must lie in [0, 1], got {discount}")


def _checked_choice(slot: Tensor, open_values: Tensor) -> Tensor:
    """The slots ``[B]`` that a caller's rule chose as a column ``[B, 1]``, if they are open."""
    if slot.shape != open_values.shape[:1] or slot.dtype != torch.int64:
        expected = f"int64 [{len(open_values)}]"
        raise ValueError(f"rule must return {expected} slots, got {slot.dtype} {list(slot.shape)}")
    inside = (slot >= 0) & (slot < open_values.shape[1])
    is_open = inside & (open_values.gather(1, (slot * inside)[:, None]).squeeze(1) != -torch.inf)
    if not bool(is_open.all()):
        raise ValueError(f"rule must return slots of open nodes, got {int(slot[~is_open][0])}")
    return slot[:, None]


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
    if not 1e-30 <= temperature < float("inf"):
        raise ValueError(f"temperature must be positive and finite (at least 1e-30), got {temperature}")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], got {epsilon}")
    _check_discount(discount)
    if uniforms is not None and uniforms.shape != (root.shape[0], iterations):
        expected = (root.shape[0], iterations)
        raise ValueError(
            f"uniforms must have shape {expected} (batch, iterations), got {tuple(uniforms.shape)}"
        )
    if torch.compiler.is_compiling():
        return  # numbers cannot be looked at in a compiled search
    if uniforms is not None and not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        raise ValueError("uniforms must lie in [0, 1), got others or NaN")


def _checked_invalid(invalid: Tensor | None, reward: Tensor) -> Tensor | None:
    """``invalid_actions``, where the search runs, if they fit the root's ``reward [B, A]``."""
    if invalid is None:
        return None
    if invalid.shape != reward.shape or invalid.dtype != torch.bool:
        raise ValueError(
            f"invalid_actions must be bool {tuple(reward.shape)} (batch, actions), "
            f"got {invalid.dtype} {tuple(invalid.shape)}"
        )
    if bool(invalid.all(1).any()):
        row = int(invalid.all(1).nonzero()[0])
        raise ValueError(f"invalid_actions leaves no action open in row {row}")
    return invalid.to(reward.device)
