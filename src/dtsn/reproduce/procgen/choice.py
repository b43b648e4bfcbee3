"""One recipe for all solvers, chosen on validation levels before any test: what is compared, and by what.

A candidate is the recipe that a budget began with, with one thing changed. The baseline and D-TSN are trained
with each of them, to speak for all solvers; what is chosen is for all solvers alike. Ways to act are compared
by the weights of the training that was chosen. Test levels have no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from dtsn.arrays import Float64s
from dtsn.config import TrainConfig

RECIPE = "recipe"  # what the choice begins with
SOLVERS = ("qnet", "dtsn")
# Candidates that change nothing for the Q-network: it has no world model to learn, and no search that draws.
OF_DTSN_ALONE = ("heavy", "greedy")

TITLES = {
    RECIPE: "the recipe to begin with",
    "plain": "an encoder without normalisation",
    "heavy": "λ of the transition ten times, of the reward a hundred times as large",
    "large": "twice the size",
    "small": "half the size",
    "q-heavy": "λ1 ten times as large",
    "q-light": "λ1 a tenth as large",
    "near": "a discount of 0.95",
    "greedy": "a greedy search when acting",
    "best": "the best action",
    "draw": "actions drawn from softmax(Q)",
}
TEMPERATURES = {"best": None, "draw": 1.0}  # of candidates whose actions are chosen otherwise
ACTING = ("greedy", *TEMPERATURES)  # candidates that only act otherwise, by the weights behind the tables


class Contender(NamedTuple):
    """A solver trained, or acting, as a candidate says; None: as the budget says, outside of the choice."""

    candidate: str | None
    solver: str


CONTENDERS = {f"{name}.{solver}": Contender(name, solver) for name in TITLES for solver in SOLVERS}


def contender(player: str) -> Contender:
    """Return the contender of a name; any other player is none of the choice."""
    return CONTENDERS.get(player, Contender(None, player))


def candidate(train: TrainConfig, name: str | None) -> TrainConfig:
    """Return the training of a candidate, for the solver that ``train`` names."""
    solver, network = train.solver, train.network
    match name:
        case "plain":
            return replace(train, network=replace(network, normalised=False))
        case "heavy":
            weights = solver.weights
            weights = replace(weights, transition=10 * weights.transition, reward=100 * weights.reward)
            return replace(train, solver=replace(solver, weights=weights))
        case "large" | "small":
            factor = 2 if name == "large" else 0.5
            latent, hidden = int(factor * network.latent), int(factor * network.hidden)
            return replace(train, network=replace(network, latent=latent, hidden=hidden))
        case "q-heavy" | "q-light":
            factor = 10 if name == "q-heavy" else 0.1
            weights = replace(solver.weights, q=factor * solver.weights.q)
            return replace(train, solver=replace(solver, weights=weights))
        case "near":
            return replace(train, solver=replace(solver, discount=0.95))
        case "greedy":
            return replace(train, solver=replace(solver, act_rule="greedy"))
        case _:
            return train


def choice_players(candidates: Collection[str] = tuple(TITLES)) -> list[str]:
    """Return the names of the contenders to train and to play the validation levels."""
    return [
        name
        for name, each in CONTENDERS.items()
        if each.candidate in candidates and (each.solver == "dtsn" or each.candidate not in OF_DTSN_ALONE)
    ]


def choice_table(scores: Mapping[str, Mapping[str, Float64s]]) -> dict[str, dict[str, float]]:
    """Map candidate and solver to the mean over games of ``(S − S_random) / (S_expert − S_random)``.

    ``scores`` is ``{game: {player: [seeds, levels]}}`` on validation levels. A candidate is listed once all
    solvers have played all games with it; for a solver that it does not concern, it is the recipe.
    """
    found: dict[str, dict[str, float]] = {}
    for name in TITLES:
        cells = {
            solver: f"{RECIPE if name in OF_DTSN_ALONE and solver != 'dtsn' else name}.{solver}"
            for solver in SOLVERS
        }
        if scores and all({"random", "expert", *cells.values()} <= of.keys() for of in scores.values()):
            found[name] = {
                solver: sum(_share(of, player) for of in scores.values()) / len(scores)
                for solver, player in cells.items()
            }
    return found


def _share(of: Mapping[str, Float64s], player: str) -> float:
    """Return how far a player is from random actions to the behaviour policy, which are 0 and 1."""
    low, high = float(of["random"].mean()), float(of["expert"].mean())
    return (float(of[player].mean()) - low) / (high - low) if high != low else float("nan")


def best_candidate(table: Mapping[str, Mapping[str, float]]) -> str:
    """Return the candidate with the highest mean over solvers; the earlier one of equals."""
    return max(table, key=lambda name: sum(table[name].values()))
