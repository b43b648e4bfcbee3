from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dtsn.reproduce.experiments import PAPER_NAVIGATION

from dtsn import plots
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels
from dtsn.plots import Scene, Tree


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


def make_tree(iterations: int, closed: int | None = None) -> Tree:
    """A random best-first tree by the slot rule; root action ``closed`` is invalid."""
    rng, actions = np.random.default_rng(0), 4
    value = np.concatenate([[0], rng.normal(-10, 2, iterations * actions)])
    if closed is not None:
        value[1 + closed] = -np.inf
    selected = [0]
    for t in range(1, iterations):
        made = [n for n in range(1, 1 + t * actions) if n not in selected and np.isfinite(value[n])]
        selected.append(int(rng.choice(made)))
    parent = np.array([-1, *np.repeat(selected, actions)])
    expanded_at, root_action, depth = np.full(len(value), iterations), np.full(len(value), -1), 0 * parent
    expanded_at[selected] = np.arange(iterations)
    q_values = np.full((iterations, actions), -np.inf)
    for n in range(1, len(value)):
        root_action[n] = (n - 1) % actions if parent[n] == 0 else root_action[parent[n]]
        depth[n] = depth[parent[n]] + 1
    for t in range(iterations):
        for n in range(1, 1 + (t + 1) * actions):
            if expanded_at[n] > t:
                q_values[t, root_action[n]] = max(q_values[t, root_action[n]], value[n])
    return {
        "selected": np.array(selected),
        "parent": parent,
        "path_value": value,
        "root_action": root_action,
        "expanded_at": expanded_at,
        "depth": depth,
        "q_values": q_values,
        "log_probs": np.zeros(iterations),
    }


@pytest.mark.parametrize("lost", [None, "search"])
def test_success_bars(tmp_path: Path, lost: str | None) -> None:
    cell = {"success": 0.9, "interval": [0.88, 0.92]}
    summary: dict[str, dict[str, Any]] = {
        name: {"2": cell, "1": cell} for name in plots.NAMES if name != lost
    }
    check_png(plots.success_bars(summary, PAPER_NAVIGATION, tmp_path / "new" / "bars.png"))


def test_learning_curves(tmp_path: Path) -> None:
    step = np.arange(100, 1001, 100.0)
    rate = np.where(step % 200 == 0, step / 1100, np.nan)
    curve = {"step": step, "validation_success_2": rate, "validation_success_1": rate / 2}
    short = {name: column[:4] for name, column in curve.items()}
    curves = {"dtsn": {0: curve, 1: short}, "qnet": {0: curve}, "treeqn": {0: {"step": step}}}
    check_png(plots.learning_curves(curves, tmp_path / "curves.png"))
    check_png(plots.learning_curves({}, tmp_path / "empty.png"))


def test_sample_paths(tmp_path: Path, scene: Scene) -> None:
    start = np.asarray(scene["start"])
    loop = [start + MOVES[0] * (i % 2) for i in range(201)]
    crash = [start, start + MOVES[3]]
    scenes: list[Scene] = [
        {**scene, "title": "a level", "paths": {"Q-network": loop, "D-TSN": crash}},
        {**scene, "paths": {"Q-network": [start], "someone else": [start, start]}},
        scene,
    ]
    check_png(plots.sample_paths(scenes, tmp_path / "paths.png"))


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
        assert plots._outcome(scene, np.array(cells)) == (marker, words)


@pytest.mark.parametrize(("iterations", "closed"), [(10, 2), (1, None), (30, None)])
def test_search_on_hall(tmp_path: Path, scene: Scene, iterations: int, closed: int | None) -> None:
    path = plots.search_on_hall(scene, make_tree(iterations, closed), tmp_path / "search.png")
    check_png(path)


def test_nodes_of_a_cell_are_drawn_apart_and_inside_it() -> None:
    tree = make_tree(20)
    cells, place = plots._layout(np.array([9, 9]), tree["parent"])
    assert np.abs(place - cells).max() < 0.5
    assert len(np.unique(place.round(6), axis=0)) == len(place)
    assert (np.abs(cells - [9, 9]).sum(1) <= tree["depth"]).all()


def test_lanes_there_and_back_are_apart() -> None:
    lane = plots._lane(np.array([[0, 0], [0, 1], [0, 2], [0, 1], [0, 0]]), 0.2)
    there, back = lane[1:5], lane[5:9]
    np.testing.assert_allclose(there[:, 0], 0.2)  # going east, the right is south
    np.testing.assert_allclose(back[:, 0], -0.2)


@pytest.mark.parametrize("wanted", [[], [5.0], [1.0, 1.0, 1.0], [9.9, 0.0, 9.8, 3.0], [12.0, -4.0]])
def test_labels_keep_their_distance(wanted: list[float]) -> None:
    placed = plots._spread(wanted, 1.0, 0.0, 10.0)
    assert len(placed) == len(wanted)
    assert (np.diff(np.sort(placed)) >= 1 - 1e-9).all()
    assert ((placed >= -1e-9) & (placed <= 10 + 1e-9)).all()
    assert (np.argsort(placed, kind="stable") == np.argsort(wanted, kind="stable")).all()


def test_the_error_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dtsn\[plots\]'"):
        plots.learning_curves({}, tmp_path / "curves.png")
