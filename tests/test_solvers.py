"""One contract for the four solvers, over vector, grid and map latents; then what tells them apart."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import LossWeights, NetworkConfig, SolverConfig
from dtsn.errors import UserError
from dtsn.models.world_model import WorldModel
from dtsn.search import best_first_search
from dtsn.solvers.solver import Solver

ACTIONS, DEPTH, T, T_ACT, BATCH = 3, 2, 4, 6, 5
SPACES = {
    "vector": Box(-1, 1, (7,)),
    "grid": Box(0, 1, (3, 4, 5), np.uint8),
    "map": Box(0, 1, (3, 4, 5), np.uint8),
}
LATENTS = {"vector": (8,), "grid": (8,), "map": (4, 4, 5)}

# What the paper's table says of each: passes of the transition module (levels of the tree) in training and
# when acting, shape of the acting tree (steps, expansions), loss terms.
FULL = sum(ACTIONS**level for level in range(DEPTH))
SOLVERS = {
    "qnet": (1, 1, (1, 1), {"q", "cql"}),
    "search": (1, T_ACT, (T_ACT, T_ACT), {"q", "cql", "transition", "reward"}),
    "treeqn": (DEPTH, DEPTH, (1, FULL), {"q", "cql", "reward"}),
    "dtsn": (T, T_ACT, (T_ACT, T_ACT), {"q", "cql", "transition", "reward", "expansion"}),
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
each_kind = pytest.mark.parametrize("kind", SPACES)
MODULES = {"encoder", "transition", "reward_head", "value_head"}


def make(name: str, kind: str = "vector", seed: int | None = 0, **config: object) -> Solver:
    network = NetworkConfig(latent=LATENTS[kind][0], hidden=16, spatial=kind == "map")
    options = SolverConfig(name, **({"iterations": T, "act_iterations": T_ACT, "depth": DEPTH} | config))
    return Solver.create(options, SPACES[kind], Discrete(ACTIONS), network=network, seed=seed)


def observe(kind: str, batch: int = BATCH, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    shape = (batch, *SPACES[kind].shape)
    if kind == "vector":
        return torch.from_numpy(rng.uniform(-1, 1, shape).astype(np.float32))
    return torch.from_numpy(rng.integers(0, 2, shape, np.uint8))


def transitions(kind: str = "vector", batch: int = BATCH) -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch(
        observation=observe(kind, batch),
        action=torch.randint(ACTIONS, (batch,), generator=rng),
        reward=torch.randn(batch, generator=rng),
        q_target=torch.randn(batch, generator=rng),
        next_observation=observe(kind, batch, seed=1),
        terminated=torch.zeros(batch, dtype=torch.bool),
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniforms(batch: int = BATCH, steps: int = T_ACT) -> Tensor:
    return torch.rand(batch, steps, generator=generator())


def gradients(solver: Solver, batch: Batch, **options: object) -> dict[str, Tensor]:
    solver.zero_grad()
    solver.loss(batch, generator=generator(), **options).total.backward()
    return {key: p.grad.clone() for key, p in solver.named_parameters() if p.grad is not None}


def reached(gradient: dict[str, Tensor]) -> set[str]:
    """The submodules with a gradient other than 0."""
    return {key.removeprefix("world_model.").partition(".")[0] for key, g in gradient.items() if g.any()}


# --- the contract ------------------------------------------------------------------------------------


@each_solver
@each_kind
@pytest.mark.parametrize("batch", [1, BATCH])
def test_forward_gives_q_values_by_the_planner_of_the_mode(name: str, kind: str, batch: int) -> None:
    solver, levels = make(name, kind), []
    solver.world_model.transition.register_forward_hook(lambda *_: levels.append(1))
    for training, passes in ((True, SOLVERS[name][0]), (False, SOLVERS[name][1])):
        levels.clear()
        q = solver.train(training)(observe(kind, batch))
        assert q.shape == (batch, ACTIONS)
        assert q.isfinite().all()
        assert q.requires_grad
        assert len(levels) == passes


@each_solver
@each_kind
@pytest.mark.parametrize("batch", [1, BATCH])
def test_plan_gives_the_whole_tree(name: str, kind: str, batch: int) -> None:
    tree = make(name, kind).plan(observe(kind, batch), generator=generator())
    steps, expansions = SOLVERS[name][2]
    nodes = 1 + expansions * ACTIONS
    assert tree.q_values.shape == (batch, steps, ACTIONS)
    assert tree.log_probs.shape == (batch, steps)
    assert tree.selected.shape == (batch, expansions)
    for table in (tree.reward, tree.value, tree.path_value, tree.parent, tree.depth, tree.root_action):
        assert table.shape == (batch, nodes)
    assert tree.root_children.shape == (batch, ACTIONS, *LATENTS[kind])
    assert tree.root_rewards.shape == (batch, ACTIONS)
    assert not tree.q.requires_grad
    assert (tree.selected.sort(1).values.diff(dim=1) > 0).all()  # no node is expanded twice
    torch.testing.assert_close(tree.path_value.gather(1, tree.best_leaf[:, None])[:, 0], tree.q.amax(1))


@each_solver
@each_kind
def test_act(name: str, kind: str) -> None:
    solver, obs, draws = make(name, kind), observe(kind, 20), uniforms(20)
    actions = solver.act(obs, uniforms=draws)
    assert actions.shape == (20,)
    assert actions.dtype == torch.int64
    assert 0 <= actions.min() <= actions.max() < ACTIONS
    assert torch.equal(actions, solver.plan(obs, uniforms=draws).q.argmax(1))
    assert torch.equal(actions, solver.act(obs.numpy(), uniforms=draws))
    closed = nn.functional.one_hot(actions, ACTIONS).bool()  # forbid what it wants
    others = solver.act(obs, invalid_actions=closed, uniforms=draws)
    assert not closed.gather(1, others[:, None]).any()


@each_solver
@each_kind
def test_a_row_does_not_depend_on_the_others(name: str, kind: str) -> None:
    solver, obs, draws = make(name, kind), observe(kind), uniforms()
    together = solver.plan(obs, uniforms=draws)
    for row in range(BATCH):
        alone = solver.plan(obs[row : row + 1], uniforms=draws[row : row + 1])
        assert torch.equal(alone.selected[0], together.selected[row])
        torch.testing.assert_close(alone.q_values[0], together.q_values[row])


@each_solver
@each_kind
@pytest.mark.parametrize(
    ("term", "modules"),
    [
        ("q", MODULES),  # Q = R + V of what E and T make: all of them in all four
        ("cql", MODULES),
        ("transition", {"encoder", "transition"}),
        ("reward", {"encoder", "reward_head"}),
    ],
)
def test_each_loss_reaches_the_modules_it_should(name: str, kind: str, term: str, modules: set[str]) -> None:
    weights = dict.fromkeys(("q", "cql", "transition", "reward", "expansion"), 0.0) | {term: 1.0}
    solver = make(name, kind, weights=LossWeights(**weights))
    gradient = gradients(solver, transitions(kind))
    assert reached(gradient) == (modules if term in SOLVERS[name][3] else set())
    assert not any("target" in key for key in gradient)


@each_solver
@each_kind
def test_loss_terms(name: str, kind: str) -> None:
    solver = make(name, kind)
    result = solver.loss(transitions(kind))
    assert set(result.terms) == SOLVERS[name][3]
    assert all(term.shape == (BATCH,) for term in result.terms.values())
    assert result.total.shape == ()
    weighted = [getattr(solver.config.weights, key) * term for key, term in result.terms.items()]
    torch.testing.assert_close(result.total, torch.stack(weighted).sum(0).mean())


@each_kind
def test_loss_terms_against_the_equations(kind: str) -> None:
    weights = LossWeights(q=0.5, cql=2.0, transition=3.0, reward=4.0, expansion=0.25)
    solver, batch = make("dtsn", kind, weights=weights), transitions(kind)
    with torch.no_grad():
        for p in solver.target_encoder.parameters():
            p.mul_(0.5)  # so that it is not the encoder
    result = solver.loss(batch, generator=generator())
    model, row = solver.world_model, torch.arange(BATCH)
    root = model.encode(batch.observation)
    tree = best_first_search(model, root, iterations=T, generator=generator())
    taken = tree.q_values[row, :, batch.action]  # [B, T]
    q = (taken - batch.q_target[:, None]) ** 2
    cql = tree.q_values.exp().sum(2).log() - taken
    after_each = 0.5 * q + 2 * cql  # L_t: λ1 and λ2 are inside
    before_each = torch.cat([torch.zeros(BATCH, 1), after_each[:, :-1]], 1)
    children, rewards = model.expand(root)
    target = solver.target_encoder(batch.next_observation).tanh()
    expected = {
        "q": q[:, -1],
        "cql": cql[:, -1],
        "transition": (children[row, batch.action].tanh() - target).flatten(1).pow(2).sum(1),
        "reward": (rewards[row, batch.action] - batch.reward) ** 2,
        "expansion": (tree.log_probs * (after_each[:, -1:] - before_each)).sum(1),
    }
    for name, term in expected.items():
        torch.testing.assert_close(result.terms[name], term.detach(), rtol=1e-4, atol=1e-5)
    total = sum(getattr(weights, name) * term.mean() for name, term in expected.items())
    torch.testing.assert_close(result.total, total, rtol=1e-4, atol=1e-5)


@each_solver
@each_kind
def test_same_generator_same_loss_bitwise(name: str, kind: str) -> None:
    solver, batch = make(name, kind), transitions(kind)
    first, again = (solver.loss(batch, generator=generator()) for _ in range(2))
    assert torch.equal(first.total, again.total)
    one, two = gradients(solver, batch), gradients(solver, batch)
    assert all(torch.equal(one[key], two[key]) for key in one)


@each_solver
@each_kind
def test_state_dict_through_safetensors(name: str, kind: str, tmp_path) -> None:
    solver, other, batch = make(name, kind, seed=0), make(name, kind, seed=1), transitions(kind)
    gradients(solver, batch)
    torch.optim.SGD(solver.world_model.parameters(), 0.1).step()  # the target encoder is another now
    save_file(solver.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    obs = observe(kind)
    q, loaded = (s.plan(obs, uniforms=uniforms()).q for s in (solver, other))
    assert torch.equal(q, loaded)
    totals = [s.loss(batch, generator=generator()).total for s in (solver, other)]
    assert torch.equal(*totals)


@each_kind
def test_same_seed_same_weights_in_all_four(kind: str) -> None:
    weights = {name: make(name, kind).world_model.state_dict() for name in SOLVERS}
    other = make("dtsn", kind, seed=1).world_model.state_dict()
    for key, value in weights["dtsn"].items():
        assert all(torch.equal(value, weights[name][key]) for name in SOLVERS)
        assert not torch.equal(value, other[key])


@each_kind
def test_a_seed_leaves_the_global_generators_alone(kind: str) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    make("dtsn", kind, seed=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002


def test_without_a_seed_the_global_generator_decides() -> None:
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        weights.append(make("dtsn", seed=None).world_model.value_head.first.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@each_kind
def test_the_four_have_equally_many_trainable_parameters(kind: str) -> None:
    counts = {
        name: sum(p.numel() for p in make(name, kind).parameters() if p.requires_grad) for name in SOLVERS
    }
    assert len(set(counts.values())) == 1


@each_solver
@each_kind
def test_target_encoder(name: str, kind: str) -> None:
    solver = make(name, kind, target_decay=0.75)
    if "transition" not in SOLVERS[name][3]:
        assert solver.target_encoder is None
        solver.update_target()
        return
    encoder, target = solver.world_model.encoder, solver.target_encoder
    assert not any(p.requires_grad for p in target.parameters())
    start = [p.clone() for p in encoder.parameters()]
    with torch.no_grad():
        for p in encoder.parameters():
            p.add_(1)
    for average, old in zip(target.parameters(), start, strict=True):
        assert torch.equal(average, old)  # its own copy
    solver.update_target()
    for average, old in zip(target.parameters(), start, strict=True):
        torch.testing.assert_close(average, old + 0.25)  # 0.75 θ′ + 0.25 (θ′ + 1)


@each_solver
@each_kind
def test_float64(name: str, kind: str) -> None:
    solver, batch = make(name, kind), transitions(kind)
    single = solver.plan(batch.observation, uniforms=uniforms()).q
    solver.double()
    obs = batch.observation.double()
    double = solver.plan(obs, uniforms=uniforms()).q
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, single.double(), rtol=1e-4, atol=1e-5)
    next_obs = batch.next_observation.double()
    values = batch.reward.double(), batch.q_target.double()
    gradient = gradients(solver, Batch(obs, batch.action, *values, next_obs, batch.terminated))
    assert all(g.dtype == torch.float64 for g in gradient.values())


@each_solver
@each_kind
def test_bfloat16_autocast_is_close(name: str, kind: str) -> None:
    solver, batch = make(name, kind), transitions(kind)

    def run() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        q = solver.plan(batch.observation, uniforms=uniforms()).q
        terms = solver.loss(batch, iterations=1, generator=generator()).terms
        return q, torch.stack([*terms.values()]), gradients(solver, batch)

    exact = run()
    with torch.autocast("cpu", torch.bfloat16):
        half = run()
    assert half[0].dtype == torch.float32  # path values are never added up in half precision
    torch.testing.assert_close(half[0], exact[0], rtol=0.02, atol=0.05)
    torch.testing.assert_close(half[1].float(), exact[1], rtol=0.05, atol=0.05)
    assert reached(half[2]) == reached(exact[2])
    assert all(g.isfinite().all() for g in half[2].values())


def test_device_and_batch_move_as_a_whole() -> None:
    solver, batch = make("dtsn"), transitions()
    assert solver.device == torch.device("cpu")
    assert solver.to("meta").device == torch.device("meta")
    assert len(batch) == BATCH
    assert all(value.device.type == "meta" for value in batch.to("meta").tensors().values())


# --- what tells them apart ---------------------------------------------------------------------------


@each_kind
def test_one_iteration_of_best_first_is_the_q_network(kind: str) -> None:
    qnet, dtsn = make("qnet", kind), make("dtsn", kind, iterations=1, act_iterations=1)
    obs, batch = observe(kind), transitions(kind)
    for training in (True, False):
        torch.testing.assert_close(dtsn.train(training)(obs), qnet.train(training)(obs))
    plain = LossWeights(transition=0, reward=0)
    qnet, dtsn = (make(name, kind, iterations=1, weights=plain) for name in ("qnet", "dtsn"))
    theirs, ours = gradients(qnet, batch), gradients(dtsn, batch)
    assert theirs.keys() == ours.keys()
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-6)


def test_model_based_search_learns_its_q_values_without_search() -> None:
    batch = transitions()
    qnet, search = make("qnet").loss(batch), make("search").loss(batch)
    assert torch.equal(qnet.terms["q"], search.terms["q"])
    assert torch.equal(qnet.terms["cql"], search.terms["cql"])


def test_loss_with_other_iterations() -> None:
    batch = transitions()
    long, short = make("dtsn", iterations=T), make("dtsn", iterations=1)
    overridden = long.loss(batch, iterations=1, generator=generator())
    assert torch.equal(overridden.total, short.loss(batch, generator=generator()).total)
    assert not overridden.terms["expansion"].any()  # the root is expanded with probability 1
    assert not torch.equal(overridden.total, long.loss(batch, generator=generator()).total)


def test_the_expansion_term_is_an_ablation_of_the_gradient_alone() -> None:
    batch = transitions()
    whole, off = make("dtsn"), make("dtsn", weights=LossWeights(expansion=0))
    terms, terms_off = (s.loss(batch, generator=generator()).terms for s in (whole, off))
    assert terms_off.keys() == terms.keys() - {"expansion"}
    assert all(torch.equal(terms[key], terms_off[key]) for key in terms_off)  # the same trees
    with_it, without = gradients(whole, batch), gradients(off, batch)
    change = {key: with_it[key] - without[key] for key in with_it}
    assert reached(change) == MODULES
    # Twice the weight, twice the change.
    twice = gradients(make("dtsn", weights=LossWeights(expansion=2)), batch)
    for key in change:
        torch.testing.assert_close(twice[key] - without[key], 2 * change[key], rtol=1e-3, atol=1e-4)


def test_telescoping_changes_the_credit_and_nothing_else() -> None:
    batch = transitions()
    on, off = make("dtsn"), make("dtsn", telescoping=False)
    terms, terms_off = (s.loss(batch, generator=generator()).terms for s in (on, off))
    assert {key for key in terms if not torch.equal(terms[key], terms_off[key])} == {"expansion"}
    with_it, without = gradients(on, batch), gradients(off, batch)
    assert reached({key: with_it[key] - without[key] for key in with_it}) == MODULES


def test_without_consistency_losses_rewards_and_next_states_do_not_matter() -> None:
    batch = transitions()
    changed = Batch(**vars(batch) | {"reward": batch.reward + 1, "next_observation": -batch.observation})
    off = make("dtsn", weights=LossWeights(transition=0, reward=0))
    one, two = gradients(off, batch), gradients(off, changed)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert "transition" not in off.loss(batch).terms  # no pass of the target encoder for nothing
    on = make("dtsn")
    one, two = gradients(on, batch), gradients(on, changed)
    assert {"encoder", "transition", "reward_head"} <= reached({key: one[key] - two[key] for key in one})


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0.1), ("discount", 0.5), ("iterations", T + 1)]
)
def test_search_options_reach_training(option: str, value: float) -> None:
    batch = transitions()
    usual, other = make("dtsn"), make("dtsn", **{option: value})
    totals = [s.loss(batch, generator=generator()).total for s in (usual, other)]
    assert not torch.equal(*totals)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", 0.01),
        ("discount", 0.5),
        ("act_iterations", 1),
        ("act_rule", "greedy"),
        ("epsilon", 1.0),
    ],
)
def test_search_options_reach_acting(option: str, value: object) -> None:
    obs = observe("vector", 50)
    base = {"act_iterations": 10} | ({"act_rule": "epsilon_greedy"} if option == "epsilon" else {})
    usual, other = make("dtsn", **base), make("dtsn", **(base | {option: value}))
    draws = [torch.rand(50, s.act_iterations, generator=generator()) for s in (usual, other)]
    trees = [s.plan(obs, uniforms=u) for s, u in zip((usual, other), draws, strict=True)]
    assert not torch.equal(trees[0].q, trees[1].q)


def test_a_full_tree_that_no_machine_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="depth must make a full tree of at most 1048576 leaves"):
        make("treeqn", depth=13)  # 3 actions
    assert make("dtsn", depth=13).config.depth == 13  # grows no full tree


@pytest.mark.parametrize("name", ["qnet", "treeqn"])
def test_discount_reaches_full_trees(name: str) -> None:
    usual, other = make(name), make(name, discount=0.5)
    for training in (True, False):
        q, discounted = (s.train(training)(observe("vector")) for s in (usual, other))
        assert not torch.equal(q, discounted)


def test_acting_iterations_default_to_those_of_training() -> None:
    tree = make("dtsn", act_iterations=None).plan(observe("vector"))
    assert tree.selected.shape == (BATCH, T)


# --- learning ----------------------------------------------------------------------------------------


def grid_world(side: int = 4) -> tuple[Tensor, Batch]:
    """Every (cell, move) of an empty room with the goal in a corner: exact Q [cells, 4], all transitions."""
    cells = torch.arange(side * side)
    row, column, goal = cells // side, cells % side, side * side - 1
    moves = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])
    next_row = (row[:, None] + moves[:, 0]).clamp(0, side - 1)
    next_column = (column[:, None] + moves[:, 1]).clamp(0, side - 1)
    after = next_row * side + next_column  # [cells, 4]
    after[goal] = goal
    steps_left = 2 * (side - 1) - row - column
    reward = torch.where(cells == goal, 0, -0.25)[:, None].expand_as(after)
    q = reward - 0.25 * steps_left[after]
    one_hot = torch.eye(side * side)
    return q, Batch(
        observation=one_hot.repeat_interleave(4, 0),
        action=torch.arange(4).repeat(side * side),
        reward=reward.flatten(),
        q_target=q.flatten(),
        next_observation=one_hot[after.flatten()],
        terminated=(after == goal).flatten(),
    )


@each_solver
def test_learns_a_small_world(name: str) -> None:
    q, batch = grid_world()
    solver = Solver.create(
        SolverConfig(name, iterations=4, weights=LossWeights(cql=0)),  # every action is in the data
        Box(0, 1, (16,)),
        Discrete(4),
        network=NetworkConfig(latent=16, hidden=64),
        seed=0,
    )
    optimizer, rng = torch.optim.Adam(solver.parameters(), 1e-2), generator()
    history = []
    for _ in range(150):
        result = solver.loss(batch, generator=rng)
        history.append(result.means())
        optimizer.zero_grad()
        result.total.backward()
        optimizer.step()
        solver.update_target()
    first, last = history[0], history[-1]
    for term in SOLVERS[name][3] - {"cql", "expansion"}:  # the value of the expansion term means nothing
        assert last[term] < 0.1 * first[term]
    actions = solver.act(torch.eye(16), generator=rng)
    optimal = q.gather(1, actions[:, None])[:, 0] > q.amax(1) - 1e-4
    assert optimal.float().mean() >= (
        0.9 if name != "search" else 0.75
    )  # its model was not trained for search


# --- your own modules --------------------------------------------------------------------------------


class Move(nn.Module):
    """On a line: action 0 steps down, action 1 up. Latents are [B, 1, 1]: any shape will do."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor([-0.125, 0.125]))

    def forward(self, h: Tensor) -> Tensor:
        return self.step.view(1, 2, 1, 1).expand(len(h), -1, -1, -1)


