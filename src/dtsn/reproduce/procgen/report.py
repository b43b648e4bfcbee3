"""Procgen's results: raw episodes -> ``summary.json``, figures and the page."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection
from pathlib import Path

import numpy as np

from dtsn.arrays import Float64s
from dtsn.envs.procgen import GAMES
from dtsn.errors import UserError
from dtsn.evaluation.rows import Columns, ProcgenRow, name_of, read_rows
from dtsn.reproduce.markdown import runtime_table, write_text
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS, PROCGEN_TITLES
from dtsn.reproduce.procgen.choice import best_candidate, choice_players, choice_table
from dtsn.reproduce.procgen.figures import policy_curves, procgen_scores
from dtsn.reproduce.procgen.page import procgen_page
from dtsn.reproduce.procgen.scores import all_scores, summarise


def build_procgen_report(results: Path, out: Path, budget: str = "cpu") -> list[Path]:
    """Write ``results/procgen/summary.json``, figures and the page ``out`` of one budget.

    The files of other budgets than cpu have the budget in their names. Nothing without rows. The run times
    come from ``results/bench.json``, if it is there.
    """
    if budget not in PROCGEN_BUDGETS:
        raise UserError(f"budget must be one of {', '.join(PROCGEN_BUDGETS)}, got {budget!r}")
    folder, suffix = results / "procgen", "" if budget == "cpu" else f"-{budget}"
    episodes = _read_episodes(folder / "rows" / budget, PROCGEN_TITLES)
    if not episodes:
        return []
    validated = _read_episodes(folder / "choice" / budget, ("random", "expert", *choice_players()))
    scores = all_scores(episodes)
    meta_path = folder / "rows" / budget / "meta.json"
    meta = json.loads(meta_path.read_text()) if meta_path.exists() else {}
    summary = summarise(episodes, PROCGEN_BUDGETS[budget].scripted) | {
        "budget": {"name": budget, **meta.get("numbers", {})}
    }
    if choice := choice_table(all_scores(validated)):
        summary["choice"] = {"games": list(validated), "table": choice, "best": best_candidate(choice)}
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


def _read_episodes(folder: Path, players: Collection[str]) -> dict[str, dict[str, dict[int, Columns]]]:
    """Read the rows of these players by game, player and seed."""
    episodes: dict[str, dict[str, dict[int, Columns]]] = {}
    for path in sorted(folder.glob("*/*/seed-*.csv.gz")):
        game, player = path.parts[-3:-1]
        if game in GAMES and player in players:
            seed = int(name_of(path).removeprefix("seed-"))
            episodes.setdefault(game, {}).setdefault(player, {})[seed] = read_rows(path, ProcgenRow)
    return episodes


def _read_curve(path: Path) -> dict[str, Float64s]:
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file))
    return dict(zip(header, np.array(lines, dtype=np.float64).reshape(-1, len(header)).T, strict=True))
