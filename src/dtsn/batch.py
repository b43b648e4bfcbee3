"""A batch of transitions: what data sets yield and losses consume."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B transitions (s, a, r, Q, s′, done) of the behaviour policy, on one device."""

    observation: Tensor  # [B, ...]  s
    action: Tensor  # [B] int64  a
    reward: Tensor  # [B] float32  r
    q_value: Tensor  # [B] float32  Q, the return-to-go from s
    next_observation: Tensor  # [B, ...]  s′; for the last step of an episode the true last observation
    done: Tensor  # [B] bool  the episode ended after this step

    def __len__(self) -> int:
        return self.action.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})
