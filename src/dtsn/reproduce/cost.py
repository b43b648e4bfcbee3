"""What a campaign costs on this machine, told by a few steps before it starts; other work does not count."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from dtsn.batch import Batch
from dtsn.config import PPGConfig, TrainConfig
from dtsn.envs.procgen import FRAME_SHAPE
from dtsn.experts.ppg_policy import ActorCritic
from dtsn.processes import prepare
from dtsn.training.trainer import Trainer

WARMUP_STEPS = 2  # of training, not measured: the first ones are slower
PROBE_STEPS = 2  # of training
PROBE_FRAMES = 64  # that an expert sees at once


def probe(
    config: TrainConfig, shape: tuple[int, ...], num_actions: int, decisions: int
) -> tuple[float, float]:
    """Measure the core seconds of a training step with its whole search, and of one of many decisions.

    Single-threaded from here on, as the jobs are: two threads take more of both cores than one of one.
    """
    prepare()
    size = config.batch_size
    observation = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (size, *shape), dtype=np.uint8))
    batch = Batch(
        observation=observation,
        action=torch.zeros(size, dtype=torch.int64),
        reward=-torch.ones(size),
        q_target=-torch.ones(size),
        next_observation=observation,
        terminated=torch.zeros(size, dtype=torch.bool),
        path=torch.zeros(size, config.solver.iterations, dtype=torch.int64),  # for the ranking loss
    )
    trainer = Trainer(replace(config, search_warmup=0, search_ramp=0), shape, num_actions)
    for _ in range(WARMUP_STEPS):
        trainer.update(batch)
    started = time.process_time()
    for _ in range(PROBE_STEPS):
        trainer.update(batch)
    step = (time.process_time() - started) / PROBE_STEPS
    many = observation.repeat(-(-decisions // size), *(1 for _ in shape))[:decisions]
    trainer.solver.eval()
    trainer.solver.act(many)
    started = time.process_time()
    trainer.solver.act(many)
    return step, (time.process_time() - started) / decisions


def probe_expert(config: PPGConfig) -> float:
    """Measure the core seconds of an expert's decision while it learns: played once, then learned from."""
    prepare()
    network, frames = ActorCritic(config), torch.zeros(PROBE_FRAMES, *FRAME_SHAPE, dtype=torch.uint8)
    network(frames)  # the first call is slower
    started = time.process_time()
    with torch.no_grad():
        network.act(frames)
    played = time.process_time()
    log_probs, values = network(frames)
    (log_probs.mean() + values.mean()).backward()
    learned = time.process_time() - played
    epochs = config.policy_epochs + config.auxiliary_epochs
    return (played - started + epochs * learned * (1 if config.shared else 2)) / PROBE_FRAMES
