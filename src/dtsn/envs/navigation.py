"""Navigation: a robot leaves a walled hall and drives to a goal outside, without touching a wall.

The task of the D-TSN paper (Mittal & Lee, 2024). `make_levels`, `observe` and `step` are pure functions on
whole batches of levels; `NavigationVectorEnv` adds episodes to them, and `NavigationEnv` is a batch of one.

Cells are (row, column); rows grow to the south, columns to the east. Shapes: L levels on an H×W grid.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike

from dtsn.arrays import Array, Bools, Bytes, Float64s, Ints
from dtsn.errors import UserError
from dtsn.randomness import hashed_integers

ACTION_NAMES = ("E", "S", "W", "N")
MOVES: Ints = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)], dtype=np.int64)  # [4, 2] (row, column)

# Half-open ranges of level seeds; disjoint, so no level is both trained and tested on.
SPLITS = {"train": (0, 10**6), "validation": (10**6, 2 * 10**6), "test": (2 * 10**6, 3 * 10**6)}

EXIT_LAYOUTS = ("independent", "opposite")
RENDER_MODES = ("rgb_array", "ansi")


@dataclass(frozen=True)
class NavigationOptions:
    """What all levels have in common.

    `exits` is 1 or 2. With `exit_layout="independent"` two exits are any two cells of the hall's walls,
    corners excluded; with `"opposite"` they are on opposite sides. `hall` is the first and last row, and
    column, of the square ring of walls.
    """

    exits: int = 2
    exit_layout: str = "opposite"
    size: int = 20
    hall: tuple[int, int] = (8, 11)
    max_steps: int = 200

    def __post_init__(self) -> None:
        if self.exits not in (1, 2):
            raise UserError(f"exits must be 1 or 2, got {self.exits!r}")
        if self.exit_layout not in EXIT_LAYOUTS:
            raise UserError(f"exit_layout must be one of {EXIT_LAYOUTS}, got {self.exit_layout!r}")
        if self.max_steps < 1:
            raise UserError(f"max_steps must be at least 1, got {self.max_steps!r}")
        # A free border around the hall keeps every goal reachable from every exit.
        if len(self.hall) != 2 or not 1 <= self.hall[0] <= self.hall[1] - 2 <= self.size - 4:
            raise UserError(
                f"hall must be (first, last) with 1 <= first, first + 2 <= last and last <= size - 2 "
                f"for size={self.size!r}, got {self.hall!r}"
            )


@dataclass(frozen=True)
class Levels:
    """A batch of levels, each in its initial state."""

    seeds: Ints  # [L]
    walls: Bools  # [L, H, W]
    robot: Ints  # [L, 2]
    goal: Ints  # [L, 2]
    exits: Ints  # [L, options.exits, 2]

    def __len__(self) -> int:
        return len(self.seeds)


def make_levels(seeds: ArrayLike, options: NavigationOptions | None = None) -> Levels:
    """Make the level of every seed, [L].

    The 1-exit level of a seed is its 2-exit level with one of the exits walled up, so that the two scenarios
    can be compared level by level.
    """
    options = options or NavigationOptions()
    seeds = np.asarray(seeds)
    if seeds.ndim != 1 or not np.issubdtype(seeds.dtype, np.integer):
        raise UserError(f"seeds must be a 1-d array of integers, got {seeds.dtype} of shape {seeds.shape}")
    if np.any(seeds < 0):
        raise UserError(f"seeds must not be negative, got {seeds.min()}")
    seeds = seeds.astype(np.int64)

    first, last = options.hall
    inside = np.arange(first + 1, last)  # rows, and columns, of the hall's interior
    width = len(inside)
    level = np.arange(len(seeds))

    # The cells an exit can be in, [4 * width, 2]: east side, south side, west side, north side.
    doors = np.concatenate(
        [
            np.stack(np.broadcast_arrays(*side), axis=-1)
            for side in ((inside, last), (last, inside), (inside, first), (first, inside))
        ]
    )
    one = hashed_integers(seeds, 2, len(doors))
    if options.exit_layout == "independent":
        two = (one + 1 + hashed_integers(seeds, 3, len(doors) - 1)) % len(doors)  # any cell but the first
    else:
        two = (one // width + 2) % 4 * width + hashed_integers(seeds, 3, width)
    exits = doors[np.stack([one, two], axis=1)]  # [L, 2, 2]
    if options.exits == 1:
        exits = exits[level, hashed_integers(seeds, 4, 2), None]  # [L, 1, 2]

    hall = np.zeros((options.size, options.size), dtype=bool)
    hall[first : last + 1, first : last + 1] = True
    outside = np.argwhere(~hall)
    hall[first + 1 : last, first + 1 : last] = False  # what remains is the ring
    walls = np.repeat(hall[None], len(seeds), axis=0)
    walls[level[:, None], exits[..., 0], exits[..., 1]] = False

    robot = np.stack(np.divmod(hashed_integers(seeds, 0, width**2), width), axis=-1) + first + 1
    goal = outside[hashed_integers(seeds, 1, len(outside))]
    return Levels(seeds=seeds, walls=walls, robot=robot, goal=goal, exits=exits)


def observe(walls: Bools, goal: Ints, robot: Ints) -> Bytes:
    """Return binary planes [L, 3, H, W] of walls [L, H, W], goal [L, 2] and robot [L, 2]."""
    level = np.arange(len(walls))
    planes = np.zeros((len(walls), 3, *walls.shape[1:]), dtype=np.uint8)
    planes[:, 0] = walls
    planes[level, 1, goal[:, 0], goal[:, 1]] = 1
    planes[level, 2, robot[:, 0], robot[:, 1]] = 1
    return planes


def step(walls: Bools, goal: Ints, robot: Ints, actions: ArrayLike) -> tuple[Ints, Bools, Bools]:
    """Move every robot [L, 2] by its action [L]; return the new robot [L, 2], success [L] and collision [L].

    A robot that would hit a wall or leave the grid collides and stays where it was.
    """
    actions = np.asarray(actions)
    if actions.shape != (len(walls),) or not np.issubdtype(actions.dtype, np.integer):
        raise UserError(
            f"actions must be integers of shape ({len(walls)},), got {actions.dtype} of shape {actions.shape}"
        )
    if np.any((actions < 0) | (actions >= len(MOVES))):
        raise UserError(f"actions must be in 0 .. {len(MOVES) - 1}, got {actions}")
    target = robot + MOVES[actions]
    cell = np.clip(target, 0, np.array(walls.shape[1:]) - 1)
    off_grid = (cell != target).any(axis=1)
    collision = off_grid | walls[np.arange(len(walls)), cell[:, 0], cell[:, 1]]
    robot = np.where(collision[:, None], robot, target)
    success = (robot == goal).all(axis=1) & ~collision
    return robot, success, collision


FLOOR, WALL, GOAL, ROBOT = (246, 245, 240), (54, 60, 72), (46, 160, 90), (40, 104, 200)


def grid_symmetries(arrays: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Turn and mirror each sample of a batch at random; a `transform` for `Dataset.batches`.

    For square grids seen from above, observations [B, C, H, H], with `MOVES` as actions: one of the square's
    8 symmetries moves both frames and the action together.
    """
    frames = {name: np.empty_like(arrays[name]) for name in ("observation", "next_observation")}
    moves: dict[str, Array] = {name: arrays[name].copy() for name in ("action", "path") if name in arrays}
    symmetry = rng.integers(8, size=len(moves["action"]))
    for mirror, turns in itertools.product((False, True), range(4)):
        chosen = np.flatnonzero(symmetry == 4 * mirror + turns)
        for name, turned in frames.items():
            grid = arrays[name][chosen]
            turned[chosen] = np.rot90(grid[..., ::-1] if mirror else grid, -turns, axes=(-2, -1))  # clockwise
        for name, turned in moves.items():
            move = arrays[name][chosen]
            clockwise = ((2 - move if mirror else move) + turns) % 4  # as `MOVES` go, east to west
            turned[chosen] = np.where(move < 0, move, clockwise)
    return {**arrays, **frames, **moves}


