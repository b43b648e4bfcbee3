"""Minari data sets, in and out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtsn.data.format import DatasetError, Episode, ObservationSpec
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter
from dtsn.errors import UserError

ORIGIN = (
    "env_id",
    "env_options",
    "provenance",
    "real_last_frames",
)  # of a header: what Minari has no place for


def export_minari(dataset: Dataset, dataset_id: str) -> None:
    """Write a data set to the local Minari folder as `dataset_id`, say "navigation/expert-v0"."""
    minari = _import_minari()
    import gymnasium
    from minari.data_collector import EpisodeBuffer

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
        try:
            created = minari.create_dataset_from_buffers(
                dataset_id,
                buffers(),  # one at a time, so that memory stays bounded
                observation_space=dataset.observation.space(),
                action_space=gymnasium.spaces.Discrete(dataset.num_actions),
                data_format="hdf5",
                jpeg_encoding=False,  # lossy
            )
        except ValueError as error:  # a bad name, or one that is taken
            raise UserError(f"{dataset_id}: {error}") from error
    created.storage.update_metadata({"dtsn": {key: dataset.header[key] for key in ORIGIN}})


def import_minari(
    dataset_id: str, path: str | Path, *, discount: float = 1.0, overwrite: bool = False
) -> Path:
    """Write a local Minari data set of arrays and discrete actions to `path`, with returns by `discount`.

    Levels are the episodes' seeds, or -1 where there are none.
    """
    minari = _import_minari()
    import gymnasium

    try:
        source = minari.load_dataset(dataset_id)
    except FileNotFoundError as error:
        raise UserError(
            f"{dataset_id}: no such data set in the local Minari folder; `minari download {dataset_id}` gets "
            "a published one"
        ) from error
    except ValueError as error:  # a bad name
        raise UserError(f"{dataset_id}: {error}") from error
    frames, actions = source.observation_space, source.action_space
    if not isinstance(frames, gymnasium.spaces.Box) or not isinstance(actions, gymnasium.spaces.Discrete):
        raise DatasetError(
            f"{dataset_id}: must have Box observations and Discrete actions, got {frames} and {actions}"
        )
    if actions.start != 0:  # a solver answers 0 to A − 1
        raise DatasetError(f"{dataset_id}: actions must start at 0, got {actions}: shift them first")
    origin: dict[str, Any] = {"env_id": dataset_id, "env_options": {}, "provenance": {"minari": dataset_id}}
    if source.env_spec is not None:
        origin["env_id"] = source.env_spec.id
    exported = source.storage.metadata.get("dtsn", {})
    origin |= {key: exported[key] for key in ORIGIN if key in exported}
    bounds = ObservationSpec.from_space(frames)
    with DatasetWriter(
        path,
        **origin,
        num_actions=int(actions.n),
        observation_shape=frames.shape,
        observation_dtype=frames.dtype,
        observation_low=bounds.low,
        observation_high=bounds.high,
        discount=discount,
        overwrite=overwrite,
    ) as writer:
        seeds = source.storage.get_episode_metadata(source.episode_indices)
        for episode, metadata in zip(source.iterate_episodes(), seeds, strict=True):
            writer.add_episode(
                Episode(
                    episode.observations,
                    episode.actions,
                    episode.rewards,
                    bool(episode.terminations[-1]),
                    int(metadata.get("seed", -1)),
                )
            )
    return Path(path)


def _import_minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise ImportError("Minari is not installed; run: pip install 'dtsn[minari]'") from error
    return minari
