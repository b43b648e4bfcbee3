"""A batch of transitions: what data sets yield and losses consume."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B transitions (s, a, r, Q, s′, terminated) of the behaviour policy, on one device."""

    observation: Tensor  # [B, ...]  s
    action: Tensor  # [B] int64  a
    reward: Tensor  # [B] float32  r
    q_target: Tensor  # [B] float32  what Q(s, a) should be: the return-to-go from s, or a target of your own
    next_observation: Tensor  # [B, ...]  s′; for the last step of an episode the true last observation
    terminated: Tensor  # [B] bool  s′ ends the episode for good; False where it was only cut off
    next_valid: Tensor | None = (
        None  # [B] bool  False where s′ is a stand-in, nothing to learn; None: none is
    )

    def __len__(self) -> int:
        return self.action.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """The fields that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(**{name: tensor.to(device) for name, tensor in self.tensors().items()})
