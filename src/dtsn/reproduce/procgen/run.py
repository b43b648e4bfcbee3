"""Procgen from nothing to rows: per game an expert, its data, the solvers on them, and their tests.

``python -m dtsn.reproduce.procgen.run SETTINGS GAME`` is one job. Every part is skipped if it is there and
resumed if it was begun, so a campaign can be stopped at any time.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dtsn.arrays import Ints
from dtsn.config import SOLVERS
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, ProcgenOptions, split_range
from dtsn.errors import UserError
from dtsn.evaluation.predictions import check_predictions
from dtsn.evaluation.procgen import GAMES_AT_ONCE, evaluate_procgen, solver_policy
from dtsn.evaluation.rows import write_rows
from dtsn.experts import ppg
from dtsn.experts.behaviour import BehaviourPolicy
from dtsn.experts.collect import collect_procgen, random_policy
from dtsn.experts.ppg_policy import export_expert, load_expert
from dtsn.experts.scripted import ScriptedExpert
from dtsn.processes import prepare
from dtsn.reproduce.cost import probe, probe_expert
from dtsn.reproduce.jobs import Executor, Job
from dtsn.reproduce.procgen.budgets import PROCGEN_VARIANTS
from dtsn.reproduce.procgen.plan import ProcgenCampaign
from dtsn.storage import replace_durably
from dtsn.training.loading import load_solver
from dtsn.training.loop import has_run, train_run
from dtsn.training.runs import RunFolder, read_metrics
from dtsn.training.trainer import Trainer

DECISIONS = 200  # of an episode, roughly
CHECKED_BATCH, CHECKED_BATCHES = 256, 16  # of transitions, to compare world models with
PROBE_BATCH = 64  # a training step of the paper's size would take too long to be timed


def run_campaign(campaign: ProcgenCampaign, executor: Executor) -> Iterator[tuple[str, str]]:
    """Run the games with something missing; yields (game, outcome) as they end."""
    settings = {**vars(campaign), "results": str(campaign.results), "runs": str(campaign.runs)}
    waiting = {
        game: Job(
            __name__,
            (json.dumps(settings), game),
            campaign.runs / campaign.budget / f"{game}.log",
        )
        for game in campaign.games
        if not campaign.is_done(game)
    }
    return executor.run(waiting)


def run_game(campaign: ProcgenCampaign, game: str, say: Callable[[str], None] = print) -> None:
    """Make everything that is missing of one game, in order."""
    prepare()
    budget = campaign.settings
    options = ProcgenOptions(game, budget.mode)
    folder = campaign.runs / campaign.budget / game
    levels: Ints = np.arange(*split_range("validation" if campaign.choose else "test", budget.levels))
    seconds: dict[str, float] = {}
    for player, seed in campaign.missing(game):
        started = time.monotonic()
        if player == "random":
            policy = random_policy(seed)
        elif player == "expert":
            policy = behaviour_policy(campaign, game).policy(seed, min(GAMES_AT_ONCE, len(levels)))
        else:
            collect(campaign, game)
            trained_as = budget.trained_as(player)
            run = folder / trained_as / f"seed-{seed}"
            train_solver(campaign, game, trained_as, seed)
            acting = budget.config(player, seed).solver
            solver = load_solver(
                run, campaign.device, act_rule=acting.act_rule, act_iterations=acting.act_iterations
            )
            policy = solver_policy(solver, levels, seed, budget.temperature_of(player))
        seconds["training"] = time.monotonic() - started
        rows = evaluate_procgen(policy, options, levels)
        write_rows(campaign.rows_path(game, player, seed), rows)
        seconds["testing"] = time.monotonic() - started - seconds["training"]
        mean = sum(row.score for row in rows) / len(rows)
        spent = ", ".join(f"{name} {value / 60:.1f} min" for name, value in seconds.items())
        say(f"{game} {player} seed {seed}: mean score {mean:.2f} on {len(rows)} levels ({spent})")
    if not campaign.choose:
        check_models(campaign, game)
    if not campaign.is_done(game):
        write_curve(campaign, game)


def check_models(campaign: ProcgenCampaign, game: str) -> None:
    """Compare the world models of a game's runs with its data; what was compared before is skipped."""
    data = campaign.data_path(game)
    waiting = [
        (run, path)
        for player, seed in campaign.tests(game)
        if has_world_model(player)
        and not (path := campaign.predictions_path(game, player, seed)).exists()
        and has_run(run := campaign.runs / campaign.budget / game / player / f"seed-{seed}")
    ]
    if not waiting or not data.exists():
        return
    with Dataset(data, verify=False) as dataset:
        size = min(CHECKED_BATCH, len(dataset))
        batches = list(itertools.islice(dataset.batches(size, seed=0), CHECKED_BATCHES))
    for run, path in waiting:
        found = check_predictions(load_solver(run, campaign.device), batches)
        known = {name: value if np.isfinite(value) else None for name, value in found._asdict().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, (json.dumps(known, indent=1) + "\n").encode())


