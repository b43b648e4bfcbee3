"""A scripted expert for Procgen's plunder: it measures on the pixels how ships sail, and aims ahead of them.

The first frame shows the water without other ships, and the kind of ship to hit. Ships sail on five lanes, on
each at one speed, which tells where a cannon ball will meet them. It goes where the next good shot is
soonest: one that hits such a ship, and no other one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dtsn.arrays import Bools, Bytes, Float64s, Ints
from dtsn.envs.procgen import ACTION_NAMES, FRAME_SHAPE, NUM_ACTIONS
from dtsn.experts.scripts.pixels import pack_colours

SIDE = FRAME_SHAPE[1]
UNIT = SIDE / 20  # pixels of the game's unit of length
SAILS = np.array(  # their colours tell the kinds of ships
    [
        (0x6B93B8, 0x6F99BF, 0x445F77),
        (0x5F7374, 0x677C7E, 0x465556),
        (0xCF5E53, 0xDB6358, 0x93413A),
        (0xE0B423, 0xE7BA23, 0xA18218),
        (0x70B44C, 0x75BD4F, 0x4F8036),
        (0xF3E5C8, 0xFFF1D2, 0xB1A691),
    ]
)
HULLS = np.array([0xB47B41, 0x8E6132, 0x6D4B27])
LEGEND = np.s_[52:63, 2:11]  # rows and columns that show the kind to hit
QUAY_TOP, QUAY_LEFT = 53, 14  # the own ship sails below and to the right

ROWS = np.array([20, 17, 14, 11, 8])  # of each lane's ships the upper one of the two middle rows
FLIGHT = np.array([11, 12, 13, 14, 15])  # steps of a cannon ball to each lane
LENGTH = 3 * UNIT  # of a ship
SHORTEST = 3  # pixels: what shows fewer is a cannon ball
REACH = LENGTH / 2 + 0.25 * UNIT  # from the middle of a ship to a ball that just hits it
CARE = 1.2  # pixels by which a shot must hit, or miss what it must not hit
USUAL_SPEED = 0.2 * UNIT  # pixels a step
FOUND = 2.5  # pixels that a ship may be off where it is expected
MIN_SPAN = 5  # steps to measure a speed over

KEPT, GAINED = 0.45, 0.3825 * UNIT  # share of the own speed that is left after a step, and what a move adds
ENDS = 5.5 * UNIT, 18.5 * UNIT  # between which the own ship sails
MIDDLE, CLOSE = sum(ENDS) / 2, 3.0  # where it waits, and how close to that
RELOAD = 3  # steps from a shot to the next one
STEPS = np.arange(41)  # that a shot may be put off for
NEVER = 99
RANDOM_MOVES = 0.05  # share of moves that are drawn, so that data also show shots that miss or do harm
DESCRIPTION = {"script": "foresight on pixels", "random_moves": RANDOM_MOVES}

LEFT, STAY, RIGHT, FIRE = (ACTION_NAMES.index(name) for name in ("LEFT", "NOOP", "RIGHT", "D"))
MOVES = [("RIGHT" in name) - ("LEFT" in name) for name in ACTION_NAMES]
PLAIN = (STAY, LEFT, RIGHT)
DIRECTIONS = np.array([[MOVES[action]] for action in PLAIN])  # [3, 1]
SLOWING = KEPT**STEPS  # [T] what is left of a speed of 1
DRIFT = np.cumsum(SLOWING) - 1  # [T] how far it leads
SPEED = GAINED * (1 - SLOWING) / (1 - KEPT)  # [T] what moving in one direction leads to
WAY = np.cumsum(SPEED)  # [T] how far that leads


class Ship(NamedTuple):
    """Another ship."""

    lane: int
    middle: float  # column
    target: bool


class Ball(NamedTuple):
    """A cannon ball in the air."""

    column: float
    fired: int  # step


@dataclass
class Lane:
    """How fast the ships of a lane sail: as measured on the one that was followed longest."""

    speed: float = 0.0  # pixels a step, to the right
    span: int = 0  # steps that it was measured over
    start: float = 0.0  # where the ship that is followed was first
    age: int = 0  # steps that it has been followed for
    place: float | None = None  # where it is; None if there is none

    def follow(self, middles: list[float]) -> None:
        """Find a ship again, or choose one to follow, given the columns of all ships on the lane."""
        if self.place is not None:
            self._find(self.place + self.speed, middles)
        if self.place is None and middles:
            self.place, self.start, self.age = middles[0], middles[0], 0
            if not self.speed:
                self.speed = USUAL_SPEED if self.start < SIDE / 2 else -USUAL_SPEED

    def _find(self, expected: float, middles: list[float]) -> None:
        self.age += 1
        self.place = min(middles, key=lambda middle: abs(middle - expected), default=None)
        if self.place is None or abs(self.place - expected) > FOUND:
            self.place = None
        elif self.age >= max(self.span, MIN_SPAN):
            self.span, self.speed = self.age, (self.place - self.start) / self.age


class Raid:
    """Shots that hit the right ships as soon as can be, with few random moves."""

    def __init__(self, frame: Bytes) -> None:
        self.water = pack_colours(frame)  # [64, 64]
        self.target = kind_of_ship(self.water[LEGEND])
        self.step = -1
        self.lanes = [Lane() for _ in ROWS]
        self.speed = 0.0  # of the own ship
        self.balls: list[Ball] = []

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the action that leads to the next good shot, or a random one."""
        picture = pack_colours(frame)  # [64, 64]
        self.step += 1
        own, ships = find_own(picture), find_ships(picture, self.water, self.target)
        for number, lane in enumerate(self.lanes):
            lane.follow([ship.middle for ship in ships if ship.lane == number])
        self.balls = [ball for ball in self.balls if self.step - ball.fired < FLIGHT[-1] + 2]
        ready = max((ball.fired + RELOAD - self.step for ball in self.balls), default=0)
        if uniform < RANDOM_MOVES:
            action = int(uniform / RANDOM_MOVES * NUM_ACTIONS)
        else:
            action = self._aim(own, self._safe_from_balls(ships), ready)
        self.speed = KEPT * self.speed + GAINED * MOVES[action]
        if action == FIRE and ready <= 0:
            self.balls.append(Ball(own + self.speed, self.step))
        return action

    def _safe_from_balls(self, ships: list[Ship]) -> list[Ship]:
        """Return the ships that no ball in the air will hit."""
        hit: set[Ship] = set()
        for ball in self.balls:
            met = []
            for ship in ships:
                left = ball.fired - self.step + 1 + FLIGHT[ship.lane]  # steps until the ball is there
                there = ship.middle + self.lanes[ship.lane].speed * left
                if left >= -1 and abs(there - ball.column) < REACH:  # it may come a step later than thought
                    met.append(ship)
            hit.update(sorted(met)[:1])  # that on the lowest lane
        return [ship for ship in ships if ship not in hit]

    def _aim(self, own: float, ships: list[Ship], ready: int) -> int:
        """Return the action that leads to a good shot soonest, where none is possible for ``ready`` steps."""
        places = np.clip(own + self.speed * DRIFT + DIRECTIONS * WAY, *ENDS)  # [3, T]
        speeds = self.speed * SLOWING + DIRECTIONS * SPEED
        shots = np.clip(places + KEPT * speeds, *ENDS)  # the ship glides on while it fires
        good = are_good(shots, ships, [lane.speed for lane in self.lanes])
        good[:, : max(ready, 0)] = False
        steps = np.where(good.any(1), good.argmax(1), NEVER)  # [3]
        soonest = int(steps.argmin())
        if steps[soonest] == NEVER:
            return STAY if abs(own - MIDDLE) < CLOSE else RIGHT if own < MIDDLE else LEFT
        return FIRE if steps[soonest] == 0 else PLAIN[soonest]


