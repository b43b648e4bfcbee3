"""Search documents: they tell what the search did, survive the disk, and refuse what is not one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from dtsn.config import SOLVERS, SolverConfig
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels, observe
from dtsn.evaluation.navigation import evaluate_navigation, trace_navigation
from dtsn.inspection import (
    check_search,
    describe_hall,
    describe_navigation,
    describe_observation,
    describe_search,
    picture,
    read_search,
    search_again,
    to_json,
    watch_navigation,
    write_search,
)
from dtsn.inspection.document import MAX_OPEN, schema_page
from dtsn.inspection.figures import search_figure
from dtsn.inspection.navigation import judge_plan
from dtsn.inspection.text import hall_text, search_text
from dtsn.models.world_model import WorldModel
from dtsn.pretrained import shipped
from dtsn.search import Expansion, SearchTree, best_first_search
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from reference import random_model, reference_search

GOLDEN = Path(__file__).parent / "golden" / "search.json"
SCHEMA_PAGE = Path(__file__).parent.parent / "docs/search-json.md"
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
    assert [document["scene"]["robot"] for document, _ in episode] == cells[:-1].tolist()
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
    walls, nodes = np.array(document["scene"]["walls"]), document["nodes"]
    blocked = set(document["scene"]["blocked"])
    assert blocked
    assert 0 not in blocked
    assert document["scene"]["cells"][0] == document["scene"]["robot"]
    for node in nodes[1:]:
        parent, cell = node["parent"], np.array(document["scene"]["cells"][node["id"]])
        before = np.array(document["scene"]["cells"][parent])
        target = before + MOVES[node["action"]]
        if parent in blocked or walls[tuple(target)]:
            assert node["id"] in blocked
            assert (cell == before).all()
        else:
            assert node["id"] not in blocked
            assert (cell == target).all()


def test_plans_are_judged_in_the_true_hall(solver: Solver) -> None:
    """A corridor of five cells, the goal four steps east: any plan, walked by hand."""
    walls, goal, robot = np.zeros((1, 5), bool), np.array([0, 4]), np.array([0, 0])
    values = np.array([[-4, -3, -2, -1, 0]], np.float32)
    east, south, west = 0, 1, 2
    for actions, judged in {
        (east, east): (2, None, 2),
        (east, west, east): (3, None, 1),
        (east, east, south, east): (4, 3, 2),
        (east, east, east, east, east, south): (4, None, 4),  # it has arrived by then
        (west,): (1, 1, 0),
    }.items():
        plan = judge_plan(walls, goal, robot, values, list(actions))
        assert (plan["steps"], plan["blocked_at"], plan["optimal_steps"]) == judged


def test_plan_and_true_values_of_a_hall(solver: Solver) -> None:
    for document, _ in islice(watch_navigation(solver, LEVEL + 1, ONE_EXIT), 0, None, 4):
        scene = document["scene"]
        plan, path = scene["plan"], document["best_path"]
        cells = [scene["cells"][n] for n in path]
        walked = path[: cells.index(scene["goal"]) + 1] if scene["goal"] in cells else path
        into_wall = [n for n in walked if n in scene["blocked"]]
        assert plan["blocked_at"] == (path.index(into_wall[0]) if into_wall else None)
        assert plan["steps"] == len(walked) - 1
        (row, column), truth = scene["robot"], scene["true_values"]
        assert max(q for q in scene["true_q"] if q is not None) == truth[row][column]


def test_states_in_words_and_a_picture() -> None:
    """The line world's latent is its place: the labels follow the moves."""
    image = np.zeros((2, 3, 3), np.uint8)
    document = describe_search(
        line_world(), torch.zeros(1), label=lambda latent: f"{float(latent):.2f}", scene=picture(image)
    )
    check_search(document)
    assert [node["label"] for node in document["nodes"][:5]] == ["0.00", "-0.25", "0.25", "0.00", "0.50"]
    assert "0.50" in shown(search_text(document, 40, 100))
    assert document["scene"]["data"].startswith("data:image/png;base64,")
    with pytest.raises(ValueError, match=r"must be uint8 \[H, W, 3\]"):
        picture(np.zeros((2, 3, 4), np.uint8))


