"""Bad input is refused with the argument and the value in the message: never a silent result or a crash."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.search import best_first_search, full_expansion
from dtsn.solvers import Solver

BATCH, SIZE, ACTIONS, T = 3, 4, 3, 4
SPACE = Box(-1, 1, (SIZE,))
cases = settings(max_examples=50, deadline=None, derandomize=True, database=None)
each_solver = pytest.mark.parametrize("name", SOLVERS)

not_finite = st.sampled_from([math.nan, math.inf, -math.inf])
rows = st.integers(0, BATCH - 1)
shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
below_one = st.integers(max_value=0)
not_a_fraction = st.floats().filter(lambda x: not 0 <= x <= 1)
not_positive = st.one_of(st.floats(max_value=0), st.sampled_from([math.nan, math.inf]))


def make(name: str, space: Box = SPACE) -> Solver:
    network = NetworkConfig(latent=4, hidden=8)
    return Solver.create(
        name, space, Discrete(ACTIONS), config=SolverConfig(iterations=T), network=network, seed=0
    )


SOLVER = {name: make(name) for name in SOLVERS}
MODEL = SOLVER["dtsn"].world_model
OBS = torch.linspace(-1, 1, BATCH * SIZE).view(BATCH, SIZE)


def batch_with(**changes: Tensor) -> Batch:
    return Batch(
        **{
            "observation": OBS,
            "action": torch.tensor([0, 2, 1]),
            "reward": torch.ones(BATCH),
            "q_value": torch.ones(BATCH),
            "next_observation": -OBS,
            "done": torch.zeros(BATCH, dtype=torch.bool),
        }
        | changes
    )


@contextmanager
def refused(*named: object) -> Iterator[None]:
    """A ValueError or TypeError that names the argument and the value."""
    with pytest.raises((ValueError, TypeError)) as info:
        yield
    for word in named:
        assert str(word) in str(info.value)


# Every way for an observation to come in.
ENTRANCES: dict[str, Callable[[Solver, Tensor], object]] = {
    "train": lambda solver, obs: solver.train()(obs),
    "eval": lambda solver, obs: solver.eval()(obs),
    "plan": lambda solver, obs: solver.plan(obs),
    "act": lambda solver, obs: solver.act(obs),
    "loss": lambda solver, obs: solver.loss(batch_with(observation=obs)),
}
each_entrance = pytest.mark.parametrize("entrance", ENTRANCES)


def test_the_good_input_is_accepted() -> None:
    for solver in SOLVER.values():
        for enter in ENTRANCES.values():
            enter(solver, OBS)


# --- observations ------------------------------------------------------------------------------------


@each_entrance
@cases
@given(name=st.sampled_from(list(SOLVERS)), shape=shapes.filter(lambda shape: shape[1:] != (SIZE,)))
def test_observation_shape(entrance: str, name: str, shape: tuple[int, ...]) -> None:
    with refused("observation", list(shape)):
        ENTRANCES[entrance](SOLVER[name], torch.zeros(shape))


@each_entrance
@each_solver
def test_empty_batch(entrance: str, name: str) -> None:
    none = {key: value[:0] for key, value in vars(batch_with()).items()}
    with refused("observation", [0, SIZE]):
        if entrance == "loss":
            SOLVER[name].loss(Batch(**none))
        else:
            ENTRANCES[entrance](SOLVER[name], OBS[:0])


@each_entrance
@cases
@given(name=st.sampled_from(list(SOLVERS)), row=rows, column=st.integers(0, SIZE - 1), value=not_finite)
def test_observation_not_finite(entrance: str, name: str, row: int, column: int, value: float) -> None:
    obs = OBS.clone()
    obs[row, column] = value
    with refused("observation", row):
        ENTRANCES[entrance](SOLVER[name], obs)


@each_solver
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_observation(name: str, dtype: torch.dtype) -> None:
    with refused("observation", dtype):
        SOLVER[name].plan(OBS.to(dtype))


@each_solver
def test_observation_too_large_for_the_model(name: str) -> None:
    planes = make(name, Box(0, 1, (2, 3, 3)))
    with refused("observation"):
        planes.plan(np.full((1, 2, 3, 3), 1e300))  # finite in float64, infinite in the model's float32


@pytest.mark.parametrize(
    "obs",
    [
        None,
        {},
        {"image": OBS},
        (np.zeros(SIZE), {}),  # what env.reset() returns
        "north",
        np.array([["a"] * SIZE]),
        np.array([[None] * SIZE]),
        [[1.0] * SIZE, [1.0]],
    ],
    ids=["None", "empty dict", "dict", "reset", "text", "texts", "objects", "ragged"],
)
def test_observation_that_is_no_array(obs: object) -> None:
    with refused():
        SOLVER["dtsn"].plan(obs)


@pytest.mark.parametrize("name", ["search", "dtsn"])
@pytest.mark.parametrize("size", [1, BATCH - 1, BATCH + 1])  # 1 would broadcast
def test_next_observation_of_another_batch_size(name: str, size: int) -> None:
    with refused("next_observation", [size, SIZE]):
        SOLVER[name].loss(batch_with(next_observation=torch.zeros(size, SIZE)))


@pytest.mark.parametrize("name", ["search", "dtsn"])
@pytest.mark.parametrize("obs", [torch.zeros(BATCH, SIZE + 1), OBS * math.nan, OBS * 1j])
def test_bad_next_observation_is_called_by_its_name(name: str, obs: Tensor) -> None:
    with refused("next_observation"):
        SOLVER[name].loss(batch_with(next_observation=obs))


# --- the other fields of a batch ---------------------------------------------------------------------


@cases
@given(
    name=st.sampled_from(list(SOLVERS)),
    row=rows,
    action=st.integers(-(2**63), 2**63 - 1).filter(lambda action: not 0 <= action < ACTIONS),
)
def test_action_out_of_range(name: str, row: int, action: int) -> None:
    actions = torch.zeros(BATCH, dtype=torch.int64)
    actions[row] = action
    with refused("action", action):
        SOLVER[name].loss(batch_with(action=actions))


@each_solver
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.uint8, torch.complex64])
def test_action_dtype(name: str, dtype: torch.dtype) -> None:
    with refused("action", dtype):
        SOLVER[name].loss(batch_with(action=torch.ones(BATCH, dtype=dtype)))


@cases
@given(
    name=st.sampled_from(list(SOLVERS)),
    field=st.sampled_from(["action", "reward", "q_value"]),
    shape=shapes.filter(lambda shape: shape != (BATCH,)),
)
def test_shape_of_a_field(name: str, field: str, shape: tuple[int, ...]) -> None:
    with refused(field, list(shape)):
        SOLVER[name].loss(batch_with(**{field: torch.zeros(shape, dtype=torch.int64)}))


@cases
@given(
    name=st.sampled_from(list(SOLVERS)),
    field=st.sampled_from(["reward", "q_value"]),
    row=rows,
    value=not_finite,
)
def test_reward_or_q_value_not_finite(name: str, field: str, row: int, value: float) -> None:
    values = torch.ones(BATCH)
    values[row] = value
    with refused(field):
        SOLVER[name].loss(batch_with(**{field: values}))


@each_solver
@pytest.mark.parametrize("field", ["reward", "q_value"])
def test_complex_reward_or_q_value(name: str, field: str) -> None:
    with refused(field, torch.complex64):
        SOLVER[name].loss(batch_with(**{field: torch.ones(BATCH) * 1j}))


# --- options of a search -----------------------------------------------------------------------------


@cases
@given(value=below_one, option=st.sampled_from(["iterations", "act_iterations", "depth"]))
def test_config_counts(value: int, option: str) -> None:
    with refused(option, value):
        SolverConfig(**{option: value})


@cases
@given(value=below_one)
def test_search_counts(value: int) -> None:
    with refused("iterations", value):
        best_first_search(MODEL, OBS, iterations=value)
    with refused("depth", value):
        full_expansion(MODEL, OBS, depth=value)


@each_solver
@settings(cases, max_examples=20)
@given(value=below_one)
def test_loss_iterations(name: str, value: int) -> None:
    with refused("iterations", value):
        SOLVER[name].loss(batch_with(), iterations=value)


@pytest.mark.parametrize(
    ("option", "values"),
    [("temperature", not_positive), ("epsilon", not_a_fraction), ("discount", not_a_fraction)],
)
@cases
@given(data=st.data())
def test_search_numbers(option: str, values: st.SearchStrategy[float], data: st.DataObject) -> None:
    value = data.draw(values)
    with refused(option, value):
        best_first_search(MODEL, OBS, iterations=T, **{option: value})


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("temperature", not_positive),
        ("epsilon", not_a_fraction),
        ("discount", not_a_fraction),
        ("target_decay", not_a_fraction),
        ("act_rule", st.text().filter(lambda rule: rule not in ("sample", "greedy", "epsilon_greedy"))),
    ],
)
@cases
@given(data=st.data())
def test_config_numbers(option: str, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    value = data.draw(values)
    with refused(option, repr(value)):  # at once: not after hours of training, at the first action
        SolverConfig(**{option: value})


@cases
@given(value=not_a_fraction)
def test_discount_of_a_full_expansion(value: float) -> None:
    with refused("discount", value):
        full_expansion(MODEL, OBS, depth=2, discount=value)


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-60, 5e-324])
def test_vanishing_temperature_is_greedy_or_refused(temperature: float) -> None:
    greedy = best_first_search(MODEL, OBS, iterations=T, rule="greedy")
    try:
        tree = best_first_search(MODEL, OBS, iterations=T, temperature=temperature)
    except ValueError as error:
        assert "temperature" in str(error)  # noqa: PT017
    else:
        assert torch.equal(tree.selected, greedy.selected)
        assert not tree.log_probs.isnan().any()


@cases
@given(rule=st.text().filter(lambda rule: rule not in ("sample", "greedy", "epsilon_greedy")))
def test_unknown_rule(rule: str) -> None:
    with refused("rule", repr(rule), "epsilon_greedy"):
        best_first_search(MODEL, OBS, iterations=T, rule=rule)


@pytest.mark.parametrize(
    "slots",
    [
        torch.zeros(BATCH, dtype=torch.int64),  # the root, long expanded
        torch.ones(BATCH, dtype=torch.int64),  # open the first time, closed the second
        torch.full((BATCH,), 1 + T * ACTIONS),  # no such slot
        torch.full((BATCH,), -1),
        torch.full((BATCH,), 2 + ACTIONS),  # not made yet at the first time
        torch.ones(BATCH + 1, dtype=torch.int64),
        torch.ones(BATCH),
    ],
    ids=lambda slots: f"{slots.dtype} {slots.tolist()}",
)
def test_a_rule_of_your_own_that_picks_no_open_node(slots: Tensor) -> None:
    with refused("rule"):
        best_first_search(MODEL, OBS, iterations=T, rule=lambda open_values, t: slots)


@pytest.mark.parametrize("name", ["search", "dtsn"])
@cases
@given(shape=shapes.filter(lambda shape: shape != (BATCH, T)))
def test_uniforms_shape(name: str, shape: tuple[int, ...]) -> None:
    with refused("uniforms", (BATCH, T), shape):
        SOLVER[name].plan(OBS, uniforms=torch.zeros(shape))


@cases
@given(
    row=rows,
    step=st.integers(1, T - 1),
    value=st.one_of(not_finite, st.floats(max_value=-1e-6), st.floats(min_value=1.0)),
)
def test_uniforms_out_of_range(row: int, step: int, value: float) -> None:
    uniforms = torch.full((BATCH, T), 0.5, dtype=torch.float64)
    uniforms[row, step] = value
    with refused("uniforms"):
        SOLVER["dtsn"].plan(OBS, uniforms=uniforms)


@cases
@given(
    name=st.sampled_from(list(SOLVERS)),
    shape=shapes.filter(lambda shape: shape != (BATCH, ACTIONS)),
)
def test_invalid_actions_shape(name: str, shape: tuple[int, ...]) -> None:
    with refused("invalid_actions", (BATCH, ACTIONS), shape):
        SOLVER[name].plan(OBS, invalid_actions=torch.zeros(shape, dtype=torch.bool))


@each_solver
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_invalid_actions_dtype(name: str, dtype: torch.dtype) -> None:
    with refused("invalid_actions", dtype):
        SOLVER[name].plan(OBS, invalid_actions=torch.zeros(BATCH, ACTIONS, dtype=dtype))


@settings(cases, max_examples=20)
@given(name=st.sampled_from(list(SOLVERS)), row=rows)
def test_invalid_actions_that_close_everything(name: str, row: int) -> None:
    closed = torch.zeros(BATCH, ACTIONS, dtype=torch.bool)
    closed[row] = True
    for search in (SOLVER[name].plan, SOLVER[name].act):
        with refused("invalid_actions", row):
            search(OBS, invalid_actions=closed)


# --- what a solver is made of ------------------------------------------------------------------------


@cases
@given(name=st.text().filter(lambda name: name not in SOLVERS))
def test_unknown_solver(name: str) -> None:
    with refused("solver", repr(name), *SOLVERS):
        make(name)


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """A solver's name, and the name with one letter left out, put in, or replaced."""
    name = draw(st.sampled_from(list(SOLVERS)))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from("xyz-_ "))
    return name, name[:at] + draw(
        st.sampled_from([name[at + 1 :], letter + name[at:], letter + name[at + 1 :]])
    )


