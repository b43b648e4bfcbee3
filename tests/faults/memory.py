"""Files that claim more than they hold: each is read by a child that may take one gigabyte."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dtsn.config import PPG_CPU
from dtsn.data import Dataset, DatasetWriter, Episode
from dtsn.data.dgrl import import_dgrl
from dtsn.data.format import seal, sealed, to_json
from dtsn.envs.procgen import ProcgenOptions
from dtsn.experts.ppg import PhasicPolicyGradient
from dtsn.experts.ppg_policy import load_expert
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.runs import RunFolder

from .common import TINY, Outcome, make, train, vectors
from .guarded import MEMORY, SECONDS, read_guarded
from .malice import seal_state
from .results import large_results

Case = tuple[str, Path, Callable[[Path], object]]


def hostile_memory(folder: Path, size: int = 1) -> Outcome:
    """Each kind of file that can claim something; ``size`` 0 leaves out the slow ones."""
    result = Outcome()
    good = vectors(folder / "good.h5")
    with Dataset(good) as dataset:
        train(folder / "run", dataset, replace(TINY, steps=2))
    states = [*_states(folder, folder / "run/checkpoints/step-2"), *_logs(folder, folder / "run")]
    step = folder / "run/checkpoints/step-2"
    slow = (
        [*_bombs(folder, good), *_archives(folder), *_tensors(folder, step), *large_results(folder)]
        if size
        else []
    )
    peak = 0
    for name, path, read in [*_frames(folder, good), *states, *_experts(folder), *slow]:
        result.tried += 1
        problem = read_guarded(path, read, folder / "said.json", accept=True)
        result.check(problem is None, f"{name}: {problem}")
        peak = max(peak, json.loads((folder / "said.json").read_text())[1] if not problem else 0)
    result.notes.append(f"the largest grew by {peak >> 20} MB")
    result.notes.append(
        f"each with {MEMORY >> 20} MB beyond what the process has, and {SECONDS} s of CPU time"
    )
    return result


def _open_and_train(path: Path, verify: bool = True) -> None:
    """All that follows from a header's claims: opening, the first batch, and a solver for it."""
    with Dataset(path, verify=verify) as dataset:
        make(dataset, TINY)
        next(dataset.batches(1, 0))
        dataset.episode(0)


def _frames(folder: Path, good: Path) -> Iterator[Case]:
    """Frames of gigabytes in small chunks, in a file that is large enough to hold them, compressed."""
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
        "small chunks": ((2, 49152, 49152), (1, 64, 64)),
        "flat chunks": ((2, 49152, 49152), (2, 49152, 8)),
        "one large chunk": ((2, 8192, 8192), (2, 8192, 8192)),
        "a long row": ((2, 2**32), (1, 2**16)),
        "many frames": ((2**30, 4), (16, 4)),
        "frames of a gigabyte": ((2, 2**30), (16, 2**22)),
        "no dimension": ((2**31,), (16,)),
    }
    for name, (shape, chunks) in shapes.items():
        for verify in (True, False):
            path = folder / f"frames-{name.replace(' ', '-')}-{verify}.h5"
            _forge_frames(good, path, shape, chunks)
            yield f"{name}, verify={verify}", path, lambda p, v=verify: _open_and_train(p, v)
    for count in (5_000_000, 10**12, 4096):
        path = folder / f"actions-{count}.h5"
        shutil.copy(good, path)
        with h5py.File(path, "r+") as file:
            _reseal_header(file, {"num_actions": count})
        _seal_file(path)
        yield f"{count} actions", path, _open_and_train
    path = folder / "steps.h5"
    shutil.copy(good, path)
    with h5py.File(path, "r+") as file:
        for array in ("actions", "rewards", "q_values", "dones", "episode_ends", "levels"):
            dtype = file[array].dtype
            del file[array]
            file.create_dataset(array, (2**29,), dtype)
    os.truncate(path, 2**34)  # sparse: it takes no room, but it could hold them
    yield "arrays of gigabytes in a sparse file", path, lambda p: Dataset(p, verify=False).close()


