"""Procgen's results page: episodes -> scores, Z-scores, head-to-head wins, the paper's beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtsn.arrays import Float64s
from dtsn.envs.procgen import GAMES
from dtsn.evaluation.rows import Columns, ProcgenRow, name_of, read_rows
from dtsn.reproduce.markdown import configuration, runtime_table, table, write_text
from dtsn.reproduce.paper import PAPER_PROCGEN, PAPER_PROCGEN_EXPERT, PAPER_PROCGEN_WINS, PAPER_PROCGEN_Z
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS, PROCGEN_TITLES, PROCGEN_VARIANTS, ProcgenBudget
from dtsn.reproduce.procgen.figures import policy_curves, procgen_scores
from dtsn.reproduce.statistics import NORMAL, bootstrap

Scores = Mapping[str, Mapping[str, Float64s]]  # game -> player -> scores of all episodes and seeds [n]

SOLVERS = ("qnet", "search", "treeqn", "dtsn")
BASELINE = SOLVERS[0]
RESAMPLES = 2000


def all_scores(episodes: Mapping[str, Mapping[str, Mapping[int, Columns]]]) -> dict[str, dict[str, Float64s]]:
    """The scores of all seeds together, by game and player."""
    return {
        game: {
            player: np.concatenate([by_seed[seed]["score"] for seed in sorted(by_seed)])
            for player, by_seed in of.items()
        }
        for game, of in episodes.items()
    }


# --- numbers -----------------------------------------------------------------------------------------


def z_score(scores: Float64s, baseline: Float64s) -> float:
    """``(μ_π − μ_B) / σ_B`` over episodes; NaN if the baseline never varies."""
    spread = float(baseline.std())
    return float((scores.mean() - baseline.mean()) / spread) if spread else float("nan")


def normalised(scores: Float64s, baseline: Float64s, random: Float64s) -> float:
    """The baseline normalised score ``(S_π − S_R) / (S_B − S_R)``."""
    scale = float(baseline.mean() - random.mean())
    return float((scores.mean() - random.mean()) / scale) if scale else float("nan")


def mean_z(scores: Scores, player: str, games: Sequence[str]) -> float:
    """Mean Z-score of a player over games."""
    return float(np.mean([z_score(scores[game][player], scores[game][BASELINE]) for game in games]))


def mean_z_interval(scores: Scores, player: str, games: Sequence[str]) -> tuple[float, float]:
    """The 95% interval of a mean Z-score; episodes of each game, of player and baseline, are redrawn."""
    samples = [scores[game][name] for game in games for name in (player, BASELINE)]

    def statistic(drawn: Sequence[Float64s]) -> float:
        return float(np.mean([z_score(a, b) for a, b in zip(drawn[::2], drawn[1::2], strict=True)]))

    return bootstrap(samples, statistic, RESAMPLES)


def wins(scores: Scores, player: str, other: str, games: Sequence[str]) -> str:
    """``k/n``: games in which the player's mean score is higher."""
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


def summarise(episodes: Mapping[str, Mapping[str, Mapping[int, Columns]]]) -> dict[str, Any]:
    """All numbers of the page, of the episodes by game, player and seed.

    Aggregates are over the games that both sides have been tested on.
    """
    scores = all_scores(episodes)
    shared = {name: _games_of(scores, name) for name in PROCGEN_VARIANTS}
    players = [name for name, games in shared.items() if games and name != BASELINE]
    without = {name: [game for game in shared[name] if game != "dodgeball"] for name in players}
    return {
        "games": {
            game: {
                player: {
                    "mean": round(float(values.mean()), 4),
                    "std": round(float(values.std()), 4),
                    "n": len(values),
                    "seeds": sorted(episodes[game][player]),
                    **(
                        {
                            "z": _rounded(z_score(values, of[BASELINE])),
                            "like_baseline": _rounded(
                                alike(episodes[game][player], episodes[game][BASELINE])
                            ),
                        }
                        if BASELINE in of and player != BASELINE
                        else {}
                    ),
                    **(
                        {"bns": _rounded(normalised(values, of[BASELINE], of["random"]))}
                        if {BASELINE, "random"} <= of.keys()
                        else {}
                    ),
                }
                for player, values in of.items()
            }
            for game, of in scores.items()
        },
        "mean_z": {name: _rounded(mean_z(scores, name, shared[name])) for name in players},
        "mean_z_interval": {
            name: [_rounded(end) for end in mean_z_interval(scores, name, shared[name])] for name in players
        },
        "mean_z_without_dodgeball": {
            name: _rounded(mean_z(scores, name, games)) for name, games in without.items() if games
        },
        "wins": {
            other: wins(scores, "dtsn", other, games)
            for other in ("qnet", "search", "treeqn")
            if (games := [game for game in shared["dtsn"] if other in scores[game]])
        },
    }


def _games_of(scores: Scores, player: str) -> list[str]:
    return [game for game, of in scores.items() if player in of and BASELINE in of]


