"""Decisions as one compiled function: the search of :mod:`dtsn.search.single_row` with its perceptrons.

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
from dtsn.models.one_row import Floats, Perceptrons
from dtsn.models.world_model import WorldModel
from dtsn.search.boundary import check_open, check_uniforms
from dtsn.search.selection import draw_noise

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver

Compile = Callable[[Any], Any]
RULES: tuple[Rule, ...] = ("greedy", "sample", "epsilon_greedy")
ZERO = np.float32(0)
LOWEST = -np.finfo(np.float64).max  # −inf is for closed nodes, not for what a diverged model says
# Multiplications of the largest layer for the whole batch. Somewhere beyond, the matrix products of all rows
# at once gain more than the launches cost; where was not measured.
LARGEST_BATCH = 1 << 22

# tanh(x) = x P(x²) / Q(x²) to 3e-7, as XLA and Eigen have it: unlike math.tanh, it runs on vectors.
P = tuple(
    np.float32(c)
    for c in (
        4.89352455891786e-03,
        6.37261928875436e-04,
        1.48572235717979e-05,
        5.12229709037114e-08,
        -8.60467152213735e-11,
        2.00018790482477e-13,
        -2.76076847742355e-16,
    )
)
Q = tuple(
    np.float32(c)
    for c in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)
SATURATED = np.float32(7.90531110763549805)  # tanh is 1 from here on

# (weights, roots [B, D], closed [B, A], uniforms [B, T], T, rule, temperature, ε, γ) -> Q [B, A]
Kernel = Callable[[Perceptrons, Floats, Any, Floats, int, int, float, float, float], Floats]


@functools.cache
def compiled_kernel() -> Kernel | None:
    """Return the kernel, compiled by Numba at its first call; None if Numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # Sums may be reordered, which is what makes them fast; NaN and infinity keep their meaning. Numba's own
    # error model checks every division for zero, one number at a time.
    fast = numba.njit(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
    return make_kernel(numba.njit, fast)


def compiled_actions(
    solver: Solver,
    latent: Tensor,
    closed: Tensor | None,
    uniforms: Tensor | None,
    generator: torch.Generator | None,
    deterministic: bool,
) -> Tensor | None:
    """Return best actions ``[B]`` for latents ``[B, D]`` by the compiled kernel; None if it does not apply.

    ``closed [B, A]`` and ``uniforms [B, T]`` are as in a search.
    """
    config, model = solver.config, solver.world_model
    check_uniforms(uniforms, latent.shape[0], solver.act_iterations)
    check_open(closed)
    if solver.kind.acting_planner != "best_first" or config.merge or not isinstance(model, WorldModel):
        return None
    arrays, kernel = model.for_one_row(), compiled_kernel()
    if arrays is None or kernel is None or arrays.weights.action.dtype != np.float32:
        return None
    weights, batch, iterations = arrays.weights, latent.shape[0], solver.act_iterations
    if batch * weights.action.shape[0] * weights.change.size > LARGEST_BATCH:
        return None
    rule: Rule = "greedy" if deterministic else config.act_rule
    noise = np.zeros((batch, iterations), np.float32)
    if rule != "greedy":
        noise = draw_noise(latent, iterations, uniforms, generator).contiguous().numpy()
    shut = np.zeros((batch, weights.action.shape[0]), np.bool_)
    if closed is not None:
        shut = closed.contiguous().numpy()
    q = kernel(
        weights,
        latent.contiguous().numpy(),
        shut,
        noise,
        iterations,
        RULES.index(rule),
        config.temperature,
        config.epsilon,
        config.discount,
    )
    return torch.from_numpy(q.argmax(1))


def on_numbers(solver: Solver, latent: Tensor) -> bool:
    """Tell whether one row is searched on plain numbers by itself, which launches too little to compile."""
    model = solver.world_model
    if solver.kind.acting_planner != "best_first" or not isinstance(model, WorldModel):
        return False
    return latent.shape[0] == 1 and latent.device.type == "cpu" and model.for_one_row() is not None


def make_kernel(plain: Compile, fast: Compile) -> Kernel:
    """Make the kernel out of functions, each passed through a compiler; arithmetic through a fast one."""

    @fast
    def product(x: Any, weights: Any, out: Any) -> None:
        """``x [R, D]`` by ``weights [H, D]``, transposed, into ``out [R, H]``."""
        whole = weights.shape[0] - weights.shape[0] % 4
        for i in range(0, whole, 4):  # four columns at once: they share what is read of x
            for r in range(x.shape[0]):
                first = second = third = fourth = ZERO
                for k in range(x.shape[1]):
                    first += weights[i, k] * x[r, k]
                    second += weights[i + 1, k] * x[r, k]
                    third += weights[i + 2, k] * x[r, k]
                    fourth += weights[i + 3, k] * x[r, k]
                out[r, i], out[r, i + 1], out[r, i + 2], out[r, i + 3] = first, second, third, fourth
        for i in range(whole, weights.shape[0]):
            for r in range(x.shape[0]):
                total = ZERO
                for k in range(x.shape[1]):
                    total += weights[i, k] * x[r, k]
                out[r, i] = total

    @fast
    def relu(x: Any, bias: Any, out: Any) -> None:
        """Of ``x [H]`` and ``bias [H]``, added; NaN stays NaN."""
        for i in range(x.shape[0]):
            total = x[i] + bias[i]
            out[i] = ZERO if total < ZERO else total

    @fast
    def tanh(u: Any, h: Any) -> None:
        """Of ``u [R, D]`` into ``h [R, D]``; NaN stays NaN."""
        for r in range(u.shape[0]):
            for k in range(u.shape[1]):
                x = u[r, k]
                x = SATURATED if x > SATURATED else -SATURATED if x < -SATURATED else x
                y = x * x
                above = P[0] + y * (P[1] + y * (P[2] + y * (P[3] + y * (P[4] + y * (P[5] + y * P[6])))))
                h[r, k] = x * above / (Q[0] + y * (Q[1] + y * (Q[2] + y * Q[3])))

    @plain
    def expand(w: Any, u: Any, children: Any, rewards: Any, values: Any) -> None:
        """Of a node ``u [1, D]``: children ``[A, D]``, their rewards ``[1, A]`` and values ``[A, 1]``."""
        actions = children.shape[0]
        state, states = np.empty_like(u), np.empty_like(children)
        hidden = np.empty((1, w.reward.shape[0]), u.dtype)
        shared = np.empty((1, w.shared.shape[0]), u.dtype)
        mixed = np.empty((actions, w.shared.shape[0]), u.dtype)
        valued = np.empty((actions, w.value.shape[0]), u.dtype)
        tanh(u, state)
        product(state, w.reward, hidden)
        relu(hidden[0], w.reward_bias, hidden[0])
        product(hidden, w.rewards, rewards)
        product(state, w.shared, shared)
        for a in range(actions):
            rewards[0, a] += w.rewards_bias[a]
            relu(shared[0], w.action[a], mixed[a])
        product(mixed, w.change, children)
        for a in range(actions):
            for k in range(u.shape[1]):
                children[a, k] += u[0, k] + w.change_bias[k]
        tanh(children, states)
        product(states, w.value, valued)
        for a in range(actions):
            relu(valued[a], w.value_bias, valued[a])
        product(valued, w.values, values)
        for a in range(actions):
            values[a, 0] = (values[a, 0] + w.values_bias[0]) * w.scale

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
        """Choose the open slot to expand, of path values that are −inf where closed."""
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
        roots: Any,
        closed: Any,
        uniforms: Any,
        iterations: int,
        rule: int,
        temperature: float,
        epsilon: float,
        discount: float,
    ) -> Any:
        """Q-values ``[B, A]`` of roots ``[B, D]``, closed ``[B, A]`` and uniforms ``[B, T]``."""
        actions = w.action.shape[0]
        nodes = 1 + iterations * actions
        latents = np.empty((nodes, roots.shape[1]), roots.dtype)
        rewards, values = np.empty((1, actions), roots.dtype), np.empty((actions, 1), roots.dtype)
        returns, scale = np.zeros(nodes), np.ones(nodes)
        worth, opened = np.zeros(nodes), np.full(nodes, -np.inf)
        selected = np.zeros(iterations, np.int64)
        q = np.empty(closed.shape)
        for b in range(roots.shape[0]):
            latents[0] = roots[b]
            for t in range(iterations):
                first = 1 + t * actions
                if t > 0:
                    selected[t] = choose(opened[:first], uniforms[b, t], rule, temperature, epsilon)
                    opened[selected[t]] = -np.inf
                parent = selected[t]
                expand(w, latents[parent : parent + 1], latents[first : first + actions], rewards, values)
                for a in range(actions):
                    n = first + a
                    returns[n] = returns[parent] + scale[parent] * rewards[0, a]
                    scale[n] = scale[parent] * discount
                    worth[n] = returns[n] + scale[n] * values[a, 0]
                    opened[n] = worth[n] if worth[n] > LOWEST or math.isnan(worth[n]) else LOWEST
                    if t == 0 and closed[b, a]:
                        worth[n] = opened[n] = -np.inf
            for t in range(iterations - 1, 0, -1):  # back up, youngest first
                family = worth[1 + t * actions : 1 + (t + 1) * actions]
                worth[selected[t]] = family[best(family)]
            q[b] = worth[1 : 1 + actions]
        return q

    kernel: Kernel = search
    return kernel
