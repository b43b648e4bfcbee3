"""Navigation: its levels, its rules, and the agreement of its two environments."""

from copy import deepcopy
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import dtsn.envs  # noqa: F401 (registers the environment)
from dtsn.envs.navigation import (
    ACTION_NAMES,
    MOVES,
    SPLITS,
    NavigationEnv,
    NavigationOptions,
    NavigationVectorEnv,
    grid_symmetries,
    make_levels,
    observe,
    render_ansi,
    render_rgb,
    step,
)

E, S, W, N = range(4)
LAYOUTS = ("independent", "opposite")


def side(cells, hall=(8, 11)):
    """The side of the ring that each cell [..., 2] is on, as the action that leads out of the hall there."""
    row, column = cells[..., 0], cells[..., 1]
    first, last = hall
    on = np.stack([column == last, row == last, column == first, row == first], axis=-1)
    assert np.all(on.sum(axis=-1) == 1), "on one side exactly: neither a corner nor off the ring"
    return on.argmax(axis=-1)


def reachable(walls, start):
    """Cells that a flood fill from `start` [2] reaches, [H, W]."""
    seen, frontier = {tuple(start)}, [tuple(start)]
    while frontier:
        row, column = frontier.pop()
        for d_row, d_column in MOVES:
            cell = (int(row + d_row), int(column + d_column))
            inside = 0 <= cell[0] < walls.shape[0] and 0 <= cell[1] < walls.shape[1]
            if inside and not walls[cell] and cell not in seen:
                seen.add(cell)
                frontier.append(cell)
    return seen


