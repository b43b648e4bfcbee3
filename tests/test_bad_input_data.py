"""Bad episodes, batches, levels and campaigns are refused with the argument and the value in the message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_input_cases import (
    ACTIONS,
    EXAMPLES,
    SIZE,
    below_one,
    cases,
    make_writer,
    not_finite,
    refused,
    shapes,
)
from bad_input_cases import dataset as dataset
from bad_input_cases import report_count as report_count
from dtsn.data import Dataset, Episode
from dtsn.envs.navigation import SPLITS, NavigationOptions
from dtsn.evaluation.levels import first_levels
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.navigation.plan import GROUPS, Campaign
from dtsn.reproduce.navigation.variants import VARIANTS


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