def _rounded(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


# --- the page ----------------------------------------------------------------------------------------


def build_procgen_report(results: Path, out: Path, budget: str = "cpu") -> list[Path]:
    """Write ``results/procgen/summary.json``, figures and the page ``out`` of one budget.

    The files of other budgets than cpu have the budget in their names. Nothing without rows. The run times
    come from ``results/bench.json``, if it is there.
    """
    if budget not in PROCGEN_BUDGETS:
        raise ValueError(f"unknown budget {budget!r}, choose from {', '.join(PROCGEN_BUDGETS)}")
    folder, suffix = results / "procgen", "" if budget == "cpu" else f"-{budget}"
    episodes: dict[str, dict[str, dict[int, Columns]]] = {}
    for path in sorted((folder / "rows" / budget).glob("*/*/seed-*.csv.gz")):
        game, player = path.parts[-3:-1]
        if game in GAMES and player in PROCGEN_TITLES:
            seed = int(name_of(path).removeprefix("seed-"))
            episodes.setdefault(game, {}).setdefault(player, {})[seed] = read_rows(path, ProcgenRow)
    if not episodes:
        return []
    scores = all_scores(episodes)
    meta_path = folder / "rows" / budget / "meta.json"
    meta = json.loads(meta_path.read_text()) if meta_path.exists() else {}
    summary = summarise(episodes) | {"budget": {"name": budget, **meta.get("numbers", {})}}
    figures = out.parent / "figures"
    random = {game: float(of["random"].mean()) for game, of in scores.items() if "random" in of}
    curves = {path.stem: _read_curve(path) for path in sorted((folder / "curves" / budget).glob("*.csv"))}
    written = [
        write_text(folder / f"summary{suffix}.json", json.dumps(summary, indent=1) + "\n"),
        procgen_scores(scores, PROCGEN_TITLES, figures / f"procgen-scores{suffix}.png"),
    ]
    if curves:
        written.append(policy_curves(curves, random, figures / f"procgen-policies{suffix}.png"))
    bench = results / "bench.json"
    runtime = runtime_table(json.loads(bench.read_text())["rows"]) if bench.exists() else ""
    page = procgen_page(
        summary, scores, budget, meta, runtime=runtime, pictures=[x.name for x in written[1:]]
    )
    return [*written, write_text(out, page)]


def _read_curve(path: Path) -> dict[str, Float64s]:
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file))
    return dict(zip(header, np.array(lines, dtype=np.float64).reshape(-1, len(header)).T, strict=True))


