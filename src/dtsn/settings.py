"""Settings as plain data: nested dataclasses to and from JSON, and what differs between two of them."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from dtsn.errors import UserTypeError, brief

Settings = Mapping[str, Any]
T = TypeVar("T")


def plain(settings: Settings) -> dict[str, Any]:
    """Return settings as they are after a journey through JSON, which has no tuples and no infinity."""
    values: dict[str, Any] = json.loads(json.dumps(settings), parse_constant=lambda name: str(float(name)))
    return values


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to ``{"config.solver.iterations": 10, ...}``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def config_from_dict(cls: type[T], values: object) -> T:
    """Return a nested configuration dataclass from plain JSON; unknown fields are errors."""
    if not isinstance(values, dict):
        raise UserTypeError(f"{cls.__name__} must be a JSON object, got {brief(values)}")
    hints = typing.get_type_hints(cls)
    unknown = set(values) - set(hints)
    if unknown:
        raise UserTypeError(f"{cls.__name__} has no field {brief(sorted(unknown)[0])}")
    return cls(
        **{
            name: config_from_dict(hints[name], value) if dataclasses.is_dataclass(hints[name]) else value
            for name, value in values.items()
        }
    )


def difference(theirs: Settings, ours: Settings, prefix: str = "") -> str | None:
    """Return the first setting that differs, of those that both know; None if none does."""
    for name in (name for name in ours if name in theirs):
        a, b = theirs[name], ours[name]
        if isinstance(a, dict) and isinstance(b, dict):
            if found := difference(a, b, f"{prefix}{name}."):
                return found
        elif a != b:
            return f"{prefix}{name} is {b}, not {a}"
    return None
