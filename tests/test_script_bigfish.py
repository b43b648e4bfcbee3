"""The scripted expert of bigfish: the fish it sees and follows, the moves it values."""

from __future__ import annotations

import numpy as np
import pytest

from dtsn.envs.procgen import ACTION_NAMES
from dtsn.experts.scripts.bigfish import (
    ORANGE,
    OWN,
    PINK,
    RED,
    SIDE,
    Box,
    Fish,
    Hunt,
    Swimmer,
    find_boxes,
    find_fish,
    find_own,
    values_of_moves,
)
from dtsn.experts.scripts.pixels import pack_colours

COLOURS = {OWN: (44, 198, 109), PINK: (229, 153, 238), RED: (231, 76, 60), ORANGE: (255, 153, 0)}
WATER = (20, 60, 200)
OURS = Box(OWN, 29, 29, 36, 36)


def drawn(*boxes: Box) -> np.ndarray:
    """A frame ``[3, 64, 64]`` with such fish."""
    frame = np.zeros((3, SIDE, SIDE), np.uint8)
    frame[:] = np.array(WATER).reshape(3, 1, 1)
    for kind, left, top, right, bottom in boxes:
        frame[:, top:bottom, max(left, 0) : right] = np.array(COLOURS[kind]).reshape(3, 1, 1)
    return frame


def found(*boxes: Box) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of such fish, and their kinds."""
    return find_fish(pack_colours(drawn(*boxes)).ravel(), pack_colours(drawn()).ravel())


def test_fish_are_told_from_the_water_and_from_each_other() -> None:
    red, orange, pink = Box(RED, 3, 10, 12, 18), Box(ORANGE, 8, 18, 17, 23), Box(PINK, 50, 8, 54, 10)
    seen = found(OURS, red, orange, pink)
    assert find_own(*seen) == OURS
    assert set(find_boxes(*seen)) == {red, orange, pink}
    assert find_boxes(*found(OURS)) == []


def test_a_fish_is_followed_until_its_width_and_speed_are_known() -> None:
    hunt = Hunt(drawn(OURS))
    for step in range(30):
        hunt.action(drawn(OURS, Box(PINK, step - 10, 5, step, 10)), uniform=0.5)
    (fish,) = hunt.fish
    assert fish.width == pytest.approx(10)
    assert fish.speed == pytest.approx(1, abs=0.05)
    assert fish.box == pytest.approx(Box(PINK, 19, 5, 29, 10), abs=0.3)


def test_a_fish_is_remembered_behind_another_and_forgotten_when_it_is_lost() -> None:
    fish = Fish.appear(Box(RED, 0, 20, 4, 26))
    fish.swim()
    fish.see(Box(RED, 0, 20, 5, 26), alone=True)
    assert fish.width > 5  # there is more of it than has come into view
    hunt = Hunt(drawn(OURS))
    for step in range(20):
        hunt.action(drawn(OURS, Box(RED, step - 6, 5, step, 10)), uniform=0.5)
    for missing in range(1, 5):
        hunt.action(drawn(OURS), uniform=0.5)
        assert len(hunt.fish) == (missing < 4)


def best_move(*fish: Swimmer) -> str:
    """The move right now, in the middle of the water and at rest."""
    values = values_of_moves(OURS, 7.0, np.zeros(2), list(fish))
    across, down = np.unravel_index(values.argmax(), values.shape)
    return ACTION_NAMES[3 * across + 2 - down]


def test_it_goes_for_meals_and_out_of_the_way_of_larger_fish() -> None:
    left, right = Box(PINK, 10, 30, 16, 34), Box(RED, 44, 30, 54, 35)
    assert best_move() == "NOOP"
    assert best_move(Swimmer(left, 0.5, meal=True)).startswith("LEFT")
    assert best_move(Swimmer(right, -1.0, meal=False)) in {"UP", "DOWN", "LEFT+UP", "LEFT+DOWN"}
    assert best_move(Swimmer(right, 1.0, meal=False)) == "NOOP"  # it swims away


def test_it_does_not_eat_where_it_would_be_eaten() -> None:
    meal, larger = Box(PINK, 10, 30, 14, 32), Box(RED, 4, 24, 16, 36)
    assert not best_move(Swimmer(meal, 0.5, True), Swimmer(larger, 0.5, False)).startswith("LEFT")
    values = values_of_moves(OURS, 7.0, np.zeros(2), [Swimmer(Box(RED, 24, 24, 44, 44), 0.0, False)])
    assert values.max() < -10
