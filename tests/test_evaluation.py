"""Roll-outs against a simple loop over the environment, with policies whose outcome is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.envs.navigation import NavigationEnv, NavigationOptions, make_levels
from dtsn.envs.procgen import FRAME_SHAPE
from dtsn.evaluation import navigation as evaluation
from dtsn.evaluation.levels import first_levels
from dtsn.evaluation.navigation import (
    evaluate_navigation,
    play,
    search_noise,
    trace_navigation,
)
from dtsn.evaluation.procgen import solver_policy
from dtsn.evaluation.rows import NavigationRow
from dtsn.evaluation.softmax import softmax_actions
from dtsn.experts.value_iteration import expert_actions, optimal_q, optimal_steps, optimal_values
from dtsn.solvers.solver import Solver

LEVELS = first_levels("test", 40)
each_exits = pytest.mark.parametrize("exits", [1, 2])


class Policy:
    """What evaluation asks of a solver."""

    act_iterations = 3
    config, kind = SolverConfig(), SOLVERS["dtsn"]  # it draws

    def eval(self) -> None:
        self.ready = True

    def act(self, observation: Tensor, uniforms: Tensor) -> Tensor:
        assert self.ready
        assert uniforms.shape == (len(observation), self.act_iterations)
        assert ((uniforms >= 0) & (uniforms < 1)).all()
        assert observation.dtype == torch.uint8
        return torch.from_numpy(self.choose(observation.numpy(), uniforms.numpy()))

    def choose(self, planes: Any, uniforms: Any) -> Any:
        raise NotImplementedError


class Optimal(Policy):
    def choose(self, planes: Any, uniforms: Any) -> Any:
        goal, robot = (np.argwhere(planes[:, plane])[:, 1:] for plane in (1, 2))
        return expert_actions(optimal_q(optimal_values(planes[:, 0] > 0, goal), robot), uniforms[:, 0])


class East(Policy):
    def choose(self, planes: Any, uniforms: Any) -> Any:
        return np.zeros(len(planes), np.int64)


class Table(Policy):
    """One action for every goal and cell, at random, so that some robots go to and fro."""

    table = np.random.default_rng(0).integers(0, 4, (20, 20, 20, 20))

    def choose(self, planes: Any, uniforms: Any) -> Any:
        goal, robot = (np.argwhere(planes[:, plane])[:, 1:].T for plane in (1, 2))
        return self.table[(*goal, *robot)]


class Random(Policy):
    def choose(self, planes: Any, uniforms: Any) -> Any:
        return np.floor(4 * uniforms[:, 1]).astype(np.int64)


def play_one(policy: Any, level: int, options: NavigationOptions) -> NavigationRow:
    """One level in the environment, one step at a time."""
    env = NavigationEnv(exits=options.exits, max_steps=options.max_steps)
    observation, _ = env.reset(options={"level": level})
    steps, ended = 0, False
    while not ended:
        actions = policy.choose(observation[None], None)
        observation, _, terminated, truncated, info = env.step(int(actions[0]))
        steps, ended = steps + 1, terminated or truncated
    best = int(optimal_steps(make_levels([level], options))[0])
    return NavigationRow(level, options.exits, info["success"], info["collision"], steps, best)


@each_exits
def test_optimal_policy_always_arrives_in_the_fewest_steps(exits: int) -> None:
    rows = evaluate_navigation(Optimal(), LEVELS, NavigationOptions(exits=exits))
    assert [row.level for row in rows] == list(LEVELS)
    assert all(row.exits == exits and row.success and not row.collision for row in rows)
    assert [row.steps for row in rows] == [row.optimal_steps for row in rows]


@each_exits
@pytest.mark.parametrize("policy", [East(), Table()], ids=["east", "table"])
def test_rows_are_those_of_the_environment(policy: Policy, exits: int) -> None:
    options = NavigationOptions(exits=exits, max_steps=30)
    rows = evaluate_navigation(policy, LEVELS, options)
    assert rows == [play_one(policy, int(level), options) for level in LEVELS]
    assert any(row.collision for row in rows)
    assert all(1 <= row.steps <= 30 and not (row.success and row.collision) for row in rows)


def test_all_outcomes_are_covered() -> None:
    """Or the comparison above would show little."""
    rows = evaluate_navigation(Table(), LEVELS, NavigationOptions(exits=2, max_steps=30))
    assert {(row.success, row.collision) for row in rows} >= {(False, True), (False, False)}
    rows = evaluate_navigation(East(), first_levels("test", 4000))
    assert {(row.success, row.collision) for row in rows} == {(True, False), (False, True)}


def test_time_out_is_neither_success_nor_collision() -> None:
    limit = 12
    rows = evaluate_navigation(Optimal(), LEVELS, NavigationOptions(max_steps=limit))
    assert {row.success for row in rows} == {False, True}
    for row in rows:
        assert row.success == (row.optimal_steps <= limit)  # the last step counts
        assert not row.collision
        assert row.steps == min(row.optimal_steps, limit)


def test_seed_determines_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = evaluate_navigation(Random(), LEVELS, seed=5)
    assert rows == evaluate_navigation(Random(), LEVELS, seed=5)
    assert rows != evaluate_navigation(Random(), LEVELS, seed=6)
    # A level's numbers depend on neither the levels beside it nor how many are played in one call.
    assert rows[:7] == evaluate_navigation(Random(), LEVELS[:7], seed=5)
    assert rows[::-3] == evaluate_navigation(Random(), LEVELS[::-3], seed=5)
    for at_once in (1, 7, 39, 40, 41):
        monkeypatch.setattr(evaluation, "ROWS_AT_ONCE", at_once)
        assert rows == evaluate_navigation(Random(), LEVELS, seed=5)


def test_search_noise_is_fair() -> None:
    """Uniform, and no number twice: not between levels, seeds, time steps or expansions."""
    noise = [search_noise(LEVELS, seed, time, 10).double() for seed in range(4) for time in range(30)]
    numbers = torch.stack(noise).flatten()
    assert len(numbers) == 48_000
    counts = torch.histc(numbers, 16, 0, 1)
    assert (counts - 3000).abs().max() < 5 * 3000**0.5
    assert len(numbers.unique()) > 48_000 - 3 * 48_000**2 / 2**25  # a few collide by chance


@pytest.mark.parametrize("policy", [Optimal(), East(), Random()], ids=["optimal", "east", "random"])
def test_trace_is_the_episode_of_the_row(policy: Policy) -> None:
    options = NavigationOptions(max_steps=15)
    for row in evaluate_navigation(policy, LEVELS[:10], options, seed=3):
        cells = trace_navigation(policy, row.level, options, seed=3)
        level = make_levels([row.level], options)
        assert np.array_equal(cells[0], level.robot[0])
        assert np.array_equal(cells[-1], level.goal[0]) == row.success
        assert len(cells) == row.steps + 1
        moves = np.abs(np.diff(cells, axis=0)).sum(1).tolist()
        assert moves == [1] * (row.steps - row.collision) + [0] * row.collision
        assert not level.walls[0][tuple(cells.T)].any()


def test_solver_is_called_with_no_more_rows_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Counting(East):
        def choose(self, planes: Any, uniforms: Any) -> Any:
            sizes.append(len(planes))
            return super().choose(planes, uniforms)

    monkeypatch.setattr(evaluation, "ROWS_AT_ONCE", 16)
    rows = evaluate_navigation(Counting(), LEVELS)
    assert max(sizes) <= 16
    assert sum(sizes) == sum(row.steps for row in rows)  # none is played on after its end


def test_progress_counts_ended_episodes() -> None:
    seen: list[tuple[int, int]] = []
    evaluate_navigation(East(), LEVELS, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(LEVELS), len(LEVELS))


def test_a_real_solver_plays() -> None:
    network = NetworkConfig(encoder="grid", latent=16, hidden=16)
    solver = Solver.create(
        SolverConfig("dtsn", iterations=3),
        Box(0, 1, (3, 20, 20)),
        Discrete(4),
        network=network,
        seed=0,
    ).train()
    options = NavigationOptions(max_steps=10)
    rows = evaluate_navigation(solver, LEVELS, options)
    assert not solver.training
    assert rows == evaluate_navigation(solver, LEVELS, options)


def test_a_loop_without_chance_is_not_played_to_its_end() -> None:
    """A place that comes again comes again for ever, where nothing is drawn: the rows are the same."""
    options = NavigationOptions(max_steps=60)

    class Fixed(Table):
        kind, played = SOLVERS["qnet"], 0

        def choose(self, planes: Any, uniforms: Any) -> Any:
            type(self).played += len(planes)
            return super().choose(planes, uniforms)

    rows = evaluate_navigation(Fixed(), LEVELS, options)
    assert rows == evaluate_navigation(Table(), LEVELS, options)
    lost = [row for row in rows if not row.success and not row.collision]
    assert lost
    assert all(row.steps == 60 for row in lost)
    assert Fixed.played < sum(row.steps for row in rows)


def test_progress_ends_with_loops_too() -> None:
    class ToAndFro(East):
        kind = SOLVERS["qnet"]

        def choose(self, planes: Any, uniforms: Any) -> Any:
            return 2 * (np.argwhere(planes[:, 2])[:, 2] % 2)  # east from even columns, west from odd ones

    seen: list[tuple[int, int]] = []
    evaluate_navigation(ToAndFro(), LEVELS, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(LEVELS), len(LEVELS))


def test_play_yields_the_robots_that_were_on() -> None:
    start = make_levels(LEVELS, NavigationOptions())
    before = set(range(len(LEVELS)))
    for moved in play(lambda active, robot, time: np.zeros(len(active), np.int64), start, 50):
        assert set(moved.active.tolist()) == before
        before = set(moved.active[~(moved.arrived | moved.hit)].tolist())
    assert not before


def test_softmax_actions_are_drawn_from_the_softmax() -> None:
    q = np.array([[1.0, 2.0, -1.0, -np.inf]], dtype=np.float32)
    uniforms = (np.arange(100_000, dtype=np.float32) + 0.5) / 100_000
    for temperature in (0.5, 1.0, 3.0):
        drawn = softmax_actions(q.repeat(len(uniforms), 0), uniforms, temperature)
        expected = torch.tensor(q[0] / temperature).softmax(0).numpy()
        np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), expected, atol=1e-4)
    huge = np.array([[1e30, -1e30, 0, 0]], dtype=np.float32)
    assert softmax_actions(huge, np.array([0.999], np.float32), 1e-3).tolist() == [0]


def test_actions_on_procgen_are_drawn_from_the_softmax_by_level_seed_and_step_alone() -> None:
    space = Box(0, 255, FRAME_SHAPE, np.uint8)
    solver = Solver.create("qnet", space, Discrete(15), seed=0)
    frame = np.random.default_rng(0).integers(0, 256, FRAME_SHAPE, dtype=np.uint8)
    levels, numbers, steps = np.arange(40), np.repeat(np.arange(40), 50), np.tile(np.arange(50), 40)
    frames = np.broadcast_to(frame, (2000, *FRAME_SHAPE)).copy()
    q = solver.eval()(torch.from_numpy(frame[None])).detach()[0]
    temperature = float(q.std())
    drawn = solver_policy(solver, levels, 0, temperature)(frames, numbers, steps)
    counts = np.bincount(drawn, minlength=15)
    expected = 2000 * (q / temperature).softmax(0).double().numpy()
    assert ((counts - expected) ** 2 / expected).sum() < 36.1  # χ² with 14 degrees of freedom, p = 0.001
    policy, part = solver_policy(solver, levels[7:], 0, temperature), slice(350, 420)  # levels 7 and on
    np.testing.assert_array_equal(policy(frames[part], numbers[part] - 7, steps[part]), drawn[part])
    assert not np.array_equal(solver_policy(solver, levels, 1, temperature)(frames, numbers, steps), drawn)
    best = solver_policy(solver, levels)(frames, numbers, steps)
    np.testing.assert_array_equal(best, int(q.argmax()))
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 0"):
        solver_policy(solver, levels, 0, 0.0)


@pytest.mark.parametrize(
    ("config", "draws"),
    [
        (SolverConfig("qnet"), False),
        (SolverConfig("treeqn", depth=1), False),
        (SolverConfig("dtsn", iterations=2), True),
        (SolverConfig("dtsn", iterations=2, act_rule="greedy"), False),
        (SolverConfig("dtsn", iterations=2, act_iterations=1), False),
    ],
)
def test_on_procgen_a_solver_that_draws_nothing_is_asked_about_a_frame_once(
    config: SolverConfig, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NetworkConfig(encoder="nature", latent=8, hidden=8)
    space = Box(0, 255, FRAME_SHAPE, np.uint8)
    solver = Solver.create(config, space, Discrete(15), network=network, seed=0)
    different = np.random.default_rng(0).integers(0, 256, (5, *FRAME_SHAPE), dtype=np.uint8)
    expected = solver.eval().act(torch.from_numpy(different), deterministic=True).numpy()
    asked: list[int] = []
    act = solver.act
    monkeypatch.setattr(
        solver, "act", lambda frames, **drawn: asked.append(len(frames)) or act(frames, **drawn)
    )
    policy = solver_policy(solver, np.arange(8))
    for step, which in enumerate(([0, 1, 1], [1, 0, 2], [3, 3, 4, 0])):
        actions = policy(different[which], np.arange(len(which)), np.full(len(which), step))
        if not draws:
            np.testing.assert_array_equal(actions, expected[which])
    assert asked == ([3, 3, 4] if draws else [2, 1, 2])


def test_drawn_actions_depend_on_level_and_seed_alone() -> None:
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    solver = Solver.create("qnet", Box(0, 1, (3, 20, 20)), Discrete(4), network=network, seed=0)
    options = NavigationOptions(max_steps=10)
    rows = evaluate_navigation(solver, LEVELS, options, temperature=1.0)
    assert rows[3:9] == evaluate_navigation(solver, LEVELS[3:9], options, temperature=1.0)
    assert rows != evaluate_navigation(solver, LEVELS, options, temperature=1.0, seed=1)
    cold = evaluate_navigation(solver, LEVELS, options, temperature=1e-9)
    assert cold == evaluate_navigation(solver, LEVELS, options)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="temperature must be positive and finite"):
            evaluate_navigation(solver, LEVELS, options, temperature=wrong)
