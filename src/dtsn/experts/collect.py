"""Play a behaviour policy and write what it saw to a data set."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dtsn.arrays import Bytes, Ints
from dtsn.config import Keep
from dtsn.data.format import DatasetError, Episode
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter
from dtsn.envs.navigation import MOVES, SPLITS, NavigationOptions, make_levels, observe, step
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, Policy, ProcgenOptions, play_levels, split_range
from dtsn.errors import UserError
from dtsn.experts.behaviour import BehaviourPolicy
from dtsn.experts.value_iteration import expert_actions, optimal_q, optimal_values
from dtsn.randomness import hashed_integers, hashed_uniforms
from dtsn.storage import RunLock, append_to, read_bounded, real_folder, replace_durably

# Called with (episodes done, episodes in all), and a text if there is one to show.
Progress = Callable[..., None]

LEVELS_AT_ONCE = 256
GAMES_AT_ONCE = 64
MAX_REQUEST_BYTES, MAX_REJECTED_BYTES = 2**20, 2**26
_EPISODE = re.compile(r"episode-\d{9,18}\.h5", re.ASCII)
MAX_INITIAL_FAILURES = 500  # before the first success


def collect_navigation(
    path: str | Path,
    *,
    episodes: int = 1000,
    options: NavigationOptions | None = None,
    split: str = "train",
    seed: int = 0,
    discount: float = 1.0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write shortest paths through `episodes` different levels of a split; the seed draws levels and ways."""
    options = options or NavigationOptions()
    if split not in SPLITS:
        raise UserError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    first, end = SPLITS[split]
    if not 1 <= episodes <= end - first:
        raise UserError(f"episodes must be 1 to the {end - first} levels of {split}, got {episodes}")
    if seed < 0:
        raise UserError(f"seed must not be negative, got {seed}")

    rng = np.random.default_rng(seed)
    seeds = _drawn_levels(rng, split, episodes)
    with DatasetWriter(
        path,
        env_id="dtsn/Navigation-v0",
        env_options=asdict(options),
        num_actions=len(MOVES),
        observation_shape=(3, options.size, options.size),
        observation_high=1,
        discount=discount,
        provenance={"policy": "value iteration", "split": split, "seed": seed},
        overwrite=overwrite,
    ) as writer:
        for done in range(0, episodes, LEVELS_AT_ONCE):
            for episode in play_navigation(seeds[done : done + LEVELS_AT_ONCE], options, rng):
                writer.add_episode(episode)
            if progress is not None:
                progress(min(done + LEVELS_AT_ONCE, episodes), episodes)
    return writer.path


def expert_levels(episodes: int = 1000, split: str = "train", seed: int = 0) -> Ints:
    """Return the levels ``[episodes]`` that :func:`collect_navigation` plays."""
    return _drawn_levels(np.random.default_rng(seed), split, episodes)


def _drawn_levels(rng: np.random.Generator, split: str, episodes: int) -> Ints:
    first, end = SPLITS[split]
    return np.sort(rng.choice(end - first, episodes, replace=False, shuffle=False)) + first


def play_navigation(seeds: Ints, options: NavigationOptions, rng: np.random.Generator) -> Iterator[Episode]:
    """Play the shortest paths through the levels of these seeds [L] at once; `rng` decides between equals."""
    levels = make_levels(seeds, options)
    values = optimal_values(levels.walls, levels.goal)
    robot, arrived = levels.robot, np.zeros(len(levels), bool)
    robots: list[Ints] = [robot]
    actions: list[Ints] = []
    length = np.full(len(levels), options.max_steps)  # [L] steps until the episode ends
    while not arrived.all() and len(actions) < options.max_steps:
        actions.append(expert_actions(optimal_q(values, robot), rng.random(len(levels))))
        robot, success, _ = step(levels.walls, levels.goal, robot, actions[-1])
        robots.append(robot)
        length[success & ~arrived] = len(actions)  # who has arrived drives on until all have; that is cut off
        arrived |= success

    ways, played = np.stack(robots, axis=1), np.stack(actions, axis=1)  # [L, T + 1, 2], [L, T]
    for level, steps in enumerate(length):
        frames = steps + 1
        walls = np.broadcast_to(levels.walls[level], (frames, *levels.walls.shape[1:]))
        goal = np.broadcast_to(levels.goal[level], (frames, 2))
        yield Episode(
            observations=observe(walls, goal, ways[level, :frames]),
            actions=played[level, :steps],
            rewards=np.full(steps, -1.0),
            terminated=bool(arrived[level]),
            level=int(seeds[level]),
        )


