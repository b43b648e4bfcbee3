"""A search as text: the tree with its best path, the hall with the planned way, the Q-values."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from dtsn.inspection.document import Document

COLOURS = ("blue", "dark_orange", "magenta", "green")  # E, S, W, N, as in the pictures
HALL_LEGEND = "● robot  ◆ goal  → the way that it plans  ✗ where that way meets a wall"
TREE_LEGEND = "path value, r reward, V value; t when it was expanded, π how likely that was"
ARROWS = ("→", "↓", "←", "↑")


def title_text(document: Document) -> Text:
    """Who searched, how, and where."""
    solver, source = document["solver"], document["source"]
    words = [f"{solver['name']}, {solver['planner'].replace('_', ' ')}, {solver['iterations']} expansions"]
    if solver["rule"]:
        words.append(f"{solver['rule']} at temperature {solver['temperature']:g}")
    if source and source["environment"] == "navigation":
        words.append(f"level {source['level']}, {source['exits']} exit{'s' * (source['exits'] - 1)}")
        words.append(f"step {source['time']}")
    return Text("; ".join(words), style="bold")


def q_text(document: Document) -> Text:
    """The Q-values at the root, the best in colour."""
    text = Text("Q ")
    for action, (name, q) in enumerate(zip(document["actions"], document["q"], strict=True)):
        best = action == document["action"]
        text.append(f"  {name} {_signed(q)}", style=f"bold {_colour(action)}" if best else "dim")
    return text


def tree_text(document: Document, lines: int = 40) -> Tree:
    """The search tree: all of its nodes if ``lines`` are enough for them.

    Otherwise those on the best path and, as far as there is room, those that were expanded, the earliest
    first; what is left out is counted.
    """
    nodes, best = document["nodes"], set(document["best_path"])
    shown = set(range(len(nodes)))
    if len(nodes) > lines:
        shown = set(document["best_path"])
        for iteration in document["iterations"]:
            if len(shown) < lines // 2:  # the other half is for the lines that count what is folded
                shown.add(iteration["expanded"])
    children: dict[int, list[int]] = {}
    for node in nodes[1:]:
        children.setdefault(node["parent"], []).append(node["id"])
    root = Tree(Text("root  ") + q_text(document))
    branches = {0: root}
    for n in _preorder(children, shown):
        branches[n] = branches[nodes[n]["parent"]].add(_node_text(document, n, n in best), guide_style="dim")
    for n, branch in branches.items():
        folded = [child for child in children.get(n, []) if child not in shown]
        if folded:
            branch.add(_folded_text(document, folded), guide_style="dim")
    return root


def hall_text(document: Document, outcome: str = "") -> Text:
    """The hall: walls, robot, goal and the way that the search plans; a cross where it meets a wall."""
    grid, nodes, path = document["grid"], document["nodes"], document["best_path"]
    walls = np.array(grid["walls"], dtype=bool)
    cells = {tuple(cell): ("██", "bright_black") for cell in np.argwhere(walls)}
    for n in path[1:]:
        action = nodes[n]["action"]
        blocked = n in document["blocked"]
        cells[tuple(document["cells"][str(n)])] = (
            ("✗ ", "bold red") if blocked else (f"{ARROWS[action]} ", f"bold {_colour(document['action'])}")
        )
        if blocked:
            break
    cells[tuple(grid["goal"])] = ("◆ ", "bold green")
    cells[tuple(grid["robot"])] = ("● ", "bold red" if outcome == "collided" else "bold bright_blue")
    text = Text(no_wrap=True)
    for row in range(len(walls)):
        for column in range(walls.shape[1]):
            text.append(*cells.get((row, column), ("· ", "grey30")))
        text.append("\n")
    text.rstrip()
    return text


def search_text(document: Document, lines: int, width: int) -> Group:
    """All of it: side by side where the terminal is wide enough."""
    title, tree, legend = title_text(document), tree_text(document, lines), TREE_LEGEND
    if document["grid"] is None:
        return Group(title, tree, Text(legend, style="dim"))
    hall, legend = hall_text(document), f"{HALL_LEGEND}\n{legend}"
    if width < 110:
        return Group(title, hall, tree, Text(legend, style="dim"))
    columns = Table.grid(padding=(0, 3))
    columns.add_row(hall, tree)
    return Group(title, columns, Text(legend, style="dim"))


def show_episode(
    decisions: Iterator[tuple[Document, str]], console: Console, delay: float
) -> tuple[int, str]:
    """Show an episode as it goes on, or a line per step where there is no terminal: (steps, outcome)."""
    played: list[tuple[Document, str]] = []
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for document, outcome in decisions:
            if console.is_terminal:
                live.update(Group(title_text(document), hall_text(document), q_text(document)), refresh=True)
                time.sleep(delay)
            else:
                console.print(Text(f"step {len(played)} ") + q_text(document))
            played.append((document, outcome))
    console.print(_after(*played[-1]))
    return len(played), played[-1][1]


def _after(document: Document, outcome: str) -> Text:
    """The hall after a document's decision."""
    robot = document["cells"][str(1 + document["action"])]
    return hall_text({**document, "grid": {**document["grid"], "robot": robot}, "best_path": [0]}, outcome)


def _preorder(children: dict[int, list[int]], shown: set[int]) -> list[int]:
    order, waiting = [], list(reversed(children.get(0, [])))
    while waiting:
        n = waiting.pop()
        if n in shown:
            order.append(n)
            waiting += reversed(children.get(n, []))
    return order


def _node_text(document: Document, n: int, best: bool) -> Text:
    node = document["nodes"][n]
    text = Text(
        document["actions"][node["action"]], style=f"bold {_colour(node['root_action'])}" if best else ""
    )
    if node["path_value"] is not None:
        text.append(f"  {_signed(node['path_value'])}")
        text.append(f"  r {_signed(node['reward'])} V {_signed(node['value'])}", style="dim not bold")
    if node["expanded_at"] is not None:
        chosen = document["iterations"][node["expanded_at"] - 1]["probability"]
        text.append(f"  t {node['expanded_at']}, π {chosen:.2f}", style="cyan not bold")
    elif best:
        text.append("  best leaf")
    return text


def _folded_text(document: Document, folded: list[int]) -> Text:
    """How many nodes are left out below a node, and the best of their leaves."""
    nodes: list[dict[str, Any]] = document["nodes"]
    inside = set(folded)
    for node in nodes[1:]:  # parents come before their children
        if node["parent"] in inside:
            inside.add(node["id"])
    leaves = [nodes[n]["path_value"] for n in inside if nodes[n]["expanded_at"] is None]
    names = ", ".join(document["actions"][nodes[n]["action"]] for n in folded[:8])
    more = "" if len(folded) <= 8 else ", …"
    count = f"{len(inside)} node{'s' * (len(inside) > 1)}"
    return Text(f"… {names}{more}: {count}, at most {_signed(max(leaves))}", style="dim not bold")


def _colour(action: int) -> str:
    return COLOURS[action % len(COLOURS)]


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
