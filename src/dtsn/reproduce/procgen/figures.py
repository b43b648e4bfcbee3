"""Results figures of Procgen: scores by game, learning curves of the behaviour policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dtsn.arrays import Float64s
from dtsn.config import SOLVERS
from dtsn.drawing import MUTED, RULE, new_figure, save, tidy
from dtsn.reproduce.procgen.budgets import CLONING, PROCGEN_VARIANTS
from dtsn.reproduce.procgen.scores import score_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_ENDED = 64_000  # environment steps by which 64 episodes side by side have ended: none lasts over 1000


def procgen_scores(
    scores: Mapping[str, Mapping[str, Float64s]], titles: Mapping[str, str], path: Path
) -> Path:
    """Return a panel for each game: every player's mean of its scores ``[S, L]`` with its 95% interval."""
    players = [name for name in titles if any(name in of for of in scores.values())]
    panels = _panels(scores, 0.9 + 0.26 * len(players))
    for axes, game in zip(panels.axes, scores, strict=True):
        tidy(axes, game)
        for y, name in enumerate(reversed(players)):
            if (values := scores[game].get(name)) is not None:
                mean = score_interval(values)
                spread = mean.high - mean.value
                axes.errorbar(mean.value, y, xerr=spread, fmt="o", color=_colour(name), capsize=3)
        axes.set_yticks(range(len(players)), [titles[name] for name in reversed(players)])
        axes.set_ylim(-0.6, len(players) - 0.4)
        axes.grid(axis="x", color=RULE, linewidth=0.8)
        place = axes.get_subplotspec()
        axes.tick_params(labelleft=place is not None and place.is_first_col())  # scores differ between games
    return save(panels, path)


def policy_curves(
    curves: Mapping[str, Mapping[str, Float64s]], random: Mapping[str, float], path: Path
) -> Path:
    """Draw the behaviour policy's return while it learns and random actions' (dashed), a panel per game.

    ``curves`` is ``{game: {"step": [n], "return": [n]}}``, ``random`` the mean score of random actions.
    """
    panels = _panels(curves, 2.2)
    for axes, (game, curve) in zip(panels.axes, curves.items(), strict=True):
        tidy(axes, game)
        # At first only short episodes have ended, which is the successful ones in some games.
        told = curve["step"] >= min(ALL_ENDED, max(curve["step"], default=0))
        steps, returns = curve["step"][told] / 1000, curve["return"][told]
        axes.plot(steps, returns, color=SOLVERS["dtsn"].colour, linewidth=1.6, label="policy")
        if game in random:
            axes.axhline(random[game], color=MUTED, linestyle="--", linewidth=1.2, label="random actions")
        axes.set_xlabel("thousand environment steps", color=MUTED, fontsize=9)
        axes.set_ylim(bottom=min(0.0, *returns, random.get(game, 0.0)))
    panels.supylabel("return, last 100 episodes", color=MUTED, fontsize=9)
    shown = panels.axes[0].get_legend_handles_labels()
    panels.legend(*shown, loc="outside lower center", ncols=2, frameon=False, fontsize=9, labelcolor=MUTED)
    return save(panels, path)


def _colour(player: str) -> str:
    """Return a solver's colour; references, which are no Q-networks, are grey."""
    is_solver = player in PROCGEN_VARIANTS and player != CLONING.key
    return SOLVERS[PROCGEN_VARIANTS[player].solver].colour if is_solver else MUTED


def _panels(names: Collection[str], height: float) -> Figure:
    """Return a figure with a panel for each name, four in a row."""
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    canvas = new_figure(0.8 + 2.6 * columns, rows * height)
    for number in range(len(names)):
        canvas.add_subplot(rows, columns, number + 1)
    return canvas
