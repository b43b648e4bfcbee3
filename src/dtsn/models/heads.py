"""Transitions and heads: plain modules for vector ``[B, D]`` and map ``[B, C, H, W]`` latents.

Every module that takes an action answers for *all* actions at once. With a one-hot action,
``W [h; onehot(a)] = W_h h + b_a``: the first layer runs on B rows, not on B·A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dtsn.models.encoders import coordinates


class ActionMLP(nn.Module):
    """``[B, D] -> [B, A, out]``: a two-layer net of (h, a) whose first layer runs on B rows."""

    def __init__(self, latent: int, hidden: int, num_actions: int, out: int):
        super().__init__()
        first = nn.Linear(latent + num_actions, hidden)  # initialised as the one-hot layer that it stands for
        self.weight = nn.Parameter(first.weight.detach()[:, :latent].clone())
        action_bias = first.weight.detach()[:, latent:].T + first.bias.detach()
        self.action_bias = nn.Parameter(action_bias.contiguous())  # [A, hidden]
        self.last = nn.Linear(hidden, out)

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, D]`` to ``[B, A, out]``."""
        shared = functional.linear(state, self.weight)  # [B, hidden]
        mixed = (shared.unsqueeze(1) + self.action_bias).relu_()  # [B, A, hidden]
        # As a matrix: the bias joins the product, which it does not for three dimensions.
        out: Tensor = self.last(mixed.flatten(0, 1))
        return out.view(*mixed.shape[:2], -1)


class RewardMLP(nn.Module):
    """``[B, D] -> [B, A]``: one hidden layer that all actions share, so that all of it runs on B rows."""

    def __init__(self, latent: int, hidden: int, num_actions: int):
        super().__init__()
        self.first, self.last = nn.Linear(latent, hidden), nn.Linear(hidden, num_actions)

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, D]`` to rewards ``[B, A]``."""
        reward: Tensor = self.last(self.first(state).relu_())
        return reward


class ValueMLP(nn.Module):
    """``[B, D] -> [B]``."""

    def __init__(self, latent: int, hidden: int, scale: float):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(latent, hidden), nn.Linear(hidden, 1), scale

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, D]`` to values ``[B]``."""
        value: Tensor = self.last(self.first(state).relu_()).squeeze(-1)
        return value if self.scale == 1 else value * self.scale


class MapTransition(nn.Module):
    """``[B, C, H, W] -> [B, A, C, H, W]``: a convolution shared by actions, a bias each, a convolution."""

    def __init__(self, channels: int, num_actions: int, hidden: int):
        super().__init__()
        self.shared = nn.Conv2d(channels, hidden, 3, padding=1)
        self.action_bias = nn.Parameter(torch.randn(num_actions, hidden) / math.sqrt(num_actions))
        self.last = nn.Conv2d(hidden, channels, 3, padding=1)

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, C, H, W]`` to changes ``[B, A, C, H, W]``."""
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
        """Map states ``[B, C, H, W]`` to ``[B, out]``, or ``[B]`` for a scalar."""
        where = self.coordinates.to(state.dtype).expand(state.shape[0], -1, -1, -1)  # type: ignore[operator]
        pooled = torch.relu(self.cells(torch.cat([state, where], 1))).amax((2, 3))
        out: Tensor = self.last(pooled) * self.scale
        return out.squeeze(-1) if self.scalar else out
