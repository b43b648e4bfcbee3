"""Checkpoints that come with the package."""

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped(solver: str) -> Path:
    """Return the shipped Navigation checkpoint of a solver."""
    return FOLDER / f"navigation-{solver}"
