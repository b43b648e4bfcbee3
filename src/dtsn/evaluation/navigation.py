"""Batched roll-outs of a solver on Navigation: one row per episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dtsn.arrays import Bools, Float32s, Ints
from dtsn.envs.navigation import Levels, NavigationOptions, make_levels, observe, step
from dtsn.errors import UserError
from dtsn.evaluation.rows import NavigationRow
from dtsn.evaluation.softmax import check_temperature, is_deterministic, softmax_actions
from dtsn.experts.value_iteration import optimal_steps
from dtsn.randomness import hashed_integers
from dtsn.solvers.solver import Solver

Progress = Callable[[int, int], None]  # called with (episodes ended, episodes in all)
Act = Callable[[Ints, Ints, int], Ints]  # (levels [n], robots [n, 2], time) -> actions [n]

ROWS_AT_ONCE = 256  # observations in one call of the solver: few enough that its tree stays in cache
ACTION_DRAWS = 2**40  # number of the first draw of an action; those of searches come before


def evaluate_navigation(
    solver: Solver,
    levels: Ints,
    options: NavigationOptions | None = None,
    *,
    seed: int = 0,
    temperature: float | None = None,
    progress: Progress | None = None,
) -> list[NavigationRow]:
    """Play every level ``[L]`` once, all at once; what a level draws does not depend on the others.

    Without a ``temperature`` the solver takes its best action, otherwise one drawn from
    softmax(Q / temperature).
    """
    options = options or NavigationOptions()
    start = make_levels(levels, options)
    success, collision = np.zeros((2, len(start)), dtype=bool)
    steps = np.full(len(start), options.max_steps)
    act = actor(solver, start, seed, temperature)
    for moved in play(act, start, options.max_steps, loops=is_deterministic(solver, temperature)):
        success[moved.active], collision[moved.active] = moved.arrived, moved.hit
        ended = moved.arrived | moved.hit
        steps[moved.active[ended]] = moved.time
        if progress is not None:
            progress(len(start) - len(moved.active) + int(ended.sum()), len(start))
    if progress is not None:
        progress(len(start), len(start))
    best = optimal_steps(start)
    return [
        NavigationRow(int(level), options.exits, bool(s), bool(c), int(n), int(o))
        for level, s, c, n, o in zip(levels, success, collision, steps, best, strict=True)
    ]


def trace_navigation(solver: Solver, level: int, options: NavigationOptions, seed: int = 0) -> Ints:
    """Return the cells ``[steps + 1, 2]`` that a solver drives through in the episode that a row tells of."""
    start = make_levels([level], options)
    moves = play(actor(solver, start, seed), start, options.max_steps)
    return np.stack([start.robot[0], *(moved.robot[0] for moved in moves)])


class Moved(NamedTuple):
    """What a time step did to the episodes that were still on."""

    time: int  # from 1
    active: Ints  # [n] of the levels
    robot: Ints  # [n, 2] where they are now
    arrived: Bools  # [n]
    hit: Bools  # [n]


def play(act: Act, start: Levels, max_steps: int, loops: bool = False) -> Iterator[Moved]:
    """Step all levels until each has ended.

    ``loops``: the actor always does the same in the same place, so a robot that comes back to a cell will
    never arrive and is played no further.
    """
    robot, active = start.robot.copy(), np.arange(len(start))
    been = np.zeros(start.walls.shape, dtype=bool)  # [L, H, W] cells each robot has been to
    been[active, robot[:, 0], robot[:, 1]] = True
    for time in range(max_steps):
        if not len(active):
            return
        actions = act(active, robot[active], time)
        robot[active], arrived, hit = step(start.walls[active], start.goal[active], robot[active], actions)
        yield Moved(time + 1, active, robot[active], arrived, hit)
        on = ~(arrived | hit)
        if loops:
            cells = (active, *robot[active].T)
            on &= ~been[cells]
            been[cells] = True
        active = active[on]


def actor(solver: Solver, start: Levels, seed: int = 0, temperature: float | None = None) -> Act:
    """Return the solver as a player of levels; its draws depend on (seed, level, time) alone."""
    if seed < 0:
        raise UserError(f"seed must not be negative, got {seed}")
    check_temperature(temperature)
    solver.eval()

    def act(active: Ints, robot: Ints, time: int) -> Ints:
        actions = np.empty(len(active), dtype=np.int64)
        for part, rows, observation, uniforms in questions(solver, start, active, robot, seed, time):
            if temperature is None:
                actions[part] = solver.act(observation, uniforms=uniforms).cpu().numpy()
            else:
                q = solver.plan(observation, uniforms=uniforms).q.float().cpu().numpy()
                actions[part] = softmax_actions(q, action_noise(start.seeds[rows], seed, time), temperature)
        return actions

    return act


def questions(
    solver: Solver, start: Levels, active: Ints, robot: Ints, seed: int, time: int
) -> Iterator[tuple[Ints, Ints, Tensor, Tensor]]:
    """Split the ``active [n]`` levels into batches that a solver decides at once.

    Yields the part of ``active``, its levels ``[B]``, observations ``[B, 3, H, W]`` and the uniforms
    ``[B, T]`` of their searches.
    """
    for part in batches(len(active)):
        rows = active[part]
        observation = torch.from_numpy(observe(start.walls[rows], start.goal[rows], robot[part]))
        yield part, rows, observation, search_noise(start.seeds[rows], seed, time, solver.act_iterations)


def batches(count: int) -> list[Ints]:
    """Return the numbers from 0 to ``count`` in parts that are small enough for one call of a solver."""
    return np.array_split(np.arange(count), -(-count // ROWS_AT_ONCE))


def search_noise(levels: Ints, seed: int, time: int, iterations: int) -> torch.Tensor:
    """Draw uniforms ``[L, T]`` for the search at a time step; a level's depend on no other level."""
    streams = levels + (seed + 1) * 2**32
    numbers = [hashed_integers(streams, time * iterations + t, 2**24) for t in range(iterations)]
    return torch.from_numpy(np.stack(numbers, axis=1).astype(np.float32) / 2**24)


def action_noise(levels: Ints, seed: int, time: int) -> Float32s:
    """Draw uniforms ``[L]`` to choose an action by at a time step."""
    numbers = hashed_integers(levels + (seed + 1) * 2**32, ACTION_DRAWS + time, 2**24)
    return numbers.astype(np.float32) / np.float32(2**24)
