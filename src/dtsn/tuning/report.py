"""What a search found: a table of all trials, and a picture of score against every setting."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from dtsn import drawing
from dtsn.storage import replace_durably
from dtsn.tuning.study import Trial

BEST, OTHER, FIRST = "#1f6fb4", "#9aa3ad", "#dd8a1e"


def ranked(trials: list[Trial]) -> list[Trial]:
    """Return the trials that are done, best first; of equals the earlier."""
    scored = [(trial.score, trial) for trial in trials if trial.score is not None]
    return [trial for _, trial in sorted(scored, key=lambda pair: (-pair[0], pair[1].number))]


def write_table(trials: list[Trial], path: Path) -> Path:
    """Write all trials as CSV, in their order."""
    names = list(trials[0].settings) if trials else []
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "state", "score", *names])
    for trial in trials:
        score = "" if trial.score is None else f"{trial.score:.6g}"
        rows.writerow([trial.number, trial.state, score, *(trial.settings.get(name, "") for name in names)])
    replace_durably(path, text.getvalue().encode())
    return path


def draw(trials: list[Trial], title: str, path: Path) -> Path:
    """Score against every setting; the first trial and the best one stand out."""
    done = ranked(trials)
    names = list(done[0].settings)
    figure = drawing.new_figure(3.2 * len(names), 3)
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        values = np.array([trial.settings[name] for trial in done], float)
        scores = np.array([trial.score for trial in done], float)
        axes.scatter(values, scores, color=OTHER, s=18)
        for trial, colour, label in _marked(done):
            assert trial.score is not None  # ranked
            axes.scatter([trial.settings[name]], [trial.score], color=colour, s=48, label=label)
        axes.set_xscale("log")
        drawing.tidy(axes, name)
        if place == 0:
            axes.set_ylabel(title)
            axes.legend(frameon=False, fontsize=8)
    return drawing.save(figure, path)


def _marked(done: list[Trial]) -> list[tuple[Trial, str, str]]:
    first = [(trial, FIRST, "as given") for trial in done if trial.number == 0]
    return [*first, (done[0], BEST, "best")]
