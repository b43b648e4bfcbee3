"""A search document as a figure, and an episode of them as an animation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtsn.arrays import Bools, Float64s, Ints
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
from dtsn.envs.navigation import GOAL, MOVES, render_rgb
from dtsn.errors import UserError
from dtsn.inspection.document import Grid, SearchDocument
from dtsn.storage import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALE_WALL = (190, 196, 206)  # under a tree, whose late edges are dark
RANGE_SHOWN = 15.0  # below the best value: what is worse is drawn there, lest one wall flattens all else
MAX_DRAWN = 1500  # nodes in one picture: more would take minutes and show nothing
MANY = 90  # nodes: more get no numbers
GOOD, BAD = SOLVERS["dtsn"].colour, SOLVERS["qnet"].colour


def search_figure(document: SearchDocument, path: Path) -> Path:
    """Draw the tree, its hall if it has one, and the Q-values, as an SVG or a PNG by the suffix."""
    if len(document["nodes"]) > MAX_DRAWN:
        raise UserError(
            f"a tree of {len(document['nodes'])} nodes is too large to draw, at most {MAX_DRAWN}: "
            "search with fewer iterations or write .json"
        )
    tree, scene = _Tree(document), document["scene"]
    grid = scene if scene is not None and scene["kind"] == "grid" else None
    figure = new_figure(13.5 if grid else 11.5, 6.4)
    layout = figure.add_gridspec(2, 2, width_ratios=(1.75, 1), height_ratios=(1.5, 1))
    _draw_links(figure.add_subplot(layout[:, 0]), tree)
    lines = figure.add_subplot(layout[1, 1] if grid else layout[:, 1])
    if grid:
        hall = figure.add_subplot(layout[0, 1])
        _draw_on_hall(hall, tree, grid)
        hall.set_xlabel(_plan_words(grid), color=MUTED, fontsize=9)
    _draw_q_values(lines, document)
    return save(figure, path)


def hall_figure(document: SearchDocument, path: Path) -> Path:
    """Return the tree laid out on its hall, and the root's Q-values after every iteration."""
    scene = document["scene"]
    if scene is None or scene["kind"] != "grid":
        raise UserError("the document must show a hall, got another scene: use search_figure")
    figure = new_figure(10.6, 5.0)
    hall, lines = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _draw_on_hall(hall, _Tree(document), scene, f"Search tree, {len(document['iterations'])} expansions")
    _draw_q_values(lines, document)
    return save(figure, path)


def _plan_words(grid: Grid) -> str:
    plan = grid["plan"]
    if plan["blocked_at"] is not None:
        return f"the plan runs into a wall at step {plan['blocked_at']}"
    return (
        f"the plan can be walked; {plan['optimal_steps']} of its {plan['steps']} steps are on a shortest path"
    )


class _Tree:
    """A document's nodes as arrays; nodes without a value of their own get the best of their leaves."""

    def __init__(self, document: SearchDocument):
        nodes, self.document = document["nodes"], document
        self.parent: Ints = np.array([-1 if node["parent"] is None else node["parent"] for node in nodes])
        self.action: Ints = np.array([-1 if node["action"] is None else node["action"] for node in nodes])
        self.depth: Ints = np.array([node["depth"] for node in nodes])
        self.inner: Bools = np.array([node["expanded_at"] is not None for node in nodes])
        self.age: Ints = np.array([nodes[p]["expanded_at"] or 0 if p >= 0 else 0 for p in self.parent])
        value = np.array([np.nan if node["path_value"] is None else node["path_value"] for node in nodes])
        for n in reversed(range(1, len(nodes))):  # children come after their parents
            above = self.parent[n]
            if above and nodes[above]["path_value"] is None:
                value[above] = np.fmax(value[above], value[n])
        value[0] = np.nanmax(value[1:])
        self.value: Float64s = np.fmax(value, value[0] - RANGE_SHOWN)
        self.best = document["best_path"]
        self.colour = ACTION_COLOURS[document["action"] % 4]

    def __len__(self) -> int:
        return len(self.parent)

    def order(self, n: int) -> str:
        """Return the iteration that expanded a node."""
        return str(self.document["nodes"][n]["expanded_at"])

    def ink(self, n: int) -> str:
        """Return the colour in which to write on a node."""
        low, high = self.value[1:].min(), self.value[1:].max()
        return "white" if self.value[n] < low + 0.6 * (high - low) else INK


