"""Bad names, spaces and networks of a solver are refused with the argument and the value in the message."""

from __future__ import annotations

import copy
import math

import gymnasium
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bad_input_cases import ACTIONS, MODEL, OBS, SPACE, T, below_one, cases, each_solver, make, refused
from bad_input_cases import report_count as report_count
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.solvers.solver import Solver


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
