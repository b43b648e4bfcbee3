"""The results page: raw episodes -> ``summary.json``, figures, tables beside the paper's, and verdicts.

Everything is computed from the files of a campaign, offline; the same files give the same bytes.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from dtsn import plots
from dtsn.reproduce.experiments import NAVIGATION, NAVIGATION_VARIANTS, PAPER_NAVIGATION, PaperNumber
from dtsn.reproduce.markdown import NORMAL, configuration, table, write_text

Rows = dict[str, NDArray[np.int64]]  # column -> [episodes]
Curves = Mapping[int, Mapping[str, NDArray[np.float64]]]  # seed -> column -> [points]

COLUMNS = ("level", "exits", "success", "collision", "steps", "optimal_steps")
SOLVERS = ("qnet", "search", "treeqn", "dtsn")
BASELINES = SOLVERS[:3]
ABLATIONS = ("dtsn-no-telescoping", "dtsn-no-reinforce", "dtsn-no-auxiliary")


@dataclass(frozen=True)
class Family:
    """The four solvers, and maybe the ablations, once more under other circumstances."""

    heading: str
    text: str
    figures: tuple[str, ...] = ()  # names in FIGURES


# By the suffix of the variants' names.
FAMILIES = {
    "-pooled": Family(
        "An encoder that pools",
        "The tables above use an encoder that computes paths. It generalises to one exit by itself and "
        "lifts the Q-network, TreeQN and D-TSN to the ceiling. Here all use one that pools features over the "
        "map and reads them at the robot's and the goal's cell (`experiments.NAVIGATION_POOLED`): what they "
        "make of one exit is then up to the solver.",
    ),
    "-raw": Family(
        "The pooling encoder without augmentation",
        "The paper turns and mirrors nothing. With the pooling encoder and the 1000 trajectories as they are "
        "(`experiments.NAVIGATION_RAW`) most is left to the solver. Of what was tried with such encoders, "
        "solvers lay farthest apart here on validation levels: [experiments-log.md](experiments-log.md).",
        ("navigation-success-raw.png", "navigation-paths.png"),
    ),
    "-opposite": Family(
        "Exits on opposite sides",
        "Another placement of the exits, in training and testing. The paper does not say how it places "
        "them; its numbers are repeated for comparison.",
    ),
}

# Paths and the search are drawn elsewhere, as they need a solver; the page shows what is there.
FIGURES = {
    "navigation-success.png": "Success rates of the four solvers beside the paper's",
    "navigation-curves.png": "Validation success while training, all seeds and their mean",
    "navigation-search.png": "A search tree of D-TSN drawn on its hall",
    "navigation-success-raw.png": "Success rates without augmentation beside the paper's",
    "navigation-paths.png": "Test halls with one exit where the Q-network fails and D-TSN does not (seed 0)",
}


class Cell(TypedDict):
    """A variant in a scenario: all its episodes together, rates from 0 to 1."""

    success: float
    interval: list[float]  # 95%, of the success rate
    error: float  # standard error of the success rate
    collision: float
    timeout: float
    detour: float | None  # mean of steps / shortest steps over the successful episodes
    n: int
    seeds: list[int]
    by_seed: dict[str, float]  # success rates


Summary = Mapping[str, Mapping[str, Cell]]  # variant -> "2" (exits) or "2@T50" (exits, search when acting)


def read_rows(path: Path) -> Rows:
    """The episodes of a gzipped CSV file as columns."""
    try:
        with gzip.open(path, "rt") as file:
            header, *lines = file.read().splitlines() or [""]
        if not lines:
            raise ValueError("no episodes")
        table = np.loadtxt(lines, dtype=np.int64, delimiter=",", ndmin=2)  # [episodes, columns]
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it and test this run again") from error
    if header != ",".join(COLUMNS) or table.shape[1] != len(COLUMNS):
        raise ValueError(f"{path} must have the columns {','.join(COLUMNS)}, got {header}")
    return dict(zip(COLUMNS, table.T, strict=True))


def read_curve(path: Path) -> dict[str, NDArray[np.float64]]:
    """A learning curve as columns ``[points]``; NaN in empty cells."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if None not in row.values()]  # without a half-written last line
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in reader.fieldnames or ()}


