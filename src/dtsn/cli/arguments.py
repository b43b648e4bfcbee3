"""The grammar of the command line: from words to a command that is ready to run, and the overview of all."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tyro

from dtsn.errors import UserError
from dtsn.spelling import did_you_mean

Command = Callable[..., None]
Ready = Callable[[], None]  # a command with its arguments


@dataclass(frozen=True)
class Group:
    """A command with sub-commands, as ``dtsn train navigation``; the first one is the default.

    ``by_path`` chooses for a path in the place of a sub-command's name (``dtsn train my.h5``) and returns
    what the path stands for: the command, and the arguments that are left for it.
    """

    about: str
    commands: Mapping[str, Command]
    by_path: Callable[[str], tuple[Command, list[str]]] | None = None
    path: str = ""  # what by_path takes, for the help
    default: bool = True  # False: the name of a sub-command must be given

    @property
    def words(self) -> str:
        """What may follow the group's name: ``navigation|procgen|DATA``."""
        return "|".join([*self.commands, *([self.path] if self.path else [])])


Entry = Command | Group


def parse(sections: Mapping[str, Mapping[str, Entry]], arguments: list[str]) -> Ready:
    """Return the command that the arguments ask for; tyro reads its options, or prints what is wrong."""
    commands = {name: entry for section in sections.values() for name, entry in section.items()}
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        hint = did_you_mean(name, commands, "; ") or f": choose one of {', '.join(commands)}"
        raise UserError(f"there is no command {name!r}{hint}")
    entry = commands[name]
    if isinstance(entry, Group):
        return _parse_group(name, entry, rest)
    return _read(entry, f"dtsn {name}", rest)


def _parse_group(name: str, group: Group, words: list[str]) -> Ready:
    word, default = words[0] if words else "", next(iter(group.commands))
    if word in group.commands:
        return _read(group.commands[word], f"dtsn {name} {word}", words[1:])
    if word and not word.startswith("-"):
        if group.by_path is None:
            hint = did_you_mean(word, group.commands)
            raise UserError(f"dtsn {name} takes {group.words}, got {word!r}{hint}")
        command, left = group.by_path(word)
        return _read(command, f"dtsn {name} {word}", [*left, *words[1:]])
    if group.default:
        command = group.commands[default]
        usage = f"{group.about}: dtsn {name} [{group.words}] [OPTIONS]"
        description = f"{usage}\n\n{_listing(group.commands, default)}\n\n{inspect.getdoc(command)}"
        return _read(command, f"dtsn {name}", words, description)
    print(f"usage: dtsn {name} {group.words} [OPTIONS]\n\n{group.about}\n\n{_listing(group.commands)}")
    return lambda: None


def _read(command: Command, prog: str, words: list[str], description: str | None = None) -> Ready:
    if description is not None:
        description = description.partition("\nArgs:")[0]
    ready: Ready = tyro.cli(_deferred(command), prog=prog, args=words, description=description)
    return ready


def _deferred(command: Command) -> Callable[..., Any]:
    """Wrap a command for tyro so that it returns what to run: reading arguments comes before running."""

    @functools.wraps(command)
    def later(*args: Any, **kwargs: Any) -> Any:
        return functools.partial(command, *args, **kwargs)

    return later


def overview(sections: Mapping[str, Mapping[str, Entry]]) -> str:
    """Return what ``dtsn --help`` prints: every command with one line, in sections."""
    lines = ["usage: dtsn COMMAND [OPTIONS]", ""]
    lines += ["Differentiable Tree Search Network: a Q-network that plans.", ""]
    for title, commands in sections.items():
        lines += [f"{title}:", _listing(commands), ""]
    lines += ["dtsn COMMAND --help explains a command's options; dtsn --version prints the version."]
    return "\n".join(lines)


def _listing(commands: Mapping[str, Entry], default: str = "") -> str:
    lines = []
    for name, entry in commands.items():
        if isinstance(entry, Group):
            about = f"{entry.about}: {entry.words}"
        else:
            about = (inspect.getdoc(entry) or "").partition("\n")[0].rstrip(".")
        lines.append(f"  {name:<12}{about}{' (default)' if name == default else ''}")
    return "\n".join(lines)
