"""Differentiable Tree Search Network: a Q-network that plans.

The names below are imported at first use, so that ``import dtsn`` and ``dtsn --help`` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from dtsn.batch import Batch as Batch
    from dtsn.checkpoint import CheckpointError as CheckpointError
    from dtsn.config import LossWeights as LossWeights
    from dtsn.config import NetworkConfig as NetworkConfig
    from dtsn.config import SolverConfig as SolverConfig
    from dtsn.config import TrainConfig as TrainConfig
    from dtsn.data.format import DatasetError as DatasetError
    from dtsn.data.format import Episode as Episode
    from dtsn.data.reader import Dataset as Dataset
    from dtsn.data.writer import DatasetWriter as DatasetWriter
    from dtsn.models.known import KnownModel as KnownModel
    from dtsn.models.known import StateMLP as StateMLP
    from dtsn.models.known import TableRules as TableRules
    from dtsn.models.world_model import WorldModel as WorldModel
    from dtsn.search import Expansion as Expansion
    from dtsn.search import LatentModel as LatentModel
    from dtsn.search import SearchTree as SearchTree
    from dtsn.search import best_first_search as best_first_search
    from dtsn.search import full_expansion as full_expansion
    from dtsn.solvers.losses import LossTerms as LossTerms
    from dtsn.solvers.solver import Solver as Solver
    from dtsn.training.loading import load_solver as load_solver
    from dtsn.training.loop import train_run as train_run
    from dtsn.training.trainer import Trainer as Trainer

_HOMES = {
    "batch": ["Batch"],
    "config": ["LossWeights", "NetworkConfig", "SolverConfig", "TrainConfig"],
    "data": ["Dataset", "DatasetError", "DatasetWriter", "Episode"],
    "models": ["KnownModel", "StateMLP", "TableRules", "WorldModel"],
    "search": ["Expansion", "LatentModel", "SearchTree", "best_first_search", "full_expansion"],
    "solvers": ["LossTerms", "Solver"],
    "training": ["CheckpointError", "Trainer", "load_solver", "train_run"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dtsn' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dtsn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
