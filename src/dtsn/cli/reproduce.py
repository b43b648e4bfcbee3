"""Repeat the paper's experiments and report them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dtsn.cli.options import REPORT, RESULTS, at_least_one, pick_device
from dtsn.cli.terminal import console, done, progress, stopped
from dtsn.errors import UserError
from dtsn.reproduce.game24.plan import Game24Campaign
from dtsn.reproduce.navigation.plan import Campaign
from dtsn.reproduce.online.run import OnlineCampaign
from dtsn.reproduce.procgen.plan import ProcgenCampaign

if TYPE_CHECKING:
    from dtsn.reproduce.jobs import Executor

NAVIGATION_CAMPAIGN = Campaign(results=RESULTS / "navigation")
PROCGEN_CAMPAIGN = ProcgenCampaign(results=RESULTS / "procgen")
ONLINE_CAMPAIGN = OnlineCampaign(results=RESULTS / "online")
GAME24_CAMPAIGN = Game24Campaign(results=RESULTS / "game24")


@dataclass(frozen=True)
class Workers:
    """Who runs the jobs of a campaign."""

    executor: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: tasks of a Ray cluster that shares this folder
    (docs/many-machines.md)"""
    jobs: int = 2
    """single-threaded jobs side by side on this machine; at most one per core pays"""
    address: str | None = None
    """of the Ray cluster, which runs as many jobs as it has CPUs: auto, HOST:PORT or ray://HOST:10001; not
    given: Ray is started on this machine alone"""

    def __post_init__(self) -> None:
        at_least_one(jobs=self.jobs)
        if self.address is not None and self.executor != "ray":
            raise UserError(f"address is for the executor ray, got {self.address!r} for {self.executor}")

    def make(self, device: str = "cpu") -> Executor:
        """Return the executor; refuse a device that this machine, where it runs the jobs, does not have."""
        from dtsn.reproduce.jobs import LocalProcesses
        from dtsn.reproduce.ray_tasks import RayTasks

        if device == "auto":  # jobs may run on other machines than this one
            raise UserError("device must be cpu, cuda, cuda:N or mps for a campaign, got 'auto'")
        if self.address is None:
            pick_device(device)  # an error now rather than in every job
        if self.executor == "local":
            return LocalProcesses(self.jobs)
        return RayTasks(self.address, self.jobs, gpus=int(device == "cuda"))

    @property
    def words(self) -> str:
        """How many jobs run side by side."""
        return f"{self.jobs} at a time" if self.address is None else f"on the Ray cluster {self.address}"


WORKERS = Workers()


def reproduce_navigation(
    campaign: Annotated[Campaign, tyro.conf.arg(name="")] = NAVIGATION_CAMPAIGN,
    workers: Annotated[Workers, tyro.conf.arg(name="")] = WORKERS,
    figures: Path = REPORT / "figures",
) -> None:
    """Train and test every solver of the paper's Navigation tables.

    Safe to interrupt: rerun the same command to continue; results that exist are skipped.

    Example: dtsn reproduce navigation --variants main --jobs 2

    Args:
        campaign: what to run and where to put it.
        workers: who runs the jobs: one for each run.
        figures: folder for the figures that need trained solvers.
    """
    from dtsn.reproduce.navigation.pictures import draw_figures
    from dtsn.reproduce.navigation.run import estimate_hours, run_campaign

    executor = workers.make(campaign.device)
    campaign.check_record()
    tasks = campaign.tasks()
    waiting = [task for task in tasks if not campaign.is_done(task)]
    cost = f": about {estimate_hours(campaign):.1f} hours of one core" if waiting else ""
    console().print(
        f"{len(waiting)} of {len(tasks)} runs to do, {workers.words}{cost}; logs in {campaign.runs}"
    )
    if waiting:
        campaign.write_record(command_line())
    ends = run_campaign(campaign, executor)
    report_ends("runs", len(waiting), ((f"{task.variant} seed {task.seed}", end) for task, end in ends))
    draw_figures(campaign, figures)
    done(f"wrote {campaign.results}", f"dtsn report --results {campaign.results.parent}")


def reproduce_procgen(
    campaign: Annotated[ProcgenCampaign, tyro.conf.arg(name="")] = PROCGEN_CAMPAIGN,
    workers: Annotated[Workers, tyro.conf.arg(name="")] = WORKERS,
) -> None:
    """Train an expert, collect its data, train and test every solver, for each Procgen game.

    Safe to interrupt: rerun the same command to continue; results that exist are skipped.

    Example: dtsn reproduce procgen --games coinrun leaper maze starpilot --budget cpu

    Args:
        campaign: what to run and where to put it.
        workers: who runs the jobs: one for each game.
    """
    from dtsn.reproduce.procgen.run import estimate_hours, run_campaign

    executor = workers.make(campaign.device)
    campaign.check_record()
    waiting = [game for game in campaign.games if not campaign.is_done(game)]
    hours = estimate_hours(campaign) if waiting else 0.0
    time = f"{hours / 24:.0f} days" if hours > 48 else f"{hours:.1f} hours"
    cost = f": about {time} of one core, and some minutes for each data set" if waiting else ""
    console().print(
        f"{len(waiting)} of {len(campaign.games)} games to do with the {campaign.budget} budget, "
        f"{workers.words}{cost}; logs in {campaign.runs / campaign.budget}"
    )
    if waiting:
        campaign.write_record(command_line())
    report_ends("games", len(waiting), run_campaign(campaign, executor))
    done(
        f"wrote {campaign.results}",
        f"dtsn report --results {campaign.results.parent} --budget {campaign.budget}",
    )


