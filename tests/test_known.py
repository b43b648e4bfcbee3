"""World models whose rules are given: searches, solvers, training, saving, and rules that are wrong."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import SOLVERS, LossWeights, SolverConfig, TrainConfig
from dtsn.data.format import Episode
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter
from dtsn.errors import UserError
from dtsn.models.known import KnownModel, StateMLP, TableRules
from dtsn.search import Expansion, best_first_search, full_expansion
from dtsn.solvers.solver import Solver
from dtsn.training.loading import export_solver, load_solver
from dtsn.training.loop import train_run
from dtsn.training.trainer import Trainer
from reference import reference_search
from test_search import TOLERANCE, gradients

STATES, ACTIONS, T = 40, 3, 6
each_solver = pytest.mark.parametrize("name", SOLVERS)


class Lookup(nn.Module):
    """A value for each state."""

    def __init__(self, states: int = STATES, seed: int = 0):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(states, generator=rng, dtype=torch.float64))

    def forward(self, state: Tensor) -> Tensor:
        return self.table[state]


def tables(seed: int = 0, states: int = STATES) -> dict[str, Tensor]:
    """A random world; what invalid actions lead to is absurd."""
    rng = torch.Generator().manual_seed(seed)
    valid = torch.rand(states, ACTIONS, generator=rng) > 0.3
    valid[torch.arange(states), torch.randint(ACTIONS, (states,), generator=rng)] = True
    valid[states // 2 :: 5] = False  # dead ends
    following = torch.randint(states, (states, ACTIONS), generator=rng)
    reward = torch.randn(states, ACTIONS, generator=rng)
    return {
        "next_state": following.masked_fill(~valid, -7),
        "reward": reward.masked_fill(~valid, torch.nan),
        "valid": valid,
        "terminal": torch.rand(states, ACTIONS, generator=rng) < 0.2,
    }


def table_model(seed: int = 0, **options: Any) -> KnownModel:
    return KnownModel(TableRules(**tables(seed)), Lookup(seed=seed), ACTIONS, **options)


def alive(model: KnownModel) -> Tensor:
    """States with a valid action."""
    assert isinstance(model.rules, TableRules)
    assert isinstance(model.rules.valid, Tensor)
    return model.rules.valid.any(1).nonzero().squeeze(1)


class AsLatents(nn.Module):
    """The same world as the recursive reference wants it: floating-point latents ``[B, 1]``."""

    def __init__(self, model: KnownModel):
        super().__init__()
        self.model = model

    def expand(self, latent: Tensor) -> Expansion:
        children, *rest = self.model.expand(latent[:, 0].long())
        return Expansion(children[:, :, None].double(), *rest)

    def value(self, latent: Tensor) -> Tensor:
        return self.model.value(latent[:, 0].long())


# --- the search over states that are whole numbers ----------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_search_equals_the_recursive_one(seed: int) -> None:
    model = table_model(seed)
    root = alive(model)[:8]
    uniforms = torch.rand(len(root), T, generator=torch.Generator().manual_seed(seed))
    tree = best_first_search(model, root, iterations=T, uniforms=uniforms, discount=0.9)
    expected = [
        reference_search(AsLatents(model), root[row : row + 1, None].double(), slots, 0.9, 1.0)
        for row, slots in enumerate(tree.selected.tolist())
    ]
    q_values = torch.stack([found.q_values for found in expected])
    log_probs = torch.stack([found.log_probs for found in expected])
    torch.testing.assert_close(tree.q_values, q_values, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(tree.log_probs, log_probs, rtol=0, atol=TOLERANCE)
    finite = q_values.isfinite()
    pairs = [(tree.q_values, tree.log_probs), (q_values, log_probs)]
    ours, theirs = (
        torch.autograd.grad(q[finite].square().sum() + p.sum(), model.value_head.table) for q, p in pairs
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=TOLERANCE)
    with torch.no_grad():
        for row in range(len(root)):
            here = slice(row, row + 1)
            alone = best_first_search(model, root[here], iterations=T, uniforms=uniforms[here], discount=0.9)
            torch.testing.assert_close(alone.q, tree.q[here].detach(), rtol=0, atol=TOLERANCE)
            assert torch.equal(alone.selected, tree.selected[here])


@pytest.mark.parametrize("parts", [False, True])
def test_full_expansion_is_that_of_latents(parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = table_model(1)
    root = alive(model)[:8]
    if parts:
        monkeypatch.setattr("dtsn.search.full.LEAVES_AT_ONCE", 2 * ACTIONS**3)
    ours = full_expansion(model, root, depth=3).q
    theirs = full_expansion(AsLatents(model), root[:, None].double(), depth=3).q
    assert torch.equal(ours, theirs)
    finite = ours.isfinite()
    a, b = (gradients(q[finite].square().sum(), model, model.value_head.table)[-1] for q in (ours, theirs))
    assert torch.equal(a, b)


@pytest.mark.parametrize("rows", [1, 5])
def test_states_are_their_own_keys_when_merging(rows: int) -> None:
    model = table_model(2)
    root = alive(model)[:rows]
    with torch.no_grad():
        tree = best_first_search(model, root, iterations=30, rule="greedy", merge=True)
    assert tree.merging is not None
    for row in range(rows):  # each state is expanded once
        chosen = [slot for slot in tree.selected[row].tolist() if slot >= 0]
        states = {0: int(root[row])}
        for t, slot in enumerate(chosen):
            for action in range(ACTIONS):
                found = model.expand(torch.tensor([states[slot]])).children[0, action]
                states[1 + t * ACTIONS + action] = int(found)
        assert len({states[slot] for slot in chosen}) == len(chosen)


def test_vectors_and_numpy_are_the_same_world() -> None:
    """A corridor as an index, as a vector of two numbers, and by numpy: the same trees."""

    def walk(state, stack):
        right, left = state + 1, state - 1
        place = stack([left, right], 1)
        return place, (place == 4) * 1.0, (place >= 0) & (place <= 4), place == 4

    def vectors(state: Tensor):
        children, reward, valid, terminal = walk(state[:, 0], torch.stack)
        return torch.stack([children, state[:, 1:].expand_as(children) + 1], 2), reward, valid, terminal

    class Place(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(-0.1))

        def forward(self, state: Tensor) -> Tensor:
            return self.slope * (4 - (state if state.dim() == 1 else state[:, 0]))

    models = [
        KnownModel(lambda s: walk(s, torch.stack), Place(), 2),
        KnownModel(lambda s: walk(s, np.stack), Place(), 2, arrays="numpy"),
        KnownModel(vectors, Place(), 2),
    ]
    spaces = [Discrete(5), Discrete(5), Box(0, 9, (2,), np.int64)]
    seen = [torch.tensor([0, 1, 2, 3]), np.array([0, 1, 2, 3]), torch.tensor([[i, 0] for i in range(4)])]
    q = [
        Solver.create(SolverConfig("dtsn", iterations=9), space, Discrete(2), world_model=model)
        .eval()(observation, deterministic=True)
        .detach()
        for model, space, observation in zip(models, spaces, seen, strict=True)
    ]
    assert torch.equal(q[0], q[1])
    assert torch.equal(q[0], q[2])
    assert q[0][:, 1].tolist() == [1.0] * 4  # the goal is found from everywhere
    assert q[0][0, 0] == -torch.inf


# --- solvers ------------------------------------------------------------------------------------------


def corridor(length: int = 12, **options: Any) -> KnownModel:
    """Left, stay, right; −1 a step; the last cell ends it."""
    place = torch.arange(length)[:, None] + torch.tensor([-1, 0, 1])
    valid = (place >= 0) & (place < length)
    rules = TableRules(place, -torch.ones(length, 3), valid, place == length - 1)
    return KnownModel(rules, StateMLP(Discrete(length), hidden=32, scale=10), 3, **options)


def walked(length: int = 12) -> Batch:
    state = torch.arange(length - 1)
    return Batch(
        observation=state,
        action=torch.full_like(state, 2),
        reward=-torch.ones(len(state)),
        q_target=-(length - 1.0 - state),
        next_observation=state + 1,
        terminated=state + 1 == length - 1,
    )


def made(name: str, model: KnownModel | None = None, length: int = 12, **config: Any) -> Solver:
    torch.manual_seed(0)
    options = SolverConfig(name, iterations=4, **config)
    return Solver.create(options, Discrete(length), Discrete(3), world_model=model or corridor(length))


@each_solver
def test_learns_the_value_alone(name: str) -> None:
    solver, batch = made(name), walked()
    optimizer = torch.optim.Adam(solver.world_model.parameters(), lr=1e-2)
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        loss = solver.train().loss(batch, generator=rng)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        solver.update_target()
    assert set(loss.terms) == {"q", "cql"} | ({"expansion"} if name == "dtsn" else set())
    q = solver.eval()(batch.observation, deterministic=True)
    assert torch.equal(q[:, 2], q.amax(1))  # to stay and then to go right is as good as the other way round
    assert (q[1:, 2] - batch.q_target[1:]).abs().max() < 1.5
    assert q[0, 0] == -torch.inf
    assert torch.equal(solver.act(batch.observation, deterministic=True), q.argmax(1))


@each_solver
def test_a_learned_reward(name: str) -> None:
    known = corridor()
    reward = nn.Sequential(nn.Embedding(12, 3))
    model = KnownModel(
        lambda state: (known.rules(state)[0], None, *known.rules(state)[2:]),
        known.value_head,
        3,
        reward=reward,
    )
    loss = made(name, model).loss(walked())
    assert ("reward" in loss.terms) == (name in ("search", "treeqn", "dtsn"))
    assert "transition" not in loss.terms
    if "reward" in loss.terms:
        loss.total.backward()
        assert reward[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("term", ["transition", "reward", "conservative_reward"])
def test_losses_that_have_nothing_to_teach(term: str) -> None:
    assert getattr(made("dtsn").config.weights, term) == 0
    made("dtsn", weights=LossWeights(**{term: 0.0}))
    with pytest.raises(UserError, match=rf"weights.{term} must be left out or 0 .*got 0.7"):
        made("dtsn", weights=LossWeights(**{term: 0.7}))


def test_losses_beyond_the_paper_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"weights.termination must be 0 .*ends are known"):
        made("dtsn", weights=LossWeights(termination=1.0))
    with pytest.raises(UserError, match=r"weights.conservative_value must be 0"):
        made("dtsn", weights=LossWeights(conservative_value=1.0))


@each_solver
def test_td_targets_do_not_search_where_all_is_over(name: str) -> None:
    valid = torch.tensor([[True], [True], [False]])
    rules = TableRules([[1], [2], [0]], [[1.0], [1.0], [0.0]], valid, [[False], [True], [False]])
    model, config = KnownModel(rules, Lookup(3), 1), SolverConfig(name, discount=0.5)
    solver = Solver.create(config, Discrete(3), Discrete(1), world_model=model)
    batch = torch.tensor([1.0, 1.0]), torch.tensor([1, 2]), torch.tensor([False, True])
    target = solver.td_target(*batch)
    assert target.tolist() == [1.5, 1.0]
    over = solver.td_target(batch[0][1:], batch[1][1:], batch[2][1:])
    assert over.tolist() == [1.0]


def test_observations_that_are_not_states() -> None:
    space = Dict({"place": Discrete(12), "noise": Box(0, 1, (2,))})
    model = corridor(encode=lambda observation: observation["place"])
    solver = Solver.create("dtsn", space, Discrete(3), world_model=model)
    seen = {"place": torch.arange(3), "noise": torch.zeros(3, 2)}
    assert solver(seen).shape == (3, 3)
    by_numpy = KnownModel(
        lambda state: model.rules(torch.as_tensor(state)),
        model.value_head,
        3,
        encode=lambda observation: np.minimum(observation["place"], 5),
        arrays="numpy",
    )
    assert Solver.create("dtsn", space, Discrete(3), world_model=by_numpy)(seen).shape == (3, 3)
    with pytest.raises(UserError, match="encode must be given"):
        Solver.create("dtsn", space, Discrete(3), world_model=corridor())(seen)


def test_copies_have_their_own_weights() -> None:
    solver = made("dtsn")
    twin = copy.deepcopy(solver)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    seen = torch.arange(4)
    assert not torch.equal(*(s.eval()(seen, deterministic=True) for s in (solver, twin)))


def test_merging_when_acting() -> None:
    q = made("dtsn", merge=True, act_iterations=40).eval()(torch.arange(11), deterministic=True)
    assert torch.equal(q[:, 2], -(11.0 - torch.arange(11)))  # everything is found
    vectors = KnownModel(lambda s: (s[:, None], torch.zeros(len(s), 1)), nn.Linear(2, 1), 1)
    solver = Solver.create(SolverConfig(merge=True), Box(-1, 1, (2,)), Discrete(1), world_model=vectors)
    with pytest.raises(UserError, match="merge needs key="):
        solver.plan(torch.zeros(1, 2))
    vectors._key = lambda state: state.sum(1).long()
    solver.plan(torch.zeros(1, 2))


# --- files --------------------------------------------------------------------------------------------


def test_a_saved_solver_asks_for_the_rules(tmp_path: Path) -> None:
    solver = made("dtsn")
    folder = solver.save(tmp_path / "mine")
    assert "world_model=" in (folder / "README.md").read_text()
    with pytest.raises(UserError, match="pass a module of that class as world_model="):
        Solver.load(folder)
    loaded = Solver.load(folder, world_model=corridor(), act_iterations=7)
    assert loaded.act_iterations == 7
    seen = torch.arange(5)
    ours, theirs = (
        s.eval()(seen, uniforms=torch.rand(5, n, generator=torch.Generator().manual_seed(0)))
        for s, n in ((solver, 4), (Solver.load(folder, world_model=corridor()), 4))
    )
    assert torch.equal(ours, theirs)
    with pytest.raises(UserError, match="actions"):
        Solver.load(folder, world_model=KnownModel(TableRules([[0]], [[0.0]]), Lookup(1), 1))
    plain = Solver.create("qnet", Box(-1, 1, (4,)), Discrete(3)).save(tmp_path / "plain")
    with pytest.raises(UserError, match="leave out world_model="):
        Solver.load(plain, world_model=corridor())


def test_spaces_and_worlds_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="the 2 actions of action_space, got 3"):
        Solver.create("dtsn", Discrete(12), Discrete(2), world_model=corridor())
    with pytest.raises(UserError, match="without network and encoder"):
        Solver.create("dtsn", Discrete(12), Discrete(3), world_model=corridor(), encoder=nn.Identity())


# --- rules that are wrong -----------------------------------------------------------------------------

GOOD = {
    "children": lambda s: torch.stack([s, s + 1], 1),
    "reward": lambda s: torch.zeros(len(s), 2),
    "valid": lambda s: torch.ones(len(s), 2, dtype=torch.bool),
    "terminal": lambda s: torch.zeros(len(s), 2, dtype=torch.bool),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("children", lambda t: t[:, :1], r"children like the states, torch.int64 \[\d, 2\], got"),
        ("children", lambda t: t.float(), "children like the states"),
        ("children", lambda t: "x", "children must be a tensor or a numpy array, got str"),
        ("reward", lambda t: t[:, :1], r"rewards of shape \[\d, 2\], got \[\d, 1\]"),
        ("reward", lambda t: t + torch.nan, "rewards must be finite .*got nan for action 0 in row 0"),
        ("reward", lambda t: t + torch.inf, "rewards must be finite"),
        ("reward", lambda t: None, "rewards if no module learns them, got None"),
        ("valid", lambda t: t[:, :1], "valid must be bool"),
        ("valid", lambda t: t.float(), "valid must be bool"),
        ("valid", lambda t: t * 2, "valid must be .*got 2"),
        ("valid", lambda t: ~t, "valid action at the root, got none in row 0"),
        ("terminal", lambda t: t + 0.5, "terminal must be bool"),
        ("terminal", lambda t: t + 3, "terminal must be .*got 3"),
        ("terminal", lambda t: t[0], "terminal must be bool"),
    ],
)
def test_wrong_rules(rows: int, name: str, wrong: Any, said: str) -> None:
    def rules(state: Tensor) -> tuple[Any, ...]:
        told = {n: make(state) for n, make in GOOD.items()}
        return tuple((told | {name: wrong(told[name])}).values())

    model = KnownModel(rules, Lookup(), 2)
    with torch.no_grad(), pytest.raises(UserError, match=said):
        best_first_search(model, torch.arange(rows), iterations=3)


@pytest.mark.parametrize("form", [lambda m: m.long(), lambda m: m.to(torch.int8), lambda m: m.numpy()])
def test_masks_of_integers_and_numpy(form: Any) -> None:
    def rules(state: Tensor) -> tuple[Any, ...]:
        told = {n: make(state) for n, make in GOOD.items()}
        return tuple((told | {n: form(told[n]) for n in ("valid", "terminal")}).values())

    tree = best_first_search(KnownModel(rules, Lookup(), 2), torch.arange(3), iterations=3)
    assert bool(tree.exists.all())


def test_other_wrong_rules() -> None:
    state = torch.arange(2)
    for told in (torch.zeros(2, 2), (1,), (1, 2, 3, 4, 5)):
        with pytest.raises(UserError, match=r"rules must return \(children, reward, valid, terminal\)"):
            KnownModel(lambda s, told=told: told, Lookup(), 2).expand(state)
    with pytest.raises(UserError, match="None for rewards that a module learns"):
        KnownModel(
            lambda s: (GOOD["children"](s), GOOD["reward"](s)), Lookup(), 2, reward=nn.Embedding(9, 2)
        ).expand(state)
    with pytest.raises(UserError, match=r"value module must return shape \[2\], got \[2, 3\]"):
        KnownModel(lambda s: s, nn.Embedding(9, 3), 2).value(state)
    floats = KnownModel(lambda s: (s[:, None] * torch.nan, torch.zeros(len(s), 1)), nn.Linear(2, 1), 1)
    with pytest.raises(UserError, match="children must be finite"):
        floats.expand(torch.zeros(2, 2))
    with pytest.raises(UserError, match="num_actions must be at least 1"):
        KnownModel(lambda s: s, Lookup(), 0)
    with pytest.raises(UserError, match="arrays must be"):
        KnownModel(lambda s: s, Lookup(), 2, arrays="jax")
    with pytest.raises(UserError, match="root must be"):
        best_first_search(table_model(), torch.tensor(3), iterations=2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"next_state": torch.zeros(STATES)}, r"next_state must be whole numbers \[S, A\]"),
        ({"next_state": torch.full((STATES, ACTIONS), STATES)}, f"next_state must lie in 0..{STATES - 1}"),
        ({"reward": torch.zeros(STATES)}, "reward must have shape"),
        ({"reward": torch.full((STATES, ACTIONS), torch.nan)}, "rewards must be finite"),
        ({"valid": torch.ones(STATES)}, "valid must be bool"),
        ({"terminal": torch.full((STATES, ACTIONS), 2)}, "terminal must be .*got 2"),
    ],
)
def test_wrong_tables(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TableRules(**(tables() | change))


def test_states_that_the_tables_do_not_have() -> None:
    for states in (torch.tensor([STATES]), torch.tensor([-1])):
        with pytest.raises(UserError, match="states must lie in"):
            table_model().encode(states)
    with pytest.raises(UserError, match="states of a table must be"):
        table_model().encode(torch.zeros(3, 1))


def test_a_demonstrated_action_that_is_invalid() -> None:
    batch = dataclasses.replace(walked(), action=torch.zeros(11, dtype=torch.int64))
    with pytest.raises(UserError, match=r"batch.action must be valid .*got 0, invalid, in row 0"):
        made("dtsn").loss(batch)


def test_values_of_a_space() -> None:
    for space, state in (
        (Discrete(5), torch.arange(3)),
        (MultiDiscrete([3, 4]), torch.ones(3, 2).long()),
        (Box(-1, 1, (4,)), torch.zeros(3, 4)),
    ):
        assert StateMLP(space, hidden=8)(state).shape == (3,)


# --- training runs ------------------------------------------------------------------------------------


def walks(folder: Path) -> Path:
    """Data of walks to the right; an observation is the place, as a vector of one number."""
    with DatasetWriter(
        folder / "walks.h5",
        env_id="corridor",
        env_options={},
        num_actions=3,
        observation_shape=(1,),
        observation_dtype=np.int32,
        observation_low=0,
        observation_high=11,
    ) as writer:
        for start in range(11):
            places = np.arange(start, 12, dtype=np.int32)[:, None]
            steps = len(places) - 1
            writer.add_episode(Episode(places, np.full(steps, 2), -np.ones(steps, np.float32), True, start))
    return folder / "walks.h5"


def placed() -> KnownModel:
    return corridor(encode=lambda observation: observation[:, 0].long())


def test_a_run_is_trained_resumed_and_loaded(tmp_path: Path) -> None:
    config = TrainConfig(
        SolverConfig(iterations=3), steps=6, batch_size=16, search_warmup=2, checkpoint_every=3
    )
    with Dataset(walks(tmp_path)) as dataset:

        def trainer(steps: int) -> Trainer:
            torch.manual_seed(0)
            changed = dataclasses.replace(config, steps=steps)
            return Trainer(changed, dataset.observation, 3, world_model=placed())

        whole = trainer(6)
        for metrics in train_run(tmp_path / "whole", whole, dataset):
            assert set(metrics) >= {"loss", "q", "cql"}
            assert not {"transition", "reward"} & set(metrics)
        run = train_run(tmp_path / "run", trainer(6), dataset)
        for _ in range(3):
            next(run)
        run.close()
        resumed = trainer(6)
        list(train_run(tmp_path / "run", resumed, dataset, resume=True))
        assert resumed.step == 6
        for ours, theirs in zip(resumed.solver.parameters(), whole.solver.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        list(train_run(tmp_path / "learned", Trainer(config, dataset.observation, 3), dataset))
        with pytest.raises(UserError, match="own_world_model = None, not True"):
            train_run(tmp_path / "learned", trainer(6), dataset, resume=True)
        with pytest.raises(UserError, match="does not fit"):
            train_run(tmp_path / "run", Trainer(config, dataset.observation, 3), dataset, resume=True)
    seen = torch.arange(4, dtype=torch.int32)[:, None]
    loaded = load_solver(tmp_path / "run", world_model=placed())
    expected = whole.solver.eval()(seen, deterministic=True)
    assert torch.equal(loaded(seen, deterministic=True), expected)
    with pytest.raises(UserError, match="pass a module of that class as world_model="):
        load_solver(tmp_path / "run")
    exported = export_solver(tmp_path / "run", tmp_path / "alone")
    assert torch.equal(load_solver(exported, world_model=placed())(seen, deterministic=True), expected)
