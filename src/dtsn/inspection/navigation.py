"""Searches in Navigation, with the hall, the true values and what the plan is worth there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dtsn.arrays import Bools, Float32s, Ints
from dtsn.envs.navigation import ACTION_NAMES, MOVES, NavigationOptions, make_levels, observe, step
from dtsn.errors import UserError
from dtsn.evaluation.navigation import search_noise, trace_navigation
from dtsn.experts.value_iteration import optimal_q, optimal_values
from dtsn.inspection.describe import describe_search, with_search
from dtsn.inspection.document import MAX_BYTES, Grid, Node, Plan, SearchDocument, Source
from dtsn.solvers.solver import Solver
from dtsn.storage import read_array

NOWHERE: Ints = np.array([[-1, -1]])  # as a goal: latent paths go on where an episode would end


def describe_navigation(
    solver: Solver,
    level: int,
    options: NavigationOptions | None = None,
    *,
    time: int = 0,
    robot: ArrayLike | None = None,
    seed: int = 0,
    **search: Any,
) -> SearchDocument:
    """Describe the search of one decision in a level, drawn as in ``evaluate_navigation``.

    ``robot`` is where it stands at ``time``; if not given, where the solver itself has driven it by then.
    ``search`` may change ``iterations``, ``rule`` and ``temperature``.
    """
    options = options or NavigationOptions()
    if time < 0 or seed < 0:
        raise UserError(f"time and seed must not be negative, got time {time} and seed {seed}")
    solver = with_search(solver, **search)
    start = make_levels([level], options)
    if robot is None:
        robot = _robot_at(solver, level, options, time, seed) if time else start.robot[0]
    source: Source = {
        "environment": "navigation",
        "level": int(level),
        "options": {
            "exits": options.exits,
            "exit_layout": options.exit_layout,
            "hall": list(options.hall),
            "size": options.size,
        },
        "time": time,
        "seed": seed,
    }
    uniforms = search_noise(start.seeds, seed, time, solver.act_iterations)
    return describe_hall(solver, start.walls[0], start.goal[0], robot, uniforms=uniforms, source=source)


def watch_navigation(
    solver: Solver, level: int, options: NavigationOptions | None = None, *, seed: int = 0, **search: Any
) -> Iterator[tuple[SearchDocument, str]]:
    """Yield every decision of an episode and what it led to: "", "arrived", "collided" or "out of time"."""
    options = options or NavigationOptions()
    start = make_levels([level], options)
    robot = start.robot
    for time in range(options.max_steps):
        document = describe_navigation(solver, level, options, time=time, robot=robot[0], seed=seed, **search)
        robot, arrived, hit = step(start.walls, start.goal, robot, [document["action"]])
        late = "out of time" if time + 1 == options.max_steps else ""
        yield document, "arrived" if arrived[0] else "collided" if hit[0] else late
        if arrived[0] or hit[0]:
            return


def _robot_at(solver: Solver, level: int, options: NavigationOptions, time: int, seed: int) -> Ints:
    """Return the cell ``[2]`` in which the solver makes its decision number ``time`` (from 0)."""
    decisions = min(time + 1, options.max_steps)
    cells = trace_navigation(solver, level, replace(options, max_steps=decisions), seed)
    if len(cells) <= time + 1:
        raise UserError(f"time must be below {len(cells) - 1}, where the episode ends, got {time}")
    cell: Ints = cells[time]
    return cell


def describe_hall(
    solver: Solver,
    walls: ArrayLike,
    goal: ArrayLike,
    robot: ArrayLike,
    *,
    uniforms: torch.Tensor | None = None,
    seed: int = 0,
    source: Source | None = None,
    **search: Any,
) -> SearchDocument:
    """Describe the search on any grid: ``walls [H, W]``, ``goal [2]`` and ``robot [2]`` (row, column)."""
    walls, goal, robot = np.asarray(walls, dtype=bool), np.asarray(goal), np.asarray(robot)
    if walls.ndim != 2:
        raise UserError(f"walls must be a grid [H, W], got shape {list(walls.shape)}")
    for name, cell in (("goal", goal), ("robot", robot)):
        if cell.shape != (2,) or not np.issubdtype(cell.dtype, np.integer):
            raise UserError(f"{name} must be (row, column), got {cell.tolist()}")
        if (cell < 0).any() or (cell >= walls.shape).any() or walls[tuple(cell)]:
            raise UserError(f"{name} must be on a free cell of the {walls.shape} grid, got {cell.tolist()}")
    observation = observe(walls[None], goal[None], robot[None])[0]
    document = describe_search(
        solver, observation, uniforms=uniforms, seed=seed, actions=ACTION_NAMES, source=source, **search
    )
    document["scene"] = _hall(walls, goal, robot, document)
    return document


def search_again(solver: Solver, document: SearchDocument, *, seed: int = 0, **search: Any) -> SearchDocument:
    """Search with a solver in the hall of a document, at the same level and time if it names them."""
    scene, source = document["scene"], document["source"]
    if scene is None or scene["kind"] != "grid":
        raise UserError("the document holds no hall to search anew: give the observation as .npy")
    solver, uniforms = with_search(solver, **search), None
    if source is not None:
        source = {**source, "seed": seed}
        uniforms = search_noise(np.array([source["level"]]), seed, source["time"], solver.act_iterations)
    hall = {name: scene[name] for name in ("walls", "goal", "robot")}
    return describe_hall(solver, **hall, uniforms=uniforms, seed=seed, source=source)


def describe_observation(solver: Solver, path: Path, *, seed: int = 0, **search: Any) -> SearchDocument:
    """Return the search on an observation saved as ``.npy``; one that shows a hall is described as a hall."""
    observation = read_array(path, MAX_BYTES)
    shape = solver.observation_shape
    if observation.shape != shape:
        raise UserError(f"{path}: must have shape {shape}, got {observation.shape}")
    if solver.world_model.num_actions == len(MOVES) and _shows_hall(observation):
        robot, goal = (np.argwhere(observation[plane])[0] for plane in (2, 1))
        return describe_hall(solver, observation[0] == 1, goal, robot, seed=seed, **search)
    return describe_search(solver, observation, seed=seed, **search)


def _shows_hall(observation: NDArray[Any]) -> bool:
    """Tell whether these are Navigation's planes ``[3, H, W]``: walls, and one goal and robot off them."""
    if observation.ndim != 3 or len(observation) != 3 or not np.isin(observation, (0, 1)).all():
        return False
    walls, goal, robot = observation
    return bool(goal.sum() == robot.sum() == 1 and not (walls * (goal + robot)).any())


