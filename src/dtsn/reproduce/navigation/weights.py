"""The search for loss weights: what each solver does with others than the recipe's, and which are best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dtsn.config import SOLVERS
from dtsn.reproduce.markdown import percent, table
from dtsn.reproduce.navigation.claims import exits_text
from dtsn.reproduce.navigation.curves import Curves
from dtsn.reproduce.navigation.variants import CHOSEN_WEIGHTS, EXITS, SYMBOLS, VARIANTS, Variant


def best_weights(curves: Curves, tried: Iterable[Variant]) -> Mapping[str, float]:
    """Choose the loss weights of the best mean success on validation levels; {}: the recipe's.

    The recipe's stay where none is better; of equals the first is taken.
    """
    found: dict[float, Mapping[str, float]] = {}
    for row in sorted(tried, key=lambda row: len(row.recipe.weights)):
        ended = [curve for curve in curves.get(row.key, {}).values() if row.train.steps in curve["step"]]
        rates = [
            float(column[-1])
            for curve in ended
            for name, column in curve.items()
            if name.startswith("validation_success")
        ]
        if rates:
            found.setdefault(sum(rates) / len(rates), row.recipe.weights)
    return found[max(found)] if found else {}


def weights_section(curves: Curves) -> list[str]:
    """Return what loss weights other than the recipe's do, by validation levels at the end of training."""
    rows = [row for row in VARIANTS.values() if row.purpose == "weight_search"]
    lines = []
    for title in dict.fromkeys(row.title for row in rows):
        shown = []
        for solver in SOLVERS:
            row = next((row for row in rows if row.title == title and row.solver.name == solver), None)
            shown += [_validated(curves, row, exits) if row else "" for exits in EXITS]
        lines.append((title, *shown))
    if not any(row.key in curves for row in rows):
        return []
    header = [f"{kind.title}, {exits_text(exits)}" for kind in SOLVERS.values() for exits in EXITS]
    return [
        "## Loss weights",
        "Each solver with one of its weights changed at a time: the same grid, steps and *validation* levels "
        "for all. Success at the end of a training run; empty where a solver has no such loss, – not run. "
        f"The main table uses the best of each: {_chosen()}.",
        table(("Weights", *header), lines),
    ]


def _chosen() -> str:
    """Say which loss weights solvers have in the main table where they are not the recipe's."""
    told = [
        f"{SYMBOLS[term]} = {value:g} for {SOLVERS[solver].title}"
        for solver, weights in CHOSEN_WEIGHTS.items()
        for term, value in weights.items()
    ]
    return f"{', '.join(told)}, the recipe's for the others" if told else "the recipe's for all"


def _validated(curves: Curves, row: Variant, exits: int) -> str:
    """Tabulate validation success at the last step of every run that has got there."""
    runs = [curve for _, curve in sorted(curves.get(row.key, {}).items())]
    ended = [curve for curve in runs if row.train.steps in curve["step"][-1:]]
    return ", ".join(percent(float(curve[f"validation_success_{exits}"][-1])) for curve in ended) or "–"
