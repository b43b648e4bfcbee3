"""World models whose latents are maps: walls around the robot and the way to the goal, moved by convolutions.

For 0/1 planes of walls, goal and robot, as Navigation has them. A latent ``u [B, K² + 2]`` is a map of K × K
cells centred on the robot, and the goal's offset in cells (row, column). The map is squashed, the offset not.

What is built in: the three planes' meaning; that off the grid is wall; that a move does the same everywhere
(a convolution for the map, a vector for the offset); that a reward depends on the cell entered alone, so the
actions' directions; that a value depends on the eight cells around and the goal's offset, and an end on the
offset. Not built in: what a move does, what walls and steps cost, where episodes end, and any path through
the map: no module looks farther than one cell, so that what lies behind is left to the search.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dtsn.batch import Observation, Part
from dtsn.models.world_model import WorldModel

WALLS, GOAL, ROBOT = 0, 1, 2  # planes of an observation
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (row, column) of each action: the cell that it enters
CROP = 11  # K: cells of the map's sides
AROUND = tuple((row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0))
FAR = 10.0  # cells: what the value and the transition count offsets in
GAIN, LARGEST = 40.0, 6.0  # reward = symexp(GAIN · y) with |GAIN · y| ≤ LARGEST: from −402 to 402


class EgocentricEncoder(nn.Module):
    """Planes ``[B, C, H, W]`` -> ``u [B, K² + 2]``: the walls around the robot, and the goal's offset.

    Walls become ``gain · wall + bias``, both learned.
    """

    window: Tensor  # [K²]

    def __init__(self, size: tuple[int, int], crop: int = CROP):
        super().__init__()
        self.size, self.margin = size, crop // 2
        self.gain, self.bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(0.0))
        side = torch.arange(crop)
        window = side[:, None] * (size[1] + 2 * self.margin) + side  # of a robot in the upper left corner
        self.register_buffer("window", window.flatten(), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        """Map planes ``[B, C, H, W]`` to ``u [B, K² + 2]``."""
        width = self.size[1]
        walls = observation[:, WALLS].to(self.gain.dtype)
        robot, goal = (observation[:, plane].flatten(1).float().argmax(1) for plane in (ROBOT, GOAL))
        rows, columns = robot // width, robot % width
        padded = functional.pad(walls, 4 * (self.margin,), value=1.0).flatten(1)
        start = rows * (width + 2 * self.margin) + columns  # [B] of the window
        crop = padded.gather(1, start[:, None] + self.window)
        offset = torch.stack([goal // width - rows, goal % width - columns], 1).to(crop.dtype)
        return torch.cat([self.gain * crop + self.bias, offset], 1)


class MoveTransition(nn.Module):
    """``h [B, K² + 2] -> [B, A, K² + 2]``: a 3 × 3 convolution of the map, a step of the offset by action.

    The convolution runs as a product with a matrix, which is faster for small maps; the matrix is linear in
    the nine weights, so that making it costs little.
    """

    taps: Tensor  # [9, K⁴]  which cells each of the nine weights joins

    def __init__(self, num_actions: int, crop: int = CROP):
        super().__init__()
        self.weight = nn.Parameter(0.003 * torch.randn(num_actions, 9))
        self.bias = nn.Parameter(torch.zeros(num_actions))
        self.step = nn.Parameter(0.01 * torch.randn(num_actions, 2))
        cells = torch.eye(crop**2).view(-1, 1, crop, crop)
        taps = functional.conv2d(cells, torch.eye(9).view(9, 1, 3, 3), padding=1)  # [K², 9, K, K]
        self.register_buffer("taps", taps.transpose(0, 1).reshape(9, -1).contiguous(), persistent=False)

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, K² + 2]`` to changes ``[B, A, K² + 2]``."""
        actions, cells = len(self.weight), state.shape[1] - 2
        matrix = (8 * self.weight @ self.taps).view(actions, cells, cells)
        around = state[:, :cells].expand(actions, -1, -1)
        moved = torch.baddbmm((8 * self.bias).view(-1, 1, 1), around, matrix)  # [A, B, K²]
        step = (FAR * self.step).expand(state.shape[0], -1, -1)  # [B, A, 2]
        return torch.cat([moved.transpose(0, 1), step], 2)


class EnteredCellReward(nn.Module):
    """``h [B, K² + 2] -> [B, A]``: a function of the cell that an action enters, about −1 at first."""

    entered: Tensor  # [A]

    def __init__(self, moves: tuple[tuple[int, int], ...] = MOVES, crop: int = CROP):
        super().__init__()
        self.net = _mlp(1, 16, 1)
        _start_at(self.net, -math.log(2) / GAIN, 0.1)
        self.register_buffer("entered", _cells(moves, crop), persistent=False)

    def forward(self, state: Tensor) -> Tensor:
        """Map states ``[B, K² + 2]`` to rewards ``[B, A]``."""
        out: Tensor = GAIN * self.net(state[:, self.entered, None]).squeeze(2)
        return out.sign() * out.abs().clamp(max=LARGEST).expm1()