def _draw_links(axes: Axes, tree: _Tree) -> None:
    """Draw the tree as nodes and links: the root on top, children below it from left to right."""
    from matplotlib.collections import LineCollection

    place = np.stack([_columns(tree.parent), -tree.depth], axis=1)  # [N, 2] x, y
    ends = np.stack([place[tree.parent[1:]], place[1:]], axis=1)  # [N − 1, 2, 2]
    axes.add_collection(LineCollection(list(ends), colors="#b9bec7", linewidths=1, zorder=1))
    for n in tree.best[1:]:
        axes.plot(
            *place[[tree.parent[n], n]].T, color=tree.colour, linewidth=4, zorder=2, solid_capstyle="round"
        )
    small = len(tree) > MANY
    order = np.argsort(tree.inner, kind="stable")  # expanded nodes above leaves
    sizes = np.where(tree.inner, 150, 40) / (4 if small else 1)
    axes.scatter(place[order, 0], place[order, 1], c=tree.value[order], s=sizes[order],
                 cmap="viridis", edgecolors="white", linewidths=0.7, zorder=3)  # fmt: skip
    for n in [] if small else range(len(tree)):
        x, y = place[n]
        if tree.inner[n]:
            axes.text(x, y, tree.order(n), color=tree.ink(n), fontsize=8,
                      ha="center", va="center_baseline", zorder=4)  # fmt: skip
        if n and (tree.inner[n] or n == tree.best[-1]):
            text = axes.text(x, y + 0.1, _node_words(tree, n), color=INK, fontsize=7,
                             va="bottom", zorder=5, linespacing=0.95, parse_math=False)  # fmt: skip
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8})
    axes.set_title(f"Search tree, {tree.inner.sum()} expansions", color=INK, fontsize=11)
    words = "dark to light: path value; bold: best path"
    if not small:
        words = f"numbers: order of expansion; beside them: action, path value, chance of the choice; {words}"
    axes.set_xlabel(words, color=MUTED, fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelleft=False, labelbottom=False)
    axes.margins(0.04, 0.1)


def _node_words(tree: _Tree, n: int) -> str:
    """Word what stands beside a node: action, path value, the state's name if it has one, and its chance."""
    document, node = tree.document, tree.document["nodes"][n]
    chance = "end" if node["terminal"] > 0.5 else "best"
    if node["expanded_at"] is not None:
        chance = f"π {document['iterations'][node['expanded_at'] - 1]['probability']:.2f}"
    name = "" if node["label"] is None else f" {node['label'][:24]}\n"
    return f"{name} {document['actions'][tree.action[n]]} {tree.value[n]:.2f}\n {chance}".replace("-", "−")


def _columns(parent: Ints) -> Float64s:
    """Place the nodes from left to right, ``[N]``: leaves side by side, others amid their children."""
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