def reproduce_online(
    campaign: Annotated[OnlineCampaign, tyro.conf.arg(name="")] = ONLINE_CAMPAIGN,
    workers: Annotated[Workers, tyro.conf.arg(name="")] = WORKERS,
    out: Path = REPORT / "online-results.md",
) -> None:
    """Learn online with D-TSN, TreeQN and a plain DQN, for equally many environment steps.

    Safe to interrupt: rerun the same command to continue; results that exist are skipped.

    Example: dtsn reproduce online --tasks cartpole --seeds 5

    Args:
        campaign: what to run and where to put it.
        workers: who runs the jobs: one for each run.
        out: Markdown page to write; its picture goes to figures/ beside it.
    """
    import dtsn.integrations.sb3  # noqa: F401 (an error now rather than in every run)
    from dtsn.reproduce.online.report import build_online_report
    from dtsn.reproduce.online.run import run_campaign

    executor = workers.make()
    waiting = [cell for cell in campaign.cells() if not campaign.path(cell).exists()]
    console().print(
        f"{len(waiting)} of {len(campaign.cells())} runs to do, {workers.words}; logs in {campaign.runs}"
    )
    ends = run_campaign(campaign, executor, command_line())
    report_ends("runs", len(waiting), ((" ".join(map(str, cell)), end) for cell, end in ends))
    written = build_online_report(campaign.results, out)
    done(f"wrote {', '.join(map(str, written))}", f"open {out}")


def reproduce_game24(
    campaign: Annotated[Game24Campaign, tyro.conf.arg(name="")] = GAME24_CAMPAIGN,
    workers: Annotated[Workers, tyro.conf.arg(name="")] = WORKERS,
) -> None:
    """Learn the value of the known Game of 24, by D-TSN and by value-only training; test with more search.

    Safe to interrupt: rerun the same command to continue; results that exist are skipped.

    Example: dtsn reproduce game24 --variants dtsn-2000-T8 --seeds 1

    Args:
        campaign: what to run and where to put it.
        workers: who runs the jobs: one for each run.
    """
    from dtsn.reproduce.game24.run import run_campaign

    executor = workers.make()
    waiting = len(list(campaign.waiting()))
    total = len(campaign.cells())
    console().print(f"{waiting} of {total} runs to do, {workers.words}; logs in {campaign.runs}")
    ends = run_campaign(campaign, executor, command_line())
    report_ends("runs", waiting, ((f"{cell.variant} seed {cell.seed}", end) for cell, end in ends))
    done(f"wrote {campaign.results}", f"dtsn report --results {campaign.results.parent}")


def command_line() -> str:
    """Return what was typed, to be kept beside the rows."""
    return " ".join(["dtsn", *sys.argv[1:]])


def report_ends(title: str, total: int, ends: Iterable[tuple[str, str]]) -> None:
    """Print a line for each run (name, outcome) that ends, and a bar over all; exit with 1 if one failed."""
    failed = 0
    with progress(title) as update:
        update(0, total)
        try:
            for ended, (name, outcome) in enumerate(ends, 1):
                console().print(f"{name}: {outcome}")
                failed += outcome != "done"
                update(ended, total)
        except KeyboardInterrupt:
            stopped("stopped; nothing is lost", "rerun the same command to continue")
    if failed:
        sys.exit(1)


def report(
    results: Path = RESULTS,
    out: Path = REPORT / "results.md",
    budget: Literal["cpu", "day", "paper", "tiny"] | None = None,
) -> None:
    """Write tables and figures from the raw rows of dtsn reproduce.

    Writes a Markdown page for each of Navigation, Procgen, the Game of 24 and online learning, as far as
    there are rows.

    Example: dtsn report --results report/results --out report/results.md

    Args:
        results: folder with the raw rows of dtsn reproduce.
        out: Markdown file to write; its figures go to figures/ beside it, as do the other pages.
        budget: of the Procgen rows to show, each with a page of its own; all that have rows if not given.
    """
    from dtsn.reproduce.game24.report import PAGE, build_game24_report
    from dtsn.reproduce.navigation.report import build_navigation_report
    from dtsn.reproduce.online.report import build_online_report
    from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS
    from dtsn.reproduce.procgen.report import build_procgen_report

    written: list[Path] = []
    if (results / "navigation" / "rows").is_dir():
        written += build_navigation_report(results, out)
    for name in PROCGEN_BUDGETS if budget is None else (budget,):
        written += build_procgen_report(results, out.parent, name)
    written += build_game24_report(results / "game24", out.with_name(PAGE))
    if any((results / "online" / "rows").glob("*.json")):
        written += build_online_report(results / "online", out.with_name("online-results.md"))
    if not written:
        of_budget = f" ({budget} budget)" if budget else ""
        raise UserError(
            f"{results} has no rows of navigation, procgen{of_budget}, game24 or online: "
            "dtsn reproduce makes them"
        )
    done("wrote " + ", ".join(map(str, written)), f"read {written[0]}")
