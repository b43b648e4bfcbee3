"""Figures: success rates, learning curves, paths on the grid, and the search tree drawn on its hall.

Plain numpy in, PNG, SVG or GIF out. matplotlib is an optional extra and is imported only when a figure is
drawn, through its object interface: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtsn.arrays import Bools, Float64s, Ints
from dtsn.envs.navigation import ACTION_NAMES, FLOOR, GOAL, MOVES, ROBOT, WALL, render_rgb
from dtsn.reproduce.experiments import PaperNumber
from dtsn.reproduce.markdown import NORMAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DPI = 130
INK, MUTED, RULE = "#22262e", "#6b7280", "#e3e5e8"  # text, secondary text, grid lines
NAMES = {"qnet": "Q-network", "search": "Model-based Search", "treeqn": "TreeQN", "dtsn": "D-TSN"}
ALL_ENDED = 64_000  # environment steps by which 64 episodes side by side have ended: none lasts over 1000
COLOURS = {"qnet": "#cf4a3f", "search": "#dd9a22", "treeqn": "#8262b8", "dtsn": "#1f6fb4"}
ACTION_COLOURS = ("#1f6fb4", "#dd8a1e", "#8262b8", "#2c9a6b")  # E, S, W, N
PALE_WALL = (190, 196, 206)  # under a tree, whose late edges are dark
MAX_DRAWN = 1500  # nodes in one picture: more would take minutes and show nothing
SCENARIOS = {2: "2 exits (as trained)", 1: "1 exit (never seen in training)"}


class Scene(TypedDict):
    """A hall, and what drove through it."""

    walls: Bools  # [H, W]
    goal: ArrayLike  # [2] row, column
    start: ArrayLike  # [2]
    paths: NotRequired[Mapping[str, ArrayLike]]  # name -> cells [n + 1, 2], start first; see sample_paths
    title: NotRequired[str]


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


def success_bars(
    summary: Mapping[str, Mapping[str, Any]], paper: Mapping[tuple[str, int, int], PaperNumber], path: Path
) -> Path:
    """The four solvers' success rates with their intervals, and the paper's as diamonds beside them."""
    figure = _figure(9.2, 4.2)
    diamond: dict[str, Any] = {
        "marker": "D",
        "color": "white",
        "markeredgecolor": INK,
        "markersize": 6.5,
        "ls": "",
    }
    for axes, (exits, title) in zip(figure.subplots(1, 2, sharey=True), SCENARIOS.items(), strict=True):
        _tidy(axes, title)
        for x, name in enumerate(NAMES):
            if cell := summary.get(name, {}).get(str(exits)):
                rate, (low, high) = 100 * cell["success"], 100 * np.array(cell["interval"])
                axes.bar(x, rate, width=0.56, color=COLOURS[name])
                axes.errorbar(x, rate, [[rate - low], [high - rate]], color=INK, capsize=5, linewidth=1.2)
                label = f"{rate:.{1 + (99.9 < rate < 100)}f}%"  # 99.96% is not 100.0%
                text = axes.text(x, high + 1.2, label, ha="center", color=INK, fontweight="bold")
                text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            else:
                axes.text(x, 2, "no rows", ha="center", color=MUTED)
            if printed := paper.get((name, exits, 10)):
                axes.plot(x + 0.37, printed.success, **diamond)
        axes.set_xticks(range(len(NAMES)), [name.replace("based ", "based\n") for name in NAMES.values()])
        axes.set(ylim=(0, 112), yticks=range(0, 101, 20), xlim=(-0.6, 3.6))
    figure.axes[0].set_ylabel("test levels solved, %", color=MUTED)
    figure.axes[0].plot([], [], label="the paper's number", **diamond)
    figure.legend(loc="outside lower center", frameon=False, labelcolor=MUTED)
    return _save(figure, path)


def learning_curves(curves: Mapping[str, Mapping[int, Mapping[str, Float64s]]], path: Path) -> Path:
    """Validation success against training steps: seeds thin, their mean bold.

    ``curves`` is ``{solver: {seed: {"step": [n], "validation_success_2": [n], ...}}}``, NaN where a step
    was not validated.
    """
    figure = _figure(10.5, 4.0)
    for axes, (exits, title) in zip(figure.subplots(1, 2, sharey=True), SCENARIOS.items(), strict=True):
        ends = {}
        for name, seeds in curves.items():
            lines = [_validated(curve, f"validation_success_{exits}") for curve in seeds.values()]
            lines = [line for line in lines if line]
            for line in lines:
                axes.plot(list(line), list(line.values()), color=COLOURS[name], linewidth=0.8, alpha=0.4)
            # The mean where all seeds were validated: one over fewer seeds would jump where a seed ends.
            shared = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
            if shared:
                mean = [float(np.mean([line[step] for line in lines])) for step in shared]
                axes.plot(shared, mean, color=COLOURS[name], linewidth=2.2, marker="o", markersize=3)
                ends[name] = (shared[-1], mean[-1])
        axes.set(ylim=(0, 103), xlabel="training step")
        for (name, (step, rate)), y in zip(
            ends.items(), _spread([y for _, y in ends.values()], 6.5, 2, 101), strict=True
        ):
            _label(axes, step, rate, y, f"{NAMES[name]} {rate:.0f}%", COLOURS[name])
        _tidy(axes, title)
        axes.xaxis.label.set_color(MUTED)
    figure.axes[0].set_ylabel("validation levels solved, %", color=MUTED)
    return _save(figure, path)


def procgen_scores(
    scores: Mapping[str, Mapping[str, Float64s]], titles: Mapping[str, str], path: Path
) -> Path:
    """A panel for each game: every player's mean score with its 95% interval."""
    players = [name for name in titles if any(name in of for of in scores.values())]
    panels = _panels(scores, 0.9 + 0.26 * len(players))
    for axes, game in zip(panels.axes, scores, strict=True):
        _tidy(axes, game)
        for y, name in enumerate(reversed(players)):
            if (values := scores[game].get(name)) is not None:
                half = NORMAL * values.std() / np.sqrt(len(values))
                colour = COLOURS.get(name.split("-")[0], MUTED)
                axes.errorbar(values.mean(), y, xerr=half, fmt="o", color=colour, capsize=3)
        axes.set_yticks(range(len(players)), [titles[name] for name in reversed(players)])
        axes.set_ylim(-0.6, len(players) - 0.4)
        axes.grid(axis="x", color=RULE, linewidth=0.8)
        place = axes.get_subplotspec()
        axes.tick_params(labelleft=place is not None and place.is_first_col())  # scores differ between games
    return _save(panels, path)


