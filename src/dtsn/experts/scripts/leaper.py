"""A scripted expert for Procgen's leaper: a search in space and time on what the pixels show.

It first stands still, and from how the pixels of each lane have moved it learns how fast the lane's cars or
logs drive. Then it looks for the quickest way to the next safe ground, assuming that they drive on like that,
and looks again after every hop.

The frame shows nine lanes. A hop takes ``HOP`` frames, of which the first two move the frog by a lane.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from dtsn.arrays import Bools, Bytes
from dtsn.envs.procgen import ACTION_NAMES

LANES, SIDE = 9, 64
SIZE = SIDE / LANES  # pixels of a lane
NEAR = 4  # how far a channel may be off
HOP = 6  # frames from one hop to the next
WAIT = 2  # frames that the plan waits for at a time
WATCH = 12  # frames to measure speeds in at the start; later, over twice as many
FASTEST = 2.0  # pixels a frame
ROOM = {"road": 4, "water": 1}  # pixels to either side of the frog that must be free of cars, or log
HORIZON = 60  # frames to plan for
GRAIN = 3  # pixels: ways that meet as closely as this, at the same time, are one
RANDOM_HOPS = 0.1  # share of hops on safe ground that are drawn, so that data show more than one way
DESCRIPTION = {"script": "search in space and time on pixels", "random_hops": RANDOM_HOPS}

STAY, UP, DOWN, LEFT, RIGHT = (ACTION_NAMES.index(name) for name in ("NOOP", "UP", "DOWN", "LEFT", "RIGHT"))
MOVES = {UP: (1, 0.0), DOWN: (-1, 0.0), LEFT: (0, -SIZE), RIGHT: (0, SIZE)}  # (lanes, pixels)

LaneKind = Literal["ground", "road", "water", "finish"]
WATER, ROAD, FINISH = (156, 213, 226), (87, 87, 87), (223, 223, 231)
COLOURS: dict[LaneKind, tuple[int, int, int]] = {"water": WATER, "road": ROAD, "finish": FINISH}


class Crossing:
    """The quickest way across that hits no car and misses no log."""

    def __init__(self, frame: Bytes) -> None:
        self.kinds = kinds_of_lanes(frame)
        self.seen: deque[Bools] = deque(maxlen=2 * WATCH + 1)  # things [9, 64]
        self.speeds = [0.0] * LANES  # in pixels a frame
        self.lane = 0
        self.held = STAY  # the action while the frog is in the air, where it changes nothing
        self.waiting = WATCH  # frames until the next decision

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the next action; on safe ground, a tenth of the hops are drawn."""
        things = things_on_lanes(frame, self.kinds)
        self.seen.append(things)
        if self.waiting:
            self.waiting -= 1
            return self.held
        self.speeds = measure_speeds(self.seen[0], things, len(self.seen) - 1, self.speeds)
        self.lane, x = find_frog(frame, self.lane)
        things = things.copy()
        if self.kinds[self.lane] == "road":  # the frog is no car
            things[self.lane, max(0, round(x) - 4) : round(x) + 5] = False
        action = quickest(Traffic(self.kinds, things, self.speeds), self.lane, x)
        if self.kinds[self.lane] == "ground" and uniform < RANDOM_HOPS:
            action = LEFT if uniform < RANDOM_HOPS / 2 else RIGHT
        self.held, self.waiting = action, (WAIT if action == STAY else HOP) - 1
        return action


def kinds_of_lanes(frame: Bytes) -> list[LaneKind]:
    """Tell the kind of each lane in a frame ``[3, 64, 64]``, from the lowest to the highest."""
    kinds: list[LaneKind] = []
    for rows in _lanes(frame):
        kind: LaneKind = "ground"
        for name, colour in COLOURS.items():
            if _is(rows, colour).mean() > 0.2:
                kind = name
        kinds.append(kind)
    return kinds


def things_on_lanes(frame: Bytes, kinds: list[LaneKind]) -> Bools:
    """Tell where in a frame ``[3, 64, 64]`` there are cars or logs, or the frog, ``[9, 64]``."""
    things = np.zeros((LANES, SIDE), bool)
    for lane, (rows, kind) in enumerate(zip(_lanes(frame), kinds, strict=True)):
        if kind == "road":
            things[lane] = (~_is(rows, ROAD)).any(0)
        elif kind == "water":
            things[lane] = (~_is(rows, WATER)).all(0)
    return things


def find_frog(frame: Bytes, lane: int) -> tuple[int, float]:
    """Find the frog's lane and column in a frame ``[3, 64, 64]``, near the lane where it was."""
    red, green, blue = frame.astype(np.int64)
    rows, columns = np.nonzero((green > red + 20) & (green > blue + 90))
    near = np.abs((SIDE - rows) / SIZE - 0.5 - lane) < 2
    if not near.any():
        return lane, SIDE / 2
    found = int(np.clip((SIDE - rows[near].mean() - 0.5) / SIZE, 0, LANES - 1))
    return found, float(columns[near].mean())


