"""A batch of transitions: what data sets yield and losses consume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dtsn.errors import UserError

# An observation as its space has it: an array, or a Dict's or Tuple's structure of arrays.
Observation = Tensor | Mapping[str, Any] | tuple[Any, ...]

DTYPES = {
    "action": torch.int64,
    "reward": torch.float32,
    "q_target": torch.float32,
    "terminated": torch.bool,
    "next_valid": torch.bool,
    "path": torch.int64,
}
OPTIONAL = {"q_target", "next_valid", "path"}


def map_arrays(function: Callable[[Any], Tensor], observation: Any) -> Any:
    """Apply a function to every array of an observation; the structure stays."""
    if isinstance(observation, Mapping):
        return {key: map_arrays(function, part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map_arrays(function, part) for part in observation)
    return function(observation)


class Part(NamedTuple):
    """Rows ``first`` to ``end`` of a batch of ``total``: what one of several processes works on."""

    first: int
    end: int
    total: int

    def draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device | str
    ) -> Tensor:
        """Draw uniform numbers ``[end - first, *shape]``: those of these rows, whoever works on them."""
        device = device if generator is None else generator.device
        return torch.rand(self.total, *shape, generator=generator, device=device)[self.first : self.end]


@dataclass(frozen=True)
class Batch:
    """B transitions (s, a, r, Q, s′, terminated) of the behaviour policy, on one device."""

    observation: Observation  # [B, ...]  s
    action: Tensor  # [B] int64  a
    reward: Tensor  # [B] float32  r
    q_target: Tensor  # [B] float32  what Q(s, a) should be: the return-to-go from s, or a target of your own
    next_observation: Observation  # [B, ...]  s′; for the last step of an episode the true last observation
    terminated: Tensor  # [B] bool  s′ ends the episode for good; False where it was only cut off
    next_valid: Tensor | None = None  # [B] bool  False where s′ is a stand-in; None: it never is
    path: Tensor | None = (
        None  # [B, K] int64  the actions from s on, a first; −1 after the episode's last one
    )

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Batch:
        """Make a batch of tensors or NumPy arrays by field name; dtypes are converted, ``[B, 1]`` is ``[B]``.

        ``q_target`` may be left out of a batch that gets one by ``dataclasses.replace``: until then it is
        NaN, which ``solver.loss`` refuses.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in mapping and name not in OPTIONAL]
        unknown = [name for name in mapping if name not in names]
        if missing or unknown:
            wrong = f"{missing[0]!r} missing" if missing else f"{unknown[0]!r} unknown"
            raise UserError(f"a batch has the fields {', '.join(names)}, got {wrong}")
        columns = {name: _column(name, mapping[name]) for name in DTYPES if name in mapping}
        columns.setdefault("q_target", torch.full_like(columns["reward"], torch.nan))
        seen = {
            name: map_arrays(torch.as_tensor, mapping[name]) for name in ("observation", "next_observation")
        }
        return cls(**seen, **columns)

    def __len__(self) -> int:
        return self.action.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def part(self, part: Part) -> Batch:
        """Return some of the rows."""

        def cut(array: Any) -> Tensor:
            rows: Tensor = array[part.first : part.end]
            return rows

        return Batch(**{name: map_arrays(cut, value) for name, value in self.tensors().items()})

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on another device, its arrays as tensors."""

        def move(array: Any) -> Tensor:
            return torch.as_tensor(array, device=device)

        return Batch(**{name: map_arrays(move, value) for name, value in self.tensors().items()})


def _column(name: str, values: Any) -> Tensor:
    tensor = torch.as_tensor(values)
    if tensor.dim() == 2 and tensor.shape[1] == 1 and name != "path":
        tensor = tensor.squeeze(1)
    if name in ("action", "path") and (tensor.is_floating_point() or tensor.is_complex()):
        raise UserError(f"{name} must be whole numbers, got {tensor.dtype}")
    return tensor.to(DTYPES[name])
