"""Small files of results, which may be other people's: how rows were made, rows in JSON, tables."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np

import dtsn
from dtsn.arrays import Float64s
from dtsn.errors import UserError, brief
from dtsn.settings import Settings
from dtsn.storage import StorageError, read_bounded, read_json, replace_durably

MAX_RECORD_BYTES, MAX_TABLE_BYTES, MAX_TABLE_ROWS = 2**20, 2**22, 2**16
MAX_FOLDER_BYTES = 2**25  # of all rows in JSON together
NUMBER = (int, float)
RECORD = {  # what is used of a record; all of it may be missing
    "command": str,
    "machine": dict,
    "configs": {str: dict},
    "tasks": {str: dict},
    "numbers": {
        "scripted": list,
        "keep_all_episodes": list,
        "expert": dict,
        "expert_overrides": {str: dict},
    },
}


def checked(value: Any, shape: Any, name: str, whole: bool = True) -> Any:
    """Return the parts of some JSON that a shape names; an error says which is missing or wrong.

    A shape is a type or several, ``[shape]`` for a list with items, ``{field: shape}`` for an object,
    ``{str: shape}`` for one of any fields, a pattern for a text, or ``(None, shape)`` for what may be null or
    missing. Fields may be missing unless the shape must be ``whole``.
    """
    if isinstance(shape, tuple) and shape[0] is None:
        return None if value is None else checked(value, shape[1], name)
    if isinstance(shape, re.Pattern):
        if not shape.fullmatch(checked(value, str, name)):
            raise UserError(f"{name} must be like {shape.pattern}, got {brief(value)}")
        return value
    if isinstance(shape, dict):
        found = checked(value, dict, name)
        fields = dict.fromkeys(found, shape[str]) if str in shape else shape
        return {
            key: checked(found.get(key), inner, f"{name} {brief(key)}", whole)
            for key, inner in fields.items()
            if whole or key in found
        }
    if isinstance(shape, list):
        if not checked(value, list, name):
            raise UserError(f"{name} must have items")
        return [checked(item, shape[0], f"{name}[{place}]", whole) for place, item in enumerate(value)]
    wrong = not isinstance(value, shape) or isinstance(value, bool)
    if wrong or (isinstance(value, int) and abs(value) >= 2**53):
        kinds = shape if isinstance(shape, tuple) else (shape,)
        raise UserError(f"{name} must be of {' or '.join(x.__name__ for x in kinds)}, got {brief(value)}")
    return value


def read_record(path: Path) -> dict[str, Any]:
    """Read what :func:`write_record` wrote; nothing if there is no such file."""
    try:
        record = read_json(path, MAX_RECORD_BYTES)
    except FileNotFoundError:
        return {}
    except StorageError as error:
        raise UserError(f"{path} cannot be read ({error}): correct or remove it") from error
    checked(record, RECORD, str(path), whole=False)
    return record


def write_record(path: Path, command: str, settings: Settings) -> None:
    """Write the command, its settings, the version and the machine; commands that were there stay.

    A folder of results is often made by several calls.
    """
    commands = [*read_record(path).get("command", "").splitlines(), command]
    machine = {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}
    typed = "\n".join(dict.fromkeys(commands))
    record = {"command": typed, "dtsn": dtsn.__version__, "machine": machine, **settings}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, (json.dumps(record, indent=1) + "\n").encode())


def read_json_rows(folder: Path, shape: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the JSON files of a folder, by name: what ``shape`` names of each."""
    found, room = [], MAX_FOLDER_BYTES
    for path in sorted(folder.glob("*.json")):
        found.append(checked(read_json(path, min(MAX_RECORD_BYTES, room)), shape, str(path)))
        room -= path.stat().st_size
    return found


def read_columns(path: Path, *needed: str) -> dict[str, Float64s]:
    """Read a table of numbers (CSV) with the columns ``needed`` as columns ``[rows]``; NaN in empty cells.

    A half-written last line, as a full disk leaves it, is passed over.
    """
    try:
        text = read_bounded(path, MAX_TABLE_BYTES).decode()
        if text.count("\n") > MAX_TABLE_ROWS:
            raise UserError(f"more than {MAX_TABLE_ROWS} rows")
        header, *lines = csv.reader(text.splitlines())
        if lines and len(lines[-1]) < len(header):
            lines.pop()
        values = [[float(cell or "nan") for cell in line] for line in lines]
        table = np.array(values, np.float64).reshape(len(lines), len(header))
        if missing := set(needed) - set(header):
            raise UserError(f"no column {min(missing)}")
    except (ValueError, csv.Error, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it or copy it again") from error
    return dict(zip(header, table.T, strict=True))


def seed_of(path: Path) -> int:
    """Return the number N of a file ``seed-N.csv`` or the like."""
    found = re.match(r"seed-(\d{1,9})\.", path.name, re.ASCII)
    if found is None:
        raise UserError(f"{path} must be named seed-N with a number N: rename or remove it")
    return int(found[1])
