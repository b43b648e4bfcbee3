"""Procgen from nothing to rows at a tiny budget: stopped and gone on with, and what is refused."""

import json
import math
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn import functional

from dtsn.batch import Batch
from dtsn.data.reader import Dataset
from dtsn.envs.procgen import FRAME_SHAPE, GAMES, load_envpool, split_range
from dtsn.evaluation.rows import ProcgenRow, read_rows
from dtsn.reproduce.navigation.plan import Campaign
from dtsn.reproduce.navigation.variants import FAMILIES
from dtsn.reproduce.procgen import run
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS
from dtsn.reproduce.procgen.choice import CONTENDERS, RECIPE, TEMPERATURES, TITLES
from dtsn.reproduce.procgen.plan import ProcgenCampaign
from dtsn.reproduce.procgen.run import behaviour_policy, estimate_hours, run_game, write_curve
from dtsn.settings import difference, plain
from dtsn.solvers.solver import Solver


def need_envpool():
    try:
        load_envpool()
    except ImportError as error:
        pytest.skip(str(error))


def campaign(folder, **changes):
    settings = {"games": ("leaper",), "budget": "tiny", "solvers": ("qnet", "dtsn")}
    return ProcgenCampaign(**{**settings, **changes}, results=folder / "results", runs=folder / "runs")


