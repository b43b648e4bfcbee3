"""Solvers: four rows of data over one world model, the paper's losses."""

from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver

__all__ = ["LossTerms", "Solver"]
