"""What a caller may hand to a search: one clear error for everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtsn.errors import UserError
from dtsn.search.model import Children, as_mask


def check_latent(root: Tensor) -> None:
    """Refuse a root that is no batch of latents."""
    if root.is_complex() or root.dim() < (2 if root.is_floating_point() else 1):
        raise UserError(
            "root must be floating-point latents [B, ...] or states of whole numbers [B] or [B, ...], "
            f"got {root.dtype} {tuple(root.shape)}"
        )
    if root.shape[0] == 0:
        raise UserError(f"root must hold at least one row, got shape {tuple(root.shape)}")


def checked_number(name: str, value: Any, low: float, high: float, wanted: str) -> float:
    """Return an option that must be a plain number in [low, high]: gradients do not flow into it."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise UserError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not low <= float(value) <= high:
        raise UserError(f"{name} must {wanted}, got {value}")
    return float(value)


def checked_discount(discount: Any) -> float:
    """Return γ as a plain number."""
    return checked_number("discount", discount, 0, 1, "lie in [0, 1]")


def checked_count(name: str, value: Any) -> int:
    """Return an option that must be a whole number of at least 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise UserError(f"{name} must be a whole number, got {value!r} of type {type(value).__name__}")
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {value}")
    return int(value)


def check_uniforms(uniforms: Tensor | None, batch: int, iterations: int) -> None:
    """Refuse uniforms that are not one number in [0, 1) per row and iteration."""
    if uniforms is None:
        return
    if uniforms.shape != (batch, iterations):
        expected = (batch, iterations)
        raise UserError(
            f"uniforms must have shape {expected} (batch, iterations), got {tuple(uniforms.shape)}"
        )
    if torch.compiler.is_compiling():
        return  # numbers cannot be looked at in a compiled search
    if not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        raise UserError("uniforms must lie in [0, 1), got others or NaN")


def root_mask(invalid_actions: Any, root: Children) -> Tensor | None:
    """Return the actions ``[B, A]`` that caller and model leave valid at the root; None: all of them."""
    valid = root.valid
    if invalid_actions is not None:
        allowed = ~as_mask(invalid_actions, "invalid_actions", root.reward)
        valid = allowed if valid is None else valid & allowed
    if valid is None or torch.compiler.is_compiling():
        return valid
    if invalid_actions is not None:
        check_open(~valid)
    elif not bool(valid.any(1).all()):
        row = int((~valid.any(1)).nonzero()[0])
        raise UserError(f"the model must leave a valid action at the root, got none in row {row}")
    return valid


def check_open(closed: Tensor | None) -> None:
    """Refuse masks ``[B, A]`` of actions that are closed which leave a row none."""
    if closed is not None and bool((stuck := closed.all(1)).any()):
        raise UserError(f"invalid_actions leaves no action open in row {int(stuck.nonzero()[0])}")
