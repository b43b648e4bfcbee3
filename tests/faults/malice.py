"""Files made to harm: code, bombs, lies, links."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from dtsn.data import Dataset
from dtsn.data.format import seal
from dtsn.training.loading import load_solver

from .common import TINY, Outcome, train, vectors
from .guarded import MEMORY, SECONDS, read_guarded


class Exploit:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def malice(folder: Path, size: int = 1) -> Outcome:
    """Files made to harm, read under a limit of memory and time; ``size`` seeds of the random ones."""
    result = Outcome()
    mark, good_data = folder / "executed", vectors(folder / "good.h5")
    with Dataset(good_data) as dataset:
        train(folder / "run", dataset, replace(TINY, steps=2))
    good = folder / "run/checkpoints/step-2"
    blobs = _hostile_blobs(mark, size)
    cases: list[tuple[str, Path, Callable[[Path], object]]] = []
    for name, blob in blobs.items():
        for file in ("state.json", "model.safetensors"):
            path = folder / f"checkpoint-{len(cases)}"
            shutil.copytree(good, path)
            (path / file).write_bytes(blob)
            cases.append((f"{name} as {file}", path, load_solver))
            if file == "model.safetensors":  # with right checksums, too
                seal_state(path, files={file: hashlib.sha256(blob).hexdigest()})
        for ending in ("h5", "pkl", "pt", "npz", "zip", "json") if size else ("h5",):
            path = folder / f"data-{len(cases)}.{ending}"
            path.write_bytes(blob)
            cases.append((f"{name} as .{ending}", path, lambda path: Dataset(path).close()))
    cases += _hostile_states(folder, good)
    cases += _hostile_data(folder, good_data)
    for name, path, read in cases:
        result.tried += 1
        problem = read_guarded(path, read, folder / "said.json")
        result.check(problem is None, f"{name}: {problem}")
    result.check(not mark.exists(), "a pickle was executed")
    result.notes.append(f"each read with {MEMORY >> 20} MB of memory and {SECONDS} s of CPU time at most")
    return result


def _hostile_blobs(mark: Path, size: int) -> dict[str, bytes]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../observations.npy", bytes(2**26))
    tensors = io.BytesIO()
    torch.save({"weight": Exploit(mark)}, tensors)
    arrays = io.BytesIO()
    np.save(arrays, np.array([Exploit(mark)], object), allow_pickle=True)
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}

    def lie(header: Any, length: int | None = None, content: bytes = bytes(16)) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + content

    rng = np.random.default_rng(0)
    return {
        **{f"pickle {n}": pickle.dumps(Exploit(mark), n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
        "torch.save": tensors.getvalue(),
        "numpy pickle": arrays.getvalue(),
        "zip bomb": archive.getvalue(),
        "gzip bomb": gzip.compress(bytes(2**28)),
        "lists in lists": b"[" * 10**6,
        "objects in objects": b'{"a":' * 10**6,
        "closed lists in lists": b"[" * 10**6 + b"]" * 10**6,
        "a long number": b"9" * 10**6,
        "header of 2^63": lie({"a": entry}, 2**63),
        "header of 2^40": lie({"a": entry}, 2**40),
        "tensor of 2^60": lie({"a": entry | {"shape": [2**60], "data_offsets": [0, 2**62]}}),
        "tensor beyond the file": lie({"a": entry | {"shape": [2**28], "data_offsets": [0, 2**30]}}),
        "shape that overflows": lie({"a": entry | {"shape": [2**33, 2**33]}}),
        "overlapping tensors": lie({"a": entry, "b": entry}),
        "backwards": lie({"a": entry | {"data_offsets": [16, 0]}}),
        "a nested header": struct.pack("<Q", 10**6) + b"[" * 10**6,
        "names of paths": lie({"../../a": entry}),
        "HDF5 signature alone": b"\x89HDF\r\n\x1a\n" + bytes(1000),
        **{f"noise {n}": rng.bytes(int(rng.integers(1, 5000))) for n in range(10 * size)},
        **{f"noise after a signature {n}": b"\x89HDF\r\n\x1a\n" + rng.bytes(2000) for n in range(10 * size)},
    }


def seal_state(path: Path, **changes: Any) -> None:
    """Change a checkpoint's state and give it a right checksum, as one who means harm can."""
    state = json.loads((path / "state.json").read_bytes())
    state.pop("sha256", None)
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(state.get(name), dict):
            state[name] = state[name] | value
        else:
            state[name] = value
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps({**state, "sha256": digest}))


