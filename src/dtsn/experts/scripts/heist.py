"""A scripted expert for Procgen's heist: breadth-first search on pixels, key by key, to the gem.

Walls, keys, locks and the gem are read off the first frame of an episode, the thief's place off every frame.
A key is held once the thief has been in its cell; it opens the locks of its colour.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from dtsn.arrays import Bools, Bytes, Ints
from dtsn.envs.procgen import ACTION_NAMES, NUM_ACTIONS

CELLS = 9  # of a side of the frame, in mode easy
WALL_COLOURS = np.array([(177, 192, 193), (187, 203, 204), (197, 209, 210)])
COLOURS = np.array([(30, 167, 225), (115, 205, 75), (232, 106, 23)])  # of keys and locks
GEM = np.array((255, 204, 0))
NEAR, NEAR_GEM = 12, 40  # how far a channel may be off: frames are scaled down
LOCK_SHARE = 0.4  # of a cell's pixels that have its colour: a lock's; a key has fewer
WHITE = 225  # of the thief, and of the gem
CENTRED = 1.2  # pixels off the middle of a cell that need no correction

# What an action does: rows down and columns right.
STEPS = {
    (
        ("DOWN" in name) - ("UP" in name),
        ("RIGHT" in name) - ("LEFT" in name),
    ): number
    for number, name in enumerate(ACTION_NAMES[:9])
}
RANDOM_MOVES = 0.1  # share of moves that are drawn: data with nothing but shortest paths show no way back
DESCRIPTION = {"script": "breadth-first search on pixels", "random_moves": RANDOM_MOVES}

Cell = tuple[int, int]  # row and column


@dataclass
class Heist:
    """Shortest ways to the nearest key or the gem, with a tenth of random moves.

    It knows what the first frame showed, and the keys that were taken since.
    """

    free: Bools  # [9, 9] no wall
    gem: Cell
    keys: dict[int, Cell]  # by colour
    locks: dict[Cell, int]  # to colour
    place: tuple[float, float] = (0.0, 0.0)  # of the thief, in pixels
    held: set[int] = field(default_factory=set)

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the action that leads to the next cell of the way, or a random one."""
        size = frame.shape[1] / CELLS
        white = np.argwhere(frame.min(0) > WHITE) + 0.5  # [n, 2]
        white = white[((white / size).astype(int) != self.gem).any(1)]  # the gem glitters
        if len(white):  # else it is hidden: it is where it was
            row, column = np.median(white, axis=0)
            self.place = float(row), float(column)
        here = self._cell(self.place, size)
        self.held |= {colour for colour, cell in self.keys.items() if cell == here}
        down, right = (
            (cell + 0.5) * size - place for cell, place in zip(self._next(here), self.place, strict=True)
        )
        if uniform < RANDOM_MOVES:
            return int(uniform / RANDOM_MOVES * NUM_ACTIONS)
        return STEPS[_sign(down), _sign(right)]

    def _cell(self, place: tuple[float, float], size: float) -> Cell:
        """Return the free cell that a place is in, or the nearest one: the thief may look over an edge."""
        cells = np.argwhere(self.free)
        off = np.abs((cells + 0.5) * size - np.array(place)).max(1)
        row, column = cells[off.argmin()]
        return int(row), int(column)

    def _next(self, here: Cell) -> Cell:
        """Return the next cell on a shortest path to the gem, or else to the nearest key that is not held."""
        came: dict[Cell, Cell] = {here: here}
        waiting = deque([here])
        wanted = {cell for colour, cell in self.keys.items() if colour not in self.held}
        nearest = None
        while waiting:
            cell = waiting.popleft()
            if cell == self.gem:
                nearest = cell
                break
            if nearest is None and cell in wanted:
                nearest = cell
            for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                following = cell[0] + down, cell[1] + right
                inside = 0 <= following[0] < CELLS and 0 <= following[1] < CELLS
                if inside and following not in came and self._passes(following):
                    came[following] = cell
                    waiting.append(following)
        if nearest is None:
            return here
        while came[nearest] != here:
            nearest = came[nearest]
        return nearest

    def _passes(self, cell: Cell) -> bool:
        return bool(self.free[cell]) and (cell not in self.locks or self.locks[cell] in self.held)


def _sign(off: float) -> int:
    return 0 if abs(off) < CENTRED else int(np.sign(off))


def read_heist(frame: Bytes) -> Heist:
    """Read what the first frame ``[3, 64, 64]`` of an episode shows."""
    pixels = frame.transpose(1, 2, 0).astype(np.int64)  # [64, 64, 3]
    wall: Bools = np.any(_like(pixels, WALL_COLOURS, NEAR), axis=-1)
    things = np.concatenate(
        [_like(pixels, COLOURS, NEAR), _like(pixels, GEM[None], NEAR_GEM)], axis=2
    )  # [64, 64, 4]
    shares = np.zeros((CELLS, CELLS, 4))
    free = np.zeros((CELLS, CELLS), bool)
    edges = np.rint(np.arange(CELLS + 1) * len(pixels) / CELLS).astype(int)
    for row in range(CELLS):
        for column in range(CELLS):
            inside = (
                slice(edges[row] + 1, edges[row + 1] - 1),
                slice(edges[column] + 1, edges[column + 1] - 1),
            )
            free[row, column] = wall[inside].mean() < 0.5
            shares[row, column] = things[inside].mean((0, 1))
    shares[~free] = 0
    locks = {
        (int(row), int(column)): int(colour)
        for row, column, colour in np.argwhere(shares[:, :, :3] > LOCK_SHARE)
    }
    for cell in locks:
        shares[cell] = 0
    keys = {colour: _place(shares[:, :, colour]) for colour in range(3) if colour in locks.values()}
    return Heist(free, _place(shares[:, :, 3]), keys, locks)


def _like(pixels: Ints, colours: Ints, off: int) -> Bools:
    """Tell which pixels ``[H, W, 3]`` and colours ``[C, 3]`` are alike, ``[H, W, C]``."""
    found: Bools = np.abs(pixels[:, :, None] - colours).max(-1) <= off
    return found


def _place(shares: np.ndarray) -> Cell:
    row, column = np.unravel_index(shares.argmax(), shares.shape)
    return int(row), int(column)