def test_a_game_from_nothing_to_rows_and_back(tmp_path):
    need_envpool()
    first = campaign(tmp_path, solvers=("qnet",))
    said = []
    run_game(first, "leaper", said.append)
    assert [line.split(":")[0] for line in said] == [
        f"leaper {p} seed 0" for p in ("random", "expert", "qnet")
    ]
    rows = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.gz")}
    assert len(rows) == 3
    curve = first.curve_path("leaper").read_text().splitlines()
    assert curve[0] == "step,return,success"
    assert first.is_done("leaper")
    both = campaign(tmp_path)
    assert not both.is_done("leaper")
    assert both.missing("leaper") == [("dtsn", 0)]
    run_game(both, "leaper", said.append)
    assert both.missing("leaper") == []
    assert all(path.read_bytes() == content for path, content in rows.items())
    found = json.loads(both.predictions_path("leaper", "dtsn", 0).read_text())
    assert found["transitions"] > 0
    assert 0 <= found["changed_actions"] <= 1
    assert not both.predictions_path("leaper", "qnet", 0).exists()  # it trains no world model
    best = campaign(tmp_path, solvers=("qnet-best", "dtsn-greedy-best", "dtsn-one-best"))
    run_game(best, "leaper", said.append)
    assert best.missing("leaper") == []
    runs = {path.name for path in (best.runs / "tiny" / "leaper").iterdir() if path.is_dir()}
    assert runs == {"expert", "qnet", "dtsn"}  # best actions are by the same weights
    drawing = replace(PROCGEN_BUDGETS["tiny"], temperature=0.5)
    assert (drawing.temperature_of("qnet"), drawing.temperature_of("qnet-best")) == (0.5, None)
    assert drawing.config("dtsn-greedy-best", 0).solver.act_rule == "greedy"
    assert drawing.config("dtsn-one-best", 0).solver.act_iterations == 1
    path = both.rows_path("leaper", "qnet", 0)
    path.unlink()  # a lost file is made again from the checkpoint, the same
    run_game(both, "leaper", said.append)
    assert path.read_bytes() == rows[path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"games": ("coinrnu",)}, "did you mean 'coinrun'"),
        ({"games": ()}, "at least one game"),
        ({"solvers": ("dtns",)}, "did you mean 'dtsn'"),
        ({"budget": "papr"}, "did you mean 'paper'"),
        ({"candidates": ("recpie",)}, "did you mean 'recipe'"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": 2, "first_seed": 2}, "first_seed must be from 0 to 1, got 2"),
        ({"first_seed": -1}, "first_seed must be from 0 to 0, got -1"),
    ],
)
def test_bad_settings(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        campaign(tmp_path, **changes)


def test_first_seeds_can_be_skipped(tmp_path):
    whole, rest = (campaign(tmp_path, seeds=3, first_seed=first) for first in (0, 1))
    skipped = set(whole.tests("leaper")) - set(rest.tests("leaper"))
    assert skipped == {("qnet", 0), ("dtsn", 0)}


def test_ablations_are_of_the_budgets_games(tmp_path):
    whole = campaign(tmp_path, games=("all",), budget="day", ablations=True, seeds=2)
    assert whole.settings.ablated
    for game in GAMES:
        more = {player for player, _ in whole.tests(game)} - {"random", "expert", "qnet", "dtsn"}
        expected = {"dtsn-no-reinforce", "dtsn-no-telescoping", "dtsn-5", "dtsn-20"}
        assert more == (expected if game in whole.settings.ablated else set())
        assert len(set(whole.tests(game))) == len(whole.tests(game))


def test_a_choice_changes_one_thing_and_never_sees_test_levels(tmp_path, monkeypatch):
    need_envpool()
    tiny = PROCGEN_BUDGETS["tiny"]
    tiny = replace(
        tiny,  # tinier: three solvers are trained, and seven players tested
        expert=replace(tiny.expert, steps=128, rollout=8),
        train=replace(tiny.train, solver=replace(tiny.train.solver, iterations=2)),
        levels=1,
    )
    monkeypatch.setitem(PROCGEN_BUDGETS, "tiny", tiny)
    larger = replace(tiny, train=tiny.config("large.dtsn", 0), start=tiny.train)  # as once it has won
    assert larger.config("recipe.dtsn", 0) == tiny.config("dtsn", 0)
    assert larger.config("dtsn", 0) == larger.config("large.dtsn", 0)
    assert {name: larger.trained_as(f"{name}.dtsn") for name in (RECIPE, "large", "best", "near")} == {
        RECIPE: "recipe.dtsn", "large": "dtsn", "best": "dtsn", "near": "near.dtsn",
    }  # fmt: skip
    base = plain(asdict(tiny.config("dtsn", 0)))
    changed = {name: difference(plain(asdict(tiny.config(f"{name}.dtsn", 0))), base) for name in TITLES}
    assert {name for name, differs in changed.items() if not differs} == {RECIPE, *TEMPERATURES}
    drawing = replace(tiny, temperature=0.5)
    chosen = {name: drawing.temperature_of(f"{name}.dtsn") for name in (RECIPE, "large", "best", "draw")}
    assert chosen == {RECIPE: 0.5, "large": 0.5, "best": None, "draw": 1.0}
    # The others differ from the recipe by numbers alone.
    names = (RECIPE, "large", "near", "greedy", "draw")
    entered = {f"{name}.dtsn": CONTENDERS[f"{name}.dtsn"] for name in names}
    monkeypatch.setattr("dtsn.reproduce.procgen.choice.CONTENDERS", entered)
    choosing = campaign(tmp_path, choose=True)
    some = replace(choosing, candidates=("near", RECIPE))
    assert some.tests("leaper")[2:] == [("recipe.dtsn", 0), ("near.dtsn", 0)]
    said = []
    run_game(choosing, "leaper", said.append)
    assert choosing.missing("leaper") == []
    assert [line.split()[1] for line in said] == ["random", "expert", *entered]
    first, end = split_range("validation")
    for path in (tmp_path / "results").rglob("*.csv.gz"):
        assert path.is_relative_to(tmp_path / "results" / "choice")
        levels = read_rows(path, ProcgenRow)["level"]
        assert ((levels >= first) & (levels < end)).all()
    trained = {path.name for path in (choosing.runs / "tiny" / "leaper").iterdir() if path.is_dir()}
    assert trained == {"expert", "dtsn", "large.dtsn", "near.dtsn"}
    with Dataset(choosing.data_path("leaper")) as far, Dataset(choosing.data_path("leaper", 0.95)) as near:
        assert near.header["discount"] == 0.95
        for number in range(far.num_episodes):
            ours, theirs = far.episode(number), near.episode(number)
            np.testing.assert_array_equal(ours.observations, theirs.observations)
            np.testing.assert_array_equal(ours.rewards, theirs.rewards)


def test_cloning_minimises_cross_entropy_alone():
    config = PROCGEN_BUDGETS["tiny"].config("cloning", seed=0)
    space = gymnasium.spaces.Box(0, 255, FRAME_SHAPE, np.uint8)
    solver = Solver.create(
        config.solver, space, gymnasium.spaces.Discrete(15), network=config.network, seed=0
    )
    frames = torch.randint(0, 256, (6, *FRAME_SHAPE), dtype=torch.uint8)
    actions = torch.arange(6)
    numbers = torch.randn(6)
    loss = solver.loss(Batch(frames, actions, numbers, numbers, frames, torch.zeros(6, dtype=torch.bool)))
    expected = functional.cross_entropy(solver.train()(frames), actions)
    torch.testing.assert_close(loss.total, expected)
    weights = [weight for weight in solver.parameters() if weight.requires_grad]
    found, slow = (torch.autograd.grad(x, weights, allow_unused=True) for x in (loss.total, expected))
    for a, b in zip(found, slow, strict=True):
        torch.testing.assert_close(a, b)


def test_cost_counts_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "probe", lambda *_: (0.1, 0.001))
    monkeypatch.setattr(run, "probe_expert", lambda _: 0.001)
    everything = campaign(tmp_path, games=("all",), budget="cpu")
    assert everything.games == tuple(GAMES)
    one = campaign(tmp_path, games=("maze",), budget="cpu")
    settings = one.settings
    trained = settings.train.steps * settings.train.batch_size / run.PROBE_BATCH * 0.1
    tested = settings.levels * run.DECISIONS * 0.001
    expected = settings.expert.steps * 0.001 + 2 * (trained + tested)
    assert estimate_hours(one) == pytest.approx(expected / 3600)
    assert estimate_hours(everything) > 15 * estimate_hours(one)
    for test in one.tests(one.games[0]):
        path = one.rows_path("maze", *test)
        path.parent.mkdir(parents=True)
        path.touch()
    assert estimate_hours(one) == 0


