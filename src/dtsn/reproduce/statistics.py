"""Intervals of rates and means, all at 95%.

Every training run (seed) of a solver is tested on the same levels. Episodes are therefore not independent:
those of one run share its weights, those of one level share its difficulty. The intervals of *crossed* trials
``[S, L]`` (seeds × levels) know both, so they say where the rate of *another* run on *other* levels lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Float64s
from dtsn.errors import UserError

NORMAL = 1.959963984540054  # two-sided 95% quantile
NORMAL_FROM = 10_000  # degrees of freedom from which Student's t is taken for normal
ANGLES = 20_001  # points of the integral behind Student's t


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Variance:
    """The variance of a mean, and the degrees of freedom of its estimate."""

    value: float
    freedom: float

    @property
    def half(self) -> float:
        """Half the width of the 95% interval by Student's t."""
        return student(self.freedom) * math.sqrt(self.value)


def standard_error(successes: int, n: int) -> float:
    """Return the standard error of a success rate over ``n`` independent episodes: the paper's ± ."""
    rate = successes / n
    return math.sqrt(rate * (1 - rate) / n)


def wilson(successes: float, n: float, quantile: float = NORMAL) -> tuple[float, float]:
    """Return Wilson's interval of a success rate over ``n`` independent episodes."""
    if not 0 <= successes <= n or n == 0:
        raise UserError(f"successes must be from 0 to n and n above 0, got {successes} of {n}")
    rate, z2 = successes / n, quantile**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = quantile / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    # The ends are exact where no episode, or every one, succeeds; rounding must not move them.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def newcombe(a: tuple[int, int], b: tuple[int, int]) -> Estimate:
    """Return Newcombe's interval of the difference of two rates, each (successes, n), independent."""
    (low_a, high_a), (low_b, high_b) = wilson(*a), wilson(*b)
    rate_a, rate_b = a[0] / a[1], b[0] / b[1]
    low = rate_a - rate_b - math.hypot(rate_a - low_a, high_b - rate_b)
    high = rate_a - rate_b + math.hypot(high_a - rate_a, rate_b - low_b)
    return Estimate(rate_a - rate_b, low, high)


def student(freedom: float) -> float:
    """Return the two-sided 95% quantile of Student's t.

    With ``t = sqrt(freedom) · tan θ`` its density is ``cos^(freedom − 1) θ``: one integral over angles.
    """
    if not freedom >= 1:
        raise UserError(f"freedom must be at least 1, got {freedom}")
    if freedom >= NORMAL_FROM:
        return NORMAL
    angle = np.linspace(0, np.pi / 2, ANGLES)
    density = np.cos(angle) ** (freedom - 1)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95 * mass[-1], mass, angle)))


def crossed_variance(trials: NDArray[np.floating]) -> Variance:
    """Return the variance of the mean of crossed trials ``[S, L]``, for other seeds and other levels.

    By the two-way analysis of variance: the spread of the seeds' means and that of the levels' means each
    contain the noise of single episodes, which is subtracted once. A single seed says nothing about seeds.
    """
    seeds, levels = trials.shape
    by_seed, by_level = trials.mean(1), trials.mean(0)
    parts: list[tuple[float, float]] = []  # of the variance, with their degrees of freedom
    if levels > 1:
        parts.append((float(by_level.var(ddof=1)) / levels, levels - 1))
    if seeds > 1:
        parts.append((float(by_seed.var(ddof=1)) / seeds, seeds - 1))
    noise = 0.0
    if len(parts) == 2:
        rest = trials - by_seed[:, None] - by_level + trials.mean()
        free = (seeds - 1) * (levels - 1)
        noise = float((rest**2).sum()) / free / trials.size
    return _combined(parts, noise)


