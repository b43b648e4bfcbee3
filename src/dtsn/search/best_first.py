"""Best-first search, Algorithm 1 of the paper: the batched loop that grows the trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtsn.config import Rule
from dtsn.errors import UserError
from dtsn.search import single_row
from dtsn.search.backup import Timeline, back_up, final_q
from dtsn.search.boundary import (
    check_latent,
    check_uniforms,
    checked_count,
    checked_discount,
    checked_number,
    root_mask,
)
from dtsn.search.ends import Ends
from dtsn.search.merging import Merging, Places, merged_q
from dtsn.search.model import Children, LatentModel, check_probabilities, expand, expand_plainly
from dtsn.search.selection import Choose, Tables, draw_noise, make_chooser, name_of, table_dtype
from dtsn.search.tree import SearchTree


def best_first_search(
    model: LatentModel,
    root: Tensor,
    *,
    iterations: int,
    rule: Rule | Choose = "sample",
    temperature: float = 1.0,
    epsilon: float = 0.1,
    discount: float = 1.0,
    invalid_actions: Tensor | np.ndarray | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    merge: bool = False,
) -> SearchTree:
    """Run Algorithm 1 of the paper on latents ``root [B, ...]``: T expansions, then the backup.

    Args:
        model: Expands latents and values them; may tell of invalid actions and ends (:class:`Expansion`).
        root: Latents ``[B, ...]`` to search from; states that are whole numbers may be ``[B]``.
        iterations: T, the number of expansions. A row that has nothing left to expand keeps its tree.
        rule: Picks the open node to expand: ``sample`` from π = softmax(V̄ / temperature), ``greedy``,
            ``epsilon_greedy``, or any callable ``(V̄ [B, n], t) -> slots [B]`` (V̄ is −inf where a node is not
            open). Only ``sample`` and :class:`Replay` have ``log_probs``.
        temperature: Of π.
        epsilon: Share of ``epsilon_greedy``'s choices that are made at random.
        discount: γ.
        invalid_actions: ``[B, A]`` (bool or 0/1) closes root actions besides those that the model closes:
            they are never expanded, their Q-value is −inf and has no gradient.
        uniforms: ``[B, T]`` in [0, 1), what random rules draw with: one number per row and iteration, so that
            what one row draws never depends on the other rows.
        generator: Draws ``uniforms`` if they are not given.
        merge: Search a graph instead of a tree, beyond the paper: nodes with the same ``model.key`` are one
            place, expanded once (:mod:`dtsn.search.merging`). The model then needs ``key(latent [n, ...])``,
            int64 ``[n]``.

    Returns:
        The trees, one a row: ``q [B, A]``, and with gradient ``q_values [B, T, A]`` and ``log_probs [B, T]``.
    """
    check_latent(root)
    iterations = checked_count("iterations", iterations)
    name = name_of(rule)
    temperature = checked_number("temperature", temperature, 1e-30, 1e30, "lie in [1e-30, 1e30]")
    epsilon = checked_number("epsilon", epsilon, 0, 1, "lie in [0, 1]")
    discount = checked_discount(discount)
    if merge and discount == 0:
        raise UserError("merge needs a discount above 0, got 0")
    check_uniforms(uniforms, root.shape[0], iterations)
    children = expand(model, root)
    children = children._replace(valid=root_mask(invalid_actions, children))
    noise = children.reward.new_empty(root.shape[0], 0)
    if name in ("sample", "epsilon_greedy"):
        noise = draw_noise(children.reward, iterations, uniforms, generator)
    if not callable(rule) and _is_small(root):
        numbers = single_row.chooser(rule, temperature, epsilon, noise[0].tolist())
        tree = single_row.grow(model, children, iterations, numbers, discount, root if merge else None)
        return _from_numbers(tree, children, name, temperature)
    choose = make_chooser(rule, temperature, epsilon, noise)
    return _grow(model, root, children, iterations, choose, discount, name, temperature, merge)


def _grow(
    model: LatentModel,
    root: Tensor,
    children: Children,
    iterations: int,
    choose: Choose,
    discount: float,
    rule: str,
    temperature: float,
    merge: bool,
) -> SearchTree:
    first, nodes = children, 1 + iterations * children.reward.shape[1]
    tables = Tables(children.reward, iterations, discount)
    ends = Ends(root) if children.masked or merge else None
    places = Places(model, root, nodes) if merge else None
    rewards: list[Tensor] = []  # T times [B, A]
    values: list[Tensor] = []  # T times [B, A]
    slot = torch.zeros(root.shape[0], 1, dtype=torch.int64, device=root.device)
    selected = [slot]  # T times [B, 1]
    latents = children.latent.new_empty(root.shape[0], tables.stored, *children.latent.shape[2:])
    for t in range(iterations):
        reward, shut = children.reward, None
        value = model.value(children.latent.flatten(0, 1)).reshape(reward.shape)
        if ends is not None:
            reward, value, shut = ends.add(children, value)
            if places is not None:
                shut = shut | places.add(children.latent, shut)
        rewards.append(reward)
        values.append(value)
        tables.add(t, slot, reward, value, shut)
        if t + 1 == iterations:
            break
        open_values = tables.open_values(t + 1)
        slot = choose(open_values, t + 1)
        if ends is None:
            selected.append(slot)
        else:
            slot = ends.redirect(slot, open_values)
            if ends.all_stuck():
                break
            selected.append(slot.masked_fill(ends.stuck, -1))
        tables.close(slot)
        latent, latents = _next_latent(children.latent, latents, t, tables.flat_index(slot))
        children = expand_plainly(model, latent) if ends is None else expand(model, ends.latent(latent))
    made = first, rewards, values, selected
    return _finish(*made, iterations, tables, ends, places, rule, temperature)


def _finish(
    root: Children,
    rewards: list[Tensor],
    values: list[Tensor],
    selected: list[Tensor],
    iterations: int,
    tables: Tables,
    ends: Ends | None,
    places: Places | None,
    rule: str,
    temperature: float,
) -> SearchTree:
    """Put what the iterations made side by side and back it up."""
    missing = iterations - len(selected)  # all rows stopped early
    selected += missing * [selected[0].new_full(selected[0].shape, -1)]
    zero = torch.zeros_like(rewards[0][:, :1])
    zeros = missing * [torch.zeros_like(rewards[0])]
    reward = torch.cat([zero, *rewards, *zeros], 1).to(tables.dtype)
    value = torch.cat([zero, *values, *zeros], 1).to(tables.dtype)
    chosen = torch.cat(selected, 1)
    exists, terminal = (None, None) if ends is None else ends.tables(missing)
    merging = None if places is None else Merging(places.canonical, tables.returns, tables.scale)
    path_value = tables.path_value(value.detach(), exists)
    backed_up = None
    differentiable = reward.requires_grad or value.requires_grad
    if differentiable or merging is not None:
        alias = None if merging is None else merging.alias
        timeline = Timeline.of(chosen, path_value.shape[1], exists, terminal, alias)
        table = reward, value, path_value, timeline
    if differentiable:
        q_values, log_probs = back_up(*table, temperature=temperature, scale=tables.scale)
        backed_up = (q_values if merging is None else merged_q(*table, merging)), log_probs
        q = backed_up[0][:, -1]
    elif merging is not None:
        q = merged_q(*table, merging, last=True)[:, 0]
    else:
        q = final_q(path_value, selected, exists)
    return SearchTree(
        q=q,
        selected=chosen,
        reward=reward.detach(),
        value=value.detach(),
        path_value=path_value,
        root_children=root.latent,
        root_rewards=root.reward,
        root_terminal=root.terminal,
        rule=rule,
        temperature=temperature,
        node_mask=exists,
        terminal=terminal,
        merging=merging,
        backed_up=backed_up,
        inputs=(reward, value, tables.scale) if differentiable else None,
    )


def _is_small(root: Tensor) -> bool:
    """Tell whether to grow the tree on plain numbers: one row on the CPU and no gradient to carry."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return root.shape[0] == 1 and root.device.type == "cpu"


