"""Garbage, pipes, devices and wrong types in place of every file: a typed error that names it, soon."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from dtsn.config import PPG_CPU
from dtsn.data import Dataset
from dtsn.data.dgrl import import_dgrl
from dtsn.envs.procgen import ProcgenOptions
from dtsn.experts.ppg import PhasicPolicyGradient
from dtsn.experts.ppg_policy import load_expert
from dtsn.storage import read_array
from dtsn.training.loading import load_solver
from dtsn.training.runs import RunFolder

from .common import TINY, Outcome, train, vectors
from .guarded import read_guarded
from .malice import seal_state

Case = tuple[str, Path, Callable[[Path], object]]

CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"[]\n",
    "null": b"null\n",
    "a number": b"1\n",
    "a text": b'"step"\n',
    "lists in lists": b"[" * 10**5 + b"\n",
    "objects in objects": b'{"a":' * 10**5 + b"\n",
    "binary": bytes(range(256)) * 4 + b"\n",
    "zeros": bytes(1000) + b"\n",
    "not a number": b'{"step": NaN}\n',
    "a long number": b'{"step": ' + b"9" * 5000 + b"}\n",
    "a step of text": b'{"step": "abc"}\n',
    "utf-16": '{"step": 1}\n'.encode("utf-16"),
    "half an object": b'{"step": 1,\n',
    "an npy header": b"\x93NUMPY\1\0\xff\xff{\n",
    "a zip signature": b"PK\3\4" + bytes(100) + b"PK\5\6" + bytes(18),
}


def untyped_errors(folder: Path, size: int = 1) -> Outcome:
    """``size`` 0 leaves out most of the contents."""
    result, path = Outcome(), vectors(folder / "data.h5")
    config = replace(TINY, steps=2)
    with Dataset(path) as dataset:
        train(folder / "run", dataset, config)
        tiny = replace(PPG_CPU, num_envs=1, rollout=1, minibatches=1, policy_iterations=1, latent=8, steps=1)
        expert = PhasicPolicyGradient(tiny).save(folder / "expert")

        def resume(run: Path) -> None:
            train(run.parent if run.name == "metrics.jsonl" else run, dataset, replace(config, steps=4))

        cases = [
            *_in_place_of_files(folder, folder / "run", path, expert, resume, size),
            *_bad_fields(folder, folder / "run", resume),
        ]
        for name, place, read in cases:
            result.tried += 1
            problem = read_guarded(place, read, folder / "said.json")
            result.check(problem is None, f"{name}: {problem}")
    return result


def _in_place_of_files(
    folder: Path, run: Path, data: Path, expert: Path, resume: Callable[[Path], None], size: int
) -> Iterator[Case]:
    def dgrl(path: Path) -> None:
        import_dgrl(path.parent, folder / "out.h5", ProcgenOptions("coinrun"), overwrite=True)

    step = "checkpoints/step-2"
    readers: dict[str, tuple[Path, str, Callable[[Path], object]]] = {
        "config.json": (run, "config.json", lambda path: RunFolder(path.parent).environment()),
        "metrics.jsonl": (run, "metrics.jsonl", lambda path: RunFolder(path.parent).metrics()),
        "metrics.jsonl of a resumed run": (run, "metrics.jsonl", resume),
        "state.json": (run, f"{step}/state.json", lambda path: load_solver(path.parent)),
        "model.safetensors": (run, f"{step}/model.safetensors", lambda path: load_solver(path.parent)),
        "an expert's state.json": (expert, "state.json", lambda path: load_expert(path.parent)),
        "an expert's model": (expert, "model.safetensors", lambda path: load_expert(path.parent)),
        "a data set": (data.parent, data.name, lambda path: Dataset(path).close()),
        "an episode": (data.parent, "T_0_4_0_0.00.npz", dgrl),
        "an array": (data.parent, "state.npy", lambda path: read_array(path, 2**20)),
    }
    for number, (what, (source, name, read)) in enumerate(readers.items()):
        log = "metrics" in what
        for kind, content in CONTENTS.items():
            if (log and kind == "nothing") or (not size and kind not in ("null", "binary")):
                continue
            place = _copied(folder / f"place-{number}-{kind.replace(' ', '-')}", source, name)
            place.write_bytes(content)
            yield f"{kind} in place of {what}", place, read
        for kind, make in {
            "a pipe": os.mkfifo,
            "a device": lambda path: os.symlink("/dev/zero", path),
            "a folder": os.mkdir,
            "a loop": lambda path: os.symlink(path, path),
        }.items():
            if kind == "a loop" and name.endswith(".json"):
                continue  # is missing: not a run, or not a checkpoint
            place = _copied(folder / f"place-{number}-{kind.replace(' ', '-')}", source, name)
            place.unlink(missing_ok=True)
            make(place)
            yield f"{kind} in place of {what}", place, read


def _copied(folder: Path, source: Path, name: str) -> Path:
    """A folder of its own with all that is needed to read the file ``name`` in it."""
    if (source / "state.json").exists() or (source / "config.json").exists():
        shutil.copytree(source, folder)
    else:
        folder.mkdir()
    return folder / name


def _bad_fields(folder: Path, run: Path, resume: Callable[[Path], None]) -> Iterator[Case]:
    """States and tensors that are sealed by one who knows how, and resumed from."""
    values: list[Any] = ["abc", 10**30, -1, 1.5, None, [], {}, True, "\x1b[31m"]
    for field in ("step", "skips", "config", "num_actions", "observation_shape", "observation_space", "data"):
        for number, value in enumerate(values):
            if (field, value) in (("data", None), ("skips", True)):
                continue
            place = folder / f"field-{field}-{number}"
            shutil.copytree(run, place)
            seal_state(place / "checkpoints/step-2", **{field: [value] if value == {} else value})
            yield f"{field} = {value!r}", place, resume
    changes: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "no tensors": lambda t: t.clear(),
        "another name": lambda t: t.update({"x": torch.ones(1)}),
        "a number out of range": lambda t: t.update({"10000000000000000000.step": torch.ones(())}),
        "other shapes": lambda t: t.update({n: v.flatten()[:1] for n, v in t.items()}),
        "bools": lambda t: t.update({n: v.bool() for n, v in t.items()}),
        "halves": lambda t: t.update({n: v.half() for n, v in t.items()}),
        "NaN": lambda t: t.update({n: v * np.nan for n, v in t.items()}),
        "infinity": lambda t: t.update({n: v + np.inf for n, v in t.items()}),
    }
    for stem in ("model", "optimizer"):
        for name, change in changes.items():
            place = folder / f"tensors-{stem}-{name.replace(' ', '-')}"
            shutil.copytree(run, place)
            _forge_tensors(place / "checkpoints/step-2", stem, change)
            yield f"{name} in {stem}", place, resume


def _forge_tensors(step: Path, stem: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    from hashlib import sha256

    file = step / f"{stem}.safetensors"
    tensors = load_file(file)
    change(tensors)
    blob = save_tensors(tensors)
    file.write_bytes(blob)
    seal_state(step, files={file.name: sha256(blob).hexdigest()})
