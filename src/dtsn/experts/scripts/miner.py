"""A scripted expert for Procgen's miner: a search on pixels that foresees how boulders and diamonds fall.

Every frame is read anew; all it remembers is the exit, its plan and what it foresaw. That tells things that
fall, which kill, from things at rest, which look the same. A mine is bytes of 12 x 12 cells: the frame's
10 x 10 from the bottom row up, within walls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from dtsn.arrays import Bytes
from dtsn.envs.procgen import ACTION_NAMES, FRAME_SHAPE, NUM_ACTIONS

CELLS = 10  # of a side of the frame, in mode easy
WIDTH = CELLS + 2  # with walls
EMPTY, DIRT, WALL, BOULDER, DIAMOND = range(5)
FALLING = 2  # is added to a boulder or a diamond that moved down in the last step
REST = bytes((EMPTY, DIRT, WALL, BOULDER, DIAMOND, BOULDER, DIAMOND)) + bytes(249)  # as they look
DIAMONDS = re.compile(rb"[\4\6]")
# A thing that falls or may move: over an empty cell, or over a round thing with room to its left or right.
UNSTEADY = re.compile(
    rb"[\3-\6](?:(?<=[\5\6])|(?<=\0.{12})|(?<=\0[\3-\6].{10}\0.)|(?<=[\3-\6]\0.{11})(?=\0))"
)

# Colours of the middle of a cell, packed as in `read_mine`; an empty cell has other ones.
COLOURS = {BOULDER: np.array([0x97A9AA]), DIAMOND: np.array([0x69C5EB, 0x2FB2E9, 0x1EA7E1])}
EXIT_COLOURS, MINER_COLOURS = np.array([0x333333]), np.array([0x80D4BA, 0x6FC4A9])
EXIT_DARK = 6  # of a cell's 9 pixels: its frame may have the others
DIRT_COLOUR, NEAR = np.array((170, 108, 52))[:, None, None], 16  # how far a channel may be off: it has grains
CENTRES = np.add.outer(((np.arange(CELLS) + 0.5) * FRAME_SHAPE[1] / CELLS).astype(int), (-1, 0, 1))  # [10, 3]
# The 9 pixels [100, 9] in the middle of every cell, and the cell's place [100]: rows from the bottom up.
MIDDLES = (CENTRES[::-1, None, :, None] * FRAME_SHAPE[2] + CENTRES[None, :, None, :]).reshape(-1, 9)
PLACES = np.add.outer(np.arange(1, CELLS + 1) * WIDTH, np.arange(1, CELLS + 1)).ravel()

# What an action does to the miner's place. Diagonal ones go sideways, and letters do nothing.
MOVES = [
    ("RIGHT" in name) - ("LEFT" in name) or WIDTH * (("UP" in name) - ("DOWN" in name))
    for name in ACTION_NAMES
]
PLAIN = *_, NOOP = [ACTION_NAMES.index(name) for name in ("LEFT", "RIGHT", "UP", "DOWN", "NOOP")]
RANDOM_MOVES = 0.1  # share of moves that are drawn: data with nothing but shortest paths show no way back
DESCRIPTION = {"script": "best-first search on pixels", "random_moves": RANDOM_MOVES}
GREED = 6.0  # weight of the distance that is left: above 1, ways are found sooner and may be longer
MAX_KNOWN = 2000  # mines that a search meets before it gives up
PATIENCE = 100  # steps at random before another search, where one has found nothing


class Mine(NamedTuple):
    """What a frame shows, and which things are falling."""

    cells: bytes  # [144]
    miner: int  # its place in the cells
    alive: bool = True

    def diamonds(self) -> tuple[int, ...]:
        """Return the places of the diamonds."""
        return tuple(found.start() for found in DIAMONDS.finditer(self.cells))

    def look(self) -> tuple[bytes, int]:
        """Return what a frame would show: not what falls, nor a falling diamond that the miner hides."""
        cells = self.cells.translate(REST)
        return cells[: self.miner] + cells[self.miner + 1 :], self.miner


@dataclass
class Shift:
    """Short ways to all diamonds and the exit that no boulder crosses, with a tenth of random moves.

    It knows the plan, and the mine that its last action should have led to.
    """

    exit: int = 0
    plan: bytes = b""  # actions
    complete: bool = False  # the plan leads to the exit
    foreseen: Mine | None = None
    wait: int = 0  # steps until the next search

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the plan's next action, or a random one that does not kill the miner."""
        mine, way_out = read_mine(frame)
        self.exit = self.exit or way_out or mine.miner  # in the first frame, only the miner may hide it
        if self.foreseen and self.foreseen.look() == mine.look():
            mine = self.foreseen
        else:
            self.plan = b""
        if not self.plan and self.wait == 0:
            self.plan, self.complete = search(mine, self.exit)
            self.wait = 0 if self.plan else PATIENCE
        self.wait = max(self.wait - 1, 0)
        action = self._stray(mine, uniform) if uniform < RANDOM_MOVES or not self.plan else None
        if action is None:
            action, self.plan = self.plan[0], self.plan[1:]
        self.foreseen = foresee(mine, MOVES[action])
        return action

    def _stray(self, mine: Mine, uniform: float) -> int | None:
        """Draw an action and plan anew from where it leads; None if that loses the way to the exit."""
        actions = safe_actions(mine)
        action = actions[int((uniform / RANDOM_MOVES if self.plan else uniform) * len(actions))]
        led = foresee(mine, MOVES[action])
        if self.plan and led != mine:
            plan, complete = search(led, self.exit)
            if self.complete and not complete:
                return None
            self.plan, self.complete = plan, complete
        return action


