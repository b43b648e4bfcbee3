"""Break it on purpose, many times: the tests behind docs/reliability.md.

``make torture`` runs all but the soak, ``make soak`` that one, ``python tests/torture.py NAME ...`` some.
Each test is a function of an empty folder and a size; ``tests/test_reliability.py`` runs short versions.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import io
import json
import math
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
import xml.etree.ElementTree
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import load_file

from dtsn.checkpoint import (
    CheckpointError,
    checkpoints,
    latest_checkpoint,
    load_state,
    prune_checkpoints,
    read_metrics,
    save_checkpoint,
    verified_state,
)
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig, TrainConfig
from dtsn.data import dataset as data_module
from dtsn.data.dataset import Dataset, DatasetError, DatasetWriter
from dtsn.experts.collect import collect_navigation
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver
from dtsn.storage import RunInUseError
from dtsn.training.trainer import DivergedError, Trainer, has_run, load_solver, train_run

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results/reliability.json", ROOT / "docs/reliability.md"

TINY = TrainConfig(
    SolverConfig(iterations=3),
    NetworkConfig(encoder="mlp", latent=8, hidden=8),
    steps=30,
    batch_size=8,
    learning_rate_warmup=2,
    search_warmup=3,
    checkpoint_every=1,
)


@dataclass
class Outcome:
    """What a test tried, what failed, and what else is worth knowing."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self, right: object, failure: str) -> None:
        if not right:
            self.failures.append(failure)


# --- what the tests share ----------------------------------------------------------------------------


def vectors(path: Path, seed: int = 0, episodes: int = 20) -> Path:
    """A data set of short vectors, for steps that take milliseconds."""
    rng = np.random.default_rng(seed)
    with DatasetWriter(
        path,
        env_id="test/Vectors-v0",
        env_options={},
        num_actions=3,
        observation_shape=(4,),
        observation_dtype=np.float32,
    ) as writer:
        for level in range(episodes):
            frames = rng.normal(size=(16, 4)).astype(np.float32)
            writer.add_episode(frames, rng.integers(3, size=15), rng.normal(size=15), True, level)
    return path


def make(dataset: Dataset, config: TrainConfig) -> Trainer:
    return Trainer(config, dataset.observation_shape, dataset.num_actions)


def train(
    run: Path, dataset: Dataset, config: TrainConfig, stop: int | None = None, **options: Any
) -> Trainer:
    """Train in a folder, from where it stands, to the end or to a step."""
    trainer = make(dataset, config)
    steps = train_run(run, trainer, dataset, resume=has_run(run), **options)
    for metrics in steps:
        if metrics["step"] == stop:
            steps.close()  # type: ignore[attr-defined]
    return trainer


def outcome(run: Path) -> dict[str, bytes]:
    """The bytes of all that a run leads to."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None, run
    return {path.name: path.read_bytes() for path in (*newest.iterdir(), run / "metrics.jsonl")}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def leftovers(folder: Path) -> list[str]:
    return [str(p) for p in folder.rglob("*") if p.name.endswith((".partial", ".tmp", ".old", ".pruned"))]


def fork(work: Callable[[], None], errors: Path | None = None) -> int:
    """Run ``work`` in a child: a prepared process, which spares the imports; 0 if it returns, else 1."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        if errors is not None:
            errors.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def without_tensorboard() -> Iterator[None]:
    """Event files by the thousand are of no interest here."""
    name = "torch.utils.tensorboard"
    before = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before


# --- kill -9 -----------------------------------------------------------------------------------------

FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.listdir"}


def kill(folder: Path, size: int = 1000) -> Outcome:
    """SIGKILL at random moments of training with a checkpoint at every step; a fifth at file operations."""
    result, rng = Outcome(), random.Random(0)
    path = vectors(folder / "data.h5")
    config = replace(TINY, steps=60)
    with Dataset(path) as dataset:
        train(folder / "whole", dataset, config)
    expected = outcome(folder / "whole")
    run, announced, finished, between = folder / "run-0", 0, 0, 0
    while result.tried < size:
        operation = rng.randint(1, 120) if result.tried % 5 == 0 else None
        moment = (rng.randint(0, 3), rng.uniform(0, 0.03))
        step, killed = _kill_one(run, path, config, operation, moment, folder / "errors.txt")
        announced = max(announced, step)
        sound = []
        for found in checkpoints(run / "checkpoints"):
            try:
                sound.append(int(verified_state(found)["step"]))
            except CheckpointError as error:
                result.failures.append(f"unreadable after a kill: {error}")
        newest = max(sound, default=0)
        result.check(newest >= announced, f"step {announced} was saved, {newest} is the newest after a kill")
        between += bool(leftovers(run))
        if killed:
            result.tried += 1
        else:
            if (folder / "errors.txt").exists():
                result.failures.append(f"a resumed run failed: {(folder / 'errors.txt').read_text()[-1000:]}")
                break
            result.check(outcome(run) == expected, f"{run.name} ends otherwise than the uninterrupted run")
            prune_checkpoints(run / "checkpoints", config.keep_checkpoints)
            result.check(not leftovers(run), f"left behind: {leftovers(run)}")
            finished += 1
            run, announced = folder / f"run-{finished}", 0
            if result.failures:
                break
    result.notes.append(
        f"{finished} runs ended after being killed again and again, bitwise as the uninterrupted one; "
        f"{between} kills fell into the writing or deleting of a checkpoint"
    )
    return result


