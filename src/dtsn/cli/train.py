"""Training: solvers, the expert that Procgen data come from, and a solver alone out of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dtsn.cli.collect import collect
from dtsn.cli.options import DATA, Device, pick_device
from dtsn.cli.terminal import console, done, progress, stopped
from dtsn.config import PPG_CPU, PPGConfig, TrainConfig
from dtsn.envs.navigation import NavigationOptions
from dtsn.processes import prepare
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver


_CPU = PROCGEN_BUDGETS["cpu"].train
PROCGEN = replace(_CPU, solver=replace(_CPU.solver, discount=1.0))  # as dtsn collect procgen has it


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
    config = as_encoder_allows(config)
    run = run or Path("runs") / f"{config.solver.name}-{config.seed}"
    env_id = fit("dtsn train", config, data, run, resume, validate_levels, device, threads)
    known = env_id == "dtsn/Navigation-v0"
    done(f"wrote {run}", f"dtsn eval {run}" if known else f'dtsn.load_solver("{run}") in Python')


def as_encoder_allows(config: TrainConfig) -> TrainConfig:
    """Navigation's settings without those that only the maps encoder has, where another is asked for.

    What was asked for by name stays, so that it is refused if it does not fit.
    """
    if config.network.encoder == "maps":
        return config
    weights, usual = config.solver.weights, NAVIGATION.solver.weights
    names = ("termination", "conservative_value")
    off = {name: 0.0 for name in names if getattr(weights, name) == getattr(usual, name)}
    solver = replace(config.solver, weights=replace(weights, **off))
    return replace(config, solver=solver, network=replace(config.network, termination=False))


def train_procgen(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = PROCGEN,
    data: Path = Path("data/coinrun.h5"),
    run: Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Train a solver on a Procgen data set; the defaults are those of the CPU budget, undiscounted.

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
    fit("dtsn train procgen", config, data, run, resume, 0, device, threads)
    done(f"wrote {run}", f"dtsn eval procgen {run}")


def fit(
    command: str,
    config: TrainConfig,
    data: Path,
    run: Path,
    resume: bool,
    validate_levels: int,
    device: Device,
    threads: int,
) -> str:
    """Train with a progress bar; Ctrl-C saves and says how to go on. Returns what the data are of."""
    from dtsn.checkpoint import best_checkpoint, latest_checkpoint, load_state
    from dtsn.data.reader import Dataset
    from dtsn.training.trainer import Trainer, train_run

    prepare(threads)
    with Dataset(data) as dataset:
        if dataset.header["env_id"] == "dtsn/Procgen-v0" and config.network.encoder in (
            "grid",
            "maps",
            "paths",
        ):
            raise ValueError(f"{data} holds frames of Procgen: use dtsn train procgen --data {data}")
        chosen = pick_device(device)
        trainer = Trainer(config, dataset.observation, dataset.num_actions, chosen)
        console().print(f"{config.solver.name} on {data} ({len(dataset)} transitions), {chosen}, into {run}")
        validate = navigation_score(dataset.header, validate_levels) if validate_levels else None
        steps = train_run(run, trainer, dataset, resume=resume, validate=validate)
        shown = dict.fromkeys(("loss", "q", "cql", "transition", "reward"), ".3f")
        with progress(f"training {config.solver.name}") as update:
            try:
                follow(steps, update, config.steps, shown)
            except KeyboardInterrupt:
                newest = latest_checkpoint(run / "checkpoints")
                step = load_state(newest)["step"] if newest else 0
                console().print(f"\nstopped at step {step}{', checkpoint saved' if newest else ''}")
                stopped(f"{run}", f"{command} --data {data} --run {run} --resume (and the same settings)")
    best = best_checkpoint(run / "checkpoints")
    if best is not None:
        console().print(f"best by validation: {best} ({100 * load_state(best)['validation']:.1f}% success)")
    return str(dataset.header["env_id"])


def follow(
    steps: Iterator[dict[str, float]], update: Callable[..., None], total: int, shown: dict[str, str]
) -> None:
    """Train, with the metrics ``shown`` (name to format) beside the bar; Ctrl-C lets the run save first."""
    try:
        for metrics in steps:
            terms = [f"{name} {metrics[name]:{form}}" for name, form in shown.items() if name in metrics]
            update(min(int(metrics["step"]), total), total, " ".join(terms))
    except KeyboardInterrupt:
        steps.close()  # type: ignore[attr-defined]
        raise


def navigation_score(header: dict[str, Any], levels: int) -> Callable[[Solver], float]:
    """Success on the first validation levels, of the kind that a Navigation data set was collected on."""
    from dtsn.evaluation.levels import first_levels
    from dtsn.evaluation.navigation import evaluate_navigation

    if header["env_id"] != "dtsn/Navigation-v0":
        raise ValueError(f"--validate-levels needs data of Navigation, not {header['env_id']}: leave it out")
    chosen = first_levels("validation", levels)
    stored: dict[str, Any] = header["env_options"]  # JSON has no tuples
    options = NavigationOptions(**stored | {"hall": tuple(stored["hall"])})

    def score(solver: Solver) -> float:
        rows = evaluate_navigation(solver, chosen, options)
        return sum(row.success for row in rows) / len(rows)

    return score


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
    shown = {"return": ".2f", "success": ".0%", "entropy": ".2f", "fps": ".0f"}
    with progress(f"{config.game} {config.mode}") as update:
        update(0, config.steps)
        try:
            follow(steps, update, config.steps, shown)
        except KeyboardInterrupt:
            saved = latest_checkpoint(run / "checkpoints")
            console().print(f"\nstopped, {f'saved {saved}' if saved else 'before the first checkpoint'}")
            stopped(f"{run}", f"dtsn expert procgen --run {run} --resume (and the same settings)")
    then = f"dtsn collect procgen --game {config.game} --mode {config.mode} --expert {run}"
    done(f"wrote {run}", then)


def export(
    run: tyro.conf.Positional[Path] = Path("runs/dtsn-0"), out: tyro.conf.Positional[Path] = Path("solver")
) -> None:
    """Write the solver of a run alone: a small folder that loads with dtsn.load_solver and dtsn eval.

    Example: dtsn export runs/dtsn-0 my-solver

    Args:
        run: a run folder or a checkpoint.
        out: the folder to write.
    """
    from dtsn.training.loading import export_solver

    export_solver(run, out)
    done(f"wrote {out}", f"dtsn eval {out}")
