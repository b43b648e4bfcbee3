"""Procgen's episodes as numbers: scores, Z-scores, head-to-head wins, behaviour policies against random."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dtsn.arrays import Float64s
from dtsn.errors import UserError
from dtsn.evaluation.rows import Columns
from dtsn.reproduce.procgen.budgets import PROCGEN_BEST, PROCGEN_CHANGED, PROCGEN_VARIANTS
from dtsn.reproduce.statistics import Estimate, crossed_bootstrap, crossed_variance

Episodes = Mapping[str, Mapping[str, Mapping[int, Columns]]]  # game -> player -> seed -> columns
Scores = Mapping[str, Mapping[str, Float64s]]  # game -> player -> [S, L], seeds × levels

SOLVERS = ("qnet", "search", "treeqn", "dtsn")
BASELINE = SOLVERS[0]
BEST = tuple(f"{name}-best" for name in SOLVERS)
# The same action in the same frame every time: what a solver gains here it does not owe to luck.
FIXED = ("qnet-best", "search-greedy-best", "treeqn-best", "dtsn-one-best", "dtsn-greedy-best")
FAILED_BASELINE = "dodgeball"  # the paper's Q-network fails here, which makes much of its mean Z-score
SAME_SCORE = 0.98  # share of episodes from which on scores hardly vary
RESAMPLES = 2000


def all_scores(episodes: Episodes) -> dict[str, dict[str, Float64s]]:
    """Return the scores ``[S, L]`` by game and player; a game's players must have played the same levels."""
    scores: dict[str, dict[str, Float64s]] = {}
    for game, of in episodes.items():
        levels = [seed["level"] for by_seed in of.values() for seed in by_seed.values()]
        if not all(np.array_equal(levels[0], others) for others in levels):
            raise UserError(f"rows of {game} must be of the same levels: test its players again")
        scores[game] = {
            player: np.stack([by_seed[seed]["score"] for seed in sorted(by_seed)])
            for player, by_seed in of.items()
        }
    return scores


def baseline_of(player: str) -> str:
    """Return the Q-network that chooses its actions as the player does."""
    return f"{BASELINE}-best" if player in PROCGEN_BEST else BASELINE


def z_score(scores: Float64s, baseline: Float64s) -> float:
    """Compute ``(μ_π − μ_B) / σ_B`` over the episodes of all seeds; NaN if the baseline never varies."""
    spread = float(baseline.std())
    return float((scores.mean() - baseline.mean()) / spread) if spread else float("nan")


def normalised(scores: Float64s, baseline: Float64s, random: Float64s) -> float:
    """Return the baseline normalised score ``(S_π − S_R) / (S_B − S_R)``."""
    scale = float(baseline.mean() - random.mean())
    return float((scores.mean() - random.mean()) / scale) if scale else float("nan")


def hardly_varies(scores: Float64s) -> bool:
    """Tell whether nearly all episodes have the same score: a Z-score against these means nothing."""
    _, counts = np.unique(scores, return_counts=True)
    return bool(counts.max() >= SAME_SCORE * scores.size)


def mean_z(scores: Scores, player: str, games: Sequence[str]) -> float:
    """Average a player's Z-scores over games."""
    baseline = baseline_of(player)
    return float(np.mean([z_score(scores[game][player], scores[game][baseline]) for game in games]))


def mean_z_interval(scores: Scores, player: str, games: Sequence[str]) -> tuple[float, float]:
    """Return the 95% interval of a mean Z-score; redraws each game's levels and the seeds of both players."""

    def statistic(drawn: Sequence[Sequence[Float64s]]) -> float:
        return float(np.mean([z_score(ours, baseline) for ours, baseline in drawn]))

    pairs = [(scores[game][player], scores[game][baseline_of(player)]) for game in games]
    return crossed_bootstrap(pairs, statistic, RESAMPLES)


def score_interval(scores: Float64s) -> Estimate:
    """Return a mean score of crossed trials ``[S, L]``, for other seeds and other levels."""
    mean, half = float(scores.mean()), crossed_variance(scores).half
    return Estimate(mean, mean - half, mean + half)


def wins(scores: Scores, player: str, other: str, games: Sequence[str]) -> str:
    """Write ``k/n``: games in which the player's mean score is higher."""
    won = sum(scores[game][player].mean() > scores[game][other].mean() for game in games)
    return f"{won}/{len(games)}"


def alike(episodes: Mapping[int, Columns], baseline: Mapping[int, Columns]) -> float:
    """Share of episodes with the baseline's score and length on the same level; NaN without a shared seed.

    Players that are hardly trained can play most levels alike: their scores then compare little.
    """
    pairs = [(episodes[seed], baseline[seed]) for seed in episodes if seed in baseline]
    same = [
        (ours["score"] == theirs["score"]) & (ours["steps"] == theirs["steps"])
        for ours, theirs in pairs
        if np.array_equal(ours["level"], theirs["level"])
    ]
    return float(np.concatenate(same).mean()) if same else float("nan")


