"""The command line: the only place that wires things together and prints."""

from __future__ import annotations

import functools
import inspect
import io
import sys
import webbrowser
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dtsn.campaign import SHOWN_LEVEL, Campaign
from dtsn.config import PPG_CPU, PPGConfig, Rule, TrainConfig
from dtsn.envs.navigation import NavigationOptions
from dtsn.experiments import NAVIGATION, PROCGEN_BUDGETS
from dtsn.processes import prepare
from dtsn.procgen_campaign import ProcgenCampaign
from dtsn.terminal import (
    add_result,
    console,
    did_you_mean,
    done,
    in_one_line,
    make_table,
    pairs,
    progress,
)

if TYPE_CHECKING:
    from dtsn.inspection import Document
    from dtsn.solvers import Solver

Device = Literal["auto", "cpu", "cuda"]
Domain = Literal["navigation"]
Layout = Literal["independent", "opposite"]
DATA = Path("data/navigation.h5")
MINARI_ID = "navigation/expert-v0"


def collect(
    domain: tyro.conf.Positional[Domain] = "navigation",
    out: Path = DATA,
    episodes: int = 1000,
    exits: Literal[1, 2] = 2,
    exit_layout: Layout = "independent",
    discount: float = 1.0,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Play the expert and write its trajectories as a data set; dtsn collect procgen --help for Procgen.

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
    validate_levels: int = 0,
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
        validate_levels: to play at each checkpoint (validation split), so that the best one is kept; 0: none.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    if data.name == DATA.name and not data.exists():
        collect(out=data)
    run = run or Path("runs") / f"{config.solver.name}-{config.seed}"
    fit(config, data, run, resume, validate_levels, device, threads)
    done(f"wrote {run}", f"dtsn eval {run}")


def train_procgen(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = PROCGEN_BUDGETS["cpu"].train,
    data: Path = Path("data/coinrun.h5"),
    run: Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Train a solver on a Procgen data set; the defaults are those of the CPU budget.

    Example: dtsn train procgen --data data/coinrun.h5 --solver.name qnet --run runs/coinrun-qnet

    Args:
        config: every number of the run.
        data: a data set made by dtsn collect procgen.
        run: the run folder; runs/DATA-SOLVER-SEED if not given.
        resume: go on with the run in the folder.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    run = run or Path("runs") / f"{data.stem}-{config.solver.name}-{config.seed}"
    fit(config, data, run, resume, 0, device, threads)
    done(f"wrote {run}", f"dtsn eval procgen {run} --game {data.stem}")


def fit(
    config: TrainConfig,
    data: Path,
    run: Path,
    resume: bool,
    validate_levels: int,
    device: Device,
    threads: int,
) -> None:
    """Train with a progress bar; Ctrl-C saves and says how to go on."""
    from dtsn.checkpoint import best_checkpoint, latest_checkpoint, load_state
    from dtsn.data import Dataset
    from dtsn.training import Trainer, train_run

    prepare(threads)
    with Dataset(data) as dataset:
        if dataset.header["env_id"] == "dtsn/Procgen-v0" and config.network.encoder in ("grid", "paths"):
            raise ValueError(f"{data} holds frames of Procgen: use dtsn train procgen --data {data}")
        chosen = pick_device(device)
        trainer = Trainer(config, dataset.observation_shape, dataset.num_actions, chosen)
        console().print(f"{config.solver.name} on {data} ({len(dataset)} transitions), {chosen}, into {run}")
        validate = navigation_score(dataset.header, validate_levels) if validate_levels else None
        steps = train_run(run, trainer, dataset, resume=resume, validate=validate)
        with progress(f"training {config.solver.name}") as update:
            try:
                for metrics in steps:
                    shown = ("loss", "q", "cql", "transition", "reward")
                    terms = " ".join(f"{name} {metrics[name]:.3f}" for name in shown if name in metrics)
                    update(int(metrics["step"]), config.steps, terms)
            except KeyboardInterrupt:
                steps.close()  # type: ignore[attr-defined]
                newest = latest_checkpoint(run / "checkpoints")
                step = load_state(newest)["step"] if newest else 0
                console().print(f"\nstopped at step {step}{', checkpoint saved' if newest else ''}")
                done(f"{run}", f"dtsn train --data {data} --run {run} --resume (and the same settings)")
                sys.exit(130)
    best = best_checkpoint(run / "checkpoints")
    if best is not None:
        console().print(f"best by validation: {best} ({100 * load_state(best)['validation']:.1f}% success)")


def collect_procgen(
    game: str = "coinrun",
    mode: str = "easy",
    expert: Path | None = None,
    policy: Literal["expert", "random"] = "expert",
    out: Path | None = None,
    episodes: int = 1000,
    keep: Literal["successful", "all"] = "successful",
    num_levels: int = 0,
    discount: float = 1.0,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Play a Procgen game with a trained expert and write its successful episodes as a data set.

    Ctrl-C, or anything worse, loses nothing: the same command again goes on with the episodes that there are.

    Example: dtsn collect procgen --game coinrun --expert runs/expert-coinrun --episodes 1000

    Args:
        game: one of the 16 games.
        mode: easy, or hard as the paper's data; the one that the expert has learned.
        expert: a run folder of dtsn expert; runs/expert-GAME if not given.
        policy: the expert, its actions sampled, or random actions to try things out.
        out: the HDF5 file to write; data/GAME.h5 if not given.
        episodes: to keep.
        keep: only episodes that completed their level, as the paper does, or all.
        num_levels: of the training levels to play on; 0: no limit.
        discount: of the returns-to-go; 1 as the paper says, 0.99 as its authors' script does.
        seed: draws the levels and the actions.
        overwrite: replace an existing file.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    from dtsn import collect as collection
    from dtsn.envs.procgen import ProcgenOptions
    from dtsn.experts.ppg import load_expert

    prepare(threads)
    options = ProcgenOptions(game, mode)
    out = out or Path("data") / f"{game}.h5"
    folder = expert or Path("runs") / f"expert-{game}"
    player = None if policy == "random" else load_expert(folder, pick_device(device))
    with progress(f"collecting {episodes} {game} episodes") as update:
        collection.collect_procgen(
            out,
            options,
            player,
            episodes=episodes,
            keep=keep,
            num_levels=num_levels,
            seed=seed,
            discount=discount,
            overwrite=overwrite,
            progress=update,
        )
    done(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)", f"dtsn train procgen --data {out}")


def expert(
    domain: tyro.conf.Positional[Literal["procgen"]] = "procgen",
    config: Annotated[PPGConfig, tyro.conf.arg(name="")] = PPG_CPU,
    run: Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Train the behaviour policy that Procgen data are collected with: Phasic Policy Gradient.

    The defaults are what one core learns in minutes; docs/procgen.md has the settings of the paper. Ctrl-C
    saves a checkpoint; --resume goes on from the newest one with new episodes. --resume with more --steps
    prolongs a run.

    Example: dtsn expert procgen --game coinrun --steps 300000

    Args:
        domain: what to learn.
        config: every number of the run.
        run: the run folder; runs/expert-GAME if not given.
        resume: go on with the run in the folder.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    from dtsn.checkpoint import latest_checkpoint
    from dtsn.experts.ppg import train_expert

    prepare(threads)
    run = run or Path("runs") / f"expert-{config.game}"
    steps = train_expert(run, config, resume=resume, device=pick_device(device))
    with progress(f"{config.game} {config.mode}") as update:
        update(0, config.steps)
        try:
            for metrics in steps:
                shown = {"return": ".2f", "success": ".0%", "entropy": ".2f", "fps": ".0f"}
                terms = [f"{name} {metrics[name]:{form}}" for name, form in shown.items() if name in metrics]
                update(min(int(metrics["step"]), config.steps), config.steps, " ".join(terms))
        except KeyboardInterrupt:
            steps.close()  # type: ignore[attr-defined]
            saved = latest_checkpoint(run / "checkpoints")
            console().print(f"\nstopped, {f'saved {saved}' if saved else 'before the first checkpoint'}")
            done(f"{run}", f"dtsn expert procgen --run {run} --resume (and the same settings)")
            sys.exit(130)
    then = f"dtsn collect procgen --game {config.game} --mode {config.mode} --expert {run}"
    done(f"wrote {run}", then)


def navigation_score(header: dict[str, Any], levels: int) -> Callable[[Solver], float]:
    """Success on the first validation levels, of the kind that a Navigation data set was collected on."""
    from dtsn.evaluation import evaluate_navigation, first_levels

    if header["env_id"] != "dtsn/Navigation-v0":
        raise ValueError(f"--validate-levels needs data of Navigation, not {header['env_id']}: leave it out")
    chosen = first_levels("validation", levels)
    stored: dict[str, Any] = header["env_options"]  # JSON has no tuples
    options = NavigationOptions(**stored | {"hall": tuple(stored["hall"])})

    def score(solver: Solver) -> float:
        rows = evaluate_navigation(solver, chosen, options)
        return sum(row.success for row in rows) / len(rows)

    return score


def eval_(
    run: tyro.conf.Positional[Path | None] = None,
    levels: int = 1000,
    split: Literal["validation", "test"] = "test",
    exit_layout: Layout = "independent",
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

    prepare(threads)
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
    done(
        f"wrote {out}" if out else "nothing written",
        "dtsn play (watch an episode), dtsn eval --iterations 50",
    )


def eval_procgen(
    run: tyro.conf.Positional[Path],
    game: str = "coinrun",
    mode: str = "easy",
    levels: int = 500,
    split: Literal["validation", "test"] = "test",
    iterations: int | None = None,
    rule: Rule | None = None,
    out: Path | None = None,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Play unseen levels of a Procgen game with a trained solver, one episode each.

    Example: dtsn eval procgen runs/coinrun-dtsn --game coinrun --levels 500

    Args:
        run: a run folder or a checkpoint.
        game: one of the 16 games.
        mode: easy, or hard as in the paper.
        levels: to play, one episode each.
        split: test levels, or validation levels while you are still choosing settings.
        iterations: expansions of the search when acting; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        out: folder for the raw rows, one line per episode; RUN/evaluation if not given.
        seed: of the sampled expansions; the same seed gives the same rows.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    import numpy as np

    from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, ProcgenOptions, split_range
    from dtsn.evaluation import evaluate_procgen, solver_policy, write_rows
    from dtsn.training import load_solver

    prepare(threads)
    options = ProcgenOptions(game, mode)
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    changes = {"act_iterations": iterations, "act_rule": rule}
    solver = load_solver(
        run, pick_device(device), **{name: value for name, value in changes.items() if value is not None}
    )
    actions = solver.world_model.num_actions
    if solver.observation_shape != FRAME_SHAPE or actions != NUM_ACTIONS:
        raise ValueError(
            f"{run} sees observations {solver.observation_shape} and has {actions} actions; "
            f"Procgen has {FRAME_SHAPE} and {NUM_ACTIONS}: train on a data set of dtsn collect procgen"
        )
    seeds = np.arange(*split_range(split, levels))
    with progress(f"{game} ({mode})") as update:
        rows = evaluate_procgen(solver_policy(solver, seeds, seed), options, seeds, progress=update)
    scores = np.array([row.score for row in rows])
    complete = sum(row.complete for row in rows) / len(rows)
    half = 1.96 * scores.std() / len(scores) ** 0.5
    console().print(
        f"{solver.config.name}, T = {solver.act_iterations}, {levels} {split} levels of {game} ({mode}): "
        f"mean score {scores.mean():.2f} ± {half:.2f} (95%), {complete:.0%} completed"
    )
    path = (out or run / "evaluation") / f"{game}-{mode}-T{solver.act_iterations}.csv.gz"
    done(f"wrote {write_rows(path, rows)}", "dtsn reproduce procgen (all solvers, with a report)")


def plan(
    run: tyro.conf.Positional[Path | None] = None,
    state: Path | None = None,
    level: int = SHOWN_LEVEL,
    exits: Literal[1, 2] = 1,
    exit_layout: Layout = "independent",
    time: int = 0,
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
    out: Path | None = None,
    lines: int = 40,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Look into one search: the tree, how likely each expansion was, the values, the planned way.

    What is shown is what the solver does in dtsn eval at the same level, step and seed.

    Example: dtsn plan --level 2000003 --exits 1 --out tree.svg

    Args:
        run: a run folder or a checkpoint; the shipped D-TSN if not given.
        state: instead of a level, an observation (.npy) or a search that was written as .json. The latter
            is shown as it is, unless run, iterations, rule or temperature ask for a new search of its hall.
        level: of Navigation; test levels are 2000000 to 2999999.
        exits: of the hall.
        exit_layout: of the level.
        time: step of the episode; the solver itself drives there.
        iterations: expansions of the search, at most 1000; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        temperature: of the expansion policy; as trained if not given.
        out: also write the search as a picture (.svg, .png) or as data (.json).
        lines: nodes to show in the terminal; the rest is counted.
        seed: of the sampled expansions.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    if out is not None and out.suffix not in (".svg", ".png", ".json"):
        raise ValueError(f"out must end in .svg, .png or .json, got {out}")
    if lines < 1:
        raise ValueError(f"lines must be at least 1, got {lines}")
    from dtsn.inspection import describe_navigation, write_search
    from dtsn.textview import search_text

    prepare(threads)
    search: dict[str, Any] = {"iterations": iterations, "rule": rule, "temperature": temperature}
    if state is None:
        options = NavigationOptions(exits=exits, exit_layout=exit_layout)
        solver = load(run, device)
        document = describe_navigation(solver, level, options, time=time, seed=seed, **search)
    else:
        document = plan_state(state, run, device, seed, search)
    console().print(search_text(document, lines, console().width))
    if out is None:
        return done("nothing written", "dtsn plan --out tree.svg (or .png, .json), dtsn play")
    if out.suffix == ".json":
        write_search(out, document)
    else:
        from dtsn.plots import search_figure

        search_figure(document, out)
    again = f"dtsn plan --state {out}" if out.suffix == ".json" else "dtsn play"
    done(f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)", again)


def plan_state(state: Path, run: Path | None, device: Device, seed: int, search: dict[str, Any]) -> Document:
    """The search of a saved state: as it was written, or anew where something else is asked for."""
    from dtsn.inspection import describe_observation, read_search, search_again

    if state.suffix == ".npy":
        return describe_observation(load(run, device), state, seed=seed, **search)
    if state.suffix != ".json":
        raise ValueError(f"state must end in .json or .npy, got {state}")
    document = read_search(state)
    if run is None and not any(search.values()):
        return document
    return search_again(load(run, device), document, seed=seed, **search)


def play(
    run: tyro.conf.Positional[Path | None] = None,
    level: int = SHOWN_LEVEL,
    exits: Literal[1, 2] = 1,
    exit_layout: Layout = "independent",
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
    out: Path | None = None,
    delay: float = 0.25,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Watch an episode: the hall, the way that each search plans, and its Q-values.

    It is the episode that dtsn eval plays at the same level and seed.

    Example: dtsn play --level 2000003 --exits 1 --out episode.gif

    Args:
        run: a run folder or a checkpoint; the shipped D-TSN if not given.
        level: of Navigation; test levels are 2000000 to 2999999.
        exits: of the hall.
        exit_layout: of the level.
        iterations: expansions of each search, at most 1000; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        temperature: of the expansion policy; as trained if not given.
        out: write an animation (.gif) instead of showing the episode here.
        delay: seconds per step.
        seed: of the sampled expansions.
        device: auto takes CUDA where there is one.
        threads: small networks are fastest with one.
    """
    if out is not None and out.suffix != ".gif":
        raise ValueError(f"out must end in .gif, got {out}")
    if not 0 <= delay <= 60:
        raise ValueError(f"delay must be from 0 to 60 seconds, got {delay}")
    from dtsn.inspection import watch_navigation

    prepare(threads)
    options = NavigationOptions(exits=exits, exit_layout=exit_layout)
    search: dict[str, Any] = {"iterations": iterations, "rule": rule, "temperature": temperature}
    decisions = watch_navigation(load(run, device), level, options, seed=seed, **search)
    if out is None:
        from dtsn.textview import show_episode

        steps, outcome = show_episode(decisions, console(), delay)
    else:
        from dtsn.plots import episode_gif

        frames = []
        with progress(f"playing level {level}") as update:
            for frame in decisions:
                frames.append(frame)
                update(len(frames), options.max_steps)
        steps, outcome = len(frames), frames[-1][1]
        episode_gif(frames, out, delay)
    console().print(f"{outcome} after {steps} steps")
    last = f"dtsn plan --level {level} --exits {exits} --time {steps - 1}"
    done(f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)" if out else "nothing written", last)


def export(
    run: tyro.conf.Positional[Path] = Path("runs/dtsn-0"), out: tyro.conf.Positional[Path] = Path("solver")
) -> None:
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
        f"{len(waiting)} of {len(tasks)} runs to do, {jobs} at a time; "
        "on one core a run takes 5 to 20 minutes"
    )
    if waiting:
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
    from dtsn.procgen_campaign import run_campaign, write_meta

    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    waiting = [game for game in campaign.games if campaign.missing(game)]
    hours = campaign.cost()
    cost = f"{hours / 24:.0f} days" if hours > 48 else f"{hours:.1f} hours"
    console().print(
        f"{len(waiting)} of {len(campaign.games)} games to do, budget {campaign.budget}: about {cost} of one "
        f"core, {jobs} game{'s' * (jobs > 1)} at a time; logs in {campaign.runs / campaign.budget}"
    )
    if waiting:
        write_meta(campaign, " ".join(["dtsn", *sys.argv[1:]]))
    failed = 0
    with progress("games") as update:
        update(0, len(waiting))
        try:
            for ended, (game, outcome) in enumerate(run_campaign(campaign, jobs), 1):
                console().print(f"{game}: {outcome}")
                failed += outcome != "done"
                update(ended, len(waiting))
        except KeyboardInterrupt:
            done("stopped; nothing is lost", "the same command again goes on")
            sys.exit(130)
    if failed:
        sys.exit(1)
    done(f"wrote {campaign.results}", f"dtsn report --budget {campaign.budget}")


def report(
    results: Path = Path("results"),
    out: Path = Path("docs/results.md"),
    budget: Literal["cpu", "paper", "tiny"] = "cpu",
) -> None:
    """Rebuild the tables and figures from the raw rows; trains and plays nothing.

    Writes a Markdown page for Navigation and one for Procgen, and both in one HTML file that needs no other.

    Example: dtsn report --results results --out docs/results.md

    Args:
        results: folder with the raw rows of dtsn reproduce.
        out: Markdown file to write; its figures go to figures/ beside it, procgen-results.md too.
        budget: of the Procgen rows to show.
    """
    from dtsn.pages import write_html
    from dtsn.procgen_report import build_procgen_report
    from dtsn.report import build_navigation_report

    written = build_navigation_report(results, out)
    procgen = out.with_name("procgen-results.md")
    more = build_procgen_report(results, procgen, budget)
    html = write_html(out.with_suffix(".html"), [out, *([procgen] if more else [])], "dtsn: results")
    done("wrote " + ", ".join(map(str, [*written, *more, html])), f"open {html}")


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

    from dtsn.campaign import draw_search
    from dtsn.evaluation import evaluate_navigation, first_levels
    from dtsn.experiments import NAVIGATION_VARIANTS, PAPER_NAVIGATION
    from dtsn.training import has_run, load_solver

    prepare()
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
    run = out / "run"
    train(config, data=out / "navigation.h5", run=run, resume=has_run(run), device=device)
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

    from dtsn.bench import run_bench
    from dtsn.bench_page import TARGETS, write_bench

    prepare(threads)
    result = run_bench(quick=quick, compiled=compile, progress=console().print)
    for name, found in result["ratios"].items():
        target = TARGETS[name]
        sign, verdict = "≤" if target.at_most else "≥", target.verdict(found["value"])
        console().print(f"{target.title}: {found['value']:.2f} (target {sign} {target.limit:g}: {verdict})")
    written = write_bench(result, out, page)
    done("wrote " + ", ".join(map(str, written)), f"read {page}")


def view(
    runs: Path = Path("runs"),
    host: str = "127.0.0.1",
    port: int = 8765,
    browser: Annotated[bool, tyro.conf.arg(aliases=["--open"])] = False,
    device: Device = "auto",
) -> None:
    """Show how trained solvers search: a local web page, until Ctrl-C.

    Shows the shipped solvers and the runs below a folder (Navigation, or Procgen with dtsn[procgen]): the
    hall or the frame, the search tree as it grows, the Q-values after every iteration, and two solvers side
    by side.

    Example: dtsn view --runs runs --open

    Args:
        runs: folder with run folders; nothing outside of it is read.
        host: address to listen on; the default is reachable from this machine only.
        port: to listen on; 0 takes a free one.
        browser: open the page in the browser.
        device: auto takes CUDA where there is one.
    """
    try:
        from dtsn.viewer.server import is_loopback, serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"dtsn view needs FastAPI, uvicorn and pillow ({error}): pip install 'dtsn[viewer]'"
        ) from error

    def ready(address: str) -> None:
        print(f"dtsn view is at {address}", flush=True)
        if not is_loopback(host):
            print(
                f"warning: other machines that reach {host} can use it too: there is no password", flush=True
            )
        if browser:
            webbrowser.open(address)

    prepare()
    serve(runs, host, port, pick_device(device), ready)
    print("stopped")


def doctor(folder: Path = Path(), device: Device = "auto") -> None:
    """Say what is installed, what is missing and how to get it, and whether the core works.

    Plays a few levels with the shipped solvers and writes a file that it removes. The exit code is 0 if the
    core works and 1 if it does not; missing extras do not count.

    Example: dtsn doctor

    Args:
        folder: where to try to write.
        device: auto takes CUDA where there is one.
    """
    from dtsn.doctor import examine

    prepare()
    bad = 0
    style = {"ok": "green", "missing": "yellow", "bad": "bold red"}
    for finding in examine(folder, pick_device(device)):
        bad += finding.state == "bad"
        state = f"[{style[finding.state]}]{finding.state:<8}[/]"
        console().print(f"{state}{finding.name:<18}", end="")
        console().print(finding.text, markup=False)
    if bad:
        done(f"{bad} of the findings above must be mended", "pip install --force-reinstall dtsn")
        sys.exit(1)
    done("the core works; nothing written", "dtsn demo")


def data() -> None:
    """Look at a data set, or exchange it with Minari: info, export, import.

    Example: dtsn data info data/navigation.h5
    """


def data_info(file: tyro.conf.Positional[Path] = DATA) -> None:
    """Show what a data set holds and compare every array with its checksum.

    Example: dtsn data info data/navigation.h5

    Args:
        file: a data set made by dtsn collect or dtsn data import.
    """
    from dtsn.data import PLAIN_ARRAYS, Dataset

    if file == DATA and not file.exists():
        raise ValueError(f"{file}: no such file; dtsn collect makes it")
    with Dataset(file) as dataset:
        info = dataset.info()
        shapes = {name: (dtype, dataset.array(name).shape) for name, dtype in PLAIN_ARRAYS.items()}
        frames = (dataset.num_transitions + dataset.num_episodes, *dataset.observation_shape)
    shapes["observations"] = (str(dataset.observation_dtype), frames)
    rows: list[tuple[str, object]] = []
    for name, value in info.items():
        spread = isinstance(value, dict) and set(value) == {"min", "mean", "max"}
        shown = f"{value['min']:g} to {value['max']:g}, mean {value['mean']:.2f}" if spread else value
        rows.append((name.replace("_", " "), shown))
    console().print(pairs(rows))
    checked = [(name, f"{list(shape)} {dtype}, checksum right") for name, (dtype, shape) in shapes.items()]
    console().print(pairs(checked, title="arrays"))
    done("nothing written", f"dtsn train --data {file}")


def data_export(file: tyro.conf.Positional[Path] = DATA, name: tyro.conf.Positional[str] = MINARI_ID) -> None:
    """Write a data set to the local Minari folder, losslessly.

    Example: dtsn data export data/navigation.h5 navigation/expert-v0

    Args:
        file: a data set made by dtsn collect.
        name: of the Minari data set, which must not exist.
    """
    from dtsn.data import Dataset
    from dtsn.exchange import export_minari

    with Dataset(file) as dataset:
        export_minari(dataset, name)
        count = dataset.num_episodes
    done(f"wrote {count} episodes to Minari as {name}", f"dtsn data import {name} copy.h5")


def data_import(
    name: tyro.conf.Positional[str] = MINARI_ID,
    out: tyro.conf.Positional[Path] = DATA,
    discount: float = 1.0,
    overwrite: bool = False,
) -> None:
    """Write a local Minari data set (arrays, discrete actions) as a data set to train on.

    Example: dtsn data import navigation/expert-v0 data/imported.h5

    Args:
        name: of the Minari data set; minari download gets published ones.
        out: the HDF5 file to write.
        discount: of the returns-to-go; the paper does not discount.
        overwrite: replace an existing file.
    """
    from dtsn.exchange import import_minari

    import_minari(name, out, discount=discount, overwrite=overwrite)
    done(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)", f"dtsn data info {out}")


def data_import_dgrl(
    folder: tyro.conf.Positional[Path],
    out: tyro.conf.Positional[Path],
    game: str = "coinrun",
    mode: str = "easy",
    episodes: int | None = None,
    discount: float = 1.0,
    overwrite: bool = False,
) -> None:
    """Write the public offline Procgen data of gen_dgrl, a folder of .npz files, as a data set to train on.

    Example: dtsn data import-dgrl 1M_E/coinrun data/coinrun.h5 --game coinrun

    Args:
        folder: with an .npz file for each episode of one game.
        out: the HDF5 file to write.
        game: that the files are of; they do not say it.
        mode: of the game; the public data are of mode easy.
        episodes: the first ones only.
        discount: of the returns-to-go; the paper does not discount.
        overwrite: replace an existing file.
    """
    from dtsn.envs.procgen import ProcgenOptions
    from dtsn.exchange import import_dgrl

    options = ProcgenOptions(game, mode)
    with progress(f"importing {folder}") as update:
        import_dgrl(
            folder,
            out,
            options,
            episodes=episodes,
            discount=discount,
            overwrite=overwrite,
            progress=update,
        )
    done(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)", f"dtsn data info {out}")


# --- what the commands share -------------------------------------------------------------------------


def shipped(solver: str) -> Path:
    """A checkpoint that comes with the package."""
    return Path(__file__).parent / "pretrained" / f"navigation-{solver}"


def load(run: Path | None, device: Device) -> Solver:
    """The solver of a run, or the shipped D-TSN."""
    from dtsn.training import load_solver

    return load_solver(run or shipped("dtsn"), pick_device(device))


def pick_device(device: Device) -> str:
    """The device to run on; asking for CUDA where there is none is an error."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' is not available here: use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


COMMANDS: dict[str, Callable[..., None]] = {
    "collect": collect,
    "expert": expert,
    "train": train,
    "eval": eval_,
    "plan": plan,
    "play": play,
    "export": export,
    "data": data,
    "reproduce": reproduce,
    "report": report,
    "demo": demo,
    "bench": bench,
    "view": view,
    "doctor": doctor,
}
# What the same commands take and do for Procgen: dtsn COMMAND procgen.
PROCGEN_COMMANDS: dict[str, Callable[..., None]] = {
    "collect": collect_procgen,
    "train": train_procgen,
    "eval": eval_procgen,
    "reproduce": reproduce_procgen,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "info": data_info,
    "export": data_export,
    "import": data_import,
    "import-dgrl": data_import_dgrl,
}


def main() -> None:
    """Entry point of ``dtsn``."""
    try:
        read_arguments(sys.argv[1:])()
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        print(f"dtsn: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("dtsn: stopped; the same command again starts anew", file=sys.stderr)
        sys.exit(130)


def read_arguments(arguments: list[str]) -> Callable[[], None]:
    """The command with its arguments, ready to run; complaints of tyro's become one line."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            if arguments[1:2] == ["procgen"] and arguments[0] in PROCGEN_COMMANDS:
                command = deferred(PROCGEN_COMMANDS[arguments[0]])
                run: Callable[[], None] = tyro.cli(
                    command, prog=f"dtsn {arguments[0]} procgen", args=arguments[2:]
                )
                return run
            if arguments[:1] == ["data"]:
                about = inspect.getdoc(data) or ""
                return choose(DATA_COMMANDS, "dtsn data", about, arguments[1:] or ["--help"])
            about = "Differentiable Tree Search Network: a Q-network that plans."
            return choose(COMMANDS, "dtsn", about, arguments)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(in_one_line(complaint.getvalue())) from None


def choose(
    commands: dict[str, Callable[..., None]], prog: str, description: str, arguments: list[str]
) -> Callable[[], None]:
    """The command that the arguments begin with; a name near to one of them is suggested."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        hint = did_you_mean(arguments[0], commands) or f", choose one of {', '.join(commands)}"
        raise ValueError(f"unknown command {arguments[0]!r}{hint}")
    later = {name: deferred(command) for name, command in commands.items()}
    chosen: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
        later, prog=prog, description=description, args=arguments
    )
    return chosen


def deferred(command: Callable[..., None]) -> Callable[..., Any]:
    """The same command for tyro, but it returns what to run: reading arguments and running are two things."""

    @functools.wraps(command)
    def later(*args: Any, **kwargs: Any) -> Any:
        return functools.partial(command, *args, **kwargs)

    return later


if __name__ == "__main__":
    main()
