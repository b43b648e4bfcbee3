"""What every online integration shares: the configuration that fits a loop's discount."""

from __future__ import annotations

from dtsn.config import LossWeights, SolverConfig
from dtsn.errors import UserError

ITERATIONS = 5  # of a search, where the caller names no configuration: online learning makes many of them


def online_config(solver: str | SolverConfig, discount: float) -> SolverConfig:
    """Configure the solver of this name for TD targets of this discount, or check the given configuration.

    Online there is no conservative term (``cql = 0``): the data are the agent's own.
    """
    if isinstance(solver, str):
        return SolverConfig(solver, iterations=ITERATIONS, discount=discount, weights=LossWeights(cql=0.0))
    if solver.discount != discount:
        raise UserError(
            f"the solver's discount is {solver.discount:g}, the targets' is {discount:g}: "
            "they must be equal, since rewards in the search and in the targets add up alike"
        )
    return solver
