"""The commands, by name, and the entry point that reads arguments and reports errors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from dtsn.cli.arguments import choose, complaints_in_one_line, read
from dtsn.cli.collect import (
    collect,
    collect_procgen,
    data,
    data_export,
    data_import,
    data_import_dgrl,
    data_info,
)
from dtsn.cli.evaluate import eval_, eval_procgen
from dtsn.cli.inspect import doctor, plan, play, view
from dtsn.cli.reproduce import bench, demo, report, reproduce, reproduce_online, reproduce_procgen
from dtsn.cli.train import expert, export, train, train_procgen
from dtsn.spelling import did_you_mean

__all__ = ["COMMANDS", "DATA_COMMANDS", "PROCGEN_COMMANDS", "main"]

COMMANDS: dict[str, Callable[..., None]] = {
    "collect": collect,
    "expert": expert,
    "train": train,
    "eval": eval_,
    "plan": plan,
    "play": play,
    "export": export,
    "data": data,
    "reproduce": reproduce,
    "report": report,
    "demo": demo,
    "bench": bench,
    "view": view,
    "doctor": doctor,
}
# What the same commands take and do for Procgen: dtsn COMMAND procgen.
PROCGEN_COMMANDS: dict[str, Callable[..., None]] = {
    "collect": collect_procgen,
    "train": train_procgen,
    "eval": eval_procgen,
    "reproduce": reproduce_procgen,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "info": data_info,
    "export": data_export,
    "import": data_import,
    "import-dgrl": data_import_dgrl,
}


def main() -> None:
    """Entry point of ``dtsn``."""
    try:
        read_arguments(sys.argv[1:])()
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        print(f"dtsn: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("dtsn: stopped; the same command again starts anew", file=sys.stderr)
        sys.exit(130)


@complaints_in_one_line()
def read_arguments(arguments: list[str]) -> Callable[[], None]:
    """The command with its arguments, ready to run."""
    if arguments[1:2] == ["procgen"] and arguments[0] in PROCGEN_COMMANDS:
        return read(PROCGEN_COMMANDS[arguments[0]], f"dtsn {arguments[0]} procgen", arguments[2:])
    if arguments[:2] == ["reproduce", "online"]:
        return read(reproduce_online, "dtsn reproduce online", arguments[2:])
    domain = next(iter(arguments[1:2]), "navigation")
    if arguments[:1] in (["collect"], ["reproduce"]) and not domain.startswith(("-", "navigation")):
        hint = did_you_mean(domain, ("navigation", "procgen"))
        raise ValueError(f"unknown domain {domain!r}, choose navigation or procgen{hint}")
    if arguments[:1] == ["data"]:
        about = inspect.getdoc(data) or ""
        return choose(DATA_COMMANDS, "dtsn data", about, arguments[1:] or ["--help"])
    about = "Differentiable Tree Search Network: a Q-network that plans."
    return choose(COMMANDS, "dtsn", about, arguments)
