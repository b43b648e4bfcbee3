"""Figures of a search: the tree, the tree on its hall, and an episode as an animation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Float64s, Ints
from dtsn.config import SOLVERS
from dtsn.drawing import (
    ACTION_COLOURS,
    INK,
    MUTED,
    Scene,
    draw_hall,
    label,
    new_figure,
    rgb,
    save,
    spread,
    tidy,
    zoom,
)
from dtsn.envs.navigation import ACTION_NAMES, GOAL, MOVES, render_rgb

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PALE_WALL = (190, 196, 206)  # under a tree, whose late edges are dark
MAX_DRAWN = 1500  # nodes in one picture: more would take minutes and show nothing


class Tree(TypedDict):
    """One row of a ``SearchTree`` as numpy: T expansions, A actions, N = 1 + T·A slots."""

    selected: Ints  # [T]
    parent: Ints  # [N]
    path_value: NDArray[np.floating]  # [N]
    root_action: Ints  # [N]
    expanded_at: Ints  # [N]
    depth: Ints  # [N]
    q_values: NDArray[np.floating]  # [T, A]
    log_probs: NDArray[np.floating]  # [T]


def search_on_hall(scene: Scene, tree: Tree, path: Path) -> Path:
    """One search: the tree laid out on the hall, and the root's Q-values after every iteration.

    A node stands in the cell that the robot would reach by its actions if there were no walls, on the side
    that it comes from. The best path is bold, in the colour of the action that it begins with.
    """
    figure = new_figure(10.6, 5.0)
    hall, lines = figure.subplots(1, 2, width_ratios=(1.2, 1))
    draw_hall(hall, scene, wall=PALE_WALL)
    _draw_tree(hall, scene, tree)
    _draw_q_values(lines, tree["q_values"])
    return save(figure, path)


def search_figure(document: Mapping[str, Any], path: Path) -> Path:
    """A search document (see ``dtsn.inspection``): the tree, its hall if it has one, and the Q-values.

    The suffix says whether it becomes an SVG or a PNG.
    """
    if len(document["nodes"]) > MAX_DRAWN:
        raise ValueError(
            f"a tree of {len(document['nodes'])} nodes is too large to draw, at most {MAX_DRAWN}: "
            "search with fewer iterations or write .json"
        )
    tree, grid = _tree_of(document), document["grid"]
    figure = new_figure(13.5 if grid else 11.5, 6.4)
    layout = figure.add_gridspec(2, 2, width_ratios=(1.75, 1), height_ratios=(1.5, 1))
    _draw_links(figure.add_subplot(layout[:, 0]), tree, document["actions"], document["best_path"])
    lines = figure.add_subplot(layout[1, 1] if grid else layout[:, 1])
    if grid:
        hall = figure.add_subplot(layout[0, 1])
        scene = Scene(walls=np.array(grid["walls"], bool), goal=grid["goal"], start=grid["robot"], title="")
        draw_hall(hall, scene, wall=PALE_WALL)
        _draw_tree(hall, scene, tree)
        hall.set_xlabel("where its nodes would be without walls", color=MUTED, fontsize=9)
    _draw_q_values(lines, tree["q_values"], document["actions"])
    return save(figure, path)


def _tree_of(document: Mapping[str, Any]) -> Tree:
    """The arrays of a search document; nodes without a value of their own get the best of their leaves."""
    nodes, iterations = document["nodes"], document["iterations"]
    value = np.array([np.nan if node["path_value"] is None else node["path_value"] for node in nodes])
    for node in reversed(nodes[1:]):  # children come after their parents
        if node["parent"] and nodes[node["parent"]]["path_value"] is None:
            value[node["parent"]] = np.nanmax([value[node["parent"]], value[node["id"]]])
    value[0] = 0.0

    def column(name: str, missing: int) -> Ints:
        return np.array([missing if node[name] is None else node[name] for node in nodes])

    return Tree(
        selected=np.array([iteration["expanded"] for iteration in iterations]),
        parent=column("parent", -1),
        path_value=value,
        root_action=column("root_action", -1),
        expanded_at=column("expanded_at", len(iterations) + 1) - 1,
        depth=column("depth", 0),
        q_values=np.array([iteration["q"] for iteration in iterations], dtype=np.float64),
        log_probs=np.log([iteration["probability"] for iteration in iterations]),
    )


def _draw_links(axes: Axes, tree: Tree, actions: Sequence[str], best: Sequence[int]) -> None:
    """The tree as nodes and links: the root on top, an expansion's children below it from left to right."""
    from matplotlib.collections import LineCollection

    parent, value, count = tree["parent"], tree["path_value"], len(tree["parent"])
    inner = tree["expanded_at"] < len(tree["selected"])
    place = np.stack([_columns(parent), -tree["depth"]], axis=1)  # [N, 2] x, y
    ends = np.stack([place[parent[1:]], place[1:]], axis=1)  # [N − 1, 2, 2]
    axes.add_collection(LineCollection(list(ends), colors="#b9bec7", linewidths=1, zorder=1))
    colour = ACTION_COLOURS[tree["root_action"][best[-1]] % 4]
    axes.plot(*place[list(best)].T, color=colour, linewidth=4, zorder=2, solid_capstyle="round")
    small = count > 90
    order = np.argsort(inner, kind="stable")  # expanded nodes above leaves
    shades = np.where(np.arange(count) == 0, np.nanmax(value[1:]), value)
    sizes = np.where(inner, 150, 40) / (4 if small else 1)
    axes.scatter(place[order, 0], place[order, 1], c=shades[order], s=sizes[order],
                 cmap="viridis", edgecolors="white", linewidths=0.7, zorder=3)  # fmt: skip
    low, high = value[1:].min(), value[1:].max()
    for n in [] if small else range(count):
        x, y = place[n]
        if inner[n]:
            ink = "white" if shades[n] < low + 0.6 * (high - low) else INK
            axes.text(x, y, str(tree["expanded_at"][n] + 1), color=ink, fontsize=8,
                      ha="center", va="center_baseline", zorder=4)  # fmt: skip
        if n and (inner[n] or n == best[-1]):
            chance = f"π {np.exp(tree['log_probs'][tree['expanded_at'][n]]):.2f}" if inner[n] else "best"
            text = f" {actions[(n - 1) % len(actions)]} {value[n]:.2f}\n {chance}".replace("-", "−")
            label = axes.text(
                x, y + 0.1, text, color=INK, fontsize=7, va="bottom", zorder=5, linespacing=0.95
            )
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8})
    axes.set_title(f"Search tree, {len(tree['selected'])} expansions", color=INK, fontsize=11)
    words = "dark to light: path value; bold: best path"
    if not small:
        words = f"numbers: order of expansion; beside them: action, path value, chance of the choice; {words}"
    axes.set_xlabel(words, color=MUTED, fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelleft=False, labelbottom=False)
    axes.margins(0.04, 0.1)


