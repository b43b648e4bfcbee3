"""The time of one decision, and where it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dtsn.bench.search import BareModules, Case
from dtsn.bench.timing import Row, interleave, milliseconds, ratio
from dtsn.models.world_model import WorldModel
from dtsn.search import best_first_search


class Constant:
    """A world model that costs nothing: what a search with it takes is its bookkeeping."""

    def __init__(self, model: WorldModel, latent: Tensor):
        self.children, self.reward = model.expand(latent)[:2]
        self.values = model.value(self.children.flatten(0, 1))

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same children and rewards always."""
        return self.children, self.reward

    def value(self, latent: Tensor) -> Tensor:
        """Return the same values always."""
        return self.values


@torch.inference_mode()
def acting_latency(quick: bool) -> Iterator[Row]:
    """Time one decision, and where the time goes, with batch 1 and T=10."""
    case = Case(4, 10, 1, 64)
    model, observation = case.world_model(), case.observation()
    latent = model.encode(observation)
    constant = Constant(model, latent)

    def modules() -> None:
        for _ in range(case.iterations):
            children, _ = model.expand(latent)[:2]
            model.value(children.flatten(0, 1))

    parts: dict[str, Callable[[], object]] = {
        "all": lambda: best_first_search(model, model.encode(observation), iterations=case.iterations),
        "encoder": lambda: model.encode(observation),
        "modules": modules,
        "search": lambda: best_first_search(constant, latent, iterations=case.iterations),
    }
    yield {"part": "acting", **vars(case), "ms": milliseconds(interleave(parts, 0.5 if quick else 2.0))}


@torch.inference_mode()
def compiled_acting() -> Row:
    """Time one decision through ``torch.compile`` against the bare modules."""
    case = Case(4, 10, 1, 64)
    model, observation = case.world_model(), case.observation()
    bare = BareModules(model, case)
    uniforms = torch.rand(case.batch, case.iterations)

    def act() -> Tensor:
        return best_first_search(
            model, model.encode(observation), iterations=case.iterations, uniforms=uniforms
        ).q

    fast, start = torch.compile(act), time.perf_counter()
    torch.testing.assert_close(fast(), act())
    compiling = time.perf_counter() - start
    functions = {
        "bare": lambda: bare(observation),
        "eager": act,
        "compiled": fast,
    }
    times = interleave(functions, 2.0)
    return {
        "part": "compiled",
        **vars(case),
        "ms": milliseconds(times),
        "compile_seconds": round(compiling, 1),
        "compiled_over_bare": [round(x, 3) for x in ratio(times, "compiled", "bare")],
    }
