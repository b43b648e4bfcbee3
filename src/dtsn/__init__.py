"""Differentiable Tree Search Network: a Q-network that plans.

The names below are imported at first use, so that ``import dtsn`` and ``dtsn --help`` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dtsn.batch import Batch
    from dtsn.config import LossWeights, NetworkConfig, SolverConfig, TrainConfig
    from dtsn.search import SearchTree, best_first_search, full_expansion
    from dtsn.solvers import Solver
    from dtsn.training import load_solver
    from dtsn.world_model import WorldModel

_HOME = {
    "Batch": "batch",
    "LossWeights": "config",
    "NetworkConfig": "config",
    "SearchTree": "search",
    "Solver": "solvers",
    "SolverConfig": "config",
    "TrainConfig": "config",
    "WorldModel": "world_model",
    "best_first_search": "search",
    "full_expansion": "search",
    "load_solver": "training",
}

__all__ = [
    "Batch",
    "LossWeights",
    "NetworkConfig",
    "SearchTree",
    "Solver",
    "SolverConfig",
    "TrainConfig",
    "WorldModel",
    "best_first_search",
    "full_expansion",
    "load_solver",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dtsn' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dtsn.{_HOME[name]}"), name)