def _draw_on_hall(axes: Axes, tree: _Tree, grid: Grid, title: str = "") -> None:
    """Draw the tree on its hall: a node stands where the true moves lead, on the side that it comes from.

    The best path is bold, in the colour of the action that it begins with; a cross is where it meets a wall.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scene = Scene(walls=np.array(grid["walls"], bool), goal=grid["goal"], start=grid["robot"])
    draw_hall(axes, scene, wall=PALE_WALL)
    cells, blocked = np.array(grid["cells"]), np.isin(np.arange(len(tree)), grid["blocked"])
    place = _layout(cells, tree.action, blocked)
    zoom(axes, scene, cells)
    _point_at(axes, np.asarray(grid["goal"]))
    last = max(1, tree.age.max() - 1)
    for n in range(1, len(tree)):
        ends = place[[tree.parent[n], n]]
        shade = str(0.7 - 0.65 * (tree.age[n] - 1) / last)
        axes.plot(ends[:, 1], ends[:, 0], color=shade, linewidth=1.2, zorder=3)
    walked = [n for n in tree.best if not (blocked[n] and blocked[tree.parent[n]])]
    for width, colour in ((7.0, "white"), (4.2, tree.colour)):
        axes.plot(place[walked, 1], place[walked, 0], color=colour, linewidth=width, zorder=4)
    scale_of = ScalarMappable(Normalize(tree.value[1:].min(), tree.value[1:].max()), "viridis")
    colours = scale_of.to_rgba(tree.value)
    scale = min(1.0, (MANY / len(tree)) ** 0.5)  # large trees need small nodes
    for n in range(1, len(tree)):
        size, (row, column) = (15 if tree.inner[n] else 8) * scale, place[n]
        axes.plot(column, row, "o", color=colours[n], markersize=size,
                  markeredgecolor="white", markeredgewidth=0.7, zorder=5 + tree.inner[n])  # fmt: skip
        if tree.inner[n] and scale == 1:
            axes.text(column, row, tree.order(n), color=tree.ink(n), fontsize=8,
                      ha="center", va="center_baseline", zorder=7)  # fmt: skip
    if blocked[walked[-1]]:
        axes.plot(*place[walked[-1], ::-1], "x", color=BAD, markersize=11, markeredgewidth=3, zorder=8)
    bar = axes.figure.colorbar(scale_of, ax=axes, shrink=0.8, pad=0.04)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelcolor=MUTED, labelsize=9)
    bar.ax.set_title("path value", color=MUTED, fontsize=9, loc="left")
    order = "numbers: order of expansion; " if scale == 1 else ""
    axes.set_xlabel(f"{order}darker edges: later; bold: best path", color=MUTED, fontsize=9)
    axes.set_title(title, color=INK, fontsize=11)


def _layout(cells: Ints, action: Ints, blocked: Bools) -> Float64s:
    """Place the nodes in their ``cells [N, 2]``, ``[N, 2]``: on the side that they come from.

    One that runs into a wall stands before that wall.
    """
    move = np.where(action[:, None] < 0, 0, MOVES[np.maximum(action, 0)])
    place: Float64s = cells + np.where(blocked[:, None], 0.34, -0.24) * move
    twins: dict[tuple[Any, ...], list[int]] = {}  # nodes of one cell that come from the same side
    for n in range(1, len(cells)):
        twins.setdefault((*cells[n], *move[n], blocked[n]), []).append(n)
    for group in twins.values():
        aside = np.linspace(-1, 1, len(group)) * min(0.3, 0.11 * (len(group) - 1))
        place[group] += aside[:, None] * move[group][:, ::-1]
    return place


def _point_at(axes: Axes, goal: Ints) -> None:
    """Draw an arrow at the border towards a goal that is out of sight."""
    low = np.array([axes.get_ylim()[1], axes.get_xlim()[0]])
    high = np.array([axes.get_ylim()[0], axes.get_xlim()[1]])
    tip, tail = np.clip(goal, low + 0.15, high - 0.15), np.clip(goal, low + 0.8, high - 0.8)
    if np.any((goal < low) | (goal > high)):
        arrow = {"arrowstyle": "-|>", "color": rgb(GOAL), "linewidth": 2.5, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("goal", (tip[1], tip[0]), (tail[1], tail[0]), color=rgb(GOAL), fontweight="bold",
                      ha="center", va="center", arrowprops=arrow, zorder=9)  # fmt: skip


def _draw_q_values(axes: Axes, document: SearchDocument) -> None:
    """Draw the Q-values after each iteration, a line per valid action; the best one at the end is bold."""
    from matplotlib.ticker import MaxNLocator

    tidy(axes, "Q-values at the root")
    rows = [iteration["q"] for iteration in document["iterations"]]
    values = np.array([[np.nan if q is None else q for q in row] for row in rows])  # [T, A]
    final = np.array([np.nan if q is None else q for q in document["q"]])
    shown = np.flatnonzero(np.isfinite(final))
    floor = np.nanmax(values) - RANGE_SHOWN
    for action in shown:
        width = 3.5 if action == document["action"] else 1.6
        axes.plot(range(1, len(values) + 1), values[:, action].clip(floor), color=ACTION_COLOURS[action % 4],
                  linewidth=width, marker="o" if len(values) <= 30 else "", markersize=width + 2,
                  zorder=2 + width)  # fmt: skip
    axes.set_xlabel("search iteration", color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = axes.get_ylim()
    digits = 2 if high - low > 0.5 else 3
    for action, y in zip(shown, spread(final[shown].clip(floor), (high - low) / 16, low, high), strict=True):
        text = f"{document['actions'][action]}  {final[action]:.{digits}f}".replace("-", "−")
        text = text.replace("$", r"\$")  # names are no formulas
        label(axes, len(values), float(max(final[action], floor)), y, text, ACTION_COLOURS[action % 4])


def episode_gif(frames: Sequence[tuple[SearchDocument, str]], path: Path, delay: float = 0.25) -> Path:
    """Animate an episode: search documents with what each decision led to (see ``watch_navigation``).

    Each frame shows the hall, the way that the search plans and its Q-values; the last one is held.
    """
    pictures = [_frame(document, step) for step, (document, _) in enumerate(frames)]
    pictures.append(_frame(frames[-1][0], len(frames), frames[-1][1]))
    milliseconds = [int(1000 * delay)] * len(frames) + [max(1500, int(1000 * delay))]
    with replaced(path) as partial:
        pictures[0].save(
            partial, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0
        )
    return path


def _frame(document: SearchDocument, step: int, outcome: str = "") -> Any:
    """Draw one frame of an episode; with an ``outcome``, the state after the document's decision."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError("animations need pillow: pip install 'dtsn[plots]'") from error
    scene, cell = document["scene"], 16
    if scene is None or scene["kind"] != "grid":
        raise UserError("an animation must show a hall, got documents with another scene")
    robot = scene["cells"][document["best_path"][1]] if outcome else scene["robot"]
    hall = render_rgb(np.array(scene["walls"], bool), np.array(scene["goal"]), np.array(robot), cell)
    height, width = hall.shape[:2]
    picture = Image.new("RGB", (width + 118, height), (255, 255, 255))
    picture.paste(Image.fromarray(hall), (0, 0))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    pen.text((width + 10, 8), f"step {step}", fill=INK, font=font)
    if outcome:
        pen.text((width + 10, 30), outcome, fill=GOOD if outcome == "arrived" else BAD, font=font)
        return picture.quantize(64)
    _draw_plan(pen, document, scene, cell)
    _draw_bars(pen, document, width + 10, font)
    return picture.quantize(64)


