"""Train and test the variants of Navigation's tables, resumably, several runs side by side.

``python -m dtsn.reproduce.navigation.run SETTINGS VARIANT SEED`` is one job: it trains from the last
checkpoint if there is one, tests, and skips rows that exist.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtsn.data.reader import Dataset
from dtsn.envs.navigation import NavigationOptions
from dtsn.evaluation.levels import unseen_levels
from dtsn.evaluation.navigation import ROWS_AT_ONCE, evaluate_navigation
from dtsn.evaluation.plans import evaluate_plans
from dtsn.evaluation.rows import Scenario, write_rows
from dtsn.experts.collect import collect_navigation
from dtsn.processes import prepare
from dtsn.reproduce.cost import probe
from dtsn.reproduce.jobs import Executor, Job
from dtsn.reproduce.navigation.curves import Curve, softmax_column
from dtsn.reproduce.navigation.plan import Campaign, Task
from dtsn.reproduce.navigation.variants import EXITS, VARIANTS, Variant
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.loop import has_run, train_run
from dtsn.training.trainer import Trainer

DECISIONS = 25  # of an episode, roughly: short ways, and some that time out


def run_campaign(campaign: Campaign, executor: Executor) -> Iterator[tuple[Task, str]]:
    """Run what is missing; yields (task, outcome) as they end.

    Closing the generator stops the jobs; each resumes from its last checkpoint the next time.
    """
    waiting = [task for task in campaign.tasks() if not campaign.is_done(task)]
    for task in waiting:
        collect_data(campaign.runs, VARIANTS[task.variant].family.options)
    settings = json.dumps({**vars(campaign), "results": str(campaign.results), "runs": str(campaign.runs)})
    jobs = {
        task: Job(__name__, (settings, task.variant, str(task.seed)), campaign.log_path(task))
        for task in waiting
    }
    # What acts with the weights of another run waits for it.
    yield from executor.run({task: job for task, job in jobs.items() if campaign.training(task) == task})
    yield from executor.run({task: job for task, job in jobs.items() if campaign.training(task) != task})


def run_task(campaign: Campaign, task: Task) -> None:
    """Train one variant with one seed, from its last checkpoint if it has one, and test it."""
    prepare()
    row, run = VARIANTS[task.variant], campaign.run_folder(task)
    train_task(campaign, campaign.training(task))
    if row.purpose == "weight_search":
        return
    for scenario, levels in campaign.missing_tests(task):
        solver = _acting(row, run, campaign.device, scenario)
        options = row.options(scenario.exits)
        seeds = unseen_levels("test", levels, options)
        rows = evaluate_navigation(solver, seeds, options, temperature=scenario.temperature)
        write_rows(campaign.episodes_path(task, scenario), rows)
    for scenario in campaign.missing_plans(task):
        solver = _acting(row, run, campaign.device, scenario)
        options = row.options(scenario.exits)
        seeds = unseen_levels("test", min(campaign.plan_levels, campaign.levels), options)
        write_rows(campaign.plans_path(task, scenario), evaluate_plans(solver, seeds, options))


def train_task(campaign: Campaign, task: Task) -> None:
    """Train a run to its last step, validating on the way."""
    row, run, config = VARIANTS[task.variant], campaign.run_folder(task), campaign.config(task)
    with Dataset(collect_data(campaign.runs, row.family.options)) as dataset:
        trainer = Trainer(config, dataset.observation, dataset.num_actions, campaign.device)
        started = time.monotonic()
        steps = train_run(run, trainer, dataset, resume=has_run(run))
        curve = Curve(campaign.curve_path(task), until=trainer.step)
        metrics: dict[str, float] | None = {}
        while metrics is not None:  # a run that was stopped while validating starts by making up for it
            due = trainer.step % campaign.validate_every == 0 or trainer.step == trainer.config.steps
            if due and trainer.step and trainer.step not in curve.steps():
                point = validate(trainer.solver, row, campaign.validation_levels)
                if trainer.step == trainer.config.steps:
                    point |= validate_draws(trainer.solver, row, campaign.validation_levels)
                point["minutes"] = (time.monotonic() - started) / 60
                curve.write(trainer.step, point)
            metrics = next(steps, None)
            if metrics is not None:
                curve.add(metrics)


def validate(solver: Solver, row: Variant, levels: int) -> dict[str, float]:
    """Measure success on validation levels, in both scenarios."""
    point = {}
    for exits in EXITS:
        options = row.options(exits)
        rows = evaluate_navigation(solver, unseen_levels("validation", levels, options), options)
        point[f"validation_success_{exits}"] = sum(found.success for found in rows) / len(rows)
    return point


def validate_draws(solver: Solver, row: Variant, levels: int) -> dict[str, float]:
    """Measure the mean return on validation levels with two exits, by the temperature of drawn actions.

    An episode that does not arrive counts as one that took all steps.
    """
    point, options = {}, row.options(2)
    for temperature in row.temperatures:
        seeds = unseen_levels("validation", levels, options)
        rows = evaluate_navigation(solver, seeds, options, temperature=temperature)
        returns = [-found.steps if found.success else -options.max_steps for found in rows]
        point[softmax_column(temperature)] = sum(returns) / len(returns)
    return point


def _acting(row: Variant, run: Path, device: str, scenario: Scenario) -> Solver:
    search: dict[str, Any] = {"act_iterations": scenario.act_iterations, "act_rule": scenario.rule}
    return load_solver(run, device, **search, merge=row.solver.merge)


def collect_data(folder: Path, options: NavigationOptions) -> Path:
    """Collect the 1000 expert trajectories through halls like these, unless they are there.

    All runs have the same: small halls are few, and test halls must be new to every run.
    """
    first, last = options.hall
    path = folder / f"navigation-{options.exit_layout}-{first}-{last}.h5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        collect_navigation(path, options=options, overwrite=True)
    return path


def estimate_hours(campaign: Campaign) -> float:
    """Estimate the hours of one core that are left, by a few steps of every variant on this machine."""
    seconds: dict[str, tuple[float, float]] = {}
    total = 0.0
    for task in campaign.tasks():
        if campaign.is_done(task):
            continue
        if task.variant not in seconds:
            size = VARIANTS[task.variant].options(2).size
            seconds[task.variant] = probe(campaign.config(task), (3, size, size), 4, ROWS_AT_ONCE)
        step, decision = seconds[task.variant]
        shares = campaign.training(task) != task
        total += 0 if shares or campaign.is_trained(task) else campaign.config(task).steps * step
        own = VARIANTS[task.variant].act_iterations
        played = sum(
            levels * scenario.act_iterations / own for scenario, levels in campaign.missing_tests(task)
        )
        played += campaign.plan_levels * len(campaign.missing_plans(task))
        total += played * DECISIONS * decision
    return total / 3600


if __name__ == "__main__":
    raw = json.loads(sys.argv[1])
    raw |= {"variants": tuple(raw["variants"]), "results": Path(raw["results"]), "runs": Path(raw["runs"])}
    run_task(Campaign(**raw), Task(sys.argv[2], int(sys.argv[3])))