def measure_speeds(before: Bools, now: Bools, frames: int, known: list[float]) -> list[float]:
    """Measure by how many pixels a frame the things ``[9, 64]`` of each lane have moved, by what overlaps.

    A lane without things keeps the speed that is ``known``.
    """
    reach = int(FASTEST * frames)
    found = list(known)
    for lane in np.flatnonzero(before.any(1) & now.any(1)):
        agreement = {}
        for shift in range(-reach, reach + 1):
            old = before[lane, max(0, -shift) : SIDE - max(0, shift)]
            if len(old) >= SIDE // 4:
                new = now[lane, max(0, shift) : SIDE + min(0, shift)]
                agreement[shift] = np.count_nonzero(old == new) / len(old) + 0.001 * len(old)
        found[lane] = max(agreement, key=agreement.__getitem__) / frames
    return found


class Traffic:
    """Where cars and logs are, and how they go on."""

    def __init__(self, kinds: list[LaneKind], things: Bools, speeds: list[float]) -> None:
        """Take each lane's kind, the things ``[9, 64]`` on it and its speed in pixels a frame."""
        self.kinds, self.speeds = kinds, speeds
        self.fit: list[list[bool]] = []  # [9][64] whether a frog can be there now
        for kind, row in zip(kinds, things, strict=True):
            room = ROOM.get(kind, 0)
            # What comes from beyond the frame is unknown, so neither free nor log.
            padded = np.pad(row if kind == "water" else ~row, room)
            windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * room + 1)  # [64, 2·room + 1]
            self.fit.append(np.asarray(windows.all(1)).tolist())

    def is_safe(self, lane: int, x: float, time: float) -> bool:
        """Tell whether the frog can be at ``x`` on a lane after ``time`` frames."""
        origin = round(x - self.speeds[lane] * time) if self.kinds[lane] in ROOM else round(x)
        return 3 <= x <= SIDE - 4 and 0 <= origin < SIDE and self.fit[lane][origin]

    def drift(self, lane: int) -> float:
        """Return by how many pixels a frame the frog is carried on a lane."""
        return self.speeds[lane] if self.kinds[lane] == "water" else 0.0


def quickest(traffic: Traffic, lane: int, x: float) -> int:
    """Return the first action of the quickest way to safe ground farther up, or of the longest life."""
    queue: list[tuple[int, int, float, int]] = [(0, lane, x, STAY)]  # time, lane, column, first action
    known: set[tuple[int, int, int]] = set()
    longest, best = -1, STAY
    while queue:
        time, at, column, first = heappop(queue)
        if at > lane and traffic.kinds[at] in ("ground", "finish"):
            return first
        if time > longest:
            longest, best = time, first
        for action in (UP, STAY, LEFT, RIGHT, DOWN) if time < HORIZON else ():
            following = _after(traffic, at, column, time, action)
            if following is not None:
                later, there, where = following
                place = (later // WAIT, there, round(where / GRAIN))
                if place not in known:
                    known.add(place)
                    heappush(queue, (later, there, where, first if time else action))
    return best


def _after(traffic: Traffic, lane: int, x: float, time: int, action: int) -> tuple[int, int, float] | None:
    """Return time, lane and column after an action; None if the frog does not survive it."""
    if action == STAY:
        for now in range(time + 1, time + WAIT + 1):
            x += traffic.drift(lane)
            if not traffic.is_safe(lane, x, now):
                return None
        return time + WAIT, lane, x
    lanes, pixels = MOVES[action]
    target, landed = lane + lanes, x + traffic.drift(lane) + pixels
    if not 0 <= target < LANES:
        return None
    # In the air nothing but a car can hit it, on the lane that it leaves as on the one where it lands.
    for passed, column in ((lane, landed - pixels), (target, landed)):
        if traffic.kinds[passed] == "road" and not traffic.is_safe(passed, column, time + 1):
            return None
    for now in range(time + 2, time + HOP + 1):
        if not traffic.is_safe(target, landed, now):
            return None
        landed += traffic.drift(target)
    return time + HOP, target, landed


def _lanes(frame: Bytes) -> list[Bytes]:
    """Cut the middle rows ``[3, 3, 64]`` of each lane out of a frame ``[3, 64, 64]``, the lowest first."""
    centres = [int(SIDE - SIZE * (lane + 0.5)) for lane in range(LANES)]
    return [frame[:, centre - 1 : centre + 2] for centre in centres]


def _is(rows: Bytes, colour: tuple[int, int, int]) -> Bools:
    """Tell which pixels of rows ``[3, R, 64]`` are of a colour, ``[R, 64]``."""
    near: Bools = np.abs(rows.astype(np.int64) - np.array(colour)[:, None, None]).max(0) <= NEAR
    return near
