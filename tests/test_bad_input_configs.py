"""Bad configurations, also those of checkpoints, are refused with the field and the value in the message."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from bad_input_cases import ACTIONS, EXAMPLES, SIZE, below_one, cases, count_case, refused
from bad_input_cases import report_count as report_count
from dtsn.checkpoint import CheckpointError, save_checkpoint
from dtsn.config import LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.settings import config_from_dict
from dtsn.training.loading import load_solver
from dtsn.training.trainer import Trainer

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
    state = {"config": {"network": {"latent": 4, "hidden": 4}, "solver": {"name": "qnet"}}}
    state |= {"observation_shape": [SIZE], "num_actions": ACTIONS}
    place = data.draw(st.sampled_from(["config", "observation_shape", "num_actions"]))
    value = data.draw(anything)
    hypothesis.assume(state[place] != value and value != {})
    tensors = load_file(saved / "model.safetensors")
    path = save_checkpoint(saved.parent / "forged", {"model": tensors}, state | {place: value})
    count_case()
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_solver(path)
