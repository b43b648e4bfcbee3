"""Data sets of others: Minari in and out, and the public offline Procgen data of gen_dgrl in."""

from __future__ import annotations

import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dtsn.data.dataset import Dataset, DatasetError, DatasetWriter, Episode
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, ProcgenOptions

# TIME_NUMBER_STEPS_LEVEL_RETURN.npz
DGRL_NAME = re.compile(r"[^_]+_(?P<number>\d+)_(?P<steps>\d+)_(?P<level>-?\d+)_-?[\d.]+\.npz")
DGRL_ARRAYS = ("observations", "actions", "rewards", "dones")
DGRL_MAX_STEPS = 10_000  # the longest game times out after 6,000


def export_minari(dataset: Dataset, dataset_id: str) -> None:
    """Write a data set to the local Minari folder as `dataset_id`, say "navigation/expert-v0"."""
    minari = _import_minari()
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    dtype = dataset.observation_dtype
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)

    def buffers() -> Iterator[Any]:
        for index in range(dataset.num_episodes):
            observations, actions, rewards, terminated, level = dataset.episode(index)
            last = np.arange(len(actions)) == len(actions) - 1
            yield EpisodeBuffer(
                id=index,
                seed=level,
                observations=observations,
                actions=actions,
                rewards=rewards,
                terminations=last & terminated,
                truncations=last & (not terminated),
            )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # recommends an author, a link to code, …
        created = minari.create_dataset_from_buffers(
            dataset_id,
            buffers(),  # one at a time, so that memory stays bounded
            observation_space=gymnasium.spaces.Box(low, high, dataset.observation_shape, dtype),
            action_space=gymnasium.spaces.Discrete(dataset.num_actions),
            data_format="hdf5",
            jpeg_encoding=False,  # lossy
        )
    created.storage.update_metadata(
        {"dtsn": {key: dataset.header[key] for key in ("env_id", "env_options", "provenance")}}
    )


def import_minari(
    dataset_id: str, path: str | Path, *, discount: float = 1.0, overwrite: bool = False
) -> Path:
    """Write a local Minari data set of arrays and discrete actions to `path`, with returns by `discount`.

    Levels are the episodes' seeds, or -1 where there are none.
    """
    minari = _import_minari()
    import gymnasium

    source = minari.load_dataset(dataset_id)
    frames, actions = source.observation_space, source.action_space
    if not isinstance(frames, gymnasium.spaces.Box) or not isinstance(actions, gymnasium.spaces.Discrete):
        raise DatasetError(
            f"{dataset_id}: has observations {frames} and actions {actions}; "
            "only Box observations with Discrete actions can be imported"
        )
    origin: dict[str, Any] = {"env_id": dataset_id, "env_options": {}, "provenance": {"minari": dataset_id}}
    if source.env_spec is not None:
        origin["env_id"] = source.env_spec.id
    exported = source.storage.metadata.get("dtsn", {})
    origin |= {key: exported[key] for key in origin if key in exported}
    with DatasetWriter(
        path,
        **origin,
        num_actions=int(actions.n),
        observation_shape=frames.shape,
        observation_dtype=frames.dtype,
        discount=discount,
        overwrite=overwrite,
    ) as writer:
        seeds = source.storage.get_episode_metadata(source.episode_indices)
        for episode, metadata in zip(source.iterate_episodes(), seeds, strict=True):
            writer.add_episode(
                episode.observations,
                episode.actions - actions.start,
                episode.rewards,
                bool(episode.terminations[-1]),
                int(metadata.get("seed", -1)),
            )
    return Path(path)


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
    Their last frame is not the episode's: it is the first one of the next episode, so it is made black here.
    The files are read as numbers only; nothing in them can be executed.
    """
    files = sorted(Path(folder).rglob("*.npz"), key=lambda file: (file.parent, _dgrl_name(file)))[:episodes]
    if not files:
        raise DatasetError(f"{folder}: holds no .npz files; give a folder of gen_dgrl's episodes")
    with DatasetWriter(
        path,
        env_id="dtsn/Procgen-v0",
        env_options={"game": options.game, "mode": options.mode},
        num_actions=NUM_ACTIONS,
        observation_shape=FRAME_SHAPE,
        discount=discount,
        provenance={"source": "gen_dgrl", "episodes": len(files)},
        overwrite=overwrite,
    ) as writer:
        for done, file in enumerate(files, 1):
            writer.add_episode(*_read_dgrl(file))
            if progress is not None:
                progress(done, len(files))
    return Path(path)


def _dgrl_name(file: Path) -> tuple[int, int, int]:
    """Number, steps and level of an episode, from its file's name."""
    match = DGRL_NAME.fullmatch(file.name)
    if match is None:
        raise DatasetError(
            f"{file}: is not named TIME_NUMBER_STEPS_LEVEL_RETURN.npz, as gen_dgrl's files are"
        )
    return int(match["number"]), int(match["steps"]), int(match["level"])


def _read_dgrl(file: Path) -> Episode:
    _, steps, level = _dgrl_name(file)
    if not 1 <= steps <= DGRL_MAX_STEPS:
        raise DatasetError(f"{file}: {steps} steps in its name; episodes have 1 to {DGRL_MAX_STEPS}")
    shapes = [(steps + 1, *FRAME_SHAPE), (steps, 1), (steps, 1), (steps,)]
    try:
        with zipfile.ZipFile(file) as archive:
            arrays = [
                _read_npy(archive, f"{name}.npy", shape)
                for name, shape in zip(DGRL_ARRAYS, shapes, strict=True)
            ]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(f"{file}: cannot be read ({error}); download it again or remove it") from error
    observations, actions, rewards, dones = arrays
    if not dones[-1] or dones[:-1].any():
        raise DatasetError(f"{file}: does not hold one whole episode; download it again or remove it")
    frames = observations.astype(np.uint8)
    frames[-1] = 0
    return Episode(frames, actions.astype(np.int64).ravel(), rewards.astype(np.float32).ravel(), True, level)


def _read_npy(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A plain array of numbers of this shape; its claims are checked before anything is allocated."""
    with archive.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        claimed, fortran, dtype = read(stream)
        if claimed != shape or dtype.kind not in "biuf" or fortran:
            raise ValueError(f"{name} is {dtype}{list(claimed)}, not numbers {list(shape)}")
        content = stream.read(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(content, dtype).reshape(shape)


def _import_minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise ImportError("Minari is not installed; run: pip install 'dtsn[minari]'") from error
    return minari