def policy_curves(
    curves: Mapping[str, Mapping[str, Float64s]], random: Mapping[str, float], path: Path
) -> Path:
    """A panel for each game: the behaviour policy's return while it learns, and random actions' (dashed).

    ``curves`` is ``{game: {"step": [n], "return": [n]}}``, ``random`` the mean score of random actions.
    """
    panels = _panels(curves, 2.2)
    for axes, (game, curve) in zip(panels.axes, curves.items(), strict=True):
        _tidy(axes, game)
        # At first only short episodes have ended, which is the successful ones in some games.
        told = curve["step"] >= min(ALL_ENDED, max(curve["step"], default=0))
        steps, returns = curve["step"][told] / 1000, curve["return"][told]
        axes.plot(steps, returns, color=COLOURS["dtsn"], linewidth=1.6, label="policy")
        if game in random:
            axes.axhline(random[game], color=MUTED, linestyle="--", linewidth=1.2, label="random actions")
        axes.set_xlabel("thousand environment steps", color=MUTED, fontsize=9)
        axes.set_ylim(bottom=min(0.0, *returns, random.get(game, 0.0)))
    panels.axes[0].set_ylabel("return, last 100 episodes", color=MUTED, fontsize=9)
    panels.axes[0].legend(frameon=False, fontsize=8, labelcolor=MUTED)
    return _save(panels, path)


def _panels(names: Collection[str], height: float) -> Figure:
    """A figure with a panel for each name, four in a row."""
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = _figure(0.8 + 2.6 * columns, rows * height)
    for number in range(len(names)):
        figure.add_subplot(rows, columns, number + 1)
    return figure


