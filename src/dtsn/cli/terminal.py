"""Print what the commands have in common: progress, tables and the last line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

LOG_SECONDS = float(os.environ.get("DTSN_LOG_SECONDS", "10"))  # between lines where output is no terminal


def console(stderr: bool = False) -> Any:
    """Return the terminal; brackets in what is printed are brackets, as in paths, not markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True, stderr=stderr)


@contextmanager
def progress(title: str) -> Iterator[Callable[..., None]]:
    """Show a bar with the time that is left, or lines in a log; yields ``update(done, total, text="")``."""
    if not console().is_terminal:
        with _log(title) as log:
            yield log
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    title_column, text_column = (
        TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[text]")
    )
    columns = (title_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text_column)
    with Progress(*columns, console=console()) as bar:
        task = bar.add_task(title, total=None, text="")

        def update(completed: int, total: int, text: str = "") -> None:
            bar.update(task, completed=completed, total=total, text=text)

        yield update


@contextmanager
def _log(title: str) -> Iterator[Callable[..., None]]:
    """Print where things stand every LOG_SECONDS and at the end: ``dtsn train > log`` must not stay empty."""
    began = printed = time.monotonic()
    last = ""

    def update(completed: int, total: int, text: str = "") -> None:
        nonlocal last, printed
        now = time.monotonic()
        left = f", {_clock((now - began) * (total - completed) / completed)} left" if completed else ""
        last = f"{title}: {completed}/{total} in {_clock(now - began)}{left if completed < total else ''}"
        last += f"; {text}" if text else ""
        if now - printed >= LOG_SECONDS:
            print(last, flush=True)
            printed, last = now, ""

    yield update
    if last:  # not after an error or Ctrl-C: whoever handled it has spoken last
        print(last, flush=True)


def _clock(seconds: float) -> str:
    """Format seconds as ``1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def make_table(title: str) -> Any:
    """Make an empty table of Navigation results."""
    from rich.table import Table

    table = Table(title=title)
    for column in ("levels", "success", "95% interval", "collision", "time-out", "paper"):
        table.add_column(column, justify="left" if column == "levels" else "right")
    return table


def add_result(table: Any, title: str, rows: list[Any], paper: str = "") -> None:
    """Add a line to a table of Navigation results."""
    from dtsn.reproduce.statistics import wilson

    count = len(rows)
    success, collision = sum(r.success for r in rows), sum(r.collision for r in rows)
    low, high = wilson(success, count)
    rates = [success / count, collision / count, (count - success - collision) / count]
    shown = [f"{100 * rate:.1f}%" for rate in rates]
    table.add_row(title, shown[0], f"{100 * low:.1f} to {100 * high:.1f}", *shown[1:], paper)


def pairs(rows: Iterable[tuple[str, object]], title: str = "") -> Any:
    """Make a table of names and values."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None, show_header=False, title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for name, value in rows:
        table.add_row(Text(name, "bold"), Text(str(value)))
    return table


def done(what: str, then: str) -> None:
    """Print the last lines of a command: what it wrote and what to run next."""
    console().print(f"{what}\nnext: {then}")


def stopped(what: str, then: str) -> NoReturn:
    """Print the last lines of an interrupted command and exit with 130."""
    done(what, then)
    sys.exit(130)
