"""The baseline that needs no batched search: Python objects, one sample after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dtsn.bench.search import Case, search_functions
from dtsn.bench.timing import Row, interleave, milliseconds, ratio
from dtsn.models.world_model import WorldModel


@dataclass
class Node:
    """A node of the baseline's tree; its tensors are scalars but for the latent."""

    latent: Tensor  # [1, D]
    reward: Tensor  # on the edge into the node
    returns: Tensor  # rewards from the root
    value: Tensor
    children: tuple[Node, ...] = ()

    def q_value(self) -> Tensor:
        """Back up by recursion."""
        below = [child.q_value() for child in self.children]
        return self.reward + (torch.stack(below).max() if below else self.value)


def search_one_sample(model: WorldModel, root: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Search undiscounted from one latent ``[1, D]``: Q ``[T, A]`` and log π ``[T]``."""
    zero = root.new_zeros(())
    top = Node(root, zero, zero, zero)
    open_nodes, q_values, log_probs = [top], [], []
    for _ in range(iterations):
        log_policy = torch.log_softmax(torch.stack([node.returns + node.value for node in open_nodes]), 0)
        choice = int(torch.multinomial(log_policy.detach().exp(), 1))
        log_probs.append(log_policy[choice])
        node = open_nodes.pop(choice)
        latents, rewards = model.expand(node.latent)[:2]  # [1, A, D], [1, A]
        node.children = tuple(
            Node(latent, reward, node.returns + reward, model.value(latent)[0])
            for latent, reward in zip(latents.transpose(0, 1), rewards[0], strict=True)
        )
        open_nodes += node.children
        q_values.append(torch.stack([child.q_value() for child in top.children]))
    return torch.stack(q_values), torch.stack(log_probs)


def per_sample_against_ours(quick: bool) -> Iterator[Row]:
    """Time a per-sample Python search against ours: training step, A=15, B=256, T=10, latent 64."""
    case = Case(15, 10, 256, 64)
    model, observation = case.world_model(), case.observation()

    def one_sample() -> None:
        q_values, log_probs = search_one_sample(model, model.encode(observation[:1]), case.iterations)
        (q_values.sum() + log_probs.sum()).backward()  # type: ignore[no-untyped-call]

    times = interleave({"sample": one_sample, "ours": search_functions(case)["train"]}, 0 if quick else 6.0)
    times["reference"] = case.batch * times["sample"]  # samples one after the other
    found = ratio(times, "reference", "ours")
    yield {
        "part": "reference",
        **vars(case),
        "ms": milliseconds(times),
        "ratios": {"reference_over_dtsn": found},
        "reference_over_ours": [round(x, 1) for x in found],
    }
