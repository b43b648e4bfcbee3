"""What every script keeps to: it plays well, each episode alone, and only the game that it knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dtsn.data.reader import Dataset
from dtsn.envs.procgen import SPLITS, ProcgenOptions, load_envpool, play_levels
from dtsn.experts.collect import collect_procgen
from dtsn.experts.scripted import ScriptedExpert

FIRST = SPLITS["train"][0]
# Levels to play, and what the mean score and the share of completed levels must exceed.
LEAST = {
    "bigfish": (10, 20, 0.5),  # random actions: 0.9
    "climber": (10, 11, 0.8),  # 2.4
    "heist": (20, 8, 0.8),  # 2.9
    "leaper": (4, 5, 0.5),  # 2.8
    "maze": (40, 9.9, 0.99),  # 4.8
    "miner": (10, 11, 0.8),  # 1.5
    "plunder": (6, 20, 0.5),  # 4
}


@pytest.fixture
def envpool() -> None:
    try:
        load_envpool()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize("game", LEAST)
def test_it_plays_well(game: str) -> None:
    levels, score, complete = LEAST[game]
    options = ProcgenOptions(game, "easy")
    policy = ScriptedExpert(options).policy(seed=0, at_once=16)
    played = list(play_levels(options, enumerate(range(FIRST, FIRST + levels)), policy, keep_frames=False))
    assert np.mean([each.rewards.sum() for each in played]) > score
    assert np.mean([each.complete for each in played]) > complete


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize("game", LEAST)
def test_an_episode_does_not_depend_on_the_others(game: str) -> None:
    options = ProcgenOptions(game, "easy")
    levels = list(enumerate(range(FIRST, FIRST + 3)))

    def actions(chosen: list[tuple[int, int]], at_once: int) -> dict[int, list[int]]:
        policy = ScriptedExpert(options).policy(seed=3, at_once=at_once)
        played = play_levels(options, chosen, policy, at_once=at_once, keep_frames=False)
        return {each.number: each.actions.tolist() for each in played}

    assert actions(levels, at_once=3) == actions(levels[::-1], at_once=1)


@pytest.mark.usefixtures("envpool")
def test_its_data_say_that_it_is_scripted(tmp_path: Path) -> None:
    maze = ProcgenOptions("maze", "easy")
    path = collect_procgen(tmp_path / "maze.h5", maze, ScriptedExpert(maze), episodes=2)
    with Dataset(path) as dataset:
        made = dataset.header["provenance"]
    assert made["policy"] == "scripted"
    assert made["expert"]["script"] == "breadth-first search on pixels"


@pytest.mark.parametrize("game", LEAST)
def test_other_modes_have_no_script(game: str) -> None:
    with pytest.raises(ValueError, match=f"plays {game} in mode easy, got mode hard"):
        ScriptedExpert(ProcgenOptions(game, "hard"))


def test_other_games_have_no_script() -> None:
    with pytest.raises(ValueError, match=f"no scripted expert for ninja, only for {', '.join(LEAST)}"):
        ScriptedExpert(ProcgenOptions("ninja", "easy"))
