"""The rows of the paper's tables as data: four solvers, and D-TSN with a part left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dtsn.config import SOLVERS, TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A row: a solver, and how its training differs from the common configuration."""

    key: str
    title: str
    solver: str = "dtsn"
    without: str = ""  # the part that is left out, in words; "" for none
    added: str = ""  # the part that is added to the paper's D-TSN, in words; "" for none
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of SolverConfig
    weights: Mapping[str, float] = field(default_factory=dict)  # fields of LossWeights
    network: Mapping[str, Any] = field(default_factory=dict)  # fields of NetworkConfig
    weights_of: str = ""  # the row whose training runs it acts with; "": it is trained by itself

    def applied(self, base: TrainConfig) -> TrainConfig:
        """Return the common configuration with what this row changes."""
        weights = replace(base.solver.weights, **self.weights)
        solver = replace(base.solver, name=self.solver, weights=weights, **self.settings)
        return replace(base, solver=solver, network=replace(base.network, **self.network))


def _by_key(*recipes: Recipe) -> dict[str, Recipe]:
    return {recipe.key: recipe for recipe in recipes}


SOLVER_RECIPES = _by_key(*(Recipe(name, kind.title, name) for name, kind in SOLVERS.items()))
ABLATIONS = _by_key(
    Recipe(
        "dtsn-no-telescoping",
        "D-TSN w/o telescoping sum",
        without="the telescoping sum",
        settings={"telescoping": False},
    ),
    Recipe(
        "dtsn-no-reinforce",
        "D-TSN w/o REINFORCE term",
        without="the REINFORCE term",
        weights={"expansion": 0},
    ),
    Recipe(
        "dtsn-no-auxiliary",
        "D-TSN w/o auxiliary losses",
        without="the auxiliary losses",
        # Rewards would fall without end under a conservative term alone.
        weights={"transition": 0, "reward": 0, "conservative_reward": 0},
    ),
)
SEARCH_LENGTHS = _by_key(
    *(Recipe(f"dtsn-{n}", f"D-TSN (n_itr={n})", settings={"iterations": n}) for n in (5, 20))
)
