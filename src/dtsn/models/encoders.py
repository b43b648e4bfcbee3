"""Encoders: observations -> pre-activations ``u`` of vector ``[B, D]`` or map ``[B, C, H, W]`` latents."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dtsn.batch import Observation
from dtsn.errors import UserError


class VectorEncoder(nn.Module):
    """Observations ``[B, D] -> [B, latent]``."""

    def __init__(self, size: int, hidden: int, latent: int):
        super().__init__()
        self.first, self.last = nn.Linear(size, hidden), nn.Linear(hidden, latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Map vectors ``[B, D]`` to ``u [B, latent]``."""
        out: Tensor = self.last(torch.relu(self.first(observation.to(self.first.weight.dtype))))
        return out


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
            raise UserError(f"hidden must be at least 8 for the grid encoder, got {hidden}")
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
        """Map planes ``[B, C, H, W]`` to ``u [B, latent]``."""
        fine, coarse = (c.expand(observation.shape[0], -1, -1, -1) for c in (self.fine, self.coarse))  # type: ignore[operator]
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
    """Take the rectified maximum over cells: ``[B, C, H, W] -> [B, C]``."""
    return torch.relu(maps.flatten(2).max(2).values)


def _read(planes: Tensor, features: Tensor) -> Tensor:
    """Read features ``[B, F, H, W]`` at each plane's mark, ``[B, F·C]``; 0 for one without a single mark."""
    marks = planes.flatten(2)  # [B, C, H·W]
    points = marks.sum(2) == 1
    where = marks.argmax(2)[:, None].expand(-1, features.shape[1], -1)  # [B, F, C]
    read = features.flatten(2).gather(2, where) * points[:, None]
    return read.flatten(1)


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
        """Map planes ``[B, C, H, W]`` to ``u [B, latent, H, W]``."""
        maps: Tensor = self.first(observation.to(self.first.weight.dtype))
        for block in self.blocks:
            maps = maps + block(maps)
        return maps


