"""The boundary of a solver: observations, masks and random numbers as checked tensors ``[B, ...]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from dtsn.batch import Observation
from dtsn.errors import UserError
from dtsn.models.spaces import check_choices, parts


def read_rows(
    observation: Any,
    space: gymnasium.Space[Any] | None,
    shape: tuple[int, ...] | None,
    like: Tensor,
    name: str = "observation",
    unused: Tensor | None = None,
) -> tuple[Observation, tuple[int, ...]]:
    """Read observations as rows ``[B, ...]``; return them with the leading dimensions that they came with.

    ``shape`` is that of one observation; without it, the first dimension is taken as the batch. Floats get
    the dtype of ``like``, and everything its device. Rows that are ``unused [...]`` may hold any number.
    """
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return _read_parts(observation, space, like, name, unused)
    try:
        tensor = as_tensor(observation, like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(observation).__name__
        raise UserError(f"{name} must be a batch of arrays, got {kind}: {error}") from error
    leading = 1 if shape is None else tensor.dim() - len(shape)
    lead = tuple(tensor.shape[: max(0, leading)])
    fits = tensor.dim() >= 2 if shape is None else leading >= 0 and tensor.shape[leading:] == shape
    if not fits or not tensor.numel():
        expected = "[B, ...]" if shape is None else f"[{', '.join(['B', *map(str, shape)])}]"
        raise UserError(f"{name} must have shape {expected} with B > 0, got {list(tensor.shape)}")
    if len(lead) != 1:
        tensor = tensor.reshape(-1, *tensor.shape[leading:])
    if tensor.is_complex():
        raise UserError(f"{name} must be real numbers, got {tensor.dtype}")
    if tensor.is_floating_point():
        tensor = tensor.to(like.dtype)  # a finite float64 can be infinite in float32
        if unused is not None and unused.numel() == tensor.shape[0]:
            tensor = tensor.masked_fill(unused.reshape(-1, *[1] * (tensor.dim() - 1)), 0)
        # A finite sum proves all entries finite, in one operation; only an overflow needs the closer look.
        if not math.isfinite(tensor.detach().sum()) and not bool(tensor.isfinite().all()):
            row = int((~tensor.isfinite()).reshape(tensor.shape[0], -1).any(1).nonzero()[0])
            raise UserError(f"{name} {row} of the batch has NaN or infinite entries")
    if space is not None:
        check_choices(space, tensor, name)
    return tensor, lead


def as_tensor(array: Any, device: torch.device) -> Tensor:
    """Return an array as a tensor; one that torch cannot share (flipped, read-only, big-endian) is copied."""
    if isinstance(array, np.ndarray):
        shared = array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
        array = array if shared else np.array(array, array.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(array, device=device)


def read_batch(
    observation: Any,
    space: gymnasium.Space[Any] | None,
    shape: tuple[int, ...] | None,
    like: Tensor,
    name: str = "observation",
    unused: Tensor | None = None,
) -> tuple[Observation, tuple[int, ...]]:
    """Read observations that must come as a batch ``[B, ...]``, with one leading dimension."""
    rows, lead = read_rows(observation, space, shape, like, name, unused)
    if len(lead) != 1:
        inner = "..." if shape is None else ", ".join(map(str, shape))
        raise UserError(f"{name} must have shape [B, {inner}] with B > 0, got {[*lead, *(shape or ())]}")
    return rows, lead


def _read_parts(
    observation: Any,
    space: gymnasium.spaces.Dict | gymnasium.spaces.Tuple,
    like: Tensor,
    name: str,
    unused: Tensor | None,
) -> tuple[Observation, tuple[int, ...]]:
    expected = [key for key, _ in parts(space)]
    kind = Mapping if isinstance(space, gymnasium.spaces.Dict) else tuple
    given = list(observation) if isinstance(observation, Mapping) else list(range(len(expected)))
    if not isinstance(observation, kind) or set(given) != set(expected) or len(observation) != len(expected):
        what = f"a dict of {expected}" if kind is Mapping else f"a tuple of {len(expected)}"
        got = given if isinstance(observation, Mapping) else type(observation).__name__
        raise UserError(f"{name} must be {what}, got {got}")
    found = {
        key: read_rows(observation[key], part, part.shape, like, f"{name}[{key!r}]", unused)
        for key, part in parts(space)
    }
    leads = {lead for _, lead in found.values()}
    if len(leads) != 1:
        raise UserError(f"{name} must have equally many rows in every part, got {sorted(leads)}")
    rows = {key: part for key, (part, _) in found.items()}
    return rows if kind is Mapping else tuple(rows.values()), leads.pop()


def read_mask(mask: Any, lead: tuple[int, ...], actions: int, device: torch.device) -> Tensor | None:
    """Read ``invalid_actions`` ``[..., A]`` of bools or 0/1 integers as bool ``[B, A]``."""
    if mask is None:
        return None
    tensor = torch.as_tensor(mask, device=device)
    if tensor.shape != (*lead, actions) or tensor.is_floating_point() or tensor.is_complex():
        raise UserError(
            f"invalid_actions must be bool {(*lead, actions)} (batch, actions), "
            f"got {tensor.dtype} {tuple(tensor.shape)}"
        )
    if tensor.dtype != torch.bool and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise UserError(f"invalid_actions of {tensor.dtype} must be 0 or 1, got others")
    return tensor.bool().reshape(-1, actions)


def read_uniforms(uniforms: Any, lead: tuple[int, ...], iterations: int) -> Tensor | None:
    """Read ``uniforms`` with the observations' leading dimensions as ``[B, T]``."""
    if uniforms is None:
        return None
    tensor = torch.as_tensor(uniforms)
    if tensor.shape != (*lead, iterations):
        raise UserError(
            f"uniforms must have shape {(*lead, iterations)} (batch, iterations), got {tuple(tensor.shape)}"
        )
    return tensor.reshape(-1, iterations)
