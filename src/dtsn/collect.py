"""Play a behaviour policy and write what it saw to a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dtsn.data import DatasetWriter, Episode
from dtsn.envs.navigation import MOVES, SPLITS, Ints, NavigationOptions, make_levels, observe, step
from dtsn.experts.value_iteration import expert_actions, optimal_q, optimal_values

Progress = Callable[[int, int], None]  # called with (episodes done, episodes in all)

LEVELS_AT_ONCE = 256


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
    """Write shortest ways through `episodes` different levels of a split; the seed draws levels and ways."""
    options = options or NavigationOptions()
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; choose one of {', '.join(SPLITS)}")
    first, end = SPLITS[split]
    if not 1 <= episodes <= end - first:
        raise ValueError(f"episodes is {episodes}; choose from 1 to the {end - first} levels of {split}")
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must not be negative")

    rng = np.random.default_rng(seed)
    seeds = np.sort(rng.choice(end - first, episodes, replace=False, shuffle=False)) + first
    with DatasetWriter(
        path,
        env_id="dtsn/Navigation-v0",
        env_options=asdict(options),
        num_actions=len(MOVES),
        observation_shape=(3, options.size, options.size),
        discount=discount,
        provenance={"policy": "value iteration", "split": split, "seed": seed},
        overwrite=overwrite,
    ) as writer:
        for done in range(0, episodes, LEVELS_AT_ONCE):
            for episode in play_navigation(seeds[done : done + LEVELS_AT_ONCE], options, rng):
                writer.add_episode(*episode)
            if progress is not None:
                progress(min(done + LEVELS_AT_ONCE, episodes), episodes)
    return writer.path


def play_navigation(seeds: Ints, options: NavigationOptions, rng: np.random.Generator) -> Iterator[Episode]:
    """Shortest ways through the levels of these seeds [L], played at once; `rng` decides between equals."""
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
