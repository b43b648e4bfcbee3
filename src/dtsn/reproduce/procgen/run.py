"""Procgen from nothing to rows: per game an expert, its data, the solvers on them, and their tests.

Every part is skipped if it is there and resumed if it was begun, so a campaign can be stopped at any time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dtsn.envs.procgen import GAMES, ProcgenOptions, split_range
from dtsn.errors import UserError
from dtsn.experts.behaviour import BehaviourPolicy, scripted_expert
from dtsn.processes import prepare
from dtsn.reproduce.jobs import Job, LocalProcesses
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS, PROCGEN_VARIANTS, ProcgenBudget
from dtsn.reproduce.records import read_record, write_record
from dtsn.settings import difference, plain
from dtsn.spelling import did_you_mean

# What one core of a small machine does, to say beforehand what a campaign costs.
EXPERT_STEPS_PER_SECOND = {"nature": 600, "impala_fast": 300, "impala": 40}
SECONDS_PER_SAMPLE = {  # of a training step, by encoder and solver
    "nature": {"qnet": 0.5e-3, "search": 0.8e-3, "treeqn": 5e-3, "dtsn": 3e-3},
    "impala_fast": {"qnet": 1.1e-3, "search": 1.5e-3, "treeqn": 2.3e-3, "dtsn": 2.6e-3},
    "impala": {"qnet": 5e-3, "search": 7e-3, "treeqn": 9e-3, "dtsn": 8e-3},
}
SECONDS_PER_TEST = {"qnet": 0.1, "search": 0.4, "treeqn": 0.8, "dtsn": 0.4, "expert": 0.1, "random": 0.05}


@dataclass(frozen=True)
class ProcgenCampaign:
    """What to run and where to put it."""

    games: tuple[str, ...] = ("coinrun", "leaper", "maze", "starpilot")
    """which of the 16 games; all: every one of them"""
    budget: str = "cpu"
    """cpu: what a laptop does in hours; day: better policies, longer training, some hours a game;
    paper: the paper's numbers (weeks of a GPU); tiny: to try it out"""
    solvers: tuple[str, ...] = ("qnet", "search", "treeqn", "dtsn")
    """rows of the tables; also cloning, dtsn-no-telescoping, dtsn-no-reinforce, dtsn-no-auxiliary,
    dtsn-5, dtsn-20; none: only the experts"""
    seeds: int = 1
    """training runs of each solver, seeds 0 and up"""
    device: Literal["cpu", "cuda"] = "cpu"
    """of every run; the paper's budget asks for cuda"""
    results: Path = Path("results/procgen")
    """raw rows and the weights of the experts: small, worth keeping"""
    runs: Path = Path("runs/procgen")
    """data sets and checkpoints: large"""

    def __post_init__(self) -> None:
        if self.games == ("all",):
            object.__setattr__(self, "games", tuple(GAMES))
        for what, names, known in (
            ("game", self.games, GAMES),
            ("solver", self.solvers, PROCGEN_VARIANTS),
            ("budget", (self.budget,), PROCGEN_BUDGETS),
        ):
            if not names and what != "solver":
                raise UserError(f"give at least one {what}")
            for name in names:
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise UserError(f"unknown {what} {name!r}, choose from {', '.join(known)}{hint}")
        if self.seeds < 1:
            raise UserError(f"seeds must be at least 1, got {self.seeds}")

    @property
    def numbers(self) -> ProcgenBudget:
        """The numbers behind the budget's name."""
        return PROCGEN_BUDGETS[self.budget]

    def tests(self) -> list[tuple[str, int]]:
        """(player, seed) of all rows of a game: the yardsticks first."""
        solvers = [(name, seed) for seed in range(self.seeds) for name in self.solvers]
        return [("random", 0), ("expert", 0), *solvers]

    def rows_path(self, game: str, player: str, seed: int) -> Path:
        """Where the test rows of a player go."""
        return self.results / "rows" / self.budget / game / player / f"seed-{seed}.csv.gz"

    def curve_path(self, game: str) -> Path:
        """Where the learning curve of a game's behaviour policy goes."""
        return self.results / "curves" / self.budget / f"{game}.csv"

    def expert_path(self, game: str) -> Path:
        """Where the weights of a game's behaviour policy go once it is trained."""
        return self.results / "experts" / self.budget / game

    def metrics_path(self, game: str) -> Path:
        """What a game's behaviour policy logs while it learns."""
        return self.runs / self.budget / game / "expert" / "metrics.jsonl"

    def missing(self, game: str) -> list[tuple[str, int]]:
        """The tests that a game still owes."""
        return [test for test in self.tests() if not self.rows_path(game, *test).exists()]

    def is_done(self, game: str) -> bool:
        """Whether nothing of a game is left to do; a curve needs the expert's run, which a clone has not."""
        curve_owed = self.metrics_path(game).exists() and not self.curve_path(game).exists()
        return not self.missing(game) and not curve_owed

    def cost(self) -> float:
        """A rough guess of the hours of one core that are left to do."""
        budget, seconds = self.numbers, 0.0
        encoder = budget.train.network.encoder
        for game in self.games:
            missing = self.missing(game)
            players = {player for player, _ in missing} - {"random"}
            if players and game not in budget.scripted and not self.expert_path(game).exists():
                expert = budget.expert_of(game)
                seconds += expert.steps / expert.action_repeat / EXPERT_STEPS_PER_SECOND[expert.encoder]
            if players - {"expert"} and not self.data_path(game).exists():
                seconds += budget.episodes * 0.5
            for player, _ in missing:
                kind = PROCGEN_VARIANTS[player].solver if player in PROCGEN_VARIANTS else player
                seconds += budget.levels * SECONDS_PER_TEST[kind]
                if kind in SECONDS_PER_SAMPLE[encoder]:
                    samples = budget.train.steps * budget.train.batch_size
                    seconds += samples * SECONDS_PER_SAMPLE[encoder][kind]
        return seconds / 3600

    def data_path(self, game: str) -> Path:
        """The data set of a game."""
        return self.runs / self.budget / game / "data.h5"


