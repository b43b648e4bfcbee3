"""Search for loss weights and sizes of the network by validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dtsn.cli.arguments import Command
from dtsn.cli.collect import collect_navigation
from dtsn.cli.options import DATA, Device, at_least_one, pick_device
from dtsn.cli.terminal import console, done, progress, stopped
from dtsn.cli.train import as_encoder_allows, preset_of
from dtsn.config import TrainConfig
from dtsn.processes import prepare
from dtsn.reproduce.navigation.variants import NAVIGATION

if TYPE_CHECKING:
    from dtsn.tuning.study import Trial, Tuning

SHOWN = 10  # rows of the table


def _command(preset: TrainConfig, default_data: Path, about: str, example: str) -> Command:
    """Make a tuning command with the preset as the settings to vary around."""

    def tune(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = preset,
        data: Path = default_data,
        over: tuple[Literal["weights", "network", "learning_rate"], ...] = ("weights", "network"),
        trials: int = 20,
        levels: int = 200,
        run: Path | None = None,
        device: Device = "auto",
        threads: int = 1,
    ) -> None:
        at_least_one(trials=trials, levels=levels)
        if data == DATA and not data.exists():
            collect_navigation(out=data)
        config = as_encoder_allows(config)
        prepare(threads)
        search(config, data, over, trials, levels, run or Path("runs") / f"tune-{data.stem}", device)

    tune.__doc__ = f"""{about}

    Each trial is a training run; Optuna chooses its settings by how well earlier trials did. The first trial
    has the settings as given. Trials are compared by success on validation levels (Navigation) or by the loss
    on every tenth episode, which is held out (other data); test levels are never played.

    Ctrl-C loses nothing: the same command again goes on, with more --trials it prolongs the search. Started
    several times side by side, also on machines that share the folder, it divides the trials.

    At the end: a table of the best trials, RUN/trials.csv with all, RUN/tuning.png with the score against
    every setting, and the command that trains with the best ones.

    Example: {example}

    Args:
        config: the settings to vary around. Fewer --steps make trials cheaper.
        data: data set of dtsn collect or dtsn data import.
        over: what to vary: weights (λ1 to λ4, from a tenth to ten times the given ones), network (half and
            double the given sizes), learning_rate (a fifth to five times).
        trials: number of trials in all.
        levels: validation levels a trial is scored on, with two exits and with one (Navigation).
        run: folder for everything; runs/tune-DATA if not given.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    return tune


tune_navigation = _command(
    NAVIGATION,
    DATA,
    "Search for settings on Navigation; collects the data set first if it is missing.",
    "dtsn tune navigation --over weights --trials 30 --steps 500",
)


def tune_file(path: str) -> tuple[Command, list[str]]:
    """Make the command that searches on a file, around defaults that suit what its header names."""
    preset, env_id = preset_of(path)
    about = f"Search for settings on {path} ({env_id})."
    return _command(preset, Path(path), about, f"dtsn tune {path} --trials 30"), []


def search(
    config: TrainConfig, data: Path, over: Any, trials: int, levels: int, folder: Path, device: str
) -> None:
    """Run the trials that are missing, and show what all of them found."""
    from dtsn.data import Dataset
    from dtsn.tuning.scores import held_out_score, navigation_score, split_episodes
    from dtsn.tuning.study import Tuning

    with Dataset(data) as dataset:
        navigation = dataset.header["env_id"] == "dtsn/Navigation-v0"
        about = {"data": dataset.sha256, **({"levels": levels} if navigation else {})}
        tuning = Tuning(folder, config, over, about)
        if navigation:
            title = f"success on {levels} validation levels"
            run_trials(tuning, trials, dataset, navigation_score(dataset, levels), device, config.steps)
        else:
            title = "minus the loss on held-out episodes"
            train, held_out = split_episodes(dataset, folder)
            with Dataset(train) as rest, Dataset(held_out) as held:
                score = held_out_score(held, config.solver.weights)
                run_trials(tuning, trials, rest, score, device, config.steps)
    show(tuning, title, data)


def run_trials(tuning: Tuning, trials: int, dataset: Any, score: Any, device: str, steps: int) -> None:
    """Run trials with a bar over all their steps, and a line for each that ends."""
    console().print(f"{trials} trials of {steps} steps in {tuning.folder}")
    with progress("tuning") as update:
        ended = sum(trial.state != "unfinished" for trial in tuning.trials())

        def on_step(trial: Trial, step: int) -> None:
            update(ended * steps + step, trials * steps, f"trial {trial.number}")

        try:
            for trial in tuning.run(trials, dataset, score, pick_device(device), on_step):
                ended += 1
                result = "diverged" if trial.score is None else f"{trial.score:.4g}"
                console().print(f"trial {trial.number}: {result} with {_words(trial)}")
        except KeyboardInterrupt:
            stopped("stopped; nothing is lost", "rerun the same command to continue")


def show(tuning: Tuning, title: str, data: Path) -> None:
    """Print the best trials and how to train with the best; write all of them and the picture."""
    from rich.table import Table

    from dtsn.tuning.report import draw, ranked, write_table

    trials = tuning.trials()
    written = [write_table(trials, tuning.folder / "trials.csv")]
    best = ranked(trials)
    if not best:
        done(f"wrote {written[0]}: no trial is done, or all have diverged", "rerun with other settings")
        return
    table = Table(title=f"{title}: the best of {len(trials)} trials; trial 0 has the settings as given")
    for name in ("trial", "score", *best[0].settings):
        table.add_column(name, justify="right")
    for trial in best[:SHOWN]:
        table.add_row(str(trial.number), f"{trial.score:.4g}", *map(str, trial.settings.values()))
    console().print(table)
    written.append(draw(trials, title, tuning.folder / "tuning.png"))
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best[0].settings.items())
    done("wrote " + ", ".join(map(str, written)), f"dtsn train {data} {flags}")


def _words(trial: Trial) -> str:
    return ", ".join(f"{name} {value}" for name, value in trial.settings.items())