def test_cost_is_measured(tmp_path):
    assert 0 < estimate_hours(campaign(tmp_path)) < 1


def test_the_command_says_what_it_costs_and_suggests_names(monkeypatch, capsys, tmp_path):
    from dtsn.cli import main as cli

    one = campaign(tmp_path, games=("maze",), budget="cpu", solvers=("qnet", "search", "treeqn", "dtsn"))
    for test in one.tests(one.games[0]):
        one.rows_path("maze", *test).parent.mkdir(parents=True, exist_ok=True)
        one.rows_path("maze", *test).touch()
    where = ["--results", str(one.results), "--runs", str(one.runs)]
    monkeypatch.setattr(sys, "argv", ["dtsn", "reproduce", "procgen", "--games", "maze", *where])
    cli.main()
    assert "0 of 1 games to do with the cpu budget" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["dtsn", "reproduce", "procgen", "--games", "mase"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "did you mean 'maze'" in capsys.readouterr().err


def fails(monkeypatch, capsys, *arguments):
    from dtsn.cli import main as cli

    monkeypatch.setattr(sys, "argv", ["dtsn", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_commands_by_hand_and_what_they_refuse(tmp_path, monkeypatch, capsys):
    need_envpool()
    from dtsn.cli import main as cli
    from dtsn.pretrained import shipped

    data, run = tmp_path / "leaper.h5", tmp_path / "run"
    collected = ["--policy", "random", "--keep", "all", "--episodes", 2, "--out", data]
    small = ["--steps", 2, "--batch-size", 4, "--network.latent", 16, "--network.hidden", 16]
    for command in (
        ["collect", "procgen", "--game", "leaper", *collected],
        ["train", "procgen", "--data", data, "--run", run, *small],
        ["eval", "procgen", run, "--game", "leaper", "--levels", 2, "--iterations", 1],
    ):
        monkeypatch.setattr(sys, "argv", ["dtsn", *map(str, command)])
        cli.main()
    assert "mean score" in capsys.readouterr().out
    assert len(list((run / "evaluation").glob("leaper-easy-T1.csv.gz"))) == 1
    wrong = fails(monkeypatch, capsys, "eval", "procgen", shipped("dtsn"), "--game", "leaper")
    assert "sees observations (3, 20, 20) and has 4 actions; Procgen has (3, 64, 64) and 15" in wrong
    assert "did you mean 'leaper'" in fails(monkeypatch, capsys, "eval", "procgen", run, "--game", "leapr")
    assert "levels must be at least 1, got 0" in fails(
        monkeypatch, capsys, "eval", "procgen", run, "--game", "leaper", "--levels", 0
    )
    assert "holds frames of Procgen: use dtsn train" in fails(
        monkeypatch, capsys, "train", "--data", data, "--run", run
    )


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_passes_the_whole_pipeline(tmp_path, game):
    need_envpool()
    whole = campaign(tmp_path, games=(game,), solvers=("qnet", "search", "treeqn", "dtsn"))
    run_game(whole, game)
    assert whole.missing(game) == []


def test_records_keep_every_command_and_refuse_rows_of_another_budget(tmp_path, monkeypatch):
    first = campaign(tmp_path)
    first.write_record("dtsn one")
    first.write_record("dtsn two")
    first.write_record("dtsn one")
    path = tmp_path / "results" / "rows" / "tiny" / "meta.json"
    assert json.loads(path.read_text())["command"] == "dtsn one\ndtsn two"
    rows = first.rows_path("leaper", "qnet", 0)
    rows.parent.mkdir(parents=True)
    rows.touch()
    first.check_record()
    changed = replace(PROCGEN_BUDGETS["tiny"], episodes=3)
    monkeypatch.setitem(PROCGEN_BUDGETS, "tiny", changed)
    with pytest.raises(ValueError, match=r"rows of another tiny budget \(episodes is 3, not 2\)"):
        first.check_record()
    record = json.loads(path.read_text())
    del record["numbers"]["episodes"]  # as if it were new
    record["numbers"]["removed"] = 1
    path.write_text(json.dumps(record))
    first.check_record()
    first.write_record("dtsn three")
    assert "removed" not in json.loads(path.read_text())["numbers"]
    path.write_text("half a rec")
    with pytest.raises(ValueError, match=r"meta\.json cannot be read"):
        first.check_record()


def test_records_refuse_rows_of_another_expert(tmp_path, monkeypatch):
    first = campaign(tmp_path)
    first.write_record("dtsn one")
    others = {"leaper": replace(PROCGEN_BUDGETS["tiny"].expert, game="leaper", steps=2048)}
    monkeypatch.setitem(PROCGEN_BUDGETS, "tiny", replace(PROCGEN_BUDGETS["tiny"], expert_overrides=others))
    assert [first.settings.expert_of(game).steps for game in ("maze", "leaper")] == [1024, 2048]
    first.rows_path("maze", "expert", 0).parent.mkdir(parents=True)
    first.rows_path("maze", "expert", 0).touch()
    first.check_record()  # maze's is as it was
    first.rows_path("leaper", "expert", 0).parent.mkdir(parents=True)
    first.rows_path("leaper", "expert", 0).touch()
    with pytest.raises(ValueError, match=r"leaper has rows.*expert\.steps is 2048, not 1024"):
        first.check_record()


def test_rows_of_experts_do_not_depend_on_how_solvers_are_trained(tmp_path, monkeypatch):
    first = campaign(tmp_path)
    first.write_record("dtsn one")
    longer = replace(first.settings, train=replace(first.settings.train, steps=5), keep_all_episodes=())
    monkeypatch.setitem(PROCGEN_BUDGETS, "tiny", longer)
    for player, match in (("random", None), ("expert", None), ("qnet", "keep_all is False, not True")):
        first.rows_path("leaper", player, 0).parent.mkdir(parents=True)
        first.rows_path("leaper", player, 0).touch()
        if match is None:
            first.check_record()
        else:
            with pytest.raises(ValueError, match=match):
                first.check_record()
    monkeypatch.setitem(PROCGEN_BUDGETS, "tiny", replace(longer, scripted=("leaper",)))
    with pytest.raises(ValueError, match="scripted is True, not False"):
        first.check_record()


def test_experts_alone_and_kept_for_a_clone(tmp_path, monkeypatch):
    need_envpool()
    monkeypatch.setitem(PROCGEN_BUDGETS, "tiny", replace(PROCGEN_BUDGETS["tiny"], scripted=("maze",)))
    alone = campaign(tmp_path, games=("leaper", "maze"), solvers=())
    for game in alone.games:
        run_game(alone, game, lambda line: None)
        assert alone.is_done(game)
    assert behaviour_policy(alone, "leaper").kind == "ppg"
    assert behaviour_policy(alone, "maze").kind == "scripted"
    assert not alone.expert_path("maze").exists()
    path = alone.rows_path("leaper", "expert", 0)
    rows = path.read_bytes()
    path.unlink()
    shutil.rmtree(alone.runs)  # which a clone has not
    run_game(alone, "leaper", lambda line: None)
    assert path.read_bytes() == rows
    assert not alone.metrics_path("leaper").exists()  # not trained again


def test_settings_of_records_are_json():
    settings = {"a": math.inf, "b": -math.inf, "c": "to Infinity", "d": (1, 2)}
    assert plain(settings) == {"a": "inf", "b": "-inf", "c": "to Infinity", "d": [1, 2]}


def test_committed_rows_are_those_of_the_budgets():
    results = Path(__file__).parents[1] / "results"
    for budget in ("cpu", "day"):
        ProcgenCampaign(budget=budget, results=results / "procgen").check_record()
    Campaign(tuple(FAMILIES), results=results / "navigation").check_record()


def test_a_clone_with_rows_and_without_runs_has_nothing_to_do(tmp_path):
    one = campaign(tmp_path)
    for test in one.tests(one.games[0]):
        one.rows_path("leaper", *test).parent.mkdir(parents=True, exist_ok=True)
        one.rows_path("leaper", *test).touch()
    assert one.is_done("leaper")
    one.metrics_path("leaper").parent.mkdir(parents=True)
    one.metrics_path("leaper").write_text('{"step": 64, "return": 1.5, "success": 0.25}\n')
    assert not one.is_done("leaper")  # its curve can be made
    write_curve(one, "leaper")
    assert one.curve_path("leaper").read_text() == "step,return,success\n64,1.5000,0.2500\n"
    assert one.is_done("leaper")
