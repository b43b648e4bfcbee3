"""The seams for other people's loops: any leading dimensions, masks, weights, targets, copies, batches."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.solvers.solver import Solver

T, ACTIONS = 4, 3
SPACE = Box(-1, 1, (5,))
each_solver = pytest.mark.parametrize("name", SOLVERS)


def make(name: str = "dtsn", **config: object) -> Solver:
    network = NetworkConfig(latent=8, hidden=16)
    options = SolverConfig(name, iterations=T, **config)
    return Solver.create(options, SPACE, Discrete(ACTIONS), network=network, seed=0)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def transitions(batch: int = 6) -> Batch:
    return Batch(
        observation=numbers(batch, 5),
        action=torch.arange(batch) % ACTIONS,
        reward=numbers(batch, seed=1),
        q_target=numbers(batch, seed=2),
        next_observation=numbers(batch, 5, seed=3),
        terminated=torch.zeros(batch, dtype=torch.bool),
    )


# --- observations, masks and random numbers ----------------------------------------------------------


@each_solver
@pytest.mark.parametrize("training", [True, False])
def test_any_leading_dimensions(name: str, training: bool) -> None:
    solver = make(name).train(training)
    obs, uniforms, closed = numbers(2, 3, 5), numbers(2, 3, T, seed=1), torch.zeros(2, 3, ACTIONS).bool()
    closed[..., 1] = True
    q = solver(obs, uniforms=uniforms, invalid_actions=closed)
    assert q.shape == (2, 3, ACTIONS)
    assert (q[..., 1] == -torch.inf).all()
    flat = solver(obs.flatten(0, 1), uniforms=uniforms.flatten(0, 1), invalid_actions=closed.flatten(0, 1))
    torch.testing.assert_close(q.flatten(0, 1), flat)
    alone = solver(obs[1, 2], uniforms=uniforms[1, 2], invalid_actions=closed[1, 2])
    torch.testing.assert_close(alone, q[1, 2])
    actions = solver.act(obs, uniforms=uniforms, invalid_actions=closed)
    assert actions.shape == (2, 3)
    one = solver.act(obs[1, 2].numpy(), uniforms=uniforms[1, 2].numpy(), invalid_actions=closed[1, 2])
    assert one.shape == ()
    assert one == actions[1, 2]


@each_solver
def test_masks_of_numpy_and_gymnasium(name: str) -> None:
    solver, obs = make(name), numbers(4, 5)
    closed = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]).bool()
    expected = solver.act(obs, invalid_actions=closed, deterministic=True)
    for mask in (closed.numpy(), closed.to(torch.int8), *map(closed.numpy().astype, (np.int8, np.int64))):
        assert torch.equal(solver.act(obs, invalid_actions=mask, deterministic=True), expected)
    with pytest.raises(ValueError, match="0 or 1"):
        solver.act(obs, invalid_actions=2 * closed.to(torch.int8))
    with pytest.raises(ValueError, match=r"must be bool \(4, 3\).*got torch.float32"):
        solver.act(obs, invalid_actions=closed.float())


def test_deterministic_acting_is_greedy_expansion() -> None:
    sampled, greedy, obs = make(), make(act_rule="greedy"), numbers(20, 5)
    expected = greedy.plan(obs)
    for _ in range(2):
        assert torch.equal(sampled.plan(obs, deterministic=True).selected, expected.selected)
        assert torch.equal(sampled.act(obs, deterministic=True), expected.q.argmax(1))
        assert torch.equal(sampled.eval()(obs, deterministic=True), greedy.eval()(obs))
    many = make(act_iterations=20, temperature=5.0)
    assert len({tuple(many.plan(obs).selected[0].tolist()) for _ in range(20)}) > 1  # drawn otherwise


# --- losses and targets ------------------------------------------------------------------------------


@each_solver
def test_weights_multiply_each_samples_loss(name: str) -> None:
    solver, batch, uniforms = make(name), transitions(), numbers(6, T)
    draws = {"uniforms": uniforms} if SOLVERS[name].training_planner == "best_first" else {}
    plain = solver.loss(batch, **draws)
    weight = np.array([0.0, 1, 2, 0.5, 0, 3])
    weighted = solver.loss(batch, weight=weight, **draws)
    total = sum(getattr(solver.config.weights, key) * term for key, term in plain.terms.items())
    torch.testing.assert_close(weighted.total.detach(), (torch.as_tensor(weight).float() * total).mean())
    assert all(torch.equal(weighted.terms[key], term) for key, term in plain.terms.items())
    # Of weight 0, a sample might as well not be there: neither value nor gradient.
    kept = Batch(**{key: value[weight > 0] for key, value in batch.tensors().items()})
    draws = {key: value[torch.as_tensor(weight > 0)] for key, value in draws.items()}
    alone = solver.loss(kept, weight=weight[weight > 0], **draws)
    gradients = []
    for loss in (weighted.total * 6, alone.total * 4):
        solver.zero_grad()
        loss.backward()
        gradients.append(solver.world_model.value_head.first.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weight", [torch.ones(5), -torch.ones(6), torch.full((6,), torch.nan)])
def test_bad_weights(weight: Tensor) -> None:
    with pytest.raises(ValueError, match="weight must"):
        make().loss(transitions(), weight=weight)


def test_uniforms_decide_the_loss() -> None:
    solver, batch = make(), transitions()
    losses = [solver.loss(batch, uniforms=numbers(6, T, seed=seed)).total for seed in (0, 0, 1)]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


@each_solver
def test_td_target(name: str) -> None:
    solver = make(name, act_iterations=6, discount=0.9)
    reward, obs = np.array([1.0, 2.0, 3.0]), numbers(3, 5)
    ended, closed = np.array([False, True, False]), np.array([[0, 1, 0], [1, 1, 1], [1, 0, 1]], np.int8)
    target = solver.td_target(reward, obs, ended, 0.9, invalid_actions=closed)
    open_where_ended = closed * ~ended[:, None]
    q = solver.eval()(obs, deterministic=True, invalid_actions=open_where_ended).detach()
    expected = [1 + 0.9 * float(q[0, [0, 2]].max()), 2.0, 3 + 0.9 * float(q[2, 1])]
    torch.testing.assert_close(target, torch.tensor(expected))
    assert not target.requires_grad
    assert torch.equal(target, solver.train().td_target(reward, obs, ended, 0.9, invalid_actions=closed))
    q = solver.eval()(obs, deterministic=True).detach()
    by_row = solver.td_target(reward, obs, ended, torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(by_row, torch.tensor([1.0, 2.0, 3 + float(q[2].max())]))
    steps = solver.td_target(
        np.stack([reward] * 2), torch.stack([obs] * 2), np.stack([ended] * 2), 0.9,
        invalid_actions=np.stack([closed] * 2),
    )  # fmt: skip
    torch.testing.assert_close(steps, torch.stack([target] * 2))  # [T, B]
    alone = solver.td_target(reward[0], obs[0], ended[0], 0.9, invalid_actions=closed[0])
    torch.testing.assert_close(alone, target[0])
    assert torch.equal(solver.td_target(reward, obs, ended, invalid_actions=closed), target)  # the search's
    unknown = obs.clone()
    unknown[1] = torch.nan  # what no buffer keeps: the observation after an end
    assert torch.equal(solver.td_target(reward, unknown, ended, invalid_actions=closed), target)
    with pytest.raises(ValueError, match=r"reward must have shape \[3\], got \[3, 1\]"):
        solver.td_target(reward[:, None], obs, ended, 0.9)
    with pytest.raises(ValueError, match=r"discount must have shape \[3\], got \[3, 1\]"):
        solver.td_target(reward, obs, ended, torch.full((3, 1), 0.9))
    with pytest.raises(ValueError, match=r"discount must be that of the solver's search, 0\.9, got 0\.99"):
        solver.td_target(reward, obs, ended, 0.99)
    with pytest.raises(ValueError, match="next_observation 1 of the batch has NaN"):
        solver.td_target(reward, unknown, ~ended, 0.9)


@pytest.mark.parametrize(
    "seen", [lambda x: x[::-1, ::-1], lambda x: x.astype(">f4"), lambda x: np.broadcast_to(x[:1], x.shape)]
)
@pytest.mark.filterwarnings("error")
def test_arrays_that_torch_cannot_share(seen) -> None:
    array = seen(numbers(6, 5).numpy())
    expected = make().eval()(np.array(array, np.float32), deterministic=True)
    assert torch.equal(make().eval()(array, deterministic=True), expected)


@pytest.mark.filterwarnings("error")
def test_gradients_reach_the_observation() -> None:
    obs = numbers(6, 5).requires_grad_()
    make()(obs).sum().backward()
    assert obs.grad is not None
    assert bool(obs.grad.abs().sum(1).gt(0).all())


def test_a_compiled_decision_is_one_graph() -> None:
    solver, obs = make().eval(), numbers(6, 5)
    with torch.inference_mode():
        search = solver.world_model.encode(obs), (6,), None, numbers(6, T), None, False
        assert torch._dynamo.explain(solver._best_action)(*search).graph_break_count == 0


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"invalid_actions": np.ones((6, ACTIONS), bool)}, "leaves no action open in row 0"),
        ({"uniforms": np.full((6, T), 2.0)}, r"uniforms must lie in \[0, 1\)"),
    ],
)
def test_compiled_acting_checks_what_it_is_given(search, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    solver, closed = make(), np.zeros((6, ACTIONS), bool)
    closed[:, 0] = True
    solver.compile_acting()
    for given in (closed, torch.from_numpy(closed)):
        chosen = solver.act(numbers(6, 5), invalid_actions=given, uniforms=numbers(6, T).numpy())
        assert torch.equal(chosen, make().act(numbers(6, 5), invalid_actions=closed, uniforms=numbers(6, T)))
        assert bool((chosen > 0).all())
    with pytest.raises(ValueError, match=said):
        solver.act(numbers(6, 5), **search)


def test_a_seed_leaves_the_generators_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    make()
    assert not seeded


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda model: Solver(model, "qnet"), "config must be a SolverConfig, got 'qnet'"),
        (lambda _: Solver(nn.Linear(5, 3)), "world_model must be a WorldModel or a KnownModel, got Linear"),
        (
            lambda _: Solver.create("dtsn", SPACE, Discrete(3), world_model=nn.Linear(5, 3)),
            "world_model must be a WorldModel or a KnownModel, got Linear",
        ),
        (
            lambda _: Solver.create("dtsn", SPACE, Discrete(3), encoder=nn.Identity),
            "encoder must be a module",
        ),
    ],
)
def test_what_is_no_part_of_a_solver(wrong, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong(make().world_model)


def test_the_shape_of_observations_may_be_a_list() -> None:
    assert Solver(make().world_model, observation_shape=[5])(numbers(6, 5)).shape == (6, ACTIONS)


# --- batches -----------------------------------------------------------------------------------------


def test_batch_of_numpy() -> None:
    batch = transitions()
    arrays = {name: value.numpy() for name, value in batch.tensors().items()}
    arrays |= {"action": arrays["action"].astype(np.int32)[:, None], "reward": arrays["reward"].astype(float)}
    arrays["terminated"] = arrays["terminated"].astype(np.float32)[:, None]
    made = Batch.of(arrays)
    for name, value in batch.tensors().items():
        assert torch.equal(getattr(made, name), value)
        assert getattr(made, name).dtype == value.dtype
    assert torch.equal(
        make().loss(made, uniforms=numbers(6, T)).total, make().loss(batch, uniforms=numbers(6, T)).total
    )
    del arrays["q_target"]
    with pytest.raises(ValueError, match="q_target must be real and finite"):
        make().loss(Batch.of(arrays))
    make().loss(dataclasses.replace(Batch.of(arrays), q_target=batch.q_target))


def test_arrays_in_a_batch_become_tensors() -> None:
    arrays = Batch(**{name: value.numpy() for name, value in transitions().tensors().items()})
    assert torch.equal(arrays.to("cpu").observation, transitions().observation)
    assert make("qnet").loss(arrays).total.isfinite()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"obs": 1}, "'obs' unknown"),
        ({"action": None}, "'action' missing"),
        ({"action": np.ones(6)}, "action must be whole numbers"),
    ],
)
def test_bad_mappings(change: dict[str, object], said: str) -> None:
    mapping = vars(transitions()) | change
    with pytest.raises(ValueError, match=said):
        Batch.of({name: value for name, value in mapping.items() if value is not None})


def test_a_batch_of_dicts_trains() -> None:
    space = Dict(a=Box(-1, 1, (2,)), b=Discrete(3))
    solver = Solver.create(SolverConfig(iterations=T), space, Discrete(ACTIONS), seed=0)
    seen = {"a": numbers(6, 2).numpy(), "b": np.arange(6) % 3}
    batch = Batch.of(transitions().tensors() | {"observation": seen, "next_observation": seen})
    solver.loss(batch).total.backward()
    assert all(p.grad is not None for p in solver.world_model.parameters())
    short = {"a": numbers(5, 2), "b": np.arange(5) % 3}
    with pytest.raises(ValueError, match="next_observation"):
        solver.loss(dataclasses.replace(batch, next_observation=short))


# --- copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_after_compiling_act_by_their_own_weights(clone, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_(function, **_):  # torch.compile takes a minute; what it is given decides whose weights act
        compiled.append(function.__self__)
        return lambda *args: function(*args)

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr("dtsn.solvers.solver.compiled_actions", lambda *_: None)  # as without Numba
    solver, obs = make(), numbers(20, 5)
    solver.compile_acting()
    solver.act(obs)
    other = clone(solver)
    with torch.no_grad():
        for parameter in other.world_model.parameters():
            parameter.normal_()
    expected = other.plan(obs, deterministic=True).q.argmax(1)
    assert torch.equal(other.act(obs, deterministic=True), expected)
    assert not torch.equal(solver.act(obs, deterministic=True), expected)
    assert compiled == [solver, other]
