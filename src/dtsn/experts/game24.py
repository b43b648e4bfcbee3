"""Demonstrations of the Game of 24: solutions drawn at random, and the decisions that they are made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dtsn.arrays import Ints
from dtsn.envs.game24 import puzzles_of
from dtsn.envs.game24_graph import DECISIONS, StateGraph, build_graph
from dtsn.errors import UserError


class Demonstrations(NamedTuple):
    """N ways from a hand to 24."""

    states: Ints  # [N, 10]  from the hand to 24
    actions: Ints  # [N, 9]


def demonstrate(number: int, seed: int, split: str = "train") -> Demonstrations:
    """Draw ``number`` solutions, equally many of every puzzle of the split (up to one).

    Each solution of a puzzle, a sequence of nine decisions, is equally likely.
    """
    if number < 1:
        raise UserError(f"number of trajectories must be at least 1, got {number}")
    graph, rng = build_graph(), np.random.default_rng(seed)
    puzzles = puzzles_of(split)
    rounds = -(-number // len(puzzles))
    hands = np.concatenate([rng.permutation(puzzles) for _ in range(rounds)])[:number]
    return draw_solutions(graph, hands, rng)


def draw_solutions(graph: StateGraph, states: Ints, rng: np.random.Generator) -> Demonstrations:
    """Draw a solution of each hand ``[N]`` uniformly: decisions in proportion to the ways they keep."""
    path, actions = [states], []
    for _ in range(DECISIONS):
        children = graph.next[path[-1]]  # [N, 4]
        kept = np.where(children >= 0, graph.solutions[children], 0).cumsum(1)
        drawn = rng.integers(0, kept[:, -1])
        action = (drawn[:, None] >= kept).sum(1)
        actions.append(action)
        path.append(children[np.arange(len(action)), action].astype(np.int64))
    return Demonstrations(np.stack(path, 1), np.stack(actions, 1))
