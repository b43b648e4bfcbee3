"""Figures: success rates, learning curves, paths on the grid, and the search tree drawn on its hall.

Plain numpy in, PNG, SVG or GIF out. matplotlib is an optional extra and is imported only when a figure is
drawn, through its object interface: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from dtsn.arrays import Bools, Float64s, Ints
from dtsn.envs.navigation import FLOOR, GOAL, ROBOT, WALL
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
SCENARIOS = {2: "2 exits (as trained)", 1: "1 exit (never seen in training)"}


class Scene(TypedDict):
    """A hall, and what drove through it."""

    walls: Bools  # [H, W]
    goal: ArrayLike  # [2] row, column
    start: ArrayLike  # [2]
    paths: NotRequired[Mapping[str, ArrayLike]]  # name -> cells [n + 1, 2], start first; see sample_paths
    title: NotRequired[str]


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


# --- geometry ----------------------------------------------------------------------------------------


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


def _rgb(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = colour
    return red / 255, green / 255, blue / 255
