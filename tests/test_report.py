"""The Navigation report: cells, claims, headline, page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dtsn.evaluation.rows import NavigationRow, PlanRow, Scenario, rows_path, write_rows
from dtsn.reproduce.navigation.cells import Cell, PlanCell, aligned, read_results
from dtsn.reproduce.navigation.claims import Check, Finding, Side, family_claims, judge, verdict
from dtsn.reproduce.navigation.curves import read_curve
from dtsn.reproduce.navigation.page import navigation_page
from dtsn.reproduce.navigation.report import build_navigation_report, headline, missing_parts
from dtsn.reproduce.navigation.variants import FAMILIES, VARIANTS, of_family
from dtsn.reproduce.statistics import Estimate

RATES = {"qnet": (0.95, 0.5), "search": (0.93, 0.87), "treeqn": (0.95, 0.55), "dtsn": (0.99, 0.992)}
TWO, ONE = Scenario(2, 10), Scenario(1, 10)


def write_episodes(
    folder: Path, variant: str, seed: int, scenario: Scenario, rate: float, n: int, first: int = 0
) -> Path:
    path = rows_path(folder / "navigation/rows" / variant / f"seed-{seed}", scenario.name)
    won = [i < round(rate * n) for i in range(n)]
    rows = [
        NavigationRow(
            2_000_000 + first + i, scenario.exits, w, not w and i % 2 == 0, 12 + 12 * (i % 10 == 0), 10
        )
        for i, w in enumerate(won)
    ]
    return write_rows(path, rows)


def write_campaign(folder: Path, n: int = 400, seeds: int = 3) -> None:
    for variant, rates in RATES.items():
        for seed in range(seeds):
            for exits, rate in zip((2, 1), rates, strict=True):
                write_episodes(folder, variant, seed, Scenario(exits, 10), rate + 0.0025 * seed, n)
            curve = folder / "navigation/curves" / variant / f"seed-{seed}.csv"
            curve.parent.mkdir(parents=True, exist_ok=True)
            names = "step,loss,validation_success_2,validation_success_1"
            drawn = ",".join(f"validation_return_softmax_{t}" for t in ("0.5", "1", "2"))
            returns = f"{-20 - 20 * seed},-21,-22"  # τ = 0.5 is best for seed 0 alone, τ = 1 on average
            curve.write_text(f"{names},{drawn}\n1,2.5,,,,,\n2,1.5,0.5,0.25,{returns}\n")
    for exits in (2, 1):
        write_episodes(folder, "dtsn", 0, Scenario(exits, 50), 0.99, n // 2)
        write_episodes(folder, "dtsn", 0, Scenario(exits, 10, "greedy"), 0.75, n)
        write_episodes(folder, "qnet", 0, Scenario(exits, 10, temperature=1), 0.625, n)
        plans = [PlanRow(2_000_000 + i, exits, 10, i % 2, 8) for i in range(20)]
        write_rows(rows_path(folder / "navigation/plans/dtsn/seed-0", Scenario(exits, 10).name), plans)
    write_episodes(folder, "pooled-dtsn", 0, TWO, 0.7, n)
    meta = {"command": "dtsn reproduce", "machine": {"system": "Linux", "cores": 2}}
    (folder / "navigation/meta.json").write_text(json.dumps(meta))


def cell(*rates: float, n: int = 2000) -> Cell:
    """A cell with these success rates, one a seed; different levels fail with different seeds."""
    won = np.stack([np.roll(np.arange(n) < round(rate * n), 37 * s) for s, rate in enumerate(rates)])
    steps = np.full(won.shape, 10.0)
    return Cell(tuple(range(len(rates))), 2_000_000 + np.arange(n), won, ~won, steps, steps)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a half-finished campaign, and the report on it."""
    folder = tmp_path_factory.mktemp("campaign")
    write_campaign(folder)
    written = build_navigation_report(folder, folder / "docs/results.md")
    assert [path.relative_to(folder).as_posix() for path in written] == [
        "navigation/headline.json",
        "navigation/summary.json",
        "docs/figures/navigation-success.png",
        "docs/figures/navigation-curves.png",
        "docs/results.md",
    ]
    return folder