class AdditiveValue(nn.Module):
    """Eight cells around ``[B, 8]`` and the goal's offset ``[B, 2]`` -> ``[B]``: f(offset) + g(cells).

    A view that was never seen is then worth little for every goal, and g has 2⁸ views to learn.
    """

    def __init__(self, hidden: int, scale: float):
        super().__init__()
        self.goal, self.view, self.scale = _mlp(2, hidden, 2), _mlp(len(AROUND), 64, 1), scale
        _start_at(self.goal, -1.0)

    def forward(self, view: Tensor, offset: Tensor) -> Tensor:
        """Map cells around ``[B, 8]`` and offsets ``[B, 2]`` to values ``[B]``."""
        value: Tensor = self.goal(offset / FAR) + self.view(view)
        return self.scale * value.squeeze(1)


class JointValue(nn.Module):
    """The same by one function of both."""

    def __init__(self, hidden: int, scale: float):
        super().__init__()
        self.net, self.scale = _mlp(len(AROUND) + 2, hidden, 2), scale
        _start_at(self.net, -1.0)

    def forward(self, view: Tensor, offset: Tensor) -> Tensor:
        """Map cells around ``[B, 8]`` and offsets ``[B, 2]`` to values ``[B]``."""
        value: Tensor = self.net(torch.cat([view, offset / FAR], 1))
        return self.scale * value.squeeze(1)


class GoalTermination(nn.Module):
    """Goal's offset ``[B, 2] -> [B]``: the logit that an episode ends there."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _mlp(2, 32, 1)
        _start_at(self.net, -0.7, 0.1)

    def forward(self, offset: Tensor) -> Tensor:
        """Map offsets ``[B, 2]`` to logits ``[B]``."""
        logit: Tensor = self.net(offset)
        return 3 * logit.squeeze(1)


class MapWorldModel(WorldModel):
    """A world model on latents ``u [B, K² + 2]``: a map, squashed, and an offset, which is not.

    Value and termination are handed the part of a latent that they read: squashing whole maps for them would
    cost more than they do. Two latents with the same offset are the same place, so that searches can merge
    them.
    """

    around: Tensor  # [8]

    def __init__(self, *modules: Any, **more: Any):
        super().__init__(*modules, **more)
        self.register_buffer("around", _cells(AROUND, CROP), persistent=False)

    def state(self, latent: Tensor) -> Tensor:
        """Map ``u [..., K² + 2]`` to ``h``: the map squashed, the offset as it is."""
        return torch.cat([latent[..., :-2].tanh(), latent[..., -2:]], -1)

    def value(self, latent: Tensor) -> Tensor:
        """Map ``u [B, K² + 2]`` to values ``[B]``."""
        return self.value_head(latent[:, self.around].tanh(), latent[:, -2:])  # type: ignore[no-any-return]

    def end_logits(self, latent: Tensor) -> Tensor:
        """Map ``u [B, K² + 2]`` to logits ``[B]`` that the episode ends there."""
        assert self.termination is not None
        return self.termination(latent[:, -2:])  # type: ignore[no-any-return]

    def key(self, latent: Tensor) -> Tensor:
        """Map ``u [B, K² + 2]`` to the place as one int64 ``[B]``: the goal's offset in whole cells."""
        cells = latent[:, -2:].detach().round().clamp(-(2**30), 2**30).long()
        return cells[:, 0] * 2**32 + cells[:, 1]

    def unseen(
        self, observation: Observation, generator: torch.Generator | None = None, part: Part | None = None
    ) -> Tensor:
        """Return the planes ``[B, C, H, W]`` with walls drawn at random: halls that no data show."""
        assert isinstance(observation, Tensor)
        drawn = observation.clone()
        walls = drawn[:, WALLS]
        part = part or Part(0, walls.shape[0], walls.shape[0])
        drawn[:, WALLS] = (part.draw(walls.shape[1:], generator, walls.device) < 0.5).to(walls)
        return drawn


def _mlp(inputs: int, hidden: int, layers: int) -> nn.Sequential:
    """Make a perceptron ``[..., inputs] -> [..., 1]``."""
    modules: list[nn.Module] = []
    for size in [inputs, *(layers - 1) * [hidden]]:
        modules += [nn.Linear(size, hidden), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(hidden, 1))


@torch.no_grad()
def _start_at(net: nn.Sequential, output: float, spread: float = 1.0) -> None:
    """Let a fresh net answer about ``output``, with ``spread`` times the usual differences."""
    last = net[-1]
    assert isinstance(last, nn.Linear)
    last.bias.fill_(output)
    last.weight.mul_(spread)


def _cells(offsets: tuple[tuple[int, int], ...], crop: int) -> Tensor:
    """Return the positions ``[n]`` of cells beside the robot in a flat map."""
    middle = crop // 2
    return torch.tensor([(middle + row) * crop + middle + column for row, column in offsets])