def rate_interval(successes: NDArray[np.bool_]) -> Estimate:
    """Estimate a success rate of crossed trials ``[S, L]``: Wilson's interval at their effective number.

    The effective number of episodes is that of independent ones with the same variance. Where all succeed,
    or none, there is no variance to see: each level then counts once, however many seeds played it.
    """
    rate, levels = float(successes.mean()), successes.shape[1]
    if rate in (0.0, 1.0):
        return Estimate(rate, *wilson(rate * levels, levels))
    spread = crossed_variance(successes.astype(np.float64))
    if spread.value == 0:
        return Estimate(rate, *wilson(rate * levels, levels))
    number = min(rate * (1 - rate) / spread.value, float(successes.size))
    return Estimate(rate, *wilson(rate * number, number, student(spread.freedom)))


def ratio_interval(part: NDArray[np.floating], whole: NDArray[np.floating]) -> Estimate:
    """Estimate the share ``part.sum() / whole.sum()`` of crossed counts ``[S, L]``, linearised."""
    share = float(part.sum() / whole.sum())
    half = crossed_variance((part - share * whole) / whole.mean()).half
    return Estimate(share, max(0.0, share - half), min(1.0, share + half))


def difference_interval(
    a: NDArray[np.bool_], b: NDArray[np.bool_], *, same_seeds: bool, same_levels: bool
) -> Estimate:
    """Return the difference of two success rates of crossed trials ``[S, L]``.

    ``same_seeds``: row s of both is the same training run (say with more search); ``same_levels``: column l
    of both is the same level. What both share cancels.
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    value = float(x.mean() - y.mean())
    if same_seeds and same_levels:
        spread = crossed_variance(x - y)
    else:
        parts = _means_variance(x.mean(1), y.mean(1), same_seeds)
        parts += _means_variance(x.mean(0), y.mean(0), same_levels)
        spread = _combined(parts, 0.0)  # the noise of episodes stays counted twice: never too narrow
    if spread.value == 0:  # nothing varies: all succeed or fail on both sides
        counts = [(round(float(trials.mean()) * trials.shape[1]), trials.shape[1]) for trials in (x, y)]
        return newcombe(counts[0], counts[1])
    return Estimate(value, max(-1.0, value - spread.half), min(1.0, value + spread.half))


def _means_variance(x: Float64s, y: Float64s, paired: bool) -> list[tuple[float, float]]:
    """Return the parts of the variance of ``mean(x) − mean(y)`` with their degrees of freedom."""
    samples = [x - y] if paired else [x, y]
    return [(float(s.var(ddof=1)) / len(s), len(s) - 1) for s in samples if len(s) > 1]


def _combined(parts: Sequence[tuple[float, float]], noise: float) -> Variance:
    """Sum independent parts of a variance, less the noise they share; freedom by Satterthwaite."""
    total = max(sum(part for part, _ in parts) - noise, max((part for part, _ in parts), default=0.0))
    if total == 0:
        return Variance(0.0, math.inf)
    freedom = total**2 / sum(part**2 / own for part, own in parts)
    return Variance(total, max(freedom, min(own for _, own in parts)))  # never below, but for rounding


def crossed_bootstrap(
    groups: Sequence[Sequence[Float64s]],
    statistic: Callable[[Sequence[Sequence[Float64s]]], float],
    resamples: int,
    seed: int = 0,
) -> tuple[float, float]:
    """Bootstrap over seeds and levels, stratified: return the middle 95% of the statistic.

    A group holds crossed trials ``[S, L]`` on the same L levels, which are redrawn together; the seeds of
    each trials by themselves. Few seeds are redrawn too much alike: their spread is then underestimated.
    """
    rng = np.random.default_rng(seed)

    def redrawn(group: Sequence[Float64s]) -> list[Float64s]:
        count = group[0].shape[1]
        levels = rng.integers(0, count, count)
        return [trials[rng.integers(0, len(trials), len(trials))][:, levels] for trials in group]

    found = [statistic([redrawn(group) for group in groups]) for _ in range(resamples)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
