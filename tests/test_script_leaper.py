"""The scripted expert of leaper: what it reads off frames, the ways that it finds."""

from __future__ import annotations

import numpy as np

from dtsn.experts.scripts.leaper import (
    DOWN,
    FINISH,
    HOP,
    LANES,
    LEFT,
    RIGHT,
    ROAD,
    SIDE,
    SIZE,
    STAY,
    UP,
    WATER,
    LaneKind,
    Traffic,
    find_frog,
    kinds_of_lanes,
    measure_speeds,
    quickest,
    things_on_lanes,
)

KINDS: list[LaneKind] = ["ground", "road", "road", "ground", "water", "water", "finish", "ground", "ground"]


def drawn(things: np.ndarray, lane: int, column: int) -> np.ndarray:
    """A frame ``[3, 64, 64]`` with cars and logs ``[9, 64]``, and the frog."""
    frame = np.full((SIDE, SIDE, 3), (120, 100, 60), np.uint8)
    for number, kind in enumerate(KINDS):
        rows = slice(round(SIDE - SIZE * (number + 1)), round(SIDE - SIZE * number))
        if kind in ("road", "water"):
            frame[rows] = ROAD if kind == "road" else WATER
            frame[rows, things[number]] = (200, 20, 20) if kind == "road" else (160, 109, 61)
        elif kind == "finish":
            frame[rows, ::2] = FINISH
    row = int(SIDE - SIZE * (lane + 0.5))
    frame[row - 2 : row + 3, column - 2 : column + 3] = (140, 200, 40)
    return frame.transpose(2, 0, 1)


def nothing() -> np.ndarray:
    return np.zeros((LANES, SIDE), bool)


def test_a_frame_is_read_as_it_was_drawn() -> None:
    things = nothing()
    things[1, 10:17] = things[4, 20:27] = True
    frame = drawn(things, 0, 50)
    assert kinds_of_lanes(frame) == KINDS
    np.testing.assert_array_equal(things_on_lanes(frame, KINDS), things)
    assert find_frog(frame, 0) == (0, 50.0)
    assert find_frog(drawn(things, 3, 30), 2) == (3, 30.0)


def test_speeds_are_measured_by_what_moved_and_kept_where_nothing_is() -> None:
    before, now = nothing(), nothing()
    before[1, [10, 11, 12, 30, 31]] = now[1, [19, 20, 21, 39, 40]] = True  # 9 pixels to the right
    before[4, 40:46] = now[4, 34:40] = True
    found = measure_speeds(before, now, 12, [7.0] * LANES)
    assert found[1] == 9 / 12
    assert found[4] == -6 / 12
    assert found[2] == 7.0


def lives(things: np.ndarray, speeds: list[float], lane: int, x: float) -> list[int]:
    """The lanes that the frog visits in a world that goes on as assumed; it must get home alive."""
    visited = [lane]
    for time in range(0, 400, 1):
        moved = nothing()
        for number in range(LANES):
            sources = np.round(np.arange(SIDE) - speeds[number] * time).astype(int)
            inside = (sources >= 0) & (sources < SIDE)
            moved[number, inside] = things[number, sources[inside]]
        if time % HOP:
            x += speeds[lane] if KINDS[lane] == "water" and time % HOP > 2 else 0.0
            continue
        assert not (KINDS[lane] == "road" and moved[lane, round(x)])
        assert not (KINDS[lane] == "water" and not moved[lane, round(x)])
        action = quickest(Traffic(KINDS, moved, speeds), lane, x)
        lane += {UP: 1, DOWN: -1}.get(action, 0)
        x += {LEFT: -SIZE, RIGHT: SIZE}.get(action, 0.0)
        visited.append(lane)
        if KINDS[lane] == "finish":
            return visited
    raise AssertionError(f"never arrived: {visited}")


def test_the_way_is_up_where_nothing_is_in_the_way() -> None:
    things = nothing()
    things[4], things[5] = True, True  # logs all over
    assert quickest(Traffic(KINDS, things, [0.0] * LANES), 0, 32.0) == UP
    assert lives(things, [0.0] * LANES, 0, 32.0) == [0, 1, 2, 3, 4, 5, 6]


def test_it_waits_for_a_gap_and_walks_to_a_log() -> None:
    things = nothing()
    things[1, 20:50] = True  # a long car before it, to the right or to the left of which it must go
    assert quickest(Traffic(KINDS, things, [0.0] * LANES), 0, 45.0) == RIGHT
    assert quickest(Traffic(KINDS, things, [0.0] * LANES), 0, 25.0) == LEFT
    driving = [0.0, 1.5] + [0.0] * 7
    assert quickest(Traffic(KINDS, things, driving), 0, 25.0) == STAY
    logs = nothing()
    logs[4, 40:50] = logs[5, 40:50] = True
    assert quickest(Traffic(KINDS, logs, [0.0] * LANES), 3, 30.0) == RIGHT
    assert lives(logs, [0.0] * LANES, 3, 30.0)[-3:] == [4, 5, 6]
