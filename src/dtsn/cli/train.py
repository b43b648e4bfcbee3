"""Train solvers and the expert that Procgen data come from; export a solver out of its run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dtsn.cli.arguments import Command
from dtsn.cli.collect import collect_navigation
from dtsn.cli.options import DATA, Device, pick_device
from dtsn.cli.terminal import console, done, progress, stopped
from dtsn.config import PPG_CPU, NetworkConfig, PPGConfig, SolverConfig, TrackerName, TrainConfig
from dtsn.envs.navigation import NavigationOptions
from dtsn.errors import UserError
from dtsn.processes import prepare
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS
from dtsn.spelling import did_you_mean

if TYPE_CHECKING:
    from dtsn.data import Dataset
    from dtsn.solvers.solver import Solver
    from dtsn.training.ranks import Ranks
    from dtsn.training.trainer import Trainer


_DAY = PROCGEN_BUDGETS["day"].train
PROCGEN = replace(_DAY, solver=replace(_DAY.solver, discount=1.0))  # as dtsn collect procgen has it
PLANES = ("grid", "maps", "paths")  # encoders of 0/1 planes, not of frames


def _command(preset: TrainConfig, default_data: Path, about: str, example: str) -> Command:
    """Make a training command with the preset as its defaults."""

    def train(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = preset,
        data: Path = default_data,
        run: Path | None = None,
        resume: bool = False,
        validate_levels: int = 0,
        track: TrackerName = "none",
        device: Device = "auto",
        threads: int = 1,
    ) -> None:
        from dtsn.training.ranks import joined

        config = as_encoder_allows(config)
        if run is None:
            prefix = "" if preset is NAVIGATION else f"{data.stem}-"
            run = Path("runs") / f"{prefix}{config.solver.name}-{config.seed}"
        with joined(pick_device(device)) as ranks:
            if ranks.first and preset is NAVIGATION and data == DATA and not data.exists():
                collect_navigation(out=data)
            env_id = fit(config, data, run, resume, validate_levels, track, ranks, threads)
            if not ranks.first:
                return
            known = env_id in ("dtsn/Navigation-v0", "dtsn/Procgen-v0")
            done(f"wrote {run}", f"dtsn eval {run}" if known else f'dtsn.load_solver("{run}") in Python')

    train.__doc__ = f"""{about}

    The run folder holds config.json, metrics.jsonl and checkpoints. Ctrl-C and SIGTERM save a checkpoint.
    --resume continues from the newest one and ends bitwise where an uninterrupted run would; with more
    --steps it prolongs the run.

    Several processes share the rows of every batch and end where one does: torchrun --nproc-per-node 2
    -m -- {example} (docs/many-machines.md).

    Example: {example}

    Args:
        config: every number of the run.
        data: data set of dtsn collect or dtsn data import.
        run: run folder; runs/SOLVER-SEED if not given (Navigation), else runs/DATA-SOLVER-SEED.
        resume: continue the run in the folder; give the same settings again.
        validate_levels: number of validation levels to play at each checkpoint, to keep the best one
            (Navigation only); 0: none.
        track: also send the metrics to tensorboard, wandb or mlflow (extras of that name).
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    return train


train_navigation = _command(
    NAVIGATION,
    DATA,
    "Train a solver on Navigation; collect the data set first if it is missing.",
    "dtsn train navigation --solver.name qnet --run runs/qnet --steps 3000",
)
train_procgen = _command(
    PROCGEN,
    Path("data/coinrun.h5"),
    "Train a solver on a Procgen data set; the defaults are those of the day budget, undiscounted.",
    "dtsn train procgen --data data/coinrun.h5 --solver.name qnet",
)


def as_encoder_allows(config: TrainConfig) -> TrainConfig:
    """Drop what only the maps encoder has from Navigation's settings, where another encoder is asked for.

    What was asked for by name stays, so that it is refused if it does not fit.
    """
    if config.network.encoder == "maps":
        return config
    weights, usual = config.solver.weights, NAVIGATION.solver.weights
    names = ("termination", "conservative_value")
    off = {name: 0.0 for name in names if getattr(weights, name) == getattr(usual, name)}
    solver = replace(config.solver, weights=replace(weights, **off))
    return replace(config, solver=solver, network=replace(config.network, termination=False))


