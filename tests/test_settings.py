"""Configurations go through JSON and back; fields that do not exist are refused."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from dtsn.config import LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.reproduce.navigation.variants import NAVIGATION, VARIANTS
from dtsn.settings import config_from_dict
from short_runs import CONFIG

CHANGED = [
    LossWeights(q=0.1, cql=0.2, transition=0.3, reward=0.4, expansion=0),
    SolverConfig("search", act_iterations=50, act_rule="greedy", weights=LossWeights(q=2), telescoping=False),
    NetworkConfig("impala", latent=7, hidden=9, spatial=True, precision="bfloat16", value_scale=10.0),
    replace(CONFIG, learning_rate=1e-5, seed=3),
    NAVIGATION,
    *(variant.config(2) for variant in VARIANTS.values()),
]


@pytest.mark.parametrize("config", CHANGED, ids=lambda config: type(config).__name__)
def test_config_round_trip(config: Any) -> None:
    assert config_from_dict(type(config), json.loads(json.dumps(asdict(config)))) == config
    for field in dataclasses.fields(config):
        unknown = {**asdict(config), field.name + "s": 1}
        with pytest.raises(TypeError, match=f"{type(config).__name__} has no field '{field.name}s'"):
            config_from_dict(type(config), unknown)


def test_unknown_field_of_a_nested_config() -> None:
    values = asdict(CONFIG)
    values["solver"]["weights"]["entropy"] = 1.0
    with pytest.raises(TypeError, match="LossWeights has no field 'entropy'"):
        config_from_dict(TrainConfig, values)
    assert config_from_dict(TrainConfig, {}) == TrainConfig()
