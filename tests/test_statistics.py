"""Intervals against known values, slow oracles and simulated coverage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from dtsn.arrays import Float64s
from dtsn.reproduce.statistics import (
    crossed_bootstrap,
    crossed_variance,
    difference_interval,
    newcombe,
    rate_interval,
    ratio_interval,
    standard_error,
    student,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0, 0.277533), (10, 10, 0.722467, 1), (5, 10, 0.236593, 0.763407), (81, 263, 0.255289, 0.366215)],
)
def test_wilson_by_known_values(successes: int, n: int, low: float, high: float) -> None:
    # 81 of 263 is the example of Newcombe (1998), table I; the others follow from the closed form.
    assert wilson(successes, n) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_is_no_rate(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n)


def test_newcombes_example() -> None:
    # Newcombe (1998), statistical methods for differences, example (a): 56/70 − 48/80.
    found = newcombe((56, 70), (48, 80))
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_standard_error_is_the_papers() -> None:
    # The paper's ± for these rates over 10 000 levels.
    for rate, printed in [(94.5, 0.2), (93.2, 0.3), (47.1, 0.5), (86.9, 0.3), (99.0, 0.1)]:
        assert round(100 * standard_error(round(100 * rate), 10_000), 1) == printed


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423), (1000, 1.9623), (1e9, 1.95996)],
)
def test_student_by_the_tables(freedom: float, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=1e-4)


def test_student_refuses_less_than_one_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match=r"freedom must be at least 1, got 0\.5"):
        student(0.5)


def simulated(
    rng: np.random.Generator, seeds: int, levels: int, spread: tuple[float, float], middle: float = 1.0
) -> np.ndarray:
    """Crossed trials [S, L] whose seeds and levels differ in difficulty, as log-odds."""
    by_seed, by_level = (
        scale * rng.standard_normal(n) for scale, n in zip(spread, (seeds, levels), strict=True)
    )
    odds = middle + by_seed[:, None] + by_level
    return rng.random(odds.shape) < 1 / (1 + np.exp(-odds))


def true_rate(spread: tuple[float, float], middle: float = 1.0) -> float:
    odds = middle + np.hypot(*spread) * np.random.default_rng(0).standard_normal(400_000)
    return float((1 / (1 + np.exp(-odds))).mean())


def test_crossed_variance_is_that_of_repeated_experiments() -> None:
    rng, spread = np.random.default_rng(0), (0.5, 1.5)
    runs = [simulated(rng, 8, 60, spread) for _ in range(3000)]
    truth = np.var([run.mean() for run in runs])
    assert np.mean([crossed_variance(run.astype(float)).value for run in runs]) == pytest.approx(
        truth, rel=0.08
    )


def test_crossed_variance_is_that_of_a_bootstrap_of_seeds_and_levels() -> None:
    # Where there are many seeds; redrawing both ways counts the noise of episodes three times.
    rng = np.random.default_rng(1)
    trials = simulated(rng, 40, 200, (0.8, 2.0)).astype(float)
    drawn = [
        trials[rng.integers(0, 40, 40)][:, rng.integers(0, 200, 200)].mean() for _ in range(2000)
    ]  # the two-way bootstrap
    assert crossed_variance(trials).value == pytest.approx(np.var(drawn), rel=0.15)


@pytest.mark.parametrize(
    ("seeds", "spread"), [(3, (0.3, 1.5)), (5, (0.5, 2.0)), (5, (0.0, 2.0)), (5, (0.0, 0.0))]
)
def test_coverage_of_a_rate(seeds: int, spread: tuple[float, float]) -> None:
    rng, truth = np.random.default_rng(2), true_rate(spread)
    runs = [simulated(rng, seeds, 200, spread) for _ in range(500)]
    found = [rate_interval(run) for run in runs]
    assert np.mean([x.low <= truth <= x.high for x in found]) >= 0.93
    naive = [wilson(int(run.sum()), run.size) for run in runs]
    if any(spread):
        assert (
            np.mean([low <= truth <= high for low, high in naive]) < 0.9
        )  # why levels and seeds must be known


def test_coverage_of_a_rate_near_one() -> None:
    rng, spread, middle = np.random.default_rng(3), (0.3, 1.0), 4.5
    truth = true_rate(spread, middle)
    found = [rate_interval(simulated(rng, 5, 400, spread, middle)) for _ in range(500)]
    assert np.mean([x.low <= truth <= x.high for x in found]) >= 0.93
    assert all(0 <= x.low <= x.value <= x.high <= 1 for x in found)


@pytest.mark.parametrize("same_seeds", [False, True])
@pytest.mark.parametrize("same_levels", [False, True])
def test_coverage_of_a_difference(same_seeds: bool, same_levels: bool) -> None:
    rng, spread, gain = np.random.default_rng(4), (0.5, 1.5), 0.7
    truth = true_rate(spread, 1 + gain) - true_rate(spread, 1)
    covered = []
    for _ in range(400):
        by_seed = 0.5 * rng.standard_normal((2, 4, 1))
        by_level = 1.5 * rng.standard_normal((2, 1, 150))
        odds = 1 + by_seed[[0, 0 if same_seeds else 1]] + by_level[[0, 0 if same_levels else 1]]
        odds[0] += gain
        a, b = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
        found = difference_interval(a, b, same_seeds=same_seeds, same_levels=same_levels)
        covered.append(found.low <= truth <= found.high)
    assert np.mean(covered) >= 0.93


def test_what_pairs_share_cancels() -> None:
    rng = np.random.default_rng(5)
    a = simulated(rng, 5, 300, (1.0, 3.0))
    b = a.copy()
    b[:, ::20] = False
    paired = difference_interval(a, b, same_seeds=True, same_levels=True)
    apart = difference_interval(a, b, same_seeds=False, same_levels=False)
    assert paired.value == pytest.approx(apart.value)
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)


@pytest.mark.parametrize("rate", [False, True])
def test_no_variance_is_no_certainty(rate: bool) -> None:
    trials = np.full((5, 100), rate)
    found = rate_interval(trials)
    assert (found.low, found.high) == pytest.approx(wilson(100 * rate, 100))
    difference = difference_interval(trials, trials, same_seeds=False, same_levels=True)
    assert difference.low < 0 < difference.high


def test_one_seed_knows_levels_alone() -> None:
    trials = np.arange(100)[None] < 80
    found, known = rate_interval(trials), wilson(80, 100)
    assert (found.low, found.high) == pytest.approx(known, abs=0.01)


def test_ratio_of_counts() -> None:
    rng = np.random.default_rng(6)
    whole = rng.integers(1, 30, (5, 400)).astype(float)
    found = ratio_interval(0.25 * whole, whole)
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert ratio_interval(np.zeros_like(whole), whole).low == 0
    covered = []
    for _ in range(300):
        part = rng.binomial(whole.astype(int), 0.2).astype(float)
        found = ratio_interval(part, whole)
        covered.append(found.low <= 0.2 <= found.high)
    assert np.mean(covered) >= 0.93


def test_bootstrap_of_a_mean_is_normal() -> None:
    values = np.random.default_rng(7).normal(3, 2, 400)
    low, high = crossed_bootstrap([[values[None]]], lambda drawn: float(drawn[0][0].mean()), 2000)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)


def test_bootstrap_against_all_resamples_of_seeds_and_levels() -> None:
    """Both trials of a group see the same redrawn levels; each redraws its own seeds."""
    a, b = np.array([[0.0, 1.0, 5.0], [2.0, 2.0, 9.0]]), np.array([[2.0, 3.0, 4.0]])
    every = [
        a[np.ix_(seeds, levels)].mean() - b[np.ix_([0], levels)].mean()
        for seeds in itertools.product(range(2), repeat=2)
        for levels in itertools.product(range(3), repeat=3)
    ]
    seen: list[float] = []

    def difference(drawn: Sequence[Sequence[Float64s]]) -> float:
        seen.append(float(drawn[0][0].mean() - drawn[0][1].mean()))
        return seen[-1]

    found = crossed_bootstrap([[a, b]], difference, 20_000)
    assert found == tuple(np.quantile(seen, [0.025, 0.975]))
    assert {round(value, 9) for value in seen} == {round(value, 9) for value in every}
    assert (np.mean(seen), np.std(seen)) == pytest.approx((np.mean(every), np.std(every)), rel=0.03)
    again = [crossed_bootstrap([[a, b]], difference, 100) for _ in range(2)]
    assert again[0] == again[1]
