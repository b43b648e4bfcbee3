"""Results figures of Navigation: success rates, learning curves, paths that part."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
    save,
    spread,
    tidy,
    zoom,
)
from dtsn.reproduce.navigation.cells import Results
from dtsn.reproduce.navigation.variants import Variant
from dtsn.reproduce.paper import PAPER_NAVIGATION

PANELS = {2: "2 exits (as trained)", 1: "1 exit (never seen in training)"}
DIAMOND: dict[str, Any] = {
    "marker": "D",
    "color": "white",
    "markeredgecolor": INK,
    "markersize": 6.5,
    "ls": "",
}


def success_bars(results: Results, rows: Sequence[Variant], path: Path) -> Path:
    """Draw success rates with their intervals, and the paper's as diamonds beside them."""
    figure = new_figure(2.0 + 1.8 * len(rows), 4.2)
    for axes, (exits, title) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        tidy(axes, title)
        for x, row in enumerate(rows):
            if cell := results.get(row.key, {}).get(row.scenario(exits)):
                rate, low, high = (100 * x for x in (cell.rate.value, cell.rate.low, cell.rate.high))
                colour = SOLVERS[row.recipe.solver].colour
                axes.bar(x, rate, width=0.56, color=colour)
                axes.errorbar(x, rate, [[rate - low], [high - rate]], color=INK, capsize=5, linewidth=1.2)
                shown = f"{rate:.{1 + (99.9 < rate < 100)}f}%"  # 99.96% is not 100.0%
                text = axes.text(x, high + 1.2, shown, ha="center", color=INK, fontweight="bold")
                text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            else:
                axes.text(x, 2, "no rows", ha="center", color=MUTED)
            if printed := PAPER_NAVIGATION.get((row.recipe.key, exits, row.act_iterations)):
                axes.plot(x + 0.37, printed.success, **DIAMOND)
        names = [textwrap.fill(row.title, 13, break_on_hyphens=False) for row in rows]
        axes.set_xticks(range(len(rows)), names)
        axes.set(ylim=(0, 112), yticks=range(0, 101, 20), xlim=(-0.6, len(rows) - 0.4))
    figure.axes[0].set_ylabel("test levels solved, %", color=MUTED)
    figure.axes[0].plot([], [], label="the paper's number", **DIAMOND)
    figure.legend(loc="outside lower center", frameon=False, labelcolor=MUTED)
    return save(figure, path)


def learning_curves(curves: Mapping[str, Mapping[int, Mapping[str, Float64s]]], path: Path) -> Path:
    """Draw validation success against training steps: seeds thin, their mean bold.

    ``curves`` is ``{solver: {seed: {"step": [n], "validation_success_2": [n], ...}}}``, NaN where a step
    was not validated.
    """
    figure = new_figure(10.5, 4.0)
    for axes, (exits, title) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        ends = {}
        for name, seeds in curves.items():
            colour = SOLVERS[name].colour
            lines = [_validated(curve, f"validation_success_{exits}") for curve in seeds.values()]
            lines = [line for line in lines if line]
            for line in lines:
                axes.plot(list(line), list(line.values()), color=colour, linewidth=0.8, alpha=0.4)
            # The mean where all seeds were validated: one over fewer seeds would jump where a seed ends.
            shared = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
            if shared:
                mean = [float(np.mean([line[step] for line in lines])) for step in shared]
                axes.plot(shared, mean, color=colour, linewidth=2.2, marker="o", markersize=3)
                ends[name] = (shared[-1], mean[-1])
        axes.set(ylim=(0, 103), xlabel="training step")
        heights = spread([y for _, y in ends.values()], 6.5, 2, 101)
        for (name, (step, rate)), y in zip(ends.items(), heights, strict=True):
            label(axes, step, rate, y, f"{SOLVERS[name].title} {rate:.0f}%", SOLVERS[name].colour)
        tidy(axes, title)
        axes.xaxis.label.set_color(MUTED)
    figure.axes[0].set_ylabel("validation levels solved, %", color=MUTED)
    return save(figure, path)


def sample_paths(scenes: Sequence[Scene], path: Path) -> Path:
    """Draw halls side by side with the robots' paths.

    A path that ends inside a wall, off the grid, or with the same cell twice ends in a collision (a cross).
    Robots drive on the right of the line they follow, so that a way back lies beside the way there.
    """
    names = list(dict.fromkeys(name for scene in scenes for name in scene.get("paths", {})))
    known = {kind.title: kind.colour for kind in SOLVERS.values()}
    colours = {name: known.get(name, ACTION_COLOURS[i % 4]) for i, name in enumerate(names)}
    figure = new_figure(3.3 * len(scenes), 3.6 + 0.27 * len(names))
    for axes, scene in zip(figure.subplots(1, len(scenes), squeeze=False)[0], scenes, strict=True):
        draw_hall(axes, scene)
        paths = {name: np.asarray(cells) for name, cells in scene.get("paths", {}).items()}
        zoom(axes, scene, *paths.values(), [np.asarray(scene["goal"])])
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
    return save(figure, path)


def _lane(cells: Ints, right: float) -> Float64s:
    """Return the line ``[n, 2]`` of a robot through ``cells``, driving ``right`` of their middle."""
    move = np.diff(cells, axis=0)
    move = move[np.any(move != 0, axis=1)]
    corners = cells[0] + np.concatenate([[(0, 0)], np.cumsum(move, axis=0)])
    side = right * np.stack([move[:, 1], -move[:, 0]], axis=1)  # to the right: east of north, south of east
    points = np.stack([corners[:-1] + side + 0.25 * move, corners[1:] + side - 0.25 * move], axis=1)
    lane: Float64s = np.concatenate([cells[:1], points.reshape(-1, 2), corners[-1:]])
    return lane


def _outcome(scene: Scene, cells: Ints) -> tuple[str, str]:
    """Return how a path ends: as a marker, and in words."""
    walls, end, steps = scene["walls"], cells[-1], len(cells) - 1
    outside = np.any((end < 0) | (end >= walls.shape))
    if outside or walls[tuple(end)] or (steps and np.array_equal(end, cells[-2])):
        return "X", f"collides at step {steps}"
    if np.array_equal(end, np.asarray(scene["goal"])):
        return "", f"arrives in {steps} steps"
    return "o", f"still under way after {steps} steps"


def _validated(curve: Mapping[str, Float64s], column: str) -> dict[float, float]:
    """Step -> validation success in percent, of the steps that were validated."""
    if column not in curve:
        return {}
    pairs = zip(curve["step"], 100 * curve[column], strict=True)
    return {float(step): float(rate) for step, rate in pairs if np.isfinite(rate)}
