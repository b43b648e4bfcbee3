"""Phasic Policy Gradient (Cobbe et al., 2020): the behaviour policy of the Procgen data sets.

A *policy phase* repeats N_π times: roll the policy out, improve it by clipped policy gradients, fit the
value. Then an *auxiliary phase* teaches the policy's own encoder to predict values from all frames of the
phase, while a KL term keeps the policy where it is. So the policy profits from what values teach without
suffering from their noise.

Without auxiliary phases, and with values that teach a shared encoder at once, this is PPO: half the work for
each decision, so twice the decisions, which is what a CPU with few hours learns most from.

EnvPool's state cannot be saved: a resumed run has the weights, the optimisers and the reward scale of its
checkpoint, starts new episodes, and its first auxiliary phase has only the frames seen since.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import dtsn
from dtsn import checkpoint
from dtsn.checkpoint import CheckpointError
from dtsn.config import PPGConfig
from dtsn.envs.procgen import FRAME_SHAPE, ProcgenOptions, ProcgenPool, split_range
from dtsn.errors import UserError, brief
from dtsn.experts.ppg_policy import ActorCritic, config_of, misfit
from dtsn.settings import plain
from dtsn.training.runs import NoRunError, RunFolder
from dtsn.training.trainer import DivergedError

REWARD_LIMIT = 10.0  # largest normalised reward
RECENT = 100  # episodes that the reported return and success rate are means of


class RewardScale:
    """Divides rewards by the running standard deviation of discounted returns."""

    def __init__(self, num_envs: int, discount: float):
        self.discount, self.returns = discount, np.zeros(num_envs)
        self.count, self.mean, self.squares = 0, 0.0, 0.0  # squares: summed, about the mean

    def __call__(self, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Scale rewards ``[T, N]``, given where episodes ended ``[T, N]``."""
        seen = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self.returns = seen[t] = rewards[t] + self.discount * self.returns
            self.returns = np.where(ended[t], 0.0, self.returns)
        shift, total = seen.mean() - self.mean, self.count + seen.size
        self.squares += seen.var() * seen.size + shift**2 * self.count * seen.size / total
        self.mean += shift * seen.size / total
        self.count = total
        deviation = math.sqrt(self.squares / self.count + 1e-8)
        return np.clip(rewards / deviation, -REWARD_LIMIT, REWARD_LIMIT)


def advantages(
    rewards: np.ndarray, values: np.ndarray, ended: np.ndarray, discount: float, gae_lambda: float
) -> np.ndarray:
    """Compute generalised advantage estimates ``[T, N]``.

    Rewards ``[T, N]``, values ``[T + 1, N]``, and whether an episode ended with the step ``[T, N]``: by time
    or not, nothing follows it (as in the paper, where the agent cannot tell).
    """
    estimates, following = np.empty_like(rewards), np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        goes_on = discount * ~ended[t]
        error = rewards[t] + goes_on * values[t + 1] - values[t]
        estimates[t] = following = error + goes_on * gae_lambda * following
    return estimates