def test_headline(campaign: Path) -> None:
    found = json.loads((campaign / "navigation/headline.json").read_text())
    assert set(found) == {*RATES, "qnet_softmax", "plan_validity", "act_T"}
    assert found["dtsn"]["2"] == {
        "success": pytest.approx(0.9925),
        "collision": pytest.approx(0.003333, abs=1e-6),
        "within_2x": 0.8925,
        "steps_over_optimal": pytest.approx(1.32, abs=0.01),
        "success_greedy": 0.75,
        "n": 1200,
        "seeds": [0, 1, 2],
    }
    assert found["qnet"]["1"]["success_greedy"] == found["qnet"]["1"]["success"]
    assert found["qnet_softmax"]["1"]["success"] == 0.625
    assert found["search"]["1"]["success_greedy"] is None
    assert found["plan_validity"] == {
        "dtsn": {exits: {"into_wall": 0.05, "optimal": 0.8, "n": 200} for exits in "21"}
    }
    # Both searches on the levels and seeds that both have: the first half, all of which T = 10 solves.
    assert found["act_T"] == {"dtsn": {"10": [1.0, 1.0], "50": [0.99, 0.99]}}


def test_summary(campaign: Path) -> None:
    found = json.loads((campaign / "navigation/summary.json").read_text())
    assert set(found) == {*RATES, "pooled-dtsn"}
    assert list(found["dtsn"]) == [
        *("exits-2-T10", "exits-2-T50", "exits-2-T10-greedy"),
        *("exits-1-T10", "exits-1-T50", "exits-1-T10-greedy"),
    ]
    dtsn = found["dtsn"]["exits-2-T10"]
    assert dtsn["by_seed"] == {"0": 0.99, "1": 0.9925, "2": 0.995}
    assert dtsn["interval"][0] < 0.98 < dtsn["success"] < dtsn["interval"][1]
    assert dtsn["success"] + dtsn["collision"] + dtsn["timeout"] == pytest.approx(1)


def test_page(campaign: Path) -> None:
    page = (campaign / "docs/results.md").read_text()
    for text in (
        "(figures/navigation-success.png)",
        "(deviations.md)",
        "(../navigation)",
        "dtsn reproduce",
        "| D-TSN | 2 exits | 99.2% (",
        "## Greedy acting",
        "## Is it chance?",
        "## Do the searches plan?",
        "| D-TSN | 2 exits | 5.0% (",
        "## Path encoder and pooling encoder (version 0.1)",
        "### Pooling encoder\n",
        "`dtsn-20`: no rows\n",
        "`treeqn`: no rows for exits-2-T10-softmax-0.5; ",
        "exits-2-T10 (seeds 3, 4)",
    ):
        assert text in page, text
    assert "### Path encoder\n" not in page
    assert "`pooled-qnet`" not in page.split("## Missing")[1]  # not of this version's campaign


def test_tables_are_well_formed(campaign: Path) -> None:
    page = (campaign / "docs/results.md").read_text()
    tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    assert len(tables) >= 9
    for lines in tables:
        assert len(lines) >= 3
        assert set(lines[1]) == set("| -")
        assert len({line.count("|") for line in lines}) == 1
        assert all(line.startswith("| ") and line.endswith(" |") for line in lines)


def test_same_files_same_bytes(campaign: Path) -> None:
    before = {path: path.read_bytes() for path in campaign.rglob("*") if path.is_file()}
    build_navigation_report(campaign, campaign / "docs/results.md")
    assert before == {path: path.read_bytes() for path in campaign.rglob("*") if path.is_file()}


def test_no_campaign_at_all(tmp_path: Path) -> None:
    written = build_navigation_report(tmp_path, out := tmp_path / "results.md")
    assert [path.name for path in written] == ["headline.json", "summary.json", "results.md"]
    page = out.read_text()
    assert "rows are missing" in page
    assert "reproduced**" not in page
    assert "## Loss weights" not in page
    for row in VARIANTS.values():
        expected = row.purpose == "table" and row.family.is_current
        assert (f"`{row.key}`: no rows\n" in page) == expected


def test_seeds_with_other_levels_share_what_both_have(tmp_path: Path) -> None:
    write_episodes(tmp_path, "dtsn", 0, TWO, 1.0, 10)
    write_episodes(tmp_path, "dtsn", 1, TWO, 0.5, 10, first=4)
    found = read_results(tmp_path / "navigation")["dtsn"][TWO]
    assert found.level.tolist() == [2_000_004 + i for i in range(6)]
    assert found.by_seed == {0: 1.0, 1: pytest.approx(5 / 6)}


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    path = write_episodes(tmp_path, "dtsn", 0, TWO, 1.0, 10)
    path.with_name("exits-2-T10-validation.csv.gz").write_bytes(b"?")
    write_episodes(tmp_path, "unknown", 0, TWO, 1.0, 10)
    assert set(read_results(tmp_path / "navigation")) == {"dtsn"}


