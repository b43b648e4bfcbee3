"""A Navigation campaign as plain data: what to run, where it goes, what is still missing. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dtsn.config import TrainConfig
from dtsn.envs.navigation import SPLITS
from dtsn.errors import UserError
from dtsn.evaluation.rows import Scenario, count_rows, rows_path
from dtsn.reproduce.navigation.curves import Curve
from dtsn.reproduce.navigation.variants import FAMILIES, VARIANTS, Variant
from dtsn.reproduce.records import read_record, write_record
from dtsn.settings import difference, plain
from dtsn.spelling import did_you_mean

WEIGHT_SEARCH = "weight_search"
# Names that stand for several variants.
GROUPS: dict[str, tuple[str, ...]] = {
    **{
        key: tuple(row.key for row in VARIANTS.values() if row.family.key == key and row.purpose == "table")
        for key in FAMILIES
    },
    WEIGHT_SEARCH: tuple(row.key for row in VARIANTS.values() if row.purpose == WEIGHT_SEARCH),
}


@dataclass(frozen=True, order=True)
class Task:
    """A training run and its tests."""

    variant: str
    seed: int


@dataclass(frozen=True)
class Campaign:
    """What to run and where to put it."""

    variants: tuple[str, ...] = tuple(key for key, family in FAMILIES.items() if family.is_current)
    """rows of the tables, or whole families (main, hall-7-12, ...); weight_search: the grid of loss weights,
    on validation levels alone"""
    seeds: int | None = None
    """training runs of each variant, seeds 0 and up; each variant's own number if not given"""
    steps: int | None = None
    """optimiser steps of every run; each variant's own if not given"""
    levels: int = 10_000
    """test levels per scenario"""
    act_levels: int = 1_000
    """test levels per scenario beyond the main table's: other searches, drawn actions, ablations, halls"""
    plan_levels: int = 1_000
    """test levels on which plans are checked"""
    validation_levels: int = 500
    """validation levels per point of a learning curve"""
    validate_every: int = 500
    """steps between points of the learning curves"""
    device: str = "cpu"
    """device of every run: cpu, cuda, cuda:N or mps"""
    results: Path = Path("results/navigation")
    """raw rows and curves: small, worth keeping"""
    runs: Path = Path("runs/navigation")
    """checkpoints and logs: large"""

    def __post_init__(self) -> None:
        if not self.variants:
            raise UserError("variants must name at least one variant, got none")
        for name in self.variants:
            if name not in VARIANTS and name not in GROUPS:
                hint = did_you_mean(name, [*VARIANTS, *GROUPS])
                raise UserError(
                    f"variant must be one of {', '.join([*GROUPS, *VARIANTS])}, got {name!r}{hint}"
                )
        for name in ("seeds", "steps", "levels", "act_levels", "plan_levels", "validation_levels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
        if self.validate_every < 1:
            raise UserError(f"validate_every must be at least 1, got {self.validate_every}")
        first, end = SPLITS["test"]
        if self.levels > end - first:
            raise UserError(f"levels must be at most the {end - first} test levels, got {self.levels}")

    @property
    def rows(self) -> list[Variant]:
        """The variants, groups spelt out; those that act with another's weights come with the other."""
        keys = [key for name in self.variants for key in GROUPS.get(name, (name,))]
        found = (found for key in keys for found in (VARIANTS[key].weights_of, key) if found)
        return [VARIANTS[key] for key in dict.fromkeys(found)]

    def tasks(self) -> list[Task]:
        """Return every run: one seed of all variants before the next, so that tables fill evenly."""
        counts = {row.key: self.seeds or row.seeds for row in self.rows}
        return [
            Task(key, seed) for seed in range(max(counts.values())) for key in counts if seed < counts[key]
        ]

    def config(self, task: Task) -> TrainConfig:
        """Return the training run of a task."""
        config = VARIANTS[task.variant].config(task.seed)
        return config if self.steps is None else replace(config, steps=self.steps)

    def training(self, task: Task) -> Task:
        """Return the task whose training run a task acts with: mostly itself."""
        return Task(VARIANTS[task.variant].weights_of or task.variant, task.seed)

    def run_folder(self, task: Task) -> Path:
        """Return where the checkpoints of a task are."""
        trained = self.training(task)
        return self.runs / trained.variant / f"seed-{trained.seed}"

    def log_path(self, task: Task) -> Path:
        """Return where the output of a task goes."""
        return self.runs / task.variant / f"seed-{task.seed}.log"

    def episodes_path(self, task: Task, scenario: Scenario) -> Path:
        """Return where the episodes of a test go."""
        return rows_path(self.results / "rows" / task.variant / f"seed-{task.seed}", scenario.name)

    def plans_path(self, task: Task, scenario: Scenario) -> Path:
        """Return where the plans of a test go."""
        return rows_path(self.results / "plans" / task.variant / f"seed-{task.seed}", scenario.name)

    def curve_path(self, task: Task) -> Path:
        """Return where the learning curve of a task is."""
        trained = self.training(task)
        return self.results / "curves" / trained.variant / f"seed-{trained.seed}.csv"

    def missing_tests(self, task: Task) -> list[tuple[Scenario, int]]:
        """List (scenario, levels) of the tests that a task still lacks."""
        self._check_steps(task)
        tests = [(test.scenario, getattr(self, test.levels)) for test in VARIANTS[task.variant].tests]
        return [
            (scenario, min(levels, self.levels))
            for scenario, levels in tests
            if count_rows(self.episodes_path(task, scenario)) != min(levels, self.levels)
        ]

    def missing_plans(self, task: Task) -> list[Scenario]:
        """Return the scenarios in which a task's plans still have to be checked."""
        row = VARIANTS[task.variant]
        scenarios = [row.scenario(exits) for exits in (2, 1)] if row.plans else []
        levels = min(self.plan_levels, self.levels)
        return [found for found in scenarios if count_rows(self.plans_path(task, found)) != levels]

    def is_trained(self, task: Task) -> bool:
        """Tell whether its learning curve has its last point."""
        return max(Curve(self.curve_path(task)).steps(), default=None) == self.config(task).steps

    def is_done(self, task: Task) -> bool:
        """Tell whether nothing of a task is left to do."""
        if VARIANTS[task.variant].purpose == WEIGHT_SEARCH:
            return self.is_trained(task)
        return not self.missing_tests(task) and not self.missing_plans(task)

    def _check_steps(self, task: Task) -> None:
        """Refuse rows of a run that was trained for another number of steps."""
        trained, steps = max(Curve(self.curve_path(task)).steps(), default=None), self.config(task).steps
        tests = VARIANTS[task.variant].tests
        tested = any(count_rows(self.episodes_path(task, test.scenario)) > 0 for test in tests)
        if tested and trained not in (None, steps):
            raise UserError(
                f"{self.results} has rows of {task.variant} seed {task.seed} after {trained:.0f} steps, "
                f"not {steps}: use that number of steps or another results folder"
            )

    def check_record(self) -> None:
        """Refuse to go on with rows of a variant that was configured otherwise."""
        theirs = read_record(self.results / "meta.json").get("configs", {})
        for key, config in self._configs().items():
            differs = difference(theirs.get(key, {}), config)
            made = [self.results.glob(f"{kind}/{key}/**/*.csv*") for kind in ("rows", "plans", "curves")]
            if differs and any(map(any, made)):
                raise UserError(
                    f"{self.results} has rows or curves of {key} that were made with other settings "
                    f"({differs}): move them away or use another results folder"
                )

    def write_record(self, command: str) -> None:
        """Keep beside the rows how they were made."""
        path = self.results / "meta.json"
        configs = read_record(path).get("configs", {}) | self._configs()
        write_record(path, command, {"configs": configs, "levels": self.levels})

    def _configs(self) -> dict[str, Any]:
        return {
            row.key: plain({"halls": asdict(row.family.options), **asdict(self.config(Task(row.key, 0)))})
            for row in self.rows
        }
