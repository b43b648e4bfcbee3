"""Searches for settings: what is varied, trials that go on, and what they are compared by."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtsn.cli.main import is_for_users, main
from dtsn.config import LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.data.reader import Dataset
from dtsn.errors import UserError
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.training.loop import train_run
from dtsn.training.runs import read_metrics
from dtsn.training.trainer import Trainer
from dtsn.tuning.report import draw, ranked, write_table
from dtsn.tuning.scores import held_out_score, navigation_score, split_episodes
from dtsn.tuning.study import Part, Trial, Tuning, changed, choices

pytest.importorskip("optuna")

CONFIG = TrainConfig(
    SolverConfig(iterations=2),
    NetworkConfig(encoder="grid", latent=8, hidden=16),
    steps=4,
    batch_size=8,
    learning_rate_warmup=1,
    search_warmup=1,
)
BOTH: tuple[Part, ...] = ("weights", "network")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect_navigation(tmp_path_factory.mktemp("tuning") / "data.h5", episodes=12)


def open_in(folder: Path, config: TrainConfig = CONFIG, over: tuple[Part, ...] = BOTH) -> Tuning:
    return Tuning(folder, config, over, {"data": "abc"})


def fake_score(solver: object) -> float:
    return 0.5


# --- what is varied ----------------------------------------------------------------------------------


def test_choices_lie_around_the_given_settings() -> None:
    found = choices(CONFIG, ("weights", "network", "learning_rate"))
    assert set(found) == {
        *(f"solver.weights.{name}" for name in ("q", "cql", "transition", "reward")),
        "network.latent",
        "network.hidden",
        "learning_rate",
    }
    assert found["solver.weights.cql"] == pytest.approx((0.1, 10))
    assert found["network.latent"] == (8, 16)
    assert found["learning_rate"] == pytest.approx((2e-4, 5e-3))


def test_choices_leave_out_what_a_solver_does_not_have() -> None:
    qnet = replace(CONFIG, solver=SolverConfig("qnet", weights=LossWeights(cql=0)))
    assert set(choices(qnet, ("weights",))) == {"solver.weights.q"}
    assert set(choices(NAVIGATION, ("network",))) == {"network.hidden"}  # maps have their own size
    with pytest.raises(UserError, match=r"over must name at least one of .*, got \[\]"):
        choices(CONFIG, ())


def test_changed() -> None:
    found = changed(CONFIG, {"solver.weights.q": 0.5, "network.hidden": 32})
    assert found.solver.weights.q == 0.5
    assert found == replace(
        CONFIG,
        solver=replace(CONFIG.solver, weights=LossWeights(q=0.5)),
        network=replace(CONFIG.network, hidden=32),
    )


# --- trials ------------------------------------------------------------------------------------------


def test_stopped_searches_go_on(data: Path, tmp_path: Path) -> None:
    def stop(trial: Trial, step: int) -> None:
        if (trial.number, step) == (1, 2):
            raise KeyboardInterrupt

    with Dataset(data) as dataset:
        search = open_in(tmp_path / "stopped")
        with pytest.raises(KeyboardInterrupt):
            list(search.run(3, dataset, fake_score, on_step=stop))
        before = search.trials()
        assert [trial.state for trial in before] == ["done", "unfinished"]
        steps: list[tuple[int, int]] = []
        search = open_in(tmp_path / "stopped")
        list(
            search.run(3, dataset, fake_score, on_step=lambda trial, step: steps.append((trial.number, step)))
        )
        assert steps == [(1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4)]  # from the checkpoint
        whole = open_in(tmp_path / "whole")
        list(whole.run(3, dataset, fake_score))
        assert not list(whole.run(3, dataset, fake_score))
        assert len(list(whole.run(4, dataset, fake_score))) == 1  # more trials prolong it
    assert search.trials() == whole.trials()[:3]
    assert before[0].settings == {
        "solver.weights.q": 0.1,
        "solver.weights.cql": 1.0,
        "solver.weights.transition": 0.1,
        "solver.weights.reward": 1.0,
        "network.latent": 8,
        "network.hidden": 16,
    }
    for trial in whole.trials():
        logs = [read_metrics(each.run_folder(trial) / "metrics.jsonl") for each in (search, whole)]
        assert trial.number == 3 or logs[0] == logs[1]


def test_trials_of_other_processes_are_left_to_them(data: Path, tmp_path: Path) -> None:
    with Dataset(data) as dataset:
        search = open_in(tmp_path)
        taken = search._next(2, set())
        assert taken is not None
        trainer = Trainer(changed(CONFIG, taken.settings), dataset.observation, dataset.num_actions)
        elsewhere = train_run(search.run_folder(taken), trainer, dataset)
        next(elsewhere)
        assert [trial.number for trial in open_in(tmp_path).run(2, dataset, fake_score)] == [1]
        elsewhere.close()
        assert [trial.number for trial in open_in(tmp_path).run(2, dataset, fake_score)] == [0]


def test_diverged_trials_are_passed_over(data: Path, tmp_path: Path) -> None:
    hot = replace(CONFIG, learning_rate=1e30, gradient_clip=1e30)
    with Dataset(data) as dataset:
        search = open_in(tmp_path, hot)
        assert [trial.state for trial in search.run(2, dataset, fake_score)] == ["diverged"] * 2
    assert not ranked(search.trials())


def test_other_settings_in_the_same_folder(data: Path, tmp_path: Path) -> None:
    open_in(tmp_path)
    open_in(tmp_path, replace(CONFIG, keep_checkpoints=1))  # of no consequence
    with pytest.raises(UserError, match=r"other settings \(config.batch_size is 4, not 8\)"):
        open_in(tmp_path, replace(CONFIG, batch_size=4))
    with pytest.raises(UserError, match="other settings"):
        open_in(tmp_path, over=("weights",))


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"^Optuna is not installed: pip install 'dtsn\[tune\]'$") as caught:
        open_in(tmp_path)
    assert is_for_users(caught.value)


# --- the journal -------------------------------------------------------------------------------------


def test_a_killed_process_leaves_half_a_line_and_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtsn.tuning.journal.GRACE", 0.1)
    search = open_in(tmp_path)
    assert search._next(1, set()) is not None
    whole, journal = search.trials(), tmp_path / "journal.log"
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"op_code":6,"worker')
    (tmp_path / "journal.log.lock").touch()
    again = open_in(tmp_path)
    assert again.trials() == whole
    again._study.tell(0, 0.5)
    after = journal.read_bytes()
    assert after.startswith(before)
    assert all(isinstance(json.loads(line), dict) for line in after.splitlines())
    assert open_in(tmp_path).trials()[0].score == 0.5
    assert {path.name for path in tmp_path.iterdir()} == {"journal.log"}


@pytest.mark.parametrize("name", ["journal.log", "journal.log.lock"])
def test_links_in_place_of_the_journal_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name} must (not be a link|be a file that dtsn tune made)"):
        open_in(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "line", ["[]", '{"op_code": 4}', '{"op_code": 99}', '{"op_code": 0, "study_name": NaN}', "1"]
)
def test_journals_of_others(tmp_path: Path, line: str) -> None:
    (tmp_path / "journal.log").write_text(line + "\n")
    with pytest.raises(UserError, match=r"journal\.log .*must be") as caught:
        open_in(tmp_path)
    assert "\n" not in str(caught.value)


def test_settings_of_others_are_refused(tmp_path: Path) -> None:
    search = open_in(tmp_path)
    search._study.enqueue_trial({"network.hidden": 10**9}, skip_if_exists=False)
    assert search._next(1, set()) is not None  # as given
    search._study.tell(0, 0.5)
    with pytest.raises(UserError, match="journal of a search"):
        search._next(2, set())


# --- scores ------------------------------------------------------------------------------------------


def test_held_out_episodes(data: Path, tmp_path: Path) -> None:
    with Dataset(data) as dataset:
        train, held = split_episodes(dataset, tmp_path)
        assert split_episodes(dataset, tmp_path) == (train, held)
        with Dataset(train) as rest, Dataset(held) as few:
            assert (rest.num_episodes, few.num_episodes) == (11, 1)
            assert few.array("levels").tolist() == [dataset.array("levels")[9]]
            both = np.concatenate([rest.array("levels"), few.array("levels")])
            assert sorted(both) == sorted(dataset.array("levels"))
            assert few.observation == dataset.observation
            trainer = Trainer(CONFIG, rest.observation, rest.num_actions)
            score = held_out_score(few, LossWeights(q=0.1, cql=1.0))
            before = score(trainer.solver)
            assert before == score(trainer.solver) < 0
            double = held_out_score(few, LossWeights(q=0.2, cql=2.0))(trainer.solver)
            assert double == pytest.approx(2 * before)


def test_few_episodes(tmp_path: Path) -> None:
    with (
        Dataset(collect_navigation(tmp_path / "few.h5", episodes=9)) as dataset,
        pytest.raises(UserError, match="must have at least 10 episodes, got 9"),
    ):
        split_episodes(dataset, tmp_path)


def test_navigation_score_is_a_rate(data: Path) -> None:
    with Dataset(data) as dataset:
        trainer = Trainer(CONFIG, dataset.observation, dataset.num_actions)
        score = navigation_score(dataset, levels=3)(trainer.solver.eval())
    assert score in [number / 6 for number in range(7)]


# --- what is shown -----------------------------------------------------------------------------------


def test_table_and_picture(tmp_path: Path) -> None:
    trials = [
        Trial(0, {"solver.weights.q": 0.1, "network.hidden": 8}, 0.25, "done"),
        Trial(1, {"solver.weights.q": 0.3, "network.hidden": 16}, None, "diverged"),
        Trial(2, {"solver.weights.q": 0.5, "network.hidden": 4}, 0.75, "done"),
    ]
    assert [trial.number for trial in ranked(trials)] == [2, 0]
    rows = list(csv.reader(write_table(trials, tmp_path / "trials.csv").read_text().splitlines()))
    assert rows[0] == ["trial", "state", "score", "solver.weights.q", "network.hidden"]
    assert rows[2] == ["1", "diverged", "", "0.3", "16"]
    pytest.importorskip("matplotlib")
    assert draw(trials, "success", tmp_path / "tuning.png").stat().st_size > 1000


def test_command(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"dtsn tune {data} --run tune --trials 2 --levels 2 --steps 2 --batch-size 4 --device cpu"
    monkeypatch.setattr(sys, "argv", words.split())
    main()
    shown = capsys.readouterr().out
    assert "trial 1:" in shown
    assert f"next: dtsn train {data} --solver.weights.q " in shown
    assert {path.name for path in Path("tune").iterdir()} == {
        "journal.log",
        "trials",
        "trials.csv",
        "tuning.png",
    }