def are_good(shots: Float64s, ships: list[Ship], speeds: list[float]) -> Bools:
    """Tell which of the shots fired from columns ``[3, T]`` after t steps hit a target, and none else before.

    Lanes have ``speeds [5]``.
    """
    lanes = np.array([ship.lane for ship in ships], int)  # [N]
    targets = np.array([ship.target for ship in ships], bool)
    middles = np.array([ship.middle for ship in ships], float)
    there = middles + np.array(speeds)[lanes] * (STEPS[:, None] + 1 + FLIGHT[lanes])  # [T, N]
    off = np.abs(there - shots[..., None])  # [3, T, N]
    hit = np.where((off < REACH - CARE) & targets, lanes, NEVER).min(-1, initial=NEVER)  # the lowest lane
    spoilt = np.where((off < REACH + CARE) & ~targets, lanes, NEVER).min(-1, initial=NEVER)
    good: Bools = hit < spoilt
    return good


def kind_of_ship(pixels: Ints) -> int | None:
    """Tell the kind of ship that pixels show; None if they show no sail."""
    counts = (pixels.reshape(-1, 1, 1) == SAILS).sum((0, 2))  # [6]
    return int(counts.argmax()) if counts.any() else None


def find_own(picture: Ints) -> float:
    """Return the own ship's middle column in a picture ``[64, 64]``."""
    hull = (picture[QUAY_TOP:, QUAY_LEFT:, None] == HULLS).any((0, 2))
    columns = np.flatnonzero(hull)
    return QUAY_LEFT + float(columns[0] + columns[-1] + 1) / 2


def find_ships(picture: Ints, water: Ints, target: int | None) -> list[Ship]:
    """Find the ships in a picture ``[64, 64]``, by what is not the water ``[64, 64]``."""
    changed = picture != water
    shown = changed[ROWS] & changed[ROWS + 1]  # [5, 64]; the next lane's ships reach into one of the rows
    edges = np.flatnonzero(np.diff(np.pad(shown, ((0, 0), (1, 1))).ravel()))  # with a column on either side
    ships = []
    for start, end in edges.reshape(-1, 2).tolist():
        lane, left = divmod(start, SIDE + 2)
        number = max(1, round((end - start) / LENGTH))  # more than one if they sail close together
        for part in range(number):
            first, last = (left + (end - start) * bound // number for bound in (part, part + 1))
            kind = kind_of_ship(picture[ROWS[lane] : ROWS[lane] + 2, first:last])
            if last - first >= SHORTEST and kind is not None:
                ships.append(Ship(lane, middle_of_ship(first, last), kind == target))
    return ships


def middle_of_ship(left: int, right: int) -> float:
    """Return a ship's middle column, where the frame may show only a part of it."""
    if left == 0:
        return right - LENGTH / 2
    return left + LENGTH / 2 if right == SIDE else (left + right) / 2
