"""Checkpoints that survive: written aside, fsynced, renamed, checksummed, and free of pickle.

``step-N/`` holds ``model.safetensors``, ``optimizer.safetensors`` (for resuming) and ``state.json`` with
the format version, the configuration and the SHA-256 of every file. A folder without a valid
``state.json`` is not a checkpoint. ``.step-N.old`` is one while there is no ``step-N``: a step that is saved
again has one of the two at every moment.
"""

from __future__ import annotations

import contextlib
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

from dtsn.storage import replace_durably, sync_folder, write_durably

FORMAT = "dtsn-checkpoint"
FORMAT_VERSION = 1
MAX_STATE_BYTES = 1 << 20
MAX_TENSOR_BYTES = 1 << 32


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted: missing, damaged, or of another format."""


def save_checkpoint(folder: Path, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Path:
    """Write ``{file stem: {name: tensor}}`` and ``state`` as ``folder``; complete, or not there at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    blobs = {
        f"{stem}.safetensors": save_tensors({name: tensor.contiguous() for name, tensor in content.items()})
        for stem, content in tensors.items()
    }
    digests = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    blobs["state.json"] = _sealed(
        {"format": FORMAT, "format_version": FORMAT_VERSION, "files": digests, **state}
    )
    if _holds(folder, blobs["state.json"]):
        return folder
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for name, blob in blobs.items():
            write_durably(partial / name, blob)
        sync_folder(partial)
        _take_place(partial, folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"cannot save {folder}: {error}; earlier checkpoints are untouched") from error
    return folder


def _holds(folder: Path, sealed_state: bytes) -> bool:
    """Whether a sound checkpoint with this very state, and so with these very tensors, is there already."""
    try:
        return _read(folder / "state.json", MAX_STATE_BYTES) == sealed_state and bool(verified_state(folder))
    except CheckpointError:
        return False


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
    blob = _read(path, MAX_STATE_BYTES)
    try:
        state = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); use another checkpoint") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} does not belong to a dtsn checkpoint")
    version = state.get("format_version")
    if version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        remedy = "upgrade dtsn" if newer else "use the dtsn version that wrote it"
        raise CheckpointError(
            f"{path} has format version {version!r}, this dtsn reads {FORMAT_VERSION}: {remedy}"
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
    blob = _read(path, MAX_TENSOR_BYTES)
    if hashlib.sha256(blob).hexdigest() != state["files"].get(path.name):
        raise CheckpointError(f"{path} is damaged (checksum differs); use another checkpoint")
    try:
        return load_tensors(blob)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def _read(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of bounded size: a pipe or a device could go on for ever."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing or not a file; use another checkpoint")
        if path.stat().st_size > limit:
            raise CheckpointError(f"{path} is larger than {limit} bytes: not a dtsn checkpoint")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def verified_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, all of whose files have been verified."""
    state = load_state(folder)
    for name in state["files"]:
        load_tensors_of(folder, Path(name).stem, state)
    return state


def checkpoints(folder: Path) -> list[Path]:
    """The ``step-N`` folders below ``folder``, oldest first."""
    paths = [*folder.glob(".step-*.old"), *folder.glob("step-*")]  # the latter take the former's place
    found = {int(match[1] or match[2]): path for path in paths if (match := _STEP.fullmatch(path.name))}
    return [path for _, path in sorted(found.items())]


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            verified_state(path)
        except CheckpointError:
            continue
        return path
    return None


def best_checkpoint(folder: Path) -> Path | None:
    """The sound checkpoint with the highest validation score, the earliest of equals; None without scores."""
    return _best(_sound(folder))


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete what is older than the newest ``keep`` sound checkpoints, save the best by validation.

    Damaged ones do not count, so the only sound one is never deleted. What was left half-written goes, too.
    """
    sound = _sound(folder)
    if sound:
        found, kept = checkpoints(folder), list(sound)[-keep:]
        for path in found[: found.index(kept[0])]:
            if path != _best(sound) and path.is_dir():
                gone = folder / f".{path.name.strip('.')}.pruned"  # what is half deleted has another name
                shutil.rmtree(gone, ignore_errors=True)
                os.rename(path, gone)
    leftovers = [path for end in ("partial", "pruned", "old") for path in folder.glob(f".step-*.{end}")]
    for path in set(leftovers) - set(checkpoints(folder)):
        shutil.rmtree(path, ignore_errors=True)


def _sound(folder: Path) -> dict[Path, float | None]:
    """The checkpoints that verify, oldest first, with their validation scores."""
    scores: dict[Path, float | None] = {}
    for path in checkpoints(folder):
        with contextlib.suppress(CheckpointError):
            scores[path] = verified_state(path).get("validation")
    return scores


def _best(scores: dict[Path, float | None]) -> Path | None:
    scored = {path: score for path, score in scores.items() if isinstance(score, (int, float))}
    return max(scored, key=lambda path: scored[path]) if scored else None


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


_STEP = re.compile(r"step-(0|[1-9][0-9]*)|\.step-(0|[1-9][0-9]*)\.old")


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _sealed(state: dict[str, Any]) -> bytes:
    state = json.loads(json.dumps(state))  # as it will be read back
    return json.dumps({**state, "sha256": _digest(state)}, indent=1, sort_keys=True).encode()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a ``metrics.jsonl``, if there is one; a half-written last line is passed over."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def truncate_metrics(path: Path, step: int) -> None:
    """Forget what was logged after a checkpoint's step: those steps will be made again."""
    rows = [row for row in read_metrics(path) if row["step"] <= step]
    replace_durably(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