# --- levels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exits", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_levels_are_as_described(exits, layout):
    levels = make_levels(np.arange(5000), NavigationOptions(exits=exits, exit_layout=layout))
    assert len(levels) == 5000
    assert levels.walls.shape == (5000, 20, 20)
    assert levels.exits.shape == (5000, exits, 2)

    ring = np.zeros((20, 20), dtype=bool)
    ring[8:12, 8:12] = True
    ring[9:11, 9:11] = False
    opened = ring & ~levels.walls
    assert np.all(levels.walls <= ring)
    assert np.all(opened.sum(axis=(1, 2)) == exits)
    assert np.all(opened[np.arange(5000)[:, None], levels.exits[..., 0], levels.exits[..., 1]])
    sides = side(levels.exits)
    if layout == "opposite" and exits == 2:
        assert np.all((sides[:, 0] + 2) % 4 == sides[:, 1])

    assert np.all((levels.robot >= 9) & (levels.robot <= 10))
    assert np.all((levels.goal >= 0) & (levels.goal < 20))
    assert not np.any(np.all((levels.goal >= 8) & (levels.goal <= 11), axis=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_exit_level_is_the_two_exit_level_with_one_walled_up(layout):
    seeds = np.arange(2000)
    one = make_levels(seeds, NavigationOptions(exits=1, exit_layout=layout))
    two = make_levels(seeds, NavigationOptions(exits=2, exit_layout=layout))
    assert np.array_equal(one.robot, two.robot)
    assert np.array_equal(one.goal, two.goal)
    assert np.all((one.walls ^ two.walls).sum(axis=(1, 2)) == 1)
    assert np.all(one.walls >= two.walls)
    kept_first = (one.exits[:, 0] == two.exits[:, 0]).all(axis=1)
    assert abs(kept_first.mean() - 0.5) < 0.06  # over 5 standard deviations


@pytest.mark.parametrize("exits", [1, 2])
def test_goal_is_reachable(exits):
    for options in (
        NavigationOptions(exits=exits),
        NavigationOptions(exits=exits, size=5, hall=(1, 3)),  # the smallest there is
    ):
        levels = make_levels(np.arange(200), options)
        for walls, robot, goal in zip(levels.walls, levels.robot, levels.goal, strict=True):
            assert tuple(goal) in reachable(walls, robot)


def chi_square(values, categories):
    """Chi-square statistic over its degrees of freedom; about 1 for uniform values."""
    counts = np.bincount(values, minlength=categories)
    assert len(counts) == categories
    expected = len(values) / categories
    return np.sum((counts - expected) ** 2 / expected) / (categories - 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_are_uniform_and_independent(layout):
    options = NavigationOptions(exit_layout=layout, hall=(7, 12))
    levels = make_levels(np.arange(40_000), options)
    sides = side(levels.exits, options.hall)
    offset = np.where(sides % 2 == 0, levels.exits[..., 0], levels.exits[..., 1]) - 8
    exits = sides * 4 + offset  # [L, 2], one of 16
    pairs = exits[:, 0] * 16 + exits[:, 1]
    robot = (levels.robot - 8) @ [4, 1]
    outside = np.ones((20, 20), dtype=bool)
    outside[7:13, 7:13] = False
    goal = (np.cumsum(outside) - 1)[levels.goal @ [20, 1]]

    possible = np.unique(pairs)
    assert len(possible) == (16 * 15 if layout == "independent" else 16 * 4)
    assert chi_square(np.searchsorted(possible, pairs), len(possible)) < 1.6
    assert chi_square(robot, 16) < 3
    assert chi_square(goal, outside.sum()) < 1.5
    assert chi_square(robot * 16 + exits[:, 0], 256) < 1.6
    assert chi_square(robot[:-1] * 16 + robot[1:], 256) < 1.6  # of neighbouring seeds


def test_level_depends_on_its_seed_alone():
    seeds = np.array([5, 123_456, 2_999_999, 0, 5])
    together = make_levels(seeds)
    for i, seed in enumerate(seeds):
        alone = make_levels([seed])
        for name in ("walls", "robot", "goal", "exits", "seeds"):
            assert np.array_equal(getattr(alone, name)[0], getattr(together, name)[i])


def test_a_level_stays_what_it_is():
    """Data and results name levels by seed, so the seed's level must never change."""
    level = make_levels([2_000_000], NavigationOptions(hall=(7, 12), exit_layout="independent"))
    assert level.robot.tolist() == [[9, 10]]
    assert level.goal.tolist() == [[13, 0]]
    assert level.exits.tolist() == [[[12, 8], [7, 11]]]


def test_splits_are_disjoint():
    ranges = sorted(SPLITS.values())
    assert all(low < high for low, high in ranges)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"exits": 3}, "exits.*3"),
        ({"exit_layout": "random"}, "exit_layout.*'random'"),
        ({"hall": (0, 5)}, r"hall.*\(0, 5\)"),
        ({"hall": (7, 8)}, r"hall.*\(7, 8\)"),
        ({"hall": (7, 19)}, r"hall.*\(7, 19\)"),
        ({"size": 12}, "hall.*size=12"),
        ({"max_steps": 0}, "max_steps.*0"),
        ({"split": "dev"}, "split.*'dev'"),
        ({"render_mode": "human"}, "render_mode.*'human'"),
    ],
)
def test_invalid_options_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        NavigationEnv(**options)


@pytest.mark.parametrize("seeds", [[-1], [0.5], 3, [[1]]])
def test_invalid_seeds_are_refused(seeds):
    with pytest.raises(ValueError, match="seeds must"):
        make_levels(seeds)


# --- rules --------------------------------------------------------------------------------------------------


def test_moves_and_their_names():
    walls = np.zeros((4, 9, 9), dtype=bool)
    goal = np.tile([0, 0], (4, 1))
    robot, success, collision = step(walls, goal, np.tile([4, 4], (4, 1)), np.arange(4))
    assert dict(zip(ACTION_NAMES, robot.tolist(), strict=True)) == {
        "E": [4, 5],
        "S": [5, 4],
        "W": [4, 3],
        "N": [3, 4],
    }
    assert not success.any()
    assert not collision.any()