def render_rgb(walls: Bools, goal: Ints, robot: Ints, cell: int = 16) -> Bytes:
    """Draw one level, [H * cell, W * cell, 3], from walls [H, W], goal [2] and robot [2]."""
    if cell < 4:
        raise UserError(f"cell must be at least 4 pixels for the shapes to show, got {cell!r}")
    colours = np.array([FLOOR, WALL], dtype=np.uint8)[walls.astype(np.int64)]  # [H, W, 3]
    image = colours.repeat(cell, axis=0).repeat(cell, axis=1)
    for line in (image[::cell], image[:, ::cell]):
        line[:] = line * 0.92  # darker than the cell it crosses, on floor and wall alike
    offset = np.abs(np.indices((cell, cell)) - cell / 2)  # [2, cell, cell] from the centre
    square, disc = offset.max(axis=0) < 0.4 * cell, np.hypot(*offset) < 0.34 * cell
    for (row, column), colour, shape in ((goal * cell, GOAL, square), (robot * cell, ROBOT, disc)):
        image[row : row + cell, column : column + cell][shape] = colour
    return image


def render_ansi(walls: Bools, goal: Ints, robot: Ints) -> str:
    """Write one level as text, a line per row: `#` wall, `.` floor, `G` goal, `R` robot."""
    cells = np.where(walls, "#", ".")
    cells[tuple(goal)] = "G"
    cells[tuple(robot)] = "R"
    return "\n".join("".join(row) for row in cells)


