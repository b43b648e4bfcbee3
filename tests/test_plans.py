"""Plans against a walk cell by cell, and the best path of a tree against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from dtsn.config import NetworkConfig, SolverConfig
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels, observe
from dtsn.evaluation.levels import first_levels
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.evaluation.plans import NO_ACTION, check_plans, evaluate_plans, planned_actions, plans_text
from dtsn.experts.value_iteration import expert_actions, optimal_q, optimal_values
from dtsn.inspection import describe_search
from dtsn.solvers.solver import Solver

LEVELS = first_levels("test", 60)


def solver(name: str, **config: int) -> Solver:
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    made = Solver.create(
        SolverConfig(name, **config), Box(0, 1, (3, 20, 20)), Discrete(4), network=network, seed=1
    )
    return made.eval()


def walk(actions: list[int], walls: np.ndarray, goal: np.ndarray, robot: np.ndarray, values: np.ndarray):
    """One plan, one step at a time: (into a wall, optimal)."""
    cell, steps = tuple(robot), 0
    for action in actions:
        if action == NO_ACTION or cell == tuple(goal):
            break
        after = tuple(np.add(cell, MOVES[action]))
        if not all(0 <= x < 20 for x in after) or walls[after]:
            return True, False
        cell, steps = after, steps + 1
    return False, values[cell] - values[tuple(robot)] == steps


@pytest.mark.parametrize("exits", [1, 2])
def test_plans_are_walked(exits: int) -> None:
    rng = np.random.default_rng(exits)
    start = make_levels(LEVELS, NavigationOptions(exits=exits))
    values = optimal_values(start.walls, start.goal)
    best, robot = [], start.robot
    for _ in range(40):  # the shortest paths, far beyond their goals
        best.append(expert_actions(optimal_q(values, robot), rng.random(len(LEVELS))))
        robot = np.clip(robot + MOVES[best[-1]], 0, 19)
    actions = np.stack(best, 1)
    into_wall, optimal = check_plans(actions, start.walls, start.goal, start.robot, values)
    assert not into_wall.any()
    assert optimal.all()
    actions = np.where(rng.random(actions.shape) < 0.1, rng.integers(0, 4, actions.shape), actions)
    length = rng.integers(1, 41, len(LEVELS))
    actions[np.arange(40) >= length[:, None]] = NO_ACTION
    found = check_plans(actions, start.walls, start.goal, start.robot, values)
    table = zip(actions.tolist(), start.walls, start.goal, start.robot, values, strict=True)
    expected = [walk(*one) for one in table]
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
    assert {(True, False), (False, True), (False, False)} == set(expected)


@pytest.mark.parametrize(
    "solver",
    [solver("dtsn", iterations=8), solver("dtsn", iterations=1), solver("treeqn", depth=3), solver("qnet")],
    ids=["dtsn", "dtsn T=1", "treeqn", "qnet"],
)
def test_the_plan_ends_in_the_best_leaf(solver: Solver) -> None:
    start = make_levels(LEVELS, NavigationOptions())
    tree = solver.plan(
        observe(start.walls, start.goal, start.robot), generator=torch.Generator().manual_seed(0)
    )
    actions = planned_actions(tree)
    for b in range(len(LEVELS)):
        slot = 0
        for action in (int(a) for a in actions[b] if a != NO_ACTION):
            children = [n for n in range(tree.parent.shape[1]) if tree.parent[b, n] == slot]
            slot = children[action]
        assert slot == tree.best_leaf[b]
    np.testing.assert_array_equal(actions[:, 0], tree.q.argmax(1))


def test_plans_of_merged_trees_are_those_that_are_shown() -> None:
    """Behind an alias the way goes on from its place; inspection finds it node by node."""
    network = NetworkConfig(encoder="maps", value_scale=10.0, termination=True)
    config = SolverConfig("dtsn", iterations=14, merge=True)
    merged = Solver.create(config, Box(0, 1, (3, 20, 20)), Discrete(4), network=network, seed=2).eval()
    start = make_levels(LEVELS[:20], NavigationOptions())
    planes = torch.from_numpy(observe(start.walls, start.goal, start.robot))
    uniforms = torch.rand((20, 14), generator=torch.Generator().manual_seed(0))
    tree = merged.plan(planes, uniforms=uniforms)
    plans = planned_actions(tree)
    assert tree.merging is not None
    alias = tree.merging.alias[torch.arange(20), tree.best_leaf]
    assert alias.any()
    for b in range(20):
        document = describe_search(merged, planes[b], uniforms=uniforms[b : b + 1])
        nodes = document["nodes"]
        shown = [nodes[n]["action"] for n in document["best_path"][1:]]
        assert [a for a in plans[b].tolist() if a != NO_ACTION] == shown


@pytest.mark.parametrize("name", ["dtsn", "qnet"])
def test_rows_are_of_the_episodes_that_are_played(name: str) -> None:
    options = NavigationOptions(exits=1, max_steps=12)
    player = solver(name)
    played = evaluate_navigation(player, LEVELS, options, seed=3)
    rows = evaluate_plans(player, LEVELS, options, seed=3)
    assert [row.level for row in rows] == [row.level for row in played]
    for plan, episode in zip(rows, played, strict=True):
        if name == "dtsn" or episode.collision:  # a loop of the Q-network is not played to its end
            assert plan.decisions == episode.steps
        assert 0 <= plan.into_wall + plan.optimal <= plan.decisions
        assert plan.into_wall >= episode.collision  # its last plan began with the collision
    assert "% run into a wall" in plans_text(rows)
