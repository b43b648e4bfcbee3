"""Trackers of experiments: where a run's metrics go besides its own ``metrics.jsonl``.

Two methods make a tracker. Each of those here needs the extra of its name; wandb and MLflow are set up by
their own environment variables (``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dtsn.config import TrackerName
from dtsn.errors import UserError
from dtsn.settings import flat


class Tracker(Protocol):
    """Takes the metrics of a run."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics of a step."""

    def close(self) -> None:
        """Write what is still held back; nothing is logged afterwards."""


class NoTracker:
    """Keeps nothing: ``metrics.jsonl`` has it all."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("TensorBoard", "tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a point to every curve."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        """Write the event file."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, named as the run folder."""

    def __init__(self, run: Path, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("Weights & Biases", "wandb") from error
        project = os.environ.get("WANDB_PROJECT", "dtsn")
        try:
            self._run: Any = wandb.init(project=project, name=run.name, dir=folder, config=dict(settings))
        except wandb.Error as error:  # not logged in, mostly
            last = str(error).strip().splitlines()[-1]
            raise UserError(f"Weights & Biases: {last} Or set WANDB_MODE=offline.") from error

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a point to every curve."""
        self._run.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """A run of MLflow, named as the run folder; by default its files are there, too."""

    def __init__(self, run: Path, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise _missing("MLflow", "mlflow") from error
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._client: Any = MlflowClient(place)
        experiment = self._client.get_experiment_by_name("dtsn")
        artifacts = folder.resolve().as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment("dtsn", artifacts)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        for name, value in flat(dict(settings)).items():
            self._client.log_param(self._id, name, value)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a point to every curve."""
        for name, value in metrics.items():
            self._client.log_metric(self._id, f"train/{name}", value, step=step)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


def open_tracker(name: TrackerName, run: Path, folder: Path, settings: Mapping[str, Any]) -> Tracker:
    """Make the tracker of this name for a run; what it writes itself goes into ``folder``."""
    match name:
        case "tensorboard":
            return TensorBoard(folder)
        case "wandb":
            return WandB(run, folder, settings)
        case "mlflow":
            return MLflow(run, folder, settings)
        case _:
            return NoTracker()


def _missing(title: str, extra: str) -> ImportError:
    return ImportError(f"{title} is not installed: pip install 'dtsn[{extra}]'")
