"""Garbage, pipes, devices and wrong types in place of every file: a typed error that names it, soon."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from dtsn.config import PPG_CPU
from dtsn.data import Dataset
from dtsn.data.dgrl import import_dgrl
from dtsn.data.format import seal
from dtsn.envs.procgen import ProcgenOptions
from dtsn.experts.ppg import PhasicPolicyGradient
from dtsn.experts.ppg_policy import load_expert
from dtsn.storage import read_array
from dtsn.training.loading import load_solver
from dtsn.training.runs import RunFolder

from .common import TINY, Outcome, train, vectors
from .guarded import read_guarded
from .malice import seal_state
from .results import garbage_for_results, results_that_say_anything

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
    "beyond numbers": b'{"step": 1, "env": 1e999}\n',
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
            *_bad_archives(folder),
            *_bad_headers(folder, path),
            *garbage_for_results(
                folder, {kind: CONTENTS[kind] for kind in (CONTENTS if size else ("binary",))}
            ),
            *results_that_say_anything(folder, every=1 if size else 80),
        ]
        for name, place, read in cases:
            result.tried += 1
            accept = "said-" in str(place)  # some of it may be true
            problem = read_guarded(place, read, folder / "said.json", accept)
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
            half = log and b"\n" not in content  # a half-written last line is passed over
            plain = name == "config.json" and kind == "a step of text"  # an object that says nothing
            if half or plain or (not size and kind not in ("null", "binary")):
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


def _bad_archives(folder: Path) -> Iterator[Case]:
    """gen_dgrl's archives whose arrays are encrypted, packed in other ways, or have broken headers."""

    def flags(content: bytes, at: int, value: int) -> bytes:
        """Change a field of every file's entry, in the directory and before the file."""
        changed = bytearray(content)
        for mark, offset in ((b"PK\1\2", at + 2), (b"PK\3\4", at)):
            place = -1
            while (place := content.find(mark, place + 1)) >= 0:
                changed[place + offset] = value
        return bytes(changed)

    arrays = {"observations": (5, 3, 64, 64), "actions": (4, 1), "rewards": (4, 1), "dones": (4,)}
    changes: dict[str, Callable[[bytes], bytes]] = {
        "encrypted": lambda content: flags(content, 6, 1),
        **{f"of method {n}": lambda content, n=n: flags(content, 8, n) for n in (1, 6, 9, 12, 14, 97, 99)},
        "of a directory beyond the end": lambda content: content[:-6] + b"\xfe\xff\xff\xff" + content[-2:],
        "of a directory of 4 GB": lambda content: content[:-10] + b"\xff\xff\xff\xff" + content[-6:],
        "with nested headers": lambda content: content.replace(b"{'descr'", b"(((((((("),
        "of objects": lambda content: content.replace(b"|u1", b"|O8"),
        "without arrays": lambda content: content.replace(b"actions.npy", b"action5.npy"),
    }
    for number, (name, change) in enumerate(changes.items()):
        path = folder / f"archive-{number}" / "T_0_4_0_0.00.npz"
        path.parent.mkdir()
        np.savez(path, **{array: np.zeros(shape, np.uint8) for array, shape in arrays.items()})
        path.write_bytes(change(path.read_bytes()))
        out = path.with_suffix(".h5")
        yield (
            f"an archive {name}",
            path,
            lambda p, out=out: import_dgrl(p.parent, out, ProcgenOptions("coinrun")),
        )


def _bad_headers(folder: Path, good: Path) -> Iterator[Case]:
    """Headers of data sets that are sealed by one who knows how."""
    values: list[Any] = [None, True, -1, 1.5, 10**30, "\x1b[31m", [], {}, {"x": float("nan")}, {"x": [1]}]
    fields = ("num_actions", "discount", "sha256", "observation", "env_options", "real_last_frames")
    for field in fields:
        for number, value in enumerate(values):
            fits = (field == "env_options" and value == {}) or (field == "real_last_frames" and value is True)
            if fits or (field, value) == ("env_options", {"x": [1]}):
                continue
            path = folder / f"header-{field}-{number}.h5"
            shutil.copy(good, path)
            with h5py.File(path, "r+") as file:
                text = json.dumps(json.loads(bytes(file.attrs["header"])) | {field: value}).encode()
                file.attrs["header"] = np.bytes_(text)
                file.attrs["header_sha256"] = np.bytes_(sha256(text).hexdigest())
            with path.open("rb+") as raw:
                raw.write(seal(raw))
            yield f"a header with {field} = {value!r}", path, lambda p: Dataset(p).sha256


def _forge_tensors(step: Path, stem: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = step / f"{stem}.safetensors"
    tensors = load_file(file)
    change(tensors)
    blob = save_tensors(tensors)
    file.write_bytes(blob)
    seal_state(step, files={file.name: sha256(blob).hexdigest()})