def sample_paths(scenes: Sequence[Scene], path: Path) -> Path:
    """Halls side by side with the robots' paths.

    A path that ends inside a wall, off the grid, or with the same cell twice ends in a collision (a cross).
    Robots drive on the right of the line they follow, so that a way back lies beside the way there.
    """
    names = list(dict.fromkeys(name for scene in scenes for name in scene.get("paths", {})))
    known = {label: COLOURS[name] for name, label in NAMES.items()}
    colours = {name: known.get(name, ACTION_COLOURS[i % 4]) for i, name in enumerate(names)}
    figure = _figure(3.3 * len(scenes), 3.6 + 0.27 * len(names))
    for axes, scene in zip(figure.subplots(1, len(scenes), squeeze=False)[0], scenes, strict=True):
        _draw_hall(axes, scene)
        paths = {name: np.asarray(cells) for name, cells in scene.get("paths", {}).items()}
        _zoom(axes, scene, *paths.values(), [np.asarray(scene["goal"])])
        for i, (name, cells) in enumerate(paths.items()):
            colour, lane = colours[name], _lane(cells, 0.08 + 0.2 * i)
            axes.plot(lane[:, 1], lane[:, 0], color=colour, linewidth=2, alpha=0.85, zorder=3 + i)
            marker, words = _outcome(scene, cells)
            axes.plot(
                *cells[-1, ::-1], marker, color=colour, markeredgecolor="white", markersize=10, zorder=8
            )
            axes.text(0.5, -0.04 - 0.08 * i, f"{name}: {words}", transform=axes.transAxes,
                      ha="center", va="top", color=colour, fontweight="bold", fontsize=9)  # fmt: skip
        axes.set_title(scene.get("title", ""), color=INK, fontsize=11)
        axes.set_anchor("N")
    return _save(figure, path)


def search_on_hall(scene: Scene, tree: Tree, path: Path) -> Path:
    """One search: the tree laid out on the hall, and the root's Q-values after every iteration.

    A node stands in the cell that the robot would reach by its actions if there were no walls, on the side
    that it comes from. The best path is bold, in the colour of the action that it begins with.
    """
    figure = _figure(10.6, 5.0)
    hall, lines = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _draw_hall(hall, scene, wall=PALE_WALL)
    _draw_tree(hall, scene, tree)
    _draw_q_values(lines, tree["q_values"])
    return _save(figure, path)


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
    figure = _figure(13.5 if grid else 11.5, 6.4)
    layout = figure.add_gridspec(2, 2, width_ratios=(1.75, 1), height_ratios=(1.5, 1))
    _draw_links(figure.add_subplot(layout[:, 0]), tree, document["actions"], document["best_path"])
    lines = figure.add_subplot(layout[1, 1] if grid else layout[:, 1])
    if grid:
        hall = figure.add_subplot(layout[0, 1])
        scene = Scene(walls=np.array(grid["walls"], bool), goal=grid["goal"], start=grid["robot"], title="")
        _draw_hall(hall, scene, wall=PALE_WALL)
        _draw_tree(hall, scene, tree)
        hall.set_xlabel("where its nodes would be without walls", color=MUTED, fontsize=9)
    _draw_q_values(lines, tree["q_values"], document["actions"])
    return _save(figure, path)


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
                pen.line([(x - 4, y - slope), (x + 4, y + slope)], fill=COLOURS["qnet"], width=2)
    text = font.load_default(13)
    pen.text((width + 10, 8), f"step {step}", fill=INK, font=text)
    if outcome:
        pen.text(
            (width + 10, 30), outcome, fill=COLOURS["qnet" if outcome != "arrived" else "dtsn"], font=text
        )
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
    _zoom(axes, scene, cells)
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

    _tidy(axes, "Q-values at the root")
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
    for action, y in zip(shown, _spread(final[shown], (high - low) / 16, low, high), strict=True):
        name = names[int(action)] if len(final) == len(names) else str(action)
        text = f"{name}  {final[action]:.{digits}f}".replace("-", "−")
        _label(axes, len(q_values), float(final[action]), y, text, ACTION_COLOURS[action % 4])


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


def _lane(cells: Ints, right: float) -> Float64s:
    """The line ``[n, 2]`` of a robot through ``cells``, driving ``right`` of their middle."""
    move = np.diff(cells, axis=0)
    move = move[np.any(move != 0, axis=1)]
    corners = cells[0] + np.concatenate([[(0, 0)], np.cumsum(move, axis=0)])
    side = right * np.stack([move[:, 1], -move[:, 0]], axis=1)  # to the right: east of north, south of east
    points = np.stack([corners[:-1] + side + 0.25 * move, corners[1:] + side - 0.25 * move], axis=1)
    lane: Float64s = np.concatenate([cells[:1], points.reshape(-1, 2), corners[-1:]])
    return lane


def _outcome(scene: Scene, cells: Ints) -> tuple[str, str]:
    """How a path ends: as a marker, and in words."""
    walls, end, steps = scene["walls"], cells[-1], len(cells) - 1
    outside = np.any((end < 0) | (end >= walls.shape))
    if outside or walls[tuple(end)] or (steps and np.array_equal(end, cells[-2])):
        return "X", f"collides at step {steps}"
    if np.array_equal(end, np.asarray(scene["goal"])):
        return "", f"arrives in {steps} steps"
    return "o", f"still under way after {steps} steps"


