"""Flipped bits and cut-off ends."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dtsn.checkpoint import CheckpointError
from dtsn.data import Dataset, DatasetError

from .common import TINY, Outcome, make, train, vectors


def flip(folder: Path, size: int = 1000) -> Outcome:
    """One bit flipped, or the end cut off, in any file; and a data set changed after it was opened."""
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
    for number in range(max(1, size // 20)):
        _change_after_opening(path, rng, number, result)
    result.notes.append(f"{len(victims)} files: the data set and the {len(victims) - 1} of a checkpoint")
    return result


def _change_after_opening(path: Path, rng: random.Random, number: int, result: Outcome) -> None:
    """The file was sound when it was checked; whatever is read of it later must be that file."""
    original = path.read_bytes()
    with Dataset(path, cache_bytes=rng.choice([1, 2**20])) as dataset:
        if number % 2:
            list(itertools.islice(dataset.batches(8, 0), 1))  # some of it is in memory already
        damaged = bytearray(original)
        damaged[rng.randrange(len(original))] ^= 1
        path.write_bytes(damaged)
        result.tried += 1
        try:
            for index in range(dataset.num_episodes):
                dataset.episode(index)
            result.failures.append(f"change {number} after opening was accepted")
        except DatasetError as error:
            result.check(f"{path}: was changed" in str(error), f"change {number} after opening: {error}")
    path.write_bytes(original)