@pytest.mark.parametrize(
    ("robot", "action"), [([3, 8], E), ([8, 3], S), ([3, 0], W), ([0, 3], N), ([4, 4], E), ([5, 5], N)]
)
def test_collisions_leave_the_robot_in_place(robot, action):
    walls = np.zeros((1, 9, 9), dtype=bool)
    walls[0, 4, 5] = True
    after, success, collision = step(walls, np.array([[0, 0]]), np.array([robot]), [action])
    assert after.tolist() == [robot]
    assert collision.tolist() == [True]
    assert success.tolist() == [False]


@pytest.mark.parametrize("actions", [[4], [-1], [0, 1], [0.0]])
def test_invalid_actions_are_refused(actions):
    level = make_levels([0])
    with pytest.raises(ValueError, match="actions must"):
        step(level.walls, level.goal, level.robot, actions)


def test_observation_planes():
    levels = make_levels(np.arange(50))
    planes = observe(levels.walls, levels.goal, levels.robot)
    assert planes.dtype == np.uint8
    assert planes.shape == (50, 3, 20, 20)
    assert np.array_equal(planes[:, 0], levels.walls)
    for plane, cells in ((planes[:, 1], levels.goal), (planes[:, 2], levels.robot)):
        assert np.array_equal(np.argwhere(plane)[:, 1:], cells)


def test_success_ends_the_episode_with_the_last_reward():
    env = NavigationEnv()
    walls, goal = make_levels([7]).walls[0], make_levels([7]).goal[0]
    _, info = env.reset(options={"level": 7})
    assert info == {"level": 7}
    action = next(
        a
        for a, move in enumerate(MOVES)
        if np.all((goal - move >= 0) & (goal - move < 20)) and not walls[tuple(goal - move)]
    )
    env._batch._robot[0] = goal - MOVES[action]
    observation, reward, terminated, truncated, info = env.step(action)
    assert np.array_equal(observation[1], observation[2])
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert info == {"level": 7, "success": True, "collision": False}
    with pytest.raises(gym.error.ResetNeeded):
        env.step(action)


@pytest.mark.parametrize(
    ("last", "terminated", "truncated", "collision"), [(E, False, True, False), (W, True, False, True)]
)
def test_the_step_limit_truncates_unless_the_episode_ends_anyway(last, terminated, truncated, collision):
    hall = (7, 12)
    levels = make_levels(np.arange(100), NavigationOptions(hall=hall))
    row, column = levels.robot.T
    level = int(np.flatnonzero((column == 10) & levels.walls[np.arange(100), row, 7])[0])
    env = NavigationEnv(max_steps=3, hall=hall)
    env.reset(options={"level": level})
    for _ in range(2):  # to the cell next to the west wall
        assert env.step(W)[1:] == (-1, False, False, {"level": level, "success": False, "collision": False})
    info = {"level": level, "success": False, "collision": collision}
    assert env.step(last)[1:] == (-1, terminated, truncated, info)


# --- environments -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("render_mode", ["rgb_array", "ansi"])
def test_check_env(render_mode):
    check_env(gym.make("dtsn/Navigation-v0", exits=1, render_mode=render_mode).unwrapped)


def test_reset_draws_from_the_split_by_seed():
    for split, (low, high) in SPLITS.items():
        env = gym.make("dtsn/Navigation-v0", split=split)
        levels = [env.reset(seed=3)[1]["level"], *(env.reset()[1]["level"] for _ in range(20))]
        assert all(low <= level < high for level in levels)
        assert len(set(levels)) > 15
        assert levels[:2] == [env.reset(seed=3)[1]["level"], env.reset()[1]["level"]]


def test_misspelt_reset_option_is_refused():
    with pytest.raises(ValueError, match="levels"):
        NavigationEnv().reset(options={"levels": 3})
    with pytest.raises(ValueError, match="levels must be of shape"):
        NavigationVectorEnv(2).reset(options={"levels": [3]})


