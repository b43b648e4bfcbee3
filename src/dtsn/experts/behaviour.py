"""What data of Procgen are collected with: a learned policy, or a scripted one where learning is too slow."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from dtsn.envs.procgen import Policy, ProcgenOptions

ExpertKind = Literal["ppg", "scripted"]


class BehaviourPolicy(Protocol):
    """An expert that is ready to play."""

    kind: ExpertKind
    options: ProcgenOptions  # what it can play

    def description(self) -> dict[str, Any]:
        """Return what tells this policy from others, to be kept with its data."""

    def policy(self, seed: int, at_once: int) -> Policy:
        """Make a policy of actions drawn by (seed, episode, step) alone, for up to ``at_once`` episodes."""