def test_invalid_actions_have_no_nodes() -> None:
    solver, observation = random_solver(iterations=5), torch.zeros(5).double()
    document = describe_search(solver, observation, invalid_actions=torch.tensor([True, False, False]))
    check_search(document)
    assert document["q"][0] is None
    assert all(step["q"][0] is None for step in document["iterations"])
    assert len(document["nodes"]) == 5 * 3
    assert [node["action"] for node in document["nodes"] if node["parent"] == 0] == [1, 2]
    selected = [step["expanded"] for step in document["iterations"]]
    plain = solver.plan(
        observation[None],
        uniforms=torch.rand(1, 5, generator=torch.Generator().manual_seed(0)),
        invalid_actions=torch.tensor([[True, False, False]]),
    )
    assert [0 if slot == 0 else slot - 1 for slot in plain.selected[0].tolist()] == selected
    assert "–" in shown(search_text(document, 40, 100))


class Board:
    """A world that is given: nine cells, the goal in a corner, moves that do not leave the board."""

    num_actions = 4

    def encode(self, observation: Tensor) -> Tensor:
        return observation

    def expand(self, latent: Tensor) -> Expansion:
        children = latent[:, None] + torch.tensor(MOVES).to(latent)
        valid = ((children >= 0) & (children < 3)).all(2)
        return Expansion(children, -torch.ones(children.shape[:2]), valid, (children == 2).all(2))

    def value(self, latent: Tensor) -> Tensor:
        return -(2 - latent).abs().sum(1)

    def key(self, latent: Tensor) -> Tensor:
        return (3 * latent[:, 0] + latent[:, 1]).long()


class BoardSolver:
    """What describing asks of a solver, on the board."""

    def __init__(self, merge: bool, iterations: int):
        self.world_model, self.merge, self.device = Board(), merge, torch.device("cpu")
        self.config = SolverConfig(act_iterations=iterations, act_rule="greedy")
        self.kind = SOLVERS["dtsn"]

    @property
    def act_iterations(self) -> int:
        return self.config.act_iterations or 0

    def plan(self, observation: Tensor, **settings: Any) -> SearchTree:
        return best_first_search(
            self.world_model, observation, iterations=self.act_iterations, rule="greedy", merge=self.merge,
            **settings,
        )  # fmt: skip


@pytest.mark.parametrize("merge", [False, True])
def test_ends_borders_and_places(merge: bool, tmp_path: Path) -> None:
    solver: Any = BoardSolver(merge, 30)
    document = describe_search(
        solver,
        torch.zeros(2),
        label=lambda cell: f"{int(cell[0])},{int(cell[1])}",
        actions=("E", "S", "W", "N"),
    )
    check_search(document)
    assert read_search(write_search(tmp_path / "board.json", document)) == document
    nodes, expanded = document["nodes"], [step["expanded"] for step in document["iterations"]]
    for node in nodes[1:]:
        before, (row, column) = (map(int, n["label"].split(",")) for n in (nodes[node["parent"]], node))
        assert [row, column] == (np.array([*before]) + MOVES[node["action"]]).tolist()
        assert 0 <= row < 3
        assert 0 <= column < 3
        assert node["terminal"] == (node["label"] == "2,2")
        if node["terminal"] or node["same_as"] is not None:
            assert node["expanded_at"] is None
        if node["same_as"] is not None:
            assert nodes[node["same_as"]]["label"] == node["label"]
    open_sets = [{entry["id"] for entry in step["open"]} for step in document["iterations"]]
    assert not any(nodes[n]["terminal"] or nodes[n]["same_as"] is not None for ids in open_sets for n in ids)
    assert all(n in ids for n, ids in zip(expanded, open_sets, strict=True))
    assert nodes[document["best_path"][-1]]["label"] == "2,2"
    assert len(document["best_path"]) == 5
    assert max(q for q in document["q"] if q is not None) == -4
    text = shown(search_text(document, 200, 200), width=200)
    assert "  end" in text
    if merge:  # eight cells can be expanded, each once
        assert len(document["iterations"]) == len({nodes[n]["label"] for n in expanded}) == 8
        assert "8 of 30 expansions, then none was left" in text
        assert "same place as node" in text
    else:
        assert len(document["iterations"]) == 30
    search_figure(document, tmp_path / "board.png")


def test_saved_states_are_searched_as_levels_are(solver: Solver, tmp_path: Path) -> None:
    document = describe_navigation(solver, LEVEL, ONE_EXIT, time=4)
    assert search_again(solver, document) == document
    assert search_again(solver, document, rule="greedy") == describe_navigation(
        solver, LEVEL, ONE_EXIT, time=4, robot=document["scene"]["robot"], rule="greedy"
    )
    start = make_levels([LEVEL], ONE_EXIT)
    np.save(tmp_path / "state.npy", observe(start.walls, start.goal, start.robot)[0])
    found = describe_observation(solver, tmp_path / "state.npy", rule="greedy")
    expected = describe_navigation(solver, LEVEL, ONE_EXIT, rule="greedy")
    assert found == expected | {"source": None}


