"""Checkpoints that survive: written aside, fsynced, renamed, checksummed, and free of pickle.

``step-N/`` holds ``model.safetensors``, ``optimizer.safetensors`` (for resuming) and ``state.json`` with
the format version, the configuration and the SHA-256 of every file. A folder without a valid
``state.json`` is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

FORMAT = "dtsn-checkpoint"
FORMAT_VERSION = 1
MAX_STATE_BYTES = 1 << 20


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted: missing, damaged, or of another format."""


def save_checkpoint(folder: Path, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Path:
    """Write ``{file stem: {name: tensor}}`` and ``state`` as ``folder``; complete, or not there at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        digests = {}
        for stem, content in tensors.items():
            blob = save_tensors({name: tensor.contiguous() for name, tensor in content.items()})
            digests[f"{stem}.safetensors"] = hashlib.sha256(blob).hexdigest()
            write_durably(partial / f"{stem}.safetensors", blob)
        header = {"format": FORMAT, "format_version": FORMAT_VERSION, "files": digests, **state}
        write_durably(partial / "state.json", _sealed(header))
        _take_place(partial, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"cannot save {folder}: {error}; earlier checkpoints are untouched") from error
    return folder


def _take_place(new: Path, folder: Path) -> None:
    """Rename ``new`` to ``folder``; one that is there already (a re-run of the step) goes once it is done."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)  # of a process that was killed here
        os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def load_state(folder: Path) -> dict[str, Any]:
    """The ``state.json`` of a checkpoint, verified."""
    path = folder / "state.json"
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            raise CheckpointError(f"{path} is larger than {MAX_STATE_BYTES} bytes: not a dtsn checkpoint")
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is missing or unreadable ({error}); use another checkpoint") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} does not belong to a dtsn checkpoint")
    if state.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {state.get('format_version')!r}, this dtsn reads {FORMAT_VERSION}: "
            "use the dtsn version that wrote it"
        )
    seal = state.pop("sha256", None)
    try:
        sealed = seal == _digest(state)
    except RecursionError:  # shallow enough to be read, too deep to be hashed
        sealed = False
    if not sealed or not isinstance(state.get("files"), dict):
        raise CheckpointError(f"{path} is damaged (checksum differs); use another checkpoint")
    return state


def load_tensors_of(folder: Path, stem: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint, verified against its ``state``."""
    path = folder / f"{stem}.safetensors"
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if hashlib.sha256(blob).hexdigest() != state["files"].get(path.name):
        raise CheckpointError(f"{path} is damaged (checksum differs); use another checkpoint")
    try:
        return load_tensors(blob)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def checkpoints(folder: Path) -> list[Path]:
    """The ``step-N`` folders below ``folder``, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            state = load_state(path)
            for name in state["files"]:
                load_tensors_of(path, Path(name).stem, state)
        except CheckpointError:
            continue
        return path
    return None


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and what was left half-written."""
    for path in [*checkpoints(folder)[:-keep], *folder.glob(".step-*.partial"), *folder.glob(".step-*.old")]:
        shutil.rmtree(path, ignore_errors=True)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and force it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a mixture."""
    partial = path.with_name(f".{path.name}.partial")
    write_durably(partial, content)
    partial.replace(path)
    _sync_folder(path.parent)


# --- optimiser state and random numbers as named tensors ---------------------------------------------


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's per-parameter state as ``{"<parameter>.<name>": tensor}``."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, entries in state.items()
        for name, value in entries.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of :func:`flatten_optimizer`; parameter groups keep their own settings."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


_STEP = re.compile(r"step-(\d+)")


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _sealed(state: dict[str, Any]) -> bytes:
    state = json.loads(json.dumps(state))  # as it will be read back
    return json.dumps({**state, "sha256": _digest(state)}, indent=1, sort_keys=True).encode()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