def _draw_plan(pen: Any, document: SearchDocument, scene: Grid, cell: int) -> None:
    """Draw the best path, with a cross where it meets a wall."""
    path = document["best_path"]
    way = [(np.array(scene["cells"][n])[::-1] + 0.5) * cell for n in path]
    pen.line([tuple(point) for point in way], fill=ACTION_COLOURS[document["action"] % 4], width=3)
    if path[-1] in scene["blocked"]:
        x, y = way[-1]
        for slope in (-4, 4):
            pen.line([(x - 4, y - slope), (x + 4, y + slope)], fill=BAD, width=2)


def _draw_bars(pen: Any, document: SearchDocument, x: int, font: Any) -> None:
    """Draw the Q-values as bars, the best in the colour of its action."""
    known = [q for q in document["q"] if q is not None]
    low, high = min(known), max(known)
    for action, (name, q) in enumerate(zip(document["actions"], document["q"], strict=True)):
        y = 36 + 34 * action
        pen.text((x, y), f"{name} –" if q is None else f"{name} {q:.2f}", fill=INK, font=font)
        if q is not None:
            bar = 4 + 90 * (q - low) / max(high - low, 1e-9)
            colour = ACTION_COLOURS[action % 4] if action == document["action"] else "#c9cdd4"
            pen.rectangle((x, y + 17, x + bar, y + 24), fill=colour)