def make_pair(num_envs, **kwargs):
    """The vector environment, and gymnasium's loop over single ones."""
    ours = gym.make_vec(
        "dtsn/Navigation-v0", num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs
    )
    loop = gym.make_vec("dtsn/Navigation-v0", num_envs=num_envs, vectorization_mode="sync", **kwargs)
    assert isinstance(ours.unwrapped, NavigationVectorEnv)
    assert isinstance(loop.unwrapped, SyncVectorEnv)
    return ours, loop


@pytest.mark.parametrize("seed", [11, [9, 4, 4, 2, 8, 7]])
@pytest.mark.parametrize("max_steps", [4, 200])
def test_vector_env_equals_single_envs(seed, max_steps):
    """Step by step, through last observations, terminations, truncations and automatic resets."""
    ours, loop = make_pair(6, max_steps=max_steps, exits=2, exit_layout="opposite")
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert ours.observation_space == loop.observation_space
    assert ours.action_space == loop.action_space
    rng = np.random.default_rng(0)
    for reset_seed in (seed, None):
        for got, expected in zip(ours.reset(seed=reset_seed), loop.reset(seed=reset_seed), strict=True):
            np.testing.assert_equal(got, expected)
        ended, truncations = 0, 0
        for _ in range(60):
            actions = rng.integers(4, size=6)
            got, expected = ours.step(actions), loop.step(actions)
            for a, b in zip(got[:4], expected[:4], strict=True):
                np.testing.assert_equal(a, b)
                assert a.dtype == b.dtype
            for key, value in expected[4].items():
                np.testing.assert_equal(got[4][key], value)
            assert got[0] in ours.observation_space
            ended += got[2].sum()
            truncations += got[3].sum()
        assert ended > 10
        assert (truncations > 5) == (max_steps == 4)


def test_vector_env_plays_given_levels():
    ours, _ = make_pair(3)
    seeds = np.array([2_000_001, 5, 1_500_000])
    observation, info = ours.reset(options={"levels": seeds})
    levels = make_levels(seeds)
    assert np.array_equal(info["level"], seeds)
    assert np.array_equal(observation, observe(levels.walls, levels.goal, levels.robot))


def test_vector_env_keeps_the_last_observation_then_resets():
    ours, _ = make_pair(2, max_steps=50)
    observation, _ = ours.reset(options={"levels": [1, 2]}, seed=0)
    for _ in range(50):  # due east: into the hall's wall, or through an exit and off the grid
        before = observation
        observation, reward, terminated, _, info = ours.step([E, E])
        if terminated[0]:
            break
    assert np.array_equal(observation[0], before[0]), "a collision leaves the robot in place"
    assert (reward[0], info["level"][0], info["collision"][0]) == (-1, 1, True)
    after, reward, terminated, _, info = ours.step([E, E])
    level = make_levels(info["level"][:1])
    assert np.array_equal(after[0], observe(level.walls, level.goal, level.robot)[0])
    assert (reward[0], terminated[0], info["_success"][0], info["_level"][0]) == (0, False, False, True)


def test_results_do_not_change_afterwards():
    ours, _ = make_pair(4, max_steps=2)
    results = [ours.reset(seed=0)]
    copies = [deepcopy(results[0])]
    for _ in range(6):
        results.append(ours.step([E, S, W, N]))
        copies.append(deepcopy(results[-1]))
    np.testing.assert_equal(results, copies)


def test_vector_env_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"num_envs.*0"):
        NavigationVectorEnv(0)
    with pytest.raises(gym.error.ResetNeeded):
        NavigationVectorEnv(2).step([0, 0])
    with pytest.raises(ValueError, match="seed must be"):
        NavigationVectorEnv(2).reset(seed=[1, 2, 3])


# --- pictures -----------------------------------------------------------------------------------------------


