"""Bad options of a search are refused with the argument and the value in the message."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bad_input_cases import (
    ACTIONS,
    BATCH,
    MODEL,
    OBS,
    SOLVER,
    T,
    batch_with,
    below_one,
    cases,
    each_solver,
    fewer,
    not_a_fraction,
    not_finite,
    not_positive,
    refused,
    rows,
    shapes,
)
from bad_input_cases import report_count as report_count
from dtsn.config import SOLVERS, SolverConfig
from dtsn.errors import brief
from dtsn.search import best_first_search, full_expansion


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
@fewer
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
    with refused(option, brief(value)):  # at once: not after hours of training, at the first action
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_invalid_actions_dtype(name: str, dtype: torch.dtype) -> None:
    with refused("invalid_actions", dtype):
        SOLVER[name].plan(OBS, invalid_actions=torch.zeros(BATCH, ACTIONS, dtype=dtype))


@fewer
@given(name=st.sampled_from(list(SOLVERS)), row=rows)
def test_invalid_actions_that_close_everything(name: str, row: int) -> None:
    closed = torch.zeros(BATCH, ACTIONS, dtype=torch.bool)
    closed[row] = True
    for search in (SOLVER[name].plan, SOLVER[name].act):
        with refused("invalid_actions", row):
            search(OBS, invalid_actions=closed)
