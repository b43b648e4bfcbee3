"""What data of Procgen are collected with: a learned policy, or a scripted one where learning is too slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from dtsn.envs.procgen import Policy, ProcgenOptions
from dtsn.errors import UserError

ExpertKind = Literal["ppg", "scripted"]


class BehaviourPolicy(Protocol):
    """An expert that is ready to play."""

    kind: ExpertKind
    options: ProcgenOptions  # what it can play

    def description(self) -> dict[str, Any]:
        """Return what tells this policy from others, to be kept with its data."""

    def policy(self, seed: int, at_once: int) -> Policy:
        """Make a policy of actions drawn by (seed, episode, step) alone, for up to ``at_once`` episodes."""


def scripted_expert(options: ProcgenOptions) -> BehaviourPolicy:
    """Return the scripted expert of a game."""
    from dtsn.experts.bigfish_hunt import BigfishHunt
    from dtsn.experts.climber_jumps import ClimberJumps
    from dtsn.experts.heist_search import HeistSearch
    from dtsn.experts.leaper_search import LeaperSearch
    from dtsn.experts.maze_search import MazeSearch
    from dtsn.experts.miner_search import MinerSearch
    from dtsn.experts.plunder_aim import PlunderAim

    scripts: dict[str, Callable[[ProcgenOptions], BehaviourPolicy]] = {
        "bigfish": BigfishHunt,
        "climber": ClimberJumps,
        "heist": HeistSearch,
        "leaper": LeaperSearch,
        "maze": MazeSearch,
        "miner": MinerSearch,
        "plunder": PlunderAim,
    }
    if options.game not in scripts:
        raise UserError(
            f"there is no scripted expert for {options.game}, only for {', '.join(scripts)}: train one by PPG"
        )
    return scripts[options.game](options)
