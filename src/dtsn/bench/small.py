"""Where a training step goes at small sizes, where an operation costs its launch and not its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dtsn.bench.acting import Constant
from dtsn.bench.search import Case, search_functions
from dtsn.bench.timing import Row, interleave, milliseconds
from dtsn.search import best_first_search
from dtsn.search.backup import Timeline, back_up


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
    yield {"part": "small", **vars(case), "ms": milliseconds(interleave(parts, 0.5 if quick else 2.0))}
