"""Procgen's numbers against hand calculation and enumeration, and the page made of them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dtsn.evaluation.rows import ProcgenRow, read_rows, write_rows
from dtsn.reproduce.paper import PAPER_PROCGEN, PAPER_PROCGEN_WINS, RERUN_PROCGEN, RERUN_PROCGEN_WINS
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS
from dtsn.reproduce.procgen.choice import SOLVERS
from dtsn.reproduce.procgen.report import build_procgen_report
from dtsn.reproduce.procgen.scores import (
    BEST,
    FIXED,
    alike,
    all_scores,
    best_actions,
    mean_z,
    normalised,
    summarise,
    wins,
    z_score,
)
from dtsn.reproduce.statistics import crossed_bootstrap


def test_z_score_by_hand():
    assert z_score(np.array([4.0, 6.0]), np.array([1.0, 3.0])) == 3.0  # (5 − 2) / 1
    assert np.isnan(z_score(np.array([1.0]), np.array([2.0, 2.0])))
    assert normalised(np.array([5.0]), np.array([3.0]), np.array([1.0])) == 2.0


@pytest.mark.parametrize(
    ("table", "won"), [(PAPER_PROCGEN, PAPER_PROCGEN_WINS), (RERUN_PROCGEN, RERUN_PROCGEN_WINS)]
)
def test_wins_of_the_papers_own_scores_are_the_papers(table, won):
    scores = {game: {name: np.array([[value]]) for name, value in row.items()} for game, row in table.items()}
    assert {other: wins(scores, "dtsn", other, list(scores)) for other in won} == won


def test_mean_z_is_the_mean_over_games():
    scores = {
        "maze": {"qnet": np.array([0.0, 2.0]), "dtsn": np.array([3.0])},
        "coinrun": {"qnet": np.array([0.0, 4.0]), "dtsn": np.array([0.0])},
    }
    assert mean_z(scores, "dtsn", list(scores)) == pytest.approx((2 + -1) / 2)


def test_best_actions_are_compared_with_the_baselines_best_action():
    drawn = {"random": 0.0, "qnet": 4.0, "dtsn": 4.0}
    best = {
        "qnet-best": 1.0,
        "search-best": 2.0,
        "treeqn-best": 1.0,
        "dtsn-best": 3.0,
    }
    greedy = {"search-greedy-best": 1.0, "dtsn-one-best": 1.0, "dtsn-greedy-best": 4.0}

    def episodes(means):
        spread = np.array([-1.0, 1.0])  # standard deviation 1
        columns = {name: {"level": np.arange(2.0), "steps": spread, "score": mean + spread}
                   for name, mean in means.items()}  # fmt: skip
        return {name: {0: column} for name, column in columns.items()}

    found = summarise(
        {"maze": episodes(drawn | best), "heist": episodes(drawn), "ninja": episodes(drawn | best | greedy)}
    )
    assert found["mean_z"] == {"dtsn": 0.0}  # best actions have no part in it
    best_action = found["best_action"]
    assert best_action["games"] == ["maze", "ninja"]
    assert best_action["mean_z"] == {"search-best": 1.0, "treeqn-best": 0.0, "dtsn-best": 2.0}
    assert best_action["wins"] == {"qnet-best": "2/2", "search-best": "2/2", "treeqn-best": "2/2"}
    fixed = best_action["nothing_drawn"]
    assert fixed["games"] == ["ninja"]  # where all of these have played
    assert fixed["mean_z"] == dict(zip(FIXED[1:], (0.0, 0.0, 0.0, 3.0), strict=True))
    assert fixed["wins"] == dict.fromkeys(FIXED[:-1], "1/1")
    assert found["games"]["maze"]["dtsn-best"]["z"] == 2.0
    assert summarise({"heist": episodes(drawn)})["best_action"] == {}


def test_episodes_alike_have_the_same_level_score_and_length():
    def played(score, steps, first=7):
        return {
            "level": np.arange(first, first + 4.0),
            "score": np.array(score, float),
            "steps": np.array(steps, float),
        }

    baseline = {0: played([1, 2, 3, 4], [5, 5, 5, 5])}
    assert alike({0: played([1, 2, 3, 0], [5, 5, 6, 5])}, baseline) == 0.5
    assert np.isnan(alike({1: baseline[0]}, baseline))  # of another seed
    assert np.isnan(alike({0: played([1, 2, 3, 4], [5, 5, 5, 5], first=8)}, baseline))  # on other levels


def test_bootstrap_is_that_of_rliable():
    """Aggregates over games agree with rliable's stratified bootstrap, where that is installed."""
    library = pytest.importorskip("rliable.library", reason="pip install rliable 'pandas<3'")
    scores = np.random.default_rng(0).gamma(2.0, size=(60, 4)) * [1.0, 2.0, 3.0, 10.0]  # [episodes, games]
    _, theirs = library.get_interval_estimates({"ours": scores}, lambda x: np.array([x.mean()]), reps=20_000)
    games = [[values[None]] for values in scores.T]  # one seed each
    ours = crossed_bootstrap(games, lambda drawn: float(np.mean([x[0].mean() for x in drawn])), 20_000)
    assert ours == pytest.approx(theirs["ours"].ravel(), rel=5e-3)


