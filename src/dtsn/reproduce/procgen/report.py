"""Procgen's results: raw episodes -> ``summary.json``, figures and the page."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from dtsn.envs.procgen import GAMES
from dtsn.errors import UserError
from dtsn.evaluation.rows import Columns, ProcgenRow, read_rows
from dtsn.reproduce.markdown import runtime_table, write_text
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS, PROCGEN_ROWS, PROCGEN_TITLES
from dtsn.reproduce.procgen.choice import best_candidate, choice_players, choice_table
from dtsn.reproduce.procgen.figures import policy_curves, procgen_scores
from dtsn.reproduce.procgen.page import procgen_page
from dtsn.reproduce.procgen.scores import all_scores, summarise
from dtsn.reproduce.records import MAX_RECORD_BYTES, NUMBER, checked, read_columns, read_record, seed_of
from dtsn.storage import read_json

HEADLINE = "day"  # the budget that results are quoted from
RUNTIME = {
    "solver": str,
    "seconds": NUMBER,
    "over_qnet": NUMBER,
    "paper_over_qnet": (None, (int, float, str)),
    "peak_gb": NUMBER,
}


PREDICTIONS = {
    "transition_error": (None, NUMBER),
    "reward_explained": (None, NUMBER),
    "return_explained": (None, NUMBER),
    "changed_actions": NUMBER,
}


def build_procgen_report(results: Path, pages: Path, budget: str = HEADLINE) -> list[Path]:
    """Write ``results/procgen/summary.json``, and the page of one budget with its figures to ``pages``.

    The files of other budgets than day have the budget in their names. Nothing without rows. The run times
    come from ``results/bench.json``, if it is there.
    """
    if budget not in PROCGEN_BUDGETS:
        raise UserError(f"budget must be one of {', '.join(PROCGEN_BUDGETS)}, got {budget!r}")
    folder, suffix = results / "procgen", "" if budget == HEADLINE else f"-{budget}"
    episodes = _read_episodes(folder / "rows" / budget, PROCGEN_TITLES)
    if not episodes:
        return []
    validated = _read_episodes(folder / "choice" / budget, ("random", "expert", *choice_players()))
    scores = all_scores(episodes)
    meta = read_record(folder / "rows" / budget / "meta.json")
    summary = summarise(episodes, PROCGEN_BUDGETS[budget].scripted) | {
        "predictions": _predictions(folder / "predictions" / budget),
        "budget": {"name": budget, **meta.get("numbers", {})},
    }
    if choice := choice_table(all_scores(validated)):
        summary["choice"] = {"games": list(validated), "table": choice, "best": best_candidate(choice)}
    runtime = _runtime(results / "bench.json")
    figures = pages / "figures"
    random = {game: float(of["random"].mean()) for game, of in scores.items() if "random" in of}
    files = sorted((folder / "curves" / budget).glob("*.csv"))
    curves = {path.stem: read_columns(path, "step", "return") for path in files if path.stem in GAMES}
    shown = {name: PROCGEN_TITLES[name] for name in ("random", "expert", *PROCGEN_ROWS)}
    written = [
        write_text(folder / f"summary{suffix}.json", json.dumps(summary, indent=1) + "\n"),
        procgen_scores(scores, shown, figures / f"procgen-scores{suffix}.png"),
    ]
    if curves:
        written.append(policy_curves(curves, random, figures / f"procgen-policies{suffix}.png"))
    page = procgen_page(
        summary,
        scores,
        budget,
        runtime=runtime,
        pictures=[x.name for x in written[1:]],
    )
    return [*written, write_text(pages / f"procgen-results{suffix}.md", page)]


def _read_episodes(folder: Path, players: Collection[str]) -> dict[str, dict[str, dict[int, Columns]]]:
    """Read the rows of these players by game, player and seed."""
    episodes: dict[str, dict[str, dict[int, Columns]]] = {}
    for path in sorted(folder.glob("*/*/seed-*.csv.gz")):
        game, player = path.parts[-3:-1]
        if game in GAMES and player in players:
            episodes.setdefault(game, {}).setdefault(player, {})[seed_of(path)] = read_rows(path, ProcgenRow)
    return episodes


def _predictions(folder: Path) -> dict[str, dict[str, dict[str, float | None]]]:
    """Average over seeds what the world models of each game and solver predict."""
    read: dict[str, dict[str, list[dict[str, float | None]]]] = {}
    for path in sorted(folder.glob("*/*/seed-*.json")):
        game, player = path.parts[-3:-1]
        if game in GAMES and player in PROCGEN_ROWS:
            found = checked(read_json(path, MAX_RECORD_BYTES), PREDICTIONS, str(path))
            read.setdefault(game, {}).setdefault(player, []).append(found)
    return {
        game: {player: {name: _mean([seed[name] for seed in seeds]) for name in PREDICTIONS}
               for player, seeds in of.items()}
        for game, of in read.items()
    }  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    """Average numbers; None if one of them is missing."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if len(known) == len(values) else None


def _runtime(path: Path) -> str:
    """Tabulate run times, if there is a benchmark."""
    if not path.exists():
        return ""
    found = checked(read_json(path, MAX_RECORD_BYTES), {"rows": [dict]}, str(path))["rows"]
    rows = [row for row in found if row.get("part") == "runtime"]
    return runtime_table([{**row, **checked(row, RUNTIME, f"{path}: a run time")} for row in rows])
