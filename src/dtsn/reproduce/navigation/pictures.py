"""Pictures of Navigation that need trained solvers: paths that part, a search on its hall."""

from __future__ import annotations

from pathlib import Path

from dtsn.drawing import Scene
from dtsn.envs.navigation import NavigationOptions, make_levels
from dtsn.evaluation.navigation import trace_navigation
from dtsn.evaluation.rows import NavigationRow, read_rows
from dtsn.inspection import describe_navigation
from dtsn.inspection.figures import hall_figure
from dtsn.reproduce.navigation.figures import sample_paths
from dtsn.reproduce.navigation.plan import Campaign, Task
from dtsn.reproduce.navigation.variants import SHOWN_LEVEL, VARIANTS
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.loop import has_run

COMPARED = ("qnet", "dtsn")  # the solver that fails, and the one that does not
HALLS_SHOWN = 4


def draw_figures(campaign: Campaign, figures: Path) -> list[Path]:
    """Draw the pictures whose runs are there; a clone has rows without the runs that made them."""
    runs = {name: campaign.run_folder(Task(name, 0)) for name in COMPARED}
    tasks = campaign.tasks()
    if not all(Task(name, 0) in tasks and has_run(run) for name, run in runs.items()):
        return []
    solver, options = load_solver(runs["dtsn"]), VARIANTS["dtsn"].options(1)
    pictures = draw_paths(campaign, figures / "navigation-paths.png")
    return [*pictures, draw_search(solver, SHOWN_LEVEL, options, figures / "navigation-search.png")]


def draw_paths(campaign: Campaign, path: Path) -> list[Path]:
    """Draw the first test halls with one exit where the Q-network fails and D-TSN does not, if any."""
    rows = {
        name: read_rows(campaign.episodes_path(Task(name, 0), VARIANTS[name].scenario(1)), NavigationRow)
        for name in COMPARED
    }
    failing, solving = (rows[name] for name in COMPARED)
    apart = solving["level"][(failing["success"] == 0) & (solving["success"] == 1)]
    options = VARIANTS["dtsn"].options(1)
    solvers = {VARIANTS[name].title: load_solver(campaign.run_folder(Task(name, 0))) for name in COMPARED}
    scenes = []
    for level in apart[:HALLS_SHOWN].astype(int).tolist():
        start = make_levels([level], options)
        paths = {title: trace_navigation(solver, level, options) for title, solver in solvers.items()}
        scenes.append(Scene(walls=start.walls[0], goal=start.goal[0], start=start.robot[0], paths=paths))
    return [sample_paths(scenes, path)] if scenes else []


def draw_search(solver: Solver, level: int, options: NavigationOptions, path: Path) -> Path:
    """Draw the first decision in a hall: its search tree on the hall."""
    return hall_figure(describe_navigation(solver, level, options), path)
