"""What the scripted experts share: a script for each episode, and random moves by (seed, episode, step)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from dtsn.arrays import Bytes, Ints
from dtsn.envs.procgen import Policy, ProcgenOptions
from dtsn.errors import UserError
from dtsn.experts.behaviour import ExpertKind
from dtsn.randomness import hashed_uniforms

MODE = "easy"  # what frames look like depends on it


class Episode(Protocol):
    """What a script knows of an episode that is going on."""

    def action(self, frame: Bytes, uniform: float) -> int:
        """Return the next action by a frame ``[3, 64, 64]``; the uniform number decides on a random one."""


class Script(NamedTuple):
    """How a game is played."""

    begin: Callable[[Bytes], Episode]  # given the first frame [3, 64, 64], which is played next
    description: dict[str, Any]  # what tells it from others, to be kept with its data


class ScriptedExpert:
    """A script that plays many episodes at once."""

    kind: ExpertKind = "scripted"

    def __init__(self, options: ProcgenOptions) -> None:
        scripts = _scripts()
        if options.game not in scripts:
            raise UserError(
                f"there is no scripted expert for {options.game}, only for {', '.join(scripts)}: "
                "train one by PPG"
            )
        if options.mode != MODE:
            raise UserError(f"a scripted expert plays {options.game} in mode {MODE}, got mode {options.mode}")
        self.options, self.script = options, scripts[options.game]

    def description(self) -> dict[str, Any]:
        """Return what tells this policy from others, to be kept with its data."""
        return self.script.description

    def policy(self, seed: int, at_once: int) -> Policy:
        """Make a policy by (seed, episode, step) alone; an episode must be played from its first frame on."""
        going_on: dict[int, Episode] = {}

        def act(frames: Bytes, episodes: Ints, steps: Ints) -> Ints:
            drawn = hashed_uniforms(seed, episodes, steps)
            chosen = []
            for frame, number, step, uniform in zip(frames, episodes.tolist(), steps, drawn, strict=True):
                if step == 0:
                    going_on[number] = self.script.begin(frame)
                chosen.append(going_on[number].action(frame, uniform))
            return np.array(chosen)

        return act


def _scripts() -> dict[str, Script]:
    """Return all scripts by their games; imported here, since few commands need them."""
    from dtsn.experts.scripts import bigfish, climber, heist, leaper, maze, miner, plunder

    return {
        "bigfish": Script(bigfish.Hunt, bigfish.DESCRIPTION),
        "climber": Script(lambda _: climber.Climb(), climber.DESCRIPTION),
        "heist": Script(heist.read_heist, heist.DESCRIPTION),
        "leaper": Script(leaper.Crossing, leaper.DESCRIPTION),
        "maze": Script(maze.Walk, maze.DESCRIPTION),
        "miner": Script(lambda _: miner.Shift(), miner.DESCRIPTION),
        "plunder": Script(plunder.Raid, plunder.DESCRIPTION),
    }