def standard_error(successes: int, n: int) -> float:
    """Of a success rate over ``n`` episodes: the paper's ± ."""
    rate = successes / n
    return math.sqrt(rate * (1 - rate) / n)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a success rate."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"need 0 <= successes <= n and an episode at least, got {successes} of {n}")
    rate, z2 = successes / n, NORMAL**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    # The ends are exact where no episode, or every one, succeeds; rounding must not move them.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def summarise(by_seed: Mapping[int, Rows]) -> Cell:
    """The episodes of a variant in a scenario, of all seeds together."""
    column = {name: np.concatenate([by_seed[seed][name] for seed in sorted(by_seed)]) for name in COLUMNS}
    won, hit, n = column["success"] == 1, column["collision"] == 1, len(column["success"])
    detours = column["steps"][won] / column["optimal_steps"][won]
    return {
        "success": round(float(won.mean()), 6),
        "interval": [round(end, 6) for end in wilson(int(won.sum()), n)],
        "error": round(standard_error(int(won.sum()), n), 6),
        "collision": round(float(hit.mean()), 6),
        "timeout": round(float((~won & ~hit).mean()), 6),
        "detour": round(float(detours.mean()), 6) if won.any() else None,
        "n": n,
        "seeds": sorted(by_seed),
        "by_seed": {str(seed): round(float(by_seed[seed]["success"].mean()), 6) for seed in sorted(by_seed)},
    }