def _spread(wanted: ArrayLike, gap: float, low: float, high: float) -> Float64s:
    """The positions nearest to ``wanted [n]`` within [low, high] that are at least ``gap`` apart."""
    heights = np.asarray(wanted, dtype=np.float64)
    order, count = np.argsort(heights, kind="stable"), len(heights)
    slack = gap * np.arange(count)
    level = heights[order] - slack  # must not fall: isotonic regression, by its max-min formula as n is small
    fitted = [
        max(min(level[j:k].mean() for k in range(i + 1, count + 1)) for j in range(i + 1))
        for i in range(count)
    ]
    spread = np.empty(count)
    spread[order] = np.clip(fitted, low, high - gap * (count - 1)) + slack
    return spread


def _validated(curve: Mapping[str, Float64s], column: str) -> dict[float, float]:
    """Step -> validation success in percent, of the steps that were validated."""
    if column not in curve:
        return {}
    pairs = zip(curve["step"], 100 * curve[column], strict=True)
    return {float(step): float(rate) for step, rate in pairs if np.isfinite(rate)}


# --- drawing -----------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'dtsn[plots]'") from error
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def _save(figure: Figure, path: Path) -> Path:
    """Write an SVG or, by default, a PNG; the same figure gives the same bytes."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    kind, stamp = ("svg", "Date") if path.suffix == ".svg" else ("png", "Software")
    with matplotlib.rc_context({"svg.hashsalt": "dtsn"}):
        figure.savefig(path, format=kind, metadata={stamp: None}, bbox_inches="tight")
    return path


def _tidy(axes: Axes, title: str) -> None:
    axes.set_title(title, color=INK, fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=9)


def _label(axes: Axes, x: float, y: float, label_y: float, text: str, colour: str) -> None:
    """Name a line to the right of its end, with a leader to where the name found room."""
    axes.annotate(
        text,
        (x, y),
        (1.05, label_y),
        textcoords=axes.get_yaxis_transform(),
        color=colour,
        va="center",
        fontweight="bold",
        fontsize=9,
        annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "alpha": 0.6, "relpos": (0, 0.5)},
    )


def _draw_hall(axes: Axes, scene: Scene, wall: tuple[int, int, int] = WALL) -> None:
    """Walls, goal (square) and robot (disc) on the grid."""
    walls = scene["walls"]
    axes.imshow(np.array([FLOOR, wall], dtype=np.uint8)[walls.astype(np.int64)])
    axes.set_xticks(np.arange(-0.5, walls.shape[1]), minor=True)
    axes.set_yticks(np.arange(-0.5, walls.shape[0]), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="both", length=0, labelleft=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    for cell, marker, colour in ((scene["goal"], "s", GOAL), (scene["start"], "o", ROBOT)):
        row, column = np.asarray(cell)
        axes.plot(column, row, marker, color=_rgb(colour), markersize=11, markeredgecolor="white", zorder=9)


def _zoom(axes: Axes, scene: Scene, *cells: ArrayLike) -> None:
    """Show the square around the hall and the cells ``[n, 2]``, with a margin."""
    shown = np.concatenate([np.argwhere(scene["walls"]), *map(np.asarray, cells)])
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, half = (low + high) / 2, (high - low).max() / 2 + 1
    axes.set(xlim=(middle[1] - half, middle[1] + half), ylim=(middle[0] + half, middle[0] - half))


def _point_at(axes: Axes, goal: Ints) -> None:
    """An arrow at the border towards a goal that is out of sight."""
    low = np.array([axes.get_ylim()[1], axes.get_xlim()[0]])
    high = np.array([axes.get_ylim()[0], axes.get_xlim()[1]])
    tip, tail = np.clip(goal, low + 0.15, high - 0.15), np.clip(goal, low + 0.8, high - 0.8)
    if np.any((goal < low) | (goal > high)):
        arrow = {"arrowstyle": "-|>", "color": _rgb(GOAL), "linewidth": 2.5, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("goal", (tip[1], tip[0]), (tail[1], tail[0]), color=_rgb(GOAL), fontweight="bold",
                      ha="center", va="center", arrowprops=arrow, zorder=9)  # fmt: skip


def _rgb(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = colour
    return red / 255, green / 255, blue / 255
