"""Which Navigation levels a solver is tested on: halls that differ from each other and from those it saw.

Level seeds of different splits are disjoint, but halls are not: there are few thousand small halls, so that
of a test seed can equal one of a training seed, wall by wall. Levels are therefore told apart by content.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dtsn.arrays import Ints
from dtsn.envs.navigation import SPLITS, Levels, NavigationOptions, make_levels
from dtsn.errors import UserError
from dtsn.experts.collect import expert_levels

VALIDATION_LEVELS = 1000  # the first ones are what settings are chosen by; test levels equal none of them
SEEDS_AT_ONCE = 8192
MAX_BARREN = 20  # blocks of seeds in a row without a new hall: there are no more


def first_levels(split: str, count: int) -> Ints:
    """Return the first ``count`` level seeds ``[L]`` of a split."""
    if split not in SPLITS:
        raise UserError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    first, end = SPLITS[split]
    if not 1 <= count <= end - first:
        raise UserError(f"levels must be from 1 to the {end - first} of the {split} split, got {count}")
    return np.arange(first, first + count)


def level_contents(levels: Levels) -> list[bytes]:
    """Return what makes a level, ``[L]``: walls, goal and robot; equal for levels that are the same hall."""
    walls = np.packbits(levels.walls.reshape(len(levels), -1), axis=1)
    places = np.concatenate([levels.goal, levels.robot], axis=1).astype(np.uint16)
    table = np.concatenate([walls, places.view(np.uint8)], axis=1)
    return [row.tobytes() for row in table]


def unseen_levels(
    split: str, count: int, options: NavigationOptions | None = None, trained_on: Ints | None = None
) -> Ints:
    """Return the first ``count`` level seeds ``[count]`` of a split whose halls are new.

    No two are the same hall, none is a training hall (the levels ``trained_on`` with two exits; those that
    ``collect_navigation`` plays by default if not given), and no test hall is one of the first
    ``VALIDATION_LEVELS`` validation halls.
    """
    options = options or NavigationOptions()
    first_levels(split, count)  # refuses what no split has
    first, end = SPLITS[split]
    taken = set(level_contents(make_levels(_training(trained_on), replace(options, exits=2))))
    if split == "test":
        validation = first_levels("validation", VALIDATION_LEVELS)
        taken.update(level_contents(make_levels(validation, options)))
    found: list[int] = []
    barren = 0
    for block in range(first, end, SEEDS_AT_ONCE):
        seeds, before = np.arange(block, min(block + SEEDS_AT_ONCE, end)), len(found)
        for seed, content in zip(seeds.tolist(), level_contents(make_levels(seeds, options)), strict=True):
            if content not in taken:
                taken.add(content)
                found.append(seed)
        if len(found) >= count:
            return np.array(found[:count])
        barren = 0 if len(found) > before else barren + 1
        if barren == MAX_BARREN:
            break
    raise UserError(
        f"levels must be at most {len(found)} in halls {options.hall}, exits {options.exit_layout}: "
        f"no more of the {split} split are different, got {count}"
    )


def _training(trained_on: Ints | None) -> Ints:
    return expert_levels() if trained_on is None else trained_on
