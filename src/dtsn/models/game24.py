"""A value for the Game of 24: how likely 24 can still be made of what is left."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dtsn.arrays import Array, Float64s

WHOLE = (-5, 35)  # whole numbers that have an embedding of their own
OTHERS = 5  # embeddings: less, more, fractions below 1, above, no number
KINDS = 50  # (decisions made, operator)
FEATURES = 5  # of a number, beside its embedding


class Game24Value(nn.Module):
    """States ``[B]`` -> values ``[B]``, ``win + log p`` with p in (0, 1), so never above a win.

    The search's policy softmax(V̄) is then proportional to p, and a win that was found outranks every guess.

    Args:
        amount: ``[V]`` the numbers that occur.
        numbers: ``[S, 4]`` those that are left in each state, by their place in ``amount``, −1: no more.
        operand: ``[S]`` the first operand of the operation at hand, −1: none.
        kind: ``[S]`` what decision is next and by which operator, 0..49.
        win: what a win counts.
        hidden: width of the first hidden layer; the second has half of it.
        embedding: size of a number's embedding.
    """

    slots: Tensor
    kind: Tensor
    bucket: Tensor
    features: Tensor

    def __init__(
        self,
        amount: Float64s,
        numbers: Array,
        operand: Array,
        kind: Array,
        win: float,
        hidden: int = 128,
        embedding: int = 16,
    ):
        super().__init__()
        self.win = win
        slots = np.concatenate([numbers, operand[:, None]], 1)  # [S, 5]
        slots = np.where(slots < 0, len(amount), slots)
        for name, table in (
            ("slots", torch.as_tensor(slots, dtype=torch.int64)),
            ("kind", torch.as_tensor(kind, dtype=torch.int64)),
            ("bucket", torch.as_tensor(np.append(_buckets(amount), _last_bucket()))),
            ("features", torch.as_tensor(np.append(_features(amount), np.zeros((1, FEATURES)), 0)).float()),
        ):
            self.register_buffer(name, table, persistent=False)
        self.number = nn.Embedding(_last_bucket() + 1, embedding)
        self.phase = nn.Embedding(KINDS, 2 * embedding)
        size = slots.shape[1] * (embedding + FEATURES) + 2 * embedding
        last = nn.Linear(hidden // 2, 1)
        self.net = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), last
        )
        for embedded in (self.number, self.phase):
            nn.init.normal_(embedded.weight, std=0.5)
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, -1.0)  # most states lead nowhere

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B]`` to values ``[B]``."""
        slots = self.slots[state]  # [B, 5]
        seen = torch.cat([self.number(self.bucket[slots]), self.features[slots]], -1)
        logit: Tensor = self.net(torch.cat([seen.flatten(1), self.phase(self.kind[state])], 1))
        return self.win + functional.logsigmoid(logit.squeeze(1))


class LookUp(nn.Module):
    """A value ``[S]`` of every state, computed once: acting then costs no network."""

    values: Tensor

    def __init__(self, values: Tensor):
        super().__init__()
        self.register_buffer("values", values)

    @classmethod
    @torch.no_grad()
    def of(cls, value: nn.Module, states: int, at_once: int = 16384) -> LookUp:
        """Return the values that a module gives to states 0 … S − 1."""
        device = next(value.parameters()).device
        parts = torch.split(torch.arange(states, device=device), at_once)
        return cls(torch.cat([value(part) for part in parts]))

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B]`` to values ``[B]``."""
        return self.values[state]


def _last_bucket() -> int:
    low, high = WHOLE
    return high - low + OTHERS


def _buckets(amount: Float64s) -> Array:
    """Return the embedding of each number, ``[V]``."""
    low, high = WHOLE
    first = high - low + 1
    whole = np.where(amount < low, first, np.where(amount > high, first + 1, amount - low))
    return np.where(amount == np.rint(amount), whole, np.where(amount < 1, first + 2, first + 3)).astype(
        np.int64
    )


def _features(amount: Float64s) -> Float64s:
    """Return sizes of each number, and beside 24, ``[V, 5]``."""
    inverse = 24 / np.where(amount == 0, np.inf, amount)
    columns = (
        np.clip(amount / 24, -4, 4),
        np.sign(amount) * np.log1p(np.abs(amount)) / 3,
        np.clip((amount - 24) / 24, -2, 2),
        np.clip(inverse, -24, 24) / 12,
        amount == np.rint(amount),
    )
    return np.stack([np.asarray(column, np.float64) for column in columns], 1)
