"""Play unseen levels with a trained solver and count successes; compare its world model with data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from dtsn.cli.arguments import Command
from dtsn.cli.options import Device, Layout, at_least_one, load, load_for_halls
from dtsn.cli.terminal import add_result, console, done, make_table, pairs, progress
from dtsn.config import Rule
from dtsn.envs.navigation import NavigationOptions
from dtsn.errors import UserError
from dtsn.processes import prepare

PLAN_LEVELS = 500  # of the levels that are played, those on which plans are checked

if TYPE_CHECKING:
    from dtsn.batch import Batch
    from dtsn.evaluation.rows import NavigationRow
    from dtsn.solvers.solver import Solver
    from dtsn.training.runs import Environment


def eval_navigation(
    run: tyro.conf.Positional[Path | None] = None,
    levels: int = 1000,
    split: Literal["validation", "test"] = "test",
    exit_layout: Layout | None = None,
    iterations: int | None = None,
    rule: Rule | None = None,
    out: Path | None = None,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Test a trained solver on unseen Navigation levels, with two exits and with one.

    Example: dtsn eval navigation runs/dtsn-0 --levels 10000 --iterations 50

    Args:
        run: a run folder or a checkpoint; the shipped D-TSN if not given.
        levels: number of levels in each scenario, one episode each.
        split: test levels, or validation levels while you are still choosing settings.
        exit_layout: exits anywhere on the walls, or on opposite sides; as trained if not given (an exported
            solver does not say: opposite).
        iterations: expansions of the search when acting; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        out: folder for the raw rows, one line per episode; RUN/evaluation if not given.
        seed: seed of the sampled expansions; the same seed gives the same rows.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    from dtsn.evaluation.levels import unseen_levels
    from dtsn.evaluation.plans import evaluate_plans, plans_text
    from dtsn.evaluation.rows import rows_path, write_rows
    from dtsn.training.runs import RunFolder

    prepare(threads)
    trained = trained_halls(run, 2, exit_layout)
    solver = load_for_halls(run, trained, device, act_iterations=iterations, act_rule=rule)
    layout = trained.exit_layout
    what = f"{levels} {split} levels, exits {layout}"
    table = make_table(f"{solver.config.name}, T = {solver.act_iterations}, {what}")
    out = out or (RunFolder(run).folder("evaluation") if run else None)
    unusual = circumstances(layout, rule, split, seed)
    notes = []
    for exits in (2, 1):
        options = trained_halls(run, exits, exit_layout)
        rows = play_scenario(table, f"{exits} exit{'s' * (exits - 1)}", solver, split, levels, options, seed)
        if out is not None:
            write_rows(rows_path(out, f"exits-{exits}-T{solver.act_iterations}{unusual}"), rows)
        plans = evaluate_plans(
            solver, unseen_levels(split, min(levels, PLAN_LEVELS), options), options, seed=seed
        )
        notes.append(f"{exits} exit{'s' * (exits - 1)}: {plans_text(plans)}")
        if out is not None:
            write_rows(rows_path(out, f"plans-exits-{exits}-T{solver.act_iterations}{unusual}"), plans)
    console().print(table)
    console().print("\n".join(notes))
    of = f" {run}" if run else ""
    done(
        f"wrote {out}" if out else "nothing written",
        f"dtsn play{of} (watch an episode), dtsn eval{of} --iterations 50",
    )


def eval_run(run: str) -> tuple[Command, list[str]]:
    """Choose the command for a run folder or a checkpoint: by what it was trained on."""
    known = environment_of(Path(run))
    command = eval_procgen if known is not None and known.id == "dtsn/Procgen-v0" else eval_navigation
    return command, [run]


def circumstances(layout: str, rule: str | None, split: str, seed: int) -> str:
    """Return what of a test is not as usual, for the name of its file."""
    usual = {"opposite", "test", "seed0"}
    return "".join(f"-{word}" for word in (layout, rule, split, f"seed{seed}") if word and word not in usual)


def play_scenario(
    table: Any,
    title: str,
    solver: Solver,
    split: str,
    levels: int,
    options: NavigationOptions,
    seed: int = 0,
    paper: str = "",
) -> list[NavigationRow]:
    """Play the first levels of a split with a progress bar and add the outcome to the table."""
    from dtsn.evaluation.levels import unseen_levels
    from dtsn.evaluation.navigation import evaluate_navigation

    with progress(title) as update:
        seeds = unseen_levels(split, levels, options)
        rows = evaluate_navigation(solver, seeds, options, seed=seed, progress=update)
    add_result(table, title, rows, paper)
    return rows


def eval_procgen(
    run: tyro.conf.Positional[Path],
    game: str | None = None,
    mode: str | None = None,
    levels: int = 500,
    split: Literal["validation", "test"] = "test",
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
    out: Path | None = None,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Test a trained solver on unseen levels of a Procgen game.

    Example: dtsn eval procgen runs/coinrun-dtsn --levels 500

    Args:
        run: a run folder or a checkpoint.
        game: one of the 16 games; the one that the run was trained on if not given.
        mode: easy, or hard as in the paper; the one that the run was trained on if not given.
        levels: number of levels, one episode each.
        split: test levels, or validation levels while you are still choosing settings.
        iterations: expansions of the search when acting; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        temperature: draw actions from softmax(Q / temperature); the best action if not given.
        out: folder for the raw rows, one line per episode; RUN/evaluation if not given.
        seed: seed of sampled expansions and actions; the same seed gives the same rows.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    import numpy as np

    from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, ProcgenOptions, split_range
    from dtsn.evaluation.procgen import evaluate_procgen, solver_policy
    from dtsn.evaluation.rows import rows_path, write_rows
    from dtsn.reproduce.statistics import NORMAL
    from dtsn.training.runs import RunFolder

    prepare(threads)
    solver = load(run, device, act_iterations=iterations, act_rule=rule)
    trained = trained_on(run)
    game, mode = game or trained.get("game"), mode or trained.get("mode", "easy")
    if game is None:
        raise UserError(f"{run} does not say which game it was trained on: name it by --game")
    options = ProcgenOptions(game, mode)
    at_least_one(levels=levels)
    actions = solver.world_model.num_actions
    if solver.observation_shape != FRAME_SHAPE or actions != NUM_ACTIONS:
        raise UserError(
            f"{run} sees observations {solver.observation_shape} and has {actions} actions; "
            f"Procgen has {FRAME_SHAPE} and {NUM_ACTIONS}: train on a data set of dtsn collect procgen"
        )
    seeds = np.arange(*split_range(split, levels))
    with progress(f"{game} ({mode})") as update:
        policy = solver_policy(solver, seeds, seed, temperature)
        rows = evaluate_procgen(policy, options, seeds, progress=update)
    scores = np.array([row.score for row in rows])
    complete = sum(row.complete for row in rows) / len(rows)
    half = NORMAL * scores.std() / len(scores) ** 0.5
    console().print(
        f"{solver.config.name}, T = {solver.act_iterations}, {levels} {split} levels of {game} ({mode}): "
        f"mean score {scores.mean():.2f} ± {half:.2f} (95%), {complete:.0%} completed"
    )
    drawn = "" if temperature is None else f"-softmax-{temperature:g}"
    unusual = drawn + circumstances("", rule, split, seed)
    path = rows_path(
        out or RunFolder(run).folder("evaluation"), f"{game}-{mode}-T{solver.act_iterations}{unusual}"
    )
    done(f"wrote {write_rows(path, rows)}", "dtsn reproduce procgen (all solvers, with a report)")


def eval_model(
    run: tyro.conf.Positional[Path],
    data: tyro.conf.Positional[Path],
    transitions: int = 4096,
    iterations: int | None = None,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Compare what a trained world model predicts with the transitions of a data set.

    Best with data that the solver was not trained on. A search through a model that predicts nothing cannot
    plan, however well the solver plays.

    Example: dtsn eval model runs/coinrun-dtsn data/coinrun.h5

    Args:
        run: a run folder or a checkpoint.
        data: a data set of the same environment.
        transitions: how many to compare with, at most all of them.
        iterations: expansions of the search; as trained if not given.
        seed: chooses the transitions, and what the search draws.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    from dtsn.data.reader import Dataset
    from dtsn.evaluation.predictions import check_predictions

    prepare(threads)
    at_least_one(transitions=transitions)
    solver = load(run, device, act_iterations=iterations)
    with Dataset(data) as dataset, progress("transitions") as update:
        if dataset.num_actions != solver.world_model.num_actions:
            raise UserError(
                f"{data} must have the {solver.world_model.num_actions} actions of {run}, "
                f"got {dataset.num_actions}"
            )
        size = min(transitions, len(dataset), 256)
        count = min(transitions, len(dataset)) // size

        def batches() -> Iterator[Batch]:
            for number, batch in enumerate(islice(dataset.batches(size, seed), count), 1):
                yield batch
                update(number * size, count * size)

        found = check_predictions(solver, batches(), seed)
    what = f"{solver.config.name}, T = {solver.act_iterations}, {found.transitions} transitions of {data}"
    variance = "of the variance explained"
    shown = {
        "next state": (found.transition_error, "of the error of predicting that nothing changes"),
        "reward": (found.reward_explained, f"{variance} (below 0: worse than the mean)"),
        "return": (found.return_explained, f"{variance}, by Q after the search"),
    }
    lines = {
        name: "the same in all of these data, nothing to predict" if isnan(value) else f"{value:.2f} {words}"
        for name, (value, words) in shown.items()
    }
    lines["search"] = f"prefers another action than a single expansion does in {found.changed_actions:.0%}"
    console().print(pairs(lines.items(), what))


def trained_on(run: Path) -> dict[str, Any]:
    """Return the options of the environment that a run was trained on; nothing if it does not say."""
    known = environment_of(run)
    return {} if known is None else known.options


def trained_halls(run: Path | None, exits: int, exit_layout: Layout | None = None) -> NavigationOptions:
    """Return the halls that a run was trained in, with other exits; the default ones if it does not say."""
    said = trained_on(run) if run else {}
    known = {field.name: said[field.name] for field in fields(NavigationOptions) if field.name in said}
    known |= {"hall": tuple(known["hall"])} if "hall" in known else {}
    known |= {"exits": exits} | ({"exit_layout": exit_layout} if exit_layout else {})
    return NavigationOptions(**known)


def environment_of(run: Path) -> Environment | None:
    """Return what a run was trained on, if it says so."""
    from dtsn.training.runs import RunFolder

    return RunFolder.of(run).environment()
