"""What every online integration shares: the configuration that fits a loop's discount."""

from __future__ import annotations

from dtsn.config import LossWeights, SolverConfig
from dtsn.errors import UserError

ITERATIONS = 5  # of a search, where the caller names no configuration: online learning makes many of them
# No conservative term: the data are the agent's own. So TD errors are all that teaches what to do, and weigh
# as much as in DQN. They begin small, and beside them the paper's λ3 = 0.1 lets the latents of a task with
# rare rewards collapse: a constant latent is perfectly consistent.
WEIGHTS = LossWeights(q=1.0, cql=0.0, transition=0.001)


def online_config(solver: str | SolverConfig, discount: float) -> SolverConfig:
    """Configure the solver of this name for TD targets of this discount, or check the given configuration.

    Its weights are ``WEIGHTS``.
    """
    if isinstance(solver, str):
        return SolverConfig(solver, iterations=ITERATIONS, discount=discount, weights=WEIGHTS)
    if solver.discount != discount:
        raise UserError(
            f"the solver's discount is {solver.discount:g}, the targets' is {discount:g}: "
            "they must be equal, since rewards in the search and in the targets add up alike"
        )
    return solver
