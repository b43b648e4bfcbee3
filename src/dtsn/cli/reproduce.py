"""Experiments: the paper's tables, the pages about them, a short demonstration, what the search costs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dtsn.cli.evaluate import play_scenario
from dtsn.cli.options import Device, Domain, at_least_one, load, pick_device
from dtsn.cli.terminal import console, done, make_table, progress, stopped
from dtsn.cli.train import train
from dtsn.envs.navigation import NavigationOptions
from dtsn.pretrained import shipped
from dtsn.processes import prepare
from dtsn.reproduce.navigation.plan import Campaign
from dtsn.reproduce.navigation.variants import NAVIGATION, SHOWN_LEVEL, VARIANTS
from dtsn.reproduce.online.run import OnlineCampaign
from dtsn.reproduce.paper import PAPER_NAVIGATION
from dtsn.reproduce.procgen.run import ProcgenCampaign


def reproduce(
    domain: tyro.conf.Positional[Domain] = "navigation",
    campaign: Annotated[Campaign, tyro.conf.arg(name="")] = Campaign(),  # noqa: B008 (frozen)
    jobs: int = 2,
    figures: Path = Path("report/figures"),
) -> None:
    """Train and test everything behind the paper's tables; stop it at any time and start it again.

    Example: dtsn reproduce navigation --variants main --jobs 2

    Args:
        domain: which experiments.
        campaign: what to run and where to put it.
        jobs: single-threaded runs side by side; at most one per core pays.
        figures: folder for the pictures that need trained solvers.
    """
    from dtsn.reproduce.jobs import LocalProcesses
    from dtsn.reproduce.navigation.pictures import draw_figures
    from dtsn.reproduce.navigation.run import estimate_hours, run_campaign

    at_least_one(jobs=jobs)
    pick_device(campaign.device)  # an error now rather than in every run
    campaign.check_record()
    tasks = campaign.tasks()
    waiting = [task for task in tasks if not campaign.is_done(task)]
    cost = f": about {estimate_hours(campaign):.1f} hours of one core" if waiting else ""
    console().print(
        f"{len(waiting)} of {len(tasks)} runs to do, {jobs} at a time{cost}; logs in {campaign.runs}"
    )
    if waiting:
        campaign.write_record(command_line())
    ends = run_campaign(campaign, LocalProcesses(jobs))
    report_ends("runs", len(waiting), ((f"{task.variant} seed {task.seed}", end) for task, end in ends))
    draw_figures(campaign, figures)
    done(f"wrote {campaign.results}", f"dtsn report --results {campaign.results.parent}")


def reproduce_procgen(
    campaign: Annotated[ProcgenCampaign, tyro.conf.arg(name="")] = ProcgenCampaign(),  # noqa: B008 (frozen)
    jobs: int = 2,
) -> None:
    """Per game: train an expert, collect its data, train the solvers, test them. Stop and go on at any time.

    Example: dtsn reproduce procgen --games coinrun leaper maze starpilot --budget cpu

    Args:
        campaign: what to run and where to put it.
        jobs: games side by side, one thread each; at most one per core pays.
    """
    from dtsn.reproduce.procgen.run import check_record, run_campaign, write_meta

    at_least_one(jobs=jobs)
    pick_device(campaign.device)
    check_record(campaign)
    waiting = [game for game in campaign.games if not campaign.is_done(game)]
    hours = campaign.cost()
    cost = f"{hours / 24:.0f} days" if hours > 48 else f"{hours:.1f} hours"
    console().print(
        f"{len(waiting)} of {len(campaign.games)} games to do, budget {campaign.budget}: about {cost} of one "
        f"core, {jobs} game{'s' * (jobs > 1)} at a time; logs in {campaign.runs / campaign.budget}"
    )
    if waiting:
        write_meta(campaign, command_line())
    report_ends("games", len(waiting), run_campaign(campaign, jobs))
    done(
        f"wrote {campaign.results}",
        f"dtsn report --results {campaign.results.parent} --budget {campaign.budget}",
    )


def reproduce_online(
    campaign: Annotated[OnlineCampaign, tyro.conf.arg(name="")] = OnlineCampaign(),  # noqa: B008 (frozen)
    jobs: int = 2,
    out: Path = Path("report/online.md"),
) -> None:
    """Learn online by D-TSN, TreeQN and a plain DQN at equal environment steps. Stop and go on at any time.

    Example: dtsn reproduce online --tasks cartpole --seeds 5

    Args:
        campaign: what to run and where to put it.
        jobs: single-threaded runs side by side; at most one per core pays.
        out: Markdown page to write; its picture goes to figures/ beside it.
    """
    import dtsn.integrations.sb3  # noqa: F401 (an error now rather than in every run)
    from dtsn.reproduce.jobs import LocalProcesses
    from dtsn.reproduce.online.report import build_online_report
    from dtsn.reproduce.online.run import run_campaign

    at_least_one(jobs=jobs)
    waiting = [cell for cell in campaign.cells() if not campaign.path(cell).exists()]
    console().print(f"{len(waiting)} of {len(campaign.cells())} runs to do; logs in {campaign.runs}")
    ends = run_campaign(campaign, LocalProcesses(jobs), command_line())
    report_ends("runs", len(waiting), ((" ".join(map(str, cell)), end) for cell, end in ends))
    written = build_online_report(campaign.results, out)
    done(f"wrote {', '.join(map(str, written))}", f"open {out}")


def command_line() -> str:
    """What was typed, to be kept beside the rows."""
    return " ".join(["dtsn", *sys.argv[1:]])


def report_ends(title: str, total: int, ends: Iterable[tuple[str, str]]) -> None:
    """A line for each of the runs (name, outcome) that ends and a bar over all; exit code 1 if one failed."""
    failed = 0
    with progress(title) as update:
        update(0, total)
        try:
            for ended, (name, outcome) in enumerate(ends, 1):
                console().print(f"{name}: {outcome}")
                failed += outcome != "done"
                update(ended, total)
        except KeyboardInterrupt:
            stopped("stopped; nothing is lost", "the same command again goes on")
    if failed:
        sys.exit(1)


def report(
    results: Path = Path("results"),
    out: Path = Path("report/results.md"),
    budget: Literal["cpu", "paper", "tiny"] = "cpu",
) -> None:
    """Rebuild the tables and figures from the raw rows; trains and plays nothing.

    Writes a Markdown page for Navigation and one for Procgen, as far as there are rows.

    Example: dtsn report --results results --out report/results.md

    Args:
        results: folder with the raw rows of dtsn reproduce.
        out: Markdown file to write; its figures go to figures/ beside it, procgen-results.md too.
        budget: of the Procgen rows to show; other budgets than cpu have pages and figures of their own.
    """
    from dtsn.reproduce.navigation.report import build_navigation_report
    from dtsn.reproduce.procgen.report import build_procgen_report

    written: list[Path] = []
    if (results / "navigation" / "rows").is_dir():
        written += build_navigation_report(results, out)
    suffix = "" if budget == "cpu" else f"-{budget}"
    page = out.with_name(f"procgen-results{suffix}.md")
    if more := build_procgen_report(results, page, budget):
        written += more
    elif (results / "procgen" / "rows").is_dir():
        console().print(f"no rows of the {budget} budget in {results / 'procgen' / 'rows'}: see --budget")
    if not written:
        raise ValueError(
            f"{results} has no rows of navigation or procgen ({budget} budget): dtsn reproduce makes them"
        )
    done("wrote " + ", ".join(map(str, written)), f"read {written[-1]}")


def demo(out: Path = Path("demo"), levels: int = 2000, steps: int = 500, device: Device = "auto") -> None:
    """See it work, in a few minutes on two cores: play, look into a search, train.

    Plays fresh Navigation levels with the shipped D-TSN and Q-network, draws a search tree on a hall and
    trains a small D-TSN from scratch.

    Example: dtsn demo --levels 500

    Args:
        out: folder for the picture and the training run.
        levels: to play in each scenario.
        steps: of the small training run.
        device: auto takes CUDA where there is one.
    """
    from dtsn.evaluation.levels import unseen_levels
    from dtsn.evaluation.navigation import evaluate_navigation
    from dtsn.reproduce.navigation.pictures import draw_search
    from dtsn.training.trainer import has_run

    prepare()
    solvers = {name: load(shipped(name), device) for name in ("dtsn", "qnet")}
    table = make_table(f"{levels} unseen halls each; trained on 1000 trajectories with two exits only")
    for exits in (2, 1):
        for name, solver in solvers.items():
            title = f"{VARIANTS[name].title}, {exits} exit{'s' * (exits - 1)}"
            paper = f"{PAPER_NAVIGATION[name, exits, 10].success}%"
            play_scenario(table, title, solver, "test", levels, NavigationOptions(exits=exits), paper=paper)
    console().print(table)
    picture = draw_search(solvers["dtsn"], SHOWN_LEVEL, NavigationOptions(exits=1), out / "search.png")
    console().print(f"the search tree of one decision: {picture}")
    config = replace(NAVIGATION, steps=steps, search_warmup=steps // 2)
    run = out / "run"
    train(config, data=out / "navigation.h5", run=run, resume=has_run(run), device=device)
    rows = evaluate_navigation(load(run, device), unseen_levels("validation", 200), NavigationOptions())
    rate = sum(row.success for row in rows) / len(rows)
    console().print(f"after {steps} steps the new D-TSN solves {100 * rate:.0f}% of 200 halls with two exits")
    done(f"wrote {out}", "dtsn train (a full run), dtsn reproduce navigation (the paper's tables)")


def bench(
    out: Path = Path("results/bench.json"),
    page: Path = Path("docs/performance.md"),
    quick: bool = False,
    compile: bool = False,
    threads: int = 1,
) -> None:
    """Measure what the search costs, as ratios against plain calls of the same modules.

    Example: dtsn bench --quick --out bench.json --page performance.md

    Args:
        out: JSON file with the ratios and all rows behind them.
        page: Markdown file made of it; its figure goes to figures/ beside it.
        quick: only the headline, in less than a minute.
        compile: also act through torch.compile, which takes a minute to compile.
        threads: small networks are fastest with one.
    """
    from dtsn.bench.measure import run_bench
    from dtsn.bench.page import TARGETS, write_bench

    prepare(threads)
    result = run_bench(quick=quick, compiled=compile, progress=console().print)
    for name, found in result["ratios"].items():
        target = TARGETS[name]
        sign, verdict = "≤" if target.at_most else "≥", target.verdict(found["value"])
        console().print(f"{target.title}: {found['value']:.2f} (target {sign} {target.limit:g}: {verdict})")
    written = write_bench(result, out, page)
    done("wrote " + ", ".join(map(str, written)), f"read {page}")