class NavigationVectorEnv(gym.vector.VectorEnv):  # type: ignore[misc]
    """Many navigation episodes at once; behaves as `SyncVectorEnv` of `NavigationEnv` does.

    An episode that ended shows its last observation; the next step ignores its action and starts a new level
    with reward 0 (next-step autoreset). `reset(options={"levels": seeds})` starts exactly the given levels.

    Every step costs 1, as in the paper, whose data hold no collisions. An agent that learns by trying needs a
    `collision_reward` below minus the longest way: if a collision costs a step's 1 and ends the episode, the
    best that it can do is to crash at once.
    """

    metadata = {  # noqa: RUF012 (gymnasium's convention)
        "render_modes": list(RENDER_MODES),
        "render_fps": 8,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        split: str = "train",
        render_mode: str | None = None,
        collision_reward: float = -1.0,
        **options: Any,
    ) -> None:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, got {num_envs!r}")
        if split not in SPLITS:
            raise UserError(f"split must be one of {tuple(SPLITS)}, got {split!r}")
        if render_mode not in (None, *RENDER_MODES):
            raise UserError(f"render_mode must be None or one of {RENDER_MODES}, got {render_mode!r}")
        if not math.isfinite(collision_reward):
            raise UserError(f"collision_reward must be finite, got {collision_reward!r}")
        self.num_envs, self.split, self.render_mode = num_envs, split, render_mode
        self.collision_reward = collision_reward
        self.options = NavigationOptions(**options)
        size = self.options.size
        self.single_observation_space = gym.spaces.Box(0, 1, (3, size, size), np.uint8)
        self.single_action_space = gym.spaces.Discrete(len(MOVES))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        # A generator per slot, so that the levels of a slot do not depend on when the other slots finish.
        self._generators: list[np.random.Generator] = []
        self._level = np.zeros(num_envs, dtype=np.int64)
        self._walls = np.zeros((num_envs, size, size), dtype=bool)
        self._goal = np.zeros((num_envs, 2), dtype=np.int64)
        self._robot = np.zeros((num_envs, 2), dtype=np.int64)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self.done = np.ones(num_envs, dtype=bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, dict[str, Any]]:
        """Start a level in every slot: those of `options["levels"]`, else drawn from the split."""
        self._seed_generators(seed)
        everywhere = np.ones(self.num_envs, dtype=bool)
        levels = _option(options, "levels")
        if levels is None:
            levels = self._draw_levels(everywhere)
        elif np.shape(levels) != (self.num_envs,):
            raise UserError(f"levels must be of shape ({self.num_envs},), got shape {np.shape(levels)}")
        self._start(everywhere, levels)
        return self._observation(), {"level": self._level.copy(), "_level": everywhere}

    def step(self, actions: ArrayLike) -> tuple[Bytes, Float64s, Bools, Bools, dict[str, Any]]:
        """Move every robot, except where an episode has ended: there a new one starts."""
        if not self._generators:
            raise gym.error.ResetNeeded("call reset() before the first step()")
        moved = ~self.done
        self._robot, success, collision = step(self._walls, self._goal, self._robot, actions)
        self._elapsed += 1
        success, collision = success & moved, collision & moved
        terminated = success | collision
        truncated = (self._elapsed >= self.options.max_steps) & moved & ~terminated
        self.done = terminated | truncated
        if not moved.all():
            self._start(~moved, self._draw_levels(~moved))
        info = {"level": self._level.copy(), "_level": np.ones(self.num_envs, dtype=bool)}
        info |= {"success": success, "_success": moved, "collision": collision, "_collision": moved.copy()}
        reward = np.where(collision, self.collision_reward, np.where(moved, -1.0, 0.0))
        return self._observation(), reward, terminated, truncated, info

    def render(self) -> tuple[Any, ...] | None:
        """Render every slot: a tuple of pictures or of texts, as `render_mode` says."""
        if self.render_mode is None:
            return None
        draw = render_rgb if self.render_mode == "rgb_array" else render_ansi
        return tuple(draw(*scene) for scene in zip(self._walls, self._goal, self._robot, strict=True))

    def _observation(self) -> Bytes:
        return observe(self._walls, self._goal, self._robot)

    def _seed_generators(self, seed: int | Sequence[int | None] | None) -> None:
        """Seed slot i by seed + i, or by seed[i]; a slot without a seed goes on with the generator it has."""
        if seed is None:
            seed = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seed = [int(seed) + slot for slot in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UserError(f"seed must be an int or a list of {self.num_envs}, got {len(seed)} seeds")
        self._generators = [
            self._generators[slot] if self._generators and own is None else seeding.np_random(own)[0]
            for slot, own in enumerate(seed)
        ]

    def _draw_levels(self, slots: Bools) -> Ints:
        """Draw a level seed from the split for each of the slots [L] that are true."""
        split = SPLITS[self.split]
        return np.array([self._generators[slot].integers(*split) for slot in np.flatnonzero(slots)])

    def _start(self, slots: Bools, seeds: ArrayLike) -> None:
        """Put the levels of the seeds into the slots [L] that are true."""
        levels = make_levels(seeds, self.options)
        self._level[slots] = levels.seeds
        self._walls[slots] = levels.walls
        self._goal[slots] = levels.goal
        self._robot[slots] = levels.robot
        self._elapsed[slots] = 0
        self.done[slots] = False


class NavigationEnv(gym.Env):  # type: ignore[misc]
    """One navigation episode at a time.

    A level is drawn from the split by `np_random`, or given as `reset(options={"level": 123})`.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 8}  # noqa: RUF012 (gymnasium's convention)

    def __init__(
        self,
        *,
        split: str = "train",
        render_mode: str | None = None,
        collision_reward: float = -1.0,
        **options: Any,
    ) -> None:
        self._batch = NavigationVectorEnv(
            1, split=split, render_mode=render_mode, collision_reward=collision_reward, **options
        )
        self.render_mode = render_mode
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, dict[str, Any]]:
        """Start the level `options["level"]`, else one drawn from the split."""
        super().reset(seed=seed)
        level = _option(options, "level")
        if level is None:
            level = self.np_random.integers(*SPLITS[self._batch.split])
        observation, info = self._batch.reset(options={"levels": [level]})
        return observation[0], _first(info)

    def step(self, action: int) -> tuple[Bytes, float, bool, bool, dict[str, Any]]:
        """Move the robot by the action, an index of `ACTION_NAMES`."""
        if self._batch.done[0]:
            raise gym.error.ResetNeeded("the episode has ended or not begun: call reset() before step()")
        observation, reward, terminated, truncated, info = self._batch.step([action])
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(info)

    def render(self) -> Any:
        """Return a picture or the text of the current state, as `render_mode` says."""
        frames = self._batch.render()
        return None if frames is None else frames[0]


def _option(options: dict[str, Any] | None, name: str) -> Any:
    """Return the one reset option there is, or None; a misspelt one must not be silently ignored."""
    if unknown := set(options or {}) - {name}:
        raise UserError(f"reset options must be {name!r} alone, got {sorted(unknown)}")
    return (options or {}).get(name)


def _first(info: dict[str, Any]) -> dict[str, Any]:
    """Return the info of a single environment, without the masks that the vector info has."""
    return {key: values[0].item() for key, values in info.items() if not key.startswith("_")}
