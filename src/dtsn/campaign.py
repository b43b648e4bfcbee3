"""Train and test the variants of a table, resumably, several single-threaded runs side by side."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import platform
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import dtsn
from dtsn.config import TrainConfig
from dtsn.envs.navigation import SPLITS
from dtsn.experiments import NAVIGATION, NAVIGATION_VARIANTS

VALIDATION_LEVELS = 500
SHOWN_LEVEL = 2_000_003  # of the test split: its way out is not the way to the goal

if TYPE_CHECKING:
    from dtsn.solvers import Solver


@dataclass(frozen=True)
class Campaign:
    """What to run and where to put it."""

    variants: tuple[str, ...] = tuple(NAVIGATION_VARIANTS)
    """rows of the tables"""
    seeds: int = 3
    """training runs of each of the four solvers, seeds 0 and up"""
    ablation_seeds: int = 1
    """training runs of every other variant"""
    steps: int = NAVIGATION.steps
    """optimiser steps of every run"""
    levels: int = 10_000
    """test levels per scenario"""
    validate_every: int = 500
    """steps between points of the learning curves (validation levels)"""
    results: Path = Path("results/navigation")
    """raw rows and curves: small, worth keeping"""
    runs: Path = Path("runs/navigation")
    """checkpoints and logs: large"""

    def __post_init__(self) -> None:
        for name in self.variants:
            if name not in NAVIGATION_VARIANTS:
                raise ValueError(f"unknown variant {name!r}, choose from {', '.join(NAVIGATION_VARIANTS)}")
        for name in ("seeds", "ablation_seeds", "steps", "levels", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
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
        return replace(NAVIGATION_VARIANTS[variant].config(seed), steps=self.steps)

    def rows_path(self, variant: str, seed: int, exits: int, iterations: int) -> Path:
        """Where the test rows of a run go."""
        return self.results / "rows" / variant / f"seed-{seed}" / f"exits-{exits}-T{iterations}.csv.gz"

    def missing(self, variant: str, seed: int) -> list[tuple[int, int]]:
        """(exits, iterations) of the tests that a run still owes."""
        solver = NAVIGATION_VARIANTS[variant].solver
        tests = [(exits, t) for t in (solver.iterations, *_more(variant)) for exits in (2, 1)]
        return [test for test in tests if _count_rows(self.rows_path(variant, seed, *test)) != self.levels]


def _count_rows(path: Path) -> int:
    """Episodes in a file of rows; 0 without one that can be read."""
    try:
        return gzip.decompress(path.read_bytes()).count(b"\n") - 1
    except (OSError, EOFError, zlib.error):
        return 0


def _more(variant: str) -> tuple[int, ...]:
    return NAVIGATION_VARIANTS[variant].act_iterations


def run_campaign(campaign: Campaign, jobs: int = 2) -> Iterator[tuple[str, int, str]]:
    """Run what is missing, ``jobs`` processes at a time; yields (variant, seed, outcome) as they end.

    Closing the generator stops the processes; each resumes from its last checkpoint the next time.
    """
    waiting = [task for task in campaign.tasks() if campaign.missing(*task)]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                running[task] = _start(campaign, *task)
            for task, process in list(running.items()):
                if process.poll() is not None:
                    del running[task]
                    log = _log_path(campaign, *task)
                    yield (*task, "done" if process.returncode == 0 else f"failed, see {log}")
            time.sleep(0.5)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def run_task(campaign: Campaign, variant: str, seed: int) -> None:
    """Train one variant with one seed, from its last checkpoint if it has one, and test it."""
    import torch

    from dtsn.data import Dataset
    from dtsn.evaluation import evaluate_navigation, first_levels, write_rows
    from dtsn.training import Trainer, load_solver, train_run

    torch.set_num_threads(1)
    row, run = NAVIGATION_VARIANTS[variant], campaign.runs / variant / f"seed-{seed}"
    curve_path = campaign.results / "curves" / variant / f"seed-{seed}.csv"
    validation = first_levels("validation", VALIDATION_LEVELS)
    with Dataset(collect_data(campaign.runs, row.layout)) as dataset:
        trainer = Trainer(campaign.config(variant, seed), dataset.observation_shape, dataset.num_actions)
        curve = _Curve(curve_path)
        started = time.monotonic()
        steps = train_run(run, trainer, dataset, resume=True)
        metrics: dict[str, float] | None = {}
        while metrics is not None:  # a run that was stopped while validating starts by making up for it
            due = trainer.step % campaign.validate_every == 0 or trainer.step == campaign.steps
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
        solver = load_solver(run, act_iterations=iterations)
        rows = evaluate_navigation(solver, first_levels("test", campaign.levels), row.options(exits))
        write_rows(campaign.rows_path(variant, seed, exits, iterations), rows)


def draw_figures(campaign: Campaign, figures: Path) -> list[Path]:
    """The pictures that need trained solvers: paths that part ways, and a search tree."""
    from dtsn.envs.navigation import make_levels
    from dtsn.evaluation import trace_navigation
    from dtsn.plots import Scene, sample_paths
    from dtsn.report import read_rows
    from dtsn.training import load_solver

    names = {"qnet": "Q-network", "dtsn": "D-TSN"}
    rows = {name: read_rows(campaign.rows_path(name, 0, 1, 10)) for name in names}
    apart = rows["dtsn"]["level"][(rows["qnet"]["success"] == 0) & (rows["dtsn"]["success"] == 1)]
    options = NAVIGATION_VARIANTS["dtsn"].options(1)
    solvers = {name: load_solver(campaign.runs / name / "seed-0") for name in names}
    scenes = []
    for level in apart[:4].tolist():
        start = make_levels([level], options)
        paths = {names[name]: trace_navigation(solver, level, options) for name, solver in solvers.items()}
        scenes.append(Scene(walls=start.walls[0], goal=start.goal[0], start=start.robot[0], paths=paths))
    pictures = [sample_paths(scenes, figures / "navigation-paths.png")] if scenes else []
    return [*pictures, draw_search(solvers["dtsn"], SHOWN_LEVEL, figures / "navigation-search.png")]


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
    from dtsn.collect import collect_navigation
    from dtsn.envs.navigation import NavigationOptions

    path = folder / f"navigation-{layout}.h5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        collect_navigation(path, options=NavigationOptions(exit_layout=layout), overwrite=True)
    return path


def write_meta(campaign: Campaign, command: str) -> None:
    """How the rows were made, beside them."""
    meta = {
        "command": command,
        "dtsn": dtsn.__version__,
        "machine": {
            "python": platform.python_version(),
            "system": platform.system(),
            "cores": os.cpu_count(),
        },
        "steps": campaign.steps,
        "batch_size": NAVIGATION.batch_size,
        "levels": campaign.levels,
    }
    campaign.results.mkdir(parents=True, exist_ok=True)
    (campaign.results / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


class _Curve:
    """A learning curve: mean losses since the last point, and what was measured there."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, float]] = []
        self.sums: dict[str, float] = {}
        self.count = 0
        if path.exists():
            with path.open() as file:
                self.rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]

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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text.getvalue())


def _log_path(campaign: Campaign, variant: str, seed: int) -> Path:
    return campaign.runs / variant / f"seed-{seed}.log"


def _start(campaign: Campaign, variant: str, seed: int) -> subprocess.Popen[bytes]:
    """A process of its own with one thread: several such use a machine better than one with many threads."""
    log = _log_path(campaign, variant, seed)
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = {**vars(campaign), "results": str(campaign.results), "runs": str(campaign.runs)}
    arguments = [sys.executable, "-m", "dtsn.campaign", json.dumps(settings), variant, str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with log.open("ab") as output:
        return subprocess.Popen(arguments, stdout=output, stderr=output, env=environment)


if __name__ == "__main__":
    raw = json.loads(sys.argv[1])
    raw |= {"variants": tuple(raw["variants"]), "results": Path(raw["results"]), "runs": Path(raw["runs"])}
    run_task(Campaign(**raw), sys.argv[2], int(sys.argv[3]))
