"""The policy that Phasic Policy Gradient learns: its network, its checkpoint, and how it plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dtsn import checkpoint
from dtsn.arrays import Bytes, Ints
from dtsn.checkpoint import CheckpointError
from dtsn.config import NetworkConfig, PPGConfig
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, Policy, ProcgenOptions
from dtsn.experts.behaviour import ExpertKind
from dtsn.models.build import make_encoder
from dtsn.randomness import hashed_uniforms
from dtsn.settings import config_from_dict
from dtsn.training.runs import checkpoint_of


class ActorCritic(nn.Module):
    """The policy with its auxiliary value head, and the value network unless both share one encoder."""

    def __init__(self, config: PPGConfig):
        super().__init__()
        space = gymnasium.spaces.Box(0, 255, FRAME_SHAPE, np.uint8)
        network = NetworkConfig(encoder=config.encoder, latent=config.latent, precision=config.precision)
        self.policy_encoder = make_encoder(space, network)
        self.policy_head = _small(nn.Linear(config.latent, NUM_ACTIONS))
        self.auxiliary_head = _small(nn.Linear(config.latent, 1))
        self.value_encoder = None if config.shared else make_encoder(space, network)
        self.value_head = None if config.shared else _small(nn.Linear(config.latent, 1))

    def forward(self, frames: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        """Map frames ``[B, 3, 64, 64]`` to log-probabilities ``[B, A]`` and auxiliary values ``[B]``.

        ``detach``: errors of the values do not reach the encoder.
        """
        features = torch.relu(self.policy_encoder(frames))
        values = self.auxiliary_head(features.detach() if detach else features).squeeze(-1)
        return functional.log_softmax(self.policy_head(features), -1), values

    def value(self, frames: Tensor) -> Tensor:
        """Map frames ``[B, 3, 64, 64]`` to values ``[B]`` of the value network, which there must be."""
        assert self.value_encoder is not None
        assert self.value_head is not None
        out: Tensor = self.value_head(torch.relu(self.value_encoder(frames))).squeeze(-1)
        return out

    def act(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Map frames ``[B, 3, 64, 64]`` to log-probabilities ``[B, A]`` and values ``[B]`` to learn by."""
        log_probs, auxiliary = self(frames)
        return log_probs, auxiliary if self.value_encoder is None else self.value(frames)


def _small(head: nn.Linear) -> nn.Linear:
    """Return a head that says nearly nothing at first."""
    nn.init.orthogonal_(head.weight, 0.1)
    nn.init.zeros_(head.bias)
    return head


class Expert:
    """A trained policy, ready to play."""

    kind: ExpertKind = "ppg"

    def __init__(self, network: ActorCritic, config: PPGConfig, step: int, sha256: str, device: str = "cpu"):
        self.network, self.config, self.device = network.to(device).eval(), config, device
        self.step, self.sha256 = step, sha256  # environment steps it learned from; of its weights
        self.options = ProcgenOptions(config.game, config.mode)

    def description(self) -> dict[str, Any]:
        """Return what tells this policy from others, to be kept with its data."""
        held = {"action_repeat": self.config.action_repeat} if self.config.action_repeat > 1 else {}
        return {"steps": self.step, "sha256": self.sha256} | held

    @torch.no_grad()
    def probabilities(self, frames: Bytes) -> np.ndarray:
        """Map frames ``[B, 3, 64, 64]`` to probabilities ``[B, A]``."""
        logs, _ = self.network(torch.from_numpy(frames).to(self.device))
        return logs.exp().cpu().double().numpy()  # type: ignore[no-any-return]

    def policy(self, seed: int, at_once: int) -> Policy:
        """Make a policy of actions sampled by (seed, episode, step) alone, for up to ``at_once`` episodes.

        They are held for as many frames as when it learned.
        """
        held: dict[int, int] = {}  # by episode

        def act(frames: Bytes, episodes: Ints, steps: Ints) -> Ints:
            # Always as many rows, since the last bits of a product can depend on their number.
            rows = np.concatenate([frames, np.zeros((at_once - len(frames), *FRAME_SHAPE), np.uint8)])
            cumulative = self.probabilities(rows)[: len(frames)].cumsum(1)
            drawn = hashed_uniforms(seed, episodes, steps)[:, None] * cumulative[:, -1:]
            chosen = (cumulative <= drawn).sum(1)
            for row in np.flatnonzero(steps % self.config.action_repeat == 0):
                held[int(episodes[row])] = int(chosen[row])
            return np.array([held[int(episode)] for episode in episodes])

        return act


def load_expert(folder: str | Path, device: str = "cpu") -> Expert:
    """Load a trained policy from a checkpoint or a run folder (its newest checkpoint)."""
    path = checkpoint_of(Path(folder))
    state = checkpoint.load_state(path)
    config = config_of(path, state)
    try:
        step = checkpoint.count_in(state, "step", 2**62)
        with torch.device("meta"):  # takes no memory: a checkpoint may claim more than it holds
            expected = ActorCritic(config)
        tensors = checkpoint.load_tensors_of(path, "model", state)
        checkpoint.check_tensors(expected.state_dict(), tensors)
    except CheckpointError:
        raise
    except (ValueError, RuntimeError) as error:
        raise misfit(path, error) from error
    network = ActorCritic(config)
    network.load_state_dict(tensors)
    return Expert(network, config, step, state["files"]["model.safetensors"], device)


def export_expert(run: Path, out: Path) -> Path:
    """Write the newest policy of a run alone: what it takes to play, not to go on learning."""
    newest = checkpoint.latest_checkpoint(run / "checkpoints")
    if newest is None:
        raise CheckpointError(f"{run} has no checkpoint")
    state = checkpoint.load_state(newest)
    kept = {name: value for name, value in state.items() if name not in ("format", "format_version", "files")}
    return checkpoint.save_checkpoint(
        out, {"model": checkpoint.load_tensors_of(newest, "model", state)}, kept
    )


def misfit(path: Path, error: Exception) -> CheckpointError:
    """Return what to raise for a checkpoint that holds something else."""
    return CheckpointError(f"{path} does not hold an expert of this dtsn version: {error}")


def config_of(path: Path, state: dict[str, Any]) -> PPGConfig:
    """Return the settings that a checkpoint was trained with."""
    if state.get("kind") != "ppg":
        raise CheckpointError(f"{path} must be an expert's checkpoint: give a run of PPG")
    try:
        values = state["config"] | {"gradient_clip": float(state["config"]["gradient_clip"])}
        return config_from_dict(PPGConfig, values)
    except (KeyError, TypeError, ValueError) as error:
        raise misfit(path, error) from error