def _kill_one(
    run: Path,
    path: Path,
    config: TrainConfig,
    operation: int | None,
    moment: tuple[int, float],
    errors: Path,
) -> tuple[int, bool]:
    """Train in a child and kill it; the last step that it had saved by then, and whether it was killed.

    It is killed before its file operation number ``operation``, or some steps and seconds after its start.
    """
    reader, writer = os.pipe()

    def work() -> None:
        count = 0

        def hook(event: str, _: Any) -> None:
            nonlocal count
            if event in FILE_OPERATIONS:  # and not at the event of the kill itself
                count += 1
                if count == operation:
                    os.kill(os.getpid(), signal.SIGKILL)

        with Dataset(path) as dataset:
            trainer = make(dataset, config)
            if operation is not None:
                sys.addaudithook(hook)
            for _ in train_run(run, trainer, dataset, resume=has_run(run)):
                os.write(writer, struct.pack("<q", trainer.step))

    child = fork(work, errors)
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        said = b""
        if operation is None:
            steps, seconds = moment
            while len(said) < 8 * steps and (more := pipe.read(8)):
                said += more
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)  # it is ours until it is waited for
        code = ended(child)
        said += pipe.read()
    announced = [step for (step,) in struct.iter_unpack("<q", said[: len(said) // 8 * 8])]
    return max(announced, default=0), code == -signal.SIGKILL


# --- the same run ------------------------------------------------------------------------------------


def resume(folder: Path, size: int = 200) -> Outcome:
    """Stop after every step of ``size``: each checkpoint is the uninterrupted run's, bitwise."""
    result = Outcome()
    path = collect_navigation(folder / "data.h5", episodes=20)
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    for name in SOLVERS:
        solver = replace(TINY.solver, name=name)
        config = replace(TINY, solver=solver, network=network, steps=size, augment="grid_symmetries")
        with Dataset(path) as dataset:
            whole, run, expected = folder / f"whole-{name}", folder / f"run-{name}", {}
            trainer = make(dataset, config)
            for metrics in train_run(whole, trainer, dataset, validate=_score):
                expected[trainer.step] = contents(whole / f"checkpoints/step-{trainer.step}"), metrics
        for step in range(1, size + 1):
            with Dataset(path) as dataset:
                trainer = train(run, dataset, config, stop=step, validate=_score)
            newest = latest_checkpoint(run / "checkpoints")
            result.tried += 1
            result.check(
                trainer.step == step and newest is not None and contents(newest) == expected[step][0],
                f"{name} stopped after step {step} differs",
            )
        result.check(outcome(run) == outcome(whole), f"{name}: metrics differ")
        result.check(
            [row["loss"] for row in read_metrics(run / "metrics.jsonl")]
            == [m["loss"] for _, m in expected.values()],
            f"{name}: losses differ",
        )
    return result


def _score(solver: Solver) -> float:
    """Of no meaning, but of these weights."""
    return float(next(solver.parameters()).detach().double().abs().mean())


def same_seed(folder: Path, size: int = 1000) -> Outcome:
    """Two processes, each solver, one thread: the same bytes."""
    result, path = Outcome(), vectors(folder / "data.h5")
    for name in SOLVERS:
        config = replace(
            TINY, solver=replace(TINY.solver, name=name), steps=size, checkpoint_every=max(1, size // 4)
        )
        runs = [folder / f"{name}-{number}" for number in (1, 2)]
        for number, run in enumerate(runs):
            os.environ["PYTHONHASHSEED"] = str(number)  # another order of sets
            process = multiprocessing.get_context("spawn").Process(
                target=_train_apart, args=(run, path, config)
            )
            process.start()
            process.join()
        result.tried += 1
        result.check(outcome(runs[0]) == outcome(runs[1]), f"{name}: two runs of a seed differ")
    os.environ.pop("PYTHONHASHSEED")
    return result


def _train_apart(run: Path, path: Path, config: TrainConfig) -> None:
    torch.set_num_threads(1)
    with Dataset(path) as dataset:
        train(run, dataset, config)


# --- a full disk -------------------------------------------------------------------------------------


def disk_full(folder: Path, size: int = 200) -> Outcome:
    """Files that may not grow beyond a random size, and a file system with random room left."""
    result, rng = Outcome(), random.Random(0)
    for number in range(size // 2):
        _fill_one(folder / f"limit-{number}", result, lambda room: _file_limit(room), rng)
        shutil.rmtree(folder / f"limit-{number}")
    small = folder / "tmpfs"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        result.notes.append("no tmpfs could be mounted: only file-size limits were tried")
        return result
    try:
        for _ in range(size // 2):
            _fill_one(small / "run", result, lambda room: _filler(small, room), rng)
            shutil.rmtree(small / "run")
        _full_disk_from_the_shell(small, result)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=False)
    result.notes.append(
        "half under RLIMIT_FSIZE, half on a tmpfs of 512 kB; the last one through the command line"
    )
    return result


@contextmanager
def _file_limit(room: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _filler(folder: Path, room: int) -> Iterator[None]:
    """Leave ``room`` bytes, to the page."""
    status = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - room)))
    try:
        yield
    finally:
        (folder / "filler").unlink()


def _fill_one(folder: Path, result: Outcome, full: Callable[[int], Any], rng: random.Random) -> None:
    """A run and a data set that are there, and more of both that do not fit."""
    run, path = folder / "run", vectors_at(folder / "data.h5")
    with Dataset(path) as dataset:
        config = replace(TINY, checkpoint_every=2)
        train(run, dataset, config, stop=4)
        old_data = path.read_bytes()
        largest = max(len(blob) for name, blob in contents(run).items() if "step-4" in name)
        errors = []
        with full(rng.randrange(largest)):  # too little for the next checkpoint
            try:
                train(run, dataset, config)
            except (CheckpointError, OSError) as error:
                errors.append(error)
            try:
                _write_more(path)
            except DatasetError as error:
                errors.append(error)
    result.tried += 1
    result.check(len(errors) == 2, f"no error from a full disk: {errors}")
    result.check(all(str(folder) in str(error) for error in errors), f"an error names no file: {errors}")
    newest = latest_checkpoint(run / "checkpoints")
    result.check(newest is not None and int(load_state(newest)["step"]) >= 4, "the old checkpoint is gone")
    result.check(not leftovers(folder), f"left behind: {leftovers(folder)}")
    result.check(path.read_bytes() == old_data, "the old data set is gone")
    with Dataset(path) as dataset:  # and with room again, it goes on
        result.check(train(run, dataset, config, stop=8).step == 8, "it does not go on")


def vectors_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return vectors(path, episodes=5)


def _write_more(path: Path) -> None:
    with DatasetWriter(
        path, env_id="x", env_options={}, num_actions=2, observation_shape=(9000,), overwrite=True
    ) as writer:
        rng = np.random.default_rng(0)
        for level in range(20):
            frames = rng.integers(256, size=(6, 9000), dtype=np.uint8)
            writer.add_episode(frames, np.zeros(5, int), np.zeros(5), True, level)


def _full_disk_from_the_shell(folder: Path, result: Outcome) -> None:
    path, run = vectors_at(folder / "data.h5"), folder / "run"
    arguments = ["train", "--data", path, "--run", run, "--checkpoint-every", "1", "--batch-size", "8"]
    arguments += [
        "--network.encoder",
        "mlp",
        "--network.latent",
        "8",
        "--network.hidden",
        "8",
        "--augment",
        "none",
    ]
    with Dataset(path) as dataset:
        train(run, dataset, replace(TINY, steps=10), stop=2)
    shutil.rmtree(run)
    with _filler(folder, 30_000):
        done = subprocess.run(
            [sys.executable, "-m", "dtsn", *map(str, arguments)], capture_output=True, text=True
        )
    result.tried += 1
    result.check(done.returncode == 2, f"exit code {done.returncode}: {done.stderr[-500:]}")
    result.check("No space left" in done.stderr and "Traceback" not in done.stderr, done.stderr[-500:])
    result.check(not leftovers(folder), f"left behind: {leftovers(folder)}")


# --- damage ------------------------------------------------------------------------------------------


def flip(folder: Path, size: int = 1000) -> Outcome:
    """One bit flipped, or the end cut off, in any file of a checkpoint or a data set."""
    result, rng = Outcome(), random.Random(0)
    path = vectors(folder / "data.h5")
    with Dataset(path) as dataset:
        train(folder / "run", dataset, replace(TINY, steps=3))
        trainer = make(dataset, replace(TINY, steps=3))
        trainer.data = dataset.sha256
    step = folder / "run/checkpoints/step-3"
    victims = [path, *step.iterdir()]
    readers: dict[Path, Callable[[], object]] = {victim: lambda: trainer.restore(step) for victim in victims}
    readers[path] = lambda: Dataset(path).close()
    for number in range(size):
        victim = victims[number % len(victims)]
        original = victim.read_bytes()
        if number % 7 == 6:
            victim.write_bytes(original[: rng.randrange(len(original))])
        else:
            damaged = bytearray(original)
            place = rng.randrange(8 * len(original))
            damaged[place // 8] ^= 1 << place % 8
            victim.write_bytes(damaged)
        result.tried += 1
        try:
            readers[victim]()
            result.failures.append(f"{victim.name}: damage {number} was accepted")
        except (CheckpointError, DatasetError) as error:
            result.check(str(victim) in str(error), f"damage {number} of {victim.name}: {error}")
        victim.write_bytes(original)
    for read in readers.values():
        read()
    result.notes.append(f"{len(victims)} files: the data set and the {len(victims) - 1} of a checkpoint")
    return result


# --- malice ------------------------------------------------------------------------------------------

MEMORY = 2**30  # what reading may take beyond what is taken already
SECONDS = 30


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
                _seal_state(path, files={file: hashlib.sha256(blob).hexdigest()})
        for ending in ("h5", "pkl", "pt", "npz", "zip", "json") if size else ("h5",):
            path = folder / f"data-{len(cases)}.{ending}"
            path.write_bytes(blob)
            cases.append((f"{name} as .{ending}", path, lambda path: Dataset(path).close()))
    cases += _hostile_states(folder, good)
    cases += _hostile_data(folder, good_data)
    for name, path, read in cases:
        result.tried += 1
        problem = _read_guarded(path, read, folder / "said.json")
        result.check(problem is None, f"{name}: {problem}")
    result.check(not mark.exists(), "a pickle was executed")
    result.notes.append(f"each read with {MEMORY >> 20} MB of memory and {SECONDS} s at most")
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


def _seal_state(path: Path, **changes: Any) -> None:
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
        _seal_state(path, **change)
        cases.append((name, path, load_solver))
    for number, name in enumerate(("../../../data", "/etc/passwd", "a\0b.safetensors")):
        path = folder / f"paths-{number}/checkpoints/step-1"
        shutil.copytree(good, path)
        _seal_state(path, files={name: "0" * 64})
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
            raw.write(data_module._seal(raw))  # right checksums
        for verify in (True, False):
            cases.append((f"{name}, verify={verify}", path, lambda p, v=verify: Dataset(p, verify=v).close()))
    (folder / "fifo.h5").unlink(missing_ok=True)
    os.mkfifo(folder / "fifo.h5")
    cases.append(("a pipe", folder / "fifo.h5", lambda path: Dataset(path).close()))
    return cases


def _read_guarded(path: Path, read: Callable[[Path], object], said: Path) -> str | None:
    """What is wrong with how a bad file is refused; None if nothing is."""

    def work() -> None:
        signal.alarm(SECONDS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        sys.stdin.close()
        try:
            read(path)
            problem = "accepted"
        except (CheckpointError, DatasetError) as error:
            problem = "" if str(path) in str(error) and "\n\n" not in str(error) else f"unclear: {error}"
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        said.write_text(json.dumps(problem))

    said.unlink(missing_ok=True)
    code = ended(fork(work))
    if code or not said.exists():
        return f"the process ended with {code}"
    return json.loads(said.read_text()) or None


# --- two processes -----------------------------------------------------------------------------------


def two_processes(folder: Path, size: int = 100) -> Outcome:
    """Two processes start at once in one folder; then the holder is killed and a third goes on."""
    result, path = Outcome(), vectors(folder / "data.h5")
    config = replace(TINY, steps=10**6, checkpoint_every=5)
    for number in range(size):
        run = folder / f"run-{number}"
        gate_reader, gate_writer = os.pipe()

        def work(run: Path = run, gate: int = gate_reader) -> None:
            with Dataset(path) as dataset:
                trainer = make(dataset, config)
                os.read(gate, 1)
                try:
                    for _ in train_run(run, trainer, dataset, resume=has_run(run)):
                        run.with_suffix(".started").touch()
                except RunInUseError as error:
                    run.with_suffix(f".refused-{os.getpid()}").write_text(str(error))

        children = [fork(work, run.with_suffix(".errors")) for _ in range(2)]
        os.write(gate_writer, b"xx")
        os.close(gate_reader)
        os.close(gate_writer)
        loser, code = _first_to_end(children)
        winner = next(child for child in children if child != loser)
        _wait(lambda run=run: run.with_suffix(".started").exists())
        message = run.with_suffix(f".refused-{loser}")
        said = message.read_text() if message.exists() else run.with_suffix(".errors").read_text()
        result.check(code == 0 and f"in use by process {winner} on" in said, f"the second one: {said}")
        os.kill(winner, signal.SIGKILL)
        ended(winner)
        result.check((run / ".lock").exists(), "the killed process left no lock")
        with Dataset(path) as dataset:
            trainer = make(dataset, config)
            steps = train_run(run, trainer, dataset, resume=True)  # the lock is stale
            next(steps)
            steps.close()  # type: ignore[attr-defined]
        result.check(not (run / ".lock").exists(), "a lock is left behind")
        result.tried += 1
        shutil.rmtree(run)
    return result


def _first_to_end(children: list[int]) -> tuple[int, int]:
    while True:
        for child in children:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return done, os.waitstatus_to_exitcode(status)
        time.sleep(0.001)


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.002)


# --- numbers that are not finite ---------------------------------------------------------------------


def not_finite(folder: Path, size: int = 120) -> Outcome:
    """NaN or infinity in the loss or in a gradient, at a random step, with both settings."""
    result, rng, path = Outcome(), random.Random(0), vectors(folder / "data.h5")
    config = replace(TINY, steps=12, checkpoint_every=2)
    with Dataset(path) as dataset:
        for number in range(size):
            run = folder / f"run-{number}"
            value = (math.nan, math.inf, -math.inf)[number % 3]
            where, on_nan = ("loss", "gradient")[number // 3 % 2], ("stop", "skip")[number // 6 % 2]
            at = rng.randint(1, config.steps)
            changed = replace(
                config, on_nan=on_nan, solver=replace(TINY.solver, name=rng.choice(list(SOLVERS)))
            )
            _diverge_one(run, dataset, changed, where, value, at, result)
            result.tried += 1
            shutil.rmtree(run)
    return result


def _diverge_one(
    run: Path, dataset: Dataset, config: TrainConfig, where: str, value: float, at: int, result: Outcome
) -> None:
    case = f"{where} {value} at step {at}, {config.on_nan}"
    trainer, real = make(dataset, config), Solver.loss

    def loss(solver: Solver, *arguments: Any, **options: Any) -> LossTerms:
        terms = real(solver, *arguments, **options)
        if trainer.step + 1 != at:
            return terms
        if where == "loss":
            return replace(terms, total=terms.total * value)
        terms.total.register_hook(lambda gradient: gradient * value)
        return terms

    Solver.loss = loss  # type: ignore[method-assign]
    rows: list[dict[str, float]] = []
    try:
        for metrics in train_run(run, trainer, dataset):
            rows.append(metrics)
        result.check(config.on_nan == "skip", f"{case}: not stopped")
        result.check([r["step"] for r in rows if "skipped" in r] == [at], f"{case}: not skipped")
        result.check(trainer.step == config.steps, f"{case}: not trained to the end")
    except DivergedError as error:
        result.check(config.on_nan == "stop", f"{case}: not skipped: {error}")
        result.check(f"step {at}:" in str(error) and "diverged" in str(error), f"{case}: {error}")
    finally:
        Solver.loss = real  # type: ignore[method-assign]
    kept = run / f"diverged/step-{at}.safetensors"
    result.check(kept.exists(), f"{case}: the batch is not kept")
    if kept.exists():
        batch = next(dataset.batches(config.batch_size, config.seed, start=at - 1))
        same = load_file(kept)
        result.check(
            all(torch.equal(same[name], tensor) for name, tensor in vars(batch).items()),
            f"{case}: another batch",
        )
    for path in checkpoints(run / "checkpoints"):
        state = verified_state(path)
        parts = [load_file(path / name) for name in state["files"]]
        finite = all(bool(t.isfinite().all()) for part in parts for t in part.values())
        result.check(finite, f"{case}: {path.name} is not finite")
    logged = read_metrics(run / "metrics.jsonl")
    result.check(
        all(math.isfinite(v) for row in logged for v in row.values()), f"{case}: the log is not finite"
    )


# --- bad input ---------------------------------------------------------------------------------------


def bad_input(folder: Path, size: int = 5000) -> Outcome:
    """The generated cases of tests/test_bad_input.py, with enough examples of each to reach ``size``."""
    count, report = folder / "count", folder / "report.xml"
    examples = str(max(1, round(50 * size / 2000)))
    environment = {**os.environ, "DTSN_BAD_INPUT_EXAMPLES": examples, "DTSN_BAD_INPUT_COUNT": str(count)}
    command = [sys.executable, "-m", "pytest", "tests/test_bad_input.py", "-m", "", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, env=environment, capture_output=True
    )
    result = Outcome(int(count.read_text()) if count.exists() else 0)
    suite = xml.etree.ElementTree.parse(report).getroot()
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failures.append(f"{case.get('name')}")
    result.check(done.returncode in (0, 1), done.stdout.decode()[-1000:])
    result.check(result.tried >= size, f"only {result.tried} cases were generated")
    return result


# --- other versions ----------------------------------------------------------------------------------


def versions(folder: Path, size: int = 1) -> Outcome:
    """Formats of the future and the past are refused with a sentence, or read as they were meant."""
    result, path = Outcome(), vectors(folder / "data.h5")
    with Dataset(path) as dataset:
        train(folder / "run", dataset, replace(TINY, steps=2))
        original, header = dataset.sha256, dataset.header
    good = folder / "run/checkpoints/step-2"
    for version in (-1, 0, 2, 3, 99, 2**70, 1.5, "1", "2", None, [1], {}):
        other = folder / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(good, other)
        _seal_state(other, format_version=version)
        result.tried += 1
        try:
            load_solver(other)
            result.failures.append(f"checkpoint of version {version!r} was accepted")
        except CheckpointError as error:
            future = isinstance(version, int) and version > 1
            says = f"{other}" in str(error) and f"version {version!r}" in str(error)
            result.check(says and ("upgrade dtsn" in str(error)) == future, f"version {version!r}: {error}")
    for version in (-1, 0, 3, 99, "1", None, [1]):
        other = folder / "other.h5"
        _with_header(path, other, header | {"format_version": version})
        result.tried += 1
        try:
            Dataset(other).close()
            result.failures.append(f"data set of version {version!r} was accepted")
        except DatasetError as error:
            says = (
                str(other) in str(error) and f"version {version!r}" in str(error) and "upgrade" in str(error)
            )
            result.check(says, f"version {version!r}: {error}")
    _with_header(path, folder / "past.h5", header | {"format_version": 1}, seal=False)
    with Dataset(folder / "past.h5") as dataset:
        result.tried += 1
        result.check(dataset.sha256 == original, "a data set of version 1 is read otherwise")
    past = folder / "past"
    shutil.copytree(good, past)
    config = json.loads((past / "state.json").read_bytes())["config"]
    del config["on_nan"]
    state = load_state(past)
    tensors = {Path(name).stem: load_file(past / name) for name in state["files"]}
    kept = {name: v for name, v in state.items() if name not in ("files", "data", "skips", "config")}
    save_checkpoint(folder / "past", tensors, kept | {"config": config})
    with Dataset(path) as dataset:
        trainer = make(dataset, replace(TINY, steps=2))
        trainer.data = dataset.sha256
        trainer.restore(past)
    result.tried += 1
    result.check(trainer.step == 2 and load_solver(past).config == TINY.solver, "an older checkpoint is lost")
    return result


def _with_header(path: Path, other: Path, header: dict[str, Any], seal: bool = True) -> None:
    shutil.copy(path, other)
    text = json.dumps(header, sort_keys=True).encode()
    with h5py.File(other, "r+") as file:
        file.attrs["header"] = np.bytes_(text)
        file.attrs["header_sha256"] = np.bytes_(hashlib.sha256(text).hexdigest())
    with other.open("rb+") as raw:
        raw.write(data_module._seal(raw) if seal else bytes(data_module.SEAL_BYTES))


# --- the soak ----------------------------------------------------------------------------------------

SOAK_MEMORY = 8 * 2**30  # of addresses, which torch reserves far more of than it uses
FLAT = 2.0  # MB an hour
EVALUATE = """
import sys, torch
from dtsn.pretrained import shipped
from dtsn.envs.navigation import NavigationOptions
from dtsn.evaluation.levels import first_levels
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.training.trainer import load_solver
torch.set_num_threads(1)
while True:
    evaluate_navigation(load_solver(shipped("dtsn")), first_levels("test", 50), NavigationOptions())
"""


def soak(folder: Path, size: int = 30) -> Outcome:
    """Train, evaluate and view at once for ``size`` minutes: memory, files and threads stay flat."""
    result = Outcome()
    path = collect_navigation(folder / "data.h5", episodes=50)
    python = [sys.executable]
    train = [*python, "-m", "dtsn", "train", "--data", str(path), "--run", str(folder / "runs/soak")]
    commands = {
        "train": [*train, "--steps", "1000000", "--checkpoint-every", "50", "--batch-size", "32"],
        "eval": [*python, "-c", EVALUATE],
    }
    if importlib.util.find_spec("dtsn.viewer") and importlib.util.find_spec("uvicorn"):
        commands["view"] = [
            *python,
            "-u",
            "-m",
            "dtsn",
            "view",
            "--runs",
            str(folder / "runs"),
            "--port",
            "0",
        ]
    else:
        result.notes.append("the viewer is not installed: only training and evaluation ran")
    before = _descendants(os.getpid())
    processes = {name: _limited(command, folder / f"{name}.log") for name, command in commands.items()}
    samples: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in processes}
    asked, answered = 0, 0
    start = time.monotonic()
    try:
        while time.monotonic() - start < 60 * size:
            for name, process in processes.items():
                if process.poll() is not None:
                    result.failures.append(f"{name} ended: {(folder / f'{name}.log').read_text()[-500:]}")
                    return result
                samples[name].append((time.monotonic() - start, _measure(process.pid)))
            if "view" in processes:
                asked += 1
                answered += _ask(folder / "view.log", asked)
            time.sleep(1)
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
    for name, rows in samples.items():
        result.tried += 1
        _judge(name, rows, result)
    result.check(_descendants(os.getpid()) <= before, "processes are left behind")
    result.check(not leftovers(folder), f"left behind: {leftovers(folder)}")
    if "view" in processes:
        result.notes.append(f"the viewer answered {answered} of {asked} questions")
        result.check(answered > 0.9 * asked - 30, f"the viewer answered {answered} of {asked} questions")
    return result


def _limited(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (SOAK_MEMORY, SOAK_MEMORY)),
        )


def _measure(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        "memory": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def _descendants(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def _judge(name: str, rows: list[tuple[float, dict[str, float]]], result: Outcome) -> None:
    """The slope over the second half: the first one warms caches up."""
    rows = rows[len(rows) // 2 :]
    hours = np.array([seconds for seconds, _ in rows]) / 3600
    memory = np.array([row["memory"] for _, row in rows])
    slope = float(np.polyfit(hours, memory, 1)[0])
    grown = {kind: rows[-1][1][kind] - rows[0][1][kind] for kind in ("threads", "files")}
    result.notes.append(
        f"{name}: {memory.mean():.0f} MB, {slope:+.1f} MB an hour, {grown['files']:+.0f} files"
    )
    # A noisy level is not a slope: what counts is what it would add up to in the time measured.
    result.check(
        slope * (hours[-1] - hours[0]) < max(FLAT, 0.02 * memory.mean()),
        f"{name}: memory grows, {slope} MB/h",
    )
    result.check(grown["threads"] <= 1 and grown["files"] <= 3, f"{name}: grows: {grown}")


def _ask(log: Path, number: int) -> bool:
    """One question to the viewer, whose address is in its log."""
    words = log.read_text().split()
    address = next((word for word in words if word.startswith("http://")), None)
    if address is None:
        return False
    try:
        with urllib.request.urlopen(f"{address}api/runs", timeout=30) as answer:
            runs = json.load(answer)["runs"]
        if not runs:  # before the first checkpoint
            return False
        question = {"run": runs[number % len(runs)]["name"], "level": number}
        request = urllib.request.Request(
            f"{address}api/search", json.dumps(question).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status == 200
    except (OSError, ValueError, KeyError):
        return False


# --- the table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A row of the table."""

    title: str
    target: str
    run: Callable[[Path, int], Outcome]
    size: int


TESTS = {
    "kill": Test(
        "`kill -9` at random moments of training with a checkpoint at every step, then resume",
        "0 of 1000 kills lose the last complete checkpoint, 0 leave an unreadable one; bitwise the same end",
        kill,
        1000,
    ),
    "resume": Test(
        "stop after every step of 200, each solver; weights, target, optimiser, data order, scores, metrics",
        "every checkpoint bitwise that of the uninterrupted run",
        resume,
        200,
    ),
    "same_seed": Test(
        "two processes with the same seed, one thread, 1000 steps, each solver",
        "bitwise equal",
        same_seed,
        1000,
    ),
    "disk_full": Test(
        "disk full while a checkpoint, the log or a data set is written",
        "the old one stays, the error names the file, exit code 2, nothing is left behind",
        disk_full,
        200,
    ),
    "flip": Test(
        "one flipped bit or a cut-off end in any file of a checkpoint or data set",
        "0 of 1000 accepted; the error names the file",
        flip,
        1000,
    ),
    "malice": Test(
        "pickles under any name, zip and gzip bombs, JSON nested a million deep, headers that lie, links and "
        "foreign storage in HDF5, paths with `..`, pipes and devices, configurations that claim terabytes",
        "nothing executed, bounded memory and time, an error that names the file",
        malice,
        10,
    ),
    "two_processes": Test(
        "two processes start in one run folder; the holder is killed, a third goes on",
        "exactly one works, the other is told who; a stale lock is taken over",
        two_processes,
        100,
    ),
    "not_finite": Test(
        "NaN or infinity in loss or gradient at a random step",
        "stopped or skipped as set, the batch kept, every checkpoint finite",
        not_finite,
        120,
    ),
    "bad_input": Test(
        "generated bad input to the API, configurations and the command line",
        "at least 5000, each refused by a typed error that names field and value",
        bad_input,
        5000,
    ),
    "versions": Test(
        "formats of the future and the past",
        "refused with a sentence, or read as they were meant",
        versions,
        1,
    ),
    "soak": Test(
        "30 minutes of training, evaluation and viewing at once under a memory limit",
        "flat memory, no leaked files, threads or processes",
        soak,
        30,
    ),
}


def record(name: str, result: Outcome, seconds: float) -> None:
    """Add a row to the JSON file, and make the page anew."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows[name] = {
        "tried": result.tried,
        "failed": len(result.failures),
        "target": TESTS[name].target,
        "notes": result.notes,
        "failures": result.failures[:10],
        "seconds": round(seconds),
    }
    rows = {key: rows[key] for key in TESTS if key in rows}
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(make_page(rows))


def make_page(rows: dict[str, Any]) -> str:
    """docs/reliability.md."""
    lines = [
        "# Reliability",
        "",
        "Nothing lost, nothing silent, nothing executed. `make torture` runs every row but the last,",
        "`make soak` the last one; `tests/torture.py` holds them, and `make test` runs short versions.",
        "This page is generated from [results/reliability.json](../results/reliability.json).",
        "",
        "| what is done | target | tried | failed |",
        "|---|---|---:|---:|",
    ]
    for name, test in TESTS.items():
        row = rows.get(name)
        numbers = f"{row['tried']} | {row['failed']}" if row else "not run yet |"
        lines.append(f"| {test.title} | {test.target} | {numbers} |")
    lines += ["", "## Notes", ""]
    lines += [_note(name, row) for name, row in rows.items()]
    lines += [
        "",
        "## What this does not show",
        "",
        "- `kill -9` ends a process, not the machine. Against a loss of power every file and folder is",
        "  fsynced before it takes its place, which no test here can prove.",
        "- Bitwise equality holds for CPUs: one machine, one version of torch and one number of threads.",
        "  On CUDA some sums of gradients have no fixed order.",
        "- The run folder's lock is the file system's (`flock`); some network file systems do not have it.",
        "",
        "How files are read and what is trusted: [SECURITY.md](../SECURITY.md).",
    ]
    return "\n".join(lines) + "\n"


def _note(name: str, row: dict[str, Any]) -> str:
    return f"- `{name}`: " + "; ".join([*row["notes"], f"{row['seconds']} s"]) + "."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(TESTS)}; all but the soak if none"
    )
    parser.add_argument(
        "--size", type=int, help="another number of tries (or steps, or minutes); not recorded"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(TESTS):
        parser.error(f"unknown test {sorted(unknown)[0]!r}, choose from {', '.join(TESTS)}")
    torch.set_num_threads(1)
    failed = 0
    for name in chosen.names or [name for name in TESTS if name != "soak"]:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as folder, without_tensorboard():
            result = TESTS[name].run(Path(folder), chosen.size or TESTS[name].size)
        seconds = time.monotonic() - start
        print(f"{name}: {result.tried} tried, {len(result.failures)} failed, {seconds:.0f} s", flush=True)
        print(*(f"  {line}" for line in [*result.notes, *result.failures[:10]]), sep="\n", flush=True)
        failed += len(result.failures)
        if chosen.size is None:
            record(name, result, seconds)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
