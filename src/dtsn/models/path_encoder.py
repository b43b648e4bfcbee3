"""An encoder for maps that reads cheapest paths under learned step costs.

Pooled features remember which walls go with which value; where a path runs they cannot say for walls that
they have not seen. Here the network learns only what *entering a cell* costs, from the cell's neighbourhood;
the cheapest path to each mark (a goal, a robot) follows by dynamic programming, exact for any map, and is
differentiable: a path's cost moves with the costs of the cells along it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

COSTS = 2  # step costs learned per cell, each with paths of its own
FREE_COST = 0.2  # of entering a cell of average looks
LEAST_COST, LARGEST_COST = 1e-3, 12.0  # positive even after rounding, so that no path goes in circles
UNREACHED = -40.0  # a path's value where there is none

# The four neighbours: (cells that have it, the neighbour of each) as slices of a map.
_ALL, _FIRST, _LAST = slice(None), slice(None, -1), slice(1, None)
_NEIGHBOURS = (
    ((..., _LAST, _ALL), (..., _FIRST, _ALL)),
    ((..., _FIRST, _ALL), (..., _LAST, _ALL)),
    ((..., _ALL, _LAST), (..., _ALL, _FIRST)),
    ((..., _ALL, _FIRST), (..., _ALL, _LAST)),
)


class CheapestPaths(torch.autograd.Function):
    """``V(c) = max(source(c), max over neighbours n of V(n) - cost(n))`` on maps ``[..., H, W]``, cost > 0.

    Forward repeats the equation until nothing changes. Backward sends each cell's gradient along its path:
    every cell that is entered takes it as its cost's, the end of the path as its source's.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, cost: Tensor) -> Tensor:
        """Map sources and costs ``[..., H, W]`` to values ``[..., H, W]``."""
        value = source
        for _ in range(source.shape[-1] * source.shape[-2]):  # no cheapest path visits a cell twice
            through, last, value = value - cost, value, source.clone()
            for cells, neighbours in _NEIGHBOURS:
                torch.maximum(value[cells], through[neighbours], out=value[cells])
            if torch.equal(value, last):
                break
        ctx.save_for_backward(source, cost, value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Map the gradient of the values ``[..., H, W]`` to those of sources and costs."""
        source, cost, value = ctx.saved_tensors
        through, here = value - cost, torch.arange(value.numel(), device=value.device).view_as(value)
        onward = here.clone()  # the cell that each cell's path goes to; itself where the path ends
        for cells, neighbours in _NEIGHBOURS:
            taken = (value[cells] > source[cells]) & (value[cells] == through[neighbours])
            onward[cells] = torch.where(taken, here[neighbours], onward[cells])
        onward, gradient = onward.flatten(), gradients[0].flatten()
        to_source, to_cost = torch.zeros_like(gradient), torch.zeros_like(gradient)
        at = gradient.nonzero().squeeze(1)
        amount = gradient[at]
        while len(at):
            then = onward[at]
            moves = then != at
            to_source.index_add_(0, at[~moves], amount[~moves])
            at, amount = then[moves], amount[moves]
            to_cost.index_add_(0, at, amount, alpha=-1)
        return to_source.view_as(source), to_cost.view_as(cost)


def cheapest_paths(source: Tensor, cost: Tensor) -> Tensor:
    """Apply :class:`CheapestPaths`, or a loop within the graph where one is exported."""
    if not torch.compiler.is_exporting():
        paths: Tensor = CheapestPaths.apply(source, cost)  # type: ignore[no-untyped-call]
        return paths

    def goes_on(value: Tensor, changed: Tensor) -> Tensor:
        return changed.clone()  # what is handed on must not be the same tensor

    def step(value: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
        through = functional.pad(value - cost, (1, 1, 1, 1), value=-torch.inf)
        best = torch.maximum(source, through[..., :-2, 1:-1])
        for neighbour in (through[..., 2:, 1:-1], through[..., 1:-1, :-2], through[..., 1:-1, 2:]):
            best = torch.maximum(best, neighbour)
        return best, (best != value).any()

    start = source.clone(), torch.ones((), dtype=torch.bool, device=source.device)
    paths, _ = torch.while_loop(goes_on, step, start)  # type: ignore[no-untyped-call]
    return paths


class PathEncoder(nn.Module):
    """0/1 planes ``[B, C, H, W] -> [B, latent]`` by cheapest paths between the marks of the planes.

    A plane with a single mark *points*. From each mark, paths spread over the whole map; at each mark, the
    paths from all marks are read: what the way from here costs, and what it costs by way of each neighbour.
    """

    def __init__(self, shape: tuple[int, ...], hidden: int, latent: int):
        super().__init__()
        planes, _, width = shape
        narrow = max(1, hidden // 8)
        self.near = nn.Conv2d(planes, narrow, 3, padding=1)
        self.log_cost = nn.Conv2d(narrow + planes, COSTS, 1)
        # At first, cells with something in them are in the way, whatever is near: training may reverse both.
        with torch.no_grad():
            self.log_cost.weight[:, :narrow] = 0
            nn.init.uniform_(self.log_cost.weight[:, narrow:], 0.5, 1)
        self.contrast = nn.Parameter(torch.ones(COSTS, 1, 1))
        self.bounds = math.log(LEAST_COST / FREE_COST), math.log(LARGEST_COST / FREE_COST)
        read = planes * COSTS * 10 + narrow
        # Linear: a hidden layer here fits the data's combinations of ways and misjudges others.
        self.last = nn.Linear(planes * read, latent)
        square = torch.arange(3)[:, None] * (width + 2) + torch.arange(3)
        self.register_buffer("square", square.flatten(), persistent=False)  # [9] cells of the padded map

    def forward(self, observation: Tensor) -> Tensor:
        """Map planes ``[B, C, H, W]`` to ``u [B, latent]``."""
        planes = observation.to(self.near.weight.dtype)
        near = torch.relu(self.near(planes))  # [B, F, H, W]
        points = planes.sum((2, 3)) == 1  # [B, C]
        marks = planes * points[:, :, None, None]
        full = self.contrast.dtype  # of paths and costs, whatever the convolutions run in
        source, cost = _pairs((1 - marks.to(full)) * UNREACHED, self._cost(near, planes))
        paths = cheapest_paths(source, cost)
        where = marks.flatten(2).argmax(2)  # [B, C]
        # At each mark: C·K paths, here and by way of 9 cells, and F features.
        read = torch.cat([self._ways(paths, cost, where), _at(near.to(full), where)], 1)
        out: Tensor = self.last((read * points[:, None]).flatten(1))
        return out

    def _cost(self, near: Tensor, planes: Tensor) -> Tensor:
        """Price entering each cell ``[B, K, H, W]`` by its looks ``[B, F, H, W]`` and ``[B, C, H, W]``.

        Normalised over the map. What stands out, as walls do, then costs far more than the longest detour.
        Trained without this, walls cost just what the detours of the data ask for: the first longer one,
        and the cheapest path leads through a wall.
        """
        log_cost = self.log_cost(torch.cat([near, planes], 1)).to(self.contrast.dtype)
        relative = functional.instance_norm(log_cost) * self.contrast
        return FREE_COST * torch.exp(relative.clamp(*self.bounds))

    def _ways(self, paths: Tensor, cost: Tensor, where: Tensor) -> Tensor:
        """Read paths, costs ``[B, N, H, W]`` at cells ``[B, C]``: by way of 9, and here ``[B, 10·N, C]``."""
        width = paths.shape[-1]
        corner = where // width * (width + 2) + where % width  # of the square, in the padded map
        by_way = functional.pad(paths - cost, (1, 1, 1, 1), value=UNREACHED)
        cells = (corner[:, :, None] + self.square).flatten(1)  # type: ignore[operator]
        ways = _at(by_way, cells).reshape(*paths.shape[:2], where.shape[1], 9)  # [B, N, C, 9]
        here = _at(paths, where)  # [B, N, C]
        # 0 for the best neighbour, less for the others; bounded, as how dear a wall is does not matter.
        relative = torch.tanh(ways - here[..., None]).movedim(3, 2).flatten(1, 2)
        return torch.cat([relative, here / 4], 1)  # tens of steps are an order of one


def _pairs(source: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Pair all sources ``[B, C, H, W]`` with all costs ``[B, K, H, W]``: ``[B, C·K, H, W]``."""
    shape = (source.shape[0], source.shape[1], cost.shape[1], *source.shape[2:])
    pairs = source[:, :, None].expand(shape), cost[:, None].expand(shape)
    return pairs[0].flatten(1, 2), pairs[1].flatten(1, 2)


def _at(maps: Tensor, cells: Tensor) -> Tensor:
    """Read maps ``[B, N, H, W]`` at flat cells ``[B, C]``: ``[B, N, C]``."""
    return maps.flatten(2).gather(2, cells[:, None].expand(-1, maps.shape[1], -1))
