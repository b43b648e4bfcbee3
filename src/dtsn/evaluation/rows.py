"""Rows: what a test leaves on disk. One gzipped CSV file a test, one line an episode; no torch needed.

``Scenario`` says how a solver was tested and names the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from dtsn.arrays import Float64s
from dtsn.errors import UserError
from dtsn.storage import StorageError, open_regular, replace_durably

SUFFIX = ".csv.gz"
MAX_BYTES = 1 << 26  # of a file of rows, inflated
Columns = dict[str, Float64s]  # column -> [episodes]
ActRule = Literal["sample", "greedy"]


@dataclass(frozen=True)
class NavigationRow:
    """An episode of Navigation."""

    level: int
    exits: int
    success: bool
    collision: bool
    steps: int
    optimal_steps: int


@dataclass(frozen=True)
class PlanRow:
    """The plans of an episode: how many of its decisions had one that ran into a wall, or was optimal."""

    level: int
    exits: int
    decisions: int
    into_wall: int
    optimal: int


@dataclass(frozen=True)
class ProcgenRow:
    """An episode of Procgen."""

    level: int
    score: float  # sum of its rewards
    complete: bool
    steps: int


Row = TypeVar("Row", NavigationRow, PlanRow, ProcgenRow)


@dataclass(frozen=True)
class Scenario:
    """How a solver is tested on Navigation."""

    exits: int
    act_iterations: int  # T when acting
    rule: ActRule = "sample"  # how the search picks the node to expand
    temperature: float | None = None  # None: the best action; τ: an action drawn from softmax(Q / τ)

    @property
    def name(self) -> str:
        """Its name in files: ``exits-2-T10``, ``exits-1-T50-greedy``, ``exits-1-T10-softmax-0.5``."""
        words = [f"exits-{self.exits}-T{self.act_iterations}"]
        words += ["greedy"] if self.rule == "greedy" else []
        words += [f"softmax-{self.temperature:g}"] if self.temperature is not None else []
        return "-".join(words)

    @classmethod
    def named(cls, name: str) -> Scenario | None:
        """Return the scenario of a file's name without its suffix; None if it is no such name."""
        found = re.fullmatch(r"exits-([12])-T(\d+)(-greedy)?(?:-softmax-(\d+(?:\.\d+)?))?", name)
        if found is None:
            return None
        exits, iterations, greedy, temperature = found.groups()
        rule: ActRule = "greedy" if greedy else "sample"
        return cls(int(exits), int(iterations), rule, float(temperature) if temperature else None)


def rows_path(folder: Path, name: str) -> Path:
    """Return the file of rows with a name."""
    return folder / f"{name}{SUFFIX}"


def name_of(path: Path) -> str:
    """Return the name of a file of rows."""
    return path.name.removesuffix(SUFFIX)


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows; the same rows give the same bytes."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(field.name for field in fields(rows[0]))
    for row in rows:
        table.writerow(int(value) if isinstance(value, bool) else value for value in astuple(row))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path


def read_rows(path: Path, kind: type[Row]) -> Columns:
    """Read the rows of a file as columns, which must be those of ``kind`` and hold finite numbers."""
    names = [field.name for field in fields(kind)]
    try:
        header, *lines = _inflated(path).decode().splitlines() or [""]
        if not lines:
            raise UserError("no episodes")
        table = np.loadtxt(lines, dtype=np.float64, delimiter=",", ndmin=2)  # [episodes, columns]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it and test this run again") from error
    if header != ",".join(names) or table.shape[1] != len(names) or not np.isfinite(table).all():
        raise UserError(f"{path} must have the columns {','.join(names)} and finite numbers, got {header}")
    return dict(zip(names, table.T, strict=True))


def count_rows(path: Path) -> int:
    """Count the episodes in a file of rows; 0 without one that can be read."""
    try:
        return _inflated(path).count(b"\n") - 1
    except (OSError, EOFError, zlib.error):
        return 0


def _inflated(path: Path) -> bytes:
    """Return the content of a gzipped file; one without end is refused."""
    with gzip.GzipFile(fileobj=io.BufferedReader(open_regular(path))) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise StorageError(f"{path} must hold at most {MAX_BYTES} bytes, got more")
    return content