def _forge_frames(good: Path, path: Path, shape: tuple[int, ...], chunks: tuple[int, ...] | None) -> None:
    shutil.copy(good, path)
    with h5py.File(path, "r+") as file:
        for array, values in {
            "actions": np.zeros(1, "<i4"),
            "rewards": np.zeros(1, "<f4"),
            "q_values": np.zeros(1, "<f4"),
            "dones": np.ones(1, "u1"),
            "episode_ends": np.ones(1, "<i8"),
            "levels": np.zeros(1, "<i8"),
        }.items():
            del file[array]
            file[array] = values
        del file["observations"]
        options: dict[str, Any] = {"chunks": chunks, "compression": "gzip", "maxshape": (None, *shape[1:])}
        file.create_dataset("observations", shape, "u1", **options)
        claims = {"observation": {"dtype": "uint8", "low": 0, "high": 255}}
        _reseal_header(file, claims, exclude="observations")
    with path.open("ab") as raw:
        raw.write(bytes(5 * 2**20))  # so that gzip could have made the frames of it
    _seal_file(path)


def _bombs(folder: Path, good: Path) -> Iterator[Case]:
    """A few megabytes that inflate to gigabytes, and files of nothing."""
    path = folder / "chunk-bomb.h5"
    _forge_frames(good, path, (2, 2**22), (16, 2**22))
    packer = zlib.compressobj(1)
    bomb = b"".join([*(packer.compress(bytes(2**24)) for _ in range(96)), packer.flush()])
    with h5py.File(path, "r+") as file:
        file["observations"].id.write_direct_chunk((0, 0), bomb)
    _seal_file(path)
    for verify in (True, False):
        yield f"a chunk of 1.5 GB, verify={verify}", path, lambda p, v=verify: _open_and_train(p, v)
    path = folder / "sparse-tail.h5"
    shutil.copy(good, path)
    os.truncate(path, 2**40)
    yield "a tail of 2^40 zeros", path, lambda p: Dataset(p).close()
    path = folder / "plain-chunk.h5"
    shutil.copy(good, path)
    with h5py.File(path, "r+") as file:
        actions = file["actions"][:]
        del file["actions"]
        file.create_dataset("actions", data=actions, chunks=(2**29,), maxshape=(None,))
    _seal_file(path)
    yield "a plain array in one chunk of 2 GB", path, lambda p: Dataset(p).close()
    path = folder / "dgrl-header" / "T_0_4_0_0.00.npz"
    path.parent.mkdir()
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("observations.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1))
        for _ in range(96):
            entry.write(bytes(2**24))
    yield "an array header of 4 GB", path, _import


def _import(path: Path) -> None:
    import_dgrl(path.parent, path.with_suffix(".h5"), ProcgenOptions("coinrun"))


def _reseal_header(file: h5py.File, fields: dict[str, Any], exclude: str = "") -> None:
    header = json.loads(bytes(file.attrs["header"])) | fields
    for name in file:
        if name != exclude:
            header["sha256"][name] = sealed(sha256(np.ascontiguousarray(file[name][:])), file[name])
    text = to_json(header)
    file.attrs["header"] = np.bytes_(text)
    file.attrs["header_sha256"] = np.bytes_(sha256(text).hexdigest())


def _seal_file(path: Path) -> None:
    with path.open("rb+") as raw:
        raw.write(seal(raw))


def _states(folder: Path, good: Path) -> Iterator[Case]:
    config = json.loads((good / "state.json").read_bytes())["config"]
    network, solver = config["network"], config["solver"]
    shapes: list[Any] = [
        [3_000_000_000, "a"], [10**30, "a"], ["a", 3_000_000_000], [[1] * 1000], [2**24, 2**24], [2] * 60,
        [1] * 10**5, 10**30, "abc", None, [-1, -(2**40)], [1.5], [True], [2**22], [0, 2**60], {"a": 1},
    ]  # fmt: skip
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"a shape {str(shape)[:40]}", {"observation_shape": shape}) for shape in shapes
    ]
    for encoder in ("mlp", "grid", "paths", "nature", "strided", "impala", "impala_fast", "impala_small"):
        for field, value in (("latent", 10**6), ("latent", 10**9), ("hidden", 10**7), ("hidden", 2**62)):
            claim = {"network": network | {"encoder": encoder, field: value}}
            shape = [4] if encoder == "mlp" else [3, 64, 64]
            said = {"config": claim, "observation_shape": shape}
            changes.append((f"{encoder} with {field} {value}", said))
    changes += [
        (f"{count} actions", {"num_actions": count}) for count in (5 * 10**6, 10**9, 10**30, True, "a")
    ]
    for field, value in (
        ("act_iterations", 2 * 10**9),
        ("iterations", 2**62),
        ("depth", 10**6),
        ("depth", 64),
    ):
        said = solver | {"name": "treeqn" if field == "depth" else "dtsn", field: value}
        changes.append((f"{field} = {value}", {"config": {"solver": said}}))
    for number, (name, change) in enumerate(changes):
        path = folder / f"memory-state-{number}"
        shutil.copytree(good, path)
        seal_state(path, **change)
        yield name, path, load_solver
    for number, (name, space) in enumerate(_spaces()):
        path = folder / f"space-{number}"
        shutil.copytree(good, path)
        seal_state(path, observation_space=space)
        yield f"a space of {name}", path, Solver.load
    path = folder / "many-names"
    shutil.copytree(good, path / "checkpoints/step-1")
    digest = json.loads((good / "state.json").read_bytes())["files"]["model.safetensors"]
    seal_state(
        path / "checkpoints/step-1", files={f"{'x' * n}/model.safetensors": digest for n in range(5000)}
    )
    yield "5000 names of one file", path, load_solver