def test_an_observation_that_shows_no_hall(solver: Solver, tmp_path: Path) -> None:
    np.save(tmp_path / "state.npy", np.ones((3, 20, 20), dtype=np.uint8))
    document = describe_observation(solver, tmp_path / "state.npy")
    assert document["scene"] is None


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
        ({"robot": (8, 8)}, "robot must be on a free cell"),
        ({"robot": (20, 0)}, "robot must be on a free cell"),
        ({"robot": (1.5, 0)}, r"robot must be \(row, column\)"),
    ],
)
def test_wrong_requests(solver: Solver, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe_navigation(solver, **({"level": LEVEL, "options": ONE_EXIT} | changes))


def test_trees_too_large_are_refused_before_they_grow() -> None:
    with pytest.raises(ValueError, match="nodes or more: at most 20000"):
        describe_search(random_solver("treeqn", depth=10), torch.zeros(5).double())


def test_deep_trees_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="nodes or more"):
        describe_search(random_solver("treeqn", depth=12), torch.zeros(5).double())


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
        (b'{"format": "dtsn.search", "version": 1}', "version 1 cannot be read"),
        (b'{"format": "dtsn.search", "version": 2}', "must have the fields format, version, solver"),
        (b" " * (32 * 2**20 + 1), "must have at most 33554432 bytes"),
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


MISFITS: dict[str, Callable[[Any], Any]] = {
    "solver.num_actions": lambda d: d["solver"].update(num_actions=3),
    "solver.iterations": lambda d: d["solver"].update(iterations=9),
    "solver.planner must be 'best_first' or": lambda d: d["solver"].update(planner="best"),
    r"nodes\[3\].reward must be a finite number": lambda d: d["nodes"][3].update(reward=float("nan")),
    r"nodes\[3\] does not fit": lambda d: d["nodes"][3].update(parent=2),
    r"nodes\[7\] does not fit": lambda d: d["nodes"][7].update(depth=9),
    r"nodes\[5\] does not fit": lambda d: d["nodes"][5].update(same_as=999),
    r"nodes\[6\].terminal must lie": lambda d: d["nodes"][6].update(terminal=2),
    r"nodes\[6\].label must not contain control": lambda d: d["nodes"][6].update(label="\x1b[31m"),
    "one child for an action": lambda d: d["nodes"][4].update(action=2, root_action=2),
    "nodes must fit": lambda d: d["nodes"].extend(d["nodes"]),
    r"iterations\[2\] does not fit": lambda d: d["iterations"][2]["open"][0].update(id=999),
    "at most once": lambda d: d["iterations"][2].update(expanded=0),
    r"iterations\[1\].open\[0\].id must be of type int": lambda d: d["iterations"][1]["open"][0].update(
        id=True
    ),
    "best_path": lambda d: d["best_path"].append(1),
    "by the best action first": lambda d: d.update(action=(d["action"] + 1) % 4),
    "q must have 4 entries": lambda d: d["q"].pop(),
    "cell of robot is not on the grid": lambda d: d["scene"].update(robot=[20, 0]),
    "cell of node 5 is not on the grid": lambda d: d["scene"]["cells"].__setitem__(5, [1]),
    "cells must give": lambda d: d["scene"]["cells"].pop(),
    "scene.walls must be rows": lambda d: d["scene"]["walls"][0].append(0),
    "scene.true_values must have": lambda d: d["scene"]["true_values"].pop(),
    "scene.plan does not fit": lambda d: d["scene"]["plan"].update(steps=99),
    "blocked must be ids": lambda d: d["scene"].update(blocked=[999]),
    "scene.kind must be one of grid, picture, text": lambda d: d["scene"].update(kind="film"),
    "scene.data must begin with": lambda d: d.update(scene={"kind": "picture", "data": "https://x"}),
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
    document = describe_navigation(solver, LEVEL, ONE_EXIT)
    text = hall_text(document, document["scene"]).plain
    assert len(text.splitlines()) == 20
    assert {len(line.rstrip()) <= 40 for line in text.splitlines()} == {True}
    assert all(symbol in text for symbol in "●◆█")
    assert any(symbol in text for symbol in "→↓←↑✗")


def test_schema_page_is_generated() -> None:
    assert SCHEMA_PAGE.read_text() == schema_page(), "run python tests/test_inspection.py"


if __name__ == "__main__":
    SCHEMA_PAGE.write_text(schema_page())
