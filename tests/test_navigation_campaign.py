"""Navigation's campaign: resumable, honest about other settings, and whole from nothing to a page."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtsn.config import SOLVERS, NetworkConfig, SolverConfig, TrainConfig
from dtsn.evaluation.rows import Scenario
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.cost import probe
from dtsn.reproduce.jobs import DONE, Job, LocalProcesses
from dtsn.reproduce.navigation import run
from dtsn.reproduce.navigation.pictures import draw_figures
from dtsn.reproduce.navigation.plan import GROUPS, Campaign, Task
from dtsn.reproduce.navigation.report import build_navigation_report, read_curves
from dtsn.reproduce.navigation.run import estimate_hours, run_campaign, run_task
from dtsn.reproduce.navigation.variants import CHOSEN_WEIGHTS, FAMILIES, VARIANTS, of_family
from dtsn.reproduce.navigation.weights import best_weights

QNET = Task("qnet", 0)


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """One run of a tiny Q-network."""
    options = FAMILIES["main"].options
    first, last = options.hall
    data = tmp_path / f"runs/navigation-{options.exit_layout}-{first}-{last}.h5"
    collect_navigation(data, episodes=20, options=options)
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    config = TrainConfig(SolverConfig("qnet"), network, steps=4, batch_size=8, checkpoint_every=2)
    monkeypatch.setattr(Campaign, "config", lambda *_: config)
    small = {"levels": 6, "act_levels": 4, "plan_levels": 3, "validation_levels": 5, "validate_every": 2}
    return Campaign(("qnet",), 1, 4, **small, results=tmp_path / "results/navigation", runs=tmp_path / "runs")


def curve_steps(campaign: Campaign) -> list[float]:
    with campaign.curve_path(QNET).open() as file:
        return [float(row["step"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("stopped_in", [1, 2, 4, 6, 8, 11, 15, 16, 17])
def test_stopped_at_any_time(stopped_in: int, campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it validates (calls 1 to 7), tests (8 to 15) or plans, it makes up for what it missed."""
    calls = iter(range(1, 100))

    def killing(real: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) == stopped_in:
                raise SystemExit("killed")
            return real(*arguments, **options)

        return called

    for name in ("evaluate_navigation", "evaluate_plans"):
        monkeypatch.setattr(run, name, killing(getattr(run, name)))
    with pytest.raises(SystemExit):
        run_task(campaign, QNET)
    assert not campaign.is_done(QNET)
    run_task(campaign, QNET)
    assert campaign.is_done(QNET)
    assert curve_steps(campaign) == [2, 4]


def test_rows_of_fewer_levels_do_not_pass_for_the_table(campaign: Campaign) -> None:
    run_task(campaign, QNET)
    assert campaign.missing_tests(QNET) == []
    assert replace(campaign, levels=10).missing_tests(QNET) != []
    assert replace(campaign, plan_levels=5).missing_plans(QNET) != []


