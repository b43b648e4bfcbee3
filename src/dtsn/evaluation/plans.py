"""Whether a search plans: can its planned paths be walked in the real hall, and are they the shortest?

The plan of a decision is the best path of its tree, from the root to the leaf with the largest path value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dtsn.arrays import Bools, Float32s, Ints
from dtsn.envs.navigation import NavigationOptions, make_levels, step
from dtsn.evaluation.navigation import Progress, play, questions
from dtsn.evaluation.rows import PlanRow
from dtsn.evaluation.softmax import is_deterministic
from dtsn.experts.value_iteration import optimal_values
from dtsn.search import SearchTree
from dtsn.solvers.solver import Solver

NO_ACTION = -1


def evaluate_plans(
    solver: Solver,
    levels: Ints,
    options: NavigationOptions | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[PlanRow]:
    """Play every level ``[L]`` as ``evaluate_navigation`` does and check the plan behind each decision."""
    options = options or NavigationOptions()
    start = make_levels(levels, options)
    values = optimal_values(start.walls, start.goal)
    decisions, into_wall, optimal = np.zeros((3, len(start)), dtype=np.int64)
    solver.eval()

    def act(active: Ints, robot: Ints, time: int) -> Ints:
        actions = np.empty(len(active), dtype=np.int64)
        for part, rows, observation, uniforms in questions(solver, start, active, robot, seed, time):
            tree = solver.plan(observation, uniforms=uniforms)
            actions[part] = tree.q.argmax(1).cpu().numpy()
            blocked, shortest = check_plans(
                planned_actions(tree), start.walls[rows], start.goal[rows], robot[part], values[rows]
            )
            into_wall[rows] += blocked
            optimal[rows] += shortest
        decisions[active] += 1
        return actions

    for moved in play(act, start, options.max_steps, loops=is_deterministic(solver)):
        if progress is not None:
            progress(len(start) - len(moved.active) + int((moved.arrived | moved.hit).sum()), len(start))
    table = zip(levels, decisions, into_wall, optimal, strict=True)
    return [PlanRow(int(level), options.exits, int(d), int(w), int(o)) for level, d, w, o in table]


def plans_text(rows: Sequence[PlanRow]) -> str:
    """Return what the plans of some episodes are worth, in a sentence."""
    decisions = sum(row.decisions for row in rows)
    into_wall, optimal = sum(row.into_wall for row in rows), sum(row.optimal for row in rows)
    return (
        f"of {decisions} plans, {100 * into_wall / decisions:.1f}% run into a wall and "
        f"{100 * optimal / decisions:.1f}% are optimal as far as they go"
    )


def planned_actions(tree: SearchTree) -> Ints:
    """Return the actions ``[B, D]`` of the best path, −1 after its end.

    It leads from the root to the leaf that counts most. Where that is an alias in a merged tree, it goes on
    from the node that the alias stands for to the best leaf below it.
    """
    leaf = tree.best_leaf.cpu().numpy()  # [B]
    actions = _actions_between(tree, np.zeros_like(leaf), leaf)
    if tree.merging is None:
        return actions
    place = tree.merging.canonical.cpu().numpy()[np.arange(len(leaf)), leaf]
    onward = _actions_between(tree, place, _best_below(tree, place))
    joined = np.concatenate([actions, onward], axis=1)
    order = np.argsort(joined == NO_ACTION, axis=1, kind="stable")  # closes the gap between the two ways
    return np.take_along_axis(joined, order, axis=1)


def _best_below(tree: SearchTree, place: Ints) -> Ints:
    """Find the best leaf ``[B]`` but aliases at or below the nodes ``place [B]``; without one, themselves."""
    assert tree.merging is not None
    below = np.arange(tree.path_value.shape[1]) == place[:, None]  # [B, N]
    row, parent = np.arange(len(place))[:, None], tree.parent.cpu().numpy()
    width = tree.num_actions
    for first in range(1, below.shape[1], width):  # children come after their parents, siblings together
        slots = slice(first, first + width)
        below[:, slots] |= below[row, parent[:, slots]] & (parent[:, slots] >= 0)
    counts = below & (tree.leaf & ~tree.merging.alias).cpu().numpy()
    value = np.where(counts, tree.path_value.cpu().numpy(), -np.inf)
    best: Ints = np.where(counts.any(1), value.argmax(1), place)
    return best


def _actions_between(tree: SearchTree, start: Ints, end: Ints) -> Ints:
    """List the actions ``[B, D]`` down from nodes ``start [B]`` to ``end [B]``, −1 after the last."""
    parent, depth = tree.parent.cpu().numpy(), tree.depth.cpu().numpy()  # [B, N]
    row, slot = np.arange(len(end)), end
    top = depth[row, start]
    actions = np.full((len(end), int((depth[row, end] - top).max())), NO_ACTION, dtype=np.int64)
    while np.any(inside := slot != start[row]):
        row, slot = row[inside], slot[inside]
        actions[row, depth[row, slot] - top[row] - 1] = (slot - 1) % tree.num_actions
        slot = parent[row, slot]
    return actions


def check_plans(
    actions: Ints, walls: Bools, goal: Ints, robot: Ints, values: Float32s
) -> tuple[Bools, Bools]:
    """Walk plans ``[B, D]`` in their halls: which run into a wall ``[B]``, which are optimal ``[B]``.

    From walls ``[B, H, W]``, goal ``[B, 2]``, robot ``[B, 2]`` and optimal values ``[B, H, W]``. A plan is
    over at the goal, whatever it goes on with; it is optimal if each of its steps comes one step nearer.
    """
    row, into_wall = np.arange(len(actions)), np.zeros(len(actions), dtype=bool)
    distance = -values[row, robot[:, 0], robot[:, 1]]
    taken, on = np.zeros(len(actions)), np.ones(len(actions), dtype=bool)
    for move in actions.T:
        on &= move != NO_ACTION
        robot_after, arrived, hit = step(walls, goal, robot, np.where(on, move, 0))
        into_wall |= on & hit
        on &= ~hit
        robot = np.where(on[:, None], robot_after, robot)
        taken += on
        on &= ~arrived
    left = -values[row, robot[:, 0], robot[:, 1]]
    return into_wall, ~into_wall & (distance - left == taken)