def run_campaign(campaign: ProcgenCampaign, jobs: int = 2) -> Iterator[tuple[str, str]]:
    """Run the games with something missing, ``jobs`` at a time; yields (game, outcome) as they end."""
    settings = {**vars(campaign), "results": str(campaign.results), "runs": str(campaign.runs)}
    waiting = {
        game: Job(
            "dtsn.reproduce.procgen.run",
            (json.dumps(settings), game),
            campaign.runs / campaign.budget / f"{game}.log",
        )
        for game in campaign.games
        if not campaign.is_done(game)
    }
    yield from LocalProcesses(jobs).run(waiting)


def run_game(campaign: ProcgenCampaign, game: str, say: Callable[[str], None] = print) -> None:
    """Everything that is missing of one game, in order."""
    from dtsn.evaluation.procgen import GAMES_AT_ONCE, evaluate_procgen, solver_policy
    from dtsn.evaluation.rows import write_rows
    from dtsn.experts.collect import random_policy
    from dtsn.training.loading import load_solver

    prepare()
    budget = campaign.numbers
    options = ProcgenOptions(game, budget.mode)
    folder = campaign.runs / campaign.budget / game
    levels = _test_levels(budget.levels)
    seconds: dict[str, float] = {}
    for player, seed in campaign.missing(game):
        started = time.monotonic()
        if player == "random":
            policy = random_policy(seed)
        elif player == "expert":
            policy = behaviour_policy(campaign, game).policy(seed, min(GAMES_AT_ONCE, len(levels)))
        else:
            collect(campaign, game)
            run = folder / player / f"seed-{seed}"
            train_solver(campaign, game, player, seed)
            policy = solver_policy(load_solver(run, campaign.device), levels, seed)
        seconds["training"] = time.monotonic() - started
        rows = evaluate_procgen(policy, options, levels)
        write_rows(campaign.rows_path(game, player, seed), rows)
        seconds["testing"] = time.monotonic() - started - seconds["training"]
        mean = sum(row.score for row in rows) / len(rows)
        spent = ", ".join(f"{name} {value / 60:.1f} min" for name, value in seconds.items())
        say(f"{game} {player} seed {seed}: mean score {mean:.2f} on {len(rows)} levels ({spent})")
    if not campaign.is_done(game):
        write_curve(campaign, game)


def _test_levels(count: int) -> Any:
    import numpy as np

    return np.arange(*split_range("test", count))


def behaviour_policy(campaign: ProcgenCampaign, game: str) -> BehaviourPolicy:
    """The behaviour policy of a game: scripted, kept from an earlier run, or trained now."""
    from dtsn.experts.ppg_policy import export_expert, load_expert

    if game in campaign.numbers.scripted:
        return scripted_expert(ProcgenOptions(game, campaign.numbers.mode))
    kept = campaign.expert_path(game)
    if not kept.exists():
        export_expert(train_expert(campaign, game), kept)
    return load_expert(kept, campaign.device)


