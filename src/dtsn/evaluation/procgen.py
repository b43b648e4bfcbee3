"""Batched roll-outs on Procgen: one row per episode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dtsn.arrays import Bytes, Ints
from dtsn.envs.procgen import Policy, ProcgenOptions, play_levels
from dtsn.evaluation.rows import ProcgenRow
from dtsn.randomness import hashed_integers
from dtsn.solvers.solver import Solver

Progress = Callable[[int, int], None]  # called with (episodes ended, episodes in all)

GAMES_AT_ONCE = 128  # episodes played side by side


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
    """Make a solver play levels ``[L]``: its search draws by (seed, level, step) alone."""

    def act(frames: Bytes, numbers: Ints, steps: Ints) -> Ints:
        uniforms = procgen_noise(levels[numbers], seed, steps, solver.act_iterations)
        actions: Ints = solver.act(torch.from_numpy(frames), uniforms=uniforms).cpu().numpy()
        return actions

    solver.eval()
    return act


def procgen_noise(levels: Ints, seed: int, steps: Ints, iterations: int) -> torch.Tensor:
    """Draw uniforms ``[N, T]`` for searches in ``levels [N]`` after ``steps [N]``."""
    here = hashed_integers(levels + (seed + 1) * 2**32, 0, 2**62) + steps
    draws = [hashed_integers(here, t, 2**24) for t in range(iterations)]
    return torch.from_numpy(np.stack(draws, axis=1).astype(np.float32) / 2**24)
