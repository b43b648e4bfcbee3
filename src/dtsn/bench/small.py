"""Where a training step goes at small sizes, where an operation costs its launch and not its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtsn.bench.acting import Constant
from dtsn.bench.search import Case, search_functions
from dtsn.bench.timing import Row, interleave, milliseconds
from dtsn.search import best_first_search
from dtsn.search.backup import Timeline, back_up


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch launches, those of the backward pass too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a call and make it."""
        self.count += 1
        return function(*args, **(kwargs or {}))


def launches(function: Callable[[], object]) -> int:
    """Count the operations that a call launches."""
    counter = Launches()
    with counter:
        function()
    return counter.count


def small_step(quick: bool) -> Iterator[Row]:
    """Time the parts of a small training step: A=4, B=32, latent 64."""
    case = Case(4, 10, 32, 64)
    functions = search_functions(case)
    model, latent = case.world_model(), case.world_model().encode(case.observation()).detach()
    with torch.no_grad():
        constant = Constant(model, latent)
        tree = best_first_search(model, latent, iterations=case.iterations)
    reward, value = tree.reward.clone().requires_grad_(), tree.value.clone().requires_grad_()

    @torch.no_grad()
    def grow() -> None:
        best_first_search(constant, latent, iterations=case.iterations)

    def backup() -> None:
        timeline = Timeline.of(tree.selected, reward.shape[1])
        q_values, log_probs = back_up(reward, value, tree.path_value, timeline, temperature=1.0)
        (q_values.sum() + log_probs.sum()).backward()  # type: ignore[no-untyped-call]

    parts: dict[str, Callable[[], object]] = {
        "whole step": functions["train"],
        "bare modules": functions["train_bare"],
        "fused modules": functions["train_fused"],
        "choosing nodes": grow,
        "backup": backup,
    }
    times = interleave(parts, 0.5 if quick else 2.0)
    counts = {name: launches(function) for name, function in parts.items()}
    yield {"part": "small", **vars(case), "ms": milliseconds(times), "operations": counts}
