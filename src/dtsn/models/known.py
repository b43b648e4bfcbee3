"""World models whose rules are given: only the value is learned, and the reward where it is not known.

The state itself is what the search carries: a whole number, a small vector of them, or anything else of a
fixed shape. Nothing differentiates through states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium
import torch
from torch import Tensor, nn

from dtsn.batch import Observation
from dtsn.errors import UserError
from dtsn.models.spaces import Flatten
from dtsn.search.model import Expansion, as_mask

Rules = Callable[[Any], Sequence[Any]]


class KnownModel(nn.Module):
    """Rules of yours and a learned value; ``Solver.create(..., world_model=KnownModel(...))`` takes it.

    Args:
        rules: states ``[B, *state]`` -> children ``[B, A, *state]``, rewards ``[B, A]`` and, where they
            matter, masks ``valid [B, A]`` and ``terminal [B, A]`` (None: all valid, nothing ends), as a tuple
            or an :class:`~dtsn.search.Expansion`. Whatever an invalid action leads to does not count: its
            child and its reward may be anything. A terminal child has no value behind it and is never
            expanded. :class:`TableRules` looks all of it up.
        value: states ``[B, *state]`` -> values ``[B]``: learned. :class:`StateMLP` is a plain one.
        num_actions: A.
        reward: states ``[B, *state]`` -> rewards ``[B, A]``: learned; ``rules`` then give None for them.
        encode: observations ``[B, ...]`` -> states ``[B, *state]``; None: the observation is the state.
        key: states ``[n, *state]`` -> int64 ``[n]``, equal where states are the same, for
            ``SolverConfig.merge``; None: a state that is one whole number is its own key.
        arrays: what ``rules`` and ``encode`` read: tensors, or NumPy arrays. Either may return both.
    """

    def __init__(
        self,
        rules: Rules,
        value: nn.Module,
        num_actions: int,
        *,
        reward: nn.Module | None = None,
        encode: Callable[[Any], Any] | None = None,
        key: Callable[[Tensor], Tensor] | None = None,
        arrays: Literal["torch", "numpy"] = "torch",
    ):
        super().__init__()
        if num_actions < 1:
            raise UserError(f"num_actions must be at least 1, got {num_actions}")
        if arrays not in ("torch", "numpy"):
            raise UserError(f"arrays must be 'torch' or 'numpy', got {arrays!r}")
        self.rules, self.num_actions, self.arrays = rules, num_actions, arrays
        self.value_head, self.reward_head = value, reward
        self._encode, self._key = encode, key

    @property
    def given(self) -> frozenset[str]:
        """The losses that have nothing to teach: what they would fit is known."""
        rewards = set() if self.reward_head else {"reward", "conservative_reward"}
        return frozenset({"transition"} | rewards)

    def encode(self, observation: Observation) -> Tensor:
        """Map observations ``[B, ...]`` to states ``[B, *state]``."""
        if self._encode is None:
            if not isinstance(observation, Tensor):
                raise UserError("encode must be given for observations of a Dict or Tuple space, got none")
            state = observation
        else:
            given = observation if self.arrays == "torch" else _to_numpy(observation)
            state = self._tensor("encode", self._encode(given))
        if isinstance(self.rules, TableRules):
            self.rules.check_states(state)
        return state

    def expand(self, state: Tensor) -> Expansion:
        """Map states ``[B, *state]`` to children ``[B, A, *state]``, rewards ``[B, A]`` and masks."""
        told = self.rules(state if self.arrays == "torch" else _to_numpy(state))
        if not isinstance(told, Sequence) or not 2 <= len(told) <= 4:
            got = f"{len(told)} values" if isinstance(told, Sequence) else type(told).__name__
            raise UserError(f"rules must return (children, reward, valid, terminal), got {got}")
        children, reward, valid, terminal = (*told, None, None)[:4]
        rewards = self._rewards(state, reward)
        children = self._children(state, children)
        if valid is not None:
            valid = as_mask(valid, "valid", rewards)
            # The search values every child, and a network may stumble over what does not exist.
            beside = valid.view(*valid.shape, *[1] * (state.dim() - 1))
            children = torch.where(beside, children, state.unsqueeze(1))
        if terminal is not None:
            terminal = as_mask(terminal, "terminal", rewards)
        if not isinstance(self.rules, TableRules):  # whose tables were checked once
            _check_finite("rewards", rewards, valid)
            if children.is_floating_point():
                _check_finite("children", children, None)
        return Expansion(children, rewards, valid, terminal)

    def value(self, state: Tensor) -> Tensor:
        """Map states ``[B, *state]`` to values ``[B]``."""
        value: Tensor = self.value_head(state)
        if value.shape not in ((len(state),), (len(state), 1)):
            raise UserError(f"value module must return shape [{len(state)}], got {list(value.shape)}")
        return value.view(-1)

    def key(self, state: Tensor) -> Tensor:
        """Map states ``[n, *state]`` to int64 ``[n]``, equal where the states are the same."""
        if self._key is not None:
            return self._key(state)
        if state.dim() != 1 or state.is_floating_point():
            raise UserError(
                f"merge needs key= for states that are not one whole number each, got {state.dtype} "
                f"{list(state.shape)}"
            )
        return state.long()

    def _rewards(self, state: Tensor, told: Any) -> Tensor:
        like = next(self.value_head.parameters(), torch.empty(0))
        if self.reward_head is not None:
            if told is not None:
                raise UserError("rules must return None for rewards that a module learns, got others")
            reward: Tensor = self.reward_head(state)
            name = "reward module"
        else:
            if told is None:
                raise UserError("rules must return rewards if no module learns them, got None")
            name, reward = "rules", self._tensor("rewards", told).to(state.device, like.dtype)
        if reward.shape != (len(state), self.num_actions):
            expected = [len(state), self.num_actions]
            raise UserError(f"{name} must return rewards of shape {expected}, got {list(reward.shape)}")
        return reward

    def _children(self, state: Tensor, told: Any) -> Tensor:
        children = self._tensor("children", told)
        expected = (len(state), self.num_actions, *state.shape[1:])
        if children.shape != expected or children.is_floating_point() != state.is_floating_point():
            raise UserError(
                f"rules must return children like the states, {state.dtype} {list(expected)}, "
                f"got {children.dtype} {list(children.shape)}"
            )
        return children.to(state.device, state.dtype)

    @staticmethod
    def _tensor(name: str, told: Any) -> Tensor:
        try:
            return torch.as_tensor(told)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{name} must be a tensor or a numpy array, got {type(told).__name__}") from error


class TableRules(nn.Module):
    """Rules of a world of S states that are numbered 0 … S − 1, looked up in tables.

    The tables move with the model to its device and are not saved with it.

    Args:
        next_state: ``[S, A]`` whole numbers; anything where the action is invalid.
        reward: ``[S, A]``.
        valid: ``[S, A]`` bool or 0/1; None: every action is.
        terminal: ``[S, A]`` bool or 0/1, whether the action ends the episode; None: none does.
    """

    def __init__(self, next_state: Any, reward: Any, valid: Any = None, terminal: Any = None):
        super().__init__()
        following, rewards = torch.as_tensor(next_state), torch.as_tensor(reward)
        if following.dim() != 2 or following.is_floating_point() or following.dtype == torch.bool:
            raise UserError(
                f"next_state must be whole numbers [S, A], got {following.dtype} {list(following.shape)}"
            )
        if rewards.shape != following.shape:
            raise UserError(f"reward must have shape {list(following.shape)}, got {list(rewards.shape)}")
        there = torch.ones_like(following, dtype=torch.bool)
        if valid is not None:
            there = valid = as_mask(valid, "valid", rewards)
        if terminal is not None:
            terminal = as_mask(terminal, "terminal", rewards)
        inside = (following >= 0) & (following < len(following))
        if bool((there & ~inside).any()):
            wrong = int(following[there & ~inside][0])
            raise UserError(f"next_state must lie in 0..{len(following) - 1}, got {wrong}")
        _check_finite("rewards", rewards, there)
        self.register_buffer("next_state", following.masked_fill(~inside, 0), persistent=False)
        self.register_buffer("reward", rewards.masked_fill(~there, 0).float(), persistent=False)
        self.register_buffer("valid", valid, persistent=False)
        self.register_buffer("terminal", terminal, persistent=False)

    def forward(self, state: Tensor) -> Expansion:
        """Look states ``[B]`` up in the tables."""
        tables = (self.next_state, self.reward, self.valid, self.terminal)
        return Expansion(*(None if t is None else t.index_select(0, state) for t in tables))  # type: ignore

    def check_states(self, state: Tensor) -> None:
        """Refuse states ``[B]`` that the tables do not have."""
        states = len(self.next_state)  # type: ignore[arg-type]
        if state.dim() != 1 or state.is_floating_point() or state.dtype == torch.bool:
            raise UserError(
                f"states of a table must be whole numbers [B], got {state.dtype} {list(state.shape)}"
            )
        if torch.compiler.is_compiling() or not len(state):
            return
        low, high = (int(bound) for bound in state.aminmax())
        if low < 0 or high >= states:
            raise UserError(f"states must lie in 0..{states - 1}, got {low if low < 0 else high}")


class StateMLP(nn.Module):
    """States of a space ``[B, *state]`` -> ``[B]``: flattened (choices one-hot), two hidden layers."""

    def __init__(self, space: gymnasium.Space[Any], hidden: int = 128, scale: float = 1.0):
        super().__init__()
        flatten = Flatten(space)
        self.scale = scale
        self.net = nn.Sequential(
            flatten,
            nn.Linear(flatten.size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, *state]`` to values ``[B]``."""
        value: Tensor = self.net(state)
        return self.scale * value.squeeze(1)


def _to_numpy(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy()
    if isinstance(given, dict):
        return {name: _to_numpy(part) for name, part in given.items()}
    return tuple(_to_numpy(part) for part in given)


def _check_finite(name: str, table: Tensor, valid: Tensor | None) -> None:
    """Refuse NaN and infinity in a table ``[B, A, ...]``, save where an action is invalid."""
    if torch.compiler.is_compiling():
        return
    wrong = ~table.isfinite() if valid is None else ~table.isfinite() & valid
    if bool(wrong.any()):
        row, action, *_ = wrong.nonzero()[0].tolist()
        raise UserError(
            f"{name} must be finite where an action is valid, got {float(table[wrong][0])} "
            f"for action {action} in row {row}"
        )
