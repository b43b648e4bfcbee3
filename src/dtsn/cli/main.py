"""The commands by name, and the entry point that runs one and reports errors."""

from __future__ import annotations

import os
import sys
import traceback

import dtsn
from dtsn.cli.arguments import Entry, Group, overview, parse
from dtsn.cli.bench import bench
from dtsn.cli.collect import collect_navigation, collect_procgen
from dtsn.cli.data import data_export, data_import, data_import_dgrl, data_info
from dtsn.cli.demo import demo
from dtsn.cli.doctor import doctor
from dtsn.cli.evaluate import eval_model, eval_navigation, eval_procgen, eval_run
from dtsn.cli.inspect import plan, play, view
from dtsn.cli.reproduce import (
    report,
    reproduce_game24,
    reproduce_navigation,
    reproduce_online,
    reproduce_procgen,
)
from dtsn.cli.train import expert, export, train_file, train_navigation, train_procgen
from dtsn.cli.tune import tune_file, tune_navigation
from dtsn.errors import UserError
from dtsn.processes import interrupt_on_sigterm

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, dict[str, Entry]] = {
    "Start here": {
        "demo": demo,
        "plan": plan,
        "play": play,
        "view": view,
        "doctor": doctor,
    },
    "Train and test your own": {
        "collect": Group(
            "Collect expert trajectories", {"navigation": collect_navigation, "procgen": collect_procgen}
        ),
        "train": Group(
            "Train a solver on a data set",
            {"navigation": train_navigation, "procgen": train_procgen},
            train_file,
            "DATA",
        ),
        "eval": Group(
            "Test a trained solver on unseen levels, or its world model on data",
            {"navigation": eval_navigation, "procgen": eval_procgen, "model": eval_model},
            eval_run,
            "RUN",
        ),
        "tune": Group(
            "Search for loss weights and sizes of the network by validation",
            {"navigation": tune_navigation},
            tune_file,
            "DATA",
        ),
        "export": export,
        "data": Group(
            "Inspect, export or import a data set",
            {
                "info": data_info,
                "export": data_export,
                "import": data_import,
                "import-dgrl": data_import_dgrl,
            },
            default=False,
        ),
    },
    "Repeat the paper's experiments": {
        "reproduce": Group(
            "Train and test every solver of the paper's tables",
            {
                "navigation": reproduce_navigation,
                "procgen": reproduce_procgen,
                "online": reproduce_online,
                "game24": reproduce_game24,
            },
        ),
        "report": report,
        "expert": Group("Train the expert that data are collected with", {"procgen": expert}),
        "bench": bench,
    },
}


def main() -> None:
    """Run the command ``dtsn``.

    Prints one line for what the user can mend and exits with 2; any other exception is a bug of dtsn and
    keeps its traceback. SIGTERM, which clusters send before they kill, is handled as Ctrl-C.
    """
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview(COMMANDS), file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    if arguments == ["--version"]:
        return print(f"dtsn {dtsn.__version__}")
    try:
        with interrupt_on_sigterm():
            parse(COMMANDS, arguments)()
    except KeyboardInterrupt:
        print("dtsn: stopped; the same command again starts anew", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # dtsn ... | head
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if is_for_users(error) and not os.environ.get("DTSN_TRACEBACK"):
            print(f"dtsn: {in_flags(str(error))}", file=sys.stderr)
            sys.exit(2)
        traceback.print_exc()
        print("dtsn: this is a bug in dtsn; please report it with the lines above", file=sys.stderr)
        sys.exit(1)


def in_flags(message: str) -> str:
    """Say in flags what the library says in arguments."""
    return message.replace("pass overwrite=True", "pass --overwrite").replace(
        ": resume it,", ": --resume it,"
    )


def is_for_users(error: Exception) -> bool:
    """Tell whether an error's message says what to mend, so that its traceback would only be in the way."""
    if isinstance(error, ImportError):  # ours name no module; a part of dtsn that is missing is a bug
        return not (error.name or "").startswith("dtsn")
    return isinstance(error, UserError | OSError)
