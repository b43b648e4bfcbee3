"""A search as text: the tree with its best path, the hall with the planned way, the Q-values."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from dtsn.inspection.document import Grid, Node, SearchDocument

COLOURS = ("blue", "dark_orange", "magenta", "green")  # E, S, W, N, as in the pictures
HALL_LEGEND = "● robot  ◆ goal  → the way that it plans  ✗ where that way meets a wall"
TREE_LEGEND = "path value, r reward, V value; t when it was expanded, π how likely that was"
ARROWS = ("→", "↓", "←", "↑")


def title_text(document: SearchDocument) -> Text:
    """Say who searched, how, and where."""
    solver, source = document["solver"], document["source"]
    made, allowed = len(document["iterations"]), solver["iterations"]
    count = f"{made} expansions" if made == allowed else f"{made} of {allowed} expansions, then none was left"
    words = [f"{solver['name']}, {solver['planner'].replace('_', ' ')}, {count}"]
    if solver["rule"] and solver["temperature"] is not None:
        words.append(f"{solver['rule']} at temperature {solver['temperature']:g}")
    if source:
        exits = source["options"].get("exits")
        where = "" if exits is None else f", {exits} exit{'' if exits == 1 else 's'}"
        words.append(f"level {source['level']}{where}; step {source['time']}")
    return Text("; ".join(words), style="bold")


def q_text(document: SearchDocument) -> Text:
    """Return the Q-values at the root, the best in colour."""
    text = Text("Q ")
    for action, (name, q) in enumerate(zip(document["actions"], document["q"], strict=True)):
        best = action == document["action"]
        text.append(f"  {name} {_signed(q)}", style=f"bold {_colour(action)}" if best else "dim")
    return text


def plan_text(scene: Grid) -> Text:
    """Return what the best path is worth in the true hall."""
    plan, arrives = scene["plan"], ""
    if plan["blocked_at"] is not None:
        return Text(
            f"plan: runs into a wall at step {plan['blocked_at']} of {plan['steps']}", style="bold red"
        )
    if plan["optimal_steps"] == plan["steps"]:
        arrives = ", all on a shortest path"
    elif plan["steps"]:
        arrives = f", the first {plan['optimal_steps']} on a shortest path"
    return Text(f"plan: {plan['steps']} steps, can be walked{arrives}", style="green")


def tree_text(document: SearchDocument, lines: int = 40) -> Tree:
    """Return the search tree: all of its nodes if ``lines`` are enough for them.

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
        children.setdefault(node["parent"] or 0, []).append(node["id"])
    root = Tree(Text("root  ") + q_text(document))
    branches = {0: root}
    for n in _preorder(children, shown):
        above = branches[nodes[n]["parent"] or 0]
        branches[n] = above.add(_node_text(document, n, n in best), guide_style="dim")
    for n, branch in branches.items():
        folded = [child for child in children.get(n, []) if child not in shown]
        if folded:
            branch.add(_folded_text(document, folded), guide_style="dim")
    return root


def hall_text(document: SearchDocument, scene: Grid, outcome: str = "") -> Text:
    """Return the hall: walls, robot, goal and the way that the search plans; a cross where it meets a wall.

    With an ``outcome``, the hall after the decision, and no plan.
    """
    walls = np.array(scene["walls"], dtype=bool)
    cells = {tuple(cell): ("██", "bright_black") for cell in np.argwhere(walls)}
    robot = scene["robot"]
    if outcome:
        robot = scene["cells"][document["best_path"][1]]
    else:
        cells |= _planned(document, scene)
    cells[tuple(scene["goal"])] = ("◆ ", "bold green")
    cells[tuple(robot)] = ("● ", "bold red" if outcome == "collided" else "bold bright_blue")
    text = Text(no_wrap=True)
    for row in range(len(walls)):
        for column in range(walls.shape[1]):
            text.append(*cells.get((row, column), ("· ", "grey30")))
        text.append("\n")
    text.rstrip()
    return text


def _planned(document: SearchDocument, scene: Grid) -> dict[tuple[int, ...], tuple[str, str]]:
    """Return the cells of the best path, as far as it can be walked."""
    cells = {}
    for n in document["best_path"][1:]:
        action, blocked = document["nodes"][n]["action"], n in scene["blocked"]
        arrow = (f"{ARROWS[action or 0]} ", f"bold {_colour(document['action'])}")
        cells[tuple(scene["cells"][n])] = ("✗ ", "bold red") if blocked else arrow
        if blocked:
            break
    return cells