def test_measures_of_a_cell() -> None:
    won = np.array([[True, True, False, False], [True, False, True, True]])
    steps, optimal = np.array([[10.0, 21, 5, 200], [10, 3, 20, 15]]), np.full((2, 4), 10.0)
    collision = np.array([[False, False, True, False], [False, True, False, False]])
    found = Cell((0, 7), np.arange(4), won, collision, steps, optimal)
    assert found.rate.value == 5 / 8
    assert found.within_2x.value == 4 / 8  # 21 of 10 steps are too many
    assert found.detour == pytest.approx((1 + 2.1 + 1 + 2 + 1.5) / 5)
    assert found.timeout == 1 / 8
    assert found.by_seed == {0: 0.5, 7: 0.75}
    assert found.of_seeds([7]).on_levels(np.array([2, 0])).steps.tolist() == [[20, 10]]
    assert cell(0.0).detour is None


def test_aligned_cells_have_the_same_seeds_and_levels() -> None:
    a, b = cell(0.9, 0.8, n=50), cell(0.7, n=30)
    found = aligned([a, b])
    assert [x.seeds for x in found] == [(0,), (0,)]
    np.testing.assert_array_equal(found[0].level, found[1].level)
    assert found[0].rate.value == 1.0  # of its first 30 levels
    assert aligned([]) == []


def judged(more: Cell, less: Cell, margin: float = 0.0, keys: tuple[str, str] = ("dtsn", "qnet")) -> Finding:
    results = {keys[0]: {TWO: more}} | {keys[1]: {TWO: less}}
    found = judge(Check(Side(keys[0], TWO), Side(keys[1], TWO), margin), results)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("more", "less", "margin", "holds"),
    [
        ((0.99, 0.99, 0.99), (0.95, 0.96, 0.95), 0.0, True),
        ((0.95, 0.96, 0.95), (0.99, 0.99, 0.99), 0.0, False),
        ((0.99, 0.99, 0.99), (0.99, 0.99, 0.99), 0.0, None),
        ((0.99, 0.95, 0.90), (0.96, 0.90, 0.91), 0.0, None),  # better on average, but seeds differ more
        ((0.99, 0.99), (0.50, 0.55), 0.0, None),  # two seeds decide nothing
        ((0.99, 0.99, 0.99), (0.50, 0.55, 0.52), 0.2, True),
        ((0.99, 0.99, 0.99), (0.85, 0.85, 0.85), 0.2, False),
        ((0.995, 0.995, 0.995), (0.99, 0.99, 0.99), -0.01, True),
    ],
)
def test_judge(more: tuple[float, ...], less: tuple[float, ...], margin: float, holds: bool | None) -> None:
    found = judged(cell(*more), cell(*less), margin)
    assert found.difference.low < found.difference.value < found.difference.high
    assert found.holds is holds
    assert found.seeds == (len(more), len(less))


def test_a_run_is_compared_with_itself() -> None:
    # Deeper search helps every seed, though weak seeds stay below strong ones.
    deep = Scenario(2, 50)
    results = {"dtsn": {TWO: cell(0.90, 0.96, 0.8), deep: cell(0.93, 0.99, 0.83)}}
    found = judge(Check(Side("dtsn", deep), Side("dtsn", TWO)), results)
    assert found is not None
    assert found.holds is True
    # A seed that only one side has would be a difference between runs.
    results["dtsn"][deep] = cell(0.93, 0.99)
    found = judge(Check(Side("dtsn", deep), Side("dtsn", TWO)), results)
    assert found is not None
    assert found.difference.value == pytest.approx(0.03)
    assert found.seeds == (2, 2)


def test_levels_of_other_halls_are_not_paired() -> None:
    a, b = cell(0.9, 0.9, 0.9), cell(0.5, 0.5, 0.5, n=1000)
    found = judged(a, b, keys=("dtsn", "hall-7-12-dtsn"))
    assert found.difference.value == pytest.approx(0.4)
    assert judged(a, b).difference.value != pytest.approx(0.4)  # the first half of the same levels


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ([True, True], "reproduced"),
        ([True, False], "partly reproduced"),
        ([True, None], "partly reproduced"),
        ([False, None], "not reproduced"),
        ([False], "not reproduced"),
        ([None], "undecided"),
    ],
)
def test_verdict(outcomes: list[bool | None], word: str) -> None:
    findings = [Finding(Estimate(0.0, 0.0, 0.0), (3, 3), outcome) for outcome in outcomes]
    assert verdict(findings) == word
    assert verdict([*findings, None]) == "rows are missing"


