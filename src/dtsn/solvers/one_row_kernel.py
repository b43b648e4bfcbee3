"""One decision as one compiled function: the search of :mod:`dtsn.search.single_row` with its perceptrons.

The functions are plain Python on arrays. Numba compiles them; uncompiled they compute the same, which the
tests compare. Weights are arguments, so what is compiled belongs to no solver and never goes stale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dtsn.config import Rule
from dtsn.errors import UserError
from dtsn.models.one_row import Floats, Perceptrons
from dtsn.models.world_model import WorldModel
from dtsn.search.boundary import check_uniforms
from dtsn.search.selection import draw_noise

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver

Compile = Callable[[Any], Any]
RULES: tuple[Rule, ...] = ("greedy", "sample", "epsilon_greedy")
ZERO = np.float32(0)
LOWEST = -np.finfo(np.float64).max  # −inf is for closed nodes, not for what a diverged model says

# (weights, root [D], closed [A], uniforms [T], T, rule, temperature, ε, γ) -> Q [A]
Kernel = Callable[[Perceptrons, Floats, Any, Floats, int, int, float, float, float], Floats]


@functools.cache
def compiled_kernel() -> Kernel | None:
    """Return the kernel compiled by Numba at its first call, in seconds; None if Numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # Sums may be reordered, which is what makes them fast; NaN and infinity keep their meaning.
    return make_kernel(numba.njit, numba.njit(fastmath={"reassoc", "contract", "nsz"}))


def one_row_action(
    solver: Solver,
    latent: Tensor,
    closed: Tensor | None,
    uniforms: Tensor | None,
    generator: torch.Generator | None,
    deterministic: bool,
) -> Tensor | None:
    """Return the best action ``[1]`` of a latent ``[1, D]`` by the compiled kernel; None where it cannot.

    ``closed [1, A]`` and ``uniforms [1, T]`` are as in a search.
    """
    config, iterations = solver.config, solver.act_iterations
    if latent.shape[0] != 1 or solver.kind.acting_planner != "best_first" or config.merge:
        return None
    if not isinstance(solver.world_model, WorldModel):
        return None
    model, kernel = solver.world_model.for_one_row(), compiled_kernel()
    if model is None or kernel is None or model.weights.action.dtype != np.float32:
        return None
    rule: Rule = "greedy" if deterministic else config.act_rule
    check_uniforms(uniforms, 1, iterations)
    noise = np.zeros(iterations)
    if rule != "greedy":
        noise = draw_noise(latent, iterations, uniforms, generator)[0].double().numpy()
    shut = np.zeros(solver.world_model.num_actions, np.bool_) if closed is None else closed[0].numpy()
    if shut.all():
        raise UserError("invalid_actions leaves no action open in row 0")
    q = kernel(
        model.weights,
        latent[0].numpy(),
        shut,
        noise,
        iterations,
        RULES.index(rule),
        config.temperature,
        config.epsilon,
        config.discount,
    )
    return torch.tensor([int(q.argmax())])


