"""A scripted expert for Procgen's climber: jumps from ledge to ledge that are tried in a simulation first.

A frame shows 16 x 16 cells. It is read when the climber stands, since a cell then fills 4 x 4 pixels. Where
the climber is follows from its actions.

A row has one ledge at most, which begins beside the column where one has to jump from the ledge below it.
Enemies drift to and fro between ledges and kill, but never touch one who stands or walks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, floor, hypot
from typing import NamedTuple

import numpy as np

from dtsn.arrays import Bytes, Ints
from dtsn.envs.procgen import ACTION_NAMES, NUM_ACTIONS
from dtsn.experts.scripts.pixels import pack_colours

WIDTH, HEIGHT = 16, 64  # cells of the shaft, with its walls
SHOWN, BELOW, SIZE = 16, 2, 4  # rows in a frame, those of them below the climber, and pixels of a cell's side

# Colours, packed as in `read_cells`.
STAR = np.array([[0xEAD94C], [0xD7C745]])  # the middle of its cell, from the top down
EYE = np.array([0xDD4E54, 0x9C4345])  # of an enemy, in the third line of its cell

# The game's physics, in cells and steps.
SPEED, JUMP, GRAVITY, FASTEST_FALL = 0.5, 1.5, 0.2, 2.0
GROUND_CONTROL, AIR_CONTROL = 0.5, 0.075  # the share of the speed that is new in every step
RADIUS, CORNER = 0.5, 0.49  # of the climber, and how far from its centre it must not meet a wall
ENEMY_SPEED = 0.15
ROOM_X, ROOM_Y = 1.4, 0.9  # how far it must be from an enemy's eye: eyes are up to 0.4 off the centre

LEDGES_APART = (3, 4, 5)  # rows from a ledge to the next
LATEST = 8  # steps after the take-off by which the climber heads for the ledge
LONGEST = 60  # steps in the air, from the top of the shaft to its floor
NEAR = 0.3  # how far from its place a jump may begin: walks end within a quarter of a cell
RANDOM_MOVES = 0.1  # share of moves on the ground that are drawn, so that data show more than one way
DESCRIPTION = {"script": "simulated jumps on pixels", "random_moves": RANDOM_MOVES}

# What an action does: to which side it heads, and whether it jumps.
MOVES = [(("RIGHT" in name) - ("LEFT" in name), "UP" in name) for name in ACTION_NAMES]
NOOP, UP = ACTION_NAMES.index("NOOP"), ACTION_NAMES.index("UP")
HEADING = {-1: ACTION_NAMES.index("LEFT"), 0: NOOP, 1: ACTION_NAMES.index("RIGHT")}

Cell = tuple[int, int]  # row, from the bottom up, and column
Place = tuple[float, float]  # x and y, in cells from the bottom left
Way = tuple[float, int]  # where one leaves a ledge, and to which side


class Climber(NamedTuple):
    """The place of its centre, in the first frame unless told, and its velocity."""

    x: float = 1.5
    y: float = 1.5
    vx: float = 0.0
    vy: float = 0.0


class Flight(NamedTuple):
    """Actions until the climber stands again, and where it is after each of them."""

    actions: list[int]
    path: list[Climber]


class Shaft:
    """Which cells are solid: the walls, and the ledges that were seen."""

    def __init__(self) -> None:
        solid = np.zeros((HEIGHT, WIDTH), np.uint8)
        solid[0] = solid[-1] = 1
        solid[:, 0] = solid[:, -1] = 1
        self.solid = bytearray(solid.tobytes())  # far quicker to ask than an array

    def add(self, cell: Cell) -> None:
        """Take note of a cell of a ledge."""
        row, column = cell
        self.solid[row * WIDTH + column] = 1

    def ledge(self, row: int) -> list[int]:
        """Return the columns of a row's ledge, or of the floor; none if there is no ledge."""
        start = row * WIDTH
        return [column for column in range(1, WIDTH - 1) if self.solid[start + column]]

    def blocks(self, x: float, y: float) -> bool:
        """Tell whether a climber cannot be at a place."""
        low, high = int(y - CORNER) * WIDTH, int(y + CORNER) * WIDTH
        left, right, solid = int(x - CORNER), int(x + CORNER), self.solid
        return bool(solid[low + left] or solid[low + right] or solid[high + left] or solid[high + right])

    def supports(self, climber: Climber) -> bool:
        """Tell whether a climber stands."""
        below = int(climber.y - RADIUS - 0.01) * WIDTH
        left, right = int(climber.x - CORNER), int(climber.x + CORNER)
        return bool(self.solid[below + left] or self.solid[below + right])


