"""A Procgen campaign as plain data: what to run, where it goes, what is still missing. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtsn.envs.procgen import GAMES
from dtsn.errors import UserError
from dtsn.reproduce.procgen.budgets import (
    PROCGEN_ABLATIONS,
    PROCGEN_BUDGETS,
    PROCGEN_VARIANTS,
    ProcgenBudget,
)
from dtsn.reproduce.procgen.choice import CONTENDERS, choice_players
from dtsn.reproduce.procgen.choice import TITLES as CANDIDATES
from dtsn.reproduce.records import read_record, write_record
from dtsn.settings import difference, plain
from dtsn.spelling import did_you_mean


@dataclass(frozen=True)
class ProcgenCampaign:
    """What to run and where to put it."""

    games: tuple[str, ...] = ("coinrun", "leaper", "maze", "starpilot")
    """games to run; all: all 16"""
    budget: str = "cpu"
    """cpu: hours on a laptop; day: better experts and longer training, an hour per game; paper: the
    paper's numbers, weeks on a GPU; tiny: to try it out"""
    solvers: tuple[str, ...] = ("qnet", "search", "treeqn", "dtsn")
    """rows of the tables; also cloning, dtsn-no-telescoping, dtsn-no-reinforce, dtsn-no-auxiliary,
    dtsn-5, dtsn-20, and by the same weights qnet-best, search-best, treeqn-best, dtsn-best,
    search-greedy-best, dtsn-greedy-best, dtsn-one-best; with no name, only the experts are trained and
    tested"""
    seeds: int = 1
    """training runs of each solver, seeds 0 and up"""
    first_seed: int = 0
    """skip the seeds before this one: 1 with --seeds 2 runs seed 1 alone"""
    ablations: bool = False
    """also D-TSN without one of its parts and with other search lengths, on the budget's ablation games"""
    choose: bool = False
    """instead of the tables: two solvers with one setting changed at a time, on validation levels"""
    candidates: tuple[str, ...] = tuple(CANDIDATES)
    """settings that --choose compares; recipe: what the choice began with"""
    device: str = "cpu"
    """device of every run: cpu, cuda, cuda:N or mps; the paper's budget needs cuda"""
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
            ("candidate", self.candidates, CANDIDATES),
        ):
            if not names and what != "solver":
                raise UserError(f"{what}s must name at least one {what}, got none")
            for name in names:
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise UserError(f"{what} must be one of {', '.join(known)}, got {name!r}{hint}")
        if self.seeds < 1:
            raise UserError(f"seeds must be at least 1, got {self.seeds}")
        if not 0 <= self.first_seed < self.seeds:
            raise UserError(f"first_seed must be from 0 to {self.seeds - 1}, got {self.first_seed}")

    @property
    def settings(self) -> ProcgenBudget:
        """The settings behind the budget's name."""
        return PROCGEN_BUDGETS[self.budget]

    def tests(self, game: str) -> list[tuple[str, int]]:
        """List (player, seed) of all tests of a game: random actions and the expert first."""
        names = list(self.solvers)
        if self.ablations and game in self.settings.ablated:
            names += [name for name in PROCGEN_ABLATIONS if name not in names]
        if self.choose:
            names = choice_players(self.candidates)
        seeds = range(1) if self.choose else range(self.first_seed, self.seeds)
        solvers = [(name, seed) for seed in seeds for name in names]
        return [("random", 0), ("expert", 0), *solvers]

    @property
    def rows_folder(self) -> Path:
        """Where rows go, and how they were made: apart for tests and for the choice on validation levels."""
        return self.results / ("choice" if self.choose else "rows") / self.budget

    def rows_path(self, game: str, player: str, seed: int) -> Path:
        """Return where the test rows of a player go."""
        return self.rows_folder / game / player / f"seed-{seed}.csv.gz"

    def predictions_path(self, game: str, player: str, seed: int) -> Path:
        """Return where it is said what the world model of a run predicts."""
        return self.results / "predictions" / self.budget / game / player / f"seed-{seed}.json"

    def curve_path(self, game: str) -> Path:
        """Return where the learning curve of a game's behaviour policy goes."""
        return self.results / "curves" / self.budget / f"{game}.csv"

    def expert_path(self, game: str) -> Path:
        """Return where the weights of a game's behaviour policy go once it is trained."""
        return self.results / "experts" / self.budget / game

    def metrics_path(self, game: str) -> Path:
        """Return what a game's behaviour policy logs while it learns."""
        return self.runs / self.budget / game / "expert" / "metrics.jsonl"

    def missing(self, game: str) -> list[tuple[str, int]]:
        """List the tests of a game that have no rows yet."""
        return [test for test in self.tests(game) if not self.rows_path(game, *test).exists()]

    def is_done(self, game: str) -> bool:
        """Tell whether nothing of a game is left to do; a curve is only due where the expert's run is."""
        curve_due = self.metrics_path(game).exists() and not self.curve_path(game).exists()
        return not self.missing(game) and not curve_due

    def data_path(self, game: str, discount: float | None = None) -> Path:
        """Return the data set of a game, with returns of the budget's discount unless another is given."""
        other = discount is not None and discount != self.settings.train.solver.discount
        return self.runs / self.budget / game / (f"data-{discount:g}.h5" if other else "data.h5")

    @property
    def record_path(self) -> Path:
        """Where it is said how the rows were made."""
        return self.rows_folder / "meta.json"

    def check_record(self) -> None:
        """Refuse to continue with rows of other settings under the same budget's name."""
        theirs, ours = read_record(self.record_path).get("numbers", {}), plain(asdict(self.settings))
        folders = sorted(self.record_path.parent.glob("*")) if theirs else []
        for folder in (each for each in folders if each.name in GAMES):
            players = {rows.parent.name for rows in folder.glob("*/*.csv.gz")}
            differs = difference(_behind(theirs, folder.name, players), _behind(ours, folder.name, players))
            if differs:
                raise UserError(
                    f"{folder} has rows of another {self.budget} budget ({differs}): "
                    "move them away or use another results folder"
                )

    def write_record(self, command: str) -> None:
        """Keep beside the rows how they were made."""
        settings = {"budget": self.budget, "numbers": plain(asdict(self.settings))}
        write_record(self.record_path, command, settings)


def _behind(settings: Mapping[str, Any], game: str, players: Set[str]) -> dict[str, Any]:
    """Select the settings of a budget, as plain data, that the rows of these players of a game depend on."""
    names = ["mode", "levels"]
    known: dict[str, Any] = {}
    if players - {"random"}:
        known["scripted"] = game in settings.get("scripted", ())
        expert = settings.get("expert_overrides", {}).get(game) or settings.get("expert", {})
        known["expert"] = {} if known["scripted"] else {**expert, "game": game}
    if players - {"random", "expert"}:
        known["keep_all"] = game in settings.get("keep_all_episodes", ())
        known["temperature"] = settings.get("temperature")
        if "episodes" in settings:
            known["episodes"] = settings.get("more_episodes", {}).get(game, settings["episodes"])
        if players & CONTENDERS.keys():
            known["start"] = settings.get("start") or settings.get("train")
        else:
            names += ["train"]
    return known | {name: settings[name] for name in names if name in settings}
