"""A scripted expert for Procgen's bigfish: it follows all fish on the pixels and hunts the smaller ones.

The first frame shows the water and its own fish alone, so what looks different later is fish. They keep their
row, width and speed, which tells where they will be. Of many ways for its own fish it takes the one with most
meals on which it meets no larger fish.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Bools, Bytes, Float32s, Float64s, Ints
from dtsn.envs.procgen import ACTION_NAMES, FRAME_SHAPE
from dtsn.experts.scripts.pixels import pack_colours

SIDE = FRAME_SHAPE[1]
UNIT = SIDE / 20  # pixels of the game's unit of length
NOTHING, OWN, PINK, RED, ORANGE = range(5)
OWN_COLOURS = np.array([0x2CC66D, 0x25A65B, 0x27AE60, 0x1D8548])
COLOURS = {
    PINK: (0xE599EE, 0xC985D0, 0xD890E0, 0xAF75B6),
    RED: (0xBF3D31, 0xE74C3C, 0xF5503F),
    ORANGE: (0xEC8D00, 0xFF9900, 0xFCB245, 0xCD7B00),
}
NEAR = 24  # how far a channel may be off: edges are blended
ASPECTS = {PINK: 2.0, RED: 1.2, ORANGE: 1.8}  # width by height
UNKNOWN = -1  # no colour

TRUST = 4  # sightings that make a width known; steps that count as much as the usual speed
USUAL_SPEED = 0.9  # pixels a step
SMOOTH = 0.3  # share of what is seen in where a fish is thought to be
HIDDEN = 1.6  # pixels that a known width is off where another fish hides it
MAX_MISSING = 4  # steps that a fish may be hidden for
SMALLER = 0.5  # pixels by which a meal must be narrower than the own fish
GROWTH = 0.05  # share of what is seen in the size that the own fish is thought to have

STEPS = np.arange(1, 33)  # that are foreseen: as many as bits of an integer
TURNS = (3, 8, 16)  # steps after which a way takes its second direction
KEPT, GAINED = 0.45, 0.225 * UNIT  # share of the own speed that is left after a step, and what a move adds
MARGIN, DOUBT = 1.2, 0.03  # pixels to keep from larger fish, and more for each step ahead
BITE = 0.4  # pixels by which to overlap a meal
HASTE = 0.95  # what is left of a meal's worth for each step until then
DEATH, DELAY = 20.0, 0.97  # what it costs, in meals, and what is left of that for each step until then
BORDERS = 0.6, 0.3  # what it costs to be at the sides, where fish come into view, and at the top or bottom
WALLS = 1.0  # what it costs to touch them: a fish that grows there is stuck
RANDOM_MOVES = 0.1  # share of moves that are drawn, from those that cost less than a meal
DESCRIPTION = {"script": "foresight on pixels", "random_moves": RANDOM_MOVES}

# What actions do to the own fish: to the right, and downwards. Letters do nothing.
MOVES = np.array(
    [[("RIGHT" in name) - ("LEFT" in name), ("DOWN" in name) - ("UP" in name)] for name in ACTION_NAMES]
)

Bits = NDArray[np.uint32]  # sets of steps


class Box(NamedTuple):
    """Where something is, in pixels, and what; the right and bottom edges are just outside."""

    kind: int
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Return the area that both have in common."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def wider(self) -> Box:
        """Return a box that reaches a pixel farther on all sides."""
        return Box(self.kind, self.left - 1, self.top - 1, self.right + 1, self.bottom + 1)


class Swimmer(NamedTuple):
    """A fish as the own one sees it."""

    box: Box
    speed: float  # pixels a step, to the right
    meal: bool


@dataclass
class Fish:
    """A fish that is followed."""

    kind: int
    heading: int  # 1 if it came into view at the left side, -1 at the right side, 0 in between
    front: float  # its edge that comes into view first
    top: float
    bottom: float
    width: float = 0.0  # a guess until all of it has been seen
    sightings: int = 0  # of all of it
    age: int = 0
    missing: int = 0  # steps since it was seen
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.front

    @classmethod
    def appear(cls, box: Box) -> Fish:
        """Begin to follow what comes into view."""
        heading = (box.left <= 0) - (box.right >= SIDE)
        fish = cls(box.kind, heading, box.left if heading < 0 else box.right, box.top, box.bottom)
        fish.see(box, alone=False)
        return fish

    @property
    def speed(self) -> float:
        """Pixels a step, to the right."""
        return (self.front - self.start + TRUST * USUAL_SPEED * self.heading) / (self.age + TRUST)

    @property
    def box(self) -> Box:
        """Where it is, in the frame or beyond."""
        left = self.front if self.heading < 0 else self.front - self.width
        return Box(self.kind, left, self.top, left + self.width, self.bottom)

    def swim(self) -> None:
        """Go on for a step, unseen."""
        self.front += self.speed
        self.age += 1
        self.missing += 1

    def see(self, box: Box, alone: bool) -> None:
        """Learn from a box that shows this fish: all of it, if it is alone there."""
        width = box.right - box.left
        front, leaves = (box.left, box.left <= 0) if self.heading < 0 else (box.right, box.right >= SIDE)
        if leaves or (self.sightings >= TRUST and abs(width - self.width) > HIDDEN):
            return
        self.front += SMOOTH * (front - self.front)
        self.top, self.bottom = min(self.top, box.top), max(self.bottom, box.bottom)
        if alone and box.left > 0 and box.right < SIDE:
            self.sightings += 1
            self.width += (width - self.width) / self.sightings
        elif not self.sightings:
            self.width = max(width, ASPECTS[self.kind] * (self.bottom - self.top))


class Hunt:
    """Ways that meet smaller fish and no larger ones, with a tenth of random moves.

    It knows the water, the own fish and the others.
    """

    def __init__(self, frame: Bytes) -> None:
        pixels = pack_colours(frame).ravel()  # [4096]
        own = find_own(*find_fish(pixels, np.full_like(pixels, UNKNOWN)))
        self.water = np.where(is_inside(own.wider()), UNKNOWN, pixels)
        self.size = 2 * UNIT
        self.speed = np.zeros(2)
        self.fish: list[Fish] = []

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the move that is worth most, or a random one that costs less than a meal."""
        pixels = pack_colours(frame).ravel()  # [4096]
        places, kinds = find_fish(pixels, self.water)
        own = find_own(places, kinds)
        self.size += GROWTH * ((own.right - own.left + own.bottom - own.top) / 2 - self.size)
        self._follow(find_boxes(places, kinds), own)
        self._uncover(pixels, own)
        values = values_of_moves(own, self.size, self.speed, self._swimmers())[tuple(MOVES.T + 1)]  # [15]
        action = int(values.argmax())
        if uniform < RANDOM_MOVES:
            harmless = np.flatnonzero(values > values.max() - 1)
            action = int(harmless[int(uniform / RANDOM_MOVES * len(harmless))])
        self.speed = KEPT * self.speed + GAINED * MOVES[action]
        return action

    def _follow(self, boxes: list[Box], own: Box) -> None:
        """Find the fish again, and others for the first time."""
        claims: list[list[Fish]] = [[] for _ in boxes]
        for fish in self.fish:
            fish.swim()
            there = fish.box.wider()
            overlaps = [there.overlap(box) if box.kind == fish.kind else 0.0 for box in boxes]
            if any(overlaps):
                fish.missing = 0
                claims[overlaps.index(max(overlaps))].append(fish)
        self.fish = [fish for fish in self.fish if _is_there(fish, own)]
        for box, claimants in zip(boxes, claims, strict=True):
            if not claimants:
                self.fish.append(Fish.appear(box))
            elif len(claimants) == 1 and not (around := box.wider()).overlap(own):
                alone = not any(around.overlap(other) for other in boxes if other is not box)
                claimants[0].see(box, alone)

    def _uncover(self, pixels: Ints, own: Box) -> None:
        """Learn how the water looks where the own fish was at first."""
        covered = self.water == UNKNOWN
        if covered.any():
            self.water = np.where(covered & ~is_inside(own.wider()), pixels, self.water)

    def _swimmers(self) -> list[Swimmer]:
        """Tell meals from larger fish, and from those of unknown width."""
        return [
            Swimmer(fish.box, fish.speed, fish.sightings >= TRUST and fish.width + SMALLER < self.size)
            for fish in self.fish
        ]


