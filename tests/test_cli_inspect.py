"""``dtsn plan`` and ``dtsn play``: searches in text, files and pictures, and episodes as evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image, ImageSequence

from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.envs.navigation import NavigationOptions, make_levels, observe
from dtsn.evaluation.navigation import trace_navigation
from dtsn.inspection import read_search
from dtsn.pretrained import shipped
from dtsn.reproduce.navigation.variants import SHOWN_LEVEL
from dtsn.training.loading import load_solver


def test_plan(folder: Path, inside: Callable[..., str]) -> None:
    out = inside("plan", "--out", "tree.json")
    assert "dtsn, best first, 10 expansions; sample at temperature 1; level 2000003, 1 exit; step 0" in out
    assert "best leaf" in out
    assert out.endswith(" kB)\nnext: dtsn plan --state tree.json\n")
    document = read_search(folder / "tree.json")
    assert document["source"]["level"] == SHOWN_LEVEL

    again = inside("plan", "--state", "tree.json", "--out", "copy.json")
    assert again.splitlines()[:-2] == out.splitlines()[:-2]
    assert read_search(folder / "copy.json") == document

    inside("plan", "--state", "tree.json", "--iterations", "3", "--rule", "greedy", "--out", "new.json")
    anew = read_search(folder / "new.json")
    assert (anew["solver"]["iterations"], anew["solver"]["rule"]) == (3, "greedy")
    assert anew["scene"]["walls"] == document["scene"]["walls"]


def test_plan_of_a_state_refuses_no_search(folder: Path, inside: Callable[..., str]) -> None:
    inside("plan", "--out", "tree.json")
    assert "iterations" in inside("plan", "--state", "tree.json", "--iterations", "0", code=2)


def test_plan_draws_pictures(folder: Path, inside: Callable[..., str]) -> None:
    assert "wrote tree.svg" in inside("plan", "--time", "2", "--iterations", "4", "--out", "tree.svg")
    assert "wrote tree.png" in inside("plan", str(shipped("qnet")), "--exits", "2", "--out", "tree.png")
    assert ElementTree.parse(folder / "tree.svg").getroot().tag.endswith("svg")
    with Image.open(folder / "tree.png") as picture:
        assert picture.width > 1000


def test_plan_of_an_observation(folder: Path, inside: Callable[..., str]) -> None:
    start = make_levels([SHOWN_LEVEL], NavigationOptions(exits=1))
    np.save("state.npy", observe(start.walls, start.goal, start.robot)[0])
    out = inside("plan", "--state", "state.npy", "--rule", "greedy")
    level = inside("plan", "--rule", "greedy")
    assert out.splitlines()[1:] == level.splitlines()[1:]
    assert "●" in out


def test_play_shows_the_evaluated_episode(folder: Path, inside: Callable[..., str]) -> None:
    solver = load_solver(shipped("dtsn"))
    cells = trace_navigation(solver, SHOWN_LEVEL, NavigationOptions(exits=1))
    out = inside("play", "--delay", "0")
    assert out.count("step ") == len(cells) - 1
    assert f"arrived after {len(cells) - 1} steps" in out
    assert "nothing written\nnext: dtsn plan" in out

    out = inside("play", "--delay", "0.1", "--out", "deep/episode.gif")
    assert "wrote deep/episode.gif" in out
    with Image.open(folder / "deep/episode.gif") as film:
        assert sum(1 for _ in ImageSequence.Iterator(film)) == len(cells)
    assert (folder / "deep/episode.gif").stat().st_size < 100_000


def test_play_in_a_terminal(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    slept: list[float] = []
    monkeypatch.setattr("dtsn.inspection.text.time.sleep", slept.append)
    out = inside("play", "--delay", "0.5")
    assert f"arrived after {len(slept)} steps" in out
    assert set(slept) == {0.5}
    assert "\x1b[" in out