@cases
@given(names=misspelt())
def test_misspelt_solver(names: tuple[str, str]) -> None:
    with refused(repr(names[1]), f"did you mean {names[0]!r}?"):
        SolverConfig(names[1])


@pytest.mark.parametrize(
    ("written", "meant"), [("DTSN", "dtsn"), ("D-TSN", "dtsn"), ("TreeQN", "treeqn"), ("Q-Net", "qnet")]
)
def test_solver_named_as_in_the_paper(written: str, meant: str) -> None:
    with refused(repr(written), f"did you mean {meant!r}?"):
        SolverConfig(written)


@pytest.mark.parametrize("name", [None, 3, ["dtsn"]])
def test_solver_name_that_is_no_text(name: object) -> None:
    with refused():
        SolverConfig(name)


@each_solver
@pytest.mark.parametrize(
    "space",
    [
        Box(-1, 1, (2,)),
        gymnasium.spaces.MultiDiscrete([2, 2]),
        gymnasium.spaces.MultiBinary(3),
        gymnasium.spaces.Tuple([Discrete(2), Discrete(2)]),
        Discrete(3, start=1),  # actions 1, 2, 3: the Q-values' columns would be off by one
        None,
    ],
    ids=repr,
)
def test_action_space(name: str, space: gymnasium.Space | None) -> None:
    with refused("action_space", space):
        Solver.create(name, SPACE, space)


@cases
@given(option=st.sampled_from(["latent", "hidden"]), value=below_one)
def test_network_sizes(option: str, value: int) -> None:
    with refused(option, value):
        NetworkConfig(**{option: value})


@pytest.mark.parametrize(("option", "value"), [("precision", "float16"), ("encoder", "resnet")])
def test_network_choices(option: str, value: str) -> None:
    with refused(option, repr(value)):
        Solver.create("dtsn", SPACE, Discrete(ACTIONS), network=NetworkConfig(**{option: value}))


@each_solver
@pytest.mark.parametrize("rule", ["sample", "greedy", "epsilon_greedy"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_network_that_diverged(name: str, rule: str, value: float) -> None:
    config = SolverConfig(name, iterations=T, act_rule=rule)
    solver = Solver(copy.deepcopy(MODEL), config)
    nn.init.constant_(solver.world_model.value_head.last.bias, value)
    try:
        q = solver.plan(OBS).q
    except ValueError as error:
        assert "finite" in str(error) or "NaN" in str(error)  # noqa: PT017
    else:
        assert not q.isfinite().any()