def _columns(parent: Ints) -> Float64s:
    """Where from left to right each node stands, ``[N]``: leaves side by side, others amid their children."""
    children: list[list[int]] = [[] for _ in parent]
    for n in range(1, len(parent)):
        children[parent[n]].append(n)
    order, waiting = [], [0]
    while waiting:  # depth first
        n = waiting.pop()
        order.append(n)
        waiting += reversed(children[n])
    column = np.zeros(len(parent))
    leaves = [n for n in order if not children[n]]
    column[leaves] = np.arange(len(leaves))
    for n in reversed(order):
        if children[n]:
            column[n] = column[children[n]].mean()
    return column


def episode_gif(frames: Sequence[tuple[Mapping[str, Any], str]], path: Path, delay: float = 0.25) -> Path:
    """An episode as search documents with what each decision led to (see ``watch_navigation``), animated.

    Each frame shows the hall, the way that the search plans and its Q-values; the last one is held.
    """
    image, drawing, font = _pillow()
    pictures = [_frame(image, drawing, font, document, step) for step, (document, _) in enumerate(frames)]
    pictures.append(_frame(image, drawing, font, frames[-1][0], len(frames), frames[-1][1]))
    milliseconds = [int(1000 * delay)] * len(frames) + [max(1500, int(1000 * delay))]
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return path