@dataclass
class Climb:
    """Upwards ledge by ledge, to every star on the way, with a tenth of random moves on the ground.

    It knows what was seen of the shaft, and where the climber is by its actions.
    """

    shaft: Shaft = field(default_factory=Shaft)
    stars: set[Cell] = field(default_factory=set)
    tile: Ints | None = None  # [4, 4] what ledges look like
    climber: Climber = field(default_factory=Climber)
    plan: list[int] = field(default_factory=list)  # actions until the landing

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the next action of a jump, or decide anew on the ground."""
        if self.shaft.supports(self.climber):
            enemies = self._look(frame)
            self.plan = self._decide(enemies, uniform)
        action = self.plan.pop(0)
        self.climber = advance(self.shaft, self.climber, action)
        return action

    def _look(self, frame: Bytes) -> list[Place]:
        """Take note of the ledges and stars in a frame, and return the places of its enemies."""
        cells = read_cells(frame)
        if self.tile is None:
            self.tile = cells[BELOW - 1, 1]  # the climber starts on it
        lowest = int(self.climber.y) - BELOW
        for row, column in find_ledges(cells, self.tile):
            self.shaft.add((lowest + row, column))
        self.stars = {star for star in self.stars if star[0] < lowest}
        self.stars.update((lowest + row, column) for row, column in find_stars(cells))
        return [(x, lowest + y) for x, y in find_enemies(cells)]

    def _decide(self, enemies: list[Place], uniform: float) -> list[int]:
        """Return the actions of the best safe flight."""
        if uniform < RANDOM_MOVES:
            drawn = self._fly([int(uniform / RANDOM_MOVES * NUM_ACTIONS)])
            if is_safe(drawn, enemies):
                return drawn.actions
        return next((flight.actions for flight in self._flights() if is_safe(flight, enemies)), [NOOP])

    def _flights(self) -> Iterator[Flight]:
        """Try what leads to a star or else upwards, the best first."""
        here = int(self.climber.y)
        row, column = min(self.stars, default=(HEIGHT, 0))
        if row == here:
            yield self._walk(column + 0.5)
        elif row < here:  # a star was missed
            yield self._walk(nearest(self.climber.x, ways_down(self.shaft, here))[0])
        elif starts := ways_up(self.shaft, here):
            x, side = nearest(self.climber.x, starts)
            if abs(x - self.climber.x) < NEAR:
                yield from self._jumps(side)
            yield self._walk(x)

    def _jumps(self, side: int) -> Iterator[Flight]:
        """Try to jump on the next ledge, which is above to a side."""
        for wait in range(LATEST):
            flight = self._fly([UP] + [NOOP] * wait + [HEADING[side]] * LONGEST)
            if flight.path[-1].y - self.climber.y in LEDGES_APART:  # not on the one after it
                yield flight

    def _walk(self, x: float) -> Flight:
        """Head to the side after which the climber comes to rest nearest to ``x``."""
        rest = self.climber.x + self.climber.vx  # speed halves with every step
        side = min((0, -1, 1), key=lambda side: abs(rest + SPEED * side - x))
        return self._fly([HEADING[side]])

    def _fly(self, actions: list[int]) -> Flight:
        """Follow actions, and nothing thereafter, until the climber stands."""
        path: list[Climber] = []
        actions = actions + [NOOP] * LONGEST
        climber = self.climber
        for action in actions:
            climber = advance(self.shaft, climber, action)
            path.append(climber)
            if self.shaft.supports(climber):
                break
        return Flight(actions[: len(path)], path)


def read_cells(frame: Bytes) -> Ints:
    """Cut a frame ``[3, 64, 64]`` into cells ``[16, 16, 4, 4]`` of packed colours, from the bottom row up."""
    cells: Ints = pack_colours(frame).reshape(SHOWN, SIZE, WIDTH, SIZE).transpose(0, 2, 1, 3)[::-1]
    return cells


def find_ledges(cells: Ints, tile: Ints) -> list[Cell]:
    """Return the cells ``[16, 16, 4, 4]`` that look like a tile ``[4, 4]``."""
    return [(row, column) for row, column in np.argwhere((cells == tile).all((2, 3))).tolist()]


def find_stars(cells: Ints) -> list[Cell]:
    """Return the cells ``[16, 16, 4, 4]`` with a star."""
    return [(row, column) for row, column in np.argwhere((cells[..., 1:3, 1:3] == STAR).all((2, 3))).tolist()]


def find_enemies(cells: Ints) -> list[Place]:
    """Return the places of enemies' eyes in cells ``[16, 16, 4, 4]``, in the rows above the climber."""
    lines = cells[BELOW + 1 :, :, 2].reshape(-1, WIDTH * SIZE)  # [13, 64]
    eyes = np.argwhere((lines[..., None] == EYE).any(-1)).tolist()
    return [((column + 0.5) / SIZE, BELOW + 1 + row + 0.5) for row, column in eyes]


