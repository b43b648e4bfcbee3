"""All that a search knows of a world model: two methods, and what they may say about ends and masks."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dtsn.errors import UserError


class Expansion(NamedTuple):
    """The children of B nodes by every action, for models that know of invalid actions or of ends.

    A child that is not ``valid`` does not exist: it is never chosen, no leaf, and has no gradient; its
    reward may be anything, its latent anything finite. The value behind a child counts ``1 − terminal``
    times, and one that ends for certain or more likely than not (> ½) is never expanded. Masks may be bool
    or 0/1 integers, tensors or numpy arrays; ``terminal`` may also be probabilities, with a gradient.
    """

    children: Tensor  # [B, A, ...]  latents
    reward: Tensor  # [B, A]
    valid: Tensor | np.ndarray | None = None  # [B, A]  whether the action can be taken; None: all can
    terminal: Tensor | np.ndarray | None = None  # [B, A]  whether the child ends the episode; None: none does


class LatentModel(Protocol):
    """A world model, learned or given. A search expands the root and nodes that are valid and no ends."""

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor] | Expansion:
        """Map latents ``[B, ...]`` to the children by every action ``[B, A, ...]`` and rewards ``[B, A]``."""

    def value(self, latent: Tensor) -> Tensor:
        """Map latents ``[B, ...]`` to values ``[B]``."""


class Children(NamedTuple):
    """An :class:`Expansion` whose masks were checked: tensors beside the rewards."""

    latent: Tensor  # [B, A, ...]
    reward: Tensor  # [B, A]
    valid: Tensor | None  # [B, A] bool
    terminal: Tensor | None  # [B, A] bool, or probabilities

    @property
    def masked(self) -> bool:
        """Whether the model told of invalid actions or of ends."""
        return self.valid is not None or self.terminal is not None


def expand(model: LatentModel, latent: Tensor) -> Children:
    """Return the children of the nodes ``latent [B, ...]``, with masks that can be trusted."""
    expanded = model.expand(latent)
    if not isinstance(expanded, Expansion):
        if len(expanded) != 2:
            raise UserError(
                f"expand must return (children, reward) or an Expansion, got {len(expanded)} values"
            )
        return Children(*expanded, None, None)
    children, reward, valid, terminal = expanded
    if valid is not None:
        valid = as_mask(valid, "valid", reward)
    if terminal is not None:
        terminal = _as_ends(terminal, reward)
    return Children(children, reward, valid, terminal)


def expand_plainly(model: LatentModel, latent: Tensor) -> Children:
    """Return the same for a model that gave no masks at the root."""
    children, reward, *masks = model.expand(latent)
    if masks and any(mask is not None for mask in masks):
        raise UserError("expand must return masks for the root too if it returns any, got none there")
    return Children(children, reward, None, None)


def as_mask(given: Any, name: str, reward: Tensor) -> Tensor:
    """Read a caller's mask as a bool tensor beside ``reward [B, A]``; bool, 0/1 integers, numpy will do."""
    mask = _as_tensor(given)
    expected = f"{name} must be bool (or 0/1 integers) {tuple(reward.shape)} (batch, actions)"
    if mask.shape != reward.shape or mask.is_floating_point() or mask.is_complex():
        raise UserError(f"{expected}, got {mask.dtype} {tuple(mask.shape)}")
    if mask.dtype != torch.bool:
        binary = (mask == 0) | (mask == 1)
        if not torch.compiler.is_compiling() and not bool(binary.all()):
            raise UserError(f"{expected}, got {int(mask[~binary][0])} among them")
        mask = mask != 0
    return mask.to(reward.device)


def _as_ends(given: Any, reward: Tensor) -> Tensor:
    """Read ``terminal`` as a bool tensor or as probabilities beside ``reward [B, A]``."""
    terminal = _as_tensor(given)
    if not terminal.is_floating_point():
        return as_mask(terminal, "terminal", reward)
    if terminal.shape != reward.shape:
        raise UserError(
            f"terminal must have shape {tuple(reward.shape)} (batch, actions), got {tuple(terminal.shape)}"
        )
    return terminal.to(reward.device)


def _as_tensor(mask: Any) -> Tensor:
    if isinstance(mask, Tensor):
        return mask
    try:
        return torch.tensor(np.asarray(mask))
    except TypeError as error:
        raise UserError(f"a mask must be a tensor or a numpy array of numbers, got {mask!r}") from error


def check_probabilities(terminal: Tensor) -> None:
    """Refuse probabilities outside [0, 1], once for a whole table. NaN shows in the Q-values."""
    if terminal.dtype == torch.bool or torch.compiler.is_compiling():
        return
    low, high = (float(bound) for bound in terminal.detach().aminmax())
    if low < 0 or high > 1:
        raise UserError(
            f"terminal must be bool, 0/1 integers or probabilities in [0, 1], got {low if low < 0 else high}"
        )
