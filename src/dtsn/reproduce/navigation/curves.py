"""Learning curves on disk: mean losses between two points, and the validation success at each."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from dtsn.arrays import Float64s
from dtsn.reproduce.navigation.variants import Variant
from dtsn.reproduce.records import read_columns
from dtsn.storage import replace_durably

Curves = Mapping[str, Mapping[int, Mapping[str, Float64s]]]  # variant -> seed -> column -> [points]


def read_curve(path: Path) -> dict[str, Float64s]:
    """Read a learning curve as columns ``[points]``; NaN in empty cells."""
    return read_columns(path, "step")


def best_temperature(curves: Curves, row: Variant) -> float | None:
    """Choose the temperature to draw actions with: the best mean return on validation levels, two exits.

    None if no finished run tells.
    """
    means = {}
    for temperature in row.temperatures:
        columns = (curve.get(softmax_column(temperature)) for curve in curves.get(row.key, {}).values())
        returns = [float(column[-1]) for column in columns if column is not None and len(column)]
        if finished := [found for found in returns if math.isfinite(found)]:
            means[temperature] = sum(finished) / len(finished)
    return max(means, key=lambda temperature: means[temperature]) if means else None


def softmax_column(temperature: float) -> str:
    """Return the column of a curve with the mean return of drawn actions."""
    return f"validation_return_softmax_{temperature:g}"


class Curve:
    """A learning curve that is being made.

    Points after step ``until`` are left out: a run that goes on from there makes them anew.
    """

    def __init__(self, path: Path, until: float = math.inf):
        self.path = path
        self.rows: list[dict[str, float]] = []
        self.sums: dict[str, float] = {}
        self.count = 0
        if path.exists():
            columns = {name: column.tolist() for name, column in read_columns(path, "step").items()}
            rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
            known = [{name: cell for name, cell in row.items() if not math.isnan(cell)} for row in rows]
            self.rows = [row for row in known if row.get("step", math.inf) <= until]

    def steps(self) -> set[float]:
        """Return the steps that have a point."""
        return {row["step"] for row in self.rows}

    def add(self, metrics: dict[str, float]) -> None:
        """Count a training step's metrics towards the next point."""
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def write(self, step: int, point: dict[str, float]) -> None:
        """Add a point and replace the file."""
        means = {name: total / max(1, self.count) for name, total in self.sums.items()}
        self.rows = [row for row in self.rows if row["step"] < step]  # a resumed run repeats some
        self.rows.append({"step": step} | means | point | {"step": step})
        self.sums, self.count = {}, 0
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows({name: f"{value:.6g}" for name, value in row.items()} for row in self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, text.getvalue().encode())
