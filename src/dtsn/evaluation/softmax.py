"""How actions are chosen: the best, or drawn from softmax(Q / temperature) by uniforms of the caller's."""

from __future__ import annotations

import math

import numpy as np

from dtsn.arrays import Float32s, Ints
from dtsn.errors import UserError
from dtsn.solvers.solver import Solver


def check_temperature(temperature: float | None) -> None:
    """Refuse a temperature that no softmax can have; None is that of the best action."""
    if temperature is not None and not 0 < temperature < math.inf:
        raise UserError(f"temperature must be positive and finite, got {temperature}")


def is_deterministic(solver: Solver, temperature: float | None = None) -> bool:
    """Tell whether a solver always takes the same action in the same place."""
    searches = solver.kind.acting_planner == "best_first" and solver.act_iterations > 1
    return temperature is None and not (searches and solver.config.act_rule != "greedy")


def softmax_actions(q: Float32s, uniforms: Float32s, temperature: float) -> Ints:
    """Draw actions ``[n]`` from softmax(q / temperature), ``q [n, A]``, by ``uniforms [n]`` in [0, 1)."""
    weights = np.exp((q - q.max(1, keepdims=True)) / temperature)
    bounds = weights.cumsum(1)
    chosen: Ints = (bounds <= uniforms[:, None] * bounds[:, -1:]).sum(1)
    return chosen