def _is_there(fish: Fish, own: Box) -> bool:
    """Tell whether a fish is neither lost nor gone nor eaten."""
    box = fish.box
    eaten = fish.missing > 0 and box.overlap(own) > 0
    return fish.missing < MAX_MISSING and box.right > 0 and box.left < SIDE and not eaten


def _kinds_by_colour() -> Ints:
    """Return the kind of fish that has about such a colour, by five bits of each channel ``[32, 32, 32]``."""
    channels = np.stack(np.meshgrid(*[np.arange(4, 256, 8)] * 3, indexing="ij"), axis=-1)
    kinds, least = np.full((32, 32, 32), NOTHING), np.full((32, 32, 32), NEAR + 1)
    for kind, colours in COLOURS.items():
        for colour in colours:
            off = np.abs(channels - (colour >> 16, colour >> 8 & 255, colour & 255)).max(-1)
            kinds[off < least] = kind
            least = np.minimum(least, off)
    return kinds


KINDS = _kinds_by_colour()


def find_fish(pixels: Ints, water: Ints) -> tuple[Ints, Ints]:
    """Return which of the pixels ``[4096]`` show fish in the water ``[4096]``, and their kinds."""
    places = np.flatnonzero(pixels != water)
    colours = pixels[places]
    kinds = KINDS[colours >> 19, colours >> 11 & 31, colours >> 3 & 31]
    kinds[(colours[:, None] == OWN_COLOURS).any(1)] = OWN
    return places[kinds != NOTHING], kinds[kinds != NOTHING]


