"""The public offline Procgen data of gen_dgrl, in."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from dtsn.arrays import Array
from dtsn.data.format import DatasetError, Episode
from dtsn.data.writer import DatasetWriter
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, ProcgenOptions
from dtsn.errors import UserError
from dtsn.storage import open_regular, read_array_header

# TIME_NUMBER_STEPS_LEVEL_RETURN.npz
DGRL_NAME = re.compile(r"[^_]+_(?P<number>\d{1,18})_(?P<steps>\d{1,18})_(?P<level>-?\d{1,18})_-?[\d.]+\.npz")
DGRL_MAX_STEPS = 10_000  # the longest game times out after 6,000
MAX_ENTRIES = 16  # files in an archive
MAX_DIRECTORY_BYTES = 2**16
ZIP_END, ZIP_END_BYTES = b"PK\5\6", 22  # the record at the end of an archive, without a comment
ZIP64_LOCATOR, ZIP64_LOCATOR_BYTES = b"PK\6\7", 20  # stands before it in large archives


def import_dgrl(
    folder: str | Path,
    path: str | Path,
    options: ProcgenOptions,
    *,
    episodes: int | None = None,
    discount: float = 1.0,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the episodes of one game of the public offline Procgen data (gen_dgrl), all or the first ones.

    There, a folder holds a file TIME_NUMBER_STEPS_LEVEL_RETURN.npz for each episode, with the plain arrays
    observations [T + 1, 3, 64, 64], actions [T, 1], rewards [T, 1] and dones [T].
    Their last frame is not the episode's: it is the first one of the next episode, so it is made black here,
    and the data set says that last frames are not real.
    The files are read as numbers only; nothing in them can be executed.
    """
    files = sorted(Path(folder).rglob("*.npz"), key=lambda file: (file.parent, _dgrl_name(file)))[:episodes]
    if not files:
        raise DatasetError(f"{folder}: must be a folder of gen_dgrl's episodes, got no .npz files")
    with DatasetWriter(
        path,
        env_id="dtsn/Procgen-v0",
        env_options={"game": options.game, "mode": options.mode},
        num_actions=NUM_ACTIONS,
        observation_shape=FRAME_SHAPE,
        real_last_frames=False,
        discount=discount,
        provenance={"source": "gen_dgrl", "episodes": len(files)},
        overwrite=overwrite,
    ) as writer:
        for done, file in enumerate(files, 1):
            writer.add_episode(_read_dgrl(file))
            if progress is not None:
                progress(done, len(files))
    return Path(path)


def _dgrl_name(file: Path) -> tuple[int, int, int]:
    """Read number, steps and level of an episode from its file's name."""
    match = DGRL_NAME.fullmatch(file.name)
    if match is None:
        raise DatasetError(
            f"{file}: must be named TIME_NUMBER_STEPS_LEVEL_RETURN.npz, as gen_dgrl's files are"
        )
    return int(match["number"]), int(match["steps"]), int(match["level"])


def _read_dgrl(file: Path) -> Episode:
    _, steps, level = _dgrl_name(file)
    if not 1 <= steps <= DGRL_MAX_STEPS:
        raise DatasetError(f"{file}: steps in its name must be 1 to {DGRL_MAX_STEPS}, got {steps}")
    wanted: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        "observations": ((steps + 1, *FRAME_SHAPE), np.uint8),
        "actions": ((steps, 1), np.int64),
        "rewards": ((steps, 1), np.float32),
        "dones": ((steps,), np.bool_),
    }
    try:
        with io.BufferedReader(open_regular(file)) as content:
            _check_directory(cast(BinaryIO, content))
            with zipfile.ZipFile(content) as archive:
                arrays = {name: _read_npy(archive, f"{name}.npy", *kind) for name, kind in wanted.items()}
    except Exception as error:  # damaged archives make zipfile, zlib and numpy raise nearly anything
        raise DatasetError(f"{file}: cannot be read ({error}); download it again or remove it") from error
    dones, frames = arrays["dones"], arrays["observations"]
    if not dones[-1] or dones[:-1].any():
        raise DatasetError(f"{file}: must hold one whole episode; download it again or remove it")
    frames[-1] = 0
    return Episode(frames, arrays["actions"].ravel(), arrays["rewards"].ravel(), True, level)


def _check_directory(content: BinaryIO) -> None:
    """Refuse an archive of many files: zipfile would make an object of each before we could count them."""
    content.seek(0, os.SEEK_END)
    size = content.tell()
    content.seek(max(0, size - ZIP_END_BYTES - ZIP64_LOCATOR_BYTES))
    end = content.read()
    locator, record = end[:-ZIP_END_BYTES], end[-ZIP_END_BYTES:]
    if not record.startswith(ZIP_END) or locator.startswith(ZIP64_LOCATOR):
        raise UserError("it must be a zip archive without a comment and of less than 4 GiB")
    entries = int.from_bytes(record[10:12], "little")
    directory = int.from_bytes(record[12:16], "little")
    if entries > MAX_ENTRIES or directory > MAX_DIRECTORY_BYTES:
        raise UserError(f"it must hold at most {MAX_ENTRIES} arrays, got {entries}")
    content.seek(0)


def _read_npy(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
    """Read a plain array of this shape, row by row as another type: nothing is allocated by a claim."""
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{name} must be stored or deflated: others are inflated without a limit")
    with archive.open(name) as stream:
        claimed, fortran, dtype = read_array_header(stream)
        if claimed != shape or fortran:
            raise UserError(f"{name} must be numbers {list(shape)}, got {dtype}{list(claimed)}")
        values = np.empty(shape, kind)
        for row in values.reshape(len(values), -1):
            row[...] = np.frombuffer(stream.read(row.size * dtype.itemsize), dtype)
    return values