def test_render_rgb_shows_everything():
    levels = make_levels([0])
    walls, goal, robot = levels.walls[0], levels.goal[0], levels.robot[0]
    for cell in (4, 16):
        image = render_rgb(walls, goal, robot, cell=cell)
        assert image.shape == (20 * cell, 20 * cell, 3)
        assert image.dtype == np.uint8
        centres = image[cell // 2 :: cell, cell // 2 :: cell]
        assert len(np.unique(centres.reshape(-1, 3), axis=0)) == 4
        assert len(np.unique(centres[walls], axis=0)) == 1
        assert centres[tuple(goal)].argmax() == 1, "green"
        assert centres[tuple(robot)].argmax() == 2, "blue"
    on_goal = render_rgb(walls, goal, goal)
    assert len(np.unique(on_goal[::2, ::2].reshape(-1, 3), axis=0)) >= 4, "the goal shows around the robot"
    with pytest.raises(ValueError, match=r"cell.*2"):
        render_rgb(walls, goal, robot, cell=2)


def test_render_ansi():
    levels = make_levels([0])
    text = render_ansi(levels.walls[0], levels.goal[0], levels.robot[0])
    cells = np.array([list(line) for line in text.split("\n")])
    assert np.array_equal(cells == "#", levels.walls[0])
    assert np.argwhere(cells == "G").tolist() == levels.goal.tolist()
    assert np.argwhere(cells == "R").tolist() == levels.robot.tolist()


def test_env_render():
    ours, loop = make_pair(2, render_mode="rgb_array")
    ours.reset(seed=1)
    loop.reset(seed=1)
    np.testing.assert_equal(ours.render(), loop.render())
    assert NavigationVectorEnv(2).render() is None


def test_collision_reward_is_paid_for_collisions_alone() -> None:
    env = NavigationVectorEnv(2, collision_reward=-30.0)
    env.reset(options={"levels": [0, 0]})
    rewards, ends = [], []
    for _ in range(20):  # east until the wall, or through an exit to the border
        _, reward, terminated, _, info = env.step([0, 0])
        rewards.append(reward[0])
        ends.append(bool(info["collision"][0]))
        if terminated[0]:
            break
    assert ends[-1]
    assert rewards == [-1.0] * (len(rewards) - 1) + [-30.0]
    with pytest.raises(ValueError, match="collision_reward"):
        NavigationVectorEnv(1, collision_reward=float("nan"))


def test_grid_symmetries_commute_with_the_environment() -> None:
    rng = np.random.default_rng(0)
    levels = make_levels(np.arange(400))
    action = rng.integers(4, size=len(levels))
    action[::2] = 0  # robots walk into walls, too
    robot, goal = levels.robot, levels.goal
    following, _, _ = step(levels.walls, goal, robot, action)
    arrays = {
        "observation": observe(levels.walls, goal, robot),
        "action": action,
        "reward": np.arange(400.0),
        "next_observation": observe(levels.walls, goal, following),
    }
    turned = grid_symmetries(arrays, rng)

    def cells(plane: np.ndarray) -> np.ndarray:  # [B, H, H] with a single 1 each → [B, 2]
        return np.argwhere(plane)[:, 1:]

    walls, goals, robots = np.moveaxis(turned["observation"], 1, 0)
    moved, _, _ = step(walls.astype(bool), cells(goals), cells(robots), turned["action"])
    expected = observe(walls.astype(bool), cells(goals), moved)
    assert np.array_equal(turned["next_observation"], expected)
    assert np.array_equal(turned["reward"], arrays["reward"])


def test_all_eight_symmetries_occur_and_nothing_else() -> None:
    grid = np.arange(9).reshape(1, 3, 3)
    batch = np.repeat(grid[None], 800, axis=0)
    arrays = {"observation": batch, "next_observation": batch + 9, "action": np.zeros(800, np.int64)}
    turned = grid_symmetries(arrays, np.random.default_rng(0))
    kinds, counts = np.unique(turned["observation"].reshape(800, 9), axis=0, return_counts=True)
    assert len(kinds) == 8
    assert counts.min() > 60
    assert np.array_equal(turned["next_observation"], turned["observation"] + 9)
    assert set(arrays["action"]) == {0}  # the batch given is left as it was
