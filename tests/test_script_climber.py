"""The scripted expert of climber: what it reads off a frame, its physics, its choices."""

from __future__ import annotations

import numpy as np
import pytest

from dtsn.envs.procgen import ACTION_NAMES
from dtsn.experts.scripts.climber import (
    BELOW,
    EYE,
    SHOWN,
    STAR,
    WIDTH,
    Climb,
    Climber,
    Shaft,
    advance,
    find_enemies,
    find_ledges,
    find_stars,
    read_cells,
)

TILE = np.arange(16).reshape(4, 4) + 0x2080D0
NO_DRAW = 1.0  # a uniform number that draws no random move
FLOOR = "#" * (WIDTH - 2)


def drawn(rows: list[str], row: int = 1) -> np.ndarray:
    """A frame ``[3, 64, 64]`` for one who stands in a row, of rows from the floor up (#: ledge, e: enemy)."""
    packed = np.zeros((SHOWN, WIDTH, 4, 4), np.int64)
    for up in range(SHOWN):
        number = row - BELOW + up
        line = rows[number] if 0 <= number < len(rows) else ""
        for column, sign in enumerate(line, 1):
            cell = packed[up, column]
            if sign == "#":
                cell[:] = TILE
            elif sign == "*":
                cell[1:3, 1:3] = STAR
            elif sign == "e":
                cell[2, 1] = EYE[0]
    picture = packed[::-1].transpose(0, 2, 1, 3).reshape(64, 64)
    return np.stack([picture >> 16, picture >> 8 & 255, picture & 255]).astype(np.uint8)


def climbed(rows: list[str], climb: Climb, steps: int) -> Climber:
    """Where the climber is after some steps in rows that stay as they are."""
    for _ in range(steps):
        climb.action(drawn(rows, int(climb.climber.y)), NO_DRAW)
    return climb.climber


def shaft(rows: list[str]) -> Shaft:
    """A shaft whose ledges are all known."""
    known = Shaft()
    for row, line in enumerate(rows):
        for column, sign in enumerate(line, 1):
            if sign == "#":
                known.add((row, column))
    return known


def moved(rows: list[str], climber: Climber, *names: str) -> Climber:
    """Where a climber is after some actions."""
    for name in names:
        climber = advance(shaft(rows), climber, ACTION_NAMES.index(name))
    return climber


def test_a_frame_is_read_as_it_was_drawn() -> None:
    cells = read_cells(drawn([FLOOR, "", "", "  e", " *", "##"]))
    ledges = find_ledges(cells, TILE)
    assert ledges == [(1, column) for column in range(1, 15)] + [(6, 1), (6, 2)]
    assert find_stars(cells) == [(5, 2)]
    ((x, y),) = find_enemies(cells)
    assert 3 < x < 4
    assert y == 4.5


def test_jumps_rise_by_six_cells_and_land_where_they_began() -> None:
    top = moved([FLOOR], Climber(), "UP", *["NOOP"] * 7)
    assert top.y == pytest.approx(1.5 + 6.4)
    landed = moved([FLOOR], Climber(), "UP", *["NOOP"] * 17)
    assert landed == (1.5, 1.5, 0.0, 0.0)


def test_ledges_stop_the_head_and_walls_the_side() -> None:
    assert moved([FLOOR, "", "", "#"], Climber(), "UP").y == 2.5
    assert moved([FLOOR], Climber(), *["LEFT"] * 3).x == 1.5


def test_a_walk_comes_to_rest_half_a_cell_per_step_farther() -> None:
    assert moved([FLOOR], Climber(), "RIGHT", "RIGHT", *["NOOP"] * 20).x == pytest.approx(2.5)


@pytest.mark.parametrize("up", [3, 4, 5])
@pytest.mark.parametrize("next_ledge", ["     ####", "  ####"])
def test_it_climbs_the_next_ledge(up: int, next_ledge: str) -> None:
    rows = [FLOOR, *[""] * (up - 1), next_ledge]
    assert climbed(rows, Climb(), steps=60).y == up + 1.5


def test_it_takes_the_star_beside_it_before_it_climbs() -> None:
    rows = [FLOOR, "       *", "", "  ###"]
    assert climbed(rows, Climb(), steps=40).x == pytest.approx(8.5, abs=0.3)


def test_it_goes_back_for_a_star_below() -> None:
    rows = [FLOOR, "        *", "", "###"]
    climb = Climb(shaft(rows), stars={(1, 9)}, tile=TILE, climber=Climber(1.5, 4.5))
    assert climbed(rows, climb, steps=40)[:2] == (pytest.approx(9.5, abs=0.3), 1.5)


def test_it_waits_for_an_enemy_to_leave() -> None:
    ledges, climb = [FLOOR, "", "", "", "  ###"], Climb()
    watched = [*ledges[:3], " e", *ledges[4:]]
    assert climbed(watched, climb, steps=40).y == 1.5
    assert climbed(ledges, climb, steps=40).y == 5.5
