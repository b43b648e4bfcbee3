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

    def __len__(self) -> int:
        return self.action.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})
