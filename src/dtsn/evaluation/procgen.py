"""Batched roll-outs on Procgen: one row per episode."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import torch

from dtsn.arrays import Bytes, Ints
from dtsn.envs.procgen import Policy, ProcgenOptions, play_levels
from dtsn.evaluation.rows import ProcgenRow
from dtsn.evaluation.softmax import check_temperature, is_deterministic, softmax_actions
from dtsn.randomness import hashed_integers
from dtsn.solvers.solver import Solver

Progress = Callable[[int, int], None]  # called with (episodes ended, episodes in all)

GAMES_AT_ONCE = 128  # episodes played side by side
ACTION_DRAW = 2**40  # number of the draw of an action; those of searches come before
FRAMES_KNOWN = 2**20  # that a policy's answers are kept of: 0.15 GB


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


def solver_policy(solver: Solver, levels: Ints, seed: int = 0, temperature: float | None = None) -> Policy:
    """Make a solver play levels ``[L]``: what it draws depends on (seed, level, step) alone.

    Without a ``temperature`` it takes its best action, otherwise one drawn from softmax(Q / temperature).
    """

    check_temperature(temperature)

    def act(frames: Bytes, numbers: Ints, steps: Ints) -> Ints:
        streams = _streams(levels[numbers], seed, steps)
        uniforms = _search_noise(streams, solver.act_iterations)
        observation = torch.from_numpy(frames)
        if temperature is None:
            actions: Ints = solver.act(observation, uniforms=uniforms).cpu().numpy()
            return actions
        q = solver.plan(observation, uniforms=uniforms).q.float().cpu().numpy()
        drawn = hashed_integers(streams, ACTION_DRAW, 2**24).astype(np.float32) / np.float32(2**24)
        return softmax_actions(q, drawn, temperature)

    solver.eval()
    return ask_once(act) if is_deterministic(solver, temperature) else act


def ask_once(policy: Policy) -> Policy:
    """Ask a policy that draws nothing about every frame only once.

    One that is stuck sees the same few frames again and again, until time is up.
    """
    known: dict[bytes, int] = {}  # frame -> action

    def act(frames: Bytes, numbers: Ints, steps: Ints) -> Ints:
        if len(known) > FRAMES_KNOWN:
            known.clear()
        keys = [blake2b(frame.tobytes(), digest_size=16).digest() for frame in frames]
        unknown = {key: row for row, key in enumerate(keys) if key not in known}
        if unknown:
            rows = np.array(list(unknown.values()))
            actions = np.asarray(policy(frames[rows], numbers[rows], steps[rows]))
            known.update(zip(unknown, actions.tolist(), strict=True))
        return np.array([known[key] for key in keys])

    return act


def procgen_noise(levels: Ints, seed: int, steps: Ints, iterations: int) -> torch.Tensor:
    """Draw uniforms ``[N, T]`` for searches in ``levels [N]`` after ``steps [N]``."""
    return _search_noise(_streams(levels, seed, steps), iterations)


def _streams(levels: Ints, seed: int, steps: Ints) -> Ints:
    """Return a seed ``[N]`` for each decision."""
    return hashed_integers(levels + (seed + 1) * 2**32, 0, 2**62) + steps


def _search_noise(streams: Ints, iterations: int) -> torch.Tensor:
    draws = [hashed_integers(streams, t, 2**24) for t in range(iterations)]
    return torch.from_numpy(np.stack(draws, axis=1).astype(np.float32) / 2**24)