def search_text(document: SearchDocument, lines: int, width: int) -> Group:
    """Return all of it: side by side where the terminal is wide enough."""
    title, tree = title_text(document), tree_text(document, lines)
    scene, legend = document["scene"], Text(TREE_LEGEND, style="dim")
    if scene is None or scene["kind"] == "picture":
        return Group(title, tree, legend)
    if scene["kind"] == "text":
        return Group(title, Text(scene["text"]), tree, legend)
    hall, plan = hall_text(document, scene), plan_text(scene)
    legend = Text(f"{HALL_LEGEND}\n{TREE_LEGEND}", style="dim")
    if width < 110:
        return Group(title, hall, plan, tree, legend)
    columns = Table.grid(padding=(0, 3))
    columns.add_row(hall, tree)
    return Group(title, columns, plan, legend)


def show_episode(
    decisions: Iterator[tuple[SearchDocument, str]], console: Console, delay: float
) -> tuple[int, str]:
    """Show an episode as it goes on, or a line per step where there is no terminal: (steps, outcome)."""
    played: list[tuple[SearchDocument, str]] = []
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for document, outcome in decisions:
            if console.is_terminal:
                live.update(Group(title_text(document), *_hall_of(document), q_text(document)), refresh=True)
                time.sleep(delay)
            else:
                console.print(Text(f"step {len(played)} ") + q_text(document))
            played.append((document, outcome))
    for last in _hall_of(*played[-1]):
        console.print(last)
    return len(played), played[-1][1]


def _hall_of(document: SearchDocument, outcome: str = "") -> list[Text]:
    scene = document["scene"]
    if scene is not None and scene["kind"] == "text":
        return [Text(scene["text"])]
    return [hall_text(document, scene, outcome)] if scene is not None and scene["kind"] == "grid" else []


def _preorder(children: dict[int, list[int]], shown: set[int]) -> list[int]:
    order, waiting = [], list(reversed(children.get(0, [])))
    while waiting:
        n = waiting.pop()
        if n in shown:
            order.append(n)
            waiting += reversed(children.get(n, []))
    return order


def _node_text(document: SearchDocument, n: int, best: bool) -> Text:
    node = document["nodes"][n]
    style = f"bold {_colour(node['root_action'] or 0)}" if best else ""
    text = Text(document["actions"][node["action"] or 0], style=style)
    if node["label"] is not None:
        text.append(f"  {node['label']}")
    if node["path_value"] is not None:
        text.append(f"  {_signed(node['path_value'])}")
        text.append(f"  r {_signed(node['reward'])} V {_signed(node['value'])}", style="dim not bold")
    if node["expanded_at"] is not None:
        chosen = document["iterations"][node["expanded_at"] - 1]["probability"]
        text.append(f"  t {node['expanded_at']}, π {chosen:.2f}", style="cyan not bold")
    elif best:
        text.append("  best leaf")
    if node["terminal"] > 0.5:
        text.append("  end", style="green not bold")
    if node["same_as"] is not None:
        text.append(f"  same place as node {node['same_as']}", style="dim not bold")
    return text


def _folded_text(document: SearchDocument, folded: list[int]) -> Text:
    """Return how many nodes are left out below a node, and the best of their leaves."""
    nodes: list[Node] = document["nodes"]
    inside = set(folded)
    for node in nodes[1:]:  # parents come before their children
        if node["parent"] in inside:
            inside.add(node["id"])
    values = [nodes[n]["path_value"] for n in inside if nodes[n]["expanded_at"] is None]
    leaves = [value for value in values if value is not None]
    names = ", ".join(document["actions"][nodes[n]["action"] or 0] for n in folded[:8])
    more = "" if len(folded) <= 8 else ", …"
    count = f"{len(inside)} node{'s' * (len(inside) > 1)}"
    best = f", at most {_signed(max(leaves))}" if leaves else ""
    return Text(f"… {names}{more}: {count}{best}", style="dim not bold")


def _colour(action: int) -> str:
    return COLOURS[action % len(COLOURS)]


def _signed(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}".replace("-", "−")
