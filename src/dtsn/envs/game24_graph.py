"""Every position of the Game of 24 as one table, by exact rational arithmetic.

A *state* is what is left on the table, a multiset of one to four rationals, and how far the operation at hand
has come: nothing, its first operand, or first operand and operator. Nine decisions lead from a hand to one
number: (operand, operator, operand) three times. Numbers that are left are kept in rising order; a decision
names one of them by its place in that order, or an operator. Of equal numbers only the first can be named.

S states, V numbers. A rational is coded as ``numerator · 2^20 + denominator`` in an int64 while the table is
built: both fit, as :func:`build_graph` checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, pairwise

import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Bools, Ints

CARDS = tuple(range(1, 14))
HAND = 4  # cards of a hand
GOAL = 24
DECISIONS = 9
CHOICES = 4  # of a decision, at most
OPERATORS = ("+", "−", "×", "÷")
PHASES = 3  # of an operation: first operand, operator, second operand

_SHIFT = 20
Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class StateGraph:
    """All states that can be reached from any hand of four cards; the hands are the first of them."""

    numerator: Ints  # [V]  of the numbers that occur, in rising order
    denominator: Ints  # [V]
    hands: Ints  # [H, 4]  cards in rising order; hand h is state h
    numbers: Int32s  # [S, 4]  numbers that are left, in rising order, without the first operand; −1: no more
    operand: Int32s  # [S]  the first operand, −1: not chosen
    operator: Int32s  # [S]  place in OPERATORS, −1: not chosen
    decided: Int32s  # [S]  decisions made so far, 0..9: rises with the state
    next: Int32s  # [S, 4]  the state after each decision, −1: it cannot be taken

    def __len__(self) -> int:
        return len(self.next)

    @cached_property
    def is_won(self) -> Bools:
        """``[S]`` whether 24 is left and nothing else."""
        number = self.numbers[:, 0]
        goal = (self.numerator == GOAL) & (self.denominator == 1)
        won: Bools = (self.decided == DECISIONS) & goal[number]
        return won

    @cached_property
    def solutions(self) -> Ints:
        """``[S]`` how many sequences of decisions lead to 24."""
        found = self.is_won.astype(np.int64)
        starts = np.searchsorted(self.decided, np.arange(DECISIONS + 1))
        for first, end in reversed(list(pairwise(starts))):
            children = self.next[first:end]
            found[first:end] = np.where(children >= 0, found[children], 0).sum(1)
        return found

    @cached_property
    def solvable_hands(self) -> Ints:
        """The hands (states) that can make 24."""
        return np.flatnonzero(self.solutions[: len(self.hands)] > 0)

    def result(self, state: int, action: int) -> int:
        """Return the number that the second operand ``action`` completes the operation at hand to."""
        beside = self.numbers[state].tolist()
        del beside[action]
        left = self.numbers[self.next[state, action]].tolist()
        for number in beside:
            left.remove(number)
        return int(max(left))  # the rest is −1

    def number_text(self, number: int) -> str:
        """Return a number as people write it: ``-7``, ``8/3``."""
        above, below = int(self.numerator[number]), int(self.denominator[number])
        sign = "−" if above < 0 else ""
        return f"{sign}{abs(above)}" if below == 1 else f"{sign}{abs(above)}/{below}"

    def state_text(self, state: int) -> str:
        """Return the numbers that are left, and the operation at hand: ``3 · 8 | 6 −``."""
        left = " · ".join(self.number_text(number) for number in self.numbers[state] if number >= 0)
        if self.operand[state] < 0:
            return left
        operator = "" if self.operator[state] < 0 else f" {OPERATORS[self.operator[state]]}"
        return f"{left} | {self.number_text(self.operand[state])}{operator}"

    def action_text(self, state: int, action: int) -> str:
        """Return what a decision names: a number that is left, or an operator."""
        if self.decided[state] % PHASES == 1:
            return OPERATORS[action]
        return self.number_text(self.numbers[state, action])


@lru_cache(maxsize=1)
def build_graph() -> StateGraph:
    """Enumerate all states level by level: four numbers left, three, two, one."""
    hands = np.array(list(combinations_with_replacement(CARDS, HAND)), np.int64)
    sets = (hands << _SHIFT) + 1  # [M, n] codes of the numbers left
    columns: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    first = 0  # state of this level
    for decided in range(0, DECISIONS, PHASES):
        level = _Level.of(sets)
        columns += level.columns(first, decided)
        first += level.size
        sets = level.results
    blank = np.full(len(sets), -1)
    columns.append((_padded(sets), blank, blank, blank + DECISIONS + 1, _padded(blank[:, None], -1)))
    numbers, operand, operator, counts, following = (
        np.concatenate(parts) for parts in zip(*columns, strict=True)
    )
    codes = np.unique(numbers[numbers != 0])
    above, below = _split(codes)
    order = np.argsort(above / below)
    rank = np.empty(len(order) + 1, np.int32)
    rank[order], rank[-1] = np.arange(len(order)), -1

    def place(coded: Ints) -> Int32s:
        """Return the places of codes among the numbers in rising order; of 0, no number: −1."""
        return rank[np.where(coded == 0, len(order), np.searchsorted(codes, coded))]

    return StateGraph(
        above[order],
        below[order],
        hands,
        place(numbers),
        place(np.where(operand == -1, 0, operand)),
        operator.astype(np.int32),
        counts.astype(np.int32),
        following.astype(np.int32),
    )


@dataclass(frozen=True)
class _Level:
    """The states with n numbers left: M sets of them, then first operands, then operators."""

    sets: Ints  # [M, n] codes
    rests: Ints  # [M, n, n − 1]  the numbers beside each first operand
    result: Ints  # [M, n, 4, n − 1]  place in results of the set after an operation, −1: it does not exist
    results: Ints  # [M′, n − 1] codes
    picks: Bools  # [M, n]  the first operands that can be named
    operates: Bools  # [M, n, 4]  the operators that have a second operand

    @classmethod
    def of(cls, sets: Ints) -> _Level:
        """Try every operation on every set."""
        count = sets.shape[1]
        rests = np.stack([np.delete(sets, i, axis=1) for i in range(count)], axis=1)
        picks = _named(sets)
        exists = picks[:, :, None, None] & _named(rests)[:, :, None]  # [M, n, 1, n − 1]
        exists = np.repeat(exists, len(OPERATORS), axis=2)
        above, below = _split(sets[:, :, None])  # [M, n, 1]
        other, under = _split(rests)  # [M, n, n − 1]
        exists[:, :, OPERATORS.index("÷")] &= other != 0
        made = [
            (above * under + other * below, below * under),
            (above * under - other * below, below * under),
            (above * other, below * under),
            (above * under, below * other),
        ]
        codes = np.stack([_code(*fraction) for fraction in made], axis=2)  # [M, n, 4, n − 1]
        beside = np.stack([np.delete(rests, j, axis=2) for j in range(count - 1)], axis=2)
        beside = np.broadcast_to(beside[:, :, None], (*codes.shape, count - 2))
        after = np.concatenate([codes[..., None], beside], axis=-1)[exists]  # [K, n − 1]
        results, place = _distinct_sets(after)
        result = np.full(codes.shape, -1)
        result[exists] = place
        return cls(sets, rests, result, results, picks, np.any(exists, axis=-1, keepdims=True)[..., 0])

    @property
    def size(self) -> int:
        """How many states there are."""
        return len(self.sets) + int(self.picks.sum() + self.operates.sum())

    def columns(self, first: int, decided: int) -> list[tuple[Ints, Ints, Ints, Ints, Ints]]:
        """Return (numbers, operand, operator, decided, next) of the three phases from state ``first``."""
        blank = np.full(len(self.sets), -1)
        picked = _numbered(self.picks, first + len(self.sets))
        begun = _numbered(self.operates, first + len(self.sets) + int(self.picks.sum()))
        following = np.where(self.result < 0, -1, self.result + first + self.size)
        operand = np.broadcast_to(self.sets[:, :, None], self.operates.shape)[self.operates]
        rests = np.broadcast_to(self.rests[:, :, None], (*self.operates.shape, self.rests.shape[-1]))
        operator = np.broadcast_to(np.arange(len(OPERATORS)), self.operates.shape)[self.operates]
        none = np.full(int(self.picks.sum()), -1)
        return [
            (_padded(self.sets), blank, blank, blank + 1 + decided, _padded(picked, -1)),
            (
                _padded(self.rests[self.picks]),
                self.sets[self.picks],
                none,
                none + 2 + decided,
                begun[self.picks],
            ),
            (
                _padded(rests[self.operates]),
                operand,
                operator,
                np.full(len(operand), decided + 2),
                _padded(following[self.operates], -1),
            ),
        ]


def _code(above: Ints, below: Ints) -> Ints:
    """Return the code of fractions, cancelled; of division by zero: 0, which no number has."""
    common = np.gcd(above, below)
    common = np.where(below < 0, -common, common)
    common = np.where(common == 0, 1, common)
    above, below = above // common, below // common
    if max(below.max(), np.abs(above).max()) >= 1 << _SHIFT:
        raise OverflowError("a fraction is too large for its code")
    return np.where(below == 0, 0, (above << _SHIFT) + below)


def _split(codes: Ints) -> tuple[Ints, Ints]:
    """Return numerators and denominators."""
    return codes >> _SHIFT, codes & ((1 << _SHIFT) - 1)


def _named(sets: Ints) -> Bools:
    """Tell whether a number differs from the one before it, along the last axis."""
    different = np.ones(sets.shape, bool)
    different[..., 1:] = sets[..., 1:] != sets[..., :-1]
    return different


def _distinct_sets(sets: Ints) -> tuple[Ints, Ints]:
    """Return the distinct multisets among the rows of ``sets [K, n]``, in rising order, and each row's."""
    codes, place = np.unique(sets, return_inverse=True)
    above, below = _split(codes)
    order = np.argsort(above / below)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rows = np.sort(rank[place.reshape(sets.shape)], axis=1)
    packed = rows[:, 0]
    for column in rows.T[1:]:
        packed = packed * len(codes) + column
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return codes[order][rows[first]], inverse


def _numbered(mask: Bools, first: int) -> Ints:
    """Count from ``first`` on where the mask is true; −1 elsewhere."""
    return np.where(mask, np.cumsum(mask).reshape(mask.shape) - 1 + first, -1)


def _padded(columns: Ints, fill: int = 0) -> Ints:
    """Pad ``[K, n]`` to ``[K, 4]``."""
    return np.pad(columns, ((0, 0), (0, CHOICES - columns.shape[1])), constant_values=fill)
