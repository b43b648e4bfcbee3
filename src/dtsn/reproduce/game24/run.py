"""Runs of the Game of 24: one program per (variant, seed), whose results are one small file."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dtsn.arrays import Ints
from dtsn.batch import Batch
from dtsn.config import Rule
from dtsn.envs.game24 import puzzles_of
from dtsn.envs.game24_graph import CHOICES, DECISIONS
from dtsn.evaluation.game24 import WIN, known_game24, looked_up, play
from dtsn.experts.game24 import Demonstrations, demonstrate
from dtsn.processes import prepare
from dtsn.reproduce.game24.plan import (
    ACT_ITERATIONS,
    ACT_TEMPERATURE,
    EMBEDDING,
    HIDDEN,
    RULES,
    VALIDATED,
    VARIANTS,
    Cell,
    Game24Campaign,
    Variant,
)
from dtsn.reproduce.jobs import Executor, Job
from dtsn.reproduce.records import write_record
from dtsn.settings import plain
from dtsn.solvers.solver import Solver
from dtsn.storage import replace_durably
from dtsn.training.trainer import Trainer

LOG_EVERY = 100  # steps


def run_campaign(campaign: Game24Campaign, executor: Executor, command: str) -> Iterator[tuple[Cell, str]]:
    """Make the runs that have no row yet; yields (run, outcome) as they end."""
    waiting = list(campaign.waiting())
    if waiting:
        configs = {
            name: plain(dataclasses.asdict(variant.config(0, campaign.steps)))
            for name, variant in VARIANTS.items()
        }
        settings = {
            "network": {"hidden": HIDDEN, "embedding": EMBEDDING, "win": WIN},
            "act_temperature": ACT_TEMPERATURE,
            "variants": configs,
        }
        write_record(campaign.results / "meta.json", command, settings)
    jobs = {
        cell: Job(
            "dtsn.reproduce.game24.run",
            (
                cell.variant,
                str(cell.seed),
                str(campaign.steps or 0),
                str(campaign.path(cell)),
                str(campaign.runs / f"{cell.variant}-{cell.seed}"),
            ),
            campaign.runs / f"{cell.variant}-{cell.seed}.log",
        )
        for cell in waiting
    }
    return executor.run(jobs)


def train(variant: Variant, seed: int, steps: int | None = None) -> Solver:
    """Train on demonstrations that are the same for every solver of this seed and number."""
    config = variant.config(seed, steps)
    torch.manual_seed(seed)  # of the fresh value network
    trainer = Trainer(config, (), CHOICES, world_model=known_game24(HIDDEN, EMBEDDING))
    data = demonstrate(variant.trajectories, seed)
    for metrics in map(trainer.update, batches(data, config.batch_size, config.steps, seed)):
        if metrics["step"] % LOG_EVERY == 0:
            print(json.dumps({name: round(value, 4) for name, value in metrics.items()}), flush=True)
    return trainer.solver.eval()


def batches(data: Demonstrations, size: int, number: int, seed: int) -> Iterator[Batch]:
    """Yield shuffled decisions, epoch after epoch; the return of every one of them is a win."""
    states, following = data.states[:, :-1].ravel(), data.states[:, 1:].ravel()
    actions, rng = data.actions.ravel(), np.random.default_rng(seed)
    last = np.zeros(data.actions.shape, bool)
    last[:, -1] = True
    ends, order = last.ravel(), np.empty(0, np.int64)
    paths = np.stack([_from(data.actions, start) for start in range(DECISIONS)], 1).reshape(-1, DECISIONS)
    for _ in range(number):
        while len(order) < size:
            order = np.append(order, rng.permutation(len(states)))
        rows, order = order[:size], order[size:]
        yield Batch.of(
            {
                "observation": states[rows],
                "action": actions[rows],
                "reward": WIN * ends[rows],
                "q_target": np.full(size, WIN),
                "next_observation": following[rows],
                "terminated": ends[rows],
                "path": paths[rows],
            }
        )


def _from(actions: Ints, start: int) -> Ints:
    """Return the decisions ``[N, 9]`` from number ``start`` on; −1 after the last."""
    return np.pad(actions[:, start:], ((0, 0), (0, start)), constant_values=-1)


def test(solver: Solver) -> Iterator[dict[str, Any]]:
    """Play every test puzzle with every T and rule; ``solved`` has a digit for each, in the split's order."""
    for rule in RULES:
        for iterations in ACT_ITERATIONS:
            solved = play(acting(solver, iterations, rule), puzzles_of("test"))
            digits = "".join("01"[outcome] for outcome in solved.astype(int))
            yield {"act_T": iterations, "rule": rule, "solved": digits}


def acting(solver: Solver, iterations: int, rule: Rule) -> Solver:
    """Return the same solver, acting with this T and rule."""
    config = dataclasses.replace(
        solver.config, act_iterations=iterations, act_rule=rule, temperature=ACT_TEMPERATURE
    )
    return Solver(
        solver.world_model, config, solver.observation_shape, observation_space=solver.observation_space
    ).eval()


def main() -> None:
    """Run one cell: variant, seed, steps (0: the recipe's), the file to write, the folder of the solver."""
    name, seed, steps, path, folder = sys.argv[1:]
    prepare(1)
    variant, start = VARIANTS[name], time.process_time()
    solver = train(variant, int(seed), int(steps) or None)
    seconds = time.process_time() - start
    quick = looked_up(solver)
    validation = play(acting(quick, VALIDATED, "greedy"), puzzles_of("validation"))
    found = {
        **dataclasses.asdict(variant),
        "seed": int(seed),
        "weights": sum(weight.numel() for weight in solver.parameters()),
        "cpu_seconds": round(seconds, 1),
        "validation": float(validation.mean()),
        "tests": list(test(quick)),
    }
    solver.environment = "dtsn/Game24-v0"
    solver.save(folder)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace_durably(Path(path), (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()
