"""Slow and obvious: Algorithm 1 with node objects, one sample at a time, Bellman backup by recursion.

The oracle for the batched search, and the enumeration of all trees that proves the gradient unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dtsn.models.world_model import WorldModel


@dataclass
class Node:
    latent: Tensor  # [1, ...]
    reward: Tensor | float = 0.0  # on the edge into the node
    returns: Tensor | float = 0.0  # discounted rewards from the root
    value: Tensor | float = 0.0  # V(h)
    depth: int = 0
    children: list[Node] = field(default_factory=list)


@dataclass
class Result:
    q_values: Tensor  # [T, A]
    log_probs: Tensor  # [T]


def reference_search(
    model: WorldModel, root: Tensor, selected: list[int], discount: float = 1.0, temperature: float = 1.0
) -> Result:
    """Search from the latent ``root [1, ...]``, expanding the given slots in turn."""
    nodes = [Node(root)]  # by slot
    open_slots = [0]
    q_values, log_probs = [], []
    for slot in selected:
        if slot == 0:
            log_probs.append(root.new_zeros(()))
        else:
            scores = torch.stack([path_value(nodes[n], discount) for n in open_slots]) / temperature
            log_probs.append(torch.log_softmax(scores, 0)[open_slots.index(slot)])
        expand(model, nodes[slot], discount)
        open_slots.remove(slot)
        open_slots += range(len(nodes), len(nodes) + model.num_actions)
        nodes += nodes[slot].children
        q_values.append(torch.stack([q_value(child, discount) for child in nodes[0].children]))
    return Result(torch.stack(q_values), torch.stack(log_probs))


def expand(model: WorldModel, node: Node, discount: float) -> None:
    children, rewards = model.expand(node.latent)
    for action in range(model.num_actions):
        reward = rewards[0, action]
        returns = node.returns + discount**node.depth * reward
        latent = children[:, action]
        node.children.append(Node(latent, reward, returns, model.value(latent)[0], node.depth + 1))


def path_value(node: Node, discount: float) -> Tensor:
    return node.returns + discount**node.depth * node.value


def q_value(node: Node, discount: float) -> Tensor:
    """Q of the edge into ``node``: its reward plus its backed-up value."""
    return node.reward + discount * backed_up_value(node, discount)


def backed_up_value(node: Node, discount: float) -> Tensor:
    if not node.children:
        return node.value
    return torch.stack([q_value(child, discount) for child in node.children]).max()


def brute_force_full_tree(model: WorldModel, root: Tensor, depth: int, discount: float) -> Tensor:
    """TreeQN's Q-values ``[A]`` by plain recursion."""

    def grow(node: Node) -> None:
        if node.depth < depth:
            expand(model, node, discount)
            for child in node.children:
                grow(child)

    top = Node(root)
    grow(top)
    return torch.stack([q_value(child, discount) for child in top.children])


def all_trees(actions: int, iterations: int) -> Iterator[list[int]]:
    """Every sequence of expansions that a search of T iterations can make."""

    def extend(selected: list[int], open_slots: list[int]) -> Iterator[list[int]]:
        if len(selected) == iterations:
            yield selected
            return
        first = 1 + len(selected) * actions
        for slot in open_slots:
            rest = [n for n in open_slots if n != slot]
            yield from extend([*selected, slot], rest + list(range(first, first + actions)))

    yield from extend([], [0])


def random_model(
    actions: int, latent: tuple[int, ...] = (5,), seed: int = 0, scale: float = 1.0, hidden: int = 7
) -> WorldModel:
    """A small float64 world model with vector ``(D,)`` or map ``(C, H, W)`` latents; identity encoder."""
    from dtsn.models.heads import ActionMLP, MapHead, MapTransition, ValueMLP

    torch.manual_seed(seed)
    parts: tuple[nn.Module, nn.Module, nn.Module]
    if len(latent) == 1:
        parts = (
            ActionMLP(latent[0], hidden, actions, latent[0]),
            ActionMLP(latent[0], hidden, actions),
            ValueMLP(latent[0], hidden, 1.0),
        )
    else:
        channels, size = latent[0], (latent[1], latent[2])
        parts = (
            MapTransition(channels, actions, hidden),
            MapHead(channels, size, hidden, actions),
            MapHead(channels, size, hidden),
        )
    model = WorldModel(nn.Identity(), *parts, num_actions=actions).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model
