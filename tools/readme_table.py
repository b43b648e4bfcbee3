"""Write the README's table of results from results/navigation/headline.json.

    python tools/readme_table.py

dtsn report writes that file: ``{"dtsn": {"2": {"success": 0.99, ...}, "1": ...}, "qnet": ...}``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dtsn.config import SOLVERS
from dtsn.reproduce.paper import PAPER_NAVIGATION

ROOT = Path(__file__).parent.parent
HEADLINE = ROOT / "results/navigation/headline.json"
PLACE = re.compile(r"(<!-- results:.*?-->\n).*?(<!-- /results -->)", re.DOTALL)


def success_rates(headline: dict[str, Any]) -> dict[str, dict[str, float]] | None:
    """Return success by solver and number of exits; None where a solver has not been tested."""
    try:
        return {name: {exits: headline[name][exits]["success"] for exits in ("2", "1")} for name in SOLVERS}
    except KeyError:
        return None


def table(rates: dict[str, dict[str, float]]) -> str:
    """Return a row for each solver: ours, and the paper's in brackets; the best of ours in bold."""
    lines = ["| solver | two exits, as trained | one exit, never seen in training |", "|---|---|---|"]
    best = {exits: max(found[exits] for found in rates.values()) for exits in ("2", "1")}
    for solver, kind in SOLVERS.items():
        cells = []
        for exits in ("2", "1"):
            rate, paper = rates[solver][exits], PAPER_NAVIGATION[solver, int(exits), 10].success
            mark = "**" if rate == best[exits] else ""
            cells.append(f"{mark}{100 * rate:.1f}{mark} ({paper})")
        lines.append(f"| {kind.title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def fill(readme: str, rates: dict[str, dict[str, float]]) -> str:
    """Return the README with the table in its place."""
    return PLACE.sub(lambda place: place[1] + table(rates) + place[2], readme)


def main() -> None:
    """Rewrite the README's table."""
    path, rates = ROOT / "README.md", success_rates(json.loads(HEADLINE.read_text()))
    if rates is None:
        raise SystemExit(f"{HEADLINE} lacks a solver: the README stays as it is")
    path.write_text(fill(path.read_text(), rates))


if __name__ == "__main__":
    main()