def procgen_page(
    summary: Mapping[str, Any],
    scores: Scores,
    budget: str,
    meta: Mapping[str, Any],
    *,
    runtime: str,
    pictures: Sequence[str],
) -> str:
    """The results page in Markdown; ``pictures``: of the scores and, if there are curves, of the policies."""
    numbers = PROCGEN_BUDGETS[budget]
    players = [name for name in PROCGEN_TITLES if any(name in of for of in scores.values())]
    solvers = [name for name in players if name in PROCGEN_VARIANTS]
    missing = [
        f"`{game}`: {', '.join(absent)}"
        for game, of in scores.items()
        if (absent := [name for name in ("expert", *SOLVERS) if name not in of])
    ]
    sections = [
        f"# Procgen: results of the {budget} budget",
        f"Mode {numbers.mode}; behaviour policy: PPG, {numbers.expert.steps:,} environment steps a game"
        f"{_trained_otherwise(numbers, scores)}; "
        f"data: {numbers.episodes} successful episodes{_kept(numbers, list(scores))}, returns discounted by "
        f"{numbers.train.solver.discount:g}; training: {numbers.train.steps:,} steps at batch "
        f"{numbers.train.batch_size} for every solver, {_runs(summary, solvers)}; tests: an episode on each "
        f"of {numbers.levels} unseen levels.",
        "**This is not the paper's budget** (1000 episodes; by the authors' data mode hard and policies of "
        "100 million steps; by its run times about 220,000 steps at batch 256): its numbers are repeated for "
        "orientation, not for comparison."
        if budget != "paper"
        else "",
        "## Scores",
        "Mean over episodes with its 95% interval, which knows nothing of the spread between training runs.",
        table(
            ("Game", *(PROCGEN_TITLES[name] for name in players)),
            ((game, *(_score(of.get(name)) for name in players)) for game, of in scores.items()),
        ),
        f"![Scores of all players with 95% intervals](figures/{pictures[0]})",
        "The paper's mean scores, mode hard, and those of the policies behind the authors' data:",
        table(
            ("Game", PROCGEN_TITLES["expert"], *(PROCGEN_TITLES[name] for name in SOLVERS)),
            (
                (game, PAPER_PROCGEN_EXPERT[game], *(f"{PAPER_PROCGEN[game][name]:.2f}" for name in SOLVERS))
                for game in scores
            ),
        ),
        "## Z-scores",
        "`(μ − μ_B) / σ_B` with the Q-network as the baseline B, σ_B over its episodes.",
        _z_table(summary, [name for name in solvers if name != BASELINE]),
        "Intervals are 95% of a bootstrap that redraws the episodes of each game. The mean is also given "
        "without dodgeball, where the paper's Q-network fails: this game alone makes much of its mean. "
        "A mean is over the games of its own column: columns with gaps do not compare with the others.",
        "Share of episodes that a solver plays as the Q-network does, with the same score and length on the "
        "same level; where it is large, the Z-score compares little:",
        table(
            ("Game", *(PROCGEN_TITLES[name] for name in solvers if name != BASELINE)),
            (
                (game, *(_share(of.get(name)) for name in solvers if name != BASELINE))
                for game, of in summary["games"].items()
            ),
        ),
        "## Head to head",
        table(
            ("D-TSN against", "Games won", "Paper"),
            (
                (PROCGEN_TITLES[other], won, PAPER_PROCGEN_WINS[other])
                for other, won in summary["wins"].items()
            ),
        ),
        "## Baseline normalised scores",
        "`(S − S_random) / (S_B − S_random)`. The paper warns of it: where the baseline does worse than "
        "random actions, the sign turns, and where it is barely better, the score explodes.",
        table(
            ("Game", *(PROCGEN_TITLES[name] for name in solvers)),
            (
                (game, *(_number(of.get(name, {}).get("bns")) for name in solvers))
                for game, of in summary["games"].items()
            ),
        ),
        *_policies(scores, pictures[1:]),
        "## Run time",
        "Time of a training step, side by side in one run, at batch 256; see "
        "[performance.md](performance.md).",
        runtime,
        "## How they were made",
        f"```\n{meta['command']}\n```" if "command" in meta else "",
        configuration(numbers.train),
        *(["## Missing", "\n".join(f"- {line}" for line in missing)] if missing else []),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _runs(summary: Mapping[str, Any], solvers: Sequence[str]) -> str:
    """How many training runs there are of a solver."""
    counts = {len(of[name]["seeds"]) for of in summary["games"].values() for name in solvers if name in of}
    if not counts:
        return "not run yet"
    fewest, most = min(counts), max(counts)
    return (
        f"{fewest} training run{'s' * (most > 1)} each" if fewest == most else f"{fewest} to {most} runs each"
    )


def _trained_otherwise(numbers: ProcgenBudget, scores: Scores) -> str:
    """Which behaviour policies were trained otherwise."""
    others = [
        f"{expert.steps:,} with other settings on {game}"
        for game, expert in numbers.other_experts.items()
        if "expert" in scores.get(game, {})
    ]
    return f" ({', '.join(others)})" if others else ""


def _kept(numbers: ProcgenBudget, games: Sequence[str]) -> str:
    """Where other than successful episodes were kept, and why."""
    every = [game for game in games if numbers.keep(game) == "all"]
    return f" (all episodes in {', '.join(every)}: this policy completes next to none)" if every else ""


def _policies(scores: Scores, pictures: Sequence[str]) -> list[str]:
    """The section on the behaviour policies, against random actions on the same unseen levels."""
    tested = [game for game, of in scores.items() if {"random", "expert"} <= of.keys()]
    if not tested:
        return []
    rows = []
    for game in tested:
        drawn, ours = scores[game]["random"], scores[game]["expert"]
        gain = ours.mean() - drawn.mean()
        half = NORMAL * np.sqrt(drawn.var() / len(drawn) + ours.var() / len(ours))
        rows.append((game, _score(drawn), _score(ours), f"{gain:+.2f} ± {half:.2f}".replace("-", "−")))
    header = ("Game", PROCGEN_TITLES["random"], PROCGEN_TITLES["expert"], "Gain")
    return [
        "## Behaviour policies",
        "Phasic Policy Gradient against random actions, on the unseen levels, with 95% intervals.",
        table(header, rows),
        *(f"![Return of the behaviour policies while they learn](figures/{name})" for name in pictures),
    ]


def _z_table(summary: Mapping[str, Any], players: Sequence[str]) -> str:
    rows = [
        [game, *(_number(of.get(name, {}).get("z")) for name in players)]
        for game, of in summary["games"].items()
    ]
    means = summary["mean_z"]
    rows.append(["**mean**", *(f"**{_number(means.get(name))}**" for name in players)])
    rows.append(["95% interval", *(_interval(summary["mean_z_interval"].get(name)) for name in players)])
    rows.append(
        ["without dodgeball", *(_number(summary["mean_z_without_dodgeball"].get(name)) for name in players)]
    )
    rows.append(["paper's mean", *(_number(PAPER_PROCGEN_Z.get(name)) for name in players)])
    return table(("Game", *(PROCGEN_TITLES[name] for name in players)), rows)


def _score(values: Float64s | None) -> str:
    if values is None:
        return "–"
    return f"{values.mean():.2f} ± {NORMAL * values.std() / np.sqrt(len(values)):.2f}"


def _share(cell: Mapping[str, Any] | None) -> str:
    share = (cell or {}).get("like_baseline")
    return "–" if share is None else f"{100 * share:.1f}%"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _interval(ends: Sequence[float | None] | None) -> str:
    return "–" if ends is None else " to ".join(_number(end) for end in ends)
