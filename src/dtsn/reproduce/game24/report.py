"""The Game of 24's rows as a summary, a figure and a page."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dtsn.arrays import Bools
from dtsn.config import SOLVERS
from dtsn.drawing import MUTED, RULE, new_figure, save, tidy
from dtsn.envs.game24 import SPLITS
from dtsn.errors import UserError, brief
from dtsn.reproduce.game24.plan import (
    ABLATIONS,
    ACT_ITERATIONS,
    RULES,
    TRAJECTORIES,
    VALIDATED,
    Game24Campaign,
)
from dtsn.reproduce.markdown import table, write_text
from dtsn.reproduce.paper import FOLLOW_UP_GAME24
from dtsn.reproduce.records import NUMBER, read_json_rows
from dtsn.reproduce.statistics import Estimate, rate_interval
from dtsn.storage import replace_durably

RUN = {
    "solver": str,
    "trajectories": int,
    "train_iterations": int,
    "ablation": (None, str),
    "seed": int,
    "weights": int,
    "cpu_seconds": NUMBER,
    "tests": [{"act_T": int, "rule": str, "solved": re.compile("[01]+")}],
}
Runs = list[dict[str, Any]]
PAGE = "game24-results.md"
RULE_TITLES = {"greedy": "greedy", "sample": "sampled"}


class Scenario(NamedTuple):
    """What was trained, and how it acts."""

    solver: str
    trajectories: int
    train_iterations: int
    ablation: str | None
    act_iterations: int
    rule: str


@dataclass(frozen=True)
class Score:
    """Success on the test puzzles, the same for every seed."""

    solved: Bools  # [S, L]

    @cached_property
    def rate(self) -> Estimate:
        """Over seeds and puzzles, with an interval that knows both."""
        return rate_interval(self.solved)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds, 0 of a single one."""
        return float(self.solved.mean(1).std(ddof=1)) if len(self.solved) > 1 else 0.0


def read_runs(results: Path) -> Runs:
    """Read all runs that have a row."""
    runs = read_json_rows(results / "rows", RUN)
    puzzles = {len(played["solved"]) for run in runs for played in run["tests"]}
    if len(puzzles) > 1:
        raise UserError(f"all runs in {results / 'rows'} must play the same puzzles, got {brief(puzzles)}")
    return runs


def scores(runs: Runs) -> dict[Scenario, Score]:
    """Score every scenario. D-TSN with T = 1 is value-only training: its scenarios have those runs."""
    found: dict[Scenario, dict[int, str]] = defaultdict(dict)
    for run in runs:
        names = ("search", "dtsn") if run["solver"] == "search" else (run["solver"],)
        for name in names:
            for played in run["tests"]:
                trained = (name, run["trajectories"], run["train_iterations"], run["ablation"])
                found[Scenario(*trained, played["act_T"], played["rule"])][run["seed"]] = played["solved"]
    return {
        scenario: Score(np.array([list(solved) for _, solved in sorted(seeds.items())]) == "1")
        for scenario, seeds in sorted(found.items(), key=lambda item: _order(item[0]))
    }


def _order(scenario: Scenario) -> Scenario:
    return scenario._replace(ablation=scenario.ablation or "")


def summarise(found: dict[Scenario, Score]) -> dict[str, Any]:
    """Return ``{"rows": [...], "ablations": [...]}``: success as a share, its interval, spread, n."""

    def row(scenario: Scenario, score: Score) -> dict[str, Any]:
        return {
            "trajectories": scenario.trajectories,
            "train_T": scenario.train_iterations,
            "act_T": scenario.act_iterations,
            "solver": scenario.solver,
            "rule": scenario.rule,
            "success": round(score.rate.value, 6),
            "interval": [round(score.rate.low, 6), round(score.rate.high, 6)],
            "spread": round(score.spread, 6),
            "n": score.solved.size,
            "seeds": len(score.solved),
        }

    return {
        "rows": [row(s, score) for s, score in found.items() if s.ablation is None],
        "ablations": [{"ablation": s.ablation, **row(s, score)} for s, score in found.items() if s.ablation],
    }


def build_game24_report(results: Path, page: Path) -> list[Path]:
    """Write ``summary.json``, the page and its figure; returns what was written, nothing without rows."""
    runs = read_runs(results)
    if not runs:
        return []
    found = scores(runs)
    summary = results / "summary.json"
    replace_durably(summary, (json.dumps(summarise(found), indent=1) + "\n").encode())
    picture = draw_success(found, page.parent / "figures" / "game24.png")
    return [write_text(page, page_text(runs, found, picture.relative_to(page.parent))), picture, summary]


def draw_success(found: dict[Scenario, Score], path: Path) -> Path:
    """Draw success against acting T, a line per training, a panel per rule; the follow-up's dashed."""
    figure = new_figure(8.4, 3.4)
    panels = figure.subplots(1, len(RULES), sharey=True)
    trained = {(s.solver, s.train_iterations): None for s in found if _is_main(s)}
    shades = {1: SOLVERS["search"].colour, 8: SOLVERS["dtsn"].colour, 16: "#0b3c66"}
    for axes, rule in zip(panels, RULES, strict=True):
        tidy(axes, f"{RULE_TITLES[rule]} expansion")
        for solver, iterations in trained:
            points = [
                (act, rate.value, rate.value - rate.low, rate.high - rate.value)
                for act in ACT_ITERATIONS
                if (score := found.get(Scenario(solver, 2000, iterations, None, act, rule)))
                for rate in (score.rate,)
            ]
            if points and (solver, iterations) != ("search", 1):
                act, mean, *bars = 100 * np.array(points).T
                colour, label = shades.get(iterations, MUTED), f"T = {iterations}"
                axes.errorbar(act / 100, mean, bars, color=colour, marker="o", capsize=3, label=label)
                theirs = [
                    (act, FOLLOW_UP_GAME24[key])
                    for act in ACT_ITERATIONS
                    if (key := ("dtsn", 2000, iterations, act)) in FOLLOW_UP_GAME24
                ]
                axes.plot(*zip(*theirs, strict=True), color=colour, linestyle="--", marker="x", alpha=0.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ACT_ITERATIONS, list(map(str, ACT_ITERATIONS)))
        axes.set_xlabel("T when acting")
        axes.set_ylim(0, 100)
        axes.grid(axis="y", color=RULE, linewidth=0.8)
    panels[0].set_ylabel("success on unseen puzzles, %")
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(title="trained with", frameon=False)
    return save(figure, path)


