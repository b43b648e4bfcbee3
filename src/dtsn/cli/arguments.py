"""Arguments: from the words of the command line to a command that is ready to run."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import tyro

from dtsn.spelling import did_you_mean


def choose(
    commands: dict[str, Callable[..., None]], prog: str, description: str, arguments: list[str]
) -> Callable[[], None]:
    """The command that the arguments begin with; a name near to one of them is suggested."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        hint = did_you_mean(arguments[0], commands, ", ") or f", choose one of {', '.join(commands)}"
        raise ValueError(f"unknown command {arguments[0]!r}{hint}")
    later = {name: deferred(command) for name, command in commands.items()}
    chosen: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
        later, prog=prog, description=description, args=arguments
    )
    return chosen


def read(command: Callable[..., None], prog: str, arguments: list[str]) -> Callable[[], None]:
    """A command with its arguments, ready to run."""
    ready: Callable[[], None] = tyro.cli(deferred(command), prog=prog, args=arguments)
    return ready


def deferred(command: Callable[..., None]) -> Callable[..., Any]:
    """The same command for tyro, but it returns what to run: reading arguments and running are two things."""

    @functools.wraps(command)
    def later(*args: Any, **kwargs: Any) -> Any:
        return functools.partial(command, *args, **kwargs)

    return later


@contextmanager
def complaints_in_one_line() -> Iterator[None]:
    """What tyro prints before it exits becomes a ValueError of one line; --help goes through."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            yield
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(in_one_line(complaint.getvalue())) from None


def in_one_line(box: str) -> str:
    """What tyro complains about in a box, without the box, the title and the help below."""
    lines = [line.strip("│ \n") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    parts = " ".join(lines).split(" ──")  # rules between the parts
    what = parts[0].replace("__tyro-dummy-inner__.config.", "").replace("Error parsing ", "")
    near = next((line for line in lines if line.startswith("--")), None) if "Perhaps" in box else None
    return what.rstrip(".") + (f"; did you mean {near.split()[0]}?" if near else "")
