"""What an observation space says of its observations, and the vectors that composite spaces are read as."""

from __future__ import annotations

import math
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from dtsn.batch import Observation
from dtsn.config import Channels
from dtsn.errors import UserError

Content = Literal["planes", "frames", "unknown"]
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
BYTE = 255.0  # the largest value of a frame that is to be scaled


def content(space: spaces.Box) -> Content:
    """Return what ``[C, H, W]`` arrays hold, by dtype and bounds: 0/1 planes, frames, or neither for certain.

    Whole numbers in 0..1 are planes. Frames are floats within [−1, 1], or any numbers in 0..255.
    """
    whole = not np.issubdtype(space.dtype, np.floating)
    if whole and _within(space, 0, 1):
        return "planes"
    return "frames" if _within(space, -1, 1) or is_bytes(space) else "unknown"


def is_bytes(space: spaces.Box) -> bool:
    """Tell whether values go up to 255, whatever their dtype."""
    return _within(space, 0, BYTE) and bool((space.high == BYTE).all())


def divisor(space: spaces.Box) -> float | None:
    """Return what frames are divided by; None where bounds do not say, and uint8 is then divided by 255."""
    if is_bytes(space):
        return BYTE
    return 1.0 if _within(space, -1, 1) else None


def has_channels_last(shape: tuple[int, ...], channels: Channels) -> bool:
    """Tell whether arrays are ``[H, W, C]``: by the side that a square leaves over, else the smallest."""
    if channels != "auto":
        return channels == "last"
    first, middle, last = shape
    if first != last:
        if middle == last or first < min(middle, last):
            return False
        if first == middle or last < min(first, middle):
            return True
    raise UserError(
        f"observations of shape {shape} may be [C, H, W] or [H, W, C]: set channels to 'first' or 'last'"
    )


def flat_size(space: gymnasium.Space[Any]) -> int:
    """Return the length of an observation's vector."""
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.Box() | spaces.MultiBinary():
            return math.prod(space.shape)
        case spaces.Dict() | spaces.Tuple():
            return sum(flat_size(part) for _, part in parts(space))
        case _:
            raise UserError(
                "observation_space must be made of Box, Discrete, MultiBinary, MultiDiscrete, Dict and "
                f"Tuple, got {space}: encode its observations first"
            )


def parts(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, gymnasium.Space[Any]]]:
    """List ``(key, space)`` of what a composite space consists of, in Gymnasium's order."""
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


class Flatten(nn.Module):
    """Observations of any space -> vectors ``[B, D]``, in the order of ``gymnasium.spaces.flatten``.

    Choices become one-hot vectors; numbers in 0..255 are scaled to [0, 1].
    """

    def __init__(self, space: gymnasium.Space[Any]):
        super().__init__()
        self.space, self.size = space, flat_size(space)
        self.register_buffer("like", torch.zeros(()), persistent=False)  # the dtype to answer in

    def forward(self, observation: Observation) -> Tensor:
        """Flatten observations with one leading dimension to ``[B, D]``."""
        return self._flat(self.space, observation)

    def _flat(self, space: gymnasium.Space[Any], observation: Any) -> Tensor:
        dtype: torch.dtype = self.like.dtype  # type: ignore[assignment]
        match space:
            case spaces.Discrete():
                return functional.one_hot(observation.long() - int(space.start), int(space.n)).to(dtype)
            case spaces.MultiDiscrete():
                start = torch.as_tensor(space.start, device=observation.device).flatten()
                columns = (observation.flatten(1).long() - start).unbind(1)
                sizes = space.nvec.flatten().tolist()
                one_hot = [functional.one_hot(c, n) for c, n in zip(columns, sizes, strict=True)]
                return torch.cat(one_hot, 1).to(dtype)
            case spaces.Dict() | spaces.Tuple():
                return torch.cat([self._flat(part, observation[key]) for key, part in parts(space)], 1)
            case _:
                flat: Tensor = observation.reshape(observation.shape[0], -1).to(dtype)
                return flat / BYTE if isinstance(space, spaces.Box) and is_bytes(space) else flat


def sample_batch(space: gymnasium.Space[Any], size: int) -> Observation:
    """Draw observations with one leading dimension, to try a module on; leave the space's generator alone."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        found = [(key, sample_batch(part, size)) for key, part in parts(space)]
        return dict(found) if isinstance(space, spaces.Dict) else tuple(part for _, part in found)
    if not isinstance(space, LEAVES):
        raise UserError(f"observation_space {space} is not supported: encode its observations first")
    if isinstance(space, spaces.Box):
        value = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high).astype(space.dtype)
    else:
        value = np.broadcast_to(getattr(space, "start", 0), space.shape).astype(space.dtype)
    return torch.as_tensor(np.repeat(value[None], size, 0))


def check_choices(space: gymnasium.Space[Any], value: Tensor, name: str) -> None:
    """Refuse numbers of Discrete and MultiDiscrete spaces that are not among the choices."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return
    if value.is_floating_point() or value.is_complex():
        raise UserError(f"{name} must be whole numbers of {space}, got {value.dtype}")
    low = torch.as_tensor(space.start, device=value.device)
    high = low + torch.as_tensor(space.n if isinstance(space, spaces.Discrete) else space.nvec).to(low)
    wrong = (value < low) | (value >= high)
    if bool(wrong.any()):
        raise UserError(f"{name} must lie in {space}, got {int(value[wrong][0])}")


def _within(space: spaces.Box, low: float, high: float) -> bool:
    return bool((space.low >= low).all() and (space.high <= high).all())
