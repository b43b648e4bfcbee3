from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dtsn import plots
from dtsn.envs.navigation import NavigationOptions, make_levels
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