class NatureEncoder(nn.Module):
    """Frames ``[B, C, H, W]`` -> ``[B, latent]``: three strided convolutions, for small machines.

    ``divisor`` brings frames to [0, 1]; without one, uint8 is divided by 255 and floats are not.
    """

    def __init__(self, shape: tuple[int, ...], latent: int, divisor: float | None = None):
        super().__init__()
        self.divisor = divisor
        self.trunk = nn.Sequential(
            nn.Conv2d(shape[0], 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.last = nn.Linear(_features(self.trunk, shape), latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Map frames ``[B, C, H, W]`` to ``u [B, latent]``."""
        out: Tensor = self.last(self.trunk(_unit(observation, self.last.weight.dtype, self.divisor)))
        return out


class StridedEncoder(nn.Module):
    """Frames ``[B, C, H, W]`` -> ``[B, latent]``: IMPALA's first layers, then strides and one residual block.

    Half the work of ``impala_small``. Patches of 4×4 pixels in place of the first layers are cheaper still,
    but generalised worse to other levels in a pilot (docs/experiments-log.md). ``divisor`` is as in
    :class:`NatureEncoder`.
    """

    def __init__(self, shape: tuple[int, ...], latent: int, divisor: float | None = None):
        super().__init__()
        self.divisor = divisor
        self.trunk = nn.Sequential(
            nn.Conv2d(shape[0], 16, 3, stride=2, padding=1), nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), _Residual(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.last = nn.Linear(_features(self.trunk, shape), latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Map frames ``[B, C, H, W]`` to ``u [B, latent]``."""
        frames = _unit(observation, self.last.weight.dtype, self.divisor)
        out: Tensor = self.last(self.trunk(frames.contiguous(memory_format=torch.channels_last)))
        return out


class ImpalaEncoder(nn.Module):
    """Frames ``[B, C, H, W]`` -> ``[B, latent]``: the residual network of IMPALA, no batch norm.

    ``stride`` is that of the first convolution; with 2, all that follows is a quarter of the work. ``blocks``
    are the residual blocks of each resolution. ``pooled``: the last maps' means instead of all their cells.
    ``divisor`` brings frames to [0, 1]; without one, uint8 is divided by 255 and floats are not.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        latent: int,
        widths: tuple[int, ...] = (16, 32, 32),
        stride: int = 1,
        blocks: int = 2,
        pooled: bool = False,
        divisor: float | None = None,
    ):
        super().__init__()
        self.divisor = divisor
        layers: list[nn.Module] = []
        channels = shape[0]
        for number, width in enumerate(widths):
            layers += [
                nn.Conv2d(channels, width, 3, stride=1 if number else stride, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                *(_Residual(width) for _ in range(blocks)),
            ]
            channels = width
        pooling = [nn.AdaptiveAvgPool2d(1)] if pooled else []
        self.trunk = nn.Sequential(*layers, nn.ReLU(), *pooling, nn.Flatten())
        self.last = nn.Linear(_features(self.trunk, shape), latent)

    def forward(self, observation: Tensor) -> Tensor:
        """Map frames ``[B, C, H, W]`` to ``u [B, latent]``."""
        frames = _unit(observation, self.last.weight.dtype, self.divisor)
        # The layout in which these convolutions are fastest on a CPU, by far when acting.
        out: Tensor = self.last(self.trunk(frames.contiguous(memory_format=torch.channels_last)))
        return out


class NormalisedEncoder(nn.Module):
    """A frame encoder that tells frames apart from the first step on: ``[B, C, H, W] -> [B, latent]``.

    To fresh convolutions most frames of a game look the same, since they share their brightness: one that
    learned the actions of Procgen's maze knew no more than how often each is taken after 2,000 steps
    (docs/experiments-log.md). Here frames are centred, weights orthogonal and latents normalised.
    """

    def __init__(self, encoder: nn.Module, latent: int, divisor: float | None = None, signed: bool = False):
        """Wrap an encoder that takes frames as they come.

        ``divisor`` brings them to [0, 1] first, or to [−1, 1] if they are ``signed``.
        """
        super().__init__()
        self.encoder, self.divisor, self.norm = encoder, divisor, nn.LayerNorm(latent)
        self.scale, self.shift = (2, 0) if signed else (4, -2)  # to [−2, 2]
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, observation: Tensor) -> Tensor:
        """Map frames ``[B, C, H, W]`` to ``u [B, latent]``."""
        frames = _unit(observation, self.norm.weight.dtype, self.divisor)
        latent: Tensor = self.norm(self.encoder(self.scale * frames + self.shift))
        return latent


class _Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(torch.relu(self.conv1(torch.relu(x))))
        return out


def _unit(observation: Tensor, dtype: torch.dtype, divisor: float | None) -> Tensor:
    """Divide frames by ``divisor``; by 255 if they are bytes and nothing else is said."""
    if divisor is None:
        divisor = 255 if observation.dtype == torch.uint8 else 1
    frames = observation.to(dtype)
    return frames if divisor == 1 else frames / divisor


def _features(trunk: nn.Module, shape: tuple[int, ...]) -> int:
    """Return how many features a trunk makes of frames of this shape."""
    with torch.no_grad():
        try:
            return int(trunk(torch.zeros(1, *shape)).shape[1])
        except RuntimeError as error:
            raise UserError(f"frames of shape {shape} are too small for this encoder") from error


class ChannelsFirst(nn.Module):
    """An encoder of planes ``[B, C, H, W]`` behind observations ``[B, H, W, C]``."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, observation: Tensor) -> Tensor:
        """Map observations ``[B, H, W, C]`` to ``u``."""
        latent: Tensor = self.encoder(observation.movedim(-1, 1))
        return latent


class LowPrecision(nn.Module):
    """An encoder run in bfloat16; what comes out is in full precision again, and so is the search."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, observation: Observation) -> Tensor:
        """Map observations to ``u`` in the parameters' precision."""
        like = next(self.parameters())
        with torch.autocast(like.device.type, torch.bfloat16):
            latent: Tensor = self.encoder(observation)
        return latent.to(like.dtype)


def coordinates(height: int, width: int) -> Tensor:
    """Return row and column of every cell, from −1 to 1, ``[2, H, W]``."""
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
