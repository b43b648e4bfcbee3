"""What the tests of bad input share: solvers and data to try it on, how it is generated, what refuses it.

`make torture` generates more examples of each kind, by ``DTSN_BAD_INPUT_EXAMPLES``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from dtsn.batch import Batch
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.data import Dataset, DatasetWriter, Episode
from dtsn.solvers.solver import Solver

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


def count_case() -> None:
    global tried
    tried += 1


@contextmanager
def refused(*named: object) -> Iterator[None]:
    """A ValueError or TypeError that names the argument and the value."""
    count_case()
    with pytest.raises((ValueError, TypeError)) as info:
        yield
    for word in named:
        assert str(word) in str(info.value)


@pytest.fixture(scope="session", autouse=True)
def report_count() -> Iterator[None]:
    yield
    if "DTSN_BAD_INPUT_COUNT" in os.environ:
        Path(os.environ["DTSN_BAD_INPUT_COUNT"]).write_text(str(tried))


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
