"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dtsn.envs.navigation import MOVES, NavigationOptions
from dtsn.errors import UserError
from dtsn.pretrained import shipped

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver

Device = Annotated[str, tyro.conf.arg(metavar="auto|cpu|cuda|cuda:N|mps")]
Layout = Literal["independent", "opposite"]
DATA = Path("data/navigation.h5")
REPORT = Path("report")  # tables and figures; results and docs of the clone are the Makefile's
RESULTS = REPORT / "results"  # raw rows


def load(run: Path | None, device: str, **changes: Any) -> Solver:
    """Load the solver of a run, or the shipped D-TSN; settings that are None stay as trained."""
    from dtsn.training.loading import load_solver

    given = {name: value for name, value in changes.items() if value is not None}
    return load_solver(run or shipped("dtsn"), pick_device(device), **given)


def load_for_halls(run: Path | None, options: NavigationOptions, device: str, **changes: Any) -> Solver:
    """Load the solver of a run as :func:`load`; refuse one of another world, by its name if it says so."""
    solver = load(run, device, **changes)
    shape, actions = solver.observation_shape, solver.world_model.num_actions
    halls = (3, options.size, options.size)
    if shape not in (None, halls) or actions != len(MOVES):
        world = f"trained on {solver.environment}" if solver.environment else "made for another world"
        seen = ", ".join(map(str, shape or ()))
        raise UserError(
            f"{run} was {world}: Navigation needs observations [B, {', '.join(map(str, halls))}] and "
            f"{len(MOVES)} actions, got [B, {seen}] and {actions}"
        )
    return solver


def pick_device(device: str) -> str:
    """Return the device to run on (auto: CUDA where there is one); refuse one that is not here."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, index = device.partition(":")
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }.get(kind)
    if count is None or (colon and not index.isdigit()):
        raise UserError(f"device must be auto, cpu, cuda, cuda:N or mps, got {device!r}")
    if int(index or 0) >= count:
        raise UserError(f"device {device!r} is not available here: use cpu")
    return device


def at_least_one(**options: int) -> None:
    """Refuse a count below 1."""
    for name, value in options.items():
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