def _from_numbers(tree: single_row.RowTree, root: Children, rule: str, temperature: float) -> SearchTree:
    """Return the tree as a batch of one."""
    tables = torch.tensor(
        [tree.reward, tree.value, tree.path_value], dtype=table_dtype(root.reward)
    )  # [3, N]
    reward, value, path_value = tables[:, None].unbind(0)
    terminal = None
    if tree.terminal is not None:
        terminal = torch.tensor([tree.terminal], dtype=None if root.terminal is None else root.terminal.dtype)
        check_probabilities(terminal)
    merging = None
    if tree.canonical is not None:
        returns = torch.tensor([tree.returns], dtype=tables.dtype)
        scale = torch.tensor([tree.scale], dtype=tables.dtype) if tree.discount != 1 else None
        merging = Merging(torch.tensor([tree.canonical]), returns, scale)
    return SearchTree(
        q=torch.tensor([tree.q_values()], dtype=tables.dtype),
        selected=torch.tensor([tree.selected]),
        reward=reward,
        value=value,
        path_value=path_value,
        root_children=root.latent,
        root_rewards=root.reward,
        root_terminal=root.terminal,
        rule=rule,
        temperature=temperature,
        node_mask=None if tree.exists is None else torch.tensor([tree.exists]),
        terminal=terminal,
        merging=merging,
    )


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