def rows(mean, count=50, seed=0):
    rng = np.random.default_rng(seed)
    return [ProcgenRow(1_500_000_000 + i, float(rng.normal(mean)), True, 10) for i in range(count)]


def campaign(folder, games=("coinrun", "dodgeball"), budget="day"):
    players = {"random": 0.0, "expert": 8.0, "qnet": 5.0, "search": 4.0, "treeqn": 5.5, "dtsn": 7.0}
    for number, game in enumerate(games):
        for offset, (player, mean) in enumerate(players.items()):
            path = folder / "procgen" / "rows" / budget / game / player / "seed-0.csv.gz"
            write_rows(path, rows(mean, seed=10 * number + offset))


def test_rows_round_trip(tmp_path):
    path = write_rows(tmp_path / "x.csv.gz", [ProcgenRow(7, 2.5, False, 3), ProcgenRow(8, -1.0, True, 9)])
    read = read_rows(path, ProcgenRow)
    assert {name: values.tolist() for name, values in read.items()} == {
        "level": [7, 8],
        "score": [2.5, -1],
        "complete": [0, 1],
        "steps": [3, 9],
    }


@pytest.mark.parametrize("damage", [b"", b"not gzip"])
def test_damaged_rows_are_named(tmp_path, damage):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"x\.csv\.gz"):
        read_rows(path, ProcgenRow)


def test_a_baseline_that_hardly_varies_is_left_out_of_means():
    varied, dull = np.random.default_rng(0).normal(size=(1, 500)), np.zeros((1, 500))
    dull[0, :5] = 1.0
    better = dict.fromkeys(BEST, varied + 1)
    scores = {"coinrun": better | {"qnet-best": varied}, "plunder": better | {"qnet-best": dull}}
    found = best_actions(scores)
    assert (found["games"], found["left_out"]) == (["coinrun", "plunder"], ["plunder"])
    assert found["mean_z"]["dtsn-best"] == pytest.approx(1 / varied.std(), abs=1e-4)
    assert found["wins"]["qnet-best"] == "2/2"
    assert best_actions({"plunder": scores["plunder"]}) == {}


