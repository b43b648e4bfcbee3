"""The scripted expert of heist: what it reads off a frame, the order of keys."""

from __future__ import annotations

import numpy as np

from dtsn.experts.scripts.heist import CELLS, COLOURS, GEM, STEPS, Heist, read_heist

SIZE = 64 / CELLS


def drawn(free: np.ndarray, gem: tuple[int, int], keys: dict, locks: dict) -> np.ndarray:  # type: ignore[type-arg]
    """A frame ``[3, 64, 64]`` of such a heist, without the thief."""
    where = ((np.arange(64) + 0.5) / SIZE).astype(int)
    mask = free[np.ix_(where, where)]
    background = np.random.default_rng(0).integers(0, 60, (64, 64, 3))
    frame = np.where(mask[..., None], background, (187, 203, 204)).astype(np.uint8)
    for (row, column), colour in locks.items():
        frame[np.ix_(where == row, where == column)] = COLOURS[colour]
    for colour, cell in keys.items():
        row, column = (int((each + 0.5) * SIZE) for each in cell)
        frame[row, column - 1 : column + 2] = COLOURS[colour]
    row, column = (int((each + 0.5) * SIZE) for each in gem)
    frame[row - 1 : row + 1, column - 1 : column + 2] = GEM
    return frame.transpose(2, 0, 1)


def corridor() -> tuple[np.ndarray, tuple[int, int], dict[int, tuple[int, int]], dict[tuple[int, int], int]]:
    """Row 4 from end to end with a blind alley: its end has the green key, the gem lies behind two locks."""
    free = np.zeros((CELLS, CELLS), bool)
    free[4] = free[2:5, 2] = True
    return free, (4, 8), {0: (4, 0), 1: (2, 2)}, {(3, 2): 0, (4, 6): 1}


def test_a_frame_is_read_as_it_was_drawn() -> None:
    free, gem, keys, locks = corridor()
    found = read_heist(drawn(free, gem, keys, locks))
    np.testing.assert_array_equal(found.free, free)
    assert (found.gem, found.keys, found.locks) == (gem, keys, locks)


def test_keys_are_fetched_in_an_order_that_opens_locks() -> None:
    free, gem, keys, locks = corridor()
    heist, frame = Heist(free, gem, keys, locks), drawn(free, gem, keys, locks)
    moves = {number: step for step, number in STEPS.items()}
    here, visited = (4, 4), [(4, 4)]
    for _ in range(40):
        seen = frame.copy()
        row, column = (int((each + 0.5) * SIZE) for each in here)
        seen[:, row : row + 1, column : column + 1] = 255
        down, right = moves[heist.action(seen, uniform=1.0)]
        here = here[0] + down, here[1] + right
        visited.append(here)
        if here == gem:
            break
    assert visited[-1] == gem
    assert visited.index((4, 0)) < visited.index((3, 2)) < visited.index((4, 6))
    assert len(visited) == 1 + 4 + 2 + 2 + 2 + 6  # the shortest path that fetches both keys
