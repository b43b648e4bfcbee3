"""Procgen's results page in Markdown, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtsn.arrays import Float64s
from dtsn.envs.procgen import GAMES
from dtsn.reproduce.markdown import configuration, table
from dtsn.reproduce.paper import (
    PAPER_PROCGEN,
    PAPER_PROCGEN_EXPERT,
    PAPER_PROCGEN_WINS,
    PAPER_PROCGEN_Z,
    RERUN_PROCGEN,
    RERUN_PROCGEN_WINS,
    RERUN_PROCGEN_Z,
)
from dtsn.reproduce.procgen.budgets import (
    PROCGEN_BUDGETS,
    PROCGEN_ROWS,
    PROCGEN_TITLES,
    ProcgenBudget,
)
from dtsn.reproduce.procgen.choice import SOLVERS as CHOICE_SOLVERS
from dtsn.reproduce.procgen.choice import TITLES as CHOICES
from dtsn.reproduce.procgen.scores import BASELINE, BEST, FIXED, SOLVERS, Scores, score_interval

PREDICTED = {
    "transition_error": "next state",
    "reward_explained": "reward",
    "return_explained": "return",
    "changed_actions": "changed",
}
KINDS = {"ppg": "PPG", "scripted": "script"}


def procgen_page(
    summary: Mapping[str, Any],
    scores: Scores,
    budget: str,
    *,
    runtime: str,
    pictures: Sequence[str],
) -> str:
    """Write the results page in Markdown; ``pictures``: of the scores and, with curves, of the policies."""
    numbers = PROCGEN_BUDGETS[budget]
    solvers = [name for name in PROCGEN_ROWS if any(name in of for of in scores.values())]
    players = [name for name in ("random", "expert") if any(name in of for of in scores.values())] + solvers
    missing = [
        f"`{game}`: {', '.join(absent)}"
        for game, of in scores.items()
        if (absent := [name for name in ("expert", *SOLVERS) if name not in of])
    ]
    sections = [
        f"# Procgen: results of the {budget} budget",
        f"Mode {numbers.mode}; behaviour policy: PPG{_without_phases(numbers)}, "
        f"{numbers.expert.steps:,} environment steps a game"
        f"{_trained_otherwise(numbers, scores)}{_scripted(summary)}; "
        f"data: {_episodes(numbers, list(scores))}{_kept(numbers, list(scores))}, returns discounted by "
        f"{numbers.train.solver.discount:g}; training: {numbers.train.steps:,} steps at batch "
        f"{numbers.train.batch_size} for every solver, {_runs(summary, solvers)}; tests: an episode on each "
        f"of {numbers.levels} unseen levels, {_acting(numbers)}.",
        "**This is not the paper's budget** (1000 episodes; by the authors' data mode hard and policies of "
        "100 million steps; by its run times about 220,000 steps at batch 256): its numbers are repeated for "
        "orientation, not for comparison. A small budget can show whether solvers that learn from the same "
        "data for as long differ, and in which direction; it cannot show how they differ once they are "
        "trained to the end."
        if budget != "paper"
        else "",
        "## Scores",
        "Mean over episodes with its 95% interval for other training runs and other levels. One run says "
        "nothing about the spread between runs, and two say little.",
        table(
            ("Game", *(PROCGEN_TITLES[name] for name in players)),
            ((game, *(_score(of.get(name)) for name in players)) for game, of in scores.items()),
        ),
        f"![Scores of all players with 95% intervals](figures/{pictures[0]})",
        "The paper's mean scores, mode hard, and those of the policies behind the authors' data:",
        _paper_table(PAPER_PROCGEN, list(scores)),
        "The same by the follow-up (Mittal, Kang & Lee, 2025), which ran the experiment again:",
        _paper_table(RERUN_PROCGEN, list(scores)),
        *_comparison(summary, solvers),
        *_best_actions(summary, scores),
        *_predictions(summary["predictions"]),
        *_ablations(summary["ablations"], scores),
        *_policies(summary, scores, pictures[1:]),
        *_choice(summary),
        "## Run time",
        "Time of a training step, side by side in one run, at batch 256; see "
        "[performance.md](performance.md).",
        runtime,
        "## How they were made",
        "This makes the rows above, and skips those that exist. Ours were made by several calls; `meta.json` "
        "beside the rows lists them.",
        "```sh\n" + "\n".join(_commands(budget, summary)) + "\n```",
        configuration(numbers.train),
        *(["## Missing", "\n".join(f"- {line}" for line in missing)] if missing else []),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _commands(budget: str, summary: Mapping[str, Any]) -> list[str]:
    """Return the commands that make what the page shows, from nothing."""
    cells = summary["games"]
    solvers = [name for name in PROCGEN_ROWS if any(name in of for of in cells.values())]
    found = summary["best_action"]
    shown = [best for best in (found.get("nothing_drawn", {}), found) if best.get("games")]

    def command(games: Sequence[str], players: Sequence[str]) -> str:
        named = ["all"] if set(games) == set(GAMES) else games
        seeds = [cells[game][name]["seeds"] for game in games for name in players if name in cells[game]]
        last = max((max(each) for each in seeds), default=0)
        start = f"dtsn reproduce procgen --budget {budget} --games"
        return f"{' '.join([start, *named, '--solvers', *players])} --seeds {last + 1}"

    return [
        command(list(cells), solvers) + " --ablations" * bool(summary["ablations"]),
        *(command(best["games"], ["qnet-best", *best["mean_z"]]) for best in shown),
    ]


def _comparison(summary: Mapping[str, Any], solvers: Sequence[str]) -> list[str]:
    """Return the sections that compare solvers: Z-scores, head to head, baseline normalised scores."""
    if not solvers:
        return []
    return [
        "## Z-scores",
        "`(μ − μ_B) / σ_B` with the Q-network as the baseline B; μ_B and σ_B are over the episodes of all "
        "its runs.",
        _z_table(summary, [name for name in solvers if name != BASELINE]),
        "Intervals are 95% of a bootstrap that redraws the levels of each game and the training runs of both "
        "solvers. With one run of a solver they know nothing of the spread between its runs, and with two or "
        "three they underestimate it. The mean is also given without dodgeball, where the paper's Q-network "
        "fails: this game alone makes much of its mean; and without games whose data a script has played. "
        "A mean is over the games of its own column: columns with gaps do not compare with the others.",
        "Share of episodes that a solver plays as the Q-network does, with the same score and length on the "
        "same level; where it is large, the Z-score compares little:",
        table(
            ("Game", *(PROCGEN_TITLES[name] for name in solvers if name != BASELINE)),
            (
                (game, *(_share(of.get(name)) for name in solvers if name != BASELINE))
                for game, of in summary["games"].items()
            ),
        ),
        "## Head to head",
        table(
            ("D-TSN against", "Games won", "Paper", "Follow-up"),
            (
                (PROCGEN_TITLES[other], won, PAPER_PROCGEN_WINS[other], RERUN_PROCGEN_WINS[other])
                for other, won in summary["wins"].items()
            ),
        ),
        "## Baseline normalised scores",
        "`(S − S_random) / (S_B − S_random)`. The paper warns of it: where the baseline does worse than "
        "random actions, the sign turns, and where it is barely better, the score explodes.",
        table(
            ("Game", *(PROCGEN_TITLES[name] for name in solvers)),
            (
                (game, *(_number(of.get(name, {}).get("bns")) for name in solvers))
                for game, of in summary["games"].items()
            ),
        ),
    ]


def _best_actions(summary: Mapping[str, Any], scores: Scores) -> list[str]:
    """Return the section on the paper's way to act, if all of it has been run on a game."""
    found = summary["best_action"]
    fixed = found.get("nothing_drawn", {})
    sections = [
        "## Best actions",
        "The same weights, acting as the paper's solvers do: by the action of the highest Q-value. Z-scores "
        "are against the Q-network's best action. Games where it scores the same nearly always are left out "
        "of the mean: its spread, by which Z divides, is next to nothing there.",
    ]
    if fixed:
        sections += [
            "### Nothing is drawn",
            "Searches are greedy: they expand the most promising node. Every player then does the same in "
            "the same frame every time, so that none gains by luck. With one expansion D-TSN's Q is R + γV "
            "of the children, as the Q-network's is: what its greedy search scores beyond that is the "
            f"search's. {_runs(summary, FIXED)}.",
            _best_table(fixed, FIXED, scores),
        ]
    if found.get("games"):
        sections += [
            "### Searches draw what they expand",
            "As in the paper. The Q-values of Model-based Search and D-TSN then vary, and their actions with "
            f"them; those of the Q-network and TreeQN do not. {_runs(summary, BEST)}.",
            _best_table(found, BEST, scores),
        ]
    return sections if len(sections) > 2 else []


