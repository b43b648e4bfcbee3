"""The episodes of a campaign as cells: a variant in a scenario, seeds × levels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dtsn.arrays import Array, Bools, Float64s, Ints
from dtsn.evaluation.rows import SUFFIX, Columns, NavigationRow, PlanRow, Scenario, name_of, read_rows
from dtsn.reproduce.navigation.variants import VARIANTS
from dtsn.reproduce.statistics import Estimate, rate_interval, ratio_interval


@dataclass(frozen=True)
class Cell:
    """The test episodes of a variant in a scenario: S seeds, each on the same L levels."""

    seeds: tuple[int, ...]
    level: Ints  # [L]
    success: Bools  # [S, L]
    collision: Bools  # [S, L]
    steps: Float64s  # [S, L]
    optimal_steps: Float64s  # [S, L]

    @classmethod
    def of(cls, by_seed: Mapping[int, Columns]) -> Cell:
        """Return the cell of the rows of each seed."""
        levels, table = _crossed(by_seed)
        return cls(
            tuple(sorted(by_seed)),
            levels,
            table("success") == 1,
            table("collision") == 1,
            table("steps"),
            table("optimal_steps"),
        )

    @cached_property
    def rate(self) -> Estimate:
        """Success rate."""
        return rate_interval(self.success)

    @cached_property
    def within_2x(self) -> Estimate:
        """Share of levels solved in at most twice the shortest steps."""
        return rate_interval(self.success & (self.steps <= 2 * self.optimal_steps))

    @property
    def detour(self) -> float | None:
        """Mean of steps ÷ shortest steps over the successful episodes."""
        ratios = self.steps[self.success] / self.optimal_steps[self.success]
        return float(ratios.mean()) if len(ratios) else None

    @property
    def timeout(self) -> float:
        """Share of episodes that neither arrive nor collide."""
        return float((~self.success & ~self.collision).mean())

    @property
    def by_seed(self) -> dict[int, float]:
        """Success rate of every training run."""
        rates = self.success.mean(1).tolist()
        return dict(zip(self.seeds, rates, strict=True))

    def of_seeds(self, seeds: Collection[int]) -> Cell:
        """Return the cell of some of its seeds."""
        rows = [row for row, seed in enumerate(self.seeds) if seed in seeds]
        return self._part(tuple(self.seeds[row] for row in rows), self.level, lambda table: table[rows])

    def on_levels(self, levels: Ints) -> Cell:
        """Return the cell of some of its levels, in their order in ``levels``."""
        order = np.argsort(self.level)
        columns = order[np.searchsorted(self.level[order], levels)]
        return self._part(self.seeds, levels, lambda table: table[:, columns])

    def _part(self, seeds: tuple[int, ...], level: Ints, cut: Callable[[Array], Array]) -> Cell:
        tables = (self.success, self.collision, self.steps, self.optimal_steps)
        return Cell(seeds, level, *map(cut, tables))


def aligned(cells: Sequence[Cell]) -> list[Cell]:
    """Cut cells of the same halls down to the seeds and levels that all of them have."""
    if not cells:
        return []
    seeds, levels = set(cells[0].seeds), cells[0].level
    for cell in cells[1:]:
        seeds &= set(cell.seeds)
        levels = levels[np.isin(levels, cell.level)]
    return [cell.of_seeds(seeds).on_levels(levels) for cell in cells] if seeds and len(levels) else []


@dataclass(frozen=True)
class PlanCell:
    """The plans of a variant in a scenario: counts of S seeds on the same L levels."""

    seeds: tuple[int, ...]
    decisions: Float64s  # [S, L]
    into_wall: Float64s  # [S, L]
    optimal: Float64s  # [S, L]

    @classmethod
    def of(cls, by_seed: Mapping[int, Columns]) -> PlanCell:
        """Return the cell of the rows of each seed."""
        _, table = _crossed(by_seed)
        return cls(tuple(sorted(by_seed)), table("decisions"), table("into_wall"), table("optimal"))

    @property
    def n(self) -> int:
        """Decisions."""
        return int(self.decisions.sum())

    @property
    def blocked(self) -> Estimate:
        """Share of decisions whose plan runs into a wall."""
        return ratio_interval(self.into_wall, self.decisions)

    @property
    def shortest(self) -> Estimate:
        """Share of decisions whose plan can be walked and is optimal as far as it goes."""
        return ratio_interval(self.optimal, self.decisions)


Results = Mapping[str, Mapping[Scenario, Cell]]  # variant -> scenario -> episodes
Plans = Mapping[str, Mapping[Scenario, PlanCell]]


def read_results(folder: Path) -> dict[str, dict[Scenario, Cell]]:
    """Read the episodes of every variant and scenario that a results folder has."""
    return {
        key: {
            scenario: Cell.of({seed: read_rows(path, NavigationRow) for seed, path in paths.items()})
            for scenario, paths in found.items()
        }
        for key, found in _files(folder / "rows").items()
    }


def read_plans(folder: Path) -> dict[str, dict[Scenario, PlanCell]]:
    """Read the plans of every variant and scenario that a results folder has."""
    return {
        key: {
            scenario: PlanCell.of({seed: read_rows(path, PlanRow) for seed, path in paths.items()})
            for scenario, paths in found.items()
        }
        for key, found in _files(folder / "plans").items()
    }


def _files(folder: Path) -> dict[str, dict[Scenario, dict[int, Path]]]:
    """Return the files of rows by variant, scenario and seed, in the order of the tables."""
    found: dict[str, dict[Scenario, dict[int, Path]]] = {}
    for key in VARIANTS:
        for path in sorted((folder / key).glob(f"seed-*/*{SUFFIX}")):
            scenario, seed = Scenario.named(name_of(path)), path.parent.name.removeprefix("seed-")
            if scenario is not None and seed.isdigit():
                found.setdefault(key, {}).setdefault(scenario, {})[int(seed)] = path
    return {key: dict(sorted(of.items(), key=lambda item: _order(item[0]))) for key, of in found.items()}


def _order(scenario: Scenario) -> tuple[object, ...]:
    """Sort 2 exits before 1, then by the search when acting, greedy and drawn actions last."""
    return -scenario.exits, scenario.temperature or 0, scenario.rule == "greedy", scenario.act_iterations


def _crossed(by_seed: Mapping[int, Columns]) -> tuple[Ints, Callable[[str], Float64s]]:
    """Return the levels that all seeds have ``[L]``, and a function from a column's name to ``[S, L]``."""
    parts: Sequence[Columns] = [by_seed[seed] for seed in sorted(by_seed)]
    shared = parts[0]["level"]
    for part in parts[1:]:
        shared = shared[np.isin(shared, part["level"])]
    places = []
    for part in parts:
        order = np.argsort(part["level"])
        places.append(order[np.searchsorted(part["level"][order], shared)])

    def table(name: str) -> Float64s:
        return np.stack([part[name][place] for part, place in zip(parts, places, strict=True)])

    return shared.astype(np.int64), table
