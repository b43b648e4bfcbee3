"""Batched roll-outs of a solver: one row per episode."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from dtsn.arrays import Bools, Bytes, Ints
from dtsn.envs.navigation import SPLITS, Levels, NavigationOptions, make_levels, observe, step
from dtsn.envs.procgen import Policy, ProcgenOptions, play_levels
from dtsn.experts.value_iteration import optimal_steps
from dtsn.randomness import hashed_integers
from dtsn.solvers.solver import Solver
from dtsn.storage import replace_durably

Progress = Callable[[int, int], None]  # called with (episodes ended, episodes in all)

ROWS_AT_ONCE = 1024  # observations in one call of the solver: bounds its memory
GAMES_AT_ONCE = 128  # Procgen episodes played side by side


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
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}, choose one of {', '.join(SPLITS)}")
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
    """Play every level ``[L]`` once, all at once; what a level draws does not depend on the others."""
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    options = options or NavigationOptions()
    start = make_levels(levels, options)
    success, collision = np.zeros((2, len(start)), dtype=bool)
    steps = np.full(len(start), options.max_steps)
    for time, (active, _, arrived, hit) in enumerate(_play(solver, start, options.max_steps, seed), 1):
        success[active], collision[active] = arrived, hit
        steps[active[arrived | hit]] = time
        if progress is not None:
            progress(len(start) - len(active) + int((arrived | hit).sum()), len(start))
    best = optimal_steps(start)
    return [
        NavigationRow(int(level), options.exits, bool(s), bool(c), int(n), int(o))
        for level, s, c, n, o in zip(levels, success, collision, steps, best, strict=True)
    ]


def trace_navigation(solver: Solver, level: int, options: NavigationOptions, seed: int = 0) -> Ints:
    """The cells ``[steps + 1, 2]`` that a solver drives through in the episode that a row tells of."""
    start = make_levels([level], options)
    cells = [start.robot[0]]
    cells += [robot[0] for _, robot, _, _ in _play(solver, start, options.max_steps, seed)]
    return np.stack(cells)


def _play(
    solver: Solver, start: Levels, max_steps: int, seed: int
) -> Iterator[tuple[Ints, Ints, Bools, Bools]]:
    """Step all levels; yields (which were active [n], their robots [n, 2], who arrived [n], who hit [n])."""
    robot, active = start.robot.copy(), np.arange(len(start))
    solver.eval()
    for time in range(max_steps):
        if not len(active):
            return
        actions = np.empty(len(active), dtype=np.int64)
        for part in np.array_split(np.arange(len(active)), -(-len(active) // ROWS_AT_ONCE)):
            rows = active[part]
            observation = torch.from_numpy(observe(start.walls[rows], start.goal[rows], robot[rows]))
            uniforms = search_noise(start.seeds[rows], seed, time, solver.act_iterations)
            actions[part] = solver.act(observation, uniforms=uniforms).cpu().numpy()
        robot[active], arrived, hit = step(start.walls[active], start.goal[active], robot[active], actions)
        yield active, robot[active], arrived, hit
        active = active[~(arrived | hit)]


def search_noise(levels: Ints, seed: int, time: int, iterations: int) -> torch.Tensor:
    """Uniforms ``[L, T]`` for the search at a time step; a level's depend on no other level."""
    streams = levels + (seed + 1) * 2**32
    numbers = [hashed_integers(streams, time * iterations + t, 2**24) for t in range(iterations)]
    return torch.from_numpy(np.stack(numbers, axis=1).astype(np.float32) / 2**24)


@dataclass(frozen=True)
class ProcgenRow:
    """One episode."""

    level: int
    score: float  # sum of its rewards
    complete: bool
    steps: int


def evaluate_procgen(
    policy: Policy, options: ProcgenOptions, levels: Ints, *, progress: Progress | None = None
) -> list[ProcgenRow]:
    """Play every level ``[L]`` once; rows in the order of the levels."""
    rows: dict[int, ProcgenRow] = {}
    numbered = enumerate(levels.tolist())
    for played in play_levels(options, numbered, policy, at_once=GAMES_AT_ONCE, keep_frames=False):
        score = float(played.rewards.sum())
        rows[played.number] = ProcgenRow(played.level, score, played.complete, len(played.actions))
        if progress is not None:
            progress(len(rows), len(levels))
    return [rows[number] for number in range(len(levels))]


def solver_policy(solver: Solver, levels: Ints, seed: int = 0) -> Policy:
    """A solver as a player of levels ``[L]``: what its search draws depends on (seed, level, step) alone."""

    def act(frames: Bytes, numbers: Ints, steps: Ints) -> Ints:
        uniforms = procgen_noise(levels[numbers], seed, steps, solver.act_iterations)
        actions: Ints = solver.act(torch.from_numpy(frames), uniforms=uniforms).cpu().numpy()
        return actions

    solver.eval()
    return act


def procgen_noise(levels: Ints, seed: int, steps: Ints, iterations: int) -> torch.Tensor:
    """Uniforms ``[N, T]`` for searches in ``levels [N]`` after ``steps [N]``."""
    here = hashed_integers(levels + (seed + 1) * 2**32, 0, 2**62) + steps
    draws = [hashed_integers(here, t, 2**24) for t in range(iterations)]
    return torch.from_numpy(np.stack(draws, axis=1).astype(np.float32) / 2**24)


def write_rows(path: Path, rows: Sequence[NavigationRow] | Sequence[ProcgenRow]) -> Path:
    """A gzip'd CSV, one line per episode; the same rows give the same bytes."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(field.name for field in fields(rows[0]))
    for row in rows:
        table.writerow(int(value) if isinstance(value, bool) else value for value in astuple(row))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path
