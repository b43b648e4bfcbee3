"""Training: the loop, run folders, and checkpoints that survive."""

from dtsn.checkpoint import CheckpointError
from dtsn.training.loading import load_solver
from dtsn.training.loop import train_run
from dtsn.training.runs import RunFolder
from dtsn.training.trainer import Trainer

__all__ = ["CheckpointError", "RunFolder", "Trainer", "load_solver", "train_run"]
