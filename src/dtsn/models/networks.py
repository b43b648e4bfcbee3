"""Encoders, transitions and heads: plain modules for vector ``[B, D]`` and map ``[B, C, H, W]`` latents.

Every module that takes an action answers for *all* actions at once. With a one-hot action,
``W [h; onehot(a)] = W_h h + b_a``: the first layer runs on B rows, not on B·A.
"""

from __future__ import annotations

import math
from typing import get_args

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dtsn.config import EncoderName, NetworkConfig
from dtsn.models.path_encoder import PathEncoder
from dtsn.models.world_model import WorldModel


def make_world_model(
    observation_space: gymnasium.Space[np.ndarray], num_actions: int, config: NetworkConfig
) -> WorldModel:
    """The world model for an observation space: encoder by ``config``, heads to match its latents."""
    if not isinstance(observation_space, gymnasium.spaces.Box):
        raise ValueError(
            f"observation_space must be a Box, got {observation_space}: flatten or encode it first"
        )
    shape = observation_space.shape
    encoder = make_encoder(observation_space, config)
    if config.spatial:
        size = (shape[1], shape[2])
        return WorldModel(
            encoder,
            MapTransition(config.latent, num_actions, config.hidden),
            MapHead(config.latent, size, config.hidden, num_actions),
            MapHead(config.latent, size, config.hidden, scale=config.value_scale),
            num_actions,
        )
    return WorldModel(
        encoder,
        ActionMLP(config.latent, config.hidden, num_actions, config.latent),
        ActionMLP(config.latent, config.hidden, num_actions),
        ValueMLP(config.latent, config.hidden, config.value_scale),
        num_actions,
    )


def make_encoder(space: gymnasium.spaces.Box, config: NetworkConfig) -> nn.Module:
    """The encoder ``config`` names; ``auto`` goes by the observations."""
    encoder = _encoder(space, config)
    return LowPrecision(encoder) if config.precision == "bfloat16" else encoder


def _encoder(space: gymnasium.spaces.Box, config: NetworkConfig) -> nn.Module:
    shape, name = space.shape, config.encoder
    if not math.prod(shape):
        raise ValueError(f"observations of shape {shape} are empty")
    frames = len(shape) == 3
    binary = frames and bool((space.high <= 1).all())
    if name == "auto":
        name = "mlp" if len(shape) == 1 else "grid" if binary else "impala"
    if (len(shape) != 1) if name == "mlp" else not frames:
        kind = "vectors [D]" if name == "mlp" else "planes [C, H, W]"
        raise ValueError(f"encoder {name!r} reads {kind}, but observations have shape {shape}")
    if frames and not binary and shape[-1] <= 4 < shape[0]:
        raise ValueError(f"observations {shape} look like [H, W, C]: transpose them to [C, H, W] first")
    if config.spatial and name != "grid":
        raise ValueError(f"spatial latents need the grid encoder, got {name!r}")
    match name:
        case "mlp":
            return VectorEncoder(shape[0], config.hidden, config.latent)
        case "grid" if config.spatial:
            return MapEncoder(shape[0], config.hidden, config.latent)
        case "grid":
            return GridEncoder(shape, config.hidden, config.latent, config.readout)
        case "paths":
            return PathEncoder(shape, config.hidden, config.latent)
        case "nature":
            return NatureEncoder(shape, config.latent)
        case "impala":
            return ImpalaEncoder(shape, config.latent)
        case "impala_fast":
            return ImpalaEncoder(shape, config.latent, stride=2)
        case _:
            raise ValueError(f"unknown encoder {name!r}; choose from {', '.join(get_args(EncoderName))}")


# --- vector latents ----------------------------------------------------------------------------------