def test_the_page_and_the_summary(tmp_path):
    campaign(tmp_path / "results")
    out = tmp_path / "docs" / "procgen-results.md"
    written = build_procgen_report(tmp_path / "results", out.parent)
    summary = json.loads((tmp_path / "results" / "procgen" / "summary.json").read_text())
    assert out in written
    assert set(summary["games"]["coinrun"]["dtsn"]) >= {"mean", "std", "n"}
    assert summary["wins"] == {"qnet": "2/2", "search": "2/2", "treeqn": "2/2"}
    assert summary["budget"]["name"] == "day"
    assert summary["mean_z"]["dtsn"] == pytest.approx(2, abs=0.6)
    low, high = summary["mean_z_interval"]["dtsn"]
    assert low < summary["mean_z"]["dtsn"] < high
    alone = summary["games"]["coinrun"]["dtsn"]["z"]
    assert summary["mean_z_without_dodgeball"]["dtsn"] == pytest.approx(alone)
    page = out.read_text()
    assert "## Best actions" not in page
    start = "dtsn reproduce procgen --budget day --games"
    tables = f"{start} coinrun dodgeball --solvers qnet search treeqn dtsn --seeds 1"

    def tested(game, players, seed=0):
        for player in players:
            path = tmp_path / "results" / "procgen" / "rows" / "day" / game / player / f"seed-{seed}.csv.gz"
            write_rows(path, rows({"dtsn-best": 3.0, "dtsn-one-best": 0.5}.get(player, 1.0)))
        build_procgen_report(tmp_path / "results", out.parent)
        page = out.read_text()
        section = page.partition("## Best actions")[2].partition("\n## ")[0]
        commands = [line for line in page.splitlines() if line.startswith(start)]
        return section, commands

    section, commands = tested("coinrun", (*BEST, "dtsn-greedy-best"))
    assert "| coinrun |" in section
    assert "dodgeball" not in section
    assert "| games that D-TSN wins |  | 1/1 | 1/1 | 1/1 | – |" in section
    assert "| **mean Z** |  | – | " in section
    assert "Nothing is drawn" not in section  # Model-based Search has not been tested with a greedy search
    best = "--solvers qnet-best search-best treeqn-best dtsn-best"
    assert commands == [tables, f"{start} coinrun {best} --seeds 1"]
    section, commands = tested("dodgeball", BEST, seed=1)  # another seed will do
    assert "TreeQN do not. 1 training run each." in section
    assert commands == [tables, f"{start} coinrun dodgeball {best} --seeds 2"]
    section, commands = tested("coinrun", FIXED)
    assert "| games that D-TSN wins |  | 0/1 | 0/1 | 0/1 | 1/1 | – |" in section  # its greedy search
    assert commands == [
        tables,
        f"{start} coinrun --solvers {' '.join(FIXED)} --seeds 1",
        f"{start} coinrun dodgeball {best} --seeds 2",
    ]
    page = out.read_text()
    assert "not the paper's budget" in page
    assert "where solvers draw their actions from softmax(Q / 0.5)." in page
    assert "Missing" not in page
    before = out.read_bytes()
    build_procgen_report(tmp_path / "results", out.parent)
    assert out.read_bytes() == before


def test_figures_policies_and_run_times(tmp_path):
    games = ("bigfish", "coinrun", "leaper", "maze", "starpilot")
    campaign(tmp_path / "results", games, "cpu")
    curves = tmp_path / "results" / "procgen" / "curves" / "cpu"
    curves.mkdir(parents=True)
    (curves / "maze.csv").write_text("step,return,success\n")  # no episode has ended
    for game in games[:2]:
        (curves / f"{game}.csv").write_text("step,return,success\n4096,1.5,0.1\n8192,-2.5,0.2\n")
    row = {"part": "runtime", "solver": "D-TSN (T=10)", "seconds": 1.25, "over_qnet": 5.1}
    row |= {"paper_over_qnet": 6.84, "peak_gb": 1.5}
    (tmp_path / "results" / "bench.json").write_text(json.dumps({"rows": [row]}))
    out = tmp_path / "docs" / "procgen-results-cpu.md"
    written = build_procgen_report(tmp_path / "results", out.parent, "cpu")
    for name in ("procgen-scores-cpu.png", "procgen-policies-cpu.png"):
        assert out.parent / "figures" / name in written
        assert f"(figures/{name})" in out.read_text()
    page = out.read_text()
    assert "where solvers take their best action." in page
    assert "| D-TSN (T=10) | 1.25 | 5.1 | 6.84 | 1.5 |" in page
    assert "(all episodes in bigfish, starpilot:" in page
    assert "409,600 environment steps a game (5,242,880 with other settings on bigfish); " in page
    assert "| coinrun | 8.5 |" in page  # the authors' behaviour policy
    gains = page.split("## Behaviour policies")[1].split("##")[0]
    assert all(f"| {game} |" in gains for game in games)
    drawn, policy = (
        np.array([row.score for row in rows(mean, seed=10 + n)]) for n, mean in enumerate((0, 8))
    )
    half = 2.0096 * (policy - drawn).std(ddof=1) / np.sqrt(50)  # on the same 50 levels: Student
    assert f"| {policy.mean() - drawn.mean():+.2f} ± {half:.2f} |" in gains  # of coinrun, the second game