def read_mine(frame: Bytes) -> tuple[Mine, int | None]:
    """Read a frame ``[3, 64, 64]``: the mine, as if what is above the miner fell, and the exit if seen."""
    pixels = frame.reshape(3, -1)[:, MIDDLES].astype(np.int64)  # [3, 100, 9]
    packed = (pixels[0] << 16 | pixels[1] << 8 | pixels[2])[..., None]
    cells = np.full(WIDTH * WIDTH, WALL, np.uint8)
    cells[PLACES] = EMPTY
    cells[PLACES[(np.abs(pixels - DIRT_COLOUR) <= NEAR).all((0, 2))]] = DIRT
    for kind, colours in COLOURS.items():
        cells[PLACES[(packed == colours).any(-1).all(-1)]] = kind
    miner = int(PLACES[(packed == MINER_COLOURS).sum((1, 2)).argmax()])
    if cells[miner + WIDTH] >= BOULDER:
        cells[miner + WIDTH] += FALLING
    dark = (packed == EXIT_COLOURS).sum((1, 2))  # [100]
    return Mine(cells.tobytes(), miner), int(PLACES[dark.argmax()]) if dark.max() >= EXIT_DARK else None


def foresee(mine: Mine, move: int) -> Mine:
    """Return the mine after the miner's move and the fall of things, from the bottom left upwards."""
    cells, miner = bytearray(mine.cells), mine.miner
    ahead = cells[miner + move]
    if ahead not in (WALL, BOULDER, BOULDER + FALLING):
        miner += move
    elif ahead == BOULDER and abs(move) == 1 and cells[miner + 2 * move] == EMPTY:  # it is pushed
        miner += move
        cells[miner], cells[miner + move] = EMPTY, BOULDER
    if cells[miner] in (DIRT, DIAMOND):
        cells[miner] = EMPTY
    alive = True
    for found in UNSTEADY.finditer(cells):  # as they change: a thing that rolls to the right falls at once
        place = found.start()
        thing, below = cells[place], place - WIDTH
        cells[place] = rest = REST[thing]
        if below == miner and thing != rest:
            alive = False
        elif below != miner and cells[below] == EMPTY:
            cells[place], cells[below] = EMPTY, rest + FALLING
        elif cells[below] >= BOULDER:  # it rolls off, to the left if it can
            for side in (-1, 1):
                free = cells[place + side] == cells[below + side] == EMPTY
                if free and miner not in (place + side, below + side):
                    cells[place], cells[place + side] = EMPTY, rest
                    break
    return Mine(bytes(cells), miner, alive)


def safe_actions(mine: Mine) -> list[int]:
    """Return the actions that the miner outlives, by two steps if it can; all of them if it cannot at all."""
    after = {move: foresee(mine, move) for move in set(MOVES)}
    alive = {move for move, led in after.items() if led.alive}
    safe = {move for move in alive if any(foresee(after[move], following).alive for following in set(MOVES))}
    return [action for action in range(NUM_ACTIONS) if MOVES[action] in (safe or alive or MOVES)]


def search(mine: Mine, way_out: int) -> tuple[bytes, bool]:
    """Return actions that take all diamonds and lead to the exit, and True.

    Where no such way is found, they take as many diamonds as they can, and it is False.
    """
    best, fewest = b"", len(mine.diamonds())
    waiting, known = [(0.0, best, mine)], {mine}
    while waiting and len(known) < MAX_KNOWN:
        _, way, here = heappop(waiting)
        left = len(here.diamonds())
        if not left and here.miner == way_out:
            return way or bytes((NOOP,)), True  # it was pushed there: the game takes note a step later
        after = [(action, foresee(here, MOVES[action])) for action in PLAIN]
        if left < fewest and any(led.alive for _, led in after):
            best, fewest = way, left
        for action, led in after:
            if led.alive and led not in known:
                known.add(led)
                far = distance(led.miner, led.diamonds(), way_out)
                heappush(waiting, (len(way) + 1 + GREED * far, way + bytes((action,)), led))
    return best, False


@lru_cache(maxsize=100_000)
def distance(place: int, things: tuple[int, ...], way_out: int) -> int:
    """Count the steps from a place to all things, in the best order, and to the exit, through everything."""
    if not things:
        return sum(abs(a - b) for a, b in zip(divmod(place, WIDTH), divmod(way_out, WIDTH), strict=True))
    return min(
        distance(place, (), thing) + distance(thing, tuple(each for each in things if each != thing), way_out)
        for thing in things
    )