def find_own(places: Ints, kinds: Ints) -> Box:
    """Return where the own fish is, which hides all others."""
    rows, columns = np.divmod(places[kinds == OWN], SIDE)
    return Box(OWN, int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)


def is_inside(box: Box) -> Bools:
    """Tell which pixels ``[4096]`` are in a box."""
    inside = np.zeros((SIDE, SIDE), bool)
    inside[max(int(box.top), 0) : int(box.bottom), max(int(box.left), 0) : int(box.right)] = True
    return inside.ravel()


def find_boxes(places: Ints, kinds: Ints) -> list[Box]:
    """Group the pixels of other fish: those of a kind with no more than a pixel in between."""
    places, kinds = places[kinds != OWN], kinds[kinds != OWN]
    if not len(places):
        return []
    starts = (places[1:] > places[:-1] + 1) | (kinds[1:] != kinds[:-1]) | (places[1:] % SIDE == 0)
    bounds = np.concatenate(([0], np.flatnonzero(starts) + 1, [len(places)]))
    rows, columns = np.divmod(places[bounds[:-1]], SIDE)
    runs = np.stack([kinds[bounds[:-1]], rows, columns, columns + bounds[1:] - bounds[:-1]], axis=1)
    boxes: list[Box] = []
    for kind, row, left, right in runs.tolist():
        near = [
            box
            for box in boxes
            if box.bottom >= row - 1 and box.kind == kind and box.left <= right + 1 and box.right >= left - 1
        ]
        top = row
        for box in near:
            boxes.remove(box)
            left, top, right = min(left, box.left), min(top, box.top), max(right, box.right)
        boxes.append(Box(kind, left, top, right, row + 1))
    return boxes


