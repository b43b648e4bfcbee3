"""Slow and obvious: Algorithm 1 with node objects, one sample at a time, Bellman backup by recursion.

The oracle for the batched search, and the enumeration of all trees that proves the gradient unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from dtsn.models.world_model import WorldModel
from dtsn.search import Expansion, LatentModel


@dataclass
class Node:
    latent: Tensor  # [1, ...]
    reward: Tensor | float = 0.0  # on the edge into the node
    returns: Tensor | float = 0.0  # discounted rewards from the root
    value: Tensor | float = 0.0  # V(h), times the chance that the episode goes on
    depth: int = 0
    is_end: bool = False
    children: list[Node | None] = field(default_factory=list)  # None where the action is invalid

    @property
    def is_leaf(self) -> bool:
        """Not expanded, or expanded in vain."""
        return not any(self.children)


@dataclass
class Result:
    q_values: Tensor  # [T, A]
    log_probs: Tensor  # [T]


def reference_search(
    model: LatentModel,
    root: Tensor,
    selected: list[int],
    discount: float = 1.0,
    temperature: float = 1.0,
    invalid: Sequence[bool] = (),
) -> Result:
    """Search from the latent ``root [1, ...]``, expanding the given slots in turn; −1: nothing is left."""
    nodes: list[Node | None] = [Node(root)]  # by slot
    open_slots = [0]
    q_values, log_probs = [], []
    for slot in selected:
        if slot == -1:
            assert not open_slots
            log_probs.append(root.new_zeros(()))
            q_values.append(q_values[-1])
            continue
        if slot == 0:
            log_probs.append(root.new_zeros(()))
        else:
            scores = torch.stack([path_value(nodes[n], discount) for n in open_slots]) / temperature
            log_probs.append(torch.log_softmax(scores, 0)[open_slots.index(slot)])
        expand(model, nodes[slot], discount)
        if slot == 0:
            for action in (action for action, closed in enumerate(invalid) if closed):
                nodes[0].children[action] = None
        open_slots.remove(slot)
        made = nodes[slot].children
        open_slots += [len(nodes) + a for a, child in enumerate(made) if child and not child.is_end]
        nodes += made
        q_values.append(torch.stack([q_value(child, discount) for child in nodes[0].children]))
    return Result(torch.stack(q_values), torch.stack(log_probs))


def expand(model: LatentModel, node: Node, discount: float) -> None:
    children, rewards, *masks = model.expand(node.latent)
    valid, terminal = masks or (None, None)
    for action in range(rewards.shape[1]):
        if valid is not None and not valid[0, action]:
            node.children.append(None)
            continue
        reward = rewards[0, action]
        returns = node.returns + discount**node.depth * reward
        latent = children[:, action]
        ends = 0.0 if terminal is None else terminal[0, action].double()
        value = (1 - ends) * model.value(latent)[0]
        node.children.append(Node(latent, reward, returns, value, node.depth + 1, bool(ends > 0.5)))


def path_value(node: Node, discount: float) -> Tensor | float:
    return node.returns + discount**node.depth * node.value


def q_value(node: Node | None, discount: float) -> Tensor | float:
    """Q of the edge into ``node``: its reward plus its backed-up value; −inf if there is none."""
    if node is None:
        return torch.tensor(-torch.inf, dtype=torch.float64)
    return node.reward + discount * backed_up_value(node, discount)


def backed_up_value(node: Node, discount: float) -> Tensor | float:
    if node.is_leaf:
        return node.value
    return torch.stack([q_value(child, discount) for child in node.children if child]).max()


def brute_force_full_tree(
    model: LatentModel, root: Tensor, depth: int, discount: float, invalid: Sequence[bool] = ()
) -> Tensor:
    """TreeQN's Q-values ``[A]`` by plain recursion."""

    def grow(node: Node) -> None:
        if node.depth < depth and not node.is_end:
            expand(model, node, discount)
            for action in (action for action, closed in enumerate(invalid) if closed and not node.depth):
                node.children[action] = None
            for child in filter(None, node.children):
                grow(child)

    top = Node(root)
    grow(top)
    return torch.stack([q_value(child, discount) for child in top.children])


class KeyedModel(LatentModel, Protocol):
    def key(self, latent: Tensor) -> Tensor: ...


