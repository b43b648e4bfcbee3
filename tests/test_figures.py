"""Figures: PNG files that are there, and the geometry behind them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from dtsn import drawing
from dtsn.drawing import Scene
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels
from dtsn.reproduce.navigation import figures
from dtsn.reproduce.navigation.cells import Cell
from dtsn.reproduce.navigation.variants import VARIANTS


def check_png(path: Path, at_least: int = 8_000) -> None:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert 300 < height <= width < 3000
    assert at_least < len(content) < 150_000


@pytest.fixture
def scene() -> Scene:
    levels = make_levels(np.array([2_000_003]), NavigationOptions(exits=1))
    return {"walls": levels.walls[0], "goal": levels.goal[0], "start": levels.robot[0]}


@pytest.mark.parametrize("lost", [None, "search"])
def test_success_bars(tmp_path: Path, lost: str | None) -> None:
    won = np.arange(100)[None] < [[90], [92]]
    steps = np.full(won.shape, 5.0)
    cell = Cell((0, 1), np.arange(100), won, ~won, steps, steps)
    rows = [VARIANTS[key] for key in ("qnet", "search", "treeqn", "dtsn")]
    results = {row.key: {row.scenario(exits): cell for exits in (2, 1)} for row in rows if row.key != lost}
    check_png(figures.success_bars(results, rows, tmp_path / "new" / "bars.png"))


def test_learning_curves(tmp_path: Path) -> None:
    step = np.arange(100, 1001, 100.0)
    rate = np.where(step % 200 == 0, step / 1100, np.nan)
    curve = {"step": step, "validation_success_2": rate, "validation_success_1": rate / 2}
    short = {name: column[:4] for name, column in curve.items()}
    curves = {"dtsn": {0: curve, 1: short}, "qnet": {0: curve}, "treeqn": {0: {"step": step}}}
    check_png(figures.learning_curves(curves, tmp_path / "curves.png"))
    check_png(figures.learning_curves({}, tmp_path / "empty.png"))


def test_sample_paths(tmp_path: Path, scene: Scene) -> None:
    start = np.asarray(scene["start"])
    loop = [start + MOVES[0] * (i % 2) for i in range(201)]
    crash = [start, start + MOVES[3]]
    scenes: list[Scene] = [
        {**scene, "title": "a level", "paths": {"Q-network": loop, "D-TSN": crash}},
        {**scene, "paths": {"Q-network": [start], "someone else": [start, start]}},
        scene,
    ]
    check_png(figures.sample_paths(scenes, tmp_path / "paths.png"))


def test_how_a_path_ends(scene: Scene) -> None:
    goal, free = np.asarray(scene["goal"]), np.array([0, 1])
    for cells, marker, words in [
        ([free, goal], "", "arrives in 1 steps"),
        ([goal, free], "o", "still under way after 1 steps"),
        ([free, np.argwhere(scene["walls"])[0]], "X", "collides at step 1"),
        ([free, free + MOVES[3]], "X", "collides at step 1"),
        ([free, free], "X", "collides at step 1"),
        ([free], "o", "still under way after 0 steps"),
    ]:
        assert figures._outcome(scene, np.array(cells)) == (marker, words)


def test_lanes_there_and_back_are_apart() -> None:
    lane = figures._lane(np.array([[0, 0], [0, 1], [0, 2], [0, 1], [0, 0]]), 0.2)
    there, back = lane[1:5], lane[5:9]
    np.testing.assert_allclose(there[:, 0], 0.2)  # going east, the right is south
    np.testing.assert_allclose(back[:, 0], -0.2)


@pytest.mark.parametrize("wanted", [[], [5.0], [1.0, 1.0, 1.0], [9.9, 0.0, 9.8, 3.0], [12.0, -4.0]])
def test_labels_keep_their_distance(wanted: list[float]) -> None:
    placed = drawing.spread(wanted, 1.0, 0.0, 10.0)
    assert len(placed) == len(wanted)
    assert (np.diff(np.sort(placed)) >= 1 - 1e-9).all()
    assert ((placed >= -1e-9) & (placed <= 10 + 1e-9)).all()
    assert (np.argsort(placed, kind="stable") == np.argsort(wanted, kind="stable")).all()


def test_the_error_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dtsn\[plots\]'"):
        figures.learning_curves({}, tmp_path / "curves.png")