def _lay_ways() -> Float32s:
    """Return how far each way leads in one dimension, ``[3 turns · 3 directions · 3 directions, T]``."""
    ways = np.zeros((len(TURNS), 3, 3, len(STEPS)), np.float32)
    first, second = np.meshgrid((-1, 0, 1), (-1, 0, 1), indexing="ij")
    for turn, way in zip(TURNS, ways, strict=True):
        speed = np.zeros((3, 3))
        for step in range(len(STEPS)):
            speed = KEPT * speed + GAINED * (first if step < turn else second)
            way[..., step] = way[..., step - 1] + speed
    return ways.reshape(-1, len(STEPS))


WAYS = _lay_ways()
GLIDE = np.cumsum(KEPT**STEPS)  # [T] how far a speed of 1 leads


def values_of_moves(own: Box, size: float, speed: Float64s, fish: list[Swimmer]) -> Float64s:
    """Return what the best way that begins with each move is worth, in meals, ``[3, 3]``."""
    half = size / 2
    centre = np.array([own.left + own.right, own.top + own.bottom]) / 2
    glide = centre[:, None] + speed[:, None] * GLIDE  # [2, T]
    ways = glide.astype(np.float32)[:, None] + WAYS - SIDE / 2  # [2, 27, T]
    walls = WALLS * (np.abs(ways) > SIDE / 2 - half - 1).mean(-1)
    ways = np.clip(ways, half - SIDE / 2, SIDE / 2 - half)
    costs = walls + np.array(BORDERS)[:, None] * np.square(ways[..., ::4] / (SIDE / 2)).mean(-1)  # [2, 27]
    across, down = costs.reshape(2, len(TURNS), 9)
    values = values_of_meetings(ways + SIDE / 2, half, fish) - across[:, :, None] - down[:, None, :]
    best: Float64s = values.reshape(len(TURNS), 3, 3, 3, 3).max((0, 2, 4))
    return best


def values_of_meetings(ways: Float32s, half: float, fish: list[Swimmer]) -> Float32s:
    """Return what is eaten on ways ``[2, 27, T]``, less what it costs to be eaten, ``[turns, 9, 9]``."""
    meals = np.array([each.meal for each in fish], bool)  # [N]
    edges = np.array([each.box[1:] for each in fish], np.float32).reshape(-1, 2, 2)
    speeds = np.array([(each.speed, 0.0) for each in fish], np.float32).reshape(-1, 2)
    centres = edges.mean(1)[..., None] + speeds[..., None] * STEPS.astype(np.float32)  # [N, 2, T]
    room = np.where(meals[:, None], -BITE, MARGIN + DOUBT * STEPS) + half  # [N, T]
    reach = (edges[:, 1] - edges[:, 0])[..., None] / 2 + room[:, None].astype(np.float32)  # [N, 2, T]
    across, down = (
        _bits(np.abs(ways[axis][:, None] - centres[:, axis]) < reach[:, axis]).reshape(len(TURNS), 9, -1)
        for axis in (0, 1)
    )
    met = across[:, :, None] & down[:, None]  # [turns, 9, 9, N]
    death = _first(np.bitwise_or.reduce(met[..., ~meals], -1))
    eaten = _first(met[..., meals] & (death - 1)[..., None])  # before death; without one, all bits are set
    values: Float32s = _discounted(eaten, HASTE).sum(-1) - DEATH * _discounted(death, DELAY)
    return values


def _bits(steps: Bools) -> Bits:
    """Make integers ``[...]`` of 32 steps ``[..., 32]``."""
    return np.packbits(steps, axis=-1, bitorder="little").view("<u4")[..., 0]


def _first(steps: Bits) -> Bits:
    """Return the first of the steps alone: the lowest bit."""
    first: Bits = steps & -steps
    return first


def _discounted(step: Bits, rate: float) -> Float32s:
    """Return 1, less for a later step; 0 for none."""
    worth: Float32s = np.maximum(step, 1).astype(np.float32) ** np.float32(np.log2(rate))  # 2^t gives rate^t
    return np.where(step > 0, worth, np.float32(0))