def _is_main(scenario: Scenario) -> bool:
    return scenario.ablation is None and scenario.trajectories == 2000


def page_text(runs: Runs, found: dict[Scenario, Score], picture: Path) -> str:
    """Return the page in Markdown."""
    seeds = sorted({run["seed"] for run in runs})
    over = f"up to {len(seeds)} seeds of training" if len(seeds) > 1 else "one seed of training"
    parts = [
        "# Game of 24: results",
        f"Success on the {SPLITS['test']} test puzzles, in percent: the share of puzzles that end with 24 "
        "when each of the nine decisions is taken by a search of T expansions from the state at hand. "
        f"One game per puzzle and seed; mean over {over}, with 95% intervals that know that every seed plays "
        "the same puzzles. "
        "What the game is and how it is learned: "
        "[the Game of 24](game24.md). Made by `dtsn reproduce game24` and `dtsn report` from "
        f"`results/game24/rows`: {len(runs)} of {len(Game24Campaign().cells())} runs are done; – stands for "
        "the others.",
        f"![Success against T when acting]({picture})",
        "Trained on 2,000 trajectories with T = 1, 8 and 16; the follow-up's numbers (Llama3-8B) are dashed.",
        "## More demonstrations",
        "Acting with T = 8. *Value-only* is the solver `search`: one step in training, a search when acting. "
        "The follow-up's counterpart is a search over a separately trained value (SFT + search).",
        _by_trajectories(found),
        "## More search",
        "Trained on 2,000 trajectories. With T = 1 D-TSN's loss is that of value-only training, and the runs "
        "are the same.",
        *(_by_search(found, rule) for rule in RULES),
    ]
    if ablations := _ablations(found):
        parts += ["## Beyond the paper", ABLATION_TEXT, ablations]
    cost = [run["cpu_seconds"] for run in runs]
    weights = sorted({run["weights"] for run in runs})
    shown = ", ".join(f"{count:,}" for count in weights)
    seconds = f"{min(cost):.0f} to {max(cost):.0f} seconds"
    parts.append(f"A run has {shown} weights and took {seconds} of one core to train.")
    return "\n\n".join(parts) + "\n"


ABLATION_TEXT = (
    "Trained on 2,000 trajectories with T = 8, and one setting changed; acting by greedy expansion."
)


def _by_trajectories(found: dict[Scenario, Score]) -> str:
    lines = []
    for rule in RULES:
        for solver, trained, title in (("dtsn", 8, "D-TSN, trained with T = 8"), ("search", 1, "value-only")):
            cells = [_cell(found, Scenario(solver, n, trained, None, VALIDATED, rule)) for n in TRAJECTORIES]
            lines.append([title, RULE_TITLES[rule], *cells])
    for solver, trained, title in (("dtsn", 8, "follow-up, D-TSN"), ("search", 1, "follow-up, SFT + search")):
        theirs = [f"{FOLLOW_UP_GAME24[solver, n, trained, VALIDATED]:.2f}" for n in TRAJECTORIES]
        lines.append([f"*{title}*", "", *theirs])
    return table(["", "expansion", *(f"{n:,} trajectories" for n in TRAJECTORIES)], lines)


def _by_search(found: dict[Scenario, Score], rule: str) -> str:
    lines = []
    for trained in sorted({s.train_iterations for s in found if _is_main(s)}):
        cells = [_cell(found, Scenario("dtsn", 2000, trained, None, act, rule)) for act in ACT_ITERATIONS]
        theirs = [
            f"{rate:.2f}" if (rate := FOLLOW_UP_GAME24.get(("dtsn", 2000, trained, act))) else "–"
            for act in ACT_ITERATIONS
        ]
        lines += [[f"T = {trained}", *cells], [f"*T = {trained}, follow-up*", *theirs]]
    header = [f"trained with, {RULE_TITLES[rule]}", *(f"acting T = {act}" for act in ACT_ITERATIONS)]
    return table(header, lines)


def _ablations(found: dict[Scenario, Score]) -> str:
    lines = []
    for ablation, title in [(None, "D-TSN"), *ABLATIONS.items()]:
        cells = [
            _cell(found, Scenario("dtsn", 2000, VALIDATED, ablation, act, "greedy")) for act in ACT_ITERATIONS
        ]
        if ablation is None or set(cells) != {"–"}:
            lines.append([title, *cells])
    return table(["", *(f"acting T = {act}" for act in ACT_ITERATIONS)], lines) if len(lines) > 1 else ""


def _cell(found: dict[Scenario, Score], scenario: Scenario) -> str:
    score = found.get(scenario)
    if score is None:
        return "–"
    rate = score.rate
    seeds = "" if len(score.solved) > 2 else f", seeds: {len(score.solved)}"
    return f"{100 * rate.value:.1f} ({100 * rate.low:.1f} to {100 * rate.high:.1f}{seeds})"
