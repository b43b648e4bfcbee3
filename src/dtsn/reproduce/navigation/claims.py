"""The paper's claims about Navigation as comparisons of success rates, and what the rows say about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dtsn.evaluation.rows import Scenario
from dtsn.reproduce.navigation.cells import Results
from dtsn.reproduce.navigation.variants import VARIANTS, Variant, of_family
from dtsn.reproduce.statistics import Estimate, difference_interval

RETAINED_MARGIN = 0.01  # "retains its performance", as a number
DECLINE_MARGIN = 0.20  # "a substantial decline"
MIN_SEEDS = 3  # training runs on both sides, below which nothing is decided
BASELINES = ("qnet", "search", "treeqn")


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    variant: str
    scenario: Scenario


@dataclass(frozen=True)
class Check:
    """That ``more`` succeeds more often than ``less``, by over ``margin``."""

    more: Side
    less: Side
    margin: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as comparisons of success rates."""

    text: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Finding:
    """A check against the rows: holds (True), fails (False) or cannot be told from them (None)."""

    difference: Estimate
    seeds: tuple[int, int]  # training runs on each side
    holds: bool | None


def judge(check: Check, results: Results) -> Finding | None:
    """Compare two success rates by an interval that knows seeds and levels; None without rows.

    A check holds, or fails, if the interval is wholly on one side of the margin and there are
    ``MIN_SEEDS`` training runs on both sides.
    """
    more, less = (results.get(side.variant, {}).get(side.scenario) for side in (check.more, check.less))
    if more is None or less is None:
        return None
    same_runs = check.more.variant == check.less.variant
    if same_runs:  # a run is compared with itself: seeds that one side lacks would be other runs
        shared = set(more.seeds) & set(less.seeds)
        more, less = more.of_seeds(shared), less.of_seeds(shared)
        if not shared:
            return None
    same_levels = _same_halls(check.more, check.less)
    if same_levels:
        levels = more.level[np.isin(more.level, less.level)]
        more, less = more.on_levels(levels), less.on_levels(levels)
    difference = difference_interval(
        more.success, less.success, same_seeds=same_runs, same_levels=same_levels
    )
    seeds = len(more.seeds), len(less.seeds)
    holds = None
    if min(seeds) >= MIN_SEEDS:
        holds = True if difference.low > check.margin else False if difference.high <= check.margin else None
    return Finding(difference, seeds, holds)


def _same_halls(a: Side, b: Side) -> bool:
    """Tell whether a level seed is the same hall on both sides."""
    first, second = VARIANTS[a.variant].family.options, VARIANTS[b.variant].family.options
    return a.scenario.exits == b.scenario.exits and first == second


def verdict(findings: Sequence[Finding | None]) -> str:
    """Return what the checks of a claim say together."""
    outcomes = [finding.holds for finding in findings if finding is not None]
    if len(outcomes) < len(findings):
        return "rows are missing"
    if all(outcomes):
        return "reproduced"
    if any(outcomes):
        return "partly reproduced"
    return "not reproduced" if False in outcomes else "undecided"


def family_claims(family: str) -> list[Claim]:
    """Return the paper's claims, for those variants of a family that they are about."""
    rows = {row.recipe.key: row for row in of_family(family)}
    return [*_solver_claims(rows), *_ablation_claims(rows.values()), *_search_claims(rows)]


def _side(row: Variant, exits: int, act_iterations: int | None = None) -> Side:
    scenario = row.scenario(exits)
    if act_iterations is not None:
        scenario = replace(scenario, act_iterations=act_iterations)
    return Side(row.key, scenario)


def _solver_claims(rows: dict[str, Variant]) -> list[Claim]:
    """Return the claims about the four solvers; none unless all are there."""
    if not {"dtsn", *BASELINES} <= rows.keys():
        return []
    dtsn, search = rows["dtsn"], rows["search"]
    loses = _side(search, 2), _side(search, 1)
    return [
        *(
            Claim(
                f"D-TSN succeeds more often than all three baselines, {exits_text(exits)}",
                tuple(Check(_side(dtsn, exits), _side(rows[name], exits)) for name in BASELINES),
            )
            for exits in (2, 1)
        ),
        Claim(
            f"D-TSN keeps its success with 1 exit (loses less than {_points(RETAINED_MARGIN)})",
            (Check(_side(dtsn, 1), _side(dtsn, 2), -RETAINED_MARGIN),),
        ),
        Claim(
            f"Q-network and TreeQN lose tens of points with 1 exit (over {_points(DECLINE_MARGIN)})",
            tuple(
                Check(_side(rows[name], 2), _side(rows[name], 1), DECLINE_MARGIN)
                for name in ("qnet", "treeqn")
            ),
        ),
        Claim(
            f"Model-based Search loses some (less than {_points(DECLINE_MARGIN)})",
            (Check(*loses), Check(*loses[::-1], -DECLINE_MARGIN)),
        ),
    ]


def _ablation_claims(rows: Iterable[Variant]) -> list[Claim]:
    """Return the claims about the parts of D-TSN, and about those added: each is worth something."""
    listed = list(rows)
    whole = next((row for row in listed if row.recipe.key == "dtsn"), None)
    if whole is None:
        return []
    claims = []
    for row in listed:
        sides = _side(whole, 1), _side(row, 1)
        if row.recipe.without:
            text = f"Without {row.recipe.without}, D-TSN solves fewer levels with 1 exit"
            claims.append(Claim(text, (Check(*sides),)))
        if row.recipe.added:
            text = f"With {row.recipe.added}, D-TSN solves more levels with 1 exit"
            claims.append(Claim(text, (Check(*sides[::-1]),)))
    return claims


def _search_claims(rows: dict[str, Variant]) -> list[Claim]:
    """Return the claims about more search, in training and when acting."""
    claims = []
    if {"dtsn-5", "dtsn", "dtsn-20"} <= rows.keys():
        steps = (("dtsn-5", "dtsn"), ("dtsn", "dtsn-20"))
        checks = [
            Check(_side(rows[more], exits), _side(rows[less], exits))
            for less, more in steps
            for exits in (2, 1)
        ]
        claims.append(
            Claim("Training and acting with more iterations (5, 10, 20) helps D-TSN", tuple(checks))
        )
    for key, words, helps in (("dtsn", "helps D-TSN", True), ("search", "hurts Model-based Search", False)):
        row = rows.get(key)
        if row is not None and any(test.scenario.act_iterations == 50 for test in row.tests):
            pairs = [(_side(row, exits, 50), _side(row, exits)) for exits in (2, 1)]
            checks = [Check(*(pair if helps else pair[::-1])) for pair in pairs]
            claims.append(
                Claim(f"Trained with {row.act_iterations} iterations, acting with 50 {words}", tuple(checks))
            )
    return claims


def exits_text(exits: int) -> str:
    """Write ``2 exits``."""
    return f"{exits} exit{'s' * (exits != 1)}"


def _points(rate: float) -> str:
    return f"{100 * rate:.0f} point{'s' * (rate != 0.01)}"
