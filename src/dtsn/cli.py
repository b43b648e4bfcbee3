"""The command line: the only place that wires things together and prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dtsn.campaign import Campaign
from dtsn.config import Rule, TrainConfig
from dtsn.envs.navigation import NavigationOptions
from dtsn.experiments import NAVIGATION

Device = Literal["auto", "cpu", "cuda"]
Domain = Literal["navigation"]
DATA = Path("data/navigation.h5")


def collect(
    domain: tyro.conf.Positional[Domain] = "navigation",
    out: Path = DATA,
    episodes: int = 1000,
    exits: Literal[1, 2] = 2,
    exit_layout: Literal["independent", "opposite"] = "independent",
    discount: float = 1.0,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Play the expert and write its trajectories as a data set.

    Example: dtsn collect navigation --episodes 1000 --out data/navigation.h5

    Args:
        domain: what to play; navigation is solved by value iteration.
        out: the HDF5 file to write.
        episodes: trajectories, each on a level of its own.
        exits: of the hall.
        exit_layout: exits anywhere on the hall's walls, or on opposite sides (harder to generalise from).
        discount: of the returns-to-go; the paper does not discount.
        seed: draws the levels and decides between equally short ways.
        overwrite: replace an existing file.
    """
    from dtsn.collect import collect_navigation

    options = NavigationOptions(exits=exits, exit_layout=exit_layout)
    out.parent.mkdir(parents=True, exist_ok=True)
    with progress(f"collecting {episodes} {domain} episodes") as update:
        path = collect_navigation(
            out,
            episodes=episodes,
            options=options,
            seed=seed,
            discount=discount,
            overwrite=overwrite,
            progress=update,
        )
    done(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", f"dtsn train --data {path}")


def train(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = NAVIGATION,
    data: Path = DATA,
    run: Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Train a solver on a data set; without arguments, D-TSN on Navigation.

    The run folder holds config.json, metrics.jsonl, TensorBoard events and checkpoints. Ctrl-C saves a
    checkpoint; --resume goes on from the newest one and ends bitwise where an uninterrupted run would.

    Example: dtsn train --solver.name qnet --run runs/qnet --steps 3000

    Args:
        config: every number of the run.
        data: a data set made by dtsn collect (Navigation's is collected if it is missing).
        run: the run folder; runs/SOLVER-SEED if not given.
        resume: go on with the run in the folder.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    from dtsn.checkpoint import latest_checkpoint
    from dtsn.data import Dataset
    from dtsn.training import Trainer, train_run

    set_threads(threads)
    if data.name == DATA.name and not data.exists():
        collect(out=data)
    run = run or Path("runs") / f"{config.solver.name}-{config.seed}"
    with Dataset(data) as dataset:
        chosen = pick_device(device)
        trainer = Trainer(config, dataset.observation_shape, dataset.num_actions, chosen)
        console().print(f"{config.solver.name} on {data} ({len(dataset)} transitions), {chosen}, into {run}")
        steps = train_run(run, trainer, dataset, resume=resume)
        with progress(f"training {config.solver.name}") as update:
            try:
                for metrics in steps:
                    shown = ("loss", "q", "cql", "transition", "reward")
                    terms = " ".join(f"{name} {metrics[name]:.3f}" for name in shown if name in metrics)
                    update(int(metrics["step"]), config.steps, terms)
            except KeyboardInterrupt:
                steps.close()  # type: ignore[attr-defined]
                newest = latest_checkpoint(run / "checkpoints")
                step = newest.name.removeprefix("step-") if newest else "0"
                console().print(f"\nstopped at step {step}{', checkpoint saved' if newest else ''}")
                done(f"{run}", f"dtsn train --data {data} --run {run} --resume (and the same settings)")
                sys.exit(130)
    done(f"wrote {run}", f"dtsn eval {run}")


def eval_(
    run: tyro.conf.Positional[Path | None] = None,
    levels: int = 1000,
    split: Literal["validation", "test"] = "test",
    exit_layout: Literal["independent", "opposite"] = "independent",
    iterations: int | None = None,
    rule: Rule | None = None,
    out: Path | None = None,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Play fresh Navigation levels with a trained solver, both with two exits and with one.

    Example: dtsn eval runs/dtsn-0 --levels 10000 --iterations 50

    Args:
        run: a run folder or a checkpoint; the shipped D-TSN if not given.
        levels: to play in each scenario, one episode each.
        split: test levels, or validation levels while you are still choosing settings.
        exit_layout: of the levels.
        iterations: expansions of the search when acting; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        out: folder for the raw rows, one line per episode; RUN/evaluation if not given.
        seed: of the sampled expansions; the same seed gives the same rows.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    from dtsn.evaluation import evaluate_navigation, first_levels, write_rows
    from dtsn.training import load_solver

    set_threads(threads)
    changes: dict[str, Any] = {}
    if iterations is not None:
        changes["act_iterations"] = iterations
    if rule is not None:
        changes["act_rule"] = rule
    solver = load_solver(run or shipped("dtsn"), pick_device(device), **changes)
    table = make_table(f"{solver.config.name}, T = {solver.act_iterations}, {levels} {split} levels")
    out = out or (run / "evaluation" if run else None)
    for exits in (2, 1):
        options = NavigationOptions(exits=exits, exit_layout=exit_layout)
        with progress(f"{exits} exit{'s' * (exits - 1)}") as update:
            rows = evaluate_navigation(
                solver, first_levels(split, levels), options, seed=seed, progress=update
            )
        add_result(table, f"{exits} exit{'s' * (exits - 1)}", rows)
        if out is not None:
            write_rows(out / f"exits-{exits}-T{solver.act_iterations}.csv.gz", rows)
    console().print(table)
    done(f"wrote {out}" if out else "nothing written", "dtsn report, or dtsn eval --iterations 50")


def export(run: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path]) -> None:
    """Write the solver of a run alone: a small folder that loads with dtsn.load_solver and dtsn eval.

    Example: dtsn export runs/dtsn-0 my-solver

    Args:
        run: a run folder or a checkpoint.
        out: the folder to write.
    """
    from dtsn.training import export_solver

    export_solver(run, out)
    done(f"wrote {out}", f"dtsn eval {out}")


def reproduce(
    domain: tyro.conf.Positional[Domain] = "navigation",
    campaign: Annotated[Campaign, tyro.conf.arg(name="")] = Campaign(),  # noqa: B008 (frozen)
    jobs: int = 2,
    figures: Path = Path("docs/figures"),
) -> None:
    """Train and test everything behind the paper's tables; stop it at any time and start it again.

    Example: dtsn reproduce navigation --jobs 2 --seeds 3

    Args:
        domain: which experiments.
        campaign: what to run and where to put it.
        jobs: single-threaded runs side by side; at most one per core pays.
        figures: folder for the pictures that need trained solvers.
    """
    from dtsn.campaign import draw_figures, run_campaign, write_meta

    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    tasks = campaign.tasks()
    waiting = [task for task in tasks if campaign.missing(*task)]
    console().print(
        f"{len(waiting)} of {len(tasks)} runs to do, {campaign.steps} steps each, {jobs} at a time; "
        "on one core a run takes 5 to 20 minutes"
    )
    write_meta(campaign, " ".join(["dtsn", *sys.argv[1:]]))
    failed = 0
    with progress("runs") as update:
        update(0, len(waiting))
        try:
            for ended, (variant, seed, outcome) in enumerate(run_campaign(campaign, jobs), 1):
                console().print(f"{variant} seed {seed}: {outcome}")
                failed += outcome != "done"
                update(ended, len(waiting))
        except KeyboardInterrupt:
            done("stopped; nothing is lost", "the same command again goes on")
            sys.exit(130)
    if failed:
        sys.exit(1)
    if {("qnet", 0), ("dtsn", 0)} <= set(tasks):
        draw_figures(campaign, figures)
    done(f"wrote {campaign.results}", "dtsn report")


def report(results: Path = Path("results"), out: Path = Path("docs/results.md")) -> None:
    """Rebuild the tables and figures from the raw rows; trains and plays nothing.

    Example: dtsn report --results results --out docs/results.md

    Args:
        results: folder with the raw rows of dtsn reproduce.
        out: Markdown file to write; its figures go to figures/ beside it.
    """
    from dtsn.report import build_navigation_report

    written = build_navigation_report(results, out)
    done("wrote " + ", ".join(map(str, written)), f"read {out}")


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
    import torch

    from dtsn.campaign import SHOWN_LEVEL, draw_search
    from dtsn.evaluation import evaluate_navigation, first_levels
    from dtsn.experiments import NAVIGATION_VARIANTS, PAPER_NAVIGATION
    from dtsn.training import load_solver

    torch.set_num_threads(1)
    chosen = pick_device(device)
    solvers = {name: load_solver(shipped(name), chosen) for name in ("dtsn", "qnet")}
    table = make_table(f"{levels} unseen halls each; trained on 1000 trajectories with two exits only")
    for exits in (2, 1):
        for name, solver in solvers.items():
            title = f"{NAVIGATION_VARIANTS[name].title}, {exits} exit{'s' * (exits - 1)}"
            with progress(title) as update:
                options = NavigationOptions(exits=exits)
                rows = evaluate_navigation(solver, first_levels("test", levels), options, progress=update)
            add_result(table, title, rows, f"{PAPER_NAVIGATION[name, exits, 10].success}%")
    console().print(table)
    picture = draw_search(solvers["dtsn"], SHOWN_LEVEL, out / "search.png")
    console().print(f"the search tree of one decision: {picture}")
    config = replace(NAVIGATION, steps=steps, search_warmup=steps // 2)
    train(config, data=out / "navigation.h5", run=out / "run", resume=True, device=device)
    solver = load_solver(out / "run", chosen)
    rows = evaluate_navigation(solver, first_levels("validation", 200), NavigationOptions())
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
    import torch

    from dtsn.bench import TARGETS, run_bench, write_bench

    torch.set_num_threads(threads)
    result = run_bench(quick=quick, compiled=compile, progress=console().print)
    for name, found in result["ratios"].items():
        target = TARGETS[name]
        sign, verdict = "≤" if target.at_most else "≥", target.verdict(found["value"])
        console().print(f"{target.title}: {found['value']:.2f} (target {sign} {target.limit:g}: {verdict})")
    written = write_bench(result, out, page)
    done("wrote " + ", ".join(map(str, written)), f"read {page}")


# --- what the commands share -------------------------------------------------------------------------


def shipped(solver: str) -> Path:
    """A checkpoint that comes with the package."""
    return Path(__file__).parent / "pretrained" / f"navigation-{solver}"


def pick_device(device: Device) -> str:
    """The device to run on; asking for CUDA where there is none is an error."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' is not available here: use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def set_threads(threads: int) -> None:
    """Threads of this process."""
    import torch

    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)


def console() -> Any:
    """The terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


@contextmanager
def progress(title: str) -> Iterator[Callable[..., None]]:
    """A bar with the time that is left; yields ``update(done, total, text="")``."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=console()) as bar:
        task = bar.add_task(title, total=None, text="")

        def update(completed: int, total: int, text: str = "") -> None:
            bar.update(task, completed=completed, total=total, text=text)

        yield update


def make_table(title: str) -> Any:
    """An empty table of Navigation results."""
    from rich.table import Table

    table = Table(title=title)
    for column in ("levels", "success", "95% interval", "collision", "time-out", "paper"):
        table.add_column(column, justify="left" if column == "levels" else "right")
    return table


def add_result(table: Any, title: str, rows: list[Any], paper: str = "") -> None:
    """A line of a table of Navigation results."""
    from dtsn.report import wilson

    count = len(rows)
    success, collision = sum(r.success for r in rows), sum(r.collision for r in rows)
    low, high = wilson(success, count)
    rates = [success / count, collision / count, (count - success - collision) / count]
    shown = [f"{100 * rate:.1f}%" for rate in rates]
    table.add_row(title, shown[0], f"{100 * low:.1f} to {100 * high:.1f}", *shown[1:], paper)


def done(what: str, then: str) -> None:
    """The last line of a command: what it wrote and what to run next."""
    console().print(f"{what}\nnext: {then}")


COMMANDS: dict[str, Callable[..., None]] = {
    "collect": collect,
    "train": train,
    "eval": eval_,
    "export": export,
    "reproduce": reproduce,
    "report": report,
    "demo": demo,
    "bench": bench,
}


def main() -> None:
    """Entry point of ``dtsn``."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="dtsn",
            description="Differentiable Tree Search Network: a Q-network that plans.",
        )
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        print(f"dtsn: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
