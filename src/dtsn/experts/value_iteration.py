"""The optimal policy of Navigation, by value iteration on all levels at once.

Shapes: L levels on an H×W grid; cells are (row, column).
"""

import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Bools, Float32s, Ints
from dtsn.envs.navigation import MOVES, Levels
from dtsn.errors import UserError

# Levels solved together; few enough that their values stay in cache and extra memory is small.
CHUNK = 256


def optimal_values(walls: Bools, goal: Ints) -> Float32s:
    """Return minus the number of steps to the goal, [L, H, W]; −inf for walls and where there is no way.

    From walls [L, H, W] and goal [L, 2].
    """
    if walls.ndim != 3 or goal.shape != (len(walls), 2):
        raise UserError(f"walls must be [L, H, W] and goal [L, 2], got shapes {walls.shape} and {goal.shape}")
    if np.any(walled := walls[np.arange(len(walls)), goal[:, 0], goal[:, 1]]):
        raise UserError(
            f"goal must be on free cells, got walls at the goals of levels {np.flatnonzero(walled)}"
        )
    values = np.empty(walls.shape, dtype=np.float32)
    for start in range(0, len(walls), CHUNK):
        chunk = slice(start, start + CHUNK)
        values[chunk] = _iterate(walls[chunk], goal[chunk])
    return values


def _iterate(walls: Bools, goal: Ints) -> Float32s:
    """Back up V(x) = −1 + max over the neighbours' V, with V(goal) = 0, until nothing changes."""
    level = np.arange(len(walls))
    # Levels go last, [H, W, L], which makes the shifted views below long contiguous runs.
    reward = np.where(np.moveaxis(walls, 0, -1), -np.inf, -1).astype(np.float32)
    height, width, _ = reward.shape
    padded = np.full((height + 2, width + 2, len(walls)), -np.inf, dtype=np.float32)  # off the grid is −inf
    values = padded[1:-1, 1:-1]
    values[goal[:, 0], goal[:, 1], level] = 0
    while True:
        neighbours = [padded[1 + row :, 1 + column :][:height, :width] for row, column in MOVES]
        backup = np.maximum(
            np.maximum(neighbours[0], neighbours[1]), np.maximum(neighbours[2], neighbours[3])
        )
        backup += reward
        backup[goal[:, 0], goal[:, 1], level] = 0
        if np.array_equal(backup, values):
            return np.moveaxis(backup, -1, 0)
        values[:] = backup


def optimal_q(values: Float32s, robot: Ints) -> Float32s:
    """Return Q of every action, [L, 4], from values [L, H, W] and robot [L, 2]; −inf for collisions."""
    if values.ndim != 3 or robot.shape != (len(values), 2):
        raise UserError(f"values must be [L, H, W] and robot [L, 2], got {values.shape} and {robot.shape}")
    target = robot[:, None] + MOVES  # [L, 4, 2]
    cell = np.clip(target, 0, np.array(values.shape[1:]) - 1)
    off_grid = (cell != target).any(axis=-1)
    q = values[np.arange(len(values))[:, None], cell[..., 0], cell[..., 1]] - 1
    return np.where(off_grid, np.float32(-np.inf), q)


def expert_actions(q: Float32s, uniforms: NDArray[np.floating]) -> Ints:
    """Choose an optimal action of every level, [L], from q [L, 4]; uniforms [L] in [0, 1) break ties."""
    if q.ndim != 2 or uniforms.shape != (len(q),):
        raise UserError(f"q must be [L, 4] and uniforms [L], got shapes {q.shape} and {uniforms.shape}")
    if not np.all((uniforms >= 0) & (uniforms < 1)):
        raise UserError(f"uniforms must be in [0, 1), got {uniforms.min()} .. {uniforms.max()}")
    best = q.max(axis=1, keepdims=True)
    if np.any(lost := np.isneginf(best[:, 0])):
        raise UserError(f"q has no finite action in levels {np.flatnonzero(lost)}: the goal is out of reach")
    optimal = q == best  # [L, 4]
    rank = np.floor(uniforms * optimal.sum(axis=1))  # which of the optimal actions, [L]
    chosen: Ints = np.argmax(np.cumsum(optimal, axis=1) > rank[:, None], axis=1)
    return chosen


def optimal_steps(levels: Levels) -> Ints:
    """Count the steps of the shortest path from robot to goal, [L]."""
    values = optimal_values(levels.walls, levels.goal)
    values = values[np.arange(len(levels)), levels.robot[:, 0], levels.robot[:, 1]]
    if np.any(lost := np.isneginf(values)):
        raise UserError(f"levels has unreachable goals, at seeds {levels.seeds[lost]}")
    return -values.astype(np.int64)
