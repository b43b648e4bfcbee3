"""The scripted expert of miner: what it reads off a frame, the falls it foresees, its ways."""

from __future__ import annotations

import numpy as np

from dtsn.envs.procgen import ACTION_NAMES
from dtsn.experts.scripts.miner import (
    CELLS,
    WIDTH,
    Mine,
    foresee,
    read_mine,
    safe_actions,
    search,
)

SIGNS = ".:#ODod"  # empty, dirt, wall, boulder, diamond, falling boulder, falling diamond
LEFT, RIGHT, UP, DOWN, STAY = -1, 1, WIDTH, -WIDTH, 0


def mine(*rows: str) -> tuple[Mine, int]:
    """A mine of dirt with such rows at its bottom left (M: the miner, X: the exit), and the exit's place."""
    above = [":" * CELLS] * (CELLS - len(rows))
    walls = "#" * WIDTH
    lines = [walls, *(f"#{row.ljust(CELLS, ':')}#" for row in [*above, *rows]), walls]
    text = "".join(lines[::-1])
    cells = bytes(SIGNS.index(sign) for sign in text.replace("M", ".").replace("X", "."))
    return Mine(cells, text.index("M")), text.find("X")


def drawn(shown: Mine, way_out: int) -> np.ndarray:
    """A frame ``[3, 64, 64]`` of such a mine."""
    colours = [(20, 90, 40), (170, 108, 52), (0, 0, 0), (151, 169, 170), (47, 178, 233)]
    picture = np.array([colours[kind] for kind in shown.cells], np.uint8)
    picture[way_out] = (51, 51, 51)
    picture[shown.miner] = (128, 212, 186)
    cells = picture.reshape(WIDTH, WIDTH, 3)[-2:0:-1, 1:-1]
    where = ((np.arange(64) + 0.5) / 64 * CELLS).astype(int)
    return cells[np.ix_(where, where)].transpose(2, 0, 1)


def after(before: str, *moves: int) -> tuple[str, bool]:
    """What the bottom rows, parted by slashes, are after some moves; and whether the miner lives."""
    rows = before.split("/")
    state, _ = mine(*rows)
    for move in moves:
        state = foresee(state, move)
    text = "".join(SIGNS[kind] for kind in state.cells)
    text = text[: state.miner] + "M" + text[state.miner + 1 :]
    lines = [text[start : start + WIDTH] for start in range(0, len(text), WIDTH)]
    shown = [line[1 : 1 + len(rows[0])] for line in lines[len(rows) : 0 : -1]]
    return "/".join(shown), state.alive


def test_a_frame_is_read_as_it_was_drawn() -> None:
    shown, way_out = mine("O:D.X", "..M::")
    assert read_mine(drawn(shown, way_out)) == (Mine(above_falls(shown), shown.miner), way_out)


def above_falls(shown: Mine) -> bytes:
    """The cells, with the diamond above the miner as falling: one frame cannot tell."""
    cells = bytearray(shown.cells)
    cells[shown.miner + WIDTH] = SIGNS.index("d")
    return bytes(cells)


def test_things_fall_roll_and_are_pushed() -> None:
    assert after("O::/.:M", STAY) == (".::/o:M", True)  # what has nothing below falls
    assert after(".O:/.OM", STAY) == ("O.:/.OM", True)  # off a round thing, to the left first
    assert after(".O:/.OM", STAY, STAY) == ("..:/oOM", True)
    assert after("O.:/O.:/::M", STAY) == ("..:/Oo:/::M", True)  # to the right, it falls at once
    assert after("MO.:/::::", RIGHT) == (".MO:/::::", True)
    assert after("MOO./::::", RIGHT) == ("MOO./::::", True)  # two are too heavy
    assert after("MD:", RIGHT) == (".M:", True)


def test_only_what_falls_kills() -> None:
    assert after("O:/M:", STAY, STAY) == ("O:/M:", True)
    assert after("o:/M:", STAY)[1] is False
    assert after("O:/M:/::", DOWN, STAY)[1] is False
    assert after("O:/M:/::", DOWN, RIGHT)[1] is True
    falling, _ = mine("o:", "M:")
    assert {ACTION_NAMES[action] for action in safe_actions(falling)} == {"RIGHT", "RIGHT+UP", "RIGHT+DOWN"}


def test_the_way_takes_all_diamonds_before_the_exit() -> None:
    state, way_out = mine("DMXOD")
    way, complete = search(state, way_out)
    assert complete
    places = []
    for action in way:
        state = foresee(state, {"LEFT": LEFT, "RIGHT": RIGHT, "UP": UP, "DOWN": DOWN}[ACTION_NAMES[action]])
        places.append(state.miner)
    assert state.alive
    assert state.diamonds() == ()
    assert places[-1] == way_out
