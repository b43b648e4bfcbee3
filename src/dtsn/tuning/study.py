"""A search for settings by Optuna: trials are training runs, and a journal in the folder knows them all.

``FOLDER/journal.log`` has settings and scores, ``FOLDER/trials/N/`` is the run folder of trial N. A trial
that was stopped goes on from its checkpoint. Several processes, also on several machines that share the
folder, may work on one search: the lock of a run folder says which trials are taken.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dtsn.config import SOLVERS, TrainConfig
from dtsn.data.reader import Dataset
from dtsn.errors import UserError, brief
from dtsn.settings import config_from_dict, difference, flat, plain
from dtsn.storage import RunInUseError, parse_json, real_folder
from dtsn.training.loop import has_run, train_run
from dtsn.training.trainer import DivergedError, Trainer
from dtsn.tuning.journal import Journal
from dtsn.tuning.scores import Score

Part = Literal["weights", "network", "learning_rate"]
WEIGHTS = ("q", "cql", "transition", "reward")  # λ1 to λ4
SPREAD = {"weights": 10.0, "learning_rate": 5.0}  # how far below and above the given value
SMALLEST = 8  # size of a layer
NAME = "dtsn"
# May differ between two calls of a search.
FREE = ("checkpoint_every", "keep_checkpoints", "on_nan")


class Trial(NamedTuple):
    """Settings that were tried, by the names of their options."""

    number: int
    settings: dict[str, float | int]
    score: float | None  # None: not known yet, or the training diverged
    state: Literal["done", "diverged", "unfinished"]


def choices(config: TrainConfig, over: tuple[Part, ...]) -> dict[str, tuple[float, float] | tuple[int, ...]]:
    """Return what is searched: bounds (low, high) on a log scale or sizes, with ``config`` in the middle."""
    found: dict[str, tuple[float, float] | tuple[int, ...]] = {}
    if "weights" in over:
        for name in WEIGHTS:
            weight = getattr(config.solver.weights, name)
            if name in SOLVERS[config.solver.name].losses and weight:
                found[f"solver.weights.{name}"] = _around(weight, SPREAD["weights"])
    if "network" in over:
        sizes = ["hidden"] if config.network.encoder == "maps" else ["latent", "hidden"]
        for name in sizes:
            size = getattr(config.network, name)
            found[f"network.{name}"] = tuple(sorted({max(SMALLEST, size // 2), size, 2 * size}))
    if "learning_rate" in over:
        found["learning_rate"] = _around(config.learning_rate, SPREAD["learning_rate"])
    if not found:
        raise UserError(f"over must name at least one of weights, network, learning_rate, got {list(over)}")
    return found


def _around(value: float, factor: float) -> tuple[float, float]:
    return value / factor, value * factor


def changed(config: TrainConfig, settings: dict[str, float | int]) -> TrainConfig:
    """Return the configuration with some settings, by their dotted names."""
    values = dataclasses.asdict(config)
    for name, value in settings.items():
        *path, last = name.split(".")
        inner = values
        for each in path:
            inner = inner[each]
        inner[last] = value
    return config_from_dict(TrainConfig, values)


class Tuning:
    """A search in a folder, new or to go on with.

    Args:
        folder: where everything goes.
        config: the settings to vary around; they are the first trial.
        over: what to vary.
        about: what else trials depend on, as plain data; other values in the same folder are refused.
    """

    def __init__(
        self, folder: Path, config: TrainConfig, over: tuple[Part, ...], about: dict[str, Any]
    ) -> None:
        optuna = _optuna()
        self.folder, self.config, self._space = folder, config, choices(config, over)
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(folder / "journal.log")
        values = {name: value for name, value in dataclasses.asdict(config).items() if name not in FREE}
        record = plain({"config": values, "over": sorted(over), **about})
        with self._sensible():
            storage = optuna.storages.JournalStorage(self._journal)
            known = {study.study_name for study in optuna.get_all_study_summaries(storage)}
            self._study = optuna.create_study(
                storage=storage, study_name=NAME, direction="maximize", load_if_exists=True
            )
            if NAME not in known:
                self._study.set_user_attr("record", json.dumps(record))
                first = {name: value for name, value in flat(values).items() if name in self._space}
                self._study.enqueue_trial(first)
            differs = difference(parse_json(self._study.user_attrs.get("record", "{}").encode()), record)
        if differs:
            raise UserError(
                f"{folder} holds a search with other settings ({differs}): "
                "give the same ones to go on with it, or another folder"
            )

    def trials(self) -> list[Trial]:
        """Return all trials that have begun."""
        states = {"COMPLETE": "done", "FAIL": "diverged", "RUNNING": "unfinished"}
        with self._sensible():
            return [
                Trial(each.number, self._settings(each.params), _score(each.value), states[each.state.name])  # type: ignore[arg-type]
                for each in self._study.get_trials(deepcopy=False)
                if each.state.name in states
            ]

    def run(
        self,
        number: int,
        dataset: Dataset,
        score: Score,
        device: str = "cpu",
        on_step: Callable[[Trial, int], None] = lambda trial, step: None,
    ) -> Iterator[Trial]:
        """Train and score until there are ``number`` trials; yields each when it is done.

        Trials that were stopped come first. Those that another process works on are left to it.
        """
        taken: set[int] = set()
        while (trial := self._next(number, taken)) is not None:
            try:
                found = self._train(trial, dataset, score, device, on_step)
            except RunInUseError:
                taken.add(trial.number)
                continue
            except DivergedError:
                found = math.nan
            if math.isfinite(found):
                self._study.tell(trial.number, found)
                yield trial._replace(score=found, state="done")
            else:
                self._study.tell(trial.number, state=_optuna().trial.TrialState.FAIL)
                yield trial._replace(state="diverged")

    def _next(self, number: int, taken: set[int]) -> Trial | None:
        optuna = _optuna()
        begun = self.trials()
        for trial in begun:
            if trial.state == "unfinished" and trial.number not in taken:
                if set(trial.settings) == set(self._space):
                    return trial
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # killed while it began
        if len(begun) >= number:
            return None
        spaces = {
            name: optuna.distributions.CategoricalDistribution(values)
            if isinstance(values[0], int)
            else optuna.distributions.FloatDistribution(*values, log=True)
            for name, values in self._space.items()
        }
        # By the number of trials: what is drawn depends neither on interruptions nor on who asks.
        self._study.sampler = optuna.samplers.TPESampler(seed=self.config.seed + len(begun))
        with self._sensible():
            asked = self._study.ask(spaces)
            return Trial(asked.number, self._settings(asked.params), None, "unfinished")

    def _settings(self, params: dict[str, Any]) -> dict[str, float | int]:
        """Check that settings are among the choices; round them, so that one can type them."""
        for name, value in params.items():
            known = self._space.get(name, ())
            if not known or not (
                value in known if isinstance(known[0], int) else known[0] <= value <= known[-1]
            ):
                raise UserError(f"a trial has {brief(name)} = {brief(value)}, which is not searched")
        return {
            name: value if isinstance(value, int) else float(f"{value:.3g}") for name, value in params.items()
        }

    @contextmanager
    def _sensible(self) -> Iterator[None]:
        """Tell of what is no journal of ours, which makes Optuna raise nearly anything."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise UserError(
                f"{self._journal.path} must be the journal of a search by dtsn tune, got an error: "
                f"{type(error).__name__} {brief(str(error))}"
            ) from error

    def _train(
        self,
        trial: Trial,
        dataset: Dataset,
        score: Score,
        device: str,
        on_step: Callable[[Trial, int], None],
    ) -> float:
        real_folder(self.folder / "trials")
        run = real_folder(self.run_folder(trial))
        trainer = Trainer(
            changed(self.config, trial.settings), dataset.observation, dataset.num_actions, device
        )
        steps = train_run(run, trainer, dataset, resume=has_run(run))
        try:
            for metrics in steps:
                on_step(trial, int(metrics["step"]))
        except KeyboardInterrupt:
            steps.close()
            raise
        return float(score(trainer.solver.eval()))

    def run_folder(self, trial: Trial) -> Path:
        """Return where the training run of a trial is."""
        return self.folder / "trials" / str(trial.number)


def _score(value: Any) -> float | None:
    if value is not None and (type(value) is not float or not math.isfinite(value)):
        raise UserError(f"a score must be a finite number, got {brief(value)}")
    return value


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("Optuna is not installed: pip install 'dtsn[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
