"""Batched roll-outs of a solver: one row per episode."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from dtsn.checkpoint import replace_durably
from dtsn.envs.navigation import SPLITS, Ints, NavigationOptions, make_levels, observe, step
from dtsn.experts.value_iteration import optimal_steps
from dtsn.solvers import Solver

Progress = Callable[[int, int], None]  # called with (episodes ended, episodes in all)

ROWS_AT_ONCE = 1024  # observations in one call of the solver: bounds its memory


@dataclass(frozen=True)
class NavigationRow:
    """One episode."""

    level: int
    exits: int
    success: bool
    collision: bool
    steps: int
    optimal_steps: int


def first_levels(split: str, count: int) -> Ints:
    """The first ``count`` level seeds ``[L]`` of a split."""
    first, end = SPLITS[split]
    if not 1 <= count <= end - first:
        raise ValueError(f"levels must be from 1 to the {end - first} of the {split} split, got {count}")
    return np.arange(first, first + count)


def evaluate_navigation(
    solver: Solver,
    levels: Ints,
    options: NavigationOptions | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[NavigationRow]:
    """Play every level ``[L]`` once, all at once; the same seed gives the same rows."""
    options = options or NavigationOptions()
    start = make_levels(levels, options)
    robot, count = start.robot.copy(), len(start)
    success, collision = np.zeros((2, count), dtype=bool)
    steps = np.full(count, options.max_steps)
    active = np.arange(count)
    solver.eval()
    for time in range(options.max_steps):
        # Numbers for all levels, ended or not: what a level draws does not depend on how the others fare.
        rng = np.random.default_rng([seed, time])
        uniforms = torch.from_numpy(rng.random((count, solver.act_iterations), dtype=np.float32))
        actions = np.empty(len(active), dtype=np.int64)
        for part in np.array_split(np.arange(len(active)), -(-len(active) // ROWS_AT_ONCE)):
            rows = active[part]
            observation = torch.from_numpy(observe(start.walls[rows], start.goal[rows], robot[rows]))
            actions[part] = solver.act(observation, uniforms=uniforms[rows]).cpu().numpy()
        robot[active], arrived, hit = step(start.walls[active], start.goal[active], robot[active], actions)
        success[active], collision[active] = arrived, hit
        ended = arrived | hit
        steps[active[ended]] = time + 1
        active = active[~ended]
        if progress is not None:
            progress(count - len(active), count)
        if not len(active):
            break
    best = optimal_steps(start)
    return [
        NavigationRow(int(level), options.exits, bool(s), bool(c), int(n), int(o))
        for level, s, c, n, o in zip(levels, success, collision, steps, best, strict=True)
    ]


def write_rows(path: Path, rows: list[NavigationRow]) -> Path:
    """A gzip'd CSV, one line per episode; the same rows give the same bytes."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(field.name for field in fields(NavigationRow))
    table.writerows([int(value) for value in astuple(row)] for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path
