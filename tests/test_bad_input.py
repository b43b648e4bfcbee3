"""Bad input is refused with the argument and the value in the message: never a silent result or a crash.

`make torture` generates more examples of each kind, by ``DTSN_BAD_INPUT_EXAMPLES``.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium
import hypothesis
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.checkpoint import CheckpointError, save_checkpoint
from dtsn.cli import main as cli
from dtsn.config import SOLVERS, LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.data import Dataset, DatasetWriter, Episode
from dtsn.envs.navigation import SPLITS, NavigationOptions
from dtsn.evaluation.levels import first_levels
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.navigation.plan import GROUPS, Campaign
from dtsn.reproduce.navigation.variants import VARIANTS
from dtsn.search import best_first_search, full_expansion
from dtsn.settings import config_from_dict
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.trainer import Trainer

BATCH, SIZE, ACTIONS, T = 3, 4, 3, 4
SPACE = Box(-1, 1, (SIZE,))
EXAMPLES = int(os.environ.get("DTSN_BAD_INPUT_EXAMPLES", "50"))
cases = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
fewer = settings(cases, max_examples=max(1, 2 * EXAMPLES // 5))
tried = 0  # cases in all
each_solver = pytest.mark.parametrize("name", SOLVERS)

not_finite = st.sampled_from([math.nan, math.inf, -math.inf])
rows = st.integers(0, BATCH - 1)
shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
below_one = st.integers(max_value=0)
not_a_fraction = st.floats().filter(lambda x: not 0 <= x <= 1)
not_positive = st.one_of(st.floats(max_value=0), st.sampled_from([math.nan, math.inf]))


def make(name: str, space: Box = SPACE) -> Solver:
    network = NetworkConfig(latent=4, hidden=8)
    return Solver.create(SolverConfig(name, iterations=T), space, Discrete(ACTIONS), network=network, seed=0)


SOLVER = {name: make(name) for name in SOLVERS}
MODEL = SOLVER["dtsn"].world_model
OBS = torch.linspace(-1, 1, BATCH * SIZE).view(BATCH, SIZE)


def batch_with(**changes: Tensor) -> Batch:
    return Batch(
        **{
            "observation": OBS,
            "action": torch.tensor([0, 2, 1]),
            "reward": torch.ones(BATCH),
            "q_target": torch.ones(BATCH),
            "next_observation": -OBS,
            "terminated": torch.zeros(BATCH, dtype=torch.bool),
        }
        | changes
    )


@contextmanager
def refused(*named: object) -> Iterator[None]:
    """A ValueError or TypeError that names the argument and the value."""
    global tried
    tried += 1
    with pytest.raises((ValueError, TypeError)) as info:
        yield
    for word in named:
        assert str(word) in str(info.value)


@pytest.fixture(scope="session", autouse=True)
def report_count() -> Iterator[None]:
    yield
    if "DTSN_BAD_INPUT_COUNT" in os.environ:
        Path(os.environ["DTSN_BAD_INPUT_COUNT"]).write_text(str(tried))


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


# --- configurations ----------------------------------------------------------------------------------

CONFIGS: tuple[type[Any], ...] = (LossWeights, SolverConfig, NetworkConfig, TrainConfig)
FIELDS = [(config, name, hint) for config in CONFIGS for name, hint in typing.get_type_hints(config).items()]
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def fits(value: object, hint: Any) -> bool:
    """Whether a JSON value has the type of a field; what it is worth is another question."""
    if isinstance(hint, types.UnionType):
        return any(fits(value, kind) for kind in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return isinstance(value, str)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


@pytest.mark.parametrize("make_config", ["direct", "from JSON"])
@settings(cases, max_examples=5 * EXAMPLES)
@given(field=st.sampled_from(FIELDS), value=anything)
def test_field_of_another_type(make_config: str, field: tuple[type[Any], str, Any], value: Any) -> None:
    config, name, hint = field
    hypothesis.assume(not fits(value, hint))
    hypothesis.assume(not (dataclasses.is_dataclass(hint) and isinstance(value, dict)))
    named = (
        (hint.__name__,)
        if dataclasses.is_dataclass(hint) and make_config != "direct"
        else (name, repr(value))
    )
    with refused(*named):
        config(**{name: value}) if make_config == "direct" else config_from_dict(config, {name: value})


@settings(cases, max_examples=2 * EXAMPLES)
@given(config=st.sampled_from(CONFIGS), name=st.text(), value=anything)
def test_field_that_does_not_exist(config: type[Any], name: str, value: Any) -> None:
    hypothesis.assume(name not in typing.get_type_hints(config))
    with refused(repr(name), config.__name__):
        config_from_dict(config, {name: value})


TOO_SMALL = ("steps", "batch_size", "checkpoint_every", "keep_checkpoints")
NEGATIVE = ("learning_rate_warmup", "search_warmup", "seed")


@settings(cases, max_examples=2 * EXAMPLES)
@given(data=st.data())
def test_numbers_of_a_training_run(data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from([*TOO_SMALL, *NEGATIVE, "learning_rate", "gradient_clip", "weight_decay"])
    )
    if name in TOO_SMALL:
        value: float = data.draw(below_one | st.integers(min_value=2**63))
    elif name in NEGATIVE:
        value = data.draw(st.integers(max_value=-1) | st.integers(min_value=2**63))
    else:
        value = data.draw(st.floats(max_value=-1e-9) | st.sampled_from([math.nan, math.inf]))
    with refused(name, value):
        TrainConfig(**{name: value})


@cases
@given(
    name=st.sampled_from(["augment", "on_nan"]),
    value=st.text().filter(lambda text: text not in ("none", "grid_symmetries", "stop", "skip")),
)
def test_choices_of_a_training_run(name: str, value: str) -> None:
    with refused(name, repr(value)):
        TrainConfig(**{name: value})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TrainConfig(network=NetworkConfig(latent=4, hidden=4), solver=SolverConfig("qnet"))
    return Trainer(config, (SIZE,), ACTIONS).save(tmp_path_factory.mktemp("saved"))


@settings(cases, max_examples=2 * EXAMPLES)
@given(data=st.data())
def test_state_of_a_checkpoint(saved: Path, data: st.DataObject) -> None:
    """Sealed by one who knows how, but not what we write."""
    global tried
    state = {"config": {"network": {"latent": 4, "hidden": 4}, "solver": {"name": "qnet"}}}
    state |= {"observation_shape": [SIZE], "num_actions": ACTIONS}
    place = data.draw(st.sampled_from(["config", "observation_shape", "num_actions"]))
    value = data.draw(anything)
    hypothesis.assume(state[place] != value and value != {})
    tensors = load_file(saved / "model.safetensors")
    path = save_checkpoint(saved.parent / "forged", {"model": tensors}, state | {place: value})
    tried += 1
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_solver(path)


# --- data, levels, campaigns -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    path = tmp_path_factory.mktemp("bad") / "data.h5"
    with make_writer(path) as writer:
        writer.add_episode(Episode(np.zeros((5, SIZE), np.float32), np.zeros(4, int), np.ones(4), True, 0))
    with Dataset(path) as dataset:
        yield dataset


def make_writer(path: Path, **changes: Any) -> DatasetWriter:
    options: dict[str, Any] = {"env_id": "test", "env_options": {}, "num_actions": ACTIONS}
    options |= {"observation_shape": (SIZE,), "observation_dtype": np.float32}
    return DatasetWriter(path, **(options | changes))


@settings(cases, max_examples=2 * EXAMPLES)
@given(data=st.data())
def test_batches(dataset: Dataset, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["batch_size", "seed", "start"]))
    good = {"batch_size": 2, "seed": 0, "start": 0}
    value = data.draw(
        st.integers(max_value=-1) | (st.integers(min_value=5) if name == "batch_size" else st.nothing())
    )
    with refused(name, value):
        dataset.batches(**(good | {name: value}))


@settings(cases, max_examples=2 * EXAMPLES)
@given(data=st.data())
def test_episodes(dataset: Dataset, data: st.DataObject) -> None:
    good = {
        "observations": np.zeros((5, SIZE), np.float32),
        "actions": np.zeros(4, int),
        "rewards": np.ones(4),
        "terminated": True,
        "level": 0,
    }
    kind = data.draw(st.sampled_from(["shape", "action", "value", "dtype"]))
    if kind == "shape":
        name = data.draw(st.sampled_from(["observations", "actions", "rewards"]))
        shape = data.draw(shapes.filter(lambda shape: shape != good[name].shape))  # type: ignore[attr-defined]
        hypothesis.assume(shape)
        changed: Any = np.zeros(shape, good[name].dtype)  # type: ignore[attr-defined]
    elif kind == "action":
        name, changed = (
            "actions",
            np.full(4, data.draw(st.integers(-(2**62), 2**62).filter(lambda a: not 0 <= a < ACTIONS))),
        )
    elif kind == "value":
        name = data.draw(st.sampled_from(["observations", "rewards"]))
        changed = good[name].copy()  # type: ignore[attr-defined]
        changed[data.draw(st.integers(0, 3))] = data.draw(not_finite)
    else:
        name, changed = "observations", good["observations"].astype(data.draw(st.sampled_from("bhidD")))  # type: ignore[attr-defined]
    with make_writer(dataset.path.with_name("other.h5"), overwrite=True) as writer:
        writer.add_episode(Episode(**good))  # type: ignore[arg-type]
        with refused("other.h5"):
            writer.add_episode(Episode(**(good | {name: changed})))


@settings(cases, max_examples=2 * EXAMPLES)
@given(data=st.data())
def test_levels(data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        split = data.draw(st.text().filter(lambda split: split not in SPLITS))
        with refused("split", repr(split)):
            first_levels(split, 1)
        with refused("split", repr(split)):
            collect_navigation("never.h5", split=split)
    else:
        split = data.draw(st.sampled_from(sorted(SPLITS)))
        first, end = SPLITS[split]
        count = data.draw(below_one | st.integers(min_value=end - first + 1))
        with refused("levels", count):
            first_levels(split, count)
        with refused("episodes", count):
            collect_navigation("never.h5", split=split, episodes=count)
    assert not Path("never.h5").exists()


@settings(cases, max_examples=2 * EXAMPLES)
@given(data=st.data())
def test_navigation_options(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["exits", "exit_layout", "max_steps", "hall"]))
    values: dict[str, st.SearchStrategy[Any]] = {
        "exits": st.integers().filter(lambda n: n not in (1, 2)),
        "exit_layout": st.text().filter(lambda text: text not in ("independent", "opposite")),
        "max_steps": below_one,
        "hall": st.tuples(st.integers(), st.integers()).filter(
            lambda hall: not 1 <= hall[0] <= hall[1] - 2 <= 16
        ),
    }
    value = data.draw(values[name])
    with refused(name, repr(value)):
        NavigationOptions(**{name: value})


@cases
@given(
    name=st.sampled_from(["seeds", "steps", "levels", "act_levels", "plan_levels", "validate_every"]),
    value=below_one,
)
def test_campaign_numbers(name: str, value: int) -> None:
    with refused(name, value):
        Campaign(**{name: value})


@cases
@given(variant=st.text().filter(lambda text: text not in VARIANTS and text not in GROUPS))
def test_campaign_variants(variant: str) -> None:
    with refused("variant", repr(variant)):
        Campaign(variants=(variant,))


# --- the command line --------------------------------------------------------------------------------

words = st.text("abcxyz-_.,0", min_size=1, max_size=6).filter(lambda word: not word.startswith("-"))
no_integer = words.filter(lambda word: not word.replace("_", "").isdigit())
too_small = st.integers(-(10**20), 0).map(str)
negative = st.integers(-(10**20), -1).map(str)
OPTIONS: dict[str, st.SearchStrategy[str]] = {
    "train --steps": no_integer | too_small,
    "train --batch-size": no_integer | too_small,
    "train --checkpoint-every": no_integer | too_small,
    "train --keep-checkpoints": no_integer | too_small,
    "train --seed": no_integer | negative,
    "train --learning-rate": st.sampled_from(["-1", "0", "nan", "inf", "-inf", "1e999"]),
    "train --weight-decay": st.sampled_from(["-1", "nan", "inf", "x"]),
    "train --on-nan": words,
    "train --augment": words,
    "train --threads": no_integer | too_small,
    "train --solver.name": words,
    "train --solver.iterations": no_integer | too_small,
    "train --solver.discount": st.sampled_from(["-0.1", "1.1", "nan", "x"]),
    "train --solver.weights.cql": st.sampled_from(["-1", "nan", "inf", "x"]),
    "train --network.encoder": words,
    "train --network.latent": no_integer | too_small,
    "collect --episodes": no_integer | too_small,
    "collect --exits": words | st.sampled_from(["0", "3", "-1"]),
    "collect --seed": no_integer | negative,
    "collect --discount": st.sampled_from(["-1", "2", "nan", "x"]),
    "eval --levels": no_integer | too_small,
    "eval --iterations": no_integer | too_small,
    "eval --seed": no_integer | negative,
    "eval --split": words,
    "eval --rule": words,
    "reproduce --jobs": no_integer | too_small,
    "reproduce --levels": no_integer | too_small,
    "reproduce --variants": words,
}


@settings(cases, max_examples=EXAMPLES if EXAMPLES > 50 else 5)  # a parse takes its time
@given(option=st.sampled_from(sorted(OPTIONS)), data=st.data())
def test_command_line(option: str, data: st.DataObject, dataset: Dataset) -> None:
    global tried
    value = data.draw(OPTIONS[option])
    command, name = option.split()
    arguments = [command, f"{name}={value}"]
    folder = dataset.path.parent
    if command == "train":
        arguments += ["--data", str(dataset.path), "--run", str(folder / "run")]
    if command == "collect":
        arguments += ["--out", str(folder / "new.h5")]
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["dtsn", *arguments]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as exit:
        code = exit.code
    finally:
        sys.argv = before
    tried += 1
    said = out.getvalue() + err.getvalue()
    assert code == 2, said
    assert "Traceback" not in said
    words = [word.rstrip("s") for word in name.strip("-").split(".")]  # "unknown variant", "unknown solver"
    assert any(word in said or word.replace("-", "_") in said for word in words), said
    assert sorted(path.name for path in folder.iterdir() if path.name not in ("other.h5", "run")) == [
        "data.h5"
    ]