class VectorEncoder(nn.Module):
    """Observations ``[B, D] -> [B, latent]``."""

    def __init__(self, size: int, hidden: int, latent: int):
        super().__init__()
        self.first, self.last = nn.Linear(size, hidden), nn.Linear(hidden, latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Vectors ``[B, D]`` -> ``u [B, latent]``."""
        out: Tensor = self.last(torch.relu(self.first(observation.to(self.first.weight.dtype))))
        return out


class ActionMLP(nn.Module):
    """``[B, D] -> [B, A, out]`` or ``[B, A]``: a two-layer net of (h, a) whose first layer runs on B rows."""

    def __init__(self, latent: int, hidden: int, num_actions: int, out: int | None = None):
        super().__init__()
        first = nn.Linear(latent + num_actions, hidden)  # initialised as the one-hot layer that it stands for
        self.weight = nn.Parameter(first.weight.detach()[:, :latent].clone())
        action_bias = first.weight.detach()[:, latent:].T + first.bias.detach()
        self.action_bias = nn.Parameter(action_bias.contiguous())  # [A, hidden]
        self.last = nn.Linear(hidden, out or 1)
        self.scalar = out is None

    def forward(self, state: Tensor) -> Tensor:
        """States ``[B, D]`` -> ``[B, A, out]``, or ``[B, A]`` for a scalar."""
        shared = functional.linear(state, self.weight)  # [B, hidden]
        mixed = (shared.unsqueeze(1) + self.action_bias).relu_()  # [B, A, hidden]
        # As a matrix: the bias joins the product, which it does not for three dimensions.
        out: Tensor = self.last(mixed.flatten(0, 1))
        return out.view(mixed.shape[:2]) if self.scalar else out.view(*mixed.shape[:2], -1)


class ValueMLP(nn.Module):
    """``[B, D] -> [B]``."""

    def __init__(self, latent: int, hidden: int, scale: float):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(latent, hidden), nn.Linear(hidden, 1), scale

    def forward(self, state: Tensor) -> Tensor:
        """States ``[B, D]`` -> values ``[B]``."""
        value: Tensor = self.last(self.first(state).relu_()).squeeze(-1)
        return value if self.scale == 1 else value * self.scale


class GridEncoder(nn.Module):
    """0/1 planes ``[B, C, H, W] -> [B, latent]``, by what is where instead of by flattening.

    Convolutions see each cell's neighbourhood and coordinate channels say where it is. Every cell speaks to
    a global maximum. With ``readout``, a plane with a single mark (a robot, a goal) *points*: the features
    at its cell are read, and the cells speak a second time having heard all that, so that one can say
    "I am an exit on the way from this robot to that goal".
    """

    def __init__(self, shape: tuple[int, ...], hidden: int, latent: int, readout: bool):
        super().__init__()
        planes, height, width = shape
        if hidden < 8:
            raise ValueError(f"hidden must be at least 8 for the grid encoder, got {hidden}")
        narrow, wide = hidden // 8, hidden // 4
        self.conv1 = nn.Conv2d(planes + 2, narrow, 3, padding=1)
        self.conv2 = nn.Conv2d(narrow, wide, 3, padding=1)
        self.conv3 = nn.Conv2d(wide, 2 * wide, 3, stride=2, padding=1)
        self.speak = nn.Conv2d(2 * wide + 2, hidden, 1)
        self.readout = readout
        known = hidden
        if readout:
            known += planes * (narrow + wide + 2)
            self.cell = nn.Conv2d(2 * wide + 2, hidden // 2, 1)
            self.hear = nn.Linear(known, hidden // 2)
            self.answer = nn.Conv2d(hidden // 2, hidden, 1)
        self.last = nn.Sequential(
            nn.Linear(known + hidden * readout, hidden), nn.ReLU(), nn.Linear(hidden, latent)
        )
        self.register_buffer("fine", coordinates(height, width), persistent=False)
        self.register_buffer("coarse", coordinates(-(-height // 2), -(-width // 2)), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        """Planes ``[B, C, H, W]`` -> ``u [B, latent]``."""
        fine, coarse = (c.expand(len(observation), -1, -1, -1) for c in (self.fine, self.coarse))  # type: ignore[operator]
        planes = observation.to(fine.dtype)
        # Channels last is the layout in which these narrow convolutions are fastest on a CPU.
        inputs = torch.cat([planes, fine], 1).contiguous(memory_format=torch.channels_last)
        near = torch.relu(self.conv1(inputs))
        far = torch.relu(self.conv2(near))
        cells = torch.relu(self.conv3(far))
        cells = torch.cat([cells, coarse.to(cells.dtype)], 1)
        known = [_peak(self.speak(cells))]  # [B, hidden]
        if self.readout:
            known.append(_read(planes, torch.cat([near, far, fine.to(far.dtype)], 1)))
            heard = self.hear(torch.cat(known, 1))[:, :, None, None]
            known.append(_peak(self.answer(torch.relu(self.cell(cells) + heard))))
        out: Tensor = self.last(torch.cat(known, 1))
        return out


def _peak(maps: Tensor) -> Tensor:
    """``[B, C, H, W] -> [B, C]``: the rectified maximum over cells."""
    return torch.relu(maps.flatten(2).max(2).values)


def _read(planes: Tensor, features: Tensor) -> Tensor:
    """Features ``[B, F, H, W]`` at each plane's mark -> ``[B, F·C]``; 0 for a plane without a single mark."""
    marks = planes.flatten(2)  # [B, C, H·W]
    points = marks.sum(2) == 1
    where = marks.argmax(2)[:, None].expand(-1, features.shape[1], -1)  # [B, F, C]
    read = features.flatten(2).gather(2, where) * points[:, None]
    return read.flatten(1)


class LowPrecision(nn.Module):
    """An encoder run in bfloat16; what comes out is in full precision again, and so is the search."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, observation: Tensor) -> Tensor:
        """Observations -> ``u`` in the parameters' precision."""
        with torch.autocast(observation.device.type, torch.bfloat16):
            latent: Tensor = self.encoder(observation)
        return latent.to(next(self.parameters()).dtype)


# --- map latents -------------------------------------------------------------------------------------


class MapEncoder(nn.Module):
    """0/1 planes ``[B, C, H, W] -> [B, latent, H, W]``: two residual convolution blocks."""

    def __init__(self, planes: int, hidden: int, latent: int):
        super().__init__()
        self.first = nn.Conv2d(planes, latent, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(latent, hidden, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(hidden, latent, 3, padding=1),
            )
            for _ in range(2)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Planes ``[B, C, H, W]`` -> ``u [B, latent, H, W]``."""
        maps: Tensor = self.first(observation.to(self.first.weight.dtype))
        for block in self.blocks:
            maps = maps + block(maps)
        return maps


class MapTransition(nn.Module):
    """``[B, C, H, W] -> [B, A, C, H, W]``: a convolution shared by actions, a bias each, a convolution."""

    def __init__(self, channels: int, num_actions: int, hidden: int):
        super().__init__()
        self.shared = nn.Conv2d(channels, hidden, 3, padding=1)
        self.action_bias = nn.Parameter(torch.randn(num_actions, hidden) / math.sqrt(num_actions))
        self.last = nn.Conv2d(hidden, channels, 3, padding=1)

    def forward(self, state: Tensor) -> Tensor:
        """States ``[B, C, H, W]`` -> changes ``[B, A, C, H, W]``."""
        mixed = torch.relu(self.shared(state).unsqueeze(1) + self.action_bias[:, :, None, None])
        return self.last(mixed.flatten(0, 1)).unflatten(0, mixed.shape[:2])  # type: ignore[no-any-return]


class MapHead(nn.Module):
    """``[B, C, H, W] -> [B, out]`` (or ``[B]``): 1×1 convolution with coordinates, global maximum, linear."""

    def __init__(
        self, channels: int, size: tuple[int, int], hidden: int, out: int | None = None, scale: float = 1.0
    ):
        super().__init__()
        self.cells = nn.Conv2d(channels + 2, hidden, 1)
        self.last = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out or 1))
        self.scalar, self.scale = out is None, scale
        self.register_buffer("coordinates", coordinates(*size), persistent=False)

    def forward(self, state: Tensor) -> Tensor:
        """States ``[B, C, H, W]`` -> ``[B, out]``, or ``[B]`` for a scalar."""
        where = self.coordinates.to(state.dtype).expand(len(state), -1, -1, -1)  # type: ignore[operator]
        pooled = torch.relu(self.cells(torch.cat([state, where], 1))).amax((2, 3))
        out: Tensor = self.last(pooled) * self.scale
        return out.squeeze(-1) if self.scalar else out


def coordinates(height: int, width: int) -> Tensor:
    """``[2, H, W]`` row and column of every cell, from −1 to 1."""
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))


# --- frames ------------------------------------------------------------------------------------------


class NatureEncoder(nn.Module):
    """Frames ``[B, C, H, W]`` uint8 -> ``[B, latent]``: three strided convolutions, for small machines."""

    def __init__(self, shape: tuple[int, ...], latent: int):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(shape[0], 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.last = nn.Linear(_features(self.trunk, shape), latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Frames ``[B, C, H, W]`` -> ``u [B, latent]``."""
        out: Tensor = self.last(self.trunk(_unit(observation, self.last.weight.dtype)))
        return out


class ImpalaEncoder(nn.Module):
    """Frames ``[B, C, H, W]`` uint8 -> ``[B, latent]``: the residual network of IMPALA, no batch norm.

    ``stride`` is that of the first convolution; with 2, all that follows is a quarter of the work.
    """

    def __init__(
        self, shape: tuple[int, ...], latent: int, widths: tuple[int, ...] = (16, 32, 32), stride: int = 1
    ):
        super().__init__()
        layers: list[nn.Module] = []
        channels = shape[0]
        for number, width in enumerate(widths):
            layers += [
                nn.Conv2d(channels, width, 3, stride=1 if number else stride, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _Residual(width),
                _Residual(width),
            ]
            channels = width
        self.trunk = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(_features(self.trunk, shape), latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Frames ``[B, C, H, W]`` -> ``u [B, latent]``."""
        frames = _unit(observation, self.last.weight.dtype)
        # The layout in which these convolutions are fastest on a CPU, by far when acting.
        out: Tensor = self.last(self.trunk(frames.contiguous(memory_format=torch.channels_last)))
        return out


class _Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(torch.relu(self.conv1(torch.relu(x))))
        return out


def _unit(observation: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes to [0, 1]; floating-point frames are taken as they are."""
    return observation.to(dtype) / 255 if observation.dtype == torch.uint8 else observation.to(dtype)


def _features(trunk: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features a trunk makes of frames of this shape."""
    with torch.no_grad():
        try:
            return int(trunk(torch.zeros(1, *shape)).shape[1])
        except RuntimeError as error:
            raise ValueError(f"frames of shape {shape} are too small for this encoder") from error
