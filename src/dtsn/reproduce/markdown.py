"""Pages in Markdown: tables, and the files they go to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtsn.storage import replace_durably


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def percent(rate: float) -> str:
    """Return a share in percent, with a digit more near 0 and 1: 99.96% is not 100.0%."""
    digits = 2 if 0 < min(rate, 1 - rate) < 1e-3 else 1
    return f"{100 * rate:.{digits}f}%"


def runtime_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the paper's runtime table beside ours, from the rows of a result."""
    lines = [
        [
            row["solver"],
            f"{row['seconds']:.2f}",
            f"{row['over_qnet']:.1f}",
            row["paper_over_qnet"] or "out of memory",
            f"{row['peak_gb']:.1f}",
        ]
        for row in rows
        if row["part"] == "runtime"
    ]
    return table(["solver", "s a step", "÷ Q-network", "paper", "peak GB"], lines)


def configuration(config: Any) -> str:
    """Return every number of a configuration dataclass as a Markdown table."""
    return table(("Setting", "Value"), ((f"`{name}`", value) for name, value in _settings(config)))


def _settings(config: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def write_text(path: Path, text: str) -> Path:
    """Write a page or data file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, text.encode())
    return path