def train_file(path: str) -> tuple[Command, list[str]]:
    """Make the command that trains on a file, with defaults that suit the environment its header names."""
    preset, env_id = preset_of(path)
    about = f"Train a solver on {path} ({env_id})."
    return _command(preset, Path(path), about, f"dtsn train {path} --solver.name qnet"), []


def preset_of(path: str) -> tuple[TrainConfig, str]:
    """Return the settings to begin with on a file, and the environment that its header names."""
    from dtsn.data import Dataset

    if not Path(path).exists():
        hint = did_you_mean(path, ("navigation", "procgen"))
        raise UserError(f"{path}: no such file, nor navigation or procgen{hint}")
    with Dataset(Path(path), verify=False) as dataset:
        return preset_for(dataset), str(dataset.header["env_id"])


def preset_for(dataset: Dataset) -> TrainConfig:
    """Return the settings to begin with: the environment's own, else by the shape and scale of the data."""
    discount = float(dataset.header["discount"])
    known = {"dtsn/Navigation-v0": NAVIGATION, "dtsn/Procgen-v0": PROCGEN}.get(dataset.header["env_id"])
    if known is not None:
        return known if discount == known.solver.discount else _discounted(known, discount)
    scale = abs(dataset.array("q_values")).mean()
    network = NetworkConfig(value_scale=float(f"{max(scale, 1):.1g}"))
    return TrainConfig(SolverConfig(discount=discount), network)


def _discounted(config: TrainConfig, discount: float) -> TrainConfig:
    return replace(config, solver=replace(config.solver, discount=discount))


def fit(
    config: TrainConfig,
    data: Path,
    run: Path,
    resume: bool,
    validate_levels: int,
    track: TrackerName,
    ranks: Ranks,
    threads: int,
) -> str:
    """Train with a progress bar; Ctrl-C saves and says how to continue. Returns the data's environment."""
    from dtsn.checkpoint import best_checkpoint, latest_checkpoint, load_state
    from dtsn.data import Dataset
    from dtsn.training.loop import has_run, train_run
    from dtsn.training.ranks import was_restarted
    from dtsn.training.trainer import Trainer

    prepare(threads)
    if ranks.count > 1:
        ranks.wait()  # for the data set, which the first process may have made
    with Dataset(data) as dataset:
        if dataset.header["env_id"] == "dtsn/Procgen-v0" and config.network.encoder in PLANES:
            raise UserError(f"{data} holds frames of Procgen: use dtsn train {data}")
        trainer = Trainer(config, dataset.observation, dataset.num_actions, ranks.device, ranks=ranks)
        if not ranks.first:
            work_along(run, trainer, dataset)
            return str(dataset.header["env_id"])
        where = ranks.device if ranks.count == 1 else f"{ranks.count} processes on {ranks.device}"
        console().print(f"{config.solver.name} on {data} ({len(dataset)} transitions), {where}, into {run}")
        validate = navigation_score(dataset.header, validate_levels) if validate_levels else None
        resume = resume or (was_restarted() and has_run(run))
        steps = train_run(run, trainer, dataset, resume=resume, validate=validate, track=track)
        shown = dict.fromkeys(("loss", "q", "cql", "transition", "reward"), ".3f")
        with progress(f"training {config.solver.name}") as update:
            try:
                follow(steps, update, config.steps, shown)
            except KeyboardInterrupt:
                newest = latest_checkpoint(run / "checkpoints")
                step = load_state(newest)["step"] if newest else 0
                console().print(f"\nstopped at step {step}{', checkpoint saved' if newest else ''}")
                stopped(f"{run}", f"dtsn train {data} --run {run} --resume (and the same settings)")
    best = best_checkpoint(run / "checkpoints")
    if best is not None:
        console().print(f"best by validation: {best} ({100 * load_state(best)['validation']:.1f}% success)")
    return str(dataset.header["env_id"])