def words(rates: dict[str, tuple[float, float]], seeds: int = 3) -> list[str]:
    results = {
        key: {TWO: cell(*[two] * seeds), ONE: cell(*[one] * seeds)} for key, (two, one) in rates.items()
    }
    claims = family_claims("main")[:5]
    return [verdict([judge(check, results) for check in claim.checks]) for claim in claims]


def test_verdicts_of_the_papers_own_numbers_and_of_their_opposite() -> None:
    assert words(RATES) == ["reproduced"] * 5
    assert words(RATES, seeds=2) == ["undecided"] * 5
    bad = {"qnet": (0.95, 0.95), "search": (0.93, 0.95), "treeqn": (0.95, 0.95), "dtsn": (0.8, 0.5)}
    assert words(bad) == [*["not reproduced"] * 4, "partly reproduced"]  # search loses less than much


def test_claims_are_about_tests_that_campaigns_make() -> None:
    for family in FAMILIES.values():
        for claim in family_claims(family.key):
            for check in claim.checks:
                for side in (check.more, check.less):
                    assert side.scenario in [test.scenario for test in VARIANTS[side.variant].tests]
    assert len(family_claims("main")) >= 11


def test_loss_weights_are_compared_by_runs_that_ended() -> None:
    steps = FAMILIES["main"].train.steps

    def curve(step: float, two: float, one: float) -> dict[str, np.ndarray]:
        values = {"step": step, "validation_success_2": two, "validation_success_1": one}
        return {name: np.array([value]) for name, value in values.items()}

    keys = [key for key, row in VARIANTS.items() if row.title == "λ1 = 0.01" and row.purpose != "table"]
    curves = {
        "weights-dtsn": {0: curve(steps, 0.9, 0.8), 1: curve(steps, 0.7, 0.6)},
        keys[0]: {0: curve(steps, 0.5, 0)},
        keys[-1]: {0: curve(steps / 2, 1, 1)},  # half-way
    }
    page = navigation_page({}, {}, curves, meta={}, figures={}, missing=[], source="raw")
    lines = page.split("## Loss weights")[1].split("## ")[0].splitlines()
    assert "| the recipe's | – | – | – | – | – | – | 90.0%, 70.0% | 80.0%, 60.0% |" in lines
    assert "| λ1 = 0.01 | 50.0% | 0.0% | – | – | – | – | – | – |" in lines
    assert any(line.startswith("| λ3 = ") and line.split("|")[2].strip() == "" for line in lines)


def test_a_seed_without_a_scenario_is_missed() -> None:
    cells = {"treeqn": {test.scenario: cell(*[0.5] * 5) for test in VARIANTS["treeqn"].tests}}
    plans = {"treeqn": {TWO: PlanCell((0,), *[np.ones((1, 2))] * 3)}}
    curves = {key: {} for key in RATES}
    before = missing_parts(cells, plans, curves, {"command": "x"})
    assert not any(line.startswith("`treeqn`") for line in before)
    cells["treeqn"][ONE] = cell(0.5, 0.5, 0.5)
    after = missing_parts(cells, plans, curves, {"command": "x"})
    assert [line for line in after if line not in before] == [
        "`treeqn`: no rows for exits-1-T10 (seeds 3, 4)"
    ]


def test_headline_of_nothing() -> None:
    assert headline({}, {}, {}) == {"plan_validity": {}, "act_T": {}}


def test_read_curve_passes_over_empty_cells_and_a_half_line(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.csv"
    path.write_text("step,loss,validation_success_2\n1,0.5,\n2,0.25,0.9\n3,0.1")
    curve = read_curve(path)
    np.testing.assert_array_equal(curve["step"], [1, 2])
    np.testing.assert_array_equal(curve["validation_success_2"], [np.nan, 0.9])


def test_no_torch_no_matplotlib_at_import() -> None:
    modules = (
        "dtsn.reproduce.navigation.report, dtsn.reproduce.navigation.plan, dtsn.reproduce.procgen.report"
    )
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'matplotlib'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_main_rows_of_the_table() -> None:
    assert [row.key for row in of_family("main")][:4] == list(RATES)