def test_rows_of_other_steps_do_not_pass_for_the_table(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_task(campaign, QNET)
    longer = replace(campaign.config(QNET), steps=8)
    monkeypatch.setattr(Campaign, "config", lambda *_: longer)
    with pytest.raises(ValueError, match="rows of qnet seed 0 after 4 steps, not 8: use that number"):
        campaign.missing_tests(QNET)
    campaign.curve_path(QNET).write_text("step,loss\nmany,0\n")
    with pytest.raises(ValueError, match=r"seed-0\.csv is damaged"):
        campaign.missing_tests(QNET)


def test_rows_of_other_settings_do_not_pass_for_the_table(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign.write_record("dtsn reproduce")
    run_task(campaign, QNET)
    campaign.write_record("dtsn reproduce again")
    said = json.loads((campaign.results / "meta.json").read_text())["command"]
    assert said == "dtsn reproduce\ndtsn reproduce again"
    other = replace(campaign.config(QNET), learning_rate=0.5)
    monkeypatch.setattr(Campaign, "config", lambda *_: other)
    with pytest.raises(ValueError, match="rows or curves of qnet that were made with other settings"):
        campaign.check_record()


def test_damaged_rows_are_made_anew(campaign: Campaign) -> None:
    run_task(campaign, QNET)
    scenario = Scenario(1, 10)
    path = campaign.episodes_path(QNET, scenario)
    rows = path.read_bytes()
    for blob in (b"", b"garbage", rows[:-1], rows[: len(rows) // 2], rows[:20] + b"\xff" * 9 + rows[29:]):
        path.write_bytes(blob)
        assert campaign.missing_tests(QNET) == [(scenario, 6)]
    run_task(campaign, QNET)
    assert path.read_bytes() == rows


def test_loss_weights_never_see_test_levels(campaign: Campaign) -> None:
    task = Task("weights-qnet", 0)
    assert not campaign.is_done(task)
    run_task(campaign, task)
    assert campaign.is_done(task)
    assert not (campaign.results / "rows").exists()
    assert not set(GROUPS["weight_search"]) & {row.key for row in Campaign().rows}


def test_the_weight_grid_is_the_same_for_every_solver() -> None:
    grid = {name: set[tuple[str, float]]() for name in SOLVERS}
    for key in GROUPS["weight_search"]:
        row = VARIANTS[key]
        grid[row.solver.name] |= set(row.recipe.weights.items())
        assert row.train.steps == FAMILIES["main"].train.steps
    for name, tried in grid.items():
        shared = {(term, value) for term, value in grid["dtsn"] if term in SOLVERS[name].losses}
        assert tried == shared
        assert len(tried) == 2 * len({"q", "cql", "transition", "reward"} & set(SOLVERS[name].losses))


def test_the_main_table_uses_the_weights_that_the_search_chose() -> None:
    curves = read_curves(Path(__file__).parents[1] / "results" / "navigation" / "curves")
    for name in SOLVERS:
        tried = [row for key in GROUPS["weight_search"] if (row := VARIANTS[key]).solver.name == name]
        assert best_weights(curves, tried) == pytest.approx(CHOSEN_WEIGHTS.get(name, {})), name
        assert VARIANTS[name].solver.weights == replace(
            FAMILIES["main"].train.solver.weights, **CHOSEN_WEIGHTS.get(name, {})
        )


def test_no_figures_without_runs(campaign: Campaign, tmp_path: Path) -> None:
    assert draw_figures(replace(campaign, variants=("qnet", "dtsn")), tmp_path / "figures") == []


def test_order_of_runs() -> None:
    """One seed of each variant comes before the second of any."""
    campaign = Campaign(("main",))
    tasks = campaign.tasks()
    assert [task.variant for task in tasks[:4]] == ["qnet", "search", "treeqn", "dtsn"]
    assert [task.seed for task in tasks] == sorted(task.seed for task in tasks)
    assert len(tasks) == len(set(tasks)) == sum(row.seeds for row in of_family("main"))
    assert len(replace(campaign, seeds=2).tasks()) == 2 * len(of_family("main"))


def test_keys_name_one_variant_each_and_no_group() -> None:
    assert not VARIANTS.keys() & GROUPS.keys()
    assert all(key == row.key for key, row in VARIANTS.items())
    assert {row.seeds for row in of_family("main") if row.key in SOLVERS} == {5}


class Here:
    """An executor that runs jobs in this process."""

    def run(self, jobs: Any) -> Any:
        for name, job in jobs.items():
            settings, variant, seed = job.arguments
            raw = json.loads(settings)
            raw |= {name: Path(raw[name]) for name in ("results", "runs")}
            run_task(Campaign(**raw | {"variants": tuple(raw["variants"])}), Task(variant, int(seed)))
            yield name, DONE


def test_from_nothing_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the main table's solvers, tiny: every section of the page has its rows."""
    for row in of_family("main"):
        network = replace(row.train.network, hidden=8)
        train = replace(row.train, network=network, batch_size=8, search_warmup=0)
        monkeypatch.setitem(VARIANTS, row.key, replace(row, train=train))  # type: ignore[arg-type]
    campaign = Campaign(
        ("qnet", "search", "treeqn", "dtsn_graph"),  # which comes with dtsn
        seeds=1,
        steps=2,
        levels=8,
        act_levels=4,
        plan_levels=4,
        validation_levels=4,
        results=tmp_path / "results/navigation",
        runs=tmp_path / "runs",
    )
    assert 0 < estimate_hours(campaign) < 1
    assert [outcome for _, outcome in run_campaign(campaign, Here())] == [DONE] * 5
    assert not campaign.run_folder(Task("dtsn", 0)).with_name("dtsn_graph").exists()
    assert list(run_campaign(campaign, Here())) == []
    campaign.write_record("dtsn reproduce")
    build_navigation_report(tmp_path / "results", tmp_path / "report/results.md")
    page = (tmp_path / "report/results.md").read_text()
    for heading in (
        "Solvers",
        "Greedy acting",
        "Is it chance?",
        "Do the searches plan?",
        "Search iterations",
    ):
        assert f"## {heading}\n" in page
    headline = json.loads((campaign.results / "headline.json").read_text())
    assert set(headline) == {
        "qnet", "qnet_softmax", "search", "treeqn", "treeqn_softmax", "dtsn", "dtsn_graph", "plan_validity",
        "act_T",
    }  # fmt: skip
    numbers = {"success", "collision", "within_2x", "steps_over_optimal", "success_greedy", "n", "seeds"}
    assert all(set(headline[name][exits]) == numbers for name in ("qnet", "dtsn_graph") for exits in "21")
    assert set(headline["plan_validity"]["dtsn"]["1"]) == {"into_wall", "optimal", "n"}
    assert set(headline["act_T"]) == {"search", "dtsn"}
    assert list(headline["act_T"]["dtsn"]) == ["5", "10", "20", "50"]


def test_local_processes_say_how_jobs_end(tmp_path: Path) -> None:
    good = Job("json.tool", ("--help",), tmp_path / "good.log")
    bad = Job("json.tool", ("missing.json",), tmp_path / "bad.log")
    ends = dict(LocalProcesses(2).run({"good": good, "bad": bad}))
    assert ends == {"good": DONE, "bad": f"failed, see {tmp_path / 'bad.log'}"}
    assert "missing.json" in bad.log.read_text()


def test_closing_stops_what_still_runs(tmp_path: Path) -> None:
    sleeping = Job("timeit", ("-n", "1", "import time; time.sleep(60)"), tmp_path / "log")
    quick = Job("json.tool", ("--help",), tmp_path / "quick.log")
    ends = LocalProcesses(2).run({"sleeping": sleeping, "quick": quick})
    assert next(ends) == ("quick", DONE)
    ends.close()  # would wait a minute if it did not stop it


def test_a_recipe_with_a_ranking_loss_can_be_costed() -> None:
    config = replace(VARIANTS["dtsn-ranking"].train, batch_size=2)
    assert all(seconds > 0 for seconds in probe(config, (3, 20, 20), 4, decisions=2))
