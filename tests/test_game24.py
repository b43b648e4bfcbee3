"""The Game of 24: its states against plain recursion on fractions, its solutions, its environment."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from dtsn.envs.game24 import Game24Env, puzzles_of, state_of_hand
from dtsn.envs.game24_graph import CARDS, DECISIONS, OPERATORS, StateGraph, build_graph
from dtsn.experts.game24 import demonstrate, draw_solutions


@pytest.fixture(scope="module")
def graph() -> StateGraph:
    return build_graph()


def operate(a: Fraction, operator: str, b: Fraction) -> Fraction | None:
    if operator == "÷":
        return a / b if b else None
    return {"+": a + b, "−": a - b, "×": a * b}[operator]


def ways(left: tuple[Fraction, ...]) -> Iterator[tuple[Fraction, ...]]:
    """The numbers left after each operation, as sorted tuples."""
    for i, a in enumerate(left):
        for j, b in enumerate(left):
            for operator in OPERATORS:
                made = operate(a, operator, b) if i != j else None
                if made is not None:
                    rest = [c for k, c in enumerate(left) if k not in (i, j)]
                    yield tuple(sorted([*rest, made]))


def can_make_24(left: tuple[Fraction, ...], known: dict[tuple[Fraction, ...], bool]) -> bool:
    if len(left) == 1:
        return left[0] == 24
    if left not in known:
        known[left] = any(can_make_24(after, known) for after in set(ways(left)))
    return known[left]


def value(graph: StateGraph, number: int) -> Fraction:
    return Fraction(int(graph.numerator[number]), int(graph.denominator[number]))


def left_of(graph: StateGraph, state: int) -> tuple[Fraction, ...]:
    return tuple(value(graph, number) for number in graph.numbers[state] if number >= 0)


def test_counts(graph: StateGraph) -> None:
    assert len(graph.hands) == 1820
    assert len(graph.solvable_hands) == 1362
    assert np.bincount(graph.decided)[[0, 3, 6, 9]].tolist() == [1820, 16562, 49852, 48642]
    assert len(graph) == 879_846
    assert graph.hands.tolist() == [list(hand) for hand in combinations_with_replacement(CARDS, 4)]


def test_hands_are_solvable_as_recursion_says(graph: StateGraph) -> None:
    known: dict[tuple[Fraction, ...], bool] = {}
    for state in np.random.default_rng(0).choice(len(graph.hands), 60, replace=False):
        cards = tuple(Fraction(int(card)) for card in graph.hands[state])
        assert can_make_24(cards, known) == (graph.solutions[state] > 0)


@pytest.mark.slow
def test_all_hands_are_solvable_as_recursion_says(graph: StateGraph) -> None:
    known: dict[tuple[Fraction, ...], bool] = {}
    hands = [tuple(map(Fraction, hand)) for hand in graph.hands.tolist()]
    assert [can_make_24(hand, known) for hand in hands] == (graph.solutions[: len(hands)] > 0).tolist()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_states_follow_the_rules(data: st.DataObject) -> None:
    graph = build_graph()
    state = data.draw(st.integers(0, len(graph) - 1))
    left, phase = left_of(graph, state), graph.decided[state] % 3
    children = graph.next[state]
    assert list(left) == sorted(left)
    if graph.decided[state] == DECISIONS:
        assert len(left) == 1
        assert (children < 0).all()
        assert graph.is_won[state] == (left == (24,))
        return
    assert (children >= 0).any()
    if phase < 2:  # 1 × a = a whatever a is
        assert len(set(children[children >= 0].tolist())) == (children >= 0).sum()
    assert (graph.decided[children[children >= 0]] == graph.decided[state] + 1).all()
    for action, child in enumerate(children):
        if phase == 1:
            # An operator is open unless nothing but 0 is left to divide by.
            assert (child >= 0) == (OPERATORS[action] != "÷" or any(left))
            if child >= 0:
                assert left_of(graph, child) == left
                assert (graph.operand[child], graph.operator[child]) == (graph.operand[state], action)
            continue
        may = action < len(left) and left[action] not in left[:action]
        if phase == 2:
            operator, first = OPERATORS[graph.operator[state]], value(graph, graph.operand[state])
            made = operate(first, operator, left[action]) if may else None
            assert (child >= 0) == (made is not None)
            if made is not None:
                rest = [*left[:action], *left[action + 1 :]]
                assert left_of(graph, child) == tuple(sorted([*rest, made]))
                assert value(graph, graph.result(state, action)) == made
                assert graph.operand[child] == graph.operator[child] == -1
            continue
        assert (child >= 0) == may
        if may:
            assert left_of(graph, child) == (*left[:action], *left[action + 1 :])
            assert value(graph, graph.operand[child]) == left[action]


def test_splits_are_disjoint_and_solvable(graph: StateGraph) -> None:
    parts = [puzzles_of(split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [530, 305, 527]
    assert sorted(np.concatenate(parts)) == graph.solvable_hands.tolist()
    with pytest.raises(ValueError, match="split must be one of test, validation, train, got 'tests'"):
        puzzles_of("tests")


def test_demonstrations_solve_training_puzzles(graph: StateGraph) -> None:
    states, actions = demonstrate(1200, seed=3)
    assert graph.is_won[states[:, -1]].all()
    assert (graph.next[states[:, :-1], actions] == states[:, 1:]).all()
    times = np.bincount(states[:, 0], minlength=1820)
    assert set(times[puzzles_of("train")]) == {2, 3}
    assert times.sum() == 1200 == times[puzzles_of("train")].sum()
    again = demonstrate(1200, seed=3)
    assert (again.states == states).all()
    assert (demonstrate(1200, seed=4).states != states).any()
    with pytest.raises(ValueError, match="number of trajectories must be at least 1, got 0"):
        demonstrate(0, 0)


def test_solutions_are_drawn_uniformly(graph: StateGraph) -> None:
    few = int(graph.solvable_hands[graph.solutions[graph.solvable_hands].argmin()])
    count = int(graph.solutions[few])
    paths = draw_solutions(graph, np.full(400 * count, few), np.random.default_rng(0)).states
    _, times = np.unique(paths, axis=0, return_counts=True)
    assert len(times) == count
    assert np.abs(times - 400).max() < 5 * 20


def test_environment_plays_a_hand() -> None:
    env = Game24Env(render_mode="ansi")
    state, info = env.reset(options={"hand": (8, 3, 8, 3)})
    assert info["state"] == "3 · 3 · 8 · 8"
    assert info["action_mask"].tolist() == [True, False, True, False]  # equal cards are one choice
    # 8 ÷ 3 = 8/3, 3 − 8/3 = 1/3, 8 ÷ 1/3 = 24
    for action in (2, 3, 0, 1, 1, 0, 1, 3, 0):
        assert env.observation_space.contains(state)
        state, reward, terminated, truncated, info = env.step(action)
        if info["state"] == "8/3 · 8 | 3 −":
            assert env.render() == "24 from 3 · 3 · 8 · 8\n  8 ÷ 3 = 8/3\nleft: 8/3 · 8 | 3 −"
    assert (reward, terminated, truncated, info["state"]) == (1.0, True, False, "24")
    assert str(env.render()).splitlines()[1:] == [
        "  8 ÷ 3 = 8/3",
        "  3 − 8/3 = 1/3",
        "  8 ÷ 1/3 = 24",
        "left: 24",
    ]
    with pytest.raises(ValueError, match="call reset first"):
        env.step(0)


class Valid(Game24Env):
    """Gymnasium's check draws any action: take an open one instead."""

    def step(self, action: int):
        return super().step(int(np.flatnonzero(self.action_mask())[action % self.action_mask().sum()]))


