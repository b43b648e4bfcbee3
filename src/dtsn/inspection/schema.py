"""TypedDicts as a schema of JSON: compare a value with a type, and make the table that documents it."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Union

from dtsn.errors import UserError

MAX_ENTRIES = 20_000  # of one list or mapping

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

Check = Callable[[Any], None]


def check_value(value: Any, kind: Any) -> None:
    """Raise a ValueError that begins with the place if ``value`` is not of the type ``kind``."""
    _checker(kind)(value)


@cache
def _checker(kind: Any) -> Check:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Annotated, NotRequired):
        return _checker(arguments[0])
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is list:
        return _items(_checker(arguments[0]))
    if origin is dict:
        return _mapping(_checker(arguments[1]))
    if typing.is_typeddict(kind):
        return _fields(kind)
    return {float: _number, str: _text}.get(kind) or _exactly(kind)


def _number(value: Any) -> None:
    if type(value) not in (int, float) or not -1e308 < value < 1e308:
        raise UserError(f" must be a finite number, got {value!r:.80}")


def _text(value: Any) -> None:
    _exactly(str)(value)
    if _CONTROL.search(value):  # terminals act on them
        raise UserError(f" must not contain control characters, got {value!r:.80}")


def _exactly(kind: type) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
            raise UserError(f" must be of type {kind.__name__}, got {value!r:.80}")

    return check


def _literal(allowed: tuple[Any, ...]) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, (str, int)) or value not in allowed:
            raise UserError(f" must be {' or '.join(map(repr, allowed))}, got {value!r:.80}")

    return check


def _union(kinds: tuple[Any, ...]) -> Check:
    """Check null if it is among the kinds; of several TypedDicts the one whose ``kind`` the value names."""
    may_be_null = type(None) in kinds
    inner = [kind for kind in kinds if kind is not type(None)]
    checks = [_checker(kind) for kind in inner]
    tagged: dict[str, Any] = {}
    if len(inner) > 1 and all(map(typing.is_typeddict, inner)):
        tagged = {typing.get_args(_hints(kind)["kind"])[0]: kind for kind in inner}

    def check(value: Any) -> None:
        if value is None and may_be_null:
            return
        if len(checks) == 1:
            return checks[0](value)
        if tagged:
            named = value.get("kind") if isinstance(value, dict) else None
            if not isinstance(named, str) or named not in tagged:
                raise UserError(f".kind must be one of {', '.join(tagged)}, got {named!r:.80}")
            return _checker(tagged[named])(value)
        for one in checks:
            try:
                return one(value)
            except ValueError:
                continue
        raise UserError(f" must be {_words(inner)}, got {value!r:.80}")

    return check


def _items(item: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, list) or len(value) > MAX_ENTRIES:
            raise UserError(f" must be a list of at most {MAX_ENTRIES} entries")
        for index, entry in enumerate(value):
            try:
                item(entry)
            except ValueError as error:
                raise UserError(f"[{index}]{error}") from None

    return check


def _mapping(item: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
            raise UserError(f" must be a mapping of at most {MAX_ENTRIES} entries")
        for name, entry in value.items():
            try:
                item(entry)
            except ValueError as error:
                raise UserError(f".{name}{error}") from None

    return check


def _fields(kind: Any) -> Check:
    checks = {name: _checker(hint) for name, hint in _hints(kind).items()}

    def check(value: Any) -> None:
        if not isinstance(value, dict) or value.keys() != checks.keys():
            got = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise UserError(f" must have the fields {', '.join(checks)}; got {got:.200}")
        for name, one in checks.items():
            try:
                one(value[name])
            except ValueError as error:
                raise UserError(f".{name}{error}") from None

    return check


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the fields of a TypedDict, without what is said about them."""
    return typing.get_type_hints(kind)


def markdown_tables(kind: Any) -> str:
    """Return the documentation of a TypedDict and of those inside it: a heading and a table each."""
    waiting, done, parts = [kind], set(), []
    while waiting:
        current = waiting.pop(0)
        if current in done:
            continue
        done.add(current)
        rows = []
        for name, hint in typing.get_type_hints(current, include_extras=True).items():
            inner, text = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint, "")
            waiting += _nested(inner)
            rows.append(f"| `{name}` | {_words([inner])} | {text} |")
        about = " ".join((current.__doc__ or "").split())
        table = "\n".join(["| field | type | content |", "|---|---|---|", *rows])
        parts.append(f"## {current.__name__}\n\n{about}\n\n{table}\n")
    return "\n".join(parts)


def _nested(kind: Any) -> list[Any]:
    if typing.is_typeddict(kind):
        return [kind]
    return [found for argument in typing.get_args(kind) for found in _nested(argument)]


def _words(kinds: list[Any]) -> str:
    """Put types in a reader's words: ``list of Node``, ``number or null``."""
    return " or ".join(_word(kind) for kind in kinds)


def _word(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _word(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return _words(list(arguments))
    if origin is list:
        return f"list of {_word(arguments[0])}"
    if origin is dict:
        return f"mapping to {_word(arguments[1])}"
    if typing.is_typeddict(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    names = {float: "number", int: "integer", str: "string", bool: "true or false", type(None): "null"}
    return names[kind]
