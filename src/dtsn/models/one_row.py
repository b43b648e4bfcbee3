"""World models of perceptrons for a single row without gradient, on NumPy arrays: the fast path of acting.

With one row a layer costs its launch, and NumPy launches in a fraction of torch's time. The arrays are views
of the parameters, taken anew for every decision, so they cannot go stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dtsn.models.heads import ActionMLP, RewardMLP, ValueMLP

if TYPE_CHECKING:
    from dtsn.models.world_model import WorldModel

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
# Multiplications of the largest layer. Beyond it NumPy's matrix product may start threads, and torch's
# launches do not matter any more.
LARGEST = 1 << 18


class Perceptrons(NamedTuple):
    """The weights of transition, reward and value: views of the parameters, with their layout."""

    shared: Floats  # [H, D]  first layer of the transition
    action: Floats  # [A, H]  its bias by action
    change: Floats  # [D, H]
    change_bias: Floats  # [D]
    reward: Floats  # [H, D]
    reward_bias: Floats  # [H]
    rewards: Floats  # [A, H]
    rewards_bias: Floats  # [A]
    value: Floats  # [H, D]
    value_bias: Floats  # [H]
    values: Floats  # [1, H]
    values_bias: Floats  # [1]
    scale: float  # of values


def perceptrons(model: WorldModel) -> Perceptrons | None:
    """Return the weights of a world model of the modules that the library makes for vectors, else None."""
    # Read from the modules' own tables: an attribute of a module takes as long as a small layer.
    modules = model._modules
    transition, reward, value = modules["transition"], modules["reward_head"], modules["value_head"]
    if type(transition) is not ActionMLP or type(reward) is not RewardMLP or type(value) is not ValueMLP:
        return None
    heads = (reward._modules, value._modules)
    layers = [transition._modules["last"], *(head[name] for head in heads for name in ("first", "last"))]
    if modules.get("termination") is not None or any(type(layer) is not nn.Linear for layer in layers):
        return None
    tables = [layer._parameters for layer in layers if layer is not None]
    if any(
        m._forward_hooks or m._forward_pre_hooks
        for m in (transition, reward, value, *layers)
        if m is not None
    ):
        return None  # somebody wants to see the calls
    names = [(transition._parameters, "weight"), (transition._parameters, "action_bias")]
    names += [(table, name) for table in tables for name in ("weight", "bias")]
    parameters = [parameter for table, name in names if (parameter := table[name]) is not None]
    if len(parameters) != len(names):
        return None  # layers without a bias
    first = parameters[0]
    if first.device.type != "cpu" or first.dtype not in (torch.float32, torch.float64):
        return None
    if any(parameter.dtype != first.dtype for parameter in parameters):
        return None
    if torch.is_autocast_enabled("cpu"):
        return None
    arrays = [parameter.detach().numpy() for parameter in parameters]
    return Perceptrons._make([*arrays, value.scale])


class OneRowModel:
    """``expand`` and ``value`` of a world model of perceptrons, for latents ``[1, D]`` that are arrays."""

    def __init__(self, weights: Perceptrons):
        self.weights = weights

    @classmethod
    def of(cls, model: WorldModel) -> OneRowModel | None:
        """Make one of a world model, if NumPy can stand in for its modules and is faster."""
        weights = perceptrons(model)
        if weights is None or weights.action.shape[0] * weights.change.size > LARGEST:
            return None
        return cls(weights)

    def expand(self, latent: Floats) -> tuple[Floats, Floats]:
        """Map ``u [1, D]`` to ``u′ [1, A, D]`` of every action and rewards ``[1, A]``."""
        w, state = self.weights, np.tanh(latent)
        mixed = state @ w.shared.T + w.action  # [A, H]
        children = np.maximum(mixed, 0, out=mixed) @ w.change.T
        children += latent + w.change_bias
        hidden = state @ w.reward.T + w.reward_bias  # [1, H]
        return children[None], np.maximum(hidden, 0, out=hidden) @ w.rewards.T + w.rewards_bias

    def value(self, latent: Floats) -> Floats:
        """Map ``u [A, D]`` to values ``[A]``."""
        w = self.weights
        hidden = np.tanh(latent) @ w.value.T + w.value_bias  # [A, H]
        value: Floats = np.maximum(hidden, 0, out=hidden) @ w.values[0] + w.values_bias
        return value if w.scale == 1 else value * w.scale