def train_expert(campaign: ProcgenCampaign, game: str) -> Path:
    """Train the behaviour policy of a game, or go on with it, in the run folder that is returned."""
    from dtsn.experts import ppg
    from dtsn.training.runs import RunFolder

    run = campaign.runs / campaign.budget / game / "expert"
    begun = RunFolder(run).newest() is not None
    config = campaign.numbers.expert_of(game)
    for _ in ppg.train_expert(run, config, resume=begun, device=campaign.device):
        pass
    return run


def write_curve(campaign: ProcgenCampaign, game: str) -> None:
    """The behaviour policy's learning curve: return and success of its last 100 episodes at every step."""
    from dtsn.storage import replace_durably
    from dtsn.training.runs import read_metrics

    rows = read_metrics(campaign.metrics_path(game))
    lines = [f"{row['step']},{row['return']:.4f},{row['success']:.4f}" for row in rows if "return" in row]
    path = campaign.curve_path(game)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, "\n".join(["step,return,success", *lines, ""]).encode())


def collect(campaign: ProcgenCampaign, game: str) -> None:
    """Collect the data set of a game, or go on with it."""
    from dtsn.experts.collect import collect_procgen

    path, budget = campaign.data_path(game), campaign.numbers
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        collect_procgen(
            path,
            ProcgenOptions(game, budget.mode),
            behaviour_policy(campaign, game),
            episodes=budget.episodes,
            keep=budget.keep(game),
            discount=budget.train.solver.discount,
        )


def train_solver(campaign: ProcgenCampaign, game: str, variant: str, seed: int) -> None:
    """Train a solver on a game's data set, or go on with it."""
    from dtsn.data.reader import Dataset
    from dtsn.training.trainer import Trainer, has_run, train_run

    run = campaign.runs / campaign.budget / game / variant / f"seed-{seed}"
    with Dataset(campaign.data_path(game)) as dataset:
        found = dataset.header["env_options"].get("game"), dataset.header["env_options"].get("mode")
        if found != (game, campaign.numbers.mode):
            raise UserError(f"{dataset.path} is of {found[0]} ({found[1]}), not {game}: move it away")
        config = campaign.numbers.config(variant, seed)
        trainer = Trainer(config, dataset.observation, dataset.num_actions, campaign.device)
        for _ in train_run(run, trainer, dataset, resume=has_run(run)):
            pass


def record_path(campaign: ProcgenCampaign) -> Path:
    """Where it is said how the rows were made."""
    return campaign.results / "rows" / campaign.budget / "meta.json"


def check_record(campaign: ProcgenCampaign) -> None:
    """Refuse to go on with rows of other numbers under the same budget's name."""
    path = record_path(campaign)
    theirs, ours = read_record(path).get("numbers", {}), plain(asdict(campaign.numbers))
    for folder in sorted(each for each in path.parent.glob("*") if theirs and each.name in GAMES):
        players = {rows.parent.name for rows in folder.glob("*/*.csv.gz")}
        differs = difference(_behind(theirs, folder.name, players), _behind(ours, folder.name, players))
        if differs:
            raise UserError(
                f"{folder} has rows of another {campaign.budget} budget ({differs}): "
                "move them away or use another --results folder"
            )


def _behind(numbers: Mapping[str, Any], game: str, players: Set[str]) -> dict[str, Any]:
    """The numbers of a budget, as plain data, that the rows of these players of a game depend on."""
    names = ["mode", "levels"]
    known: dict[str, Any] = {}
    if players - {"random"}:
        known["scripted"] = game in numbers.get("scripted", ())
        expert = numbers.get("other_experts", {}).get(game) or numbers.get("expert", {})
        known["expert"] = {} if known["scripted"] else {**expert, "game": game}
    if players - {"random", "expert"}:
        names += ["episodes", "train"]
        known["keep_all"] = game in numbers.get("unfinished", ())
    return known | {name: numbers[name] for name in names if name in numbers}


def write_meta(campaign: ProcgenCampaign, command: str) -> None:
    """How the rows were made, beside them."""
    settings = {"budget": campaign.budget, "numbers": plain(asdict(campaign.numbers))}
    write_record(record_path(campaign), command, settings)


if __name__ == "__main__":
    raw = json.loads(sys.argv[1])
    raw |= {"games": tuple(raw["games"]), "solvers": tuple(raw["solvers"])}
    raw |= {"results": Path(raw["results"]), "runs": Path(raw["runs"])}
    run_game(ProcgenCampaign(**raw), sys.argv[2])