def _frame(
    image: Any, drawing: Any, font: Any, document: Mapping[str, Any], step: int, outcome: str = ""
) -> Any:
    """One frame of an episode; with an ``outcome``, the state after the document's decision."""
    cell, grid, path = 16, document["grid"], document["best_path"]
    walls, robot = np.array(grid["walls"], dtype=bool), np.array(grid["robot"])
    if outcome:
        robot = np.array(document["cells"][str(1 + document["action"])])
    hall = render_rgb(walls, np.array(grid["goal"]), robot, cell)
    height, width = hall.shape[:2]
    picture = image.new("RGB", (width + 118, height), (255, 255, 255))
    picture.paste(image.fromarray(hall), (0, 0))
    pen = drawing.Draw(picture)
    if not outcome:
        way = [(np.array(document["cells"][str(n)])[::-1] + 0.5) * cell for n in path]
        pen.line([tuple(point) for point in way], fill=ACTION_COLOURS[document["action"] % 4], width=3)
        if path[-1] in document["blocked"]:  # the plan runs into a wall
            x, y = way[-1]
            for slope in (-4, 4):
                pen.line([(x - 4, y - slope), (x + 4, y + slope)], fill=SOLVERS["qnet"].colour, width=2)
    text = font.load_default(13)
    pen.text((width + 10, 8), f"step {step}", fill=INK, font=text)
    if outcome:
        colour = SOLVERS["dtsn" if outcome == "arrived" else "qnet"].colour
        pen.text((width + 10, 30), outcome, fill=colour, font=text)
        return picture.quantize(64)
    low, high = min(document["q"]), max(document["q"])
    for action, (name, q) in enumerate(zip(document["actions"], document["q"], strict=True)):
        y = 36 + 34 * action
        pen.text((width + 10, y), f"{name} {q:.2f}", fill=INK, font=text)
        bar = 4 + 90 * (q - low) / max(high - low, 1e-9)
        colour = ACTION_COLOURS[action % 4] if action == document["action"] else "#c9cdd4"
        pen.rectangle((width + 10, y + 17, width + 10 + bar, y + 24), fill=colour)
    return picture.quantize(64)


def _pillow() -> tuple[Any, Any, Any]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError("animations need pillow: pip install 'dtsn[plots]'") from error
    return Image, ImageDraw, ImageFont


def _draw_tree(axes: Axes, scene: Scene, tree: Tree) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    parent, value = tree["parent"], tree["path_value"]
    steps, actions = len(tree["selected"]), tree["q_values"].shape[1]
    inner = tree["expanded_at"] < steps
    drawn = np.flatnonzero(np.isfinite(value) & (parent >= 0))  # closed actions are not in the tree
    cells, place = _layout(np.asarray(scene["start"]), parent)
    zoom(axes, scene, cells)
    _point_at(axes, np.asarray(scene["goal"]))
    for n in drawn:
        age = (n - 1) // actions / max(1, steps - 1)
        ends = place[[parent[n], n]]
        axes.plot(ends[:, 1], ends[:, 0], color=str(0.7 - 0.65 * age), linewidth=1.2, zorder=3)

    best = [int(drawn[np.where(inner[drawn], -np.inf, value[drawn]).argmax()])]
    while parent[best[-1]] >= 0:
        best.append(int(parent[best[-1]]))
    for width, colour in ((7.0, "white"), (4.2, ACTION_COLOURS[tree["root_action"][best[0]]])):
        axes.plot(place[best, 1], place[best, 0], color=colour, linewidth=width, zorder=4)

    low, high = value[drawn].min(), value[drawn].max()
    shade = ScalarMappable(Normalize(low, high), "viridis")
    colours = dict(zip(drawn, shade.to_rgba(value[drawn]), strict=True))
    scale = min(1.0, (90 / len(value)) ** 0.5)  # large trees need small nodes
    for n in drawn:
        size, (row, column) = (15 if inner[n] else 8) * scale, place[n]
        axes.plot(column, row, "o", color=colours[n], markersize=size,
                  markeredgecolor="white", markeredgewidth=0.7, zorder=5 + inner[n])  # fmt: skip
        if inner[n] and scale == 1:
            ink = "white" if value[n] < low + 0.6 * (high - low) else INK
            axes.text(column, row, str(tree["expanded_at"][n] + 1), color=ink, fontsize=8,
                      ha="center", va="center_baseline", zorder=7)  # fmt: skip
    bar = axes.figure.colorbar(shade, ax=axes, shrink=0.8, pad=0.04)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelcolor=MUTED, labelsize=9)
    bar.ax.set_title("path value", color=MUTED, fontsize=9, loc="left")
    order = "numbers: order of expansion; " if scale == 1 else ""
    axes.set_xlabel(f"{order}darker edges: later; bold: best path", color=MUTED, fontsize=9)
    axes.set_title(scene.get("title", f"Search tree, {steps} expansions"), color=INK, fontsize=11)