def test_predictions_are_averaged_over_seeds(tmp_path):
    campaign(tmp_path, ("coinrun",))
    known = {"transitions": 4096, "transition_error": 0.5, "reward_explained": -0.25, "return_explained": 0.5}
    for player, seed, changed in (("dtsn", 0, 0.1), ("dtsn", 1, 0.3), ("treeqn", 0, 0.0), ("dtsn-5", 0, 1.0)):
        path = tmp_path / "procgen" / "predictions" / "day" / "coinrun" / player / f"seed-{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known | {"changed_actions": changed}))
    build_procgen_report(tmp_path, tmp_path)
    section = (tmp_path / "procgen-results.md").read_text().split("## What the world models predict")[1]
    assert "| coinrun | – | – | – | – | 0.50 | −0.25 | 0.50 | 20% |" in section  # no Model-based Search
    summary = json.loads((tmp_path / "procgen" / "summary.json").read_text())
    assert summary["predictions"]["coinrun"].keys() == {"dtsn", "treeqn"}
    path.with_name("seed-1.json").write_text(json.dumps(known))  # of an ablation: not shown, not read
    build_procgen_report(tmp_path, tmp_path)
    lost = path.parents[1] / "dtsn" / "seed-1.json"
    lost.write_text(json.dumps(known | {"changed_actions": 0.1, "reward_explained": None}))  # all the same
    build_procgen_report(tmp_path, tmp_path)
    assert "| 0.50 | – | 0.50 | 10% |" in (tmp_path / "procgen-results.md").read_text()
    lost.write_text(json.dumps(known))
    with pytest.raises(ValueError, match=r"seed-1\.json 'changed_actions' must be"):
        build_procgen_report(tmp_path, tmp_path)


def test_what_is_missing_is_listed_and_no_rows_write_nothing(tmp_path):
    assert build_procgen_report(tmp_path, tmp_path) == []
    campaign(tmp_path, games=("maze",))
    path = tmp_path / "procgen" / "rows" / "day" / "maze" / "treeqn" / "seed-0.csv.gz"
    path.unlink()
    build_procgen_report(tmp_path, tmp_path)
    assert "- `maze`: treeqn" in (tmp_path / "procgen-results.md").read_text()


def test_budgets_do_not_write_over_each_other(tmp_path):
    campaign(tmp_path / "results", ("coinrun",))
    rows_of = tmp_path / "results" / "procgen" / "rows"
    (rows_of / "day" / "notes" / "dtsn").mkdir(parents=True)  # a folder that is no game
    write_rows(rows_of / "day" / "notes" / "dtsn" / "seed-0.csv.gz", rows(1.0))
    written = build_procgen_report(tmp_path / "results", tmp_path)
    before = {path: path.read_bytes() for path in written}
    (rows_of / "day").rename(rows_of / "tiny")
    more = build_procgen_report(tmp_path / "results", tmp_path, "tiny")
    assert not set(written) & set(more)
    assert {path: path.read_bytes() for path in written} == before
    page = (tmp_path / "procgen-results-tiny.md").read_text()
    assert "(figures/procgen-scores-tiny.png)" in page
    assert "1 training run each" in page
    assert "notes" not in page


def test_seeds_of_the_baseline_are_pooled():
    def played(*scores):
        return {"level": np.arange(2.0), "score": np.array(scores, float), "steps": np.ones(2)}

    episodes = {"maze": {"qnet": {0: played(0, 2), 1: played(4, 6)}, "dtsn": {0: played(8, 8)}}}
    z = summarise(episodes)["games"]["maze"]["dtsn"]["z"]
    assert z == pytest.approx((8 - 3) / np.std([0, 2, 4, 6]), abs=1e-4)
    other = played(1, 1) | {"level": np.array([0.0, 5.0])}
    with pytest.raises(ValueError, match="rows of maze must be of the same levels"):
        all_scores({"maze": {"qnet": {0: played(0, 2)}, "dtsn": {0: other}}})


