"""The learned world model: encoder E, transition T, reward R and value V, as a search sees them.

The search carries *pre-activations* ``u`` and every module reads the latent state ``h = tanh(u)``, which
lies in (−1, 1). A transition adds to ``u``, inside the squash: ``u′ = u + T(h, a)``. Adding outside it,
``tanh(h + T(h, a))``, would shrink a state at every step even if nothing happened.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dtsn.batch import Observation
from dtsn.errors import UserError
from dtsn.models.one_row import OneRowModel
from dtsn.search.model import Expansion


class WorldModel(nn.Module):
    """Four modules or five, yours or those of :mod:`dtsn.models.heads`, with their shapes checked.

    Args:
        encoder: observations ``[B, ...]`` -> ``u [B, *latent]``.
        transition: ``h [B, *latent]`` -> change of ``u`` by each action ``[B, A, *latent]``.
        reward: ``h [B, *latent]`` -> reward of each action ``[B, A]``.
        value: ``h [B, *latent]`` -> value ``[B]``.
        num_actions: A.
        latent_shape: what the other modules were made for, ``*latent``: the encoder must return it. Not
            checked if not given.
        termination: ``h [B, *latent]`` -> logit that the episode ends there ``[B]``; None: nothing ends.
    """

    def __init__(
        self,
        encoder: nn.Module,
        transition: nn.Module,
        reward: nn.Module,
        value: nn.Module,
        num_actions: int,
        latent_shape: tuple[int, ...] | None = None,
        termination: nn.Module | None = None,
    ):
        super().__init__()
        if num_actions < 1:
            raise UserError(f"num_actions must be at least 1, got {num_actions}")
        self.encoder = encoder
        self.transition = transition
        self.reward_head = reward
        self.value_head = value
        self.termination = termination
        self.num_actions = num_actions
        self.latent_shape = latent_shape

    @property
    def given(self) -> frozenset[str]:
        """The losses that have nothing to teach: none, as all of it is learned."""
        return frozenset()

    def encode(self, observation: Observation) -> Tensor:
        """Map observations ``[B, ...]`` (of a Dict or Tuple space: a structure) to ``u [B, *latent]``."""
        latent: Tensor = self.encoder(observation)
        rows = observation.shape[0] if isinstance(observation, Tensor) else latent.shape[0]
        if self.latent_shape is not None:
            _check_shape("encoder", latent, (rows, *self.latent_shape))
        elif latent.dim() < 2 or latent.shape[0] != rows:
            raise UserError(f"encoder must return latents [{rows}, ...], got {list(latent.shape)}")
        return latent

    def state(self, latent: Tensor) -> Tensor:
        """Map ``u [..., *latent]`` to the state ``h`` that the modules read."""
        return latent.tanh()

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor] | Expansion:
        """Map ``u [B, *latent]`` to ``u′ [B, A, *latent]`` of every action and rewards ``[B, A]``.

        With a termination module, also how likely each child is an end.
        """
        state = self.state(latent)
        batch, shape = latent.shape[0], latent.shape[1:]
        change: Tensor = self.transition(state)
        _check_shape("transition", change, (batch, self.num_actions, *shape))
        reward: Tensor = self.reward_head(state)
        _check_shape("reward", reward, (batch, self.num_actions))
        children = latent.unsqueeze(1) + change
        if self.termination is None:
            return children, reward
        ends = self.end_logits(children.flatten(0, 1)).view(reward.shape).sigmoid()
        return Expansion(children, reward, terminal=ends)

    def end_logits(self, latent: Tensor) -> Tensor:
        """Map ``u [B, *latent]`` to logits ``[B]`` that the episode ends there."""
        assert self.termination is not None
        logits: Tensor = self.termination(self.state(latent))
        _check_shape("termination", logits, (latent.shape[0],))
        return logits

    def value(self, latent: Tensor) -> Tensor:
        """Map ``u [B, *latent]`` to values ``[B]``."""
        value: Tensor = self.value_head(self.state(latent))
        _check_shape("value", value, (latent.shape[0],))
        return value

    def for_one_row(self) -> OneRowModel | None:
        """Return the same on arrays, for a one-row search without gradient; None where torch is as good."""
        if type(self) is not WorldModel or not vars(self).keys().isdisjoint(("expand", "value", "state")):
            return None  # somebody's own methods
        return OneRowModel.of(self)


@torch.no_grad()
def update_average(average: nn.Module, module: nn.Module, decay: float) -> None:
    """Set θ′ ← α θ′ + (1 − α) θ for the target encoder; buffers are copied."""
    if [p.shape for p in average.parameters()] != [p.shape for p in module.parameters()]:
        raise UserError(
            "the encoder is not the one that the target encoder was copied from: "
            "make the solver with encoder= instead of assigning one"
        )
    for old, new in zip(average.parameters(), module.parameters(), strict=True):
        old.lerp_(new, 1 - decay)
    for buffer, source in zip(average.buffers(), module.buffers(), strict=True):
        buffer.copy_(source)


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise UserError(f"{name} module must return shape {list(expected)}, got {list(tensor.shape)}")