def make_kernel(plain: Compile, reordering: Compile) -> Kernel:
    """Make the kernel of functions, each passed through a compiler; sums through one that may reorder."""

    @reordering
    def dot(weights: Any, x: Any, bias: Any) -> Any:
        total = ZERO
        for k in range(x.shape[0]):
            total += weights[k] * x[k]
        return total + bias

    @plain
    def tanh(u: Any, h: Any) -> None:
        for k in range(u.shape[0]):
            h[k] = math.tanh(u[k])

    @plain
    def expand(w: Any, u: Any, children: Any, rewards: Any, values: Any) -> None:
        """Expand a node ``u [D]``: children ``[A, D]``, their rewards and values ``[A]``."""
        state, hidden = np.empty_like(u), np.empty_like(w.reward_bias)
        shared, mixed = np.empty_like(w.reward_bias), np.empty_like(w.reward_bias)
        tanh(u, state)
        for i in range(hidden.shape[0]):
            shared[i] = dot(w.shared[i], state, ZERO)
            hidden[i] = max(dot(w.reward[i], state, w.reward_bias[i]), ZERO)
        for a in range(rewards.shape[0]):
            rewards[a] = dot(w.rewards[a], hidden, w.rewards_bias[a])
            for i in range(mixed.shape[0]):
                mixed[i] = max(shared[i] + w.action[a, i], ZERO)
            for k in range(u.shape[0]):
                children[a, k] = u[k] + dot(w.change[k], mixed, w.change_bias[k])
            tanh(children[a], state)
            for i in range(mixed.shape[0]):
                mixed[i] = max(dot(w.value[i], state, w.value_bias[i]), ZERO)
            values[a] = dot(w.values[0], mixed, w.values_bias[0]) * w.scale

    @plain
    def best(values: Any) -> Any:
        """Return the first maximum; the first NaN if there is one, as torch has it."""
        found = 0
        for n in range(values.shape[0]):
            if math.isnan(values[n]):
                return n
            if values[n] > values[found]:
                found = n
        return found

    @plain
    def draw(weights: Any, uniform: float) -> Any:
        """Draw a slot in proportion to its weight; one of weight 0 is never taken."""
        total = 0.0
        for n in range(weights.shape[0]):
            total += weights[n]
        bound, below = uniform * total, 0.0
        for n in range(weights.shape[0]):
            below += weights[n]
            if below > bound:
                return n
        return weights.shape[0] - 1

    @plain
    def choose(opened: Any, uniform: float, rule: int, temperature: float, epsilon: float) -> Any:
        """Return the open slot to expand, of path values that are −inf where closed."""
        top = best(opened)
        if rule == 0:
            return top
        weights = np.empty(opened.shape[0])
        if rule == 1:
            for n in range(opened.shape[0]):
                weights[n] = math.exp((opened[n] - opened[top]) / temperature)
        else:
            count = 0
            for n in range(opened.shape[0]):
                count += opened[n] != -np.inf
            for n in range(opened.shape[0]):
                weights[n] = epsilon / count if opened[n] != -np.inf else 0.0
            weights[top] += 1 - epsilon
        slot = draw(weights, uniform)
        return slot if opened[slot] != -np.inf else top

    @plain
    def search(
        w: Any,
        root: Any,
        closed: Any,
        uniforms: Any,
        iterations: int,
        rule: int,
        temperature: float,
        epsilon: float,
        discount: float,
    ) -> Any:
        actions = w.action.shape[0]
        nodes = 1 + iterations * actions
        latents = np.empty((nodes, root.shape[0]), root.dtype)
        rewards, values = np.empty(actions, root.dtype), np.empty(actions, root.dtype)
        returns, scale = np.zeros(nodes), np.ones(nodes)
        worth, opened = np.zeros(nodes), np.full(nodes, -np.inf)
        selected = np.zeros(iterations, np.int64)
        latents[0] = root
        made = 0  # expansions
        for t in range(iterations):
            if t > 0:
                first = 1 + t * actions
                slot = choose(opened[:first], uniforms[t], rule, temperature, epsilon)
                if opened[slot] == -np.inf:  # all root actions that remain are closed
                    break
                opened[slot] = -np.inf
                selected[t] = slot
            parent, made = selected[t], t + 1
            first = 1 + t * actions
            expand(w, latents[parent], latents[first : first + actions], rewards, values)
            for a in range(actions):
                n = first + a
                returns[n] = returns[parent] + scale[parent] * rewards[a]
                scale[n] = scale[parent] * discount
                worth[n] = returns[n] + scale[n] * values[a]
                opened[n] = worth[n] if worth[n] > LOWEST or math.isnan(worth[n]) else LOWEST
                if t == 0 and closed[a]:
                    worth[n] = opened[n] = -np.inf
        # Back up, youngest first.
        for t in range(made - 1, 0, -1):
            family = worth[1 + t * actions : 1 + (t + 1) * actions]
            worth[selected[t]] = family[best(family)]
        return worth[1 : 1 + actions]

    kernel: Kernel = search
    return kernel
