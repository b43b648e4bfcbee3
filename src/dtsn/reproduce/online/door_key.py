"""A small room with a locked door: fetch the key, pass the door, reach the goal.

Whoever makes straight for the goal stands before a locked door: the key is a detour that pays only later,
and rooms are drawn anew for each episode, so the way has to be thought out. A wall with the door divides the
room; key and robot are on its left, the goal is on its right.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from dtsn.arrays import Bytes
from dtsn.errors import UserError

MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (row, column)
PLANES = ("wall", "door", "key", "goal", "robot")


class DoorKeyEnv(gymnasium.Env):  # type: ignore[misc]
    """Planes ``[5, H, W]`` uint8; reward −1 a step, as in Navigation; stepping on the key takes it."""

    def __init__(self, size: int = 4, max_steps: int = 40) -> None:
        if size < 4:
            raise UserError(f"size must be at least 4, got {size}")
        self.size, self.max_steps = size, max_steps
        self.observation_space = gymnasium.spaces.Box(0, 1, (len(PLANES), size, size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, dict[str, Any]]:
        """Draw a room."""
        super().reset(seed=seed)
        size, draw = self.size, self.np_random.integers
        self._column = int(draw(2, size - 1))  # of the wall
        self._door = (int(draw(size)), self._column)
        left = [(row, column) for row in range(size) for column in range(self._column)]
        robot, key = self.np_random.choice(len(left), 2, replace=False)
        self._robot, self._key = left[robot], left[key]
        self._goal = (int(draw(size)), int(draw(self._column + 1, size)))
        self._has_key, self._elapsed = False, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Bytes, float, bool, bool, dict[str, Any]]:
        """Move the robot; walls, borders and the locked door stop it."""
        row, column = (here + move for here, move in zip(self._robot, MOVES[action], strict=True))
        inside = 0 <= row < self.size and 0 <= column < self.size
        blocked = column == self._column and not ((row, column) == self._door and self._has_key)
        if inside and not blocked:
            self._robot = (row, column)
        self._has_key |= self._robot == self._key
        self._elapsed += 1
        success = self._robot == self._goal
        return self._observation(), -1.0, success, self._elapsed >= self.max_steps and not success, {}

    def _observation(self) -> Bytes:
        planes = np.zeros((len(PLANES), self.size, self.size), np.uint8)
        planes[0, :, self._column] = 1
        planes[(0, *self._door)] = 0
        planes[(1, *self._door)] = not self._has_key
        planes[(2, *self._key)] = not self._has_key
        planes[(3, *self._goal)] = planes[(4, *self._robot)] = 1
        return planes