def _spaces() -> Iterator[tuple[str, Any]]:
    box = {"type": "Box", "shape": [2**22], "dtype": "float32", "low": "-inf", "high": "inf"}
    nested: Any = box | {"shape": [4]}
    for _ in range(150):
        nested = {"type": "Tuple", "spaces": [[0, nested]]}
    yield "a large box", box
    yield "1000 large boxes", {"type": "Tuple", "spaces": [[n, box] for n in range(1000)]}
    yield "boxes in boxes", nested
    yield "a box of wide numbers", box | {"dtype": "V1000000"}
    yield "a box of long doubles", box | {"dtype": "float128"}
    yield "a box of strings", box | {"shape": [3_000_000_000, "a"]}
    yield "a bound of 10^400", box | {"shape": [4], "high": 10**400}
    yield "a bound of lists", box | {"shape": [4], "high": [[1.0] * 1000] * 10}
    yield "10^9 numbers", {"type": "Discrete", "n": 10**9, "start": 0}
    yield "10^30 numbers", {"type": "Discrete", "n": 10**30, "start": 0}
    yield "a start of 10^30", {"type": "Discrete", "n": 4, "start": 10**30}
    yield "many numbers", {"type": "MultiDiscrete", "nvec": [2**40] * 100, "start": [0] * 100}
    yield "texts", {"type": "MultiDiscrete", "nvec": ["a"], "start": [0]}
    yield "bits", {"type": "MultiBinary", "shape": [2**12, 2**12]}
    for said in (None, [], "Box", {}, {"type": "Graph"}, {"type": "Dict", "spaces": [1]}):
        yield repr(said), said


def _experts(folder: Path) -> Iterator[Case]:
    tiny = replace(PPG_CPU, num_envs=1, rollout=1, minibatches=1, policy_iterations=1, latent=8, steps=1)
    for number, claim in enumerate(
        ({"latent": 10**6}, {"latent": 10**9}, {"shared": False}, {"encoder": "impala"})
    ):
        learner = PhasicPolicyGradient(tiny)
        learner._state["config"] |= claim
        yield f"an expert with {claim}", learner.save(folder / f"expert-{number}"), load_expert


