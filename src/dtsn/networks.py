"""Encoders, transitions and heads: plain modules for vector ``[B, D]`` and map ``[B, C, H, W]`` latents.

Every module that takes an action answers for *all* actions at once. With a one-hot action,
``W [h; onehot(a)] = W_h h + b_a``: the first layer runs on B rows, not on B·A.
"""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dtsn.config import NetworkConfig
from dtsn.world_model import WorldModel


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
    shape, name = space.shape, config.encoder
    frames = len(shape) == 3
    if name == "auto":
        binary = frames and bool((space.high <= 1).all())
        name = "mlp" if len(shape) == 1 else "grid" if binary else "impala"
    if frames != (name != "mlp"):
        kind = "vectors [D]" if name == "mlp" else "planes [C, H, W]"
        raise ValueError(f"encoder {name!r} reads {kind}, but observations have shape {shape}")
    if frames and shape[-1] <= 4 < shape[0]:
        raise ValueError(f"observations {shape} look like [H, W, C]: transpose them to [C, H, W] first")
    if config.spatial and name != "grid":
        raise ValueError(f"spatial latents need the grid encoder, got {name!r}")
    match name:
        case "mlp":
            return nn.Sequential(
                nn.Linear(shape[0], config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.latent)
            )
        case "grid" if config.spatial:
            return MapEncoder(shape[0], config.hidden, config.latent)
        case "grid":
            return GridEncoder(shape, config.hidden, config.latent, config.rounds)
        case "nature":
            return NatureEncoder(shape, config.latent)
        case "impala":
            return ImpalaEncoder(shape, config.latent)
        case _:
            raise ValueError(f"unknown encoder {name!r}; choose auto, mlp, grid, nature or impala")


# --- vector latents ----------------------------------------------------------------------------------


class ActionMLP(nn.Module):
    """``[B, D] -> [B, A, out]`` or ``[B, A]``: a two-layer net of (h, a) whose first layer runs on B rows."""

    def __init__(self, latent: int, hidden: int, num_actions: int, out: int | None = None):
        super().__init__()
        first = nn.Linear(latent + num_actions, hidden)  # initialised as the one-hot layer that it stands for
        self.weight = nn.Parameter(first.weight.detach()[:, :latent].clone())
        action_bias = first.weight.detach()[:, latent:].T + first.bias.detach()
        self.action_bias = nn.Parameter(action_bias.clone())  # [A, hidden]
        self.last = nn.Linear(hidden, out or 1)
        self.scalar = out is None

    def forward(self, state: Tensor) -> Tensor:
        """States ``[B, D]`` -> ``[B, A, out]``, or ``[B, A]`` for a scalar."""
        shared = functional.linear(state, self.weight)  # [B, hidden]
        out: Tensor = self.last(torch.relu(shared.unsqueeze(1) + self.action_bias))
        return out.squeeze(-1) if self.scalar else out


class ValueMLP(nn.Module):
    """``[B, D] -> [B]``."""

    def __init__(self, latent: int, hidden: int, scale: float):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(latent, hidden), nn.Linear(hidden, 1), scale

    def forward(self, state: Tensor) -> Tensor:
        """States ``[B, D]`` -> values ``[B]``."""
        value: Tensor = self.last(torch.relu(self.first(state)))
        return value.squeeze(-1) * self.scale


class GridEncoder(nn.Module):
    """0/1 planes ``[B, C, H, W] -> [B, latent]``, by what is where instead of by flattening.

    Two 3×3 convolutions see each cell's neighbourhood and coordinate channels say where it is. In each
    round every cell speaks to a global maximum and, from the second round on, has heard the last one:
    so a cell can answer "I am an exit *on the way from this robot to that goal*".
    """

    def __init__(self, shape: tuple[int, ...], hidden: int, latent: int, rounds: int):
        super().__init__()
        planes, height, width = shape
        self.conv1 = nn.Conv2d(planes + 2, hidden // 2, 3, padding=1)
        self.conv2 = nn.Conv2d(hidden // 2, hidden // 2, 3, padding=1)
        self.speak = nn.ModuleList(nn.Linear(hidden // 2 + 2, hidden) for _ in range(rounds))
        self.hear = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(rounds - 1))
        self.last = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.register_buffer("coordinates", coordinates(height, width), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        """Planes ``[B, C, H, W]`` -> ``u [B, latent]``."""
        where = self.coordinates.expand(len(observation), -1, -1, -1)  # type: ignore[operator]
        planes = torch.cat([observation.to(where.dtype), where], 1)
        cells = torch.relu(self.conv2(torch.relu(self.conv1(planes))))
        cells = torch.cat([cells, where], 1).flatten(2).transpose(1, 2)  # [B, H·W, hidden/2 + 2]
        summary = torch.relu(self.speak[0](cells)).amax(1)  # [B, hidden]
        for hear, speak in zip(self.hear, list(self.speak)[1:], strict=True):
            summary = summary + torch.relu(speak(cells) + hear(summary).unsqueeze(1)).amax(1)
        out: Tensor = self.last(summary)
        return out


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
    """Frames ``[B, C, H, W]`` uint8 -> ``[B, latent]``: the residual network of IMPALA, no batch norm."""

    def __init__(self, shape: tuple[int, ...], latent: int, widths: tuple[int, ...] = (16, 32, 32)):
        super().__init__()
        layers: list[nn.Module] = []
        channels = shape[0]
        for width in widths:
            layers += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _Residual(width),
                _Residual(width),
            ]
            channels = width
        self.trunk = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(_features(self.trunk, shape), latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Frames ``[B, C, H, W]`` -> ``u [B, latent]``."""
        out: Tensor = self.last(self.trunk(_unit(observation, self.last.weight.dtype)))
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
