"""Figures and animations of searches: every kind of document can be drawn, and nodes do not overlap."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from dtsn.config import SolverConfig
from dtsn.envs.navigation import NavigationOptions
from dtsn.inspection import SearchDocument, describe_navigation, describe_search, watch_navigation
from dtsn.inspection.figures import _layout, episode_gif, hall_figure, search_figure
from dtsn.pretrained import shipped
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from reference import random_model

LEVEL, ONE_EXIT = 2_000_003, NavigationOptions(exits=1)


@pytest.fixture(scope="module")
def solver() -> Solver:
    return load_solver(shipped("dtsn"))


def check_png(path: Path) -> None:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert 300 < height <= width < 3000
    assert 8_000 < len(content) < 250_000


@pytest.mark.parametrize("iterations", [1, 10, 40])
def test_search_in_a_hall(solver: Solver, iterations: int, tmp_path: Path) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT, iterations=iterations)
    check_png(search_figure(document, tmp_path / "new/search.png"))
    check_png(hall_figure(document, tmp_path / "hall.png"))


@pytest.mark.parametrize("name", ["dtsn", "treeqn", "qnet"])
def test_search_without_a_scene(name: str, tmp_path: Path) -> None:
    solver = Solver(random_model(3, scale=2.0), SolverConfig(name))
    closed = torch.tensor([True, False, False])
    document = describe_search(
        solver, torch.zeros(5).double(), invalid_actions=closed, actions=("$a$", "b_", "$")
    )
    first, second = (search_figure(document, tmp_path / f"{n}.svg").read_bytes() for n in (1, 2))
    assert first == second
    assert first.startswith(b"<?xml")
    with pytest.raises(ValueError, match="must show a hall"):
        hall_figure(document, tmp_path / "hall.png")


def test_trees_too_large_to_draw(tmp_path: Path) -> None:
    document = describe_search(
        Solver(random_model(3), SolverConfig()), torch.zeros(5).double(), iterations=600
    )
    with pytest.raises(ValueError, match="1801 nodes is too large to draw"):
        search_figure(document, tmp_path / "search.png")


def test_nodes_of_a_cell_are_drawn_apart_and_inside_it(solver: Solver) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT, iterations=20)
    scene, nodes = document["scene"], document["nodes"]
    assert scene is not None
    assert scene["kind"] == "grid"
    cells, blocked = np.array(scene["cells"]), np.isin(np.arange(len(nodes)), scene["blocked"])
    action = np.array([-1 if node["action"] is None else node["action"] for node in nodes])
    place = _layout(cells, action, blocked)
    assert np.abs(place - cells).max() < 0.5
    assert len(np.unique(place.round(6), axis=0)) == len(place)


def test_episode_as_animation(solver: Solver, tmp_path: Path) -> None:
    frames: list[tuple[SearchDocument, str]] = []
    for frame in watch_navigation(solver, LEVEL, NavigationOptions(exits=1, max_steps=3)):
        frames.append(frame)
    with Image.open(episode_gif(frames, tmp_path / "episode.gif")) as animation:
        shown = sum(1 for _ in ImageSequence.Iterator(animation))
    assert shown == 4  # the last shows where the last decision led


def test_the_error_without_matplotlib(
    solver: Solver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dtsn\[plots\]'"):
        search_figure(describe_navigation(solver, LEVEL, iterations=1), tmp_path / "search.png")
