"""Navigation's results: raw episodes -> ``headline.json``, ``summary.json``, figures and the page.

Everything is computed from the files of a campaign, offline; the same files give the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtsn.arrays import Float64s
from dtsn.evaluation.rows import ActRule, Scenario
from dtsn.reproduce.markdown import write_text
from dtsn.reproduce.navigation import figures
from dtsn.reproduce.navigation.cells import Cell, Plans, Results, aligned, read_plans, read_results
from dtsn.reproduce.navigation.curves import Curves, best_temperature, read_curve
from dtsn.reproduce.navigation.page import navigation_page
from dtsn.reproduce.navigation.variants import EXITS, VARIANTS, Variant, of_family, searches
from dtsn.reproduce.records import read_record, seed_of

# Pictures that need a solver are drawn elsewhere; the page shows what is there.
FIGURES = {
    "navigation-success.png": "Success rates beside the paper's",
    "navigation-paths.png": "Test halls with one exit where the Q-network fails and D-TSN does not (seed 0)",
    "navigation-search.png": "A search tree of D-TSN drawn on its hall",
    "navigation-curves.png": "Validation success while training, all seeds and their mean",
}


def build_navigation_report(results: Path, out: Path) -> list[Path]:
    """Write ``headline.json`` and ``summary.json`` beside the rows, the figures beside ``out``, and the page.

    Parts of a campaign that are not there yet are listed on the page.
    """
    folder, pictures = results / "navigation", out.parent / "figures"
    cells, plans, curves = read_results(folder), read_plans(folder), read_curves(folder / "curves")
    meta = read_record(folder / "meta.json")
    written = [
        write_text(folder / "headline.json", _json(headline(cells, plans, curves))),
        write_text(folder / "summary.json", _json(summary(cells))),
    ]
    shown = [row for row in of_family("main") if row.seeds == max(r.seeds for r in of_family("main"))]
    if any(row.key in cells for row in shown):
        written.append(figures.success_bars(cells, shown, pictures / "navigation-success.png"))
    learnt = {row.key: curves[row.key] for row in shown if row.key in curves and row.key == row.solver.name}
    if learnt:
        written.append(figures.learning_curves(learnt, pictures / "navigation-curves.png"))
    found = {f"figures/{name}": text for name, text in FIGURES.items() if (pictures / name).exists()}
    page = navigation_page(
        cells,
        plans,
        curves,
        meta=meta,
        figures=found,
        missing=missing_parts(cells, plans, curves, meta),
        source=Path(os.path.relpath(folder, out.parent)).as_posix(),
    )
    return [*written, write_text(out, page)]


def read_curves(folder: Path) -> dict[str, dict[int, dict[str, Float64s]]]:
    """Read the learning curves of every variant and seed."""
    return {
        key: {seed_of(path): read_curve(path) for path in paths}
        for key in VARIANTS
        if (paths := sorted((folder / key).glob("seed-*.csv")))
    }


def headline(cells: Results, plans: Plans, curves: Curves) -> dict[str, Any]:
    """Return the main table, and that of the paper's losses, in short: rates from 0 to 1.

    Solvers that do not search come with a control that draws actions, at the temperature that validation
    levels with two exits chose.
    """
    listed = [*of_family("main"), *of_family("plain")]
    rows = [row for row in listed if row.key in cells]
    found: dict[str, Any] = {}
    for row in rows:
        found[row.key] = _by_exits(cells[row.key], lambda exits, row=row: row.scenario(exits), row)
        chosen = best_temperature(curves, row)
        if chosen is not None:
            drawn = _by_exits(
                cells[row.key],
                lambda exits, row=row, chosen=chosen: Scenario(exits, row.act_iterations, temperature=chosen),
                row,
            )
            found |= {f"{row.key}_softmax": drawn} if drawn else {}
    found["plan_validity"] = {
        row.key: {
            str(exits): {
                "into_wall": round(cell.blocked.value, 6),
                "optimal": round(cell.shortest.value, 6),
                "n": cell.n,
            }
            for exits in EXITS
            if (cell := plans[row.key].get(row.scenario(exits)))
        }
        for row in listed
        if row.key in plans
    }
    found["act_T"] = {row.key: acted for row in rows if len(acted := _acted(cells[row.key])) > 1}
    return found


def _by_exits(cells: Mapping[Scenario, Cell], scenario: Any, row: Variant) -> dict[str, Any]:
    found = {}
    for exits in EXITS:
        cell = cells.get(scenario(exits))
        # A solver that does not search takes its best action: that is its greedy way to act.
        rule: ActRule = "greedy" if searches(row.solver.name) else "sample"
        acted = cells.get(Scenario(exits, row.act_iterations, rule))
        if cell is not None:
            found[str(exits)] = {
                "success": round(cell.rate.value, 6),
                "collision": round(float(cell.collision.mean()), 6),
                "within_2x": round(cell.within_2x.value, 6),
                "steps_over_optimal": None if cell.detour is None else round(cell.detour, 6),
                "success_greedy": None if acted is None else round(acted.rate.value, 6),
                "n": cell.success.size,
                "seeds": list(cell.seeds),
            }
    return found


def _acted(cells: Mapping[Scenario, Cell]) -> dict[str, list[float]]:
    """Map T when acting to success at two exits and at one: sampled searches, the same levels and seeds."""
    searched = {found for found in cells if found.rule == "sample" and found.temperature is None}
    tried = sorted({found.act_iterations for found in searched})
    tried = [t for t in tried if all(Scenario(exits, t) in cells for exits in EXITS)]
    two, one = (aligned([cells[Scenario(exits, t)] for t in tried]) for exits in EXITS)
    return {
        str(t): [round(a.rate.value, 6), round(b.rate.value, 6)]
        for t, a, b in zip(tried, two, one, strict=True)
    }


def summary(cells: Results) -> dict[str, dict[str, Any]]:
    """Return every variant and scenario: rates from 0 to 1, with 95% intervals that know seeds and levels."""
    return {
        key: {
            scenario.name: {
                "success": round(cell.rate.value, 6),
                "interval": [round(cell.rate.low, 6), round(cell.rate.high, 6)],
                "collision": round(float(cell.collision.mean()), 6),
                "timeout": round(cell.timeout, 6),
                "within_2x": round(cell.within_2x.value, 6),
                "steps_over_optimal": None if cell.detour is None else round(cell.detour, 6),
                "n": cell.success.size,
                "by_seed": {str(seed): round(rate, 6) for seed, rate in cell.by_seed.items()},
            }
            for scenario, cell in found.items()
        }
        for key, found in cells.items()
    }


def missing_parts(cells: Results, plans: Plans, curves: Curves, meta: Mapping[str, Any]) -> list[str]:
    """Return what a finished campaign has and this one has not, a line each."""
    lines = []
    for row in (row for row in VARIANTS.values() if row.family.is_current and row.purpose == "table"):
        found = cells.get(row.key, {})
        absent = [test.scenario.name for test in row.tests if test.scenario not in found]
        absent += [
            f"{test.scenario.name} (seeds {', '.join(map(str, lost))})"
            for test in row.tests
            if (cell := found.get(test.scenario))
            and (lost := [seed for seed in range(row.seeds) if seed not in cell.seeds])
        ]
        if row.plans and row.key not in plans:
            absent.append("plans")
        if absent:
            lines.append(f"`{row.key}`: {'no rows' if not found else 'no rows for ' + '; '.join(absent)}")
    lines += [f"`{name}`: no learning curve" for name in _solvers() if name not in curves]
    return [*lines, *([] if meta else ["`meta.json`: the command and the machine are unknown"])]


def _solvers() -> Sequence[str]:
    return [row.key for row in of_family("main") if row.key == row.solver.name]


def _json(document: object) -> str:
    return json.dumps(document, indent=1) + "\n"
