"""Test levels against a slow search through the splits."""

from __future__ import annotations

import numpy as np
import pytest

from dtsn.data.reader import Dataset
from dtsn.envs.navigation import SPLITS, NavigationOptions, make_levels
from dtsn.evaluation import levels as module
from dtsn.evaluation.levels import first_levels, level_contents, unseen_levels
from dtsn.experts.collect import collect_navigation, expert_levels

SMALL = NavigationOptions(hall=(8, 11), exit_layout="opposite")


def content(seed: int, options: NavigationOptions) -> tuple[object, ...]:
    level = make_levels([seed], options)
    return tuple(np.argwhere(level.walls[0]).ravel()), tuple(level.goal[0]), tuple(level.robot[0])


@pytest.mark.parametrize("exits", [2, 1])
def test_unseen_levels_by_a_slow_search(exits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALIDATION_LEVELS", 150)
    options = NavigationOptions(exits=exits, hall=(8, 11), exit_layout="opposite")
    training = np.arange(300)
    taken = {content(seed, SMALL) for seed in training.tolist()}
    taken |= {content(seed, options) for seed in range(10**6, 10**6 + 150)}
    expected, seed = [], SPLITS["test"][0]
    while len(expected) < 200:
        if content(seed, options) not in taken:
            taken.add(content(seed, options))
            expected.append(seed)
        seed += 1
    assert unseen_levels("test", 200, options, trained_on=training).tolist() == expected
    assert expected != first_levels("test", 200).tolist()


def test_main_halls_have_ten_thousand_test_levels() -> None:
    found = unseen_levels("test", 10_000, SMALL)
    contents = level_contents(make_levels(found, SMALL))
    assert len(set(contents)) == 10_000
    assert not set(contents) & set(level_contents(make_levels(expert_levels(), SMALL)))


def test_more_levels_than_there_are_halls() -> None:
    with pytest.raises(ValueError, match=r"levels must be at most \d+ in halls \(8, 11\), .* got 20000"):
        unseen_levels("test", 20_000, SMALL)


def test_expert_levels_are_those_of_the_data_set(tmp_path) -> None:
    collect_navigation(tmp_path / "data.h5", episodes=20, seed=3)
    with Dataset(tmp_path / "data.h5") as dataset:
        levels = [dataset.episode(number).level for number in range(20)]
    assert sorted(levels) == expert_levels(episodes=20, seed=3).tolist()


@pytest.mark.parametrize("split", SPLITS)
def test_first_levels(split: str) -> None:
    first, end = SPLITS[split]
    assert first_levels(split, 3).tolist() == [first, first + 1, first + 2]
    assert first_levels(split, end - first)[-1] == end - 1
    for count in (0, -1, end - first + 1):
        with pytest.raises(
            ValueError, match=rf"from 1 to the {end - first} of the {split} split, got {count}"
        ):
            first_levels(split, count)


def test_unknown_split() -> None:
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'tset'"):
        unseen_levels("tset", 3)
