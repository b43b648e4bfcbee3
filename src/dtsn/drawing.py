"""What the figures share: style, files, labels, and the hall that things are drawn on.

matplotlib is an optional extra and is imported only when a figure is drawn, through its object interface:
no global state, no display.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from dtsn.arrays import Bools, Float64s
from dtsn.envs.navigation import FLOOR, GOAL, ROBOT, WALL
from dtsn.storage import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
INK, MUTED, RULE = "#22262e", "#6b7280", "#e3e5e8"  # text, secondary text, grid lines
ACTION_COLOURS = ("#1f6fb4", "#dd8a1e", "#8262b8", "#2c9a6b")  # E, S, W, N


class Scene(TypedDict):
    """A hall, and what drove through it."""

    walls: Bools  # [H, W]
    goal: ArrayLike  # [2] row, column
    start: ArrayLike  # [2]
    paths: NotRequired[Mapping[str, ArrayLike]]  # name -> cells [n + 1, 2], start first; see sample_paths
    title: NotRequired[str]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'dtsn[plots]'") from error
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def save(figure: Figure, path: Path) -> Path:
    """Write an SVG or, by default, a PNG; the same figure gives the same bytes."""
    import matplotlib

    kind, stamp = ("svg", "Date") if path.suffix == ".svg" else ("png", "Software")
    with matplotlib.rc_context({"svg.hashsalt": "dtsn"}), replaced(path) as partial:
        figure.savefig(partial, format=kind, metadata={stamp: None}, bbox_inches="tight")
    return path


def tidy(axes: Axes, title: str) -> None:
    """Give axes a title, horizontal rules and no frame."""
    axes.set_title(title, color=INK, fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=9)


def label(axes: Axes, x: float, y: float, label_y: float, text: str, colour: str) -> None:
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


def spread(wanted: ArrayLike, gap: float, low: float, high: float) -> Float64s:
    """Return the positions nearest to ``wanted [n]`` within [low, high] that are at least ``gap`` apart."""
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


def draw_hall(axes: Axes, scene: Scene, wall: tuple[int, int, int] = WALL) -> None:
    """Draw walls, goal (square) and robot (disc) on the grid."""
    walls = scene["walls"]
    axes.imshow(np.array([FLOOR, wall], dtype=np.uint8)[walls.astype(np.int64)])
    axes.set_xticks(np.arange(-0.5, walls.shape[1]), minor=True)
    axes.set_yticks(np.arange(-0.5, walls.shape[0]), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="both", length=0, labelleft=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    for cell, marker, colour in ((scene["goal"], "s", GOAL), (scene["start"], "o", ROBOT)):
        row, column = np.asarray(cell)
        axes.plot(column, row, marker, color=rgb(colour), markersize=11, markeredgecolor="white", zorder=9)


def zoom(axes: Axes, scene: Scene, *cells: ArrayLike) -> None:
    """Show the square around the hall and the cells ``[n, 2]``, with a margin."""
    shown = np.concatenate([np.argwhere(scene["walls"]), *map(np.asarray, cells)])
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, half = (low + high) / 2, (high - low).max() / 2 + 1
    axes.set(xlim=(middle[1] - half, middle[1] + half), ylim=(middle[0] + half, middle[0] - half))


def rgb(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    """Return a colour from 0..255 to 0..1."""
    red, green, blue = colour
    return red / 255, green / 255, blue / 255
