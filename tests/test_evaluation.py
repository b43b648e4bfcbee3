"""Roll-outs against a simple loop over the environment, with policies whose outcome is known."""

from __future__ import annotations

import csv
import gzip
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dtsn.evaluation.episodes import (
    NavigationRow,
    evaluate_navigation,
    first_levels,
    search_noise,
    trace_navigation,
    write_rows,
)
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from dtsn.config import NetworkConfig, SolverConfig
from dtsn.envs.navigation import SPLITS, NavigationEnv, NavigationOptions, make_levels
from dtsn.evaluation import episodes as evaluation
from dtsn.experts.value_iteration import expert_actions, optimal_q, optimal_steps, optimal_values
from dtsn.solvers.solver import Solver

LEVELS = first_levels("test", 40)
each_exits = pytest.mark.parametrize("exits", [1, 2])


class Policy:
    """What evaluation asks of a solver."""

    act_iterations = 3

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


def play(policy: Any, level: int, options: NavigationOptions) -> NavigationRow:
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
    assert rows == [play(policy, int(level), options) for level in LEVELS]
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


def test_rows_on_disk(tmp_path: Path) -> None:
    rows = evaluate_navigation(East(), LEVELS)
    path = write_rows(tmp_path / "new" / "a.csv.gz", rows)
    assert path.read_bytes() == write_rows(tmp_path / "b.csv.gz", rows).read_bytes()
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["a.csv.gz", "b.csv.gz"]
    with gzip.open(path, "rt") as file:
        names, *lines = csv.reader(file)
    assert names == [field.name for field in fields(NavigationRow)]
    assert [tuple(map(int, line)) for line in lines] == [astuple(row) for row in rows]
    write_rows(path, rows[:3])
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 4


@pytest.mark.parametrize("split", SPLITS)
def test_first_levels(split: str) -> None:
    first, end = SPLITS[split]
    assert first_levels(split, 3).tolist() == [first, first + 1, first + 2]
    assert first_levels(split, end - first)[-1] == end - 1
    for count in (0, -1, end - first + 1):
        with pytest.raises(
            ValueError, match=rf"from 1 to the {end - first} of the {split} split, got {count}"
        ):
            first_levels(split, count)