def translated(frames: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Shift frames ``[B, C, H, W]`` by up to ``most`` pixels each; their edges are repeated."""
    if not most:
        return frames
    height, width = frames.shape[2:]
    padded = functional.pad(frames, (most,) * 4, mode="replicate")  # [B, C, H + 2·most, W + 2·most]
    shifts = torch.randint(2 * most + 1, (len(frames), 2), generator=generator).tolist()
    # Slices: an index for every pixel takes much longer.
    return torch.stack(
        [each[:, y : y + height, x : x + width] for each, (y, x) in zip(padded, shifts, strict=True)]
    )


class Rollout(NamedTuple):
    """One iteration's decisions, F = T·N of them."""

    frames: Tensor  # [F, 3, 64, 64]
    actions: Tensor  # [F]
    log_probs: Tensor  # [F] of the actions, when they were played
    advantages: Tensor  # [F]
    targets: Tensor  # [F] what the values should have been


class PhasicPolicyGradient:
    """The networks, their optimisers, and the number of iterations they have made."""

    def __init__(self, config: PPGConfig, device: str = "cpu"):
        self.config, self.device = config, torch.device(device)
        self.options = ProcgenOptions(config.game, config.mode)
        split_range("train", config.num_levels)  # refuse a bad number now
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.seed)
            self.network = ActorCritic(config).to(self.device)
        # One for each phase, since Adam divides by the size of recent gradients: the value errors of an
        # auxiliary phase are so large that it would hardly move the policy for long after it.
        self.optimizers = {
            name: torch.optim.Adam(self.network.parameters(), lr=rate)
            for name, rate in (
                ("optimizer", config.learning_rate),
                ("auxiliary_optimizer", config.auxiliary_learning_rate),
            )
        }
        self.scale = RewardScale(config.num_envs, config.discount)
        self.iteration = 0
        self.episodes: deque[tuple[float, bool]] = deque(maxlen=RECENT)  # return and whether completed
        self._phase_length = min(config.policy_iterations, config.iterations)
        # Of all steps since the last auxiliary phase, `_filled` iterations of them.
        self._frames = torch.empty(self._phase_length, config.batch, *FRAME_SHAPE, dtype=torch.uint8)
        self._targets = torch.empty(self._phase_length, config.batch)
        self._filled = 0
        self._remember()

    @property
    def step(self) -> int:
        """Environment steps made, with the frames that an episode's end took from a held action."""
        return self.iteration * self.config.steps_per_iteration

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the last iteration; yields each iteration's metrics once it is done."""
        config = self.config
        seed = int(np.random.SeedSequence([config.seed, self.iteration]).generate_state(1)[0])
        pool = ProcgenPool(
            self.options,
            config.num_envs,
            num_levels=config.num_levels,
            seed=seed,
            action_repeat=config.action_repeat,
        )
        frames = torch.from_numpy(pool.reset())
        running = np.zeros(config.num_envs)  # [N] return so far
        while self.iteration < config.iterations:
            began = time.perf_counter()
            generator = torch.Generator()
            generator.manual_seed(
                int(np.random.SeedSequence([config.seed, self.iteration, 1]).generate_state(1)[0])
            )
            rollout, frames, running = self._roll_out(pool, frames, running, generator)
            metrics = self._policy_phase(rollout, generator)
            self._targets[self._filled] = rollout.targets
            self._filled += 1
            if (self.iteration + 1) % self._phase_length == 0:
                if config.auxiliary_epochs:
                    metrics |= self._auxiliary_phase(generator)
                self._filled = 0
            self.iteration += 1
            self._remember()
            metrics["fps"] = config.steps_per_iteration / (time.perf_counter() - began)
            if self.episodes:
                metrics["return"], metrics["success"] = (float(x) for x in np.mean(self.episodes, axis=0))
            yield {"step": self.step, **metrics}

    @torch.no_grad()
    def _roll_out(
        self, pool: ProcgenPool, frames: Tensor, running: np.ndarray, generator: torch.Generator
    ) -> tuple[Rollout, Tensor, np.ndarray]:
        config = self.config
        shape = (config.rollout, config.num_envs)
        seen = self._frames[self._filled].view(*shape, *FRAME_SHAPE)
        actions, log_probs = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
        rewards, ended, still = np.empty(shape), np.empty(shape, bool), np.zeros(shape, bool)
        values = np.empty((config.rollout + 1, config.num_envs))
        for t in range(config.rollout):
            seen[t] = frames
            logs, value = (x.cpu() for x in self.network.act(frames.to(self.device)))
            chosen = torch.multinomial(logs.exp(), 1, generator=generator)
            actions[t], log_probs[t] = chosen.squeeze(1), logs.gather(1, chosen).squeeze(1)
            values[t] = value.numpy()
            step = pool.step(actions[t].numpy())
            if config.still_penalty:
                still[t] = (step.last == frames.numpy()).all((1, 2, 3))
            frames = torch.from_numpy(step.observations)
            rewards[t], ended[t] = step.rewards, step.terminated | step.truncated
            running = running + step.rewards
            self.episodes.extend(zip(running[ended[t]], step.complete[ended[t]], strict=True))
            running[ended[t]] = 0
        values[-1] = self.network.act(frames.to(self.device))[1].cpu().numpy()
        earned = self.scale(rewards, ended) - config.still_penalty * still
        gains = advantages(earned, values, ended, config.discount, config.gae_lambda)
        flat = Rollout(
            seen.flatten(0, 1),
            actions.flatten(),
            log_probs.flatten(),
            torch.from_numpy(((gains - gains.mean()) / (gains.std() + 1e-8)).ravel()).float(),
            torch.from_numpy((gains + values[:-1]).ravel()).float(),
        )
        return flat, frames, running

    def _policy_phase(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        config, shared = self.config, self.config.shared
        terms: list[dict[str, float]] = []
        policy_epochs = max(config.policy_epochs, config.value_epochs) if shared else config.policy_epochs
        for _ in range(policy_epochs):
            for part in self._minibatches(len(rollout.actions), generator):
                frames, actions, old, gains, targets = (x[part].to(self.device) for x in rollout)
                logs, values = self.network(frames, detach=config.detach_values)
                ratio = (logs.gather(1, actions[:, None]).squeeze(1) - old).exp()
                clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
                gain = torch.minimum(ratio * gains, clipped * gains).mean()
                entropy = -(logs.exp() * logs).sum(1).mean()
                loss = -gain - config.entropy_weight * entropy
                if shared:
                    loss = loss + 0.5 * functional.mse_loss(values, targets)
                self._update(loss, "optimizer")
                terms.append({"policy": -gain.item(), "entropy": entropy.item()})
        for _ in range(0 if shared else config.value_epochs):
            for part in self._minibatches(len(rollout.actions), generator):
                frames, targets = rollout.frames[part].to(self.device), rollout.targets[part].to(self.device)
                self._update(0.5 * functional.mse_loss(self.network.value(frames), targets), "optimizer")
        return {name: float(np.mean([term[name] for term in terms])) for name in terms[0]}

    def _auxiliary_phase(self, generator: torch.Generator) -> dict[str, float]:
        """Distil the values of all frames of the phase into the policy's encoder; the policy stays."""
        config = self.config
        frames = self._frames[: self._filled].flatten(0, 1)
        targets = self._targets[: self._filled].flatten()
        size = config.batch // config.minibatches
        with torch.no_grad():
            before = torch.cat(
                [self.network(part.to(self.device))[0].cpu() for part in torch.split(frames, size)]
            )
        terms: list[dict[str, float]] = []
        for _ in range(config.auxiliary_epochs):
            for part in torch.split(torch.randperm(len(frames), generator=generator), size):
                batch, old, target = (x[part].to(self.device) for x in (frames, before, targets))
                # The old policy saw the frames as they were: the new one learns to ignore the shift.
                batch = translated(batch, config.translate, generator)
                logs, values = self.network(batch)
                distilled = 0.5 * functional.mse_loss(values, target)
                clone = functional.kl_div(logs, old, reduction="batchmean", log_target=True)  # KL(old ‖ new)
                loss = distilled + config.clone_weight * clone
                if not config.shared:
                    loss = loss + 0.5 * functional.mse_loss(self.network.value(batch), target)
                self._update(loss, "auxiliary_optimizer")
                terms.append({"auxiliary_value": distilled.item(), "clone": clone.item()})
        return {name: float(np.mean([term[name] for term in terms])) for name in terms[0]}

    def _minibatches(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        order = torch.randperm(count, generator=generator)
        return torch.split(order, count // self.config.minibatches)

    def _update(self, loss: Tensor, optimizer: str) -> None:
        if not math.isfinite(float(loss.detach())):
            raise DivergedError(
                f"the loss is {float(loss.detach())} after {self.step} steps: try a smaller "
                + ("learning_rate" if optimizer == "optimizer" else "auxiliary_learning_rate")
            )
        self.optimizers[optimizer].zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.gradient_clip)
        self.optimizers[optimizer].step()

    def _remember(self) -> None:
        """Keep what a checkpoint holds, so that one made within an iteration is of the last whole one."""
        held = {name: checkpoint.flatten_optimizer(each) for name, each in self.optimizers.items()}
        held["model"] = dict(self.network.state_dict())
        self._tensors = {
            part: {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            for part, tensors in held.items()
        }
        self._state = {
            "version": dtsn.__version__,
            "kind": "ppg",
            "iteration": self.iteration,
            "step": self.step,
            "config": plain(dataclasses.asdict(self.config)),
            "reward_scale": [self.scale.count, float(self.scale.mean), float(self.scale.squares)],
        }

    def snapshot(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return what a checkpoint of the last whole iteration holds: tensors by file, and the state."""
        return self._tensors, self._state

    def save(self, folder: Path) -> Path:
        """Write a checkpoint of the last whole iteration below ``folder``."""
        return checkpoint.save_checkpoint(folder / f"step-{self._state['step']}", self._tensors, self._state)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint; only ``steps`` and what concerns checkpoints may differ."""
        state = checkpoint.load_state(path)
        theirs, mine = config_of(path, state), self.config
        for item in dataclasses.fields(PPGConfig):
            ours, other = getattr(mine, item.name), getattr(theirs, item.name)
            if item.name not in ("steps", "checkpoint_every", "keep_checkpoints") and ours != other:
                raise CheckpointError(
                    f"{path} was trained with {item.name} = {other}, not {ours}: "
                    "use the same settings or a new run folder"
                )
        scale = state.get("reward_scale")
        try:
            iteration = checkpoint.count_in(state, "iteration", 2**62)
            if not isinstance(scale, list) or [type(x) for x in scale] != [int, float, float]:
                raise UserError(f"reward_scale must be a count and two numbers, got {brief(scale)}")
            _load_weights(self.network, path, state)
            for name, optimizer in self.optimizers.items():
                checkpoint.restore_optimizer(optimizer, checkpoint.load_tensors_of(path, name, state))
        except CheckpointError:
            raise
        except (UserError, RuntimeError) as error:
            raise misfit(path, error) from error
        self.iteration = iteration
        self.scale.count, self.scale.mean, self.scale.squares = scale
        self._remember()


def train_expert(
    run: Path, config: PPGConfig, *, resume: bool = False, device: str = "cpu"
) -> Generator[dict[str, float], None, None]:
    """Train in a run folder (config.json, metrics.jsonl, checkpoints): yields every iteration's metrics.

    Closing the generator, as Ctrl-C does, saves a checkpoint.
    """
    learner = PhasicPolicyGradient(config, device)  # refuses bad settings before anything is written
    folder = RunFolder(run).open(resume)
    try:
        newest = folder.newest()
        if resume and newest is None:
            raise NoRunError(f"{run} has no checkpoint to go on from: correct the folder, or start a new run")
        if newest is not None:
            learner.restore(newest)
        folder.start(dataclasses.asdict(config), learner.step)
    except BaseException:
        folder.close()
        raise
    return _logged(learner, folder)


def _logged(learner: PhasicPolicyGradient, folder: RunFolder) -> Generator[dict[str, float], None, None]:
    config = learner.config
    with folder:
        try:
            for metrics in learner.run():
                folder.log(metrics)
                if learner.iteration % config.checkpoint_every == 0 or learner.iteration == config.iterations:
                    folder.save(*learner.snapshot())
                    folder.prune(config.keep_checkpoints)
                yield metrics
        except (GeneratorExit, KeyboardInterrupt):
            if learner.iteration:
                folder.save(*learner.snapshot())
            raise


def _load_weights(network: ActorCritic, path: Path, state: dict[str, Any]) -> None:
    tensors = checkpoint.load_tensors_of(path, "model", state)
    checkpoint.check_tensors(network.state_dict(), tensors)
    network.load_state_dict(tensors)
