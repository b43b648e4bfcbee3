"""What to train and test on the Game of 24, every number of it. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from dtsn.config import LossWeights, Rule, SolverConfig, TrainConfig
from dtsn.errors import UserError
from dtsn.spelling import did_you_mean

ACT_ITERATIONS = (1, 4, 8, 16, 128)
RULES: tuple[Rule, ...] = ("greedy", "sample")
TRAJECTORIES = (1000, 2000, 10_000)
VALIDATED = 8  # T of the score that settings were chosen by, greedy, on validation puzzles
HIDDEN, EMBEDDING = 128, 16
ACT_TEMPERATURE = 0.3  # of sampled expansion when acting; training draws with temperature 1
# Settings beyond the paper, and how tables call them.
ABLATIONS = {
    "no_ranking": "without the ranking loss: the loss of the paper",
}

RECIPE = TrainConfig(
    # Demonstrations always win: their target says little, and pulls every value up where it weighs much.
    SolverConfig("dtsn", iterations=8, weights=LossWeights(q=0.001, cql=1.0, ranking=1.0)),
    steps=2000,
    batch_size=128,
    learning_rate=4e-3,
    learning_rate_warmup=50,
    search_warmup=1200,
)


@dataclass(frozen=True)
class Variant:
    """A solver and what it is trained with."""

    solver: str
    trajectories: int
    train_iterations: int
    ablation: str | None = None

    @property
    def key(self) -> str:
        """Names its files."""
        return f"{self.ablation or self.solver}-{self.trajectories}-T{self.train_iterations}"

    def config(self, seed: int, steps: int | None = None) -> TrainConfig:
        """Return every number of a run."""
        solver = replace(RECIPE.solver, name=self.solver, iterations=self.train_iterations)
        if self.solver != "dtsn" or self.ablation == "no_ranking":
            solver = replace(solver, weights=replace(solver.weights, ranking=0.0))
        return replace(RECIPE, solver=solver, seed=seed, steps=steps or RECIPE.steps)


# `search` trains with one step, which is D-TSN with T = 1: one run serves both.
VARIANTS = {
    variant.key: variant
    for variant in (
        *(Variant("search", trajectories, 1) for trajectories in TRAJECTORIES),
        *(Variant("dtsn", trajectories, 8) for trajectories in TRAJECTORIES),
        Variant("dtsn", 2000, 16),
        *(Variant("dtsn", 2000, 8, ablation) for ablation in ABLATIONS),
    )
}


class Cell(NamedTuple):
    """A run."""

    variant: str
    seed: int


@dataclass(frozen=True)
class Game24Campaign:
    """What to train, and where to put it."""

    variants: tuple[str, ...] = tuple(VARIANTS)
    """solver (or ablation)-trajectories-T, e.g. dtsn-2000-T16"""
    seeds: int = 3
    """runs of each"""
    steps: int | None = None
    """optimiser steps; the recipe's if not given"""
    results: Path = Path("results/game24")
    """folder for raw rows and the summary"""
    runs: Path = Path("runs/game24")
    """folder for logs and trained solvers"""

    def __post_init__(self) -> None:
        for name in self.variants:
            if name not in VARIANTS:
                known = ", ".join(VARIANTS)
                raise UserError(f"variants must be of {known}, got {name!r}{did_you_mean(name, VARIANTS)}")
        for name in ("seeds", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")

    def cells(self) -> list[Cell]:
        """List all runs seed by seed, so that an early stop leaves whole comparisons; ablations come last."""
        cells = [Cell(variant, seed) for seed in range(self.seeds) for variant in self.variants]
        return sorted(cells, key=lambda cell: VARIANTS[cell.variant].ablation is not None)

    def waiting(self) -> Iterator[Cell]:
        """Return the runs that have no row yet."""
        return (cell for cell in self.cells() if not self.path(cell).exists())

    def path(self, cell: Cell) -> Path:
        """Return the file of a run's results."""
        return self.results / "rows" / f"{cell.variant}-{cell.seed}.json"
