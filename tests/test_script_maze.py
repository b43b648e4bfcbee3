"""The scripted expert of maze: what it reads off frames, its ways against a slow oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtsn.envs.procgen import SPLITS, ProcgenOptions, load_envpool, play_levels
from dtsn.experts.scripted import ScriptedExpert
from dtsn.experts.scripts.maze import MOVES, distances, move, read_maze


@given(st.lists(st.booleans(), min_size=20, max_size=20), st.integers(0, 19))
def test_distances_are_those_of_relaxation(cells: list[bool], goal: int) -> None:
    free, end = np.array(cells).reshape(4, 5), divmod(goal, 5)
    free[end] = True
    slow = np.full(free.shape, np.inf)
    slow[end] = 0
    for _, cell in itertools.product(range(free.size), np.argwhere(free)):  # Bellman and Ford
        here = int(cell[0]), int(cell[1])
        slow[here] = min(slow[here], *(1 + slow[move(free, here, action)] for action in MOVES))
    np.testing.assert_array_equal(distances(free, end), slow)


def test_a_frame_is_read_as_it_was_drawn() -> None:
    rng = np.random.default_rng(0)
    free = np.zeros((15, 15), bool)
    free[4:11, 3] = free[4, 3:9] = free[6, 3:9] = True  # two corridors from the mouse's
    where = (np.arange(64) + 0.5) * 15 // 64  # [64] cell of every pixel
    mask = free[np.ix_(where.astype(int), where.astype(int))]
    frame = np.where(mask[..., None], rng.integers(0, 120, (64, 64, 3)), (197, 143, 92)).astype(np.uint8)
    frame[(where == 6).argmax() + 1, (where == 8).argmax() + 1] = (254, 231, 98)
    found, mouse, cheese = read_maze(frame.transpose(2, 0, 1))
    np.testing.assert_array_equal(found, free)
    assert (mouse, cheese) == ((10, 3), (6, 8))


def test_its_episodes_are_short() -> None:
    try:
        load_envpool()
    except ImportError as error:
        pytest.skip(str(error))
    maze, first = ProcgenOptions("maze", "easy"), SPLITS["train"][0]
    policy = ScriptedExpert(maze).policy(seed=0, at_once=16)
    played = play_levels(maze, enumerate(range(first, first + 40)), policy, keep_frames=False)
    assert max(len(each.actions) for each in played) < 150
