"""Write the README's tables of results from results/navigation/headline.json and summary.json.

    python tools/readme_table.py

dtsn report writes these files: ``{"dtsn": {"2": {"success": 0.99, ...}, "1": ...}, "qnet": ...}``, and more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dtsn.config import SOLVERS
from dtsn.reproduce.paper import PAPER_NAVIGATION

ROOT = Path(__file__).parent.parent
HEADLINE, SUMMARY = (ROOT / "results/navigation" / name for name in ("headline.json", "summary.json"))
DRAWN = "qnet_softmax"  # the control: is it luck?
ROWS = {name: kind.title for name, kind in SOLVERS.items()} | {
    DRAWN: "Q-network, actions drawn from softmax(Q)"
}
PLACE = re.compile(r"(<!-- results:.*?-->\n).*?(<!-- /results -->)", re.DOTALL)
HALLS = {
    "qnet": "Q-network",
    "treeqn": "TreeQN",
    "search": "Model-based Search",
    "dtsn": "D-TSN",
    "search_graph": "Model-based Search, merged",
    "dtsn_graph": "D-TSN, merged",
}
DRAWN_TEST = "exits-1-T10-softmax-1"  # at the temperature that validation levels prefer there (results.md)
HALLS_PLACE = re.compile(r"(<!-- halls:.*?-->\n).*?(<!-- /halls -->)", re.DOTALL)


def success_rates(headline: dict[str, Any]) -> dict[str, dict[str, float]] | None:
    """Return rates by solver and column; None where a solver has not been tested."""
    try:
        return {
            name: {
                "2": headline[name]["2"]["success"],
                "1": headline[name]["1"]["success"],
                "within": headline[name]["1"]["within_2x"],
                "greedy": float(headline[name]["1"]["success_greedy"]),
                "seeds": float(len(headline[name]["1"]["seeds"])),
            }
            for name in ROWS
        }
    except (KeyError, TypeError):  # no rows, or none of greedy acting
        return None


def table(rates: dict[str, dict[str, float]]) -> str:
    """Return a row for each solver: ours, and the paper's in brackets; the best of ours in bold."""
    lines = [
        "| solver | two exits, as trained | one exit, never seen in training "
        "| one exit, within twice the shortest path | one exit, search not random | seeds |",
        "|---|---|---|---|---|---|",
    ]
    columns = ("2", "1", "within", "greedy")
    best = {column: max(found[column] for found in rates.values()) for column in columns}
    for row, title in ROWS.items():
        cells = []
        for column in columns:
            mark = "**" if rates[row][column] == best[column] else ""
            shown = f"{mark}{percent(rates[row][column])}{mark}"
            if row in SOLVERS and column in ("2", "1"):
                shown += f" ({PAPER_NAVIGATION[row, int(column), 10].success})"
            cells.append("–" if row == DRAWN and column == "greedy" else shown)
        lines.append(f"| {title} | {' | '.join(cells)} | {rates[row]['seeds']:.0f} |")
    return "\n".join(lines) + "\n"


def plain_sentence(headline: dict[str, Any]) -> str:
    """Return what the solvers reach at one exit with the paper's losses alone; nothing without their rows."""
    names = {f"plain-{name}": kind.title for name, kind in SOLVERS.items()}
    if not names.keys() <= headline.keys():
        return ""
    rates = {title: percent(headline[name]["1"]["success"]) for name, title in names.items()}
    drawn = percent(headline["plain-qnet_softmax"]["1"]["success"])
    listed = ", ".join(f"{title} {rate}" for title, rate in rates.items())
    seeds = len(headline["plain-dtsn"]["1"]["seeds"])
    return (
        f"\nWith the paper's losses alone, one exit: {listed}; a Q-network that draws its actions {drawn} "
        f"({seeds} seeds).\n"
    )


def halls_table(summary: dict[str, Any]) -> str:
    """Return the success with one exit in larger halls, by the number of expansions when acting."""
    lines = [
        "| larger halls, one exit | T = 10, as trained | T = 20 | T = 50, with 95% interval |",
        "|---|---|---|---|",
    ]
    drawn = percent(summary["hall-7-12-qnet"][DRAWN_TEST]["success"])
    for key, title in HALLS.items():
        tests = [summary[f"hall-7-12-{key}"].get(f"exits-1-T{expansions}") for expansions in (10, 20, 50)]
        cells = ["–" if test is None else percent(test["success"]) for test in tests]
        if tests[2] is not None:
            cells[2] += " ({} to {})".format(*(f"{100 * end:.0f}" for end in tests[2]["interval"]))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.insert(3, f"| Q-network, actions drawn from softmax(Q) | {drawn} | – | – |")
    return "\n".join(lines) + "\n"


def fill_halls(readme: str, summary: dict[str, Any]) -> str:
    """Return the README with the table of larger halls in its place."""
    return HALLS_PLACE.sub(lambda place: place[1] + halls_table(summary) + place[2], readme)


def percent(rate: float) -> str:
    """Return a rate in percent; two digits where one would round it to 100."""
    return f"{100 * rate:.{2 if 0.9995 <= rate < 1 else 1}f}"


def fill(readme: str, rates: dict[str, dict[str, float]], more: str = "") -> str:
    """Return the README with the table, and a sentence below it, in its place."""
    return PLACE.sub(lambda place: place[1] + table(rates) + more + place[2], readme)


def main() -> None:
    """Rewrite the README's tables."""
    headline = json.loads(HEADLINE.read_text())
    path, rates = ROOT / "README.md", success_rates(headline)
    if rates is None:
        raise SystemExit(f"{HEADLINE} lacks a solver: the README stays as it is")
    readme = fill(path.read_text(), rates, plain_sentence(headline))
    path.write_text(fill_halls(readme, json.loads(SUMMARY.read_text())))


if __name__ == "__main__":
    main()