def collect_procgen(
    path: str | Path,
    options: ProcgenOptions,
    expert: BehaviourPolicy | None,
    *,
    episodes: int = 1000,
    keep: Keep = "successful",
    num_levels: int = 0,
    seed: int = 0,
    discount: float = 1.0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the first `episodes` successful episodes of an expert (None: random actions) on training levels.

    Successful means that the level was completed; `keep="all"` keeps every episode. Episode number i has its
    level (any, or one of the first `num_levels`) and its random numbers from (seed, i) alone, and the data
    set holds the successful ones with the lowest numbers in their order. So it does not favour short
    episodes, and it is the same however often its collection was interrupted.

    Each episode is a file of its own in the folder `.NAME.parts` until all are there: a collection that was
    stopped, or killed, goes on from them when it is started again.
    """
    path = Path(path)
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, got {episodes}")
    if seed < 0:
        raise UserError(f"seed must not be negative, got {seed}")
    if keep not in ("successful", "all"):
        raise UserError(f"keep must be successful or all, got {keep!r}")
    split_range("train", num_levels)
    if expert is not None and expert.options != options:
        theirs, ours = (f"{x.game} ({x.mode})" for x in (expert.options, options))
        raise UserError(f"the expert must play {ours}, got one of {theirs}")
    header: dict[str, Any] = {
        "env_id": "dtsn/Procgen-v0",
        "env_options": asdict(options),
        "num_actions": NUM_ACTIONS,
        "observation_shape": FRAME_SHAPE,
        "discount": discount,
        "provenance": {
            "policy": "random" if expert is None else expert.kind,
            "expert": None if expert is None else expert.description(),
            "keep": keep,
            "split": "train",
            "num_levels": num_levels,
            "seed": seed,
        },
    }
    writer = DatasetWriter(path, **header, overwrite=overwrite)  # refuses bad settings, before playing
    parts = _Parts(path.with_name(f".{path.name}.parts"), header)
    try:
        _play_procgen(parts, options, expert, episodes, keep, num_levels, seed, progress)
        with writer:
            for written, file in enumerate(parts.kept_files()[:episodes], 1):
                with Dataset(file) as part:
                    writer.add_episode(part.episode(0))
                if progress is not None:
                    progress(written, episodes, "writing")
    finally:
        parts.lock.release()
    shutil.rmtree(parts.folder)
    return path


def _play_procgen(
    parts: _Parts,
    options: ProcgenOptions,
    expert: BehaviourPolicy | None,
    episodes: int,
    keep: Keep,
    num_levels: int,
    seed: int,
    progress: Progress | None,
) -> None:
    """Play episodes 0, 1, 2, … until enough are kept, and those that have begun to their end."""
    first, end = split_range("train", num_levels)
    stream = hashed_integers(np.array([seed]), 0, 2**62)

    def numbered_levels() -> Iterator[tuple[int, int]]:
        for number in count():
            # Only lower numbers count: after an interruption, long episodes before the kept ones may be owed.
            if sum(kept < number for kept in parts.kept) >= episodes or (
                keep == "all" and number == episodes
            ):
                return
            if number not in parts.kept and number not in parts.rejected:
                yield number, first + int(hashed_integers(stream + number, 0, end - first)[0])

    at_once = min(GAMES_AT_ONCE, episodes)
    policy = random_policy(seed) if expert is None else expert.policy(seed, at_once)
    for played in play_levels(options, numbered_levels(), policy, at_once=at_once):
        if played.complete or keep == "all":
            episode = Episode(
                played.observations, played.actions, played.rewards, played.terminated, played.level
            )
            parts.add(played.number, episode)
        else:
            parts.reject(played.number)
        ended = len(parts.kept) + len(parts.rejected)
        if not parts.kept and ended >= MAX_INITIAL_FAILURES:
            raise UserError(
                f"none of the first {ended} episodes of {options.game} ({options.mode}) was successful: "
                'train the expert for longer, or keep all episodes (keep="all")'
            )
        if progress is not None:
            rate = f"kept {len(parts.kept) / ended:.0%} of {ended}"
            progress(min(len(parts.kept), episodes), episodes, rate)


def random_policy(seed: int) -> Policy:
    """Make a policy of uniformly random actions, drawn by (seed, episode, step) alone."""

    def act(frames: Bytes, numbers: Ints, steps: Ints) -> Ints:
        return (hashed_uniforms(seed, numbers, steps) * NUM_ACTIONS).astype(np.int64)

    return act


class _Parts:
    """The episodes of an unfinished collection: a file for each that is kept, a line for each that is not."""

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.folder, self._header = folder, header
        self._request = folder / "request.json"
        self._failures = folder / "rejected.txt"
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.lock = RunLock(real_folder(folder))
        try:
            self._resume()
        except BaseException:
            self.lock.release()
            raise

    def _resume(self) -> None:
        request = json.dumps(self._header, sort_keys=True, indent=1)
        if not self._request.exists():
            replace_durably(self._request, request.encode())
        elif read_bounded(self._request, MAX_REQUEST_BYTES) != request.encode():
            raise DatasetError(
                f"{self.folder} holds the beginning of a collection with other settings: "
                "use the same settings, or delete that folder to start anew"
            )
        self.kept = {int(file.stem.removeprefix("episode-")) for file in self.kept_files()}
        lines = (
            read_bounded(self._failures, MAX_REJECTED_BYTES).split(b"\n")
            if self._failures.exists()
            else [b""]
        )
        self.rejected = {int(line) for line in lines[:-1] if line.isdigit() and len(line) < 18} - self.kept
        for leftover in self.folder.glob(".episode-*.tmp"):  # of a process that was killed
            leftover.unlink()

    def kept_files(self) -> list[Path]:
        """List the files of kept episodes by number."""
        return sorted(path for path in self.folder.glob("episode-*.h5") if _EPISODE.fullmatch(path.name))

    def add(self, number: int, episode: Episode) -> None:
        with DatasetWriter(self.folder / f"episode-{number:09d}.h5", **self._header) as writer:
            writer.add_episode(episode)
        self.kept.add(number)

    def reject(self, number: int) -> None:
        with append_to(self._failures) as file:
            file.write(f"{number}\n".encode())
        self.rejected.add(number)