class Cost(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cost = nn.Parameter(torch.tensor(-0.125))

    def forward(self, h: Tensor) -> Tensor:
        return self.cost.expand(len(h), 2)


class Distance(nn.Module):
    """Minus the distance to 0: the exact value of the way home."""

    def forward(self, h: Tensor) -> Tensor:
        return -h.atanh().abs().flatten()


def line_model() -> WorldModel:
    return WorldModel(nn.Unflatten(1, (1, 1)), Move(), Cost(), Distance(), 2)


@each_solver
def test_your_own_exact_model_gives_exact_q_values(name: str) -> None:
    solver = Solver(line_model().double(), SolverConfig(name, iterations=3))
    place = torch.tensor([[0.75], [-0.625], [1.5]], dtype=torch.float64)
    expected = -0.125 - (place + solver.world_model.transition.step).abs()
    for training in (True, False):
        # The values are exact, so the backup of every tree gives the same: one step's cost, and the way home.
        torch.testing.assert_close(solver.train(training)(place), expected, rtol=0, atol=1e-14)
    assert solver.act(place).tolist() == [0, 1, 0]


@each_solver
def test_your_own_modules_train(name: str) -> None:
    solver = Solver(line_model(), SolverConfig(name, iterations=3))
    place = torch.rand(4, 1) + 0.5
    batch = Batch(
        place,
        torch.zeros(4, dtype=torch.int64),
        torch.ones(4),
        torch.ones(4),
        place - 0.125,
        torch.ones(4) > 2,
    )
    assert {"transition", "reward_head"} <= reached(gradients(solver, batch))
    solver.update_target()  # an encoder without parameters has nothing to average


def test_your_own_modules_without_parameters_plan() -> None:
    model = line_model().requires_grad_(False)
    for module in (model.transition, model.reward_head):
        for key, value in list(module.named_parameters()):
            delattr(module, key)
            module.register_buffer(key, value.data)
    solver = Solver(model, SolverConfig(iterations=3))  # too few to pass the goal: every tree is exact
    assert solver.act(torch.tensor([[0.75], [-0.625]])).tolist() == [0, 1]


@pytest.mark.slow
def test_compiled_acting_chooses_the_same() -> None:
    torch.manual_seed(0)
    space, actions = Box(-1, 1, (6,)), Discrete(3)
    solver = Solver.create("dtsn", space, actions, seed=0).eval()
    observation, uniforms = torch.randn(16, 6), torch.rand(16, 10)
    expected = torch.cat(
        [solver.act(o[None], uniforms=u[None]) for o, u in zip(observation, uniforms, strict=True)]
    )
    solver.compile_acting()
    found = [solver.act(o[None], uniforms=u[None]) for o, u in zip(observation, uniforms, strict=True)]
    assert torch.cat(found).tolist() == expected.tolist()