def _best_table(found: Mapping[str, Any], players: Sequence[str], scores: Scores) -> str:
    rows = [
        [game, *(_score(scores[game].get(name)) for name in ("random", *players))] for game in found["games"]
    ]
    without = f", without {', '.join(found['left_out'])}" if found["left_out"] else ""
    means = ((f"**mean Z{without}**", found["mean_z"]), ("95% interval", found["mean_z_interval"]))
    for title, shown in means:
        cells = [shown.get(name) for name in players]
        rows.append([title, "", *(_number(x) if isinstance(x, float) else _interval(x) for x in cells)])
    rows.append(["games that D-TSN wins", "", *(found["wins"].get(name, "–") for name in players)])
    return table(("Game", PROCGEN_TITLES["random"], *(PROCGEN_TITLES[name] for name in players)), rows)


def _predictions(found: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> list[str]:
    """Return the section on the learned world models, if some were compared with their data."""
    if not found:
        return []
    columns = [(player, name) for player in ("search", "dtsn") for name in PREDICTED]
    rows = [
        (game, *(_prediction(of.get(player, {}).get(name), name) for player, name in columns))
        for game, of in found.items()
    ]
    return [
        "## What the world models predict",
        "On 4,096 transitions of a solver's own training data. *Next state*: squared error of the predicted "
        "latent state, where 1 is the error of predicting that nothing changes. *Reward*: share of the "
        "rewards' variance that is explained; below 0 it is worse than always to predict the mean. *Return*: "
        "the same of the returns, by Q after the search. *Changed*: how often the search prefers another "
        "action than a single expansion does. A search through a model with 1 and 0 cannot plan.",
        table(("Game", *(f"{PROCGEN_TITLES[player]}: {PREDICTED[name]}" for player, name in columns)), rows),
    ]


def _prediction(value: float | None, name: str) -> str:
    if value is None or name != "changed_actions":
        return _number(value)
    return f"{100 * value:.0f}%"


def _ablations(found: Mapping[str, Any], scores: Scores) -> list[str]:
    """Return the section on D-TSN with one thing changed, if all of it has been run on a game."""
    if not found:
        return []
    rows = [
        (
            PROCGEN_TITLES[name],
            *(_score(scores[game][name]) for game in found["games"]),
            _number(mean),
            _interval(found["mean_z_interval"][name]),
            _number(PAPER_PROCGEN_Z.get(name)),
        )
        for name, mean in found["mean_z"].items()
    ]
    return [
        "## Ablations",
        "D-TSN with one thing changed, on the games that all of these have been run on; the paper's mean is "
        "over all 16.",
        table(("Solver", *found["games"], "Mean Z", "95% interval", "Paper"), rows),
    ]


def _runs(summary: Mapping[str, Any], solvers: Sequence[str]) -> str:
    """Return how many training runs there are of a solver."""
    counts = {len(of[name]["seeds"]) for of in summary["games"].values() for name in solvers if name in of}
    if not counts:
        return "not run yet"
    fewest, most = min(counts), max(counts)
    number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"{number} training run{'s' * (most > 1)} each"


def _without_phases(numbers: ProcgenBudget) -> str:
    return "" if numbers.expert.auxiliary_epochs else " without auxiliary phases, which is PPO"


def _trained_otherwise(numbers: ProcgenBudget, scores: Scores) -> str:
    """Return which behaviour policies were trained otherwise."""
    games: dict[int, list[str]] = {}  # by the number of steps
    for game, expert in sorted(numbers.expert_overrides.items()):
        if "expert" in scores.get(game, {}):
            games.setdefault(expert.steps, []).append(game)
    others = [f"{steps:,} with other settings on {', '.join(of)}" for steps, of in games.items()]
    return f" ({'; '.join(others)})" if others else ""


def _scripted(summary: Mapping[str, Any]) -> str:
    """Return which behaviour policies are scripts."""
    games = [game for game, expert in summary["experts"].items() if expert["kind"] == "scripted"]
    return f", a script on {', '.join(games)}" if games else ""


def _acting(numbers: ProcgenBudget) -> str:
    """Return how solvers choose their actions."""
    if numbers.temperature is None:
        return "where solvers take their best action"
    return f"where solvers draw their actions from softmax(Q / {numbers.temperature:g})"


def _episodes(numbers: ProcgenBudget, games: Sequence[str]) -> str:
    """Return how many episodes the data sets have."""
    counts = [numbers.episodes_of(game) for game in games] or [numbers.episodes]
    more = f" to {max(counts):,}" if max(counts) > min(counts) else ""
    return f"{min(counts):,}{more} successful episodes{', more where they are short' * bool(more)}"


def _kept(numbers: ProcgenBudget, games: Sequence[str]) -> str:
    """Return where other than successful episodes were kept, and why."""
    every = [game for game in games if numbers.keep(game) == "all"]
    return f" (all episodes in {', '.join(every)}: this policy completes next to none)" if every else ""


def _policies(summary: Mapping[str, Any], scores: Scores, pictures: Sequence[str]) -> list[str]:
    """Return the section on the behaviour policies, against random actions on the same unseen levels."""
    experts = summary["experts"]
    if not experts:
        return []
    rows = []
    for game, expert in experts.items():
        drawn, ours = scores[game]["random"], scores[game]["expert"]
        gain = score_interval(ours.mean(0, keepdims=True) - drawn.mean(0, keepdims=True))
        shown = f"{gain.value:+.2f} ± {gain.high - gain.value:.2f}".replace("-", "−")
        rows.append((game, KINDS[expert["kind"]], _score(drawn), _score(ours), shown))
    better = sum(expert["interval"][0] > expert["random_interval"][1] for expert in experts.values())
    header = ("Game", "Kind", PROCGEN_TITLES["random"], PROCGEN_TITLES["expert"], "Gain")
    return [
        "## Behaviour policies",
        "Against random actions on the same unseen levels, with 95% intervals. "
        f"In {better} of {len(experts)} games the policy's interval lies above that of random actions.",
        table(header, rows),
        *(f"![Return of the behaviour policies while they learn](figures/{name})" for name in pictures),
    ]


def _choice(summary: Mapping[str, Any]) -> list[str]:
    """Return the section on the recipe's choice, once there are candidates to choose from."""
    if len(summary.get("choice", {}).get("table", ())) < 2:
        return []
    found, games = summary["choice"]["table"], summary["choice"]["games"]
    rows = []
    for name, of in found.items():
        cells = [*(of[solver] for solver in CHOICE_SOLVERS), sum(of.values()) / len(of)]
        shown = [_number(cell) for cell in cells]
        rows.append(
            (
                CHOICES[name],
                *shown[:-1],
                f"**{shown[-1]}**" if name == summary["choice"]["best"] else shown[-1],
            )
        )
    return [
        "## How the recipe was chosen",
        "One thing changed at a time, for all solvers alike. Scores on *validation* levels of "
        f"{', '.join(games)}: 0 is random actions, 1 the behaviour policy; mean over games, one seed. "
        "Test levels had no part in it.",
        table(("Training", *(PROCGEN_TITLES[name] for name in CHOICE_SOLVERS), "Mean"), rows),
    ]


def _paper_table(paper: Mapping[str, Mapping[str, float]], games: Sequence[str]) -> str:
    return table(
        ("Game", PROCGEN_TITLES["expert"], *(PROCGEN_TITLES[name] for name in SOLVERS)),
        (
            (game, PAPER_PROCGEN_EXPERT[game], *(f"{paper[game][name]:.2f}" for name in SOLVERS))
            for game in games
        ),
    )


def _z_table(summary: Mapping[str, Any], players: Sequence[str]) -> str:
    rows = [
        [game, *(_number(of.get(name, {}).get("z")) for name in players)]
        for game, of in summary["games"].items()
    ]
    means = summary["mean_z"]
    rows.append(["**mean**", *(f"**{_number(means.get(name))}**" for name in players)])
    rows.append(["95% interval", *(_interval(summary["mean_z_interval"].get(name)) for name in players)])
    for title, found in (
        ("without dodgeball", summary["mean_z_without_dodgeball"]),
        ("without scripted policies", summary["mean_z_without_scripted"]),
        ("paper's mean", PAPER_PROCGEN_Z),
        ("follow-up's mean", RERUN_PROCGEN_Z),
    ):
        rows.append([title, *(_number(found.get(name)) for name in players)])
    return table(("Game", *(PROCGEN_TITLES[name] for name in players)), rows)


def _score(values: Float64s | None) -> str:
    if values is None:
        return "–"
    estimate = score_interval(values)
    return f"{estimate.value:.2f} ± {estimate.high - estimate.value:.2f}"


def _share(cell: Mapping[str, Any] | None) -> str:
    share = (cell or {}).get("like_baseline")
    return "–" if share is None else f"{100 * share:.1f}%"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _interval(ends: Sequence[float | None] | None) -> str:
    return "–" if ends is None else " to ".join(_number(end) for end in ends)
