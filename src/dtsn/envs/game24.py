"""The Game of 24: make 24 of four cards by + − × ÷, using each once.

Nine decisions, at most four choices each: an operand, an operator, an operand, three times. The reward is 1
when 24 is left, else 0. The world is known: :func:`~dtsn.envs.game24_graph.build_graph` holds every state.

Puzzles are the 1,362 hands that can be solved (with fractions); 530 of them are for training, 305 for
validation and 527 for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

from dtsn.arrays import Bools, Ints
from dtsn.envs.game24_graph import CARDS, CHOICES, DECISIONS, HAND, PHASES, StateGraph, build_graph
from dtsn.errors import UserError, brief

SPLITS = {"test": 527, "validation": 305, "train": 530}  # puzzles of each, all of them together
SPLIT_SEED = 24


@lru_cache(maxsize=1)
def _shuffled_puzzles() -> Ints:
    puzzles = build_graph().solvable_hands
    return np.random.default_rng(SPLIT_SEED).permutation(puzzles)


def puzzles_of(split: str) -> Ints:
    """Return the hands (states) of ``train``, ``validation`` or ``test``; no hand is in two of them."""
    if split not in SPLITS:
        raise UserError(f"split must be one of {', '.join(SPLITS)}, got {brief(split)}")
    names = list(SPLITS)
    start = sum(SPLITS[name] for name in names[: names.index(split)])
    return _shuffled_puzzles()[start : start + SPLITS[split]]


def state_of_hand(cards: Sequence[int]) -> int:
    """Return the state of four cards, in any order; an error if they are none or cannot make 24."""
    graph = build_graph()
    try:
        hand = sorted(int(card) for card in cards if card == int(card))
        fits = len(hand) == len(cards) == HAND and set(hand) <= set(CARDS)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise UserError(f"a hand must be {HAND} whole numbers from 1 to {CARDS[-1]}, got {brief(cards)}")
    state = int(np.flatnonzero((graph.hands == hand).all(1))[0])
    if not graph.solutions[state]:
        shown = " ".join(map(str, hand))
        count = len(graph.solvable_hands)
        raise UserError(
            f"a hand must be one of the {count:,} that can make 24, got {shown}: try {_nearest(graph, hand)}"
        )
    return state


def _nearest(graph: StateGraph, hand: list[int]) -> str:
    """Return a hand that can be solved and differs little."""
    hands = graph.hands[graph.solvable_hands]
    return " ".join(map(str, hands[np.abs(hands - hand).sum(1).argmin()]))


class Game24Env(gym.Env):  # type: ignore[misc]
    """Observations are states by their number in the table; ``info`` has the action mask and their names.

    ``reset(options={"hand": (3, 3, 8, 8)})`` deals a hand; otherwise one of the split is drawn.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's own way)

    def __init__(self, split: str = "train", render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"render_mode must be ansi or None, got {render_mode!r}")
        self.graph, self.puzzles, self.render_mode = build_graph(), puzzles_of(split), render_mode
        self.observation_space = gym.spaces.Discrete(len(self.graph))
        self.action_space = gym.spaces.Discrete(CHOICES)
        self._states: list[int] = []  # of the episode, from the hand on
        self._actions: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Deal ``options["hand"]``, or a hand of the split."""
        super().reset(seed=seed)
        hand = (options or {}).get("hand")
        state = int(self.np_random.choice(self.puzzles)) if hand is None else state_of_hand(hand)
        self._states, self._actions = [state], []
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take a decision; only those of the action mask can be taken."""
        if not self._states or len(self._actions) == DECISIONS:
            raise UserError("step must follow a reset and end after nine decisions: call reset first")
        open_actions = np.flatnonzero(self.action_mask())
        if action not in open_actions:
            here = self.graph.state_text(self._states[-1])
            raise UserError(
                f"action must be one of {open_actions.tolist()} in {here}, "
                f"got {brief(action)}: see the action mask"
            )
        self._actions.append(int(action))
        self._states.append(int(self.graph.next[self._states[-1], action]))
        over = len(self._actions) == DECISIONS
        return self._observation(), float(self.graph.is_won[self._states[-1]]), over, False, self._info()

    def action_mask(self) -> Bools:
        """Return which decisions can be taken, ``[4]``."""
        mask: Bools = self.graph.next[self._states[-1]] >= 0
        return mask

    def render(self) -> str | None:
        """Return the hand, the operations made so far and what is left."""
        if self.render_mode is None:
            return None
        hand, *made = episode_text(self.graph, self._states, self._actions)
        return "\n".join([f"24 from {hand}", *(f"  {line}" for line in made[:-1]), made[-1]])

    def _observation(self) -> np.int64:
        return np.int64(self._states[-1])

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_mask(), "state": self.graph.state_text(self._states[-1])}


def episode_text(graph: StateGraph, states: Sequence[int], actions: Sequence[int]) -> list[str]:
    """Return the hand, a line for each finished operation (``8 ÷ 3 = 8/3``), and what is left.

    ``states`` are those that the decisions ``actions`` went through, first and last included.
    """
    words = [graph.action_text(state, action) for state, action in zip(states, actions, strict=False)]
    lines = [graph.state_text(states[0])]
    for end in range(PHASES, len(words) + 1, PHASES):
        made = graph.result(states[end - 1], actions[end - 1])
        lines.append(f"{' '.join(words[end - PHASES : end])} = {graph.number_text(made)}")
    return [*lines, f"left: {graph.state_text(states[-1])}"]
