"""Bad observations and other fields of a batch are refused with the argument and the value in the message."""

from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bad_input_cases import (
    ACTIONS,
    BATCH,
    OBS,
    SIZE,
    SOLVER,
    batch_with,
    cases,
    each_solver,
    make,
    not_finite,
    refused,
    rows,
    shapes,
)
from bad_input_cases import report_count as report_count
from dtsn.batch import Batch
from dtsn.config import SOLVERS
from dtsn.solvers.solver import Solver

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
@given(name=st.sampled_from(list(SOLVERS)), shape=shapes)
def test_observation_shape(entrance: str, name: str, shape: tuple[int, ...]) -> None:
    batched = entrance in ("plan", "loss")
    hypothesis.assume(shape[1:] != (SIZE,) if batched else shape[-1:] != (SIZE,))
    with refused("observation", list(shape)):
        ENTRANCES[entrance](SOLVER[name], torch.zeros(shape))


@each_entrance
@each_solver
def test_empty_batch(entrance: str, name: str) -> None:
    none = {key: value[:0] for key, value in batch_with().tensors().items()}
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
    field=st.sampled_from(["action", "reward", "q_target"]),
    shape=shapes.filter(lambda shape: shape != (BATCH,)),
)
def test_shape_of_a_field(name: str, field: str, shape: tuple[int, ...]) -> None:
    with refused(field, list(shape)):
        SOLVER[name].loss(batch_with(**{field: torch.zeros(shape, dtype=torch.int64)}))


@cases
@given(
    name=st.sampled_from(list(SOLVERS)),
    field=st.sampled_from(["reward", "q_target"]),
    row=rows,
    value=not_finite,
)
def test_reward_or_q_value_not_finite(name: str, field: str, row: int, value: float) -> None:
    values = torch.ones(BATCH)
    values[row] = value
    with refused(field):
        SOLVER[name].loss(batch_with(**{field: values}))


@each_solver
@pytest.mark.parametrize("field", ["reward", "q_target"])
def test_complex_reward_or_q_value(name: str, field: str) -> None:
    with refused(field, torch.complex64):
        SOLVER[name].loss(batch_with(**{field: torch.ones(BATCH) * 1j}))


@each_solver
@pytest.mark.parametrize("valid", [torch.ones(BATCH), torch.ones(BATCH + 1, dtype=torch.bool)])
def test_next_valid(name: str, valid: Tensor) -> None:
    with refused("next_valid", valid.dtype, list(valid.shape)):
        SOLVER[name].loss(batch_with(next_valid=valid))