def test_environment_is_gymnasiums() -> None:
    assert isinstance(gymnasium.make("dtsn/Game24-v0", split="test").unwrapped, Game24Env)
    check_env(Valid("test"), skip_render_check=True)


def test_random_play_follows_the_mask() -> None:
    env = Game24Env("validation")
    seen = set()
    for seed in range(20):
        state, info = env.reset(seed=seed)
        seen.add(int(state))
        for step in range(DECISIONS):
            action = env.np_random.choice(np.flatnonzero(info["action_mask"]))
            state, reward, terminated, _, info = env.step(action)
            assert terminated == (step == DECISIONS - 1)
            assert reward == (info["state"] == "24")
    assert seen <= set(puzzles_of("validation").tolist())
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("hand", "message"),
    [
        ((1, 1, 1, 1), "hand must be one of the 1,362 that can make 24, got 1 1 1 1: try 1 1 3 4"),
        ((1, 2, 3), "hand must be 4 whole numbers from 1 to 13, got"),
        ((1, 2, 3, 14), "hand must be 4 whole numbers from 1 to 13, got"),
        ((1, 2, 3, 4.5), "hand must be 4 whole numbers from 1 to 13, got"),
        ((1, 2, 3, float("nan")), "hand must be 4 whole numbers from 1 to 13, got"),
        ("1234", "hand must be 4 whole numbers from 1 to 13, got '1234'"),
        (24, "hand must be 4 whole numbers from 1 to 13, got 24"),
    ],
)
def test_bad_hands(hand: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Game24Env().reset(options={"hand": hand})
    with pytest.raises(ValueError, match=message):
        state_of_hand(hand)  # type: ignore[arg-type]


def test_bad_actions_and_settings() -> None:
    env = Game24Env()
    with pytest.raises(ValueError, match="call reset first"):
        env.step(0)
    env.reset(options={"hand": (3, 3, 8, 8)})
    with pytest.raises(ValueError, match=r"action must be one of \[0, 2\] in 3 · 3 · 8 · 8, got 1"):
        env.step(1)
    with pytest.raises(ValueError, match="render_mode must be ansi or None, got 'human'"):
        Game24Env(render_mode="human")
