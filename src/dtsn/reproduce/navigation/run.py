"""Train and test the variants of a table, resumably, several single-threaded runs side by side."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dtsn.config import TrainConfig
from dtsn.envs.navigation import SPLITS
from dtsn.processes import Job, prepare, run_jobs
from dtsn.reproduce.experiments import NAVIGATION_VARIANTS
from dtsn.reproduce.records import read_record, write_record
from dtsn.settings import difference, plain
from dtsn.spelling import did_you_mean

VALIDATION_LEVELS = 500
SHOWN_LEVEL = 2_000_003  # of the test split: its way out is not the way to the goal

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver


@dataclass(frozen=True)
class Campaign:
    """What to run and where to put it."""

    variants: tuple[str, ...] = tuple(name for name, row in NAVIGATION_VARIANTS.items() if row.tested)
    """rows of the tables; weights-q-0.01-raw and the like search loss weights, on validation levels alone"""
    seeds: int = 3
    """training runs of each of the four solvers, seeds 0 and up"""
    ablation_seeds: int = 1
    """training runs of every other variant"""
    steps: int | None = None
    """optimiser steps of every run; each variant's own if not given"""
    levels: int = 10_000
    """test levels per scenario"""
    validate_every: int = 500
    """steps between points of the learning curves (validation levels)"""
    device: Literal["cpu", "cuda"] = "cpu"
    """of every run"""
    results: Path = Path("results/navigation")
    """raw rows and curves: small, worth keeping"""
    runs: Path = Path("runs/navigation")
    """checkpoints and logs: large"""

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError("give at least one variant")
        for name in self.variants:
            if name not in NAVIGATION_VARIANTS:
                hint = did_you_mean(name, NAVIGATION_VARIANTS)
                raise ValueError(
                    f"unknown variant {name!r}, choose from {', '.join(NAVIGATION_VARIANTS)}{hint}"
                )
        for name in ("seeds", "ablation_seeds", "steps", "levels", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        first, end = SPLITS["test"]
        if self.levels > end - first:
            raise ValueError(f"levels must be at most the {end - first} test levels, got {self.levels}")

    def tasks(self) -> list[tuple[str, int]]:
        """(variant, seed) of every run, the four solvers first, one seed of each before the next."""
        main = [name for name in self.variants if name in ("dtsn", "qnet", "treeqn", "search")]
        rest = [name for name in self.variants if name not in main]
        return [(name, seed) for seed in range(self.seeds) for name in main] + [
            (name, seed) for seed in range(self.ablation_seeds) for name in rest
        ]

    def config(self, variant: str, seed: int) -> TrainConfig:
        """The training run of a task."""
        config = NAVIGATION_VARIANTS[variant].config(seed)
        return config if self.steps is None else replace(config, steps=self.steps)

    def rows_path(self, variant: str, seed: int, exits: int, iterations: int) -> Path:
        """Where the test rows of a run go."""
        return self.results / "rows" / variant / f"seed-{seed}" / f"exits-{exits}-T{iterations}.csv.gz"

    def curve_path(self, variant: str, seed: int) -> Path:
        """Where the learning curve of a run goes."""
        return self.results / "curves" / variant / f"seed-{seed}.csv"

    def missing(self, variant: str, seed: int) -> list[tuple[int, int]]:
        """(exits, iterations) of the tests that a run still owes."""
        row = NAVIGATION_VARIANTS[variant]
        if not row.tested:
            return []
        more = row.act_iterations if seed == 0 else ()  # they take most of the time
        tests = [(exits, t) for t in (row.solver.iterations, *more) for exits in (2, 1)]
        counts = {test: _count_rows(self.rows_path(variant, seed, *test)) for test in tests}
        trained = max(_Curve(self.curve_path(variant, seed)).steps(), default=None)
        steps = self.config(variant, seed).steps
        if max(counts.values()) > 0 and trained not in (None, steps):
            raise ValueError(
                f"{self.results} has rows of {variant} seed {seed} after {trained:.0f} steps, "
                f"not {steps}: use --steps of that number or another --results folder"
            )
        return [test for test in tests if counts[test] != self.levels]

    def is_done(self, variant: str, seed: int) -> bool:
        """Whether nothing of a run is left to do."""
        if NAVIGATION_VARIANTS[variant].tested:
            return not self.missing(variant, seed)
        trained = max(_Curve(self.curve_path(variant, seed)).steps(), default=None)
        return trained == self.config(variant, seed).steps


def _count_rows(path: Path) -> int:
    """Episodes in a file of rows; 0 without one that can be read."""
    try:
        with gzip.open(path) as rows:
            return sum(block.count(b"\n") for block in iter(lambda: rows.read(2**20), b"")) - 1
    except (OSError, EOFError, zlib.error):
        return 0


def run_campaign(campaign: Campaign, jobs: int = 2) -> Iterator[tuple[str, int, str]]:
    """Run what is missing, ``jobs`` processes at a time; yields (variant, seed, outcome) as they end.

    Closing the generator stops the processes; each resumes from its last checkpoint the next time.
    """
    settings = json.dumps({**vars(campaign), "results": str(campaign.results), "runs": str(campaign.runs)})
    waiting = {
        (variant, seed): Job(
            "dtsn.reproduce.navigation.run",
            (settings, variant, str(seed)),
            campaign.runs / variant / f"seed-{seed}.log",
        )
        for variant, seed in campaign.tasks()
        if not campaign.is_done(variant, seed)
    }
    for (variant, seed), outcome in run_jobs(waiting, jobs):
        yield variant, seed, outcome


def run_task(campaign: Campaign, variant: str, seed: int) -> None:
    """Train one variant with one seed, from its last checkpoint if it has one, and test it."""
    from dtsn.data.reader import Dataset
    from dtsn.evaluation.episodes import evaluate_navigation, first_levels, write_rows
    from dtsn.training.loading import load_solver
    from dtsn.training.trainer import Trainer, has_run, train_run

    prepare()
    row, run = NAVIGATION_VARIANTS[variant], campaign.runs / variant / f"seed-{seed}"
    validation = first_levels("validation", VALIDATION_LEVELS)
    with Dataset(collect_data(campaign.runs, row.layout)) as dataset:
        config = campaign.config(variant, seed)
        trainer = Trainer(config, dataset.observation, dataset.num_actions, campaign.device)
        started = time.monotonic()
        steps = train_run(run, trainer, dataset, resume=has_run(run))
        curve = _Curve(campaign.curve_path(variant, seed), until=trainer.step)
        metrics: dict[str, float] | None = {}
        while metrics is not None:  # a run that was stopped while validating starts by making up for it
            due = trainer.step % campaign.validate_every == 0 or trainer.step == trainer.config.steps
            if due and trainer.step and trainer.step not in curve.steps():
                point = {}
                for exits in (2, 1):
                    rows = evaluate_navigation(trainer.solver, validation, row.options(exits))
                    point[f"validation_success_{exits}"] = sum(r.success for r in rows) / len(rows)
                point["minutes"] = (time.monotonic() - started) / 60
                curve.write(trainer.step, point)
            metrics = next(steps, None)
            if metrics is not None:
                curve.add(metrics)
    for exits, iterations in campaign.missing(variant, seed):
        solver = load_solver(run, campaign.device, act_iterations=iterations)
        rows = evaluate_navigation(solver, first_levels("test", campaign.levels), row.options(exits))
        write_rows(campaign.rows_path(variant, seed, exits, iterations), rows)


def draw_figures(campaign: Campaign, figures: Path) -> list[Path]:
    """The pictures that need trained solvers, as far as their runs are there: paths that part, a search."""
    from dtsn.training.loading import load_solver
    from dtsn.training.trainer import has_run

    def trained(*variants: str) -> bool:
        # Rows may come without the runs that made them, as in a clone.
        runs = [campaign.runs / name / "seed-0" for name in variants if (name, 0) in campaign.tasks()]
        return len(runs) == len(variants) and all(map(has_run, runs))

    pictures = []
    if trained("qnet-raw", "dtsn-raw"):
        pictures += draw_paths(campaign, "-raw", figures / "navigation-paths.png")
    if trained("dtsn"):
        solver = load_solver(campaign.runs / "dtsn" / "seed-0")
        pictures.append(draw_search(solver, SHOWN_LEVEL, figures / "navigation-search.png"))
    return pictures


def draw_paths(campaign: Campaign, suffix: str, path: Path) -> list[Path]:
    """The first test halls with one exit where the Q-network fails and D-TSN does not, if there are any."""
    from dtsn.envs.navigation import make_levels
    from dtsn.evaluation.episodes import trace_navigation
    from dtsn.plots import Scene, sample_paths
    from dtsn.reproduce.navigation.report import read_rows
    from dtsn.training.loading import load_solver

    variants = {"Q-network": f"qnet{suffix}", "D-TSN": f"dtsn{suffix}"}
    failing, solving = (read_rows(campaign.rows_path(name, 0, 1, 10)) for name in variants.values())
    apart = solving["level"][(failing["success"] == 0) & (solving["success"] == 1)]
    options = NAVIGATION_VARIANTS[variants["D-TSN"]].options(1)
    solvers = {title: load_solver(campaign.runs / name / "seed-0") for title, name in variants.items()}
    scenes = []
    for level in apart[:4].tolist():
        start = make_levels([level], options)
        paths = {title: trace_navigation(solver, level, options) for title, solver in solvers.items()}
        scenes.append(Scene(walls=start.walls[0], goal=start.goal[0], start=start.robot[0], paths=paths))
    return [sample_paths(scenes, path)] if scenes else []


def draw_search(solver: Solver, level: int, path: Path) -> Path:
    """A picture of the first decision in a hall with one exit: the search tree on the hall."""
    import torch

    from dtsn.envs.navigation import make_levels, observe
    from dtsn.plots import Scene, search_on_hall

    start = make_levels([level], NAVIGATION_VARIANTS["dtsn"].options(1))
    generator = torch.Generator(solver.device).manual_seed(0)
    tree = solver.plan(observe(start.walls, start.goal, start.robot), generator=generator).row(0)
    scene = Scene(walls=start.walls[0], goal=start.goal[0], start=start.robot[0])
    return search_on_hall(scene, tree, path)  # type: ignore[arg-type]


def collect_data(folder: Path, layout: str) -> Path:
    """The 1000 expert trajectories of a layout, collected at first use."""
    from dtsn.envs.navigation import NavigationOptions
    from dtsn.experts.collect import collect_navigation

    path = folder / f"navigation-{layout}.h5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        collect_navigation(path, options=NavigationOptions(exit_layout=layout), overwrite=True)
    return path


def check_record(campaign: Campaign) -> None:
    """Refuse to go on with rows of a variant that was configured otherwise."""
    theirs = read_record(campaign.results / "meta.json").get("configs", {})
    for name, config in _configs(campaign).items():
        differs = difference(theirs.get(name, {}), config)
        made = [campaign.results.glob(f"{kind}/{name}/**/*.csv*") for kind in ("rows", "curves")]
        if differs and any(map(any, made)):
            raise ValueError(
                f"{campaign.results} has rows or curves of {name} that were made with other settings "
                f"({differs}): move them away or use another --results folder"
            )


def write_meta(campaign: Campaign, command: str) -> None:
    """How the rows were made, beside them."""
    path = campaign.results / "meta.json"
    configs = read_record(path).get("configs", {}) | _configs(campaign)
    write_record(path, command, {"configs": configs, "levels": campaign.levels})


def _configs(campaign: Campaign) -> dict[str, Any]:
    layouts = {name: NAVIGATION_VARIANTS[name].layout for name in campaign.variants}
    return {
        name: plain({"layout": layout, **asdict(campaign.config(name, 0))})
        for name, layout in layouts.items()
    }


class _Curve:
    """A learning curve: mean losses since the last point, and what was measured there.

    Points after step ``until`` are left out: a run that goes on from there makes them anew.
    """

    def __init__(self, path: Path, until: float = math.inf):
        self.path = path
        self.rows: list[dict[str, float]] = []
        self.sums: dict[str, float] = {}
        self.count = 0
        if path.exists():
            try:
                table = csv.DictReader(path.read_text().splitlines())
                rows = [{k: float(v) for k, v in row.items() if v} for row in table]
                self.rows = [row for row in rows if row["step"] <= until]
            except (ValueError, KeyError, TypeError, csv.Error) as error:
                raise ValueError(f"{path} is damaged ({error!r}): delete it or copy it again") from error

    def steps(self) -> set[float]:
        return {row["step"] for row in self.rows}

    def add(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def write(self, step: int, point: dict[str, float]) -> None:
        means = {name: total / max(1, self.count) for name, total in self.sums.items()}
        self.rows = [row for row in self.rows if row["step"] < step]  # a resumed run repeats some
        self.rows.append({"step": step} | means | point | {"step": step})
        self.sums, self.count = {}, 0
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows({name: f"{value:.6g}" for name, value in row.items()} for row in self.rows)
        from dtsn.storage import replace_durably

        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, text.getvalue().encode())


if __name__ == "__main__":
    raw = json.loads(sys.argv[1])
    raw |= {"variants": tuple(raw["variants"]), "results": Path(raw["results"]), "runs": Path(raw["runs"])}
    run_task(Campaign(**raw), sys.argv[2], int(sys.argv[3]))
