"""A scripted expert for Procgen's maze: breadth-first search on the pixels of the first frame.

The mouse starts in the lower left corner of the maze, and every action moves it by one cell, so after the
first frame its cell is known by counting.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dtsn.arrays import Bools, Bytes, Float64s
from dtsn.envs.procgen import ACTION_NAMES

CELLS = 15  # of a side of the frame, in mode easy
WALL_COLOURS = np.array([(201, 152, 105), (189, 137, 88), (197, 143, 92)])
CHEESE = np.array((254, 231, 98))
NEAR = 8  # how far a channel may be off: frames are scaled down
MOVES = {
    ACTION_NAMES.index("UP"): (-1, 0),
    ACTION_NAMES.index("DOWN"): (1, 0),
    ACTION_NAMES.index("LEFT"): (0, -1),
    ACTION_NAMES.index("RIGHT"): (0, 1),
}

RANDOM_MOVES = 0.1  # share of moves that are drawn: data with nothing but shortest paths show no way back
DESCRIPTION = {"script": "breadth-first search on pixels", "random_moves": RANDOM_MOVES}

Cell = tuple[int, int]  # row and column


class Walk:
    """A shortest path to the cheese, with a tenth of random moves."""

    def __init__(self, frame: Bytes) -> None:
        self.free, self.mouse, cheese = read_maze(frame)
        self.distance = distances(self.free, cheese)

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the next action: the one that leads nearest to the cheese, or a random one."""
        actions = list(MOVES)
        if uniform < RANDOM_MOVES:
            action = actions[int(uniform / RANDOM_MOVES * len(actions))]
        else:
            action = min(actions, key=lambda each: self.distance[move(self.free, self.mouse, each)])
        self.mouse = move(self.free, self.mouse, action)
        return action


def read_maze(frame: Bytes) -> tuple[Bools, Cell, Cell]:
    """Read the first frame ``[3, 64, 64]``: which cells ``[15, 15]`` are free, the mouse's, the cheese's."""
    pixels = frame.transpose(1, 2, 0).astype(np.int64)  # [64, 64, 3]
    size = len(pixels) / CELLS
    centres = ((np.arange(CELLS) + 0.5) * size).astype(int)
    middle = pixels[np.add.outer(centres, (-1, 0))][:, :, np.add.outer(centres, (-1, 0))]  # [15, 2, 15, 2, 3]
    off = np.abs(middle[..., None, :] - WALL_COLOURS).max(-1).min(-1)  # [15, 2, 15, 2]
    free = (off > NEAR).mean((1, 3)) > 0.5
    yellow = np.abs(pixels - CHEESE).max(-1)  # [64, 64]
    row, column = np.unravel_index(yellow.argmin(), yellow.shape)
    cheese = int((row + 0.5) / size), int((column + 0.5) / size)
    free[cheese] = True
    rows, columns = np.nonzero(free)
    mouse = int(rows.max()), int(columns.min())
    free[mouse] = True
    return free, mouse, cheese


def distances(free: Bools, goal: Cell) -> Float64s:
    """Count the steps ``[H, W]`` from every cell to the goal; infinite where there is no way."""
    steps = np.full(free.shape, np.inf)
    steps[goal] = 0
    waiting = deque([goal])
    while waiting:
        cell = waiting.popleft()
        for action in MOVES:
            following = move(free, cell, action)
            if steps[following] == np.inf:
                steps[following] = steps[cell] + 1
                waiting.append(following)
    return steps


def move(free: Bools, cell: Cell, action: int) -> Cell:
    """Return where an action leads."""
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    inside = 0 <= row < free.shape[0] and 0 <= column < free.shape[1]
    return (row, column) if inside and free[row, column] else cell
