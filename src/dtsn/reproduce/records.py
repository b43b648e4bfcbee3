"""Records: how results were made, kept beside them, and whether that is how they would be made today."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import dtsn
from dtsn.errors import UserError
from dtsn.settings import Settings
from dtsn.storage import replace_durably


def read_record(path: Path) -> dict[str, Any]:
    """Read what :func:`write_record` wrote; nothing if there is no such file."""
    try:
        record = json.loads(path.read_text()) if path.exists() else {}
        if not isinstance(record, dict):
            raise UserError("not a record")
        return record
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({error}): correct or remove it") from error


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
