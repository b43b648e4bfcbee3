"""What trials are compared by: never by test levels, never by what they were trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from dtsn.config import LossWeights
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter
from dtsn.envs.navigation import NavigationOptions
from dtsn.errors import UserError
from dtsn.evaluation.levels import unseen_levels
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.solvers.solver import Solver

Score = Callable[[Solver], float]  # higher is better

EXITS = (2, 1)
HELD_OUT = 10  # one episode of so many
MOST_ROWS, ROWS_AT_ONCE = 4096, 256  # of held-out transitions


def navigation_score(dataset: Dataset, levels: int) -> Score:
    """Score success on validation levels of the data's kind, the mean of two exits and one."""
    stored = dataset.header["env_options"]  # JSON has no tuples
    options = NavigationOptions(**stored | {"hall": tuple(stored["hall"])})
    tests = [replace(options, exits=exits) for exits in EXITS]
    seen = dataset.array("levels")
    seeds = [unseen_levels("validation", levels, test, trained_on=seen) for test in tests]

    def score(solver: Solver) -> float:
        found = [evaluate_navigation(solver, *test) for test in zip(seeds, tests, strict=True)]
        return sum(row.success for rows in found for row in rows) / sum(map(len, found))

    return score


def held_out_score(held_out: Dataset, weights: LossWeights) -> Score:
    """Score minus the mean loss λ1 (Q(s, a) − Q)² + λ2 CQL on held-out transitions.

    The λ are those that trials vary around, the same for all: a trial must not win by small weights.
    """
    size = min(ROWS_AT_ONCE, len(held_out))
    number = max(1, min(MOST_ROWS, len(held_out)) // size)

    def score(solver: Solver) -> float:
        batches = held_out.batches(size, seed=0, device=solver.device)
        generator = torch.Generator(solver.device).manual_seed(0)
        total = 0.0
        with torch.no_grad():
            for _ in range(number):
                terms = solver.loss(next(batches), generator=generator).terms
                total += float((weights.q * terms["q"] + weights.cql * terms["cql"]).mean())
        return -total / number

    return score


def split_episodes(dataset: Dataset, folder: Path) -> tuple[Path, Path]:
    """Write the data to train on and those held out, unless they are there: every tenth episode."""
    if dataset.num_episodes < HELD_OUT:
        raise UserError(
            f"{dataset.path} must have at least {HELD_OUT} episodes, got {dataset.num_episodes}: "
            "one of ten is held out to compare trials by"
        )
    paths = folder / "train.h5", folder / "held-out.h5"
    for path, held in zip(paths, (False, True), strict=True):
        if path.exists():
            continue
        header, seen = dataset.header, dataset.observation
        with DatasetWriter(
            path,
            env_id=header["env_id"],
            env_options=header["env_options"],
            num_actions=dataset.num_actions,
            observation_shape=seen.shape,
            observation_dtype=seen.dtype,
            observation_low=seen.low,
            observation_high=seen.high,
            real_last_frames=header["real_last_frames"],
            discount=header["discount"],
            provenance={"part_of": str(dataset.path), "sha256": dataset.sha256},
        ) as writer:
            for number in range(dataset.num_episodes):
                if (number % HELD_OUT == HELD_OUT - 1) == held:
                    writer.add_episode(dataset.episode(number))
    return paths