def _hall(walls: Bools, goal: Ints, robot: Ints, document: SearchDocument) -> Grid:
    values = optimal_values(walls[None], goal[None])
    cells, blocked = _walk(walls, robot, document["nodes"])
    planned = [document["nodes"][n]["action"] for n in document["best_path"][1:]]
    return {
        "kind": "grid",
        "walls": walls.astype(int).tolist(),
        "robot": robot.tolist(),
        "goal": goal.tolist(),
        "cells": cells,
        "blocked": blocked,
        "true_values": [[None if np.isneginf(v) else float(v) for v in row] for row in values[0]],
        "true_q": [None if np.isneginf(q) else float(q) for q in optimal_q(values, robot[None])[0]],
        "plan": judge_plan(walls, goal, robot, values[0], [a for a in planned if a is not None]),
    }


def _walk(walls: Bools, robot: Ints, nodes: list[Node]) -> tuple[list[list[int]], list[int]]:
    """Return where the true moves lead by each node's actions, and the nodes whose path runs into a wall."""
    cells, blocked = np.tile(robot, (len(nodes), 1)), np.zeros(len(nodes), dtype=bool)
    for n, node in enumerate(nodes[1:], 1):
        parent, action = node["parent"], node["action"]
        cells[n], blocked[n] = cells[parent], blocked[parent]
        if not blocked[n]:
            moved, _, collision = step(walls[None], NOWHERE, cells[n][None], np.array([action]))
            cells[n], blocked[n] = moved[0], collision[0]
    return cells.tolist(), np.flatnonzero(blocked).tolist()


def judge_plan(walls: Bools, goal: Ints, robot: Ints, values: Float32s, actions: list[int]) -> Plan:
    """Walk planned ``actions`` through the true hall, to the goal at most; ``values [H, W]`` are optimal."""
    cell, optimal, shortest = robot, 0, True
    for time, action in enumerate(actions, 1):
        moved, arrived, collision = step(walls[None], goal[None], cell[None], np.array([action]))
        if collision[0]:
            return {"steps": len(actions), "blocked_at": time, "optimal_steps": optimal}
        shortest = shortest and bool(values[tuple(moved[0])] == values[tuple(cell)] + 1)
        optimal, cell = optimal + shortest, moved[0]
        if arrived[0]:
            return {"steps": time, "blocked_at": None, "optimal_steps": optimal}
    return {"steps": len(actions), "blocked_at": None, "optimal_steps": optimal}
