"""A search against the *bare modules*, its yardstick.

These are the same layers called plainly with no tree logic, each on B·A rows with the one-hot action
concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from dtsn.bench.timing import Row, Times, interleave, milliseconds, ratio
from dtsn.config import NetworkConfig
from dtsn.models.build import make_world_model
from dtsn.models.heads import MapHead
from dtsn.models.world_model import WorldModel
from dtsn.search import best_first_search
from dtsn.solvers import losses


@dataclass(frozen=True)
class Case:
    """A size of search: A actions, T iterations, B rows, and a latent vector or map [16, 20, 20]."""

    actions: int
    iterations: int
    batch: int
    latent: int
    spatial: bool = False

    def world_model(self) -> WorldModel:
        """Return the library's modules at this size: a two-layer encoder for vectors, MapEncoder for maps."""
        shape = (3, 20, 20) if self.spatial else (self.latent,)
        config = NetworkConfig(
            encoder="grid" if self.spatial else "mlp",
            latent=self.latent,
            hidden=2 * self.latent if self.spatial else self.latent,
            spatial=self.spatial,
        )
        torch.manual_seed(0)
        return make_world_model(gymnasium.spaces.Box(0, 1, shape, np.float32), self.actions, config)

    def observation(self) -> Tensor:
        """Draw observations ``[B, ...]``."""
        return torch.rand(self.batch, *((3, 20, 20) if self.spatial else (self.latent,)))


class BareModules(nn.Module):
    """The layers of a world model as anyone would call them: T times on B·A rows with one-hot actions."""

    def __init__(self, model: WorldModel, case: Case):
        super().__init__()
        wide, latent, hidden = case.latent + case.actions, case.latent, case.latent
        self.encoder, self.value = model.encoder, model.value_head
        self.iterations, self.actions = case.iterations, case.actions
        self.transition: nn.Module
        self.reward: nn.Module
        if case.spatial:
            hidden *= 2
            conv = nn.Conv2d(wide, hidden, 3, padding=1), nn.Conv2d(hidden, latent, 3, padding=1)
            self.transition = nn.Sequential(conv[0], nn.ReLU(), conv[1])
            self.reward = MapHead(wide, (20, 20), hidden)
        else:
            self.transition = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, latent))
            self.reward = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, observation: Tensor) -> Tensor:
        """Return all rewards and values in one vector."""
        latent = self.encoder(observation)  # [B, *latent]
        batch, actions = len(latent), self.actions
        one_hot = torch.eye(actions).view(1, actions, actions, *[1] * (latent.dim() - 2))
        one_hot = one_hot.expand(batch, -1, -1, *latent.shape[2:])  # [B, A, A, ...]
        out = []
        for _ in range(self.iterations):
            state = torch.tanh(latent).unsqueeze(1).expand(batch, actions, *latent.shape[1:])
            inputs = torch.cat([state, one_hot], 2).flatten(0, 1)  # [B·A, D + A, ...]
            change = self.transition(inputs).unflatten(0, (batch, actions))
            children = latent.unsqueeze(1) + change  # [B, A, *latent]
            out += [self.reward(inputs).flatten(), self.value(torch.tanh(children.flatten(0, 1)))]
            latent = children[:, 0]
        return torch.cat(out)


def search_functions(case: Case) -> dict[str, Callable[[], object]]:
    """Make training and inference by search, by fused modules (no tree) and by bare ones."""
    model, observation = case.world_model(), case.observation()
    bare = BareModules(model, case)
    action, target = torch.randint(case.actions, (case.batch,)), torch.randn(case.batch)

    def search() -> Tensor:
        tree = best_first_search(model, model.encode(observation), iterations=case.iterations)
        loss = losses.q_loss(tree.q_values, action, target) + losses.cql_loss(tree.q_values, action)
        return loss[:, -1] + losses.expansion_loss(tree.log_probs, loss)

    def fused() -> Tensor:
        latent, out = model.encode(observation), []
        for _ in range(case.iterations):
            children, reward = model.expand(latent)[:2]
            out += [reward.flatten(), model.value(children.flatten(0, 1))]
            latent = children[:, 0]
        return torch.cat(out)

    def acting() -> Tensor:
        return best_first_search(model, model.encode(observation), iterations=case.iterations).q

    def step(forward: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: forward().mean().backward()  # type: ignore[no-untyped-call]

    return {
        "train": step(search),
        "train_fused": step(fused),
        "train_bare": step(lambda: bare(observation)),
        "infer": torch.inference_mode()(acting),  # as Solver.act does
        "infer_fused": torch.inference_mode()(fused),
        "infer_bare": torch.inference_mode()(lambda: bare(observation)),
    }


def search_against_modules(quick: bool) -> Iterator[Row]:
    """Time best-first search against the bare modules it is made of."""
    sizes = [(a, t, b) for a in (4, 15) for t in (5, 10, 20) for b in (1, 32, 256)]
    cases = [Case(a, t, b, latent) for a, t, b in sizes for latent in (64, 256)]
    cases += [
        Case(a, t, b, 16, spatial=True) for a, t, b in sizes if t * b <= 160
    ]  # larger maps take minutes
    headline = {Case(a, 10, 256, 256) for a in (4, 15)} | {Case(4, 10, 1, 64), Case(4, 10, 32, 64)}
    if quick:
        cases = [case for case in cases if case in headline]
    for case in cases:
        rounds = 7 if case in headline and not quick else 3
        # Training and inference apart: what runs after a training step finds cold caches.
        functions = search_functions(case)
        times: Times = {}
        for kind in ("train", "infer"):
            group = {name: function for name, function in functions.items() if name.startswith(kind)}
            times |= interleave(group, 0.5, rounds)
        pairs = [(kind, other) for kind in ("train", "infer") for other in ("bare", "fused")]
        found = {f"{kind}_over_{other}": ratio(times, kind, f"{kind}_{other}") for kind, other in pairs}
        row = {"part": "search", **vars(case), "ms": milliseconds(times)}
        row |= {name: [round(x, 3) for x in value] for name, value in found.items()}
        if case in headline and case.batch == 256:
            a = case.actions
            row["ratios"] = {f"train_over_modules_a{a}_b256": found["train_over_bare"]}
            if a == 15:
                row["ratios"]["train_over_fused_a15_b256"] = found["train_over_fused"]
        elif case in headline and case.batch == 32:
            row["ratios"] = {"train_over_modules_a4_b32_l64": found["train_over_bare"]}
        elif case in headline:
            row["ratios"] = {"infer_over_modules_a4_b1": found["infer_over_bare"]}
        yield row
