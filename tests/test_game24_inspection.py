"""A search in the Game of 24 as a document, in the terminal and in the viewer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dtsn.cli.inspect import plan
from dtsn.cli.inspect import play as play_episode
from dtsn.config import SolverConfig
from dtsn.envs.game24 import Game24Env, puzzles_of
from dtsn.envs.game24_graph import build_graph
from dtsn.errors import UserError
from dtsn.evaluation.game24 import known_game24, play
from dtsn.inspection import check_search, describe_game24, read_search, watch_game24
from dtsn.solvers.solver import Solver

HAND = (3, 3, 8, 8)


@pytest.fixture(scope="module")
def solver() -> Solver:
    env = Game24Env()
    config = SolverConfig("dtsn", iterations=8)
    made = Solver.create(config, env.observation_space, env.action_space, world_model=known_game24())
    made.environment = "dtsn/Game24-v0"
    return made.eval()


def test_states_are_the_numbers_that_are_left(solver: Solver) -> None:
    document = describe_game24(solver, HAND)
    check_search(document)
    labels = [node["label"] for node in document["nodes"]]
    assert labels[0] == "3 · 3 · 8 · 8"
    assert labels[1] == "3 · 8 · 8 | 3"
    assert len(document["iterations"]) == 8
    assert document["scene"] is not None
    assert document["scene"]["kind"] == "text"
    assert document["scene"]["text"].startswith("24 from 3 · 3 · 8 · 8\nleft: 3 · 3 · 8 · 8\nplan: ")


def test_the_solution_that_is_found(solver: Solver) -> None:
    """Two decisions before the end a search sees every way to end."""
    actions = (2, 3, 0, 1, 1, 0, 1)  # 8 ÷ 3, 3 − 8/3, 8
    document = describe_game24(solver, HAND, actions=actions, iterations=20)
    assert document["actions"] == ["+", "−", "×", "÷"]
    assert document["scene"]["text"].split("\n") == [
        "24 from 3 · 3 · 8 · 8",
        "8 ÷ 3 = 8/3",
        "3 − 8/3 = 1/3",
        "left: 1/3 | 8",
        "plan: 8 ÷ 1/3 = 24; left: 24 (solved)",
    ]
    ends = [node for node in document["nodes"] if node["terminal"] > 0.5]
    assert "24" in [node["label"] for node in ends]


def test_a_game_is_the_one_that_is_evaluated(solver: Solver) -> None:
    graph = build_graph()
    for hand in puzzles_of("test")[:3]:
        played = list(watch_game24(solver, graph.hands[hand].tolist()))
        assert len(played) == 9
        solved = played[-1][1] == "solved"
        assert solved == bool(play(solver, np.array([hand]))[0])
        assert [outcome for _, outcome in played[:-1]] == [""] * 8
    again = describe_game24(solver, graph.hands[hand].tolist(), time=5)
    assert again["q"] == played[5][0]["q"]
    assert again["scene"] == played[5][0]["scene"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": 9}, "time must be 0 to 8"),
        ({"actions": (1,)}, "actions must be possible decisions, got 1"),  # only the first of equal numbers
        ({"actions": (2, 3, 0, 1, 1, 0, 1, 3, 0)}, "must leave a decision to make"),
        ({"hand": (1, 1, 1, 1)}, "can make 24, got 1 1 1 1"),
        ({"hand": (1, 1, 14, 1)}, "whole numbers from 1 to 13"),
    ],
)
def test_bad_input(solver: Solver, options: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        describe_game24(solver, **({"hand": HAND} | options))


def test_the_command_line(solver: Solver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = solver.save(tmp_path / "runs" / "mine")
    out = tmp_path / "search.json"
    plan(folder, hand=HAND, time=3, out=out)
    said = capsys.readouterr().out
    assert "24 from 3 · 3 · 8 · 8" in said
    assert "plan:" in said
    assert read_search(out)["source"] is not None
    play_episode(folder, hand=HAND, iterations=3)
    assert "solved after 9 decisions" in capsys.readouterr().out
    with pytest.raises(UserError, match="run must be given with a hand"):
        plan(hand=HAND)
    with pytest.raises(UserError, match="out must be left out for a hand"):
        play_episode(folder, hand=HAND, out=tmp_path / "game.gif")


def test_the_viewer(solver: Solver, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    from dtsn.viewer.library import Library

    solver.save(tmp_path / "runs" / "mine")
    library = Library(tmp_path / "runs")
    entry = next(entry for entry in library.entries() if entry["name"] == "mine")
    assert "problem" not in entry
    assert entry["environment"] == "dtsn/Game24-v0"
    assert entry["environment"] in library.worlds(library.entries())
    shown = library.find("mine")
    ask = {"level": 1, "options": {}, "actions": [], "seed": 0, "search": {"iterations": 5}}
    for decision in range(9):
        state, document = shown.world.answer(shown.solver, ask)
        assert state["outcome"] is None
        assert state["time"] == decision
        ask["actions"] = [*ask["actions"], document["action"]]
    state, document = shown.world.answer(shown.solver, ask)
    assert document is None
    hand = puzzles_of("test")[1:2]
    quick = dataclasses.replace(solver.config, act_iterations=5)
    same = Solver(solver.world_model, quick, observation_space=solver.observation_space).eval()
    assert (state["outcome"] == "goal") == bool(play(same, hand)[0])
    assert state["scene"]["text"].startswith("24 from ")
    with pytest.raises(UserError, match="must end with the game"):
        shown.world.answer(shown.solver, ask | {"actions": [*ask["actions"], 0]})
