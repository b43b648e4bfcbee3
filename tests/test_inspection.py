"""Search documents: they tell what the search did, survive the disk, and refuse what is not one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from dtsn.config import SolverConfig
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels, observe
from dtsn.evaluation.navigation import evaluate_navigation, trace_navigation
from dtsn.inspection.document import (
    MAX_OPEN,
    check_search,
    describe_hall,
    describe_navigation,
    describe_observation,
    describe_search,
    read_search,
    search_again,
    to_json,
    watch_navigation,
    write_search,
)
from dtsn.inspection.text import hall_text, search_text
from dtsn.models.world_model import WorldModel
from dtsn.pretrained import shipped
from dtsn.solvers.solver import Solver
from dtsn.training.trainer import load_solver
from reference import random_model, reference_search

GOLDEN = Path(__file__).parent / "golden" / "search.json"
ONE_EXIT = NavigationOptions(exits=1)
LEVEL = 2_000_003


@pytest.fixture(scope="module")
def solver() -> Solver:
    return load_solver(shipped("dtsn"))


def random_solver(name: str = "dtsn", actions: int = 3, **changes: Any) -> Solver:
    return Solver(random_model(actions, scale=2.0), SolverConfig(name, **changes))


# --- a world whose search can be followed by hand -----------------------------------------------------


class Table(nn.Module):
    """A fixed answer for every state and action."""

    def __init__(self, answer: list[Any]):
        super().__init__()
        self.answer = torch.tensor(answer)

    def forward(self, state: Tensor) -> Tensor:
        return self.answer.expand(len(state), *self.answer.shape)


class Distance(nn.Module):
    """−4 |u − 1|: a goal at u = 1."""

    def forward(self, state: Tensor) -> Tensor:
        return -4 * (torch.atanh(state) - 1).abs().squeeze(1)


def line_world() -> Solver:
    """Steps of 0.25 to the left, or to the right for a smaller price, towards a goal at 1."""
    model = WorldModel(nn.Identity(), Table([[-0.25], [0.25]]), Table([-0.5, -0.25]), Distance(), 2)
    return Solver(model, SolverConfig(iterations=4, act_rule="greedy"))


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, abs=1e-5)
    return bool(found == expected)


def test_golden() -> None:
    """By hand: right is better, and each step right gains 1 of distance for a price of 0.25."""
    document = describe_search(line_world(), torch.zeros(1), actions=("left", "right"))
    assert document["best_path"] == [0, 2, 4, 6, 8]
    assert document["q"] == pytest.approx([-5.5, -1.0], abs=1e-5)
    assert [step["q"][1] for step in document["iterations"]] == pytest.approx(
        [-3.25, -2.5, -1.75, -1], abs=1e-5
    )
    assert close(document, json.loads(GOLDEN.read_text()))
    assert read_search(GOLDEN) == json.loads(GOLDEN.read_text())


# --- documents agree with a search done slowly ---------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_agrees_with_the_reference(discount: float, temperature: float) -> None:
    solver = random_solver(iterations=6, discount=discount, temperature=temperature)
    observation = torch.linspace(-1, 1, 5, dtype=torch.float64)
    document = describe_search(solver, observation, seed=3)
    selected = [step["expanded"] for step in document["iterations"]]
    slow = reference_search(solver.world_model, observation[None], selected, discount, temperature)
    steps = document["iterations"]
    assert [step["probability"] for step in steps] == pytest.approx(slow.log_probs.exp().tolist(), abs=1e-6)
    np.testing.assert_allclose([step["q"] for step in steps], slow.q_values.tolist(), rtol=1e-6, atol=1e-6)
    assert document["q"] == steps[-1]["q"]
    for step in steps:
        assert sum(entry["probability"] for entry in step["open"]) == pytest.approx(1, abs=1e-6)
        assert {"id": step["expanded"], "probability": step["probability"]} in step["open"]
    assert document == describe_search(solver, observation, seed=3)
    check_search(document)


@pytest.mark.parametrize("rule", ["sample", "greedy", "epsilon_greedy"])
def test_probabilities_are_those_of_the_rule(rule: str) -> None:
    """Expansions drawn many times come as often as the document says."""
    solver, observation = random_solver(iterations=2, act_rule=rule, epsilon=0.3), torch.zeros(5).double()
    claimed = {
        e["id"]: e["probability"] for e in describe_search(solver, observation)["iterations"][1]["open"]
    }
    uniforms = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
    drawn = solver.plan(observation.expand(4000, 5), uniforms=uniforms).selected[:, 1]
    assert sum(claimed.values()) == pytest.approx(1)
    for node, probability in claimed.items():
        assert (drawn == node).double().mean() == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize(("name", "planner", "nodes"), [("treeqn", "full", 13), ("qnet", "one_step", 4)])
def test_full_trees(name: str, planner: str, nodes: int) -> None:
    solver, observation = random_solver(name), torch.linspace(-1, 1, 5, dtype=torch.float64)
    document = describe_search(solver, observation)
    check_search(document)
    assert (document["solver"]["planner"], len(document["nodes"])) == (planner, nodes)
    assert document["solver"]["rule"] is document["solver"]["temperature"] is None
    np.testing.assert_allclose(document["q"], solver.plan(observation[None]).q[0], atol=1e-6)
    assert document["iterations"][-1]["q"] == document["q"]
    inner = [node for node in document["nodes"] if node["expanded_at"] is not None]
    assert all(node["path_value"] is None for node in inner)
    if name == "treeqn":  # the first action's leaves are all there after the second expansion
        assert [step["q"].count(None) for step in document["iterations"]] == [3, 2, 1, 0]


def test_long_open_sets_are_cut() -> None:
    document = describe_search(random_solver(iterations=60), torch.zeros(5).double())
    last = document["iterations"][-1]
    assert (last["open_size"], len(last["open"])) == (1 + 2 * 59, MAX_OPEN)
    chances = [entry["probability"] for entry in last["open"]]
    assert chances == sorted(chances, reverse=True)
    check_search(document)


# --- Navigation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [LEVEL, LEVEL + 1])
def test_shows_the_evaluated_episode(solver: Solver, level: int) -> None:
    episode = list(watch_navigation(solver, level, ONE_EXIT, seed=5))
    cells = trace_navigation(solver, level, ONE_EXIT, seed=5)
    assert [document["grid"]["robot"] for document, _ in episode] == cells[:-1].tolist()
    (row,) = evaluate_navigation(solver, np.array([level]), ONE_EXIT, seed=5)
    assert len(episode) == row.steps
    assert [outcome for _, outcome in episode[:-1]] == [""] * (row.steps - 1)
    assert episode[-1][1] == ("arrived" if row.success else "collided" if row.collision else "out of time")
    for time in (0, 3, row.steps - 1):
        assert describe_navigation(solver, level, ONE_EXIT, time=time, seed=5) == episode[time][0]
    with pytest.raises(ValueError, match=f"time must be below {row.steps}, where the episode ends"):
        describe_navigation(solver, level, ONE_EXIT, time=row.steps, seed=5)


def test_out_of_time(solver: Solver) -> None:
    episode = list(watch_navigation(solver, LEVEL, replace(ONE_EXIT, max_steps=2)))
    assert [outcome for _, outcome in episode] == ["", "out of time"]


def test_cells_follow_the_moves(solver: Solver) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT, iterations=30)
    walls, nodes = np.array(document["grid"]["walls"]), document["nodes"]
    blocked = set(document["blocked"])
    assert blocked
    assert 0 not in blocked
    assert document["cells"]["0"] == document["grid"]["robot"]
    for node in nodes[1:]:
        parent, cell = node["parent"], np.array(document["cells"][str(node["id"])])
        before = np.array(document["cells"][str(parent)])
        target = before + MOVES[node["action"]]
        if parent in blocked or walls[tuple(target)]:
            assert node["id"] in blocked
            assert (cell == before).all()
        else:
            assert node["id"] not in blocked
            assert (cell == target).all()


def test_saved_states_are_searched_as_levels_are(solver: Solver, tmp_path: Path) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT, time=4)
    assert search_again(solver, document) == document
    assert search_again(solver, document, rule="greedy") == describe_navigation(
        solver, LEVEL, ONE_EXIT, time=4, robot=document["grid"]["robot"], rule="greedy"
    )
    start = make_levels([LEVEL], ONE_EXIT)
    np.save(tmp_path / "state.npy", observe(start.walls, start.goal, start.robot)[0])
    found = describe_observation(solver, tmp_path / "state.npy", rule="greedy")
    expected = describe_navigation(solver, LEVEL, ONE_EXIT, rule="greedy")
    assert found == expected | {"source": None}


def test_an_observation_that_shows_no_hall(solver: Solver, tmp_path: Path) -> None:
    np.save(tmp_path / "state.npy", np.ones((3, 20, 20), dtype=np.uint8))
    document = describe_observation(solver, tmp_path / "state.npy")
    assert document["grid"] is document["cells"] is document["blocked"] is None


def test_settings_of_the_search(solver: Solver) -> None:
    document = describe_navigation(solver, LEVEL, iterations=3, rule="greedy", temperature=2.0)
    assert document["solver"] | {"iterations": 3, "rule": "greedy", "temperature": 2.0} == document["solver"]
    assert all(step["probability"] == 1 for step in document["iterations"])
    assert solver.config.act_rule == "sample"  # the solver itself stays as it was


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 1001}, "iterations must be at most 1000, got 1001"),
        ({"iterations": 0}, "act_iterations must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"rule": "best"}, "act_rule must be one of"),
        ({"level": -1}, "seeds must not be negative"),
        ({"time": -1}, "must not be negative"),
        ({"seed": -1}, "must not be negative"),
        ({"robot": (7, 7)}, "robot must be on a free cell"),
        ({"robot": (20, 0)}, "robot must be on a free cell"),
        ({"robot": (1.5, 0)}, r"robot must be \(row, column\)"),
    ],
)
def test_wrong_requests(solver: Solver, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe_navigation(solver, **({"level": LEVEL, "options": ONE_EXIT} | changes))


def test_trees_too_large_are_refused_before_they_grow() -> None:
    with pytest.raises(ValueError, match="88573 nodes"):
        describe_search(random_solver("treeqn", depth=10), torch.zeros(5).double())


def test_diverged_solvers_are_refused() -> None:
    solver = line_world()
    solver.world_model.reward_head = Table([float("nan"), 0.0])
    with pytest.raises(ValueError, match="diverged"):
        describe_search(solver, torch.zeros(1))


def test_walls_must_be_a_grid(solver: Solver) -> None:
    with pytest.raises(ValueError, match="walls must be a grid"):
        describe_hall(solver, [0, 1], (0, 0), (0, 1))


# --- on disk -------------------------------------------------------------------------------------------


def test_round_trip(solver: Solver, tmp_path: Path) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT)
    assert read_search(write_search(tmp_path / "deep/search.json", document)) == document
    assert json.loads(to_json(document)) == document


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a dtsn.search document"),
        (b'{"format": "dtsn.search", "version": 2}', "version 2 cannot be read"),
        (b'{"format": "dtsn.search", "version": 1}', "must have the fields format, version, solver"),
        (b" " * (32 * 2**20 + 1), "larger than 32 MB"),
    ],
)
def test_files_that_are_no_documents(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_search(path)
    assert str(caught.value).startswith(str(path))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_search(tmp_path / "search.json")


MISFITS = {
    "solver.num_actions": lambda d: d["solver"].update(num_actions=3),
    "solver.iterations": lambda d: d["solver"].update(iterations=9),
    r"nodes\[3\].reward must be a finite number": lambda d: d["nodes"][3].update(reward=float("nan")),
    r"nodes\[3\] does not fit": lambda d: d["nodes"][3].update(parent=2),
    r"nodes\[7\] does not fit": lambda d: d["nodes"][7].update(depth=9),
    "nodes must be 1": lambda d: d["nodes"].pop(),
    r"iterations\[2\] does not fit": lambda d: d["iterations"][2].update(expanded=999),
    "at most once": lambda d: d["iterations"][2].update(expanded=0),
    r"iterations\[1\].open\[0\].id must be of type int": lambda d: d["iterations"][1]["open"][0].update(
        id=True
    ),
    "best_path": lambda d: d["best_path"].append(1),
    "q must have 4 numbers": lambda d: d["q"].pop(),
    "action must be in": lambda d: d.update(action=4),
    "cell of robot is not on the grid": lambda d: d["grid"].update(robot=[20, 0]),
    "cell of 5 is not on the grid": lambda d: d["cells"].update({"5": "no"}),
    "cells must give": lambda d: d.update(cells=None),
    "grid.walls must be rows": lambda d: d["grid"]["walls"][0].append(0),
    "blocked must be ids": lambda d: d.update(blocked=[999]),
    "source must have the fields": lambda d: d.update(source={"environment": "navigation"}),
}


@pytest.mark.parametrize("message", MISFITS)
def test_documents_that_do_not_fit(message: str, solver: Solver, tmp_path: Path) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT)
    MISFITS[message](document)
    with pytest.raises(ValueError, match=message):
        write_search(tmp_path / "search.json", document)
    assert not (tmp_path / "search.json").exists()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places(inner)


def test_damaged_documents_are_refused_or_harmless(solver: Solver) -> None:
    """Whatever stands in a document that passes, it can be shown; the rest raises ValueError alone."""
    rng, original = random.Random(0), describe_navigation(solver, LEVEL, ONE_EXIT, iterations=4)
    refused = 0
    for _ in range(400):
        document = copy.deepcopy(original)
        container, key = rng.choice(list(places(document)))
        container[key] = rng.choice([None, True, -1, 0, 3, 10**9, 1e300, "x", [], {}, [0, 0], float("inf")])
        try:
            check_search(document)
        except ValueError:
            refused += 1
        else:
            Console(file=StringIO()).print(search_text(document, 10, 80))
    assert 200 < refused < 400


# --- as text -------------------------------------------------------------------------------------------


def shown(renderable: Any, width: int = 100) -> str:
    screen = Console(file=StringIO(), width=width)
    screen.print(renderable)
    return screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("lines", [1, 10, 40, 1000])
def test_every_node_is_shown_or_counted(solver: Solver, lines: int) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT, iterations=40)
    text = shown(search_text(document, lines, 100), width=200)
    folded = [
        int(word) for line in text.splitlines() if "…" in line for word in [line.split(": ")[1].split()[0]]
    ]
    nodes = sum("──" in line and "…" not in line for line in text.splitlines())
    assert 1 + nodes + sum(folded) == len(document["nodes"])
    assert "best leaf" in text
    if lines == 1000:
        assert not folded
    else:
        assert nodes <= max(lines, len(document["best_path"]))


def test_text_of_every_planner() -> None:
    for name in ("dtsn", "search", "treeqn", "qnet"):
        text = shown(search_text(describe_search(random_solver(name), torch.zeros(5).double()), 40, 100))
        assert "best leaf" in text


def test_hall_as_text(solver: Solver) -> None:
    text = hall_text(describe_navigation(solver, LEVEL, ONE_EXIT)).plain
    assert len(text.splitlines()) == 20
    assert {len(line.rstrip()) <= 40 for line in text.splitlines()} == {True}
    assert all(symbol in text for symbol in "●◆█")
    assert any(symbol in text for symbol in "→↓←↑✗")
