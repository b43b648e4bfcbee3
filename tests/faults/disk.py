"""Disks that are full while a checkpoint, the log or a data set is written."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dtsn.checkpoint import CheckpointError, latest_checkpoint, load_state
from dtsn.data import Dataset, DatasetError, DatasetWriter, Episode

from .common import TINY, Outcome, contents, leftovers, train, vectors


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
            writer.add_episode(Episode(frames, np.zeros(5, int), np.zeros(5), True, level))


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
