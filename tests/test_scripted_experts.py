"""What every scripted expert keeps to: it plays well, each episode alone, and only the game that it knows."""

from __future__ import annotations

import numpy as np
import pytest

from dtsn.envs.procgen import SPLITS, ProcgenOptions, load_envpool, play_levels
from dtsn.experts.behaviour import scripted_expert

FIRST = SPLITS["train"][0]
# Levels to play, and what the mean score and the share of completed levels must exceed.
LEAST = {
    "bigfish": (10, 20, 0.5),  # random actions: 0.9
    "climber": (10, 11, 0.8),  # 2.4
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
    policy = scripted_expert(options).policy(seed=0, at_once=16)
    played = list(play_levels(options, enumerate(range(FIRST, FIRST + levels)), policy, keep_frames=False))
    assert np.mean([each.rewards.sum() for each in played]) > score
    assert np.mean([each.complete for each in played]) > complete


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize("game", LEAST)
def test_an_episode_does_not_depend_on_the_others(game: str) -> None:
    options = ProcgenOptions(game, "easy")
    levels = list(enumerate(range(FIRST, FIRST + 3)))

    def actions(chosen: list[tuple[int, int]], at_once: int) -> dict[int, list[int]]:
        policy = scripted_expert(options).policy(seed=3, at_once=at_once)
        played = play_levels(options, chosen, policy, at_once=at_once, keep_frames=False)
        return {each.number: each.actions.tolist() for each in played}

    assert actions(levels, at_once=3) == actions(levels[::-1], at_once=1)


@pytest.mark.parametrize("game", LEAST)
def test_other_modes_and_games_have_no_script(game: str) -> None:
    expert = type(scripted_expert(ProcgenOptions(game, "easy")))
    for other in (ProcgenOptions(game, "hard"), ProcgenOptions("coinrun", "easy")):
        with pytest.raises(ValueError, match=f"{game} in mode easy, got {other.game} in mode {other.mode}"):
            expert(other)  # type: ignore[call-arg]
