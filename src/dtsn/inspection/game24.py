"""Searches in the Game of 24: states as the numbers that are left, and the solution that was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from dtsn.envs.game24 import episode_text, state_of_hand
from dtsn.envs.game24_graph import CHOICES, DECISIONS, OPERATORS, PHASES, StateGraph, build_graph
from dtsn.errors import UserError
from dtsn.evaluation.game24 import search_noise
from dtsn.inspection.describe import describe_search, with_search
from dtsn.inspection.document import SearchDocument, Source, Words
from dtsn.solvers.solver import Solver

PLACES = ("1st", "2nd", "3rd", "4th")  # of the numbers that are left


def describe_game24(
    solver: Solver,
    hand: Sequence[int],
    *,
    time: int = 0,
    actions: Sequence[int] | None = None,
    seed: int = 0,
    **search: Any,
) -> SearchDocument:
    """Describe the search of one decision in the Game of 24, with the same random numbers as in ``play``.

    ``hand`` are four cards; ``actions`` the decisions made before, the solver's own first ``time`` ones if
    they are not given. ``search`` may change ``iterations``, ``rule`` and ``temperature``.
    """
    if not 0 <= time < DECISIONS or seed < 0:
        raise UserError(
            f"time must be 0 to {DECISIONS - 1} and seed not negative, got time {time} and seed {seed}"
        )
    solver, graph, start = with_search(solver, **search), build_graph(), state_of_hand(hand)
    made = _own_decisions(solver, start, time, seed) if actions is None else list(actions)
    states = decide(start, made)
    if len(made) == DECISIONS:
        raise UserError(f"actions must leave a decision to make, got all {DECISIONS}")
    here = states[-1]
    document = describe_search(
        solver,
        np.asarray(here),
        uniforms=_noise(start, seed, len(made), solver),
        actions=OPERATORS if graph.decided[here] % PHASES == 1 else PLACES[:CHOICES],
        invalid_actions=graph.next[here] < 0,
        label=lambda state: graph.state_text(int(state)),
        source=_source(start, len(made), seed),
    )
    document["scene"] = _game(graph, states, made, document)
    return document


def watch_game24(
    solver: Solver, hand: Sequence[int], *, seed: int = 0, **search: Any
) -> Iterator[tuple[SearchDocument, str]]:
    """Yield every decision of a game and what it led to: "", "solved" or "not solved"."""
    graph, state = build_graph(), state_of_hand(hand)
    made: list[int] = []
    while len(made) < DECISIONS:
        document = describe_game24(solver, hand, actions=made, seed=seed, **search)
        made.append(document["action"])
        state = int(graph.next[state, made[-1]])
        over = len(made) == DECISIONS
        if over:
            document["scene"] = {"kind": "text", "text": game_text(decide(state_of_hand(hand), made), made)}
        yield document, ("solved" if graph.is_won[state] else "not solved") if over else ""


def decide(hand: int, made: Sequence[int]) -> list[int]:
    """Return the states that decisions lead through from a hand, the first and the last included."""
    graph, states = build_graph(), [hand]
    for action in made:
        if not 0 <= action < CHOICES or graph.next[states[-1], action] < 0:
            here = graph.state_text(states[-1])
            raise UserError(f"actions must be possible decisions, got {action} in {here}")
        states.append(int(graph.next[states[-1], action]))
    return states


def game_text(states: Sequence[int], made: Sequence[int]) -> str:
    """Return the hand, the operations made so far and what is left."""
    hand, *lines = episode_text(build_graph(), states, made)
    return "\n".join([f"24 from {hand}", *lines])


def _own_decisions(solver: Solver, start: int, time: int, seed: int) -> list[int]:
    """Return the solver's first decisions in the game of a hand."""
    graph, state = build_graph(), start
    made: list[int] = []
    for decision in range(time):
        uniforms = _noise(start, seed, decision, solver)
        made.append(int(solver.act(np.array([state]), uniforms=uniforms)[0]))
        state = int(graph.next[state, made[-1]])
    return made


def _noise(start: int, seed: int, decision: int, solver: Solver) -> torch.Tensor:
    return search_noise(np.array([start]), seed, decision, solver.act_iterations)


def _source(start: int, time: int, seed: int) -> Source:
    return {"environment": "dtsn/Game24-v0", "level": start, "options": {}, "time": time, "seed": seed}


def _game(graph: StateGraph, states: list[int], made: list[int], document: SearchDocument) -> Words:
    """Return the operations made so far, what is left, and those that the best path of the search plans."""
    before = game_text(states, made)
    planned = [document["nodes"][n]["action"] or 0 for n in document["best_path"][1:]]
    ahead = decide(states[0], [*made, *planned])
    after = episode_text(graph, ahead, [*made, *planned])
    finished = after[1 + len(made) // PHASES : -1]
    found = " (solved)" if graph.is_won[ahead[-1]] else ""
    plan = "; ".join([*finished, after[-1]])
    return {"kind": "text", "text": f"{before}\nplan: {plan}{found}"}