def reference_graph_search(
    model: KeyedModel, root: Tensor, selected: list[int], discount: float = 1.0, temperature: float = 1.0
) -> Result:
    """Best-first graph search from the latent ``root [1, ...]``, expanding the given slots in turn."""
    top = Node(root)
    nodes: list[Node | None] = [top]  # by slot
    open_slots, q_values, log_probs = [0], [], []
    places = {int(model.key(root)): top}
    canonical: dict[int, Node] = {}  # of aliases, by id of the node
    for slot in selected:
        if slot == -1:
            assert not open_slots
            log_probs.append(root.new_zeros(()))
            q_values.append(q_values[-1])
            continue
        scores = torch.stack([path_value(nodes[n], discount) + root.new_zeros(()) for n in open_slots])
        log_probs.append(torch.log_softmax(scores / temperature, 0)[open_slots.index(slot)])
        expand(model, nodes[slot], discount)
        open_slots.remove(slot)
        for child in nodes[slot].children:
            nodes.append(child)
            if child is None or child.is_end:
                continue
            first = places.setdefault(int(model.key(child.latent)), child)
            if first is child:
                open_slots.append(len(nodes) - 1)
            else:
                canonical[id(child)] = first

        def leaves(node: Node) -> list[Node]:
            """Those at or below a node that are no aliases."""
            if id(node) in canonical:
                return []
            return (
                [node]
                if node.is_leaf
                else [leaf for child in node.children if child for leaf in leaves(child)]
            )

        def worths(node: Node) -> list[Tensor]:
            """What each leaf and alias at or below a node is worth."""
            if id(node) not in canonical:
                if node.is_leaf:
                    return [path_value(node, discount)]
                return [worth for child in node.children if child for worth in worths(child)]
            first = canonical[id(node)]
            if not leaves(first):
                return []  # exhausted
            best = torch.stack([path_value(leaf, discount) for leaf in leaves(first)]).max()
            return [node.returns + discount ** (node.depth - first.depth) * (best - first.returns)]

        def last_resort(node: Node) -> list[Tensor]:
            """Path values of the aliases at or below a node."""
            if id(node) in canonical:
                return [path_value(node, discount)]
            return [value for child in node.children if child for value in last_resort(child)]

        none = torch.tensor(-torch.inf, dtype=torch.float64)
        q_values.append(
            torch.stack(
                [
                    torch.stack(worths(child) or last_resort(child)).max() if child else none
                    for child in top.children
                ]
            )
        )
    return Result(torch.stack(q_values), torch.stack(log_probs))


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


def all_masked_trees(model: LatentModel, root: Tensor, actions: int, iterations: int) -> Iterator[list[int]]:
    """The same for a model with masks and ends: what is open depends on the nodes."""

    def extend(selected: list[int], nodes: dict[int, Node], open_slots: list[int]) -> Iterator[list[int]]:
        if len(selected) == iterations:
            yield selected
            return
        if not open_slots:
            yield selected + (iterations - len(selected)) * [-1]
            return
        first = 1 + len(selected) * actions
        for slot in open_slots:
            node = Node(nodes[slot].latent)
            expand(model, node, 1.0)
            made = {first + action: child for action, child in enumerate(node.children) if child}
            rest = [n for n in open_slots if n != slot] + [n for n in made if not made[n].is_end]
            yield from extend([*selected, slot], nodes | made, rest)

    yield from extend([], {0: Node(root)}, [0])


class MaskedModel(nn.Module):
    """A random model in which some actions are invalid and some children ends, by what their latents say.

    ``ends`` is "bool", "probability" or "none". What does not exist is NaN or absurd: it must not count.
    """

    def __init__(self, base: WorldModel, seed: int, invalid: float = 0.3, ends: str = "bool"):
        super().__init__()
        self.base, self.invalid, self.ends = base, invalid, ends
        generator = torch.Generator().manual_seed(seed)
        self.phase = torch.rand(base.num_actions, generator=generator, dtype=torch.float64)
        self.slope = nn.Parameter(torch.randn((), generator=generator, dtype=torch.float64))

    def expand(self, latent: Tensor) -> Expansion:
        children, reward = self.base.expand(latent)
        # Far-away digits of a latent are as good as chance, and the same in any batch.
        valid = (self.draw(latent)[:, None] + self.phase) % 1 >= self.invalid
        chance = self.draw(children.flatten(0, 1)).view(reward.shape)
        terminal: Tensor | None = None
        if self.ends == "bool":
            terminal = chance < 0.25
        elif self.ends == "probability":
            mean = children.flatten(2).mean(2)
            terminal = torch.sigmoid(4 * (chance - 0.6) + self.slope * mean)
        beside = valid.view(*valid.shape, *[1] * (children.dim() - 2))
        children = torch.where(beside, children, 1e3)
        return Expansion(children, reward.where(valid, torch.nan), valid, terminal)

    def value(self, latent: Tensor) -> Tensor:
        return self.base.value(latent)

    @staticmethod
    def draw(latent: Tensor) -> Tensor:
        """Numbers ``[B]`` in [0, 1) that depend on the latents ``[B, ...]`` alone."""
        return (latent.detach().flatten(1).round(decimals=9).sum(1) * 1e3).sin().mul(1e3).remainder(1)

    def key(self, latent: Tensor) -> Tensor:
        """A few places only, by chance: nodes that are merged differ in their latents."""
        return (7 * self.draw(latent)).long()

    def roots(self, rows: int, latent: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Latents ``[rows, ...]`` with a valid action."""
        root = torch.randn(60 * rows, *latent, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            root = root[self.expand(root).valid.any(1)]
        return root[:rows].clone()


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
            nn.Sequential(ActionMLP(latent[0], hidden, actions, 1), nn.Flatten(1)),
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