def test_scripted_experts_are_marked_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(PROCGEN_BUDGETS, "day", replace(PROCGEN_BUDGETS["day"], scripted=("maze",)))
    campaign(tmp_path, games=("coinrun", "dodgeball", "maze"))
    build_procgen_report(tmp_path, tmp_path)
    summary = json.loads((tmp_path / "procgen" / "summary.json").read_text())
    assert {game: expert["kind"] for game, expert in summary["experts"].items()} == {
        "coinrun": "ppg",
        "dodgeball": "ppg",
        "maze": "scripted",
    }
    z = {game: of["dtsn"]["z"] for game, of in summary["games"].items()}
    assert summary["mean_z"]["dtsn"] == pytest.approx(np.mean(list(z.values())), abs=1e-4)
    assert summary["mean_z_without_scripted"]["dtsn"] == pytest.approx(
        (z["coinrun"] + z["dodgeball"]) / 2, abs=1e-4
    )
    assert summary["mean_z_without_dodgeball"]["dtsn"] == pytest.approx(
        (z["coinrun"] + z["maze"]) / 2, abs=1e-4
    )
    maze = summary["experts"]["maze"]
    drawn = np.array([row.score for row in rows(0.0, seed=20)])
    half = 2.0096 * drawn.std(ddof=1) / np.sqrt(50)
    assert maze["random_interval"] == pytest.approx([drawn.mean() - half, drawn.mean() + half], abs=1e-3)
    assert maze["interval"][0] < maze["mean"] < maze["interval"][1]
    page = (tmp_path / "procgen-results.md").read_text()
    assert ", a script on maze; " in page
    assert "| maze | script |" in page
    assert "In 3 of 3 games the policy's interval lies above" in page
    assert "| follow-up's mean | 0.10 | 0.27 | 0.35 |" in page


def test_the_choice_is_the_best_mean_over_solvers(tmp_path):
    campaign(tmp_path, games=("coinrun",))
    means = {"random": 0.0, "expert": 8.0}
    means |= {f"{name}.{solver}": 2.0 for name in ("recipe", "large") for solver in SOLVERS}
    means |= {
        "large.dtsn": 8.0,
        "large.qnet": 0.0,
        "greedy.dtsn": 1.0,
        "near.dtsn": 20.0,
    }
    for player, mean in means.items():
        for game in ("coinrun", "starpilot"):
            path = tmp_path / "procgen" / "choice" / "day" / game / player / "seed-0.csv.gz"
            write_rows(path, [ProcgenRow(level, mean, False, 3) for level in range(4)])
    build_procgen_report(tmp_path, tmp_path)
    choice = json.loads((tmp_path / "procgen" / "summary.json").read_text())["choice"]
    assert choice["best"] == "large"  # 0 and 8 against twice 2
    assert choice["games"] == ["coinrun", "starpilot"]
    assert list(choice["table"]) == ["recipe", "large", "greedy"]  # of near, the Q-network is missing
    assert choice["table"]["greedy"] == {"qnet": 0.25, "dtsn": 0.125}
    page = (tmp_path / "procgen-results.md").read_text()
    assert "| twice the size | 0.00 | 1.00 | **0.50** |" in page


def test_ablations_are_compared_on_the_games_that_all_have_played(tmp_path):
    campaign(tmp_path, games=("coinrun", "dodgeball", "maze"))
    for game, player, mean in (
        ("coinrun", "dtsn-5", 6.0),
        ("dodgeball", "dtsn-5", 6.0),
        ("coinrun", "dtsn-no-reinforce", 5.0),
    ):
        path = tmp_path / "procgen" / "rows" / "day" / game / player / "seed-0.csv.gz"
        write_rows(path, rows(mean, seed=1))
    build_procgen_report(tmp_path, tmp_path)
    summary = json.loads((tmp_path / "procgen" / "summary.json").read_text())
    found = summary["ablations"]
    assert found["games"] == ["coinrun"]
    coinrun = {name: of["z"] for name, of in summary["games"]["coinrun"].items() if "z" in of}
    assert found["mean_z"] == {name: coinrun[name] for name in ("dtsn", "dtsn-no-reinforce", "dtsn-5")}
    for name, (low, high) in found["mean_z_interval"].items():
        assert low < found["mean_z"][name] < high
    page = (tmp_path / "procgen-results.md").read_text()
    assert page.count("| D-TSN (n_itr=5) |") == 1  # in this table and in no other
    assert "| Solver | coinrun | Mean Z | 95% interval | Paper |" in page


def test_unknown_budget():
    with pytest.raises(ValueError, match="huge"):
        build_procgen_report(None, None, "huge")


def test_a_player_without_a_baseline_has_no_aggregate():
    summary = summarise({"maze": {"dtsn": {0: {"level": np.array([7.0]), "score": np.array([1.0])}}}})
    assert summary["mean_z"] == {}
    assert summary["wins"] == {}


def test_budgets_train_all_solvers_alike():
    for budget in PROCGEN_BUDGETS.values():
        configs = [budget.config(name, 0) for name in ("qnet", "search", "treeqn", "dtsn")]
        assert len({(c.steps, c.batch_size, c.network, c.learning_rate) for c in configs}) == 1
