"""What changes from step to step of a training run: T, and the weight of the conservative value."""

from __future__ import annotations

from dtsn.config import TrainConfig


def iterations(config: TrainConfig, step: int) -> int:
    """Return T of a step, from 0: one in the warm-up, then from two up to the full number on the ramp."""
    full = config.solver.iterations
    done = step - config.search_warmup
    if done < 0:
        return 1
    if done >= config.search_ramp:
        return full
    return min(full, 2 + (full - 1) * done // config.search_ramp)


def conservative_ramp(config: TrainConfig, step: int) -> float:
    """Return how much of the conservative value's weight counts at a step, from 0."""
    return min(1.0, step / config.conservative_ramp) if config.conservative_ramp else 1.0
