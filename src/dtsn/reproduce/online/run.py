"""Online runs: one program per (task, agent, seed), whose learning curve is one small file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from dtsn.errors import UserError
from dtsn.integrations.online import ITERATIONS, WEIGHTS
from dtsn.processes import prepare
from dtsn.reproduce.jobs import Executor, Job
from dtsn.reproduce.online.tasks import AGENTS, EPISODES, EVALUATIONS, TASKS, make_agent
from dtsn.reproduce.records import read_record, write_record
from dtsn.settings import difference, plain
from dtsn.storage import replace_durably

FIRST_TEST_SEED = 2_000_000  # of evaluation episodes; training draws its own, pilots had 1,000,000 up


class Cell(NamedTuple):
    """A run."""

    task: str
    agent: str
    seed: int


@dataclass(frozen=True)
class OnlineCampaign:
    """What to learn, by whom, and where to put it."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """cartpole, door_key, navigation"""
    agents: tuple[str, ...] = tuple(AGENTS)
    """dqn, treeqn, dtsn"""
    seeds: int = 5
    """runs of each agent on each task"""
    steps: int | None = None
    """environment steps; each task's own if not given"""
    results: Path = Path("results/online")
    """folder for raw rows and the summary"""
    runs: Path = Path("runs/online")
    """folder for logs"""

    def __post_init__(self) -> None:
        for name, known in (("tasks", TASKS), ("agents", AGENTS)):
            for given in getattr(self, name):
                if given not in known:
                    raise UserError(f"{name} must be of {', '.join(known)}, got {given!r}")
        if self.seeds < 1:
            raise UserError(f"seeds must be at least 1, got {self.seeds}")
        least = EVALUATIONS * max(TASKS[task].envs for task in self.tasks)
        if self.steps is not None and self.steps < least:
            raise UserError(f"steps must be at least {least}, got {self.steps}")

    def cells(self) -> list[Cell]:
        """Return all runs, seed by seed, so that an early stop leaves whole comparisons."""
        return [
            Cell(task, agent, seed)
            for seed in range(self.seeds)
            for task in self.tasks
            for agent in self.agents
        ]

    def path(self, cell: Cell) -> Path:
        """Return the file of a run's learning curve."""
        return self.results / "rows" / f"{cell.task}-{cell.agent}-{cell.seed}.json"

    def steps_of(self, task: str) -> int:
        """Count the environment steps of a run."""
        return self.steps or TASKS[task].steps

    def settings(self) -> dict[str, Any]:
        """Return what decides the rows of each task, as plain data."""
        return {
            name: plain(
                {
                    "steps": self.steps_of(name),
                    "gamma": task.gamma,
                    "envs": task.envs,
                    "reward_scale": task.reward_scale,
                    "iterations": ITERATIONS,
                    "weights": asdict(WEIGHTS),
                    "dqn": task.settings,
                    "network": asdict(task.network),
                    "mlp": task.mlp,
                }
            )
            for name, task in TASKS.items()
            if name in self.tasks
        }


def run_campaign(campaign: OnlineCampaign, executor: Executor, command: str) -> Iterator[tuple[Cell, str]]:
    """Make the runs that have no file yet; yields (run, outcome) as they end."""
    path, settings = campaign.results / "meta.json", campaign.settings()
    made = read_record(path).get("tasks", {})
    if differs := difference(made, settings):
        raise UserError(
            f"{campaign.results} was made with other settings ({differs}): move it away or use another folder"
        )
    waiting = [cell for cell in campaign.cells() if not campaign.path(cell).exists()]
    if waiting:
        write_record(path, command, {"tasks": made | settings})
    jobs = {
        cell: Job(
            "dtsn.reproduce.online.run",
            (*map(str, cell), str(campaign.steps_of(cell.task)), str(campaign.path(cell))),
            campaign.runs / f"{cell.task}-{cell.agent}-{cell.seed}.log",
        )
        for cell in waiting
    }
    return executor.run(jobs)


def learn(cell: Cell, steps: int) -> dict[str, Any]:
    """Learn, and evaluate at equal distances: the curve of mean returns, and what learning cost."""
    from stable_baselines3.common.callbacks import BaseCallback

    task = TASKS[cell.task]
    due = [steps * part // EVALUATIONS for part in range(1, EVALUATIONS + 1)]
    rows: list[dict[str, Any]] = []

    class Curve(BaseCallback):  # type: ignore[misc]
        """Evaluates where a point of the curve is due; its own time does not count."""

        def _on_training_start(self) -> None:
            self.start, self.spent = time.process_time(), 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps >= due[len(rows)]:
                before = time.process_time()
                returns = evaluate(self.model, task.make, EPISODES)
                seconds = before - self.start - self.spent
                point = {"step": self.num_timesteps, "return": fmean(returns), "cpu_seconds": seconds}
                print(json.dumps(point), flush=True)
                rows.append({**point, "returns": returns})
                self.spent += time.process_time() - before
            return len(rows) < len(due)

    make_agent(task, cell.agent, cell.seed).learn(steps, callback=Curve())
    return {**cell._asdict(), "episodes": EPISODES, "curve": rows}


def evaluate(agent: Any, make: Callable[[], gymnasium.Env[Any, Any]], episodes: int) -> list[float]:
    """Play the same episodes deterministically for every agent, side by side; return their returns."""
    envs = [make() for _ in range(episodes)]
    seen = [env.reset(seed=FIRST_TEST_SEED + episode)[0] for episode, env in enumerate(envs)]
    returns, running = [0.0] * episodes, list(range(episodes))
    while running:
        actions, _ = agent.predict(np.stack([seen[episode] for episode in running]), deterministic=True)
        still = []
        for episode, action in zip(running, actions, strict=True):
            seen[episode], reward, terminated, truncated, _ = envs[episode].step(int(action))
            returns[episode] += float(reward)
            if not (terminated or truncated):
                still.append(episode)
        running = still
    return returns


def main() -> None:
    """Run one cell: task, agent, seed, steps and the file to write."""
    task, agent, seed, steps, path = sys.argv[1:]
    prepare(1)
    found = learn(Cell(task, agent, int(seed)), int(steps))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace_durably(Path(path), (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()
