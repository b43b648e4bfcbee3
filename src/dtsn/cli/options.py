"""Options that several commands share: what they may be, their defaults and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dtsn.pretrained import shipped

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver

Device = Literal["auto", "cpu", "cuda"]
Domain = Literal["navigation"]
Layout = Literal["independent", "opposite"]
DATA = Path("data/navigation.h5")


def load(run: Path | None, device: Device, **changes: Any) -> Solver:
    """The solver of a run, or the shipped D-TSN; changes of its settings that are None stay as trained."""
    from dtsn.training.loading import load_solver

    given = {name: value for name, value in changes.items() if value is not None}
    return load_solver(run or shipped("dtsn"), pick_device(device), **given)


def pick_device(device: Device) -> str:
    """The device to run on; asking for CUDA where there is none is an error."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' is not available here: use --device cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def at_least_one(**options: int) -> None:
    """Refuse an option that counts something and is 0 or less."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