def _draw_q_values(axes: Axes, q_values: NDArray[np.floating], names: Sequence[str] = ACTION_NAMES) -> None:
    """Lines of ``q_values [T, A]``, an open action each; the best one at the end is bold."""
    from matplotlib.ticker import MaxNLocator

    tidy(axes, "Q-values at the root")
    final = q_values[-1]
    shown = np.flatnonzero(np.isfinite(final))
    for action in shown:
        width = 3.5 if final[action] == final[shown].max() else 1.6
        axes.plot(range(1, len(q_values) + 1), q_values[:, action], color=ACTION_COLOURS[action % 4],
                  linewidth=width, marker="o" if len(q_values) <= 30 else "", markersize=width + 2,
                  zorder=2 + width)  # fmt: skip
    axes.set_xlabel("search iteration", color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = axes.get_ylim()
    digits = 2 if high - low > 0.5 else 3
    for action, y in zip(shown, spread(final[shown], (high - low) / 16, low, high), strict=True):
        name = names[int(action)] if len(final) == len(names) else str(action)
        text = f"{name}  {final[action]:.{digits}f}".replace("-", "−")
        label(axes, len(q_values), float(final[action]), y, text, ACTION_COLOURS[action % 4])


# --- geometry ----------------------------------------------------------------------------------------


def _layout(start: Ints, parent: Ints) -> tuple[Ints, Float64s]:
    """The nodes' cells and where in them they are drawn, each ``[N, 2]``, from ``parent [N]``."""
    move = np.concatenate([[(0, 0)], MOVES[np.arange(len(parent) - 1) % len(MOVES)]])
    cells = np.tile(start, (len(parent), 1))
    for n in range(1, len(parent)):
        cells[n] = cells[parent[n]] + move[n]
    place = cells - 0.24 * move
    twins: dict[tuple[int, ...], list[int]] = {}  # nodes of one cell that come from the same side
    for n in range(1, len(parent)):
        twins.setdefault((*cells[n], *move[n]), []).append(n)
    for group in twins.values():
        aside = np.linspace(-1, 1, len(group)) * min(0.3, 0.11 * (len(group) - 1))
        place[group] += aside[:, None] * move[group][:, ::-1]
    return cells, place


def _point_at(axes: Axes, goal: Ints) -> None:
    """An arrow at the border towards a goal that is out of sight."""
    low = np.array([axes.get_ylim()[1], axes.get_xlim()[0]])
    high = np.array([axes.get_ylim()[0], axes.get_xlim()[1]])
    tip, tail = np.clip(goal, low + 0.15, high - 0.15), np.clip(goal, low + 0.8, high - 0.8)
    if np.any((goal < low) | (goal > high)):
        arrow = {"arrowstyle": "-|>", "color": rgb(GOAL), "linewidth": 2.5, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("goal", (tip[1], tip[0]), (tail[1], tail[0]), color=rgb(GOAL), fontweight="bold",
                      ha="center", va="center", arrowprops=arrow, zorder=9)  # fmt: skip
