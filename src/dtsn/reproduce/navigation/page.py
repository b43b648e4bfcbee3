"""The Navigation results page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtsn.evaluation.rows import Scenario
from dtsn.reproduce.markdown import configuration, percent, table
from dtsn.reproduce.navigation.cells import Cell, Plans, Results, aligned
from dtsn.reproduce.navigation.claims import (
    MIN_SEEDS,
    Check,
    Claim,
    Finding,
    Side,
    exits_text,
    family_claims,
    judge,
    verdict,
)
from dtsn.reproduce.navigation.curves import Curves, best_temperature
from dtsn.reproduce.navigation.variants import (
    EXITS,
    FAMILIES,
    NAVIGATION,
    TEMPERATURES,
    VARIANTS,
    Family,
    Variant,
    of_family,
    searches,
)
from dtsn.reproduce.navigation.weights import weights_section
from dtsn.reproduce.paper import PAPER_NAVIGATION, PaperNumber
from dtsn.reproduce.statistics import Estimate


def navigation_page(
    cells: Results,
    plans: Plans,
    curves: Curves,
    *,
    meta: Mapping[str, Any],
    figures: Mapping[str, str],
    missing: Sequence[str],
    source: str,
) -> str:
    """Write the page; ``source`` is the raw files' folder as seen from it, ``figures`` path -> caption."""
    main = of_family("main")
    sections = [
        "# Navigation: results",
        f"Built from the raw episodes in [`{source}`]({source}) by `dtsn report`: every number and verdict "
        "below is computed from them. Solvers are trained on halls with 2 exits and tested on unseen halls "
        "with 2 exits and with 1. T is the number of search iterations when acting; where it is not given, "
        "it is the one trained with. What differs from the paper is in [deviations.md](deviations.md).",
        "## The paper's claims",
        _claims_table(family_claims("main"), cells),
        "A check compares two success rates. ✓: the 95% interval of the difference is beyond the margin; ✗: "
        f"it is on the wrong side; ?: neither, or fewer than {MIN_SEEDS} training runs on a side. A claim is "
        "*reproduced* if all its checks are ✓, *partly* if some are, *not* if none is and one is ✗, "
        "*undecided* otherwise. All runs are tested on the same levels. Intervals know both: the spread "
        "between training runs and that between levels; with one seed they know levels alone.",
        f"## {FAMILIES['main'].heading}",
        FAMILIES["main"].text,
        _results_table(cells, _compared(main)),
        "Within 2×: solved in at most twice the steps of the shortest path, of all levels. Steps ÷ shortest: "
        "mean over the solved levels. Test halls differ from each other, from every training hall and from "
        "the validation halls by their content.",
        *(f"![{text}]({path})" for path, text in figures.items()),
        *_greedy(cells, main),
        *_drawn(cells, curves, main),
        *_plans(plans, main),
        *_part("Ablations", cells, [row for row in main if row.recipe.key == "dtsn" or _is_ablation(row)]),
        *_iterations(cells, main),
    ]
    for family in FAMILIES.values():
        if family.is_current and family.key != "main":
            sections += _family(family, cells, plans, curves)
    sections += _seeds(cells)
    sections += weights_section(curves)
    sections += _earlier(cells)
    sections += [
        "## How they were made",
        *_setup(meta, cells, curves),
        "D-TSN's configuration; what other rows change is in `dtsn.reproduce.navigation.variants`:",
        configuration(NAVIGATION),
    ]
    if missing:
        sections += ["## Missing", "\n".join(f"- {line}" for line in missing)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _compared(rows: Iterable[Variant]) -> list[Variant]:
    """List the rows of a family's first table: solvers, without ablations and other searches in training."""
    trained = NAVIGATION.solver.iterations
    return [row for row in rows if not _is_ablation(row) and row.solver.iterations == trained]


def _is_ablation(row: Variant) -> bool:
    """Whether a row is D-TSN with a part less, or one more."""
    return bool(row.recipe.without or row.recipe.added)


def _family(family: Family, cells: Results, plans: Plans, curves: Curves) -> list[str]:
    rows = of_family(family.key)
    if not any(row.key in cells for row in rows):
        return []
    claims = family_claims(family.key)
    more = [*_greedy(cells, rows), *_drawn(cells, curves, rows), *_plans(plans, rows)]
    more += _iterations(cells, rows)
    return [
        f"## {family.heading}",
        family.text,
        _results_table(cells, rows),
        *(line for line in more if not line.startswith("#")),
        _claims_table(claims, cells) if claims else "",
    ]


def _part(heading: str, cells: Results, rows: Sequence[Variant]) -> list[str]:
    if not any(row.key in cells for row in rows):
        return []
    return [f"## {heading}", _results_table(cells, rows)]


def _results_table(cells: Results, rows: Sequence[Variant]) -> str:
    lines = []
    for exits in EXITS:
        for row in rows:
            cell, paper = cells.get(row.key, {}).get(row.scenario(exits)), _paper(row, exits)
            ours = ["–"] * 6
            if cell:
                ours = [
                    _rate(cell.rate),
                    percent(float(cell.collision.mean())),
                    _rate(cell.within_2x),
                    _ratio(cell),
                    f"{len(cell.level):,}",
                    _list(cell.seeds),
                ]
            theirs = ["–", "–"]
            if paper:
                theirs[0] = f"{paper.success:.1f}%" + (f" ± {paper.error:.1f}%" if paper.error else "")
                theirs[1] = f"{paper.collision:.1f}%" if paper.collision is not None else "–"
            lines.append((row.title, exits_text(exits), ours[0], theirs[0], ours[1], theirs[1], *ours[2:]))
    header = ("Solver", "Test", "Success (95%)", "Paper", "Collisions", "Paper")
    return table((*header, "Within 2× (95%)", "Steps ÷ shortest", "Levels", "Seeds"), lines)


def _greedy(cells: Results, rows: Sequence[Variant]) -> list[str]:
    """Compare acting by a search that always expands the best node with the sampled one."""
    lines = []
    for row in rows:
        for exits in EXITS:
            greedy = cells.get(row.key, {}).get(Scenario(exits, row.act_iterations, "greedy"))
            sampled = cells.get(row.key, {}).get(row.scenario(exits))
            if greedy and sampled:
                rates = [_rate(greedy.rate), _rate(greedy.within_2x), _ratio(greedy)]
                lines.append((row.title, exits_text(exits), percent(sampled.rate.value), *rates))
    if not lines:
        return []
    header = ("Solver", "Test", "Sampled", "Greedy (95%)", "Within 2× (95%)", "Steps ÷ shortest")
    return [
        "## Greedy acting",
        "The search expands the open node with the largest path value instead of sampling one, so that the "
        "same state always leads to the same action.",
        table(header, lines),
    ]


def _drawn(cells: Results, curves: Curves, rows: Sequence[Variant]) -> list[str]:
    """Return the control for chance: solvers without sampling, with actions drawn from softmax(Q / τ)."""
    lines, chosen = [], []
    for row in (row for row in rows if not searches(row.solver.name)):
        for exits in EXITS:
            found = [cells.get(row.key, {}).get(row.scenario(exits))]
            found += [
                cells.get(row.key, {}).get(Scenario(exits, row.act_iterations, temperature=temperature))
                for temperature in TEMPERATURES
            ]
            if any(found[1:]):
                shown = [
                    f"{_rate(cell.rate)}, within 2× {percent(cell.within_2x.value)}" if cell else "–"
                    for cell in found
                ]
                lines.append((row.title, exits_text(exits), *shown))
        if (temperature := best_temperature(curves, row)) is not None:
            chosen.append(f"{temperature:g} for {row.title}")
    if not lines:
        return []
    return [
        "## Is it chance?",
        "Sampled searches act at random and may wander out of a loop by luck; the best action of a Q-network "
        "cannot. Here actions are drawn from softmax(Q / τ) instead.",
        table(("Solver", "Test", "Best action", *(f"τ = {t:g}" for t in TEMPERATURES)), lines),
        f"The τ with the best mean return on validation levels with 2 exits: {', '.join(chosen)}. It is the "
        "one of `headline.json`."
        if chosen
        else "",
    ]


def _plans(plans: Plans, rows: Sequence[Variant]) -> list[str]:
    lines = []
    for row in rows:
        for exits in EXITS:
            if cell := plans.get(row.key, {}).get(row.scenario(exits)):
                shares = [_rate(cell.blocked), _rate(cell.shortest)]
                lines.append((row.title, exits_text(exits), *shares, f"{cell.n:,}", _list(cell.seeds)))
    if not lines:
        return []
    return [
        "## Do the searches plan?",
        "The plan of a decision is the best path of its tree. Walked in the real hall, it may run into a "
        "wall; if it does not, each of its steps may come nearer to the goal: it is optimal as far as it "
        "goes. The plans of a Q-network are one step long, TreeQN's as deep as its tree.",
        table(("Solver", "Test", "Into a wall (95%)", "Optimal (95%)", "Decisions", "Seeds"), lines),
    ]


def _iterations(cells: Results, rows: Sequence[Variant]) -> list[str]:
    """Report more search: trained and acting with the same T, and acting with another."""
    trained = sorted(
        (row for row in rows if not _is_ablation(row) and row.solver.name == "dtsn"),
        key=lambda row: row.solver.iterations,
    )
    lines = []
    if len({row.solver.iterations for row in trained if row.key in cells}) > 1:
        lines += ["Trained and acting with the same number:", _results_table(cells, trained)]
    acting = [row for row in rows if len(_searches_tested(row)) > 1]
    tried = sorted({t for row in acting for t in _searches_tested(row)})
    shown = []
    for row in acting:
        for exits in EXITS:
            own = cells.get(row.key, {})
            found = {t: own[Scenario(exits, t)] for t in tried if Scenario(exits, t) in own}
            same = dict(zip(found, aligned(list(found.values())), strict=False))
            if len(same) > 1:
                rates = [_acted(same.get(t), _paper(row, exits, t)) for t in tried]
                size = next(iter(same.values()))
                counts = (f"{len(size.level):,}", _list(size.seeds))
                shown.append((row.title, exits_text(exits), *rates, *counts))
    if shown:
        lines += [
            "Acting with another number than trained with, on the same levels: success, its 95% interval, "
            "and the paper's:",
            table(("Solver", "Test", *(f"T={t}" for t in tried), "Levels", "Seeds"), shown),
        ]
    return ["## Search iterations", *lines] if lines else []


def _searches_tested(row: Variant) -> set[int]:
    return {t.scenario.act_iterations for t in row.tests} if searches(row.solver.name) else set()


def _acted(cell: Cell | None, paper: PaperNumber | None) -> str:
    if cell is None:
        return "–"
    theirs = f"; {paper.success:.1f}%" if paper else ""
    return _rate(cell.rate)[:-1] + f"{theirs})"


def _seeds(cells: Results) -> list[str]:
    main = [row for row in of_family("main") if row.key in cells]
    seeds = sorted({seed for row in main for cell in cells[row.key].values() for seed in cell.seeds})
    lines = [
        (
            row.title,
            _scenario(scenario, row),
            *(percent(cell.by_seed[seed]) if seed in cell.seeds else "–" for seed in seeds),
        )
        for row in main
        for scenario, cell in cells[row.key].items()
    ]
    if not lines:
        return []
    return [
        "## Seeds",
        "Success of every training run, by its last checkpoint.",
        table(("Solver", "Test", *(f"Seed {seed}" for seed in seeds)), lines),
    ]


def _earlier(cells: Results) -> list[str]:
    """Return the results of version 0.1, by other encoders."""
    families = [family for family in FAMILIES.values() if not family.is_current]
    found = [family for family in families if any(row.key in cells for row in of_family(family.key))]
    if not found:
        return []
    sections = [
        "## Path encoder and pooling encoder (version 0.1)",
        "Earlier results, with encoders that are options today. Their test levels were told from the "
        "training levels by seed, not by content.",
    ]
    for family in found:
        sections += [f"### {family.heading}", family.text, _results_table(cells, of_family(family.key))]
    return sections


def _claims_table(claims: Iterable[Claim], cells: Results) -> str:
    rows = []
    for claim in claims:
        findings = [judge(check, cells) for check in claim.checks]
        evidence = [_evidence(*pair) for pair in zip(claim.checks, findings, strict=True)]
        rows.append((claim.text, f"**{verdict(findings)}**", "<br>".join(evidence)))
    return table(("Claim", "Verdict", "Difference in success, points (95% interval; the paper's)"), rows)


def _evidence(check: Check, finding: Finding | None) -> str:
    more, less = VARIANTS[check.more.variant], VARIANTS[check.less.variant]
    sides = list(dict.fromkeys([more.title, less.title]))
    tests = list(dict.fromkeys(_scenario(side.scenario, VARIANTS[side.variant])
                               for side in (check.more, check.less)))  # fmt: skip
    what = f"{' − '.join(sides)}, {' − '.join(tests)}"
    if finding is None:
        return f"{what}: –"
    mark = {True: "✓", False: "✗", None: "?"}[finding.holds]
    theirs = _paper_of(check.more), _paper_of(check.less)
    printed = f"; {theirs[0].success - theirs[1].success:+.1f}" if theirs[0] and theirs[1] else ""
    found = finding.difference
    ours, low, high = (f"{100 * x:+.2f}" for x in (found.value, found.low, found.high))
    wanted = f", to be above {100 * check.margin:+.0f}" if check.margin else ""
    few = (
        f"; {min(finding.seeds)} seed{'s' * (min(finding.seeds) > 1)}"
        if min(finding.seeds) < MIN_SEEDS
        else ""
    )
    return f"{mark} {what}: " + f"{ours} ({low} to {high}{printed}{few}){wanted}".replace("-", "−")


def _scenario(scenario: Scenario, row: Variant) -> str:
    """Return a scenario in words; the search is named where it is not the one trained with."""
    words = [exits_text(scenario.exits)]
    if scenario.act_iterations != row.act_iterations:
        words.append(f"T={scenario.act_iterations}")
    if scenario.rule == "greedy":
        words.append("greedy")
    if scenario.temperature is not None:
        words.append(f"τ = {scenario.temperature:g}")
    return ", ".join(words)


def _paper(row: Variant, exits: int, act_iterations: int | None = None) -> PaperNumber | None:
    return PAPER_NAVIGATION.get((row.recipe.key, exits, act_iterations or row.act_iterations))


def _paper_of(side: Side) -> PaperNumber | None:
    return _paper(VARIANTS[side.variant], side.scenario.exits, side.scenario.act_iterations)


def _setup(meta: Mapping[str, Any], cells: Results, curves: Curves) -> list[str]:
    """Return the commands and the circumstances, as far as they are known."""
    made = [key for key in FAMILIES if any(row.key in cells for row in of_family(key))]
    if any(VARIANTS[key].purpose == "weight_search" for key in curves):
        made.append("weight_search")
    facts = {name: meta[name] for name in ("dtsn", "levels") if name in meta}
    facts |= dict(sorted(meta.get("machine", {}).items()))
    return [
        "This makes the rows above, and skips those that exist:",
        f"```sh\ndtsn reproduce navigation --variants {' '.join(made)}\n```",
        *(["As typed at the time:", f"```text\n{meta['command']}\n```"] if "command" in meta else []),
        "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()),
    ]


def _rate(estimate: Estimate) -> str:
    return f"{percent(estimate.value)} ({percent(estimate.low)} to {percent(estimate.high)})"


def _ratio(cell: Cell) -> str:
    return "–" if cell.detour is None else f"{cell.detour:.2f}"


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
