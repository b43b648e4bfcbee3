"""The scripted expert of plunder: the ships it sees, the speeds it measures, its shots."""

from __future__ import annotations

import numpy as np
import pytest

from dtsn.envs.procgen import ACTION_NAMES
from dtsn.experts.scripts.plunder import (
    FIRE,
    FLIGHT,
    HULLS,
    LEGEND,
    ROWS,
    SAILS,
    SIDE,
    Lane,
    Raid,
    Ship,
    are_good,
    find_own,
    find_ships,
    kind_of_ship,
)

WATER, TARGET, FRIEND = 0x1040C0, 2, 4
STILL = [0.0] * len(ROWS)


def drawn(own: int, *ships: tuple[int, int, int]) -> np.ndarray:
    """The colours ``[64, 64]`` of a frame with the own ship and others: lane, left column, kind."""
    picture = np.full((SIDE, SIDE), WATER)
    picture[LEGEND] = SAILS[TARGET, 0]
    picture[54:62, own - 3 : own + 3] = HULLS[0]
    for lane, left, kind in ships:
        picture[ROWS[lane] - 1 : ROWS[lane] + 3, max(left, 0) : left + 10] = SAILS[kind, 0]
    return picture


def framed(picture: np.ndarray) -> np.ndarray:
    """The frame ``[3, 64, 64]`` with such colours."""
    return np.stack([picture >> 16, picture >> 8 & 255, picture & 255]).astype(np.uint8)


def test_ships_are_found_with_their_lanes_and_kinds() -> None:
    picture = drawn(40, (0, 20, TARGET), (3, 50, FRIEND), (4, -4, FRIEND))
    assert kind_of_ship(picture[LEGEND]) == TARGET
    assert find_own(picture) == 40
    lowest, high, highest = find_ships(picture, drawn(40), TARGET)
    assert lowest == Ship(0, 25, target=True)
    assert high == Ship(3, 55, target=False)
    assert highest.middle == pytest.approx(1, abs=0.3)  # part of it is not yet in view
    assert find_ships(drawn(40), drawn(40), TARGET) == []


def test_ships_that_sail_close_together_are_two() -> None:
    ships = find_ships(drawn(40, (2, 20, TARGET), (2, 30, FRIEND)), drawn(40), TARGET)
    assert ships == [Ship(2, 25, target=True), Ship(2, 35, target=False)]


def test_a_lane_has_the_speed_that_its_ships_were_seen_at() -> None:
    lane = Lane()
    lane.follow([2.0])
    assert lane.speed > 0  # it came from the left
    for step in range(1, 20):
        lane.follow([2.0 + round(0.7 * step)])
    assert lane.speed == pytest.approx(0.7, abs=0.05)
    lane.follow([])
    lane.follow([60.0])
    assert lane.speed == pytest.approx(0.7, abs=0.05)


def test_a_good_shot_hits_a_target_and_no_other_ship_before() -> None:
    shots = np.full((3, 41), 30.0)
    assert not are_good(shots, [], STILL).any()
    assert are_good(shots, [Ship(2, 32.0, True)], STILL).all()
    assert not are_good(shots, [Ship(2, 40.0, True)], STILL).any()
    assert not are_good(shots, [Ship(2, 32.0, True), Ship(1, 28.0, False)], STILL).any()
    assert are_good(shots, [Ship(2, 32.0, True), Ship(3, 28.0, False)], STILL).all()


def test_it_aims_ahead_of_a_ship() -> None:
    shots = np.full((3, 41), 50.0)
    good = are_good(shots, [Ship(0, 20.0, True)], [1.0, *STILL[1:]])
    met = 50 - 20 - 1 - FLIGHT[0]  # steps to wait, so that the ball meets the middle of the ship
    assert good[:, met].all()
    assert not good[:, : met - 6].any()
    assert not good[:, met + 7 :].any()


def test_it_fires_once_at_a_ship_and_never_at_its_own_kind() -> None:
    raid = Raid(framed(drawn(40)))
    ship = framed(drawn(40, (1, 35, TARGET)))
    raid.lanes[1].speed = 1e-9
    actions = [raid.action(ship, uniform=0.5) for _ in range(10)]
    assert actions.count(FIRE) == 1
    raid = Raid(framed(drawn(40)))
    assert raid.action(framed(drawn(40, (1, 20, FRIEND))), uniform=0.5) != FIRE


def test_it_goes_to_where_it_can_fire() -> None:
    raid = Raid(framed(drawn(30)))
    for lane in raid.lanes:
        lane.speed = 1e-9
    assert ACTION_NAMES[raid.action(framed(drawn(30, (1, 45, TARGET))), uniform=0.5)] == "RIGHT"
