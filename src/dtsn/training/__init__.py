"""Training: the loop, run folders, and checkpoints that survive."""

from dtsn.checkpoint import CheckpointError
from dtsn.training.trainer import Trainer, load_solver, train_run

__all__ = ["CheckpointError", "Trainer", "load_solver", "train_run"]