def has_world_model(player: str) -> bool:
    """Tell whether a player is a run of its own in which a world model is trained."""
    recipe = PROCGEN_VARIANTS.get(player)
    return recipe is not None and not recipe.weights_of and "reward" in SOLVERS[recipe.solver].losses


def behaviour_policy(campaign: ProcgenCampaign, game: str) -> BehaviourPolicy:
    """Return the behaviour policy of a game: scripted, kept from an earlier run, or trained now."""
    if game in campaign.settings.scripted:
        return ScriptedExpert(ProcgenOptions(game, campaign.settings.mode))
    kept = campaign.expert_path(game)
    if not kept.exists():
        export_expert(train_expert(campaign, game), kept)
    return load_expert(kept, campaign.device)


def train_expert(campaign: ProcgenCampaign, game: str) -> Path:
    """Train the behaviour policy of a game, or go on with it, in the run folder that is returned."""
    run = campaign.runs / campaign.budget / game / "expert"
    begun = RunFolder(run).newest() is not None
    config = campaign.settings.expert_of(game)
    for _ in ppg.train_expert(run, config, resume=begun, device=campaign.device):
        pass
    return run


def write_curve(campaign: ProcgenCampaign, game: str) -> None:
    """Write the behaviour policy's learning curve: return and success of its last 100 episodes by step."""
    rows = read_metrics(campaign.metrics_path(game))
    lines = [f"{row['step']},{row['return']:.4f},{row['success']:.4f}" for row in rows if "return" in row]
    path = campaign.curve_path(game)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, "\n".join(["step,return,success", *lines, ""]).encode())


def collect(campaign: ProcgenCampaign, game: str) -> None:
    """Collect the data set of a game, or go on with it."""
    path, budget = campaign.data_path(game), campaign.settings
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        collect_procgen(
            path,
            ProcgenOptions(game, budget.mode),
            behaviour_policy(campaign, game),
            episodes=budget.episodes_of(game),
            keep=budget.keep(game),
            discount=budget.train.solver.discount,
        )


def rediscount(source: Path, path: Path, discount: float) -> None:
    """Write a data set again with returns of another discount."""
    with Dataset(source) as dataset:
        kept = ("env_id", "env_options", "provenance", "real_last_frames")
        known = {name: dataset.header[name] for name in kept}
        with DatasetWriter(
            path,
            **known,
            num_actions=dataset.num_actions,
            observation_shape=FRAME_SHAPE,
            discount=discount,
        ) as writer:
            for number in range(dataset.num_episodes):
                writer.add_episode(dataset.episode(number))


def train_solver(campaign: ProcgenCampaign, game: str, variant: str, seed: int) -> None:
    """Train a solver on a game's data set, or go on with it."""
    run = campaign.runs / campaign.budget / game / variant / f"seed-{seed}"
    config = campaign.settings.config(variant, seed)
    path = campaign.data_path(game, config.solver.discount)
    if not path.exists():
        rediscount(campaign.data_path(game), path, config.solver.discount)
    with Dataset(path) as dataset:
        found = dataset.header["env_options"].get("game"), dataset.header["env_options"].get("mode")
        if found != (game, campaign.settings.mode):
            raise UserError(f"{dataset.path} is of {found[0]} ({found[1]}), not {game}: move it away")
        trainer = Trainer(config, dataset.observation, dataset.num_actions, campaign.device)
        for _ in train_run(run, trainer, dataset, resume=has_run(run)):
            pass


def estimate_hours(campaign: ProcgenCampaign) -> float:
    """Estimate the hours of one core that are left to do, by a few steps of every part on this machine."""
    budget, seconds = campaign.settings, 0.0
    train = replace(budget.train, batch_size=min(PROBE_BATCH, budget.train.batch_size))
    share = budget.train.batch_size / train.batch_size
    probes: dict[str, tuple[float, float]] = {}
    for game in campaign.games:
        missing = campaign.missing(game)
        players = {player for player, _ in missing} - {"random"}
        if players and game not in budget.scripted and not campaign.expert_path(game).exists():
            expert = budget.expert_of(game)
            seconds += expert.steps / expert.action_repeat * probe_expert(expert)
        trained: set[tuple[str, int]] = set()
        for player, seed in (test for test in missing if test[0] not in ("random", "expert")):
            config = replace(budget, train=train).config(player, 0)
            if player not in probes:
                probes[player] = probe(config, FRAME_SHAPE, NUM_ACTIONS, PROBE_BATCH)
            step, decision = probes[player]
            seconds += budget.levels * DECISIONS * decision
            run = (budget.trained_as(player), seed)
            seconds += config.steps * share * step * (run not in trained)
            trained.add(run)
    return seconds / 3600


if __name__ == "__main__":
    raw = json.loads(sys.argv[1])
    raw |= {name: tuple(raw[name]) for name in ("games", "solvers", "candidates")}
    raw |= {"results": Path(raw["results"]), "runs": Path(raw["runs"])}
    run_game(ProcgenCampaign(**raw), sys.argv[2])
