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
import math
import os
import re
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from dtsn.errors import UserError, brief
from dtsn.storage import aside, read_bounded, read_json, sync_folder, write_durably

FORMAT = "dtsn-checkpoint"
FORMAT_VERSION = 1
MAX_STATE_BYTES = 1 << 20
MAX_TENSOR_BYTES = 1 << 28  # of one file: reading it takes three times as much
MAX_TENSOR_HEADER = 1 << 20
MAX_FILES = 8
MAX_DAMAGED = 5  # checkpoints that are passed over: each may take a second to read

_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})|\.step-(0|[1-9][0-9]{0,17})\.old")
_LEFTOVER = re.compile(r"\.step-[0-9]+(\.[0-9a-f]{16})?\.(partial|pruned|old)")
_FILE = re.compile(r"[a-z_]{1,40}\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointError(UserError):
    """A checkpoint that cannot be trusted: missing, damaged, or of another format."""


def save_checkpoint(folder: Path, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Path:
    """Write ``{file stem: {name: tensor}}`` and ``state`` as ``folder``; complete, or not there at all."""
    blobs = {
        f"{stem}.safetensors": save_tensors({name: tensor.contiguous() for name, tensor in content.items()})
        for stem, content in tensors.items()
    }
    for name, blob in blobs.items():
        if len(blob) > MAX_TENSOR_BYTES:
            raise CheckpointError(
                f"{folder / name} must have at most {MAX_TENSOR_BYTES} bytes, got {len(blob)}: "
                "use a smaller network, or raise dtsn.checkpoint.MAX_TENSOR_BYTES in your program"
            )
    digests = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    blobs["state.json"] = _sealed(
        {"format": FORMAT, "format_version": FORMAT_VERSION, "files": digests, **state}
    )
    if _holds(folder, blobs["state.json"]):
        return folder
    partial = aside(folder, "partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        for name, blob in blobs.items():
            write_durably(partial / name, blob)
        sync_folder(partial)
        _take_place(partial, folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"cannot save {folder}: {error}; earlier checkpoints are untouched") from error
    return folder


def _holds(folder: Path, sealed_state: bytes) -> bool:
    """Tell whether a sound checkpoint with this state, and so with these tensors, is there already."""
    try:
        return read_bounded(folder / "state.json", MAX_STATE_BYTES) == sealed_state and bool(
            verified_state(folder)
        )
    except (CheckpointError, OSError):
        return False


def _take_place(new: Path, folder: Path) -> None:
    """Rename ``new`` to ``folder``; one that is there already (a re-run of the step) goes once it is done."""
    old = folder.with_name(f".{folder.name}.old")
    if os.path.lexists(folder):
        _remove(old)  # of a process that was killed here
        os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        if os.path.lexists(old):
            os.rename(old, folder)
        raise
    sync_folder(folder.parent)  # before the old one is deleted: a loss of power may undo what is not synced
    _remove(old)


def _remove(path: Path) -> None:
    """Delete a folder with all it holds, or a link without what it leads to; failing does no harm."""
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
    shutil.rmtree(path, ignore_errors=True)  # does not follow links


def load_state(folder: Path) -> dict[str, Any]:
    """Load the ``state.json`` of a checkpoint, verified."""
    path = folder / "state.json"
    try:
        state = read_json(path, MAX_STATE_BYTES)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}; use another checkpoint") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path} does not belong to a dtsn checkpoint")
    version = state.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        remedy = "upgrade dtsn" if newer else "use the dtsn version that wrote it"
        raise CheckpointError(
            f"{path} has format version {brief(version)}, this dtsn reads {FORMAT_VERSION}: {remedy}"
        )
    seal = state.pop("sha256", None)
    try:
        sealed = seal == _digest(state)
    except RecursionError:  # shallow enough to be read, too deep to be hashed
        sealed = False
    if not sealed:
        raise CheckpointError(f"{path} is damaged (checksum differs); use another checkpoint")
    if not _is_file_list(state.get("files")):
        raise CheckpointError(
            f"{path}: files must map 1 to {MAX_FILES} names like model.safetensors to checksums; "
            "use another checkpoint"
        )
    return state


def _is_file_list(files: object) -> bool:
    return (
        isinstance(files, dict)
        and 1 <= len(files) <= MAX_FILES
        and all(
            _FILE.fullmatch(name) and isinstance(digest, str) and _SHA256.fullmatch(digest)
            for name, digest in files.items()
        )
    )


def load_tensors_of(folder: Path, stem: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """Load the tensors of one file of a checkpoint, verified against its ``state``."""
    path = folder / f"{stem}.safetensors"
    try:
        blob = read_bounded(path, MAX_TENSOR_BYTES)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}; use another checkpoint") from error
    if hashlib.sha256(blob).hexdigest() != state["files"].get(path.name):
        raise CheckpointError(f"{path} is damaged (checksum differs); use another checkpoint")
    if len(blob) < 8 or struct.unpack("<Q", blob[:8])[0] > MAX_TENSOR_HEADER:
        raise CheckpointError(f"{path} is not a safetensors file of at most {MAX_TENSOR_HEADER} header bytes")
    try:
        return load_tensors(blob)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def check_tensors(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor], optional: str | None = None
) -> None:
    """Refuse tensors that are not those expected, by name, shape and type, or that are not finite.

    Those whose names begin with ``optional`` may be missing. ``expected`` may be on the meta device, so that
    nothing is allocated for what a file claims.
    """
    for name, tensor in found.items():
        if name not in expected:
            raise UserError(f"{name!r} must be absent, got {_kind(tensor)}")
        if _kind(expected[name]) != _kind(tensor):
            raise UserError(f"{name!r} must be {_kind(expected[name])}, got {_kind(tensor)}")
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name!r} must be finite, got NaN or infinity")
    missing = [n for n in expected if n not in found and (optional is None or not n.startswith(optional))]
    if missing:
        raise UserError(f"{missing[0]!r} must be there, got nothing")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def verified_state(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, all of whose files have been verified."""
    state = load_state(folder)
    for name in state["files"]:
        load_tensors_of(folder, Path(name).stem, state)
    return state


def checkpoints(folder: Path) -> list[Path]:
    """Return the ``step-N`` folders below ``folder``, oldest first; links to elsewhere are none."""
    paths = [*folder.glob(".step-*.old"), *folder.glob("step-*")]  # the latter take the former's place
    found = {
        int(match[1] or match[2]): path
        for path in paths
        if (match := _STEP.fullmatch(path.name)) and not path.is_symlink()
    }
    return [path for _, path in sorted(found.items())]


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that verifies; damaged ones are passed over, but not without end."""
    return next(iter(_newest_sound(folder, 1)), None)


def best_checkpoint(folder: Path) -> Path | None:
    """Return the sound checkpoint with the highest validation score, the earliest of equals, if any."""
    scores: dict[Path, float] = {}
    for path in checkpoints(folder):
        with contextlib.suppress(CheckpointError):
            score = load_state(path).get("validation")
            if isinstance(score, (int, float)):
                scores[path] = score
    best_first = sorted(scores, key=lambda path: -scores[path])
    return next((path for path in best_first[:MAX_DAMAGED] if _is_sound(path)), None)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete what is older than the newest ``keep`` sound checkpoints, save the best by validation.

    Damaged ones do not count, so the only sound one is never deleted. What was left half-written goes, too.
    """
    if folder.is_symlink():
        raise CheckpointError(f"{folder} must be a folder and not a link: remove the link")
    kept = _newest_sound(folder, keep)
    if kept:
        found, best = checkpoints(folder), best_checkpoint(folder)
        for path in found[: found.index(kept[-1])]:
            if path != best and path.is_dir():
                # What is half deleted has another name.
                os.rename(path, aside(folder / path.name.strip(".").removesuffix(".old"), "pruned"))
    leftovers = {path for path in folder.glob(".step-*") if _LEFTOVER.fullmatch(path.name)}
    for path in leftovers - set(checkpoints(folder)):
        _remove(path)


def _newest_sound(folder: Path, count: int) -> list[Path]:
    """Return the ``count`` newest checkpoints that verify, newest first; give up at many damaged ones."""
    sound: list[Path] = []
    damaged = 0
    for path in reversed(checkpoints(folder)):
        if len(sound) == count or damaged == MAX_DAMAGED:
            break
        if _is_sound(path):
            sound.append(path)
        else:
            damaged += 1
    return sound


def _is_sound(path: Path) -> bool:
    try:
        verified_state(path)
    except CheckpointError:
        return False
    return True


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's per-parameter state as ``{"<parameter>.<name>": tensor}``."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, entries in state.items()
        for name, value in entries.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Undo :func:`flatten_optimizer` for Adam and AdamW; groups keep their own settings.

    A parameter that never had a gradient has no state; every other one has all of it, in its own shape.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    expected: dict[str, Tensor] = {}
    for index in {key.partition(".")[0] for key in tensors}:
        if index not in map(str, range(len(weights))):
            raise UserError(
                f"the optimiser's state must be of parameters 0 to {len(weights) - 1}, got {index!r}"
            )
        moments = torch.empty_like(weights[int(index)], device="meta")
        expected |= {f"{index}.exp_avg": moments, f"{index}.exp_avg_sq": moments}
        expected[f"{index}.step"] = torch.empty((), device="meta")
    check_tensors(expected, tensors)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def count_in(state: dict[str, Any], name: str, at_most: int) -> int:
    """Return a field of a checkpoint's state that counts something."""
    value = state.get(name)
    if type(value) is not int or not 0 <= value <= at_most:
        raise UserError(f"{name} must be a whole number from 0 to {at_most}, got {brief(value)}")
    return value


def shape_in(state: dict[str, Any], name: str, most_values: int) -> tuple[int, ...]:
    """Return a field of a checkpoint's state that is a shape."""
    value = state.get(name)
    sizes = value if isinstance(value, list) and 1 <= len(value) <= 8 else [None]
    if not all(type(n) is int and 1 <= n <= most_values for n in sizes) or math.prod(sizes) > most_values:
        raise UserError(
            f"{name} must be 1 to 8 sizes of at most {most_values} values in all, got {brief(value)}"
        )
    return tuple(sizes)


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _sealed(state: dict[str, Any]) -> bytes:
    state = json.loads(json.dumps(state))  # as it will be read back
    return json.dumps({**state, "sha256": _digest(state)}, indent=1, sort_keys=True).encode()
