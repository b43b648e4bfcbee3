"""The Game of 24 as a known world, and playing it: nine decisions, a search before each."""

from __future__ import annotations

import numpy as np
import torch

from dtsn.arrays import Bools, Ints
from dtsn.envs.game24_graph import CHOICES, DECISIONS, OPERATORS, build_graph
from dtsn.models.game24 import Game24Value, LookUp
from dtsn.models.known import KnownModel, TableRules
from dtsn.randomness import hashed_uniforms
from dtsn.solvers.solver import Solver

WIN = 10.0  # what 24 counts inside the search: see known_game24


def known_game24(hidden: int = 128, embedding: int = 16, win: float = WIN) -> KnownModel:
    """Return the world model: the rules as tables, and a fresh value network.

    A win counts ``win`` instead of 1. That is the same as rewards and values in units of 1 with temperature
    1 / win, in the expansion policy and in the conservative loss alike: values must differ by more than the
    temperature for either to tell them apart.
    """
    graph = build_graph()
    there = graph.next >= 0
    rewards = np.where(there, graph.is_won[graph.next], False) * np.float32(win)
    ends = there & (graph.decided[:, None] == DECISIONS - 1)
    value = Game24Value(
        graph.numerator / graph.denominator,
        graph.numbers,
        graph.operand,
        graph.decided * (len(OPERATORS) + 1) + graph.operator + 1,
        win,
        hidden,
        embedding,
    )
    return KnownModel(TableRules(graph.next.astype(np.int64), rewards, there, ends), value, CHOICES)


def looked_up(solver: Solver) -> Solver:
    """Compute the solver's values once for all states, to play many games at little cost."""
    model = solver.world_model
    assert isinstance(model, KnownModel)
    value = LookUp.of(model.value_head, len(build_graph()))
    return Solver(
        KnownModel(model.rules, value, model.num_actions),
        solver.config,
        solver.observation_shape,
        observation_space=solver.observation_space,
    ).eval()


def search_noise(hands: Ints, seed: int, decision: int, iterations: int) -> torch.Tensor:
    """Return the random numbers ``[P, T]`` of a decision's searches, one row for each hand ``[P]``."""
    draws = decision * iterations + np.arange(iterations)  # [T]
    uniforms = hashed_uniforms(seed, np.repeat(hands, iterations), np.tile(draws, len(hands)))
    return torch.as_tensor(uniforms.reshape(len(hands), iterations))


def play(solver: Solver, hands: Ints, seed: int = 0) -> Bools:
    """Play each hand ``[P]`` once by the acting search; returns which were solved ``[P]``.

    What the search draws depends on (seed, hand, decision) alone.
    """
    graph = build_graph()
    state = np.asarray(hands, np.int64)
    for decision in range(DECISIONS):
        uniforms = search_noise(hands, seed, decision, solver.act_iterations)
        action = solver.act(state, uniforms=uniforms)
        state = graph.next[state, action.cpu().numpy()].astype(np.int64)
    return graph.is_won[state]
