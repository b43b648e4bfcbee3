"""The expert: value iteration against a plain breadth-first search, and the ways it walks."""

from collections import deque

import numpy as np
import pytest

from dtsn.envs.navigation import MOVES, Levels, NavigationOptions, make_levels, step
from dtsn.experts.value_iteration import CHUNK, expert_actions, optimal_q, optimal_steps, optimal_values


def search(walls, goal):
    """Minus the distance to the goal [2] of every cell of one level, [H, W], by breadth-first search."""
    values = np.full(walls.shape, -np.inf, dtype=np.float32)
    values[tuple(goal)] = 0
    queue = deque([tuple(goal)])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            near = (cell[0] + move[0], cell[1] + move[1])
            inside = 0 <= near[0] < walls.shape[0] and 0 <= near[1] < walls.shape[1]
            if inside and not walls[near] and values[near] == -np.inf:
                values[near] = values[cell] - 1
                queue.append(near)
    return values


def mazes(count, height, width, rng):
    """Random walls, dense enough for detours and closed-off regions, with a goal on a free cell."""
    walls = rng.random((count, height, width)) < 0.35
    goal = np.stack([rng.integers(height, size=count), rng.integers(width, size=count)], axis=1)
    walls[np.arange(count), goal[:, 0], goal[:, 1]] = False
    return walls, goal


@pytest.mark.parametrize(("height", "width"), [(9, 9), (5, 12), (1, 6)])
def test_values_equal_a_search_in_mazes(height, width):
    walls, goal = mazes(200, height, width, np.random.default_rng(0))
    values = optimal_values(walls, goal)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, [search(*level) for level in zip(walls, goal, strict=True)])


@pytest.mark.parametrize("exits", [1, 2])
def test_values_equal_a_search_in_levels(exits):
    levels = make_levels(np.arange(CHUNK + 44), NavigationOptions(exits=exits))  # more than one chunk
    values = optimal_values(levels.walls, levels.goal)
    expected = [search(*level) for level in zip(levels.walls, levels.goal, strict=True)]
    np.testing.assert_array_equal(values, expected)
    at_robot = values[np.arange(len(levels)), levels.robot[:, 0], levels.robot[:, 1]]
    assert np.array_equal(optimal_steps(levels), -at_robot)


def test_q_is_the_value_of_the_next_cell_less_one():
    walls, goal = mazes(300, 6, 7, np.random.default_rng(1))
    values = optimal_values(walls, goal)
    robot = np.array([np.argwhere(~level)[0] for level in walls])
    q = optimal_q(values, robot)
    assert q.shape == (300, 4)
    assert q.dtype == np.float32
    for action in range(4):
        after, _, collision = step(walls, goal, robot, np.full(300, action))
        ahead = values[np.arange(300), after[:, 0], after[:, 1]] - 1
        np.testing.assert_array_equal(q[:, action], np.where(collision, -np.inf, ahead))


@pytest.mark.parametrize("exits", [1, 2])
@pytest.mark.parametrize("layout", ["independent", "opposite"])
def test_the_expert_arrives_in_the_optimal_number_of_steps(exits, layout):
    levels = make_levels(np.arange(1000), NavigationOptions(exits=exits, exit_layout=layout))
    values, steps = optimal_values(levels.walls, levels.goal), optimal_steps(levels)
    rng = np.random.default_rng(0)
    robot, arrived = levels.robot, np.zeros(1000, dtype=np.int64)
    for t in range(1, steps.max() + 1):
        actions = expert_actions(optimal_q(values, robot), rng.random(1000))
        robot, success, collision = step(levels.walls, levels.goal, robot, actions)
        arrived[success & (arrived == 0)] = t
        assert not collision.any()
    assert np.array_equal(arrived, steps)


def test_more_exits_never_make_the_way_longer():
    one, two = (optimal_steps(make_levels(np.arange(1000), NavigationOptions(exits=n))) for n in (1, 2))
    assert np.all(two <= one)
    assert two.mean() < one.mean()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_are_broken_uniformly(dtype):
    rows = [
        [-3, -1, -1, -2],
        [-1, -1, -1, -1],
        [-np.inf, -2, -np.inf, -2],
        [-5, -4, -6, -9],
        [-1, -2, -1, -1],
    ]
    uniforms = np.arange(1200, dtype=dtype) / 1200
    for row in np.array(rows, dtype=np.float32):
        actions = expert_actions(np.tile(row, (1200, 1)), uniforms)
        counts = np.bincount(actions, minlength=4)
        best = row == row.max()
        assert np.all(np.abs(counts - best * 1200 / best.sum()) <= 1)
    edge = np.array([0, np.nextafter(dtype(1), dtype(0))], dtype=dtype)
    assert expert_actions(np.full((2, 4), -1, dtype=np.float32), edge).tolist() == [0, 3]
    assert expert_actions(np.array([[-2, -1, -1, -1]] * 2, dtype=np.float32), edge).tolist() == [1, 3]


def test_no_levels_are_no_trouble():
    levels = make_levels(np.zeros(0, dtype=np.int64))
    assert optimal_steps(levels).shape == (0,)
    values = optimal_values(levels.walls, levels.goal)
    assert expert_actions(optimal_q(values, levels.robot), np.zeros(0)).shape == (0,)


def test_impossible_requests_are_refused():
    walls = np.zeros((1, 3, 3), dtype=bool)
    walls[0, 1] = True
    goal = np.array([[0, 0]])
    values = optimal_values(walls, goal)
    with pytest.raises(ValueError, match=r"walls at the goals of levels \[0\]"):
        optimal_values(walls, np.array([[1, 1]]))
    with pytest.raises(ValueError, match=r"goal.*\(2,\)"):
        optimal_values(walls, goal[0])
    with pytest.raises(ValueError, match=r"robot.*\(2,\)"):
        optimal_q(values, goal[0])
    q = optimal_q(values, np.array([[2, 2]]))
    with pytest.raises(ValueError, match=r"levels \[0\]: the goal is out of reach"):
        expert_actions(q, np.array([0.5]))
    with pytest.raises(ValueError, match=r"uniforms.*1.0"):
        expert_actions(np.zeros((1, 4), dtype=np.float32), np.array([1.0]))
    levels = Levels(np.array([42]), walls, np.array([[2, 2]]), goal, np.zeros((1, 0, 2), dtype=np.int64))
    with pytest.raises(ValueError, match=r"unreachable.*42"):
        optimal_steps(levels)