def is_safe(flight: Flight, enemies: list[Place]) -> bool:
    """Tell whether a flight keeps clear of enemies wherever they turn."""
    return not any(
        abs(climber.y - y) < ROOM_Y and abs(climber.x - x) < ROOM_X + ENEMY_SPEED * time
        for x, y in enemies
        for time, climber in enumerate(flight.path, 1)
    )


def ways_up(shaft: Shaft, row: int) -> list[Way]:
    """Return from where, and to which side, one in a row can jump to the next ledge."""
    here = shaft.ledge(row - 1)
    there = next((ledge for up in LEDGES_APART if (ledge := shaft.ledge(row - 1 + up))), None)
    if not there:
        return []
    left, right = there[0] - 1, there[-1] + 1
    # A quarter of a cell away from the ledge, lest the head hits it.
    return [(left + 0.25, 1)] * (left in here) + [(right + 0.75, -1)] * (right in here)


def ways_down(shaft: Shaft, row: int) -> list[Way]:
    """Return where, and to which side, one in a row falls off the ledge."""
    here = shaft.ledge(row - 1)
    left, right = here[0] - 1, here[-1] + 1
    return [(left + 0.25, -1)] * (left > 0) + [(right + 0.75, 1)] * (right < WIDTH - 1)


def nearest(x: float, ways: list[Way]) -> Way:
    """Return the way that begins nearest to ``x``."""
    return min(ways, key=lambda way: abs(way[0] - x))


def advance(shaft: Shaft, climber: Climber, action: int) -> Climber:
    """Return where a climber is after an action, by the game's rules."""
    x, y, vx, vy = climber
    side, up = MOVES[action]
    standing = shaft.supports(climber)
    up = up and standing
    vx += (GROUND_CONTROL if standing else AIR_CONTROL) * (SPEED * side - vx)
    if up:
        vy = JUMP
    elif not standing and vy > -FASTEST_FALL:
        vy -= GRAVITY
    parts = max(4, int(4 * hypot(vx, vy)))  # the game moves in parts, so as to go through nothing
    x_first = not up and (side != 0 or abs(vx) > abs(vy))
    free_x = free_y = 0
    for _ in range(parts):
        blocked_x = blocked_y = False
        for along_x in (x_first, not x_first):
            if along_x:
                x += vx / parts
                if blocked_x := shaft.blocks(x, y):
                    x = touching(x, vx)
            else:
                y += vy / parts
                if blocked_y := shaft.blocks(x, y):
                    y = touching(y, vy)
        free_x += not blocked_x
        free_y += not blocked_y
        if blocked_x and blocked_y:
            break
    return Climber(x, y, vx * free_x / parts, vy * free_y / parts)


def touching(place: float, velocity: float) -> float:
    """Return the place, along one axis, of a climber that has run into a cell."""
    return floor(place + RADIUS) - RADIUS if velocity > 0 else ceil(place - RADIUS) + RADIUS
