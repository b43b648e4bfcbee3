"""Map latents: the crop, the convolution as a matrix, ends, keys and the losses beyond the paper."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from dtsn.batch import Batch
from dtsn.cli.train import as_encoder_allows
from dtsn.config import SOLVERS, LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels, observe, step
from dtsn.models import maps
from dtsn.models.maps import CROP, EgocentricEncoder, EnteredCellReward, MapWorldModel, MoveTransition
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.search import best_first_search
from dtsn.solvers import losses
from dtsn.solvers.solver import Solver
from dtsn.training import schedule
from dtsn.training.trainer import Trainer

PLANES = gymnasium.spaces.Box(0, 1, (3, 20, 20), np.uint8)
FOUR = gymnasium.spaces.Discrete(4)
HALLS = NavigationOptions(hall=(8, 11), exit_layout="opposite")
LATENT = CROP**2 + 2


def make_solver(
    name: str = "dtsn", network: NetworkConfig = NAVIGATION.network, **settings: object
) -> Solver:
    config = replace(NAVIGATION.solver, name=name, **settings)
    return Solver.create(config, PLANES, FOUR, network=network, seed=0)


def expert_batch(size: int = 32) -> Batch:
    """Steps east, some of which arrive."""
    levels = make_levels(np.arange(size), HALLS)
    goal = np.where(np.arange(size)[:, None] % 4 == 0, levels.robot + np.array([0, 1]), levels.goal)
    robot, arrived, _ = step(levels.walls, goal, levels.robot, np.zeros(size, dtype=np.int64))
    return Batch(
        observation=torch.from_numpy(observe(levels.walls, goal, levels.robot)),
        action=torch.zeros(size, dtype=torch.int64),
        reward=-torch.ones(size),
        q_target=torch.from_numpy(-1.0 - np.arange(size) % 10).float(),
        next_observation=torch.from_numpy(observe(levels.walls, goal, robot)),
        terminated=torch.from_numpy(arrived),
    )


def map_model() -> MapWorldModel:
    model = make_solver().world_model
    assert isinstance(model, MapWorldModel)
    return model


def test_moves_are_those_of_navigation() -> None:
    assert MOVES.tolist() == [list(move) for move in maps.MOVES]


@pytest.mark.parametrize("size", [(20, 20), (7, 13)])
def test_crop_shows_the_cells_around_the_robot(size: tuple[int, int]) -> None:
    rng, (height, width) = np.random.default_rng(0), size
    planes = np.zeros((40, 4, height, width), dtype=np.uint8)
    planes[:, 0] = rng.random((40, height, width)) < 0.5
    planes[:, 3] = rng.random((40, height, width)) < 0.5  # a plane that is not read
    robot, goal = (np.stack([rng.integers(0, n, 40) for n in size], 1) for _ in range(2))
    rows = np.arange(40)
    planes[rows, 1, goal[:, 0], goal[:, 1]] = 1
    planes[rows, 2, robot[:, 0], robot[:, 1]] = 1
    encoder = EgocentricEncoder(size)
    with torch.no_grad():
        encoder.gain.fill_(3.0)
        encoder.bias.fill_(-0.5)
        latent = encoder(torch.from_numpy(planes)).numpy()
    for row in range(40):
        for i in range(CROP):
            for j in range(CROP):
                r, c = robot[row] + [i - CROP // 2, j - CROP // 2]
                inside = 0 <= r < height and 0 <= c < width
                wall = planes[row, 0, r, c] if inside else 1
                assert latent[row, i * CROP + j] == 3.0 * wall - 0.5
    assert (latent[:, -2:] == goal - robot).all()


def test_transition_is_a_convolution() -> None:
    torch.manual_seed(0)
    transition = MoveTransition(4).double()
    with torch.no_grad():
        transition.weight.normal_()
        transition.bias.normal_()
    state = torch.randn(5, LATENT, dtype=torch.float64, requires_grad=True)
    inputs = [state, *transition.parameters()]
    weigh = torch.randn(5, 4, LATENT, dtype=torch.float64)

    def oracle(state: Tensor, weight: Tensor, bias: Tensor, offset: Tensor) -> Tensor:
        planes = state[:, :-2].view(-1, 1, CROP, CROP)
        moved = functional.conv2d(planes, 8 * weight.view(4, 1, 3, 3), 8 * bias, padding=1)
        return torch.cat([moved.flatten(2), (10 * offset).expand(len(state), 4, 2)], 2)

    found, expected = transition(state), oracle(*inputs)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad((out * weigh).sum(), inputs) for out in (found, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_reward_reads_the_entered_cell_alone() -> None:
    torch.manual_seed(0)
    reward, state = EnteredCellReward(), torch.randn(3, LATENT)
    with torch.no_grad():
        before = reward(state)
        for action, (row, column) in enumerate(maps.MOVES):
            changed = state.clone()
            changed[:, (5 + row) * CROP + 5 + column] += 1
            differs = (reward(changed) != before).all(0)
            assert differs.tolist() == [other == action for other in range(4)]


def test_rewards_start_at_a_step_and_are_bounded() -> None:
    reward = EnteredCellReward()
    with torch.no_grad():
        reward.net[-1].weight.zero_()
        torch.testing.assert_close(reward(torch.randn(5, LATENT)), -torch.ones(5, 4))
        reward.net[-1].bias.fill_(-100.0)
        torch.testing.assert_close(reward(torch.zeros(1, LATENT)), torch.full((1, 4), 1 - np.e**6).float())


@pytest.mark.parametrize("form", ["additive", "joint"])
def test_value_sees_one_cell_far(form: str) -> None:
    torch.manual_seed(0)
    model = make_solver(network=replace(NAVIGATION.network, value=form)).world_model
    latent = torch.randn(1, LATENT, requires_grad=True)
    model.value(latent).sum().backward()
    assert latent.grad is not None
    seen = latent.grad[0, :-2].view(CROP, CROP).nonzero().tolist()
    around = [[5 + r, 5 + c] for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]
    assert seen == around
    assert (latent.grad[0, -2:] != 0).all()


def test_additive_value_is_a_sum() -> None:
    model = map_model()
    a, b = torch.randn(2, LATENT)
    mixed = torch.stack([a, b, torch.cat([a[:-2], b[-2:]]), torch.cat([b[:-2], a[-2:]])])
    with torch.no_grad():
        value = model.value(mixed)
    torch.testing.assert_close(value[0] + value[1], value[2] + value[3])


def test_solvers_have_the_same_modules() -> None:
    counts = {name: sum(p.numel() for p in make_solver(name).world_model.parameters()) for name in SOLVERS}
    assert set(counts.values()) == {17_894}


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_answer_with_the_right_shapes(name: str) -> None:
    solver, batch = make_solver(name), expert_batch(6)
    assert solver(batch.observation).shape == (6, 4)
    terms = solver.loss(batch).terms
    assert all(term.shape == (6,) for term in terms.values())
    expected = {*SOLVERS[name].losses, "termination", "conservative_value"}
    assert set(terms) == expected | ({"conservative_reward"} if "reward" in expected else set())


def test_only_the_map_is_squashed() -> None:
    latent = 5 * torch.randn(2, 3, LATENT)
    state = map_model().state(latent)
    assert torch.equal(state[..., :-2], latent[..., :-2].tanh())
    assert torch.equal(state[..., -2:], latent[..., -2:])


def exact_model() -> MapWorldModel:
    """Hand-made: moves shift the map and the offset, an episode ends at the goal, walls cost much."""
    model = map_model()
    with torch.no_grad():
        assert isinstance(model.transition, MoveTransition)
        model.transition.weight.zero_()
        model.transition.step.copy_(-torch.tensor(maps.MOVES) / 10)
        assert model.termination is not None
        first, _, last = model.termination.net
        # 8 − 16 · (|row| + |column|): positive at the goal alone.
        first.weight.zero_()
        first.bias.zero_()
        last.weight.zero_()
        for unit, signs in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
            first.weight[unit] = torch.tensor(signs, dtype=torch.float32)
            last.weight[0, unit] = -16
        last.bias.fill_(8)
    return model


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(-15, 15), st.integers(-15, 15))
@settings(max_examples=30, deadline=None)
def test_key_is_the_place(actions: list[int], row: int, column: int) -> None:
    model = exact_model()
    latent = torch.zeros(1, LATENT)
    latent[0, -2:] = torch.tensor([row, column])
    start = latent.clone()
    with torch.no_grad():
        for action in actions:
            latent = model.expand(latent)[0][:, action]
    moved = np.array([row, column]) - sum((MOVES[a] for a in actions), np.zeros(2, dtype=np.int64))
    expected = torch.zeros(1, LATENT)
    expected[0, -2:] = torch.from_numpy(moved)
    assert torch.equal(model.key(latent), model.key(expected))
    assert torch.equal(model.key(latent), model.key(start)) == (moved.tolist() == [row, column])
    assert model.key(latent).dtype == torch.int64


def test_search_stops_at_the_goal() -> None:
    model, latent = exact_model(), torch.zeros(1, LATENT)
    latent[0, -2:] = torch.tensor([0.0, 1.0])  # the goal is to the east
    tree = best_first_search(model, latent, iterations=10, rule="greedy")
    assert tree.terminal is not None
    assert (tree.terminal[0, 1:5] > 0.5).tolist() == [True, False, False, False]
    assert 1 not in tree.selected[0].tolist()
    torch.testing.assert_close(tree.q[0, 0], tree.root_rewards[0, 0])


def test_merged_search_expands_every_place_once() -> None:
    model, latent = exact_model(), torch.zeros(3, LATENT)
    latent[:, -2:] = torch.tensor([[5.0, 1.0], [-3.0, 2.0], [0.0, 7.0]])
    with torch.no_grad():
        tree = best_first_search(model, latent, iterations=12, rule="greedy", merge=True)
    for row in range(3):
        place = {0: (0, 0)}
        for t, slot in enumerate(tree.selected[row].tolist()):
            for a, move in enumerate(maps.MOVES):
                place[1 + 4 * t + a] = (place[slot][0] + move[0], place[slot][1] + move[1])
        expanded = [place[slot] for slot in tree.selected[row].tolist()]
        assert len(set(expanded)) == len(expanded)


def test_merge_acts_only() -> None:
    solver, batch = make_solver(merge=True), expert_batch(8)
    uniforms = torch.rand(8, 10)
    assert solver.plan(batch.observation).merging is not None
    solver.train()
    assert torch.equal(
        solver(batch.observation, uniforms=uniforms),
        make_solver().train()(batch.observation, uniforms=uniforms),
    )


def test_termination_loss() -> None:
    logits = torch.tensor([0.0, 2.0, -1.0], requires_grad=True)
    ended = torch.tensor([True, False, False])
    loss = losses.termination_loss(logits, ended)
    chance = 1 / (1 + np.exp([0.0, -2.0, 1.0]))
    expected = -np.log([chance[0], 1 - chance[1], 1 - chance[2]])
    np.testing.assert_allclose(loss.detach(), expected, rtol=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    np.testing.assert_allclose(gradient, chance - [1, 0, 0], rtol=1e-6)


def test_conservative_reward_loss() -> None:
    rewards = torch.tensor([[-1.0, 3.0, 0.0, -7.0]], requires_grad=True)
    loss = losses.conservative_reward_loss(rewards)
    np.testing.assert_allclose(loss.detach(), [(-np.log(2) + np.log(4) - np.log(8)) / 4], rtol=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), rewards)
    np.testing.assert_allclose(gradient[0, [0, 1, 3]], [1 / 8, 1 / 16, 1 / 32], rtol=1e-6)


def test_conservative_value_loss() -> None:
    values = torch.tensor([-30.0, -8.0, -15.0], requires_grad=True)
    loss = losses.conservative_value_loss(values, torch.tensor([-10.0, -10.0, -10.0]))
    assert loss.tolist() == [0.0, 12.0, 5.0]
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert gradient.tolist() == [0.0, 1.0, 1.0]
    assert losses.conservative_value_loss(values, torch.zeros(3), margin=20.0).tolist() == [0.0, 12.0, 5.0]


def test_unseen_maps_keep_goal_and_robot() -> None:
    model, batch = map_model(), expert_batch(16)
    assert isinstance(batch.observation, Tensor)
    before = batch.observation.clone()
    drawn = model.unseen(batch.observation, torch.Generator().manual_seed(0))
    again = model.unseen(batch.observation, torch.Generator().manual_seed(0))
    assert torch.equal(batch.observation, before)
    assert torch.equal(drawn, again)
    assert drawn.dtype == before.dtype
    assert torch.equal(drawn[:, 1:], before[:, 1:])
    assert 0.45 < drawn[:, 0].float().mean() < 0.55


def test_loss_weighs_the_ramp() -> None:
    solver, batch = make_solver("qnet"), expert_batch(8)
    found = [
        solver.loss(batch, generator=torch.Generator().manual_seed(0), conservative_ramp=r)
        for r in (0.0, 0.5, 1.0)
    ]
    totals = [loss.total.item() for loss in found]
    whole = found[-1].terms["conservative_value"].mean()
    assert totals[2] - totals[0] == pytest.approx(0.1 * float(whole), abs=1e-5)
    assert totals[1] - totals[0] == pytest.approx(0.05 * float(whole), abs=1e-5)


def test_ramps() -> None:
    steps = range(600)
    planned = [schedule.iterations(NAVIGATION, step) for step in steps]
    assert planned[:100] == 100 * [1]
    assert planned[100] == 2
    assert all(0 <= after - before <= 1 for before, after in pairwise(planned))
    assert planned[400:] == 200 * [10]
    assert planned[250] == 2 + 9 * 150 // 300
    shares = [schedule.conservative_ramp(NAVIGATION, step) for step in steps]
    assert (shares[0], shares[250], shares[500], shares[599]) == (0.0, 0.5, 1.0, 1.0)
    plain = TrainConfig(search_warmup=3)
    assert [schedule.iterations(plain, step) for step in range(5)] == [1, 1, 1, 10, 10]
    assert schedule.conservative_ramp(plain, 0) == 1.0
    one = replace(NAVIGATION, solver=replace(NAVIGATION.solver, iterations=1))
    assert {schedule.iterations(one, step) for step in steps} == {1}


@pytest.mark.parametrize("value", ["additive", "joint"])
def test_round_trip(tmp_path: Path, value: str) -> None:
    solver = make_solver(network=replace(NAVIGATION.network, value=value))
    with torch.no_grad():
        for parameter in solver.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    solver.save(tmp_path / "solver")
    loaded = Solver.load(tmp_path / "solver")
    batch, uniforms = expert_batch(8), torch.rand(8, 10)
    expected = solver.eval()(batch.observation, uniforms=uniforms)
    assert torch.equal(loaded(batch.observation, uniforms=uniforms), expected)
    merged = Solver.load(tmp_path / "solver", merge=True)
    assert merged.plan(batch.observation).merging is not None


@pytest.mark.parametrize("name", SOLVERS)
def test_learns(name: str) -> None:
    config = replace(
        NAVIGATION, solver=replace(NAVIGATION.solver, name=name), search_warmup=10, search_ramp=20
    )
    trainer, batch = Trainer(config, (3, 20, 20), 4), expert_batch(32)
    found = [trainer.update(batch) for _ in range(60)]
    assert found[-1]["q"] < 0.3 * found[0]["q"]
    assert found[-1]["termination"] < found[0]["termination"]


def refused(words: str, network: NetworkConfig, space: gymnasium.Space = PLANES, actions: int = 4) -> None:
    with pytest.raises(ValueError, match=words):
        Solver.create("dtsn", space, gymnasium.spaces.Discrete(actions), network=network)


def test_refuses_what_maps_cannot_be() -> None:
    network = NetworkConfig(encoder="maps")
    refused("reads planes", network, gymnasium.spaces.Box(0, 1, (8,), np.float32))
    refused("reads planes", network, gymnasium.spaces.Box(0, 1, (2, 9, 9), np.float32))
    refused("reads planes", network, gymnasium.spaces.Discrete(3))
    refused(
        "reads planes", replace(network, channels="last"), gymnasium.spaces.Box(0, 1, (9, 9, 3), np.uint8)
    )
    refused("4 moves", network, actions=5)
    refused("float32", replace(network, precision="bfloat16"))
    refused("termination head needs the maps encoder", NetworkConfig(encoder="grid", termination=True))
    with pytest.raises(ValueError, match="value must be one of"):
        NetworkConfig(value="product")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("weights.termination must be 0", {"weights": LossWeights(termination=1)}),
        ("weights.conservative_value must be 0", {"weights": LossWeights(conservative_value=1)}),
        ("merge must be False", {"merge": True}),
    ],
)
def test_refuses_what_a_world_model_does_not_support(words: str, settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=words):
        Solver.create(SolverConfig(**settings), PLANES, FOUR, network=NetworkConfig(encoder="grid"))


def test_command_drops_what_other_encoders_lack() -> None:
    other = replace(NAVIGATION, network=replace(NAVIGATION.network, encoder="grid"))
    found = as_encoder_allows(other)
    assert not found.network.termination
    assert (found.solver.weights.termination, found.solver.weights.conservative_value) == (0, 0)
    assert found.solver.weights.conservative_reward == NAVIGATION.solver.weights.conservative_reward
    assert as_encoder_allows(NAVIGATION) is NAVIGATION
    asked = replace(other.solver, weights=replace(other.solver.weights, termination=0.5))
    assert as_encoder_allows(replace(other, solver=asked)).solver.weights.termination == 0.5


def test_conservative_reward_needs_no_maps() -> None:
    config = SolverConfig(weights=LossWeights(conservative_reward=0.5))
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    solver = Solver.create(config, PLANES, FOUR, network=network, seed=0)
    loss = solver.loss(expert_batch(4))
    assert "conservative_reward" in loss.terms
    assert bool(loss.total.isfinite())