def _hostile_states(folder: Path, good: Path) -> list[tuple[str, Path, Callable[[Path], object]]]:
    config = json.loads((good / "state.json").read_bytes())["config"]
    network, solver = config["network"], config["solver"]
    changes: dict[str, dict[str, Any]] = {
        "a latent of 10^6": {"config": {"network": network | {"latent": 10**6}}},
        "a hidden layer of 10^7": {"config": {"network": network | {"hidden": 10**7}}},
        "10^9 actions": {"num_actions": 10**9},
        "frames of 10^9": {"observation_shape": [10**9]},
        "frames of 10^5 dimensions": {"observation_shape": [2] * 10**5},
        "a solver of another name": {"config": {"solver": solver | {"name": "../../solver"}}},
        "a configuration of lists": {"config": [[]]},
        "an unknown field": {"config": {"__class__": "os.system"}},
    }
    cases: list[tuple[str, Path, Callable[[Path], object]]] = []
    for name, change in changes.items():
        path = folder / f"state-{len(cases)}"
        shutil.copytree(good, path)
        seal_state(path, **change)
        cases.append((name, path, load_solver))
    for number, name in enumerate(("../../../data", "/etc/passwd", "a\0b.safetensors")):
        path = folder / f"paths-{number}/checkpoints/step-1"
        shutil.copytree(good, path)
        seal_state(path, files={name: "0" * 64})
        cases.append((f"a file named {name!r}", folder / f"paths-{number}", load_solver))
    for number, target in enumerate(("/dev/zero", "/dev/stdin", folder / "pipe")):
        path = folder / f"device-{number}"
        shutil.copytree(good, path)
        (path / "model.safetensors").unlink()
        (path / "model.safetensors").symlink_to(target)
        cases.append((f"a link to {target}", path, load_solver))
    os.mkfifo(folder / "pipe")
    sparse = folder / "sparse"
    shutil.copytree(good, sparse)
    os.truncate(sparse / "model.safetensors", 2**40)
    cases.append(("a file of 2^40 bytes", sparse, load_solver))
    return cases


def _hostile_data(folder: Path, good: Path) -> list[tuple[str, Path, Callable[[Path], object]]]:
    def replaced(name: str, *shape: Any, **options: Any) -> Callable[[h5py.File], None]:
        def change(file: h5py.File) -> None:
            del file[name]
            file.create_dataset(name, *shape, **options)

        return change

    def link(name: str, target: Any) -> Callable[[h5py.File], None]:
        def change(file: h5py.File) -> None:
            del file[name]
            file[name] = target

        return change

    def virtual(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((300,), "<i4")
        layout[:] = h5py.VirtualSource("good.h5", "actions", (300,))
        del file["actions"]
        file.create_virtual_dataset("actions", layout)

    def soft(file: h5py.File) -> None:
        file.move("actions", "rewards2")
        file["actions"] = h5py.SoftLink("/rewards2")

    def attribute(value: Any) -> Callable[[h5py.File], None]:
        return lambda file: file.attrs.__setitem__("header", value)

    def loop(file: h5py.File) -> None:
        file["actions2"] = file["/"]

    changes: dict[str, Callable[[h5py.File], None]] = {
        "external link": link("actions", h5py.ExternalLink("good.h5", "/actions")),
        "external link up": link("actions", h5py.ExternalLink("../../etc/passwd", "/actions")),
        "soft link": soft,
        "soft link to itself": link("actions", h5py.SoftLink("/actions")),
        "virtual data set": virtual,
        "external storage": replaced("actions", (300,), "<i4", external=[("/etc/passwd", 0, 1200)]),
        "external storage up": replaced("actions", (300,), "<i4", external=[("../../x", 0, 1200)]),
        "a bomb of frames": replaced(
            "observations", (2**34, 4), "<f4", chunks=(2**20, 4), compression="gzip", maxshape=(None, 4)
        ),
        "a bomb of one chunk": replaced(
            "observations", (320, 2**22), "<f4", chunks=(16, 2**22), compression="gzip"
        ),
        "10^15 actions": replaced("actions", (10**15,), "<i4", chunks=(1024,)),
        "10^15 episodes": replaced("levels", (10**15,), "<i8", chunks=(1024,)),
        "a foreign filter": replaced("actions", data=np.zeros(300, "<i4"), compression="lzf"),
        "objects": replaced("actions", (300,), h5py.string_dtype()),
        "references": replaced("actions", (300,), h5py.ref_dtype),
        "a loop of groups": loop,
        "a header of lists in lists": attribute(np.bytes_(b"[" * 60_000)),
        "a header of objects": attribute("not fixed"),
        "a header of numbers": attribute(np.arange(5)),
        "a header of nothing": attribute(h5py.Empty("f")),
    }
    cases: list[tuple[str, Path, Callable[[Path], object]]] = []
    for number, (name, change) in enumerate(changes.items()):
        path = folder / f"hostile-{number}.h5"
        shutil.copy(good, path)
        with h5py.File(path, "r+") as file:
            change(file)
        with path.open("rb+") as raw:
            raw.write(seal(raw))  # right checksums
        for verify in (True, False):
            cases.append((f"{name}, verify={verify}", path, lambda p, v=verify: Dataset(p, verify=v).close()))
    (folder / "fifo.h5").unlink(missing_ok=True)
    os.mkfifo(folder / "fifo.h5")
    cases.append(("a pipe", folder / "fifo.h5", lambda path: Dataset(path).close()))
    return cases