def work_along(run: Path, trainer: Trainer, dataset: Dataset) -> None:
    """Train as one of several processes, and leave it to the first to say how it ended."""
    from dtsn.training.loop import train_run
    from dtsn.training.ranks import PeerError
    from dtsn.training.trainer import DivergedError

    try:
        for _ in train_run(run, trainer, dataset):
            pass
    except KeyboardInterrupt:
        sys.exit(130)
    except (PeerError, DivergedError):
        sys.exit(2)


def follow(
    steps: Generator[dict[str, float], None, None],
    update: Callable[..., None],
    total: int,
    shown: dict[str, str],
) -> None:
    """Train and show the metrics ``shown`` (name to format) beside the bar; let the run save at Ctrl-C."""
    try:
        for metrics in steps:
            terms = [f"{name} {metrics[name]:{form}}" for name, form in shown.items() if name in metrics]
            update(min(int(metrics["step"]), total), total, " ".join(terms))
    except KeyboardInterrupt:
        steps.close()
        raise


def navigation_score(header: dict[str, Any], levels: int) -> Callable[[Solver], float]:
    """Return a score: success on the first validation levels, of the kind that the data are of."""
    from dtsn.evaluation.levels import first_levels
    from dtsn.evaluation.navigation import evaluate_navigation

    if header["env_id"] != "dtsn/Navigation-v0":
        raise UserError(f"validate_levels must be 0 for {header['env_id']}: only Navigation has them")
    chosen = first_levels("validation", levels)
    stored: dict[str, Any] = header["env_options"]  # JSON has no tuples
    options = NavigationOptions(**stored | {"hall": tuple(stored["hall"])})

    def score(solver: Solver) -> float:
        rows = evaluate_navigation(solver, chosen, options)
        return sum(row.success for row in rows) / len(rows)

    return score


def expert(
    config: Annotated[PPGConfig, tyro.conf.arg(name="")] = PPG_CPU,
    run: Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Train a Phasic Policy Gradient expert, which Procgen data are collected with.

    The defaults are what one core learns in minutes; docs/procgen.md has the settings of the paper. Ctrl-C
    and SIGTERM save a checkpoint; --resume continues from the newest one with new episodes. --resume with
    more --steps prolongs a run.

    Example: dtsn expert procgen --game coinrun --steps 300000

    Args:
        config: every number of the run.
        run: run folder; runs/expert-GAME if not given.
        resume: continue the run in the folder.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
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
    run: tyro.conf.Positional[Path] = Path("runs/dtsn-0"),
    out: tyro.conf.Positional[Path] = Path("solver"),
    onnx: bool = False,
    pt2: bool = False,
    uniforms: bool = False,
    mask: bool = False,
) -> None:
    """Write the solver of a run without its training state: a small folder for dtsn.load_solver and eval.

    With --onnx or --pt2, or a name that ends so, write the whole decision as one graph and compare it.

    Example: dtsn export runs/dtsn-0 my-solver

    Args:
        run: run folder or checkpoint.
        out: folder or graph to write.
        onnx: write a graph for ONNX runtimes.
        pt2: write a graph for torch.export.
        uniforms: let the graph draw expansions by an input; otherwise it is greedy.
        mask: let the graph take invalid actions as an input.
    """
    from dtsn.training.loading import export_solver, load_solver

    if onnx and pt2:
        raise UserError("name one of --onnx and --pt2, got both")
    suffix = ".onnx" if onnx else ".pt2" if pt2 else out.suffix
    if suffix in (".onnx", ".pt2"):
        path = out if out.suffix == suffix else out.with_name(out.name + suffix)
        found = load_solver(run).export(path, uniforms=uniforms, mask=mask)
        equal = f"{100 * found.equal_actions:.0f}% equal actions"
        done(
            f"wrote {path}: Q-values differ by at most {found.difference:.1e}, {equal}", "see docs/export.md"
        )
        return
    if uniforms or mask:
        raise UserError("--uniforms and --mask are inputs of a graph: add --onnx or --pt2")
    export_solver(run, out)
    done(f"wrote {out}", f"dtsn eval {out}")