def summarise(episodes: Episodes, scripted: Collection[str] = ()) -> dict[str, Any]:
    """Return all numbers of the page; ``scripted``: games whose data a script has played.

    Aggregates are over the games that both sides have been tested on.
    """
    scores = all_scores(episodes)
    shared = {
        name: [game for game, of in scores.items() if name in of and BASELINE in of]
        for name in PROCGEN_VARIANTS
        if name not in PROCGEN_BEST
    }
    players = [name for name, games in shared.items() if games and name != BASELINE]

    def mean_without(left_out: Collection[str]) -> dict[str, float | None]:
        kept = {name: [game for game in shared[name] if game not in left_out] for name in players}
        return {name: _rounded(mean_z(scores, name, games)) for name, games in kept.items() if games}

    return {
        "ablations": ablations(scores),
        "best_action": best_actions(scores),
        "games": {
            game: {player: _cell(episodes[game], of, player) for player in of} for game, of in scores.items()
        },
        "experts": {
            game: _expert(of, "scripted" if game in scripted else "ppg")
            for game, of in scores.items()
            if {"random", "expert"} <= of.keys()
        },
        "mean_z": mean_without(()),
        "mean_z_interval": {
            name: [_rounded(end) for end in mean_z_interval(scores, name, shared[name])] for name in players
        },
        "mean_z_without_dodgeball": mean_without({FAILED_BASELINE}),
        "mean_z_without_scripted": mean_without(scripted),
        "wins": {
            other: wins(scores, "dtsn", other, games)
            for other in SOLVERS[:3]
            if (games := [game for game in shared["dtsn"] if other in scores[game]])
        },
    }


def ablations(scores: Scores) -> dict[str, Any]:
    """Return mean Z-scores of D-TSN and of D-TSN with one thing changed, over the games that all have played.

    Empty without such games.
    """
    changed = [name for name in PROCGEN_CHANGED if any(name in of for of in scores.values())]
    games = [game for game, of in scores.items() if {BASELINE, "dtsn", *changed} <= of.keys()]
    return {"games": games, **_mean_z_of(scores, ("dtsn", *changed), games)} if changed and games else {}


def best_actions(scores: Scores) -> dict[str, Any]:
    """Return mean Z-scores and wins of solvers that take their best action, over the games all have played.

    ``nothing_drawn`` holds the same of solvers whose searches draw nothing either, over the games that these
    have played. Empty without such games.
    """
    fixed = _compare_best(scores, FIXED, "dtsn-greedy-best")
    return _compare_best(scores, BEST, "dtsn-best") | ({"nothing_drawn": fixed} if fixed else {})


def _compare_best(scores: Scores, players: Sequence[str], ours: str) -> dict[str, Any]:
    games = [game for game, of in scores.items() if {*players} <= of.keys()]
    if not games:
        return {}
    others = [name for name in players if name != baseline_of(name)]
    won = {name: wins(scores, ours, name, games) for name in players if name != ours}
    left_out = [game for game in games if hardly_varies(scores[game][baseline_of(ours)])]
    counted = [game for game in games if game not in left_out]
    if not counted:
        return {}
    return {"games": games, "left_out": left_out, **_mean_z_of(scores, others, counted), "wins": won}


def _mean_z_of(scores: Scores, players: Sequence[str], games: Sequence[str]) -> dict[str, Any]:
    return {
        "mean_z": {name: _rounded(mean_z(scores, name, games)) for name in players},
        "mean_z_interval": {
            name: [_rounded(end) for end in mean_z_interval(scores, name, games)] for name in players
        },
    }


def _cell(episodes: Mapping[str, Mapping[int, Columns]], of: Mapping[str, Float64s], player: str) -> Any:
    """Return the numbers of a player of one game."""
    values = of[player]
    cell: dict[str, Any] = {
        "mean": round(float(values.mean()), 4),
        "std": round(float(values.std()), 4),
        "n": values.size,
        "seeds": sorted(episodes[player]),
    }
    baseline = baseline_of(player)
    if baseline in of and player != baseline:
        cell["z"] = _rounded(z_score(values, of[baseline]))
        cell["like_baseline"] = _rounded(alike(episodes[player], episodes[baseline]))
    if {BASELINE, "random"} <= of.keys():
        cell["bns"] = _rounded(normalised(values, of[BASELINE], of["random"]))
    return cell


def _expert(of: Mapping[str, Float64s], kind: str) -> dict[str, Any]:
    """Return a game's behaviour policy and random actions, with 95% intervals."""
    ours, random = score_interval(of["expert"]), score_interval(of["random"])
    return {
        "kind": kind,
        "mean": round(ours.value, 4),
        "interval": [round(ours.low, 4), round(ours.high, 4)],
        "random_mean": round(random.value, 4),
        "random_interval": [round(random.low, 4), round(random.high, 4)],
    }


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