def _logs(folder: Path, run: Path) -> Iterator[Case]:
    logs = {
        "short lines": b'{"step":1}\n' * (2**26 // 11),
        "one line": b'{"step": 1, "a": ' + b"1" * 2**25,
        "a line of lists": b"[" * 2**25 + b"\n",
        "empty lines": b"\n" * 2**26,
    }
    for name, content in logs.items():
        path = folder / f"log-{name.replace(' ', '-')}"
        shutil.copytree(run, path)
        (path / "metrics.jsonl").write_bytes(content)
        yield f"a log of {name}", path / "metrics.jsonl", lambda p: RunFolder(p.parent).metrics()
    path = folder / "log-sparse"
    shutil.copytree(run, path)
    os.truncate(path / "metrics.jsonl", 2**40)
    yield "a log of 2^40 bytes", path / "metrics.jsonl", lambda p: RunFolder(p.parent).metrics()


def _archives(folder: Path) -> Iterator[Case]:
    """gen_dgrl's episodes: the longest that there may be, of the widest numbers."""

    for kind, steps, rows in (
        ("<f8", 10_000, 10_001),
        ("<f16", 10_000, 10_001),
        ("<f8", 10**6, 31_000),
        ("<f8", 10_000, 3),
    ):
        path = folder / f"dgrl-{kind[1:]}-{steps}-{rows}" / f"T_0_{steps}_0_0.00.npz"
        path.parent.mkdir()
        width = int(kind[2:])
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, shape in {
                "observations": (steps + 1, 3, 64, 64),
                "actions": (steps, 1),
                "rewards": (steps, 1),
                "dones": (steps,),
            }.items():
                header = repr({"descr": kind, "fortran_order": False, "shape": shape})
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    file.write(
                        b"\x93NUMPY\1\0" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n"
                    )
                    row = bytes(width * int(np.prod(shape[1:])))
                    for _ in range(min(shape[0], rows)):
                        file.write(row)
        yield f"an episode of {steps} steps as {kind}, {rows} of them there", path, _import
    path = folder / "dgrl-many" / "T_0_4_0_0.00.npz"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(200_000):
            archive.writestr(zipfile.ZipInfo(f"{number}"), b"")
    yield "an archive of 200,000 files", path, _import


def _tensors(folder: Path, good: Path) -> Iterator[Case]:
    header = {"a": {"dtype": "F32", "shape": [2**26 - 64], "data_offsets": [0, 2**28 - 256]}}
    text = json.dumps(header).encode().ljust(248)
    blobs = {
        "a tensor of 256 MB": struct.pack("<Q", len(text)) + text + bytes(2**28 - 256),
        "a header of 100 MB": struct.pack("<Q", 10**8) + b'{"a":' * (10**8 // 5),
    }
    for number, (name, blob) in enumerate(blobs.items()):
        path = folder / f"tensors-{number}"
        shutil.copytree(good, path)
        (path / "model.safetensors").write_bytes(blob)
        seal_state(path, files={"model.safetensors": sha256(blob).hexdigest()})
        yield name, path, load_solver
    many = folder / "many-damaged"
    for number in range(1000):  # sound but for their weights, which take a while to read
        (many / f"checkpoints/step-{number}").mkdir(parents=True)
        shutil.copy(good / "state.json", many / f"checkpoints/step-{number}")
        (many / f"checkpoints/step-{number}/model.safetensors").touch()
        os.truncate(many / f"checkpoints/step-{number}/model.safetensors", 2**28)
    yield "1000 damaged checkpoints", many, load_solver
    for steps in (2,):
        path = folder / "wide.h5"
        with DatasetWriter(
            path, env_id="x", env_options={}, num_actions=3, observation_shape=(2**22,)
        ) as writer:
            frames = np.zeros((steps + 1, 2**22), np.uint8)
            writer.add_episode(Episode(frames, np.zeros(steps, int), np.zeros(steps), True, 0))
        yield "frames as large as they may be", path, lambda p: next(Dataset(p).batches(1, 0))