def build_navigation_report(results: Path, out: Path) -> list[Path]:
    """Write ``results/navigation/summary.json``, the figures beside ``out`` and the page ``out``.

    Parts of a campaign that are not there yet are listed on the page.
    """
    folder, figures = results / "navigation", out.parent / "figures"
    episodes: dict[str, dict[str, dict[int, Rows]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("rows/*/seed-*/exits-*-T*.csv.gz")):
        variant, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed-"))
        named = re.fullmatch(r"exits-(\d+)-T(\d+)\.csv\.gz", path.name)
        if variant in NAVIGATION_VARIANTS and named:
            exits, iterations = map(int, named.groups())
            episodes[variant][_key(variant, exits, iterations)][seed] = read_rows(path)
    summary = {
        variant: {key: summarise(episodes[variant][key]) for key in sorted(episodes[variant], key=_order)}
        for variant in NAVIGATION_VARIANTS
        if variant in episodes
    }
    curves = {
        variant: {int(path.stem.removeprefix("seed-")): read_curve(path) for path in paths}
        for variant in (*SOLVERS, *(name for name, row in NAVIGATION_VARIANTS.items() if not row.tested))
        if (paths := sorted(folder.glob(f"curves/{variant}/seed-*.csv")))
    }
    tried = {name: curves.pop(name) for name in list(curves) if name not in SOLVERS}
    meta = json.loads(text) if (text := _text(folder / "meta.json")) else {}

    written = [folder / "summary.json"]
    write_text(written[0], json.dumps(summary, indent=1) + "\n")
    for suffix in ("", "-raw"):
        cells = {name: summary[name + suffix] for name in SOLVERS if name + suffix in summary}
        if cells:
            picture = figures / f"navigation-success{suffix}.png"
            written.append(plots.success_bars(cells, PAPER_NAVIGATION, picture))
    if curves:
        written.append(plots.learning_curves(curves, figures / "navigation-curves.png"))
    shown = {f"figures/{name}": text for name, text in FIGURES.items() if (figures / name).exists()}
    source = Path(os.path.relpath(folder, out.parent)).as_posix()
    missing = missing_parts(summary, curves, meta)
    page = navigation_page(summary, tried, meta=meta, figures=shown, missing=missing, source=source)
    write_text(out, page)
    return [*written, out]


def missing_parts(summary: Summary, curves: Mapping[str, Any], meta: Mapping[str, Any]) -> list[str]:
    """What a finished campaign has and this one has not, a line each."""
    lines = []
    for variant in [name for name, row in NAVIGATION_VARIANTS.items() if row.tested]:
        cells = summary.get(variant, {})
        seeds = {seed for cell in cells.values() for seed in cell["seeds"]}
        absent = [key for key in _keys(variant) if key not in cells]
        # Searches other than the trained one are tested with seed 0 alone.
        partial = {
            key: sorted(seeds.difference(cell["seeds"])) for key, cell in cells.items() if "@T" not in key
        }
        gaps = [_scenario(key) for key in absent]
        gaps += [f"{_scenario(key)} (seeds {_list(lost)})" for key, lost in partial.items() if lost]
        if gaps:
            lines.append(f"`{variant}`: {'no rows' if not cells else 'no rows for ' + '; '.join(gaps)}")
    lines += [f"`{variant}`: no learning curve" for variant in SOLVERS if variant not in curves]
    return [*lines, *([] if meta else ["`meta.json`: the command and the machine are unknown"])]


# --- verdicts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """That ``more`` succeeds more often than ``less``, by over ``margin``; both are (variant, key)."""

    more: tuple[str, str]
    less: tuple[str, str]
    margin: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as comparisons of success rates."""

    text: str
    checks: tuple[Check, ...]


KEEPS, FALLS = 0.01, 0.20  # "retains its performance" and "a substantial decline", as numbers


def solver_claims(suffix: str = "") -> list[Claim]:
    """The paper's claims about the four solvers, for the variants with this suffix."""
    dtsn = f"dtsn{suffix}"
    claims = [
        Claim(
            f"D-TSN succeeds more often than all three baselines, {_scenario(exits)}",
            tuple(Check((dtsn, exits), (f"{name}{suffix}", exits)) for name in BASELINES),
        )
        for exits in ("2", "1")
    ]
    falls = tuple(Check((name + suffix, "2"), (name + suffix, "1"), FALLS) for name in ("qnet", "treeqn"))
    search = (f"search{suffix}", "2"), (f"search{suffix}", "1")
    return [
        *claims,
        Claim(
            f"D-TSN keeps its success with 1 exit (loses less than {_points(KEEPS)})",
            (Check((dtsn, "1"), (dtsn, "2"), -KEEPS),),
        ),
        Claim(f"Q-network and TreeQN lose tens of points with 1 exit (over {_points(FALLS)})", falls),
        Claim(
            f"Model-based Search loses some (less than {_points(FALLS)})",
            (Check(*search), Check(*search[::-1], -FALLS)),
        ),
    ]


def ablation_claims(suffix: str = "") -> list[Claim]:
    """The paper's claims about the parts of D-TSN, for the variants with this suffix."""
    parts = ("the telescoping sum", "the REINFORCE term", "the auxiliary losses")
    return [
        Claim(
            f"Without {part}, D-TSN solves fewer levels with 1 exit",
            (Check((f"dtsn{suffix}", "1"), (name + suffix, "1")),),
        )
        for name, part in zip(ABLATIONS, parts, strict=True)
    ]


def iteration_claims() -> list[Claim]:
    """The paper's claims about training with a larger search."""
    return [
        Claim(
            "Training and acting with more iterations (5, 10, 20) helps D-TSN",
            tuple(
                Check((more, exits), (less, exits))
                for less, more in (("dtsn-5", "dtsn"), ("dtsn", "dtsn-20"))
                for exits in ("2", "1")
            ),
        ),
    ]


def acting_claims(suffix: str = "") -> list[Claim]:
    """The paper's claims about acting with a larger search, for the variants with this suffix."""
    dtsn, search = f"dtsn{suffix}", f"search{suffix}"
    return [
        Claim(
            "Trained with 10 iterations, acting with 50 helps D-TSN",
            tuple(Check((dtsn, f"{exits}@T50"), (dtsn, exits)) for exits in "21"),
        ),
        Claim(
            "Trained with 10 iterations, acting with 50 hurts Model-based Search",
            tuple(Check((search, exits), (search, f"{exits}@T50")) for exits in "21"),
        ),
    ]


@dataclass(frozen=True)
class Finding:
    """A check against the numbers: holds (True), fails (False) or cannot be told from them (None)."""

    difference: float
    low: float
    high: float
    holds: bool | None


def judge(check: Check, summary: Summary) -> Finding | None:
    """The difference of the two success rates with Newcombe's 95% interval; None if there are no rows.

    The interval knows the chance of episodes alone. Training runs differ too, so a check holds, or fails,
    only if the interval is wholly on one side of the margin and so is every pair of seeds: a run against
    itself where both sides are the same variant, all against all otherwise.
    """
    more, less = (summary.get(variant, {}).get(key) for variant, key in (check.more, check.less))
    if more is None or less is None:
        return None
    same = check.more[0] == check.less[0]
    shared = [seed for seed in more["by_seed"] if seed in less["by_seed"]]
    if same and not shared:
        return None
    # A run is compared with itself: seeds that only one side has would be a difference between runs.
    (a, (a_low, a_high)), (b, (b_low, b_high)) = (
        _rate(cell, shared if same else list(cell["by_seed"])) for cell in (more, less)
    )
    low = a - b - math.hypot(a - a_low, b_high - b)
    high = a - b + math.hypot(a_high - a, b - b_low)
    pairs = [
        more["by_seed"][x] - less["by_seed"][y] > check.margin
        for x, y in product(more["by_seed"], less["by_seed"])
        if x == y or not same
    ]
    holds = True if low > check.margin and all(pairs) else None
    if high <= check.margin and not any(pairs):
        holds = False
    return Finding(a - b, low, high, holds)


def _rate(cell: Cell, seeds: Sequence[str]) -> tuple[float, tuple[float, float]]:
    """Success rate and 95% interval over some of the seeds; all have the same number of episodes."""
    n = cell["n"] // len(cell["by_seed"]) * len(seeds)
    rate = sum(cell["by_seed"][seed] for seed in seeds) / len(seeds)
    return rate, wilson(round(rate * n), n)


def verdict(findings: Sequence[Finding | None]) -> str:
    """What the checks of a claim say together."""
    outcomes = [finding.holds for finding in findings if finding is not None]
    if len(outcomes) < len(findings):
        return "rows are missing"
    if all(outcomes):
        return "reproduced"
    if any(outcomes):
        return "partly reproduced"
    return "not reproduced" if False in outcomes else "undecided"


# --- the page ----------------------------------------------------------------------------------------


def navigation_page(
    summary: Summary,
    tried: Mapping[str, Curves],
    *,
    meta: Mapping[str, Any],
    figures: Mapping[str, str],
    missing: Sequence[str],
    source: str,
) -> str:
    """The results page in Markdown; ``source`` is the folder of the raw files as seen from the page.

    ``tried``: learning curves of the variants that are validated but not tested.
    """
    both = ("2", "1")
    claims = [*solver_claims(), *ablation_claims(), *iteration_claims(), *acting_claims()]
    sections = [
        "# Navigation: results",
        f"Built from the raw episodes in [`{source}`]({source}) by `dtsn report`; "
        "every number and verdict below is computed from them. Solvers are trained on halls with 2 exits and "
        "tested on unseen levels with 2 exits and with 1. T is the number of search iterations when acting; "
        "it is the one trained with where it is not given. What differs from the paper is in "
        "[deviations.md](deviations.md).",
        "## The paper's claims",
        _claims_table(claims, summary),
        "A check compares two success rates. ✓: the 95% interval of the difference, and every pair of "
        "training seeds, are beyond the margin; ✗: both are on the wrong side; ?: neither. A claim is "
        "*reproduced* if all its checks are ✓, *partly* if some are, *not* if none is and one is ✗, "
        "*undecided* otherwise.",
        "## Solvers",
        _results_table(summary, [(name, key) for key in both for name in SOLVERS]),
        "±: standard error over episodes, as in the paper; interval: Wilson's. Both take the episodes of all "
        "seeds together and know nothing of the spread between training runs, which is in the table of "
        "[seeds](#seeds). Timeouts are robots that neither arrive nor collide before the episode ends.",
        *_pictures(figures, set(FIGURES).difference(*(family.figures for family in FAMILIES.values()))),
        "## Ablations",
        _results_table(summary, [(name, key) for key in both for name in ("dtsn", *ABLATIONS)]),
        "## Search iterations",
        "Trained and acting with the same number:",
        _results_table(summary, [(name, key) for key in both for name in ("dtsn-5", "dtsn", "dtsn-20")]),
        *_acting(summary),
    ]
    for suffix, family in FAMILIES.items():
        ablations = [name for name in ABLATIONS if name + suffix in summary]
        names = [name + suffix for name in (*SOLVERS, *ablations)]
        if any(name in summary for name in names):
            acting = _acting(summary, suffix)
            claims = solver_claims(suffix) + (ablation_claims(suffix) if ablations else [])
            claims += acting_claims(suffix) if acting else []
            sections += [
                f"## {family.heading}",
                family.text,
                _results_table(summary, [(name, key) for key in both for name in names]),
                *_pictures(figures, family.figures),
                *acting,
                _claims_table(claims, summary),
            ]
    if "dtsn-bfloat16" in summary:
        pair = [(name, key) for key in both for name in ("dtsn", "dtsn-bfloat16")]
        sections += ["## Half precision", _results_table(summary, pair)]
    sections += [
        "## Path quality",
        "Steps divided by those of the shortest path, mean over the successful episodes. Solvers succeed on "
        "different levels, so a solver that fails on the long ones may look better here.",
        table(
            ("Solver", "2 exits", "1 exit"),
            (
                (_title(name), *(_detour(summary, name, key) for key in both))
                for name in [*SOLVERS, *ABLATIONS]
            ),
        ),
        "## Seeds",
        "Success of every training run, by its last checkpoint.",
        _seeds_table(summary),
        *_weights(tried),
        "## How they were made",
        *_setup(meta),
        "D-TSN's configuration; what other rows change is in `dtsn.reproduce.experiments`:",
        configuration(NAVIGATION),
    ]
    if missing:
        sections += ["## Missing", "\n".join(f"- {line}" for line in missing)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _pictures(figures: Mapping[str, str], names: Collection[str]) -> list[str]:
    """Those of the figures, by path and caption, whose file has one of the names."""
    return [f"![{text}]({path})" for path, text in figures.items() if Path(path).name in names]


def _claims_table(claims: Iterable[Claim], summary: Summary) -> str:
    rows = []
    for claim in claims:
        findings = [judge(check, summary) for check in claim.checks]
        evidence = [_evidence(*pair) for pair in zip(claim.checks, findings, strict=True)]
        rows.append((claim.text, f"**{verdict(findings)}**", "<br>".join(evidence)))
    return table(("Claim", "Verdict", "Difference in success, points (95% interval; the paper's)"), rows)


def _evidence(check: Check, finding: Finding | None) -> str:
    (more, more_key), (less, less_key) = check.more, check.less
    sides = [_title(more), _title(less)] if more != less else [_title(more)]
    keys = [_scenario(more_key), _scenario(less_key)] if more_key != less_key else [_scenario(more_key)]
    what = f"{' − '.join(sides)}, {' − '.join(keys)}"
    if finding is None:
        return f"{what}: –"
    mark = {True: "✓", False: "✗", None: "?"}[finding.holds]
    theirs = _paper(*check.more), _paper(*check.less)
    printed = f"; {theirs[0].success - theirs[1].success:+.1f}" if theirs[0] and theirs[1] else ""
    ours, low, high = (f"{100 * x:+.2f}" for x in (finding.difference, finding.low, finding.high))
    wanted = f", to be above {100 * check.margin:+.0f}" if check.margin else ""
    return f"{mark} {what}: " + f"{ours} ({low} to {high}{printed}){wanted}".replace("-", "−")


def _results_table(summary: Summary, cells: Iterable[tuple[str, str]]) -> str:
    rows = []
    for variant, key in cells:
        cell, paper = summary.get(variant, {}).get(key), _paper(variant, key)
        ours = ["–"] * 6
        if cell:
            low, high = cell["interval"]
            ours = [
                f"{_percent(cell['success'])} ± {_percent(cell['error'])}",
                f"{_percent(low)} to {_percent(high)}",
                _percent(cell["collision"]),
                _percent(cell["timeout"]),
                f"{cell['n']:,}",
                _list(cell["seeds"]),
            ]
        theirs = ["–", "–"]
        if paper:
            theirs[0] = f"{paper.success:.1f}%" + (f" ± {paper.error:.1f}%" if paper.error else "")
            theirs[1] = f"{paper.collision:.1f}%" if paper.collision is not None else "–"
        rows.append((_title(variant), _scenario(key), *ours[:2], theirs[0], ours[2], theirs[1], *ours[3:]))
    header = ("Solver", "Test", "Success", "95% interval", "Paper", "Collisions", "Paper", "Timeouts")
    return table((*header, "Episodes", "Seeds"), rows)


def _acting(summary: Summary, suffix: str = "") -> list[str]:
    """What acting with a larger search than trained with does, by the seeds that were tested with all."""
    variants = [name + suffix for name in ("dtsn", "search") if name + suffix in NAVIGATION_VARIANTS]
    searches = sorted({t for name in variants for t in NAVIGATION_VARIANTS[name].act_iterations})
    if not searches or not any("@T" in key for name in variants for key in summary.get(name, {})):
        return []
    rows = []
    for name, exits in product(variants, "21"):
        keys = [exits, *(f"{exits}@T{t}" for t in searches)]
        cells = [summary.get(name, {}).get(key) for key in keys]
        shared = set.intersection(*(set(cell["by_seed"]) for cell in cells if cell)) if any(cells) else set()
        shown = [
            _shown_rate(cell, sorted(shared), _paper(name, key))
            for cell, key in zip(cells, keys, strict=True)
        ]
        rows.append((_title(name), _scenario(exits), *shown, _list(sorted(map(int, shared)))))
    trained = NAVIGATION_VARIANTS[variants[0]].solver.iterations
    header = ("Solver", "Test", *(f"T={t}" for t in (trained, *searches)), "Seeds")
    return [
        f"Trained with {trained}, acting with more: success of the seeds tested with all, its 95% interval, "
        "and the paper's:",
        table(header, rows),
    ]


def _shown_rate(cell: Cell | None, seeds: Sequence[str], paper: PaperNumber | None) -> str:
    if cell is None or not seeds:
        return "–"
    rate, (low, high) = _rate(cell, seeds)
    theirs = f"; {paper.success:.1f}%" if paper else ""
    return f"{_percent(rate)} ({_percent(low)} to {_percent(high)}{theirs})"


def _seeds_table(summary: Summary) -> str:
    seeds = sorted({seed for cells in summary.values() for cell in cells.values() for seed in cell["seeds"]})
    rows = [
        (
            f"`{variant}`",
            _scenario(key),
            *(_percent(cell["by_seed"][str(seed)]) if seed in cell["seeds"] else "–" for seed in seeds),
        )
        for variant, cells in summary.items()
        for key, cell in cells.items()
    ]
    return table(("Variant", "Test", *(f"Seed {seed}" for seed in seeds)), rows)


def _weights(tried: Mapping[str, Curves]) -> list[str]:
    """What loss weights other than the chosen ones do, by validation levels at the end of training."""
    if not tried:
        return []
    bases = {"": "default encoder", "-raw": "pooling encoder without augmentation"}
    names = [name for name in NAVIGATION_VARIANTS if name.startswith("weights") and not name.endswith("-raw")]
    rows = [
        (_title(name), *(_validated(tried, name + suffix, exits) for suffix in bases for exits in "21"))
        for name in names
    ]
    trained = (
        f"{NAVIGATION_VARIANTS['weights' + suffix].train.steps} steps with the {base}"
        for suffix, base in bases.items()
    )
    header = [f"{base.capitalize()}, {_scenario(exits)}" for base in bases.values() for exits in "21"]
    return [
        "## Loss weights",
        "D-TSN with one weight changed at a time, on a log scale: success on *validation* levels, one number "
        f"a training run, at the end of shorter runs of {' and '.join(trained)}.",
        table(("Weights", *header), rows),
    ]


def _validated(tried: Mapping[str, Curves], variant: str, exits: str) -> str:
    """Validation success at the last step of every run; those that have not got there do not count."""
    steps = NAVIGATION_VARIANTS[variant].train.steps
    ended = [curve for _, curve in sorted(tried.get(variant, {}).items()) if steps in curve["step"][-1:]]
    return ", ".join(_percent(float(curve[f"validation_success_{exits}"][-1])) for curve in ended) or "–"


def _setup(meta: Mapping[str, Any]) -> list[str]:
    """The command and the circumstances, as far as they are known."""
    facts = {name: meta[name] for name in ("dtsn", "levels") if name in meta}
    facts |= dict(sorted(meta.get("machine", {}).items()))
    return [
        f"```\n{meta['command']}\n```" if "command" in meta else "",
        "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()),
    ]


def _key(variant: str, exits: int, iterations: int) -> str:
    """Name of a scenario; the search is named where it is not the one trained with."""
    solver = NAVIGATION_VARIANTS[variant].solver
    trained = solver.act_iterations or solver.iterations
    return str(exits) if iterations == trained else f"{exits}@T{iterations}"


def _keys(variant: str) -> list[str]:
    """The scenarios that a variant is tested in."""
    deeper = NAVIGATION_VARIANTS[variant].act_iterations
    return [f"{exits}{search}" for exits in (2, 1) for search in ("", *(f"@T{t}" for t in deeper))]


def _order(key: str) -> tuple[int, int]:
    """2 exits before 1, then by the search when acting."""
    exits, _, search = key.partition("@T")
    return -int(exits), int(search or 0)


def _scenario(key: str) -> str:
    exits, _, search = key.partition("@T")
    return f"{exits} exit{'s' * (exits != '1')}" + (f", T={search}" if search else "")


def _paper(variant: str, key: str) -> PaperNumber | None:
    exits, _, search = key.partition("@T")
    name = next((variant.removesuffix(suffix) for suffix in FAMILIES if variant.endswith(suffix)), variant)
    iterations = int(search or NAVIGATION_VARIANTS[variant].solver.iterations)
    return PAPER_NAVIGATION.get((name, int(exits), iterations))


def _detour(summary: Summary, variant: str, key: str) -> str:
    cell = summary.get(variant, {}).get(key)
    return f"{cell['detour']:.3f}" if cell and cell["detour"] else "–"


def _title(variant: str) -> str:
    return NAVIGATION_VARIANTS[variant].title


def _percent(rate: float) -> str:
    digits = 2 if 0 < min(rate, 1 - rate) < 1e-3 else 1  # 99.96% is not 100.0%
    return f"{100 * rate:.{digits}f}%"


def _points(rate: float) -> str:
    return f"{100 * rate:.0f} point{'s' * (rate != 0.01)}"


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
