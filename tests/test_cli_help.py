"""The help of the command line: every command with an example, every option explained, without a wait."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dtsn as package
from cli_calls import data as data
from cli_calls import dtsn
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.cli import main as cli
from dtsn.cli.arguments import Group


def leaves() -> dict[str, Callable[..., None]]:
    """Every command by what one types, those of groups with the name of the sub-command."""
    found: dict[str, Callable[..., None]] = {}
    for section in cli.COMMANDS.values():
        for name, entry in section.items():
            if isinstance(entry, Group):
                found |= {f"{name} {word}": command for word, command in entry.commands.items()}
            else:
                found[name] = entry
    return found


EVERY_COMMAND = leaves()


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_help_shows_an_example(command: str, inside: Callable[..., str]) -> None:
    out = inside(*command.split(), "--help")
    assert f"Example: dtsn {command}" in out
    assert "__tyro" not in out


HELP = """
import contextlib, io, json, sys, time
seconds = []
for command in sys.argv[1:]:
    from dtsn.cli.main import main
    sys.argv = ["dtsn", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    seconds.append(time.process_time() - sum(seconds))
slow = {"torch", "matplotlib", "PIL", "h5py", "minari", "fastapi", "uvicorn"} & set(sys.modules)
print(json.dumps([seconds, sorted(slow)]))
"""


def test_help_does_not_wait(tmp_path: Path) -> None:
    """Nothing heavy is imported, and no help takes a second of the processor, imports included."""
    call = [sys.executable, "-c", HELP, *EVERY_COMMAND]
    result = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    seconds, slow = json.loads(result.stdout)
    assert not slow
    assert len(seconds) == len(EVERY_COMMAND)
    assert max(seconds) < 1.0


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_every_option_is_explained(command: str) -> None:
    function = EVERY_COMMAND[command]
    options = inspect.signature(function).parameters
    explained = re.findall(
        r"^    (\w+): \S", (inspect.getdoc(function) or "").partition("Args:")[2], re.MULTILINE
    )
    assert explained == list(options)


def test_help_lists_the_commands(tmp_path: Path) -> None:
    out = dtsn(tmp_path, "--help")
    assert all(f"  {name} " in out for section in cli.COMMANDS.values() for name in section)
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("command", ["collect", "train", "eval", "reproduce"])
def test_help_of_a_group_names_procgen(command: str, inside: Callable[..., str]) -> None:
    out = inside(command, "--help")
    assert f"dtsn {command} [navigation|procgen" in out
    assert "navigation  " in out
    assert "(default)" in out


def test_version(inside: Callable[..., str]) -> None:
    assert inside("--version") == f"dtsn {package.__version__}\n"
