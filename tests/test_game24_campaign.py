"""The Game of 24's campaign: its world model against the environment, a short run, the report."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dtsn.config import SolverConfig
from dtsn.envs.game24 import Game24Env, puzzles_of
from dtsn.envs.game24_graph import build_graph
from dtsn.evaluation.game24 import WIN, known_game24, looked_up, play
from dtsn.experts.game24 import demonstrate
from dtsn.models.game24 import LookUp
from dtsn.models.known import KnownModel
from dtsn.reproduce.game24 import run
from dtsn.reproduce.game24.plan import ABLATIONS, ACT_ITERATIONS, RULES, VARIANTS, Cell, Game24Campaign
from dtsn.reproduce.game24.report import build_game24_report, read_runs, scores, summarise
from dtsn.reproduce.game24.run import batches, run_campaign, train
from dtsn.reproduce.jobs import DONE, Job
from dtsn.settings import flat
from dtsn.solvers.solver import Solver
from dtsn.training.trainer import Trainer


@pytest.fixture(scope="module")
def model() -> KnownModel:
    return known_game24()


def test_rules_are_the_environments(model: KnownModel) -> None:
    env = Game24Env()
    for seed in range(5):
        state, info = env.reset(seed=seed)
        over = False
        while not over:
            found = model.expand(torch.tensor([int(state)]))
            assert torch.as_tensor(found.valid)[0].tolist() == info["action_mask"].tolist()
            action = int(env.np_random.choice(np.flatnonzero(info["action_mask"])))
            state, reward, over, _, info = env.step(action)
            assert int(found.children[0, action]) == state
            assert float(found.reward[0, action]) == WIN * reward
            assert bool(torch.as_tensor(found.terminal)[0, action]) == over


def test_values_stay_below_a_win_and_have_gradients(model: KnownModel) -> None:
    states = torch.arange(0, len(build_graph()), 997)
    values = model.value(states)
    assert bool((values < WIN).all())
    assert bool(values.isfinite().all())
    values.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def exact_solver(config: SolverConfig) -> Solver:
    """A solver whose value knows which states can be solved."""
    graph, known = build_graph(), known_game24()
    value = LookUp(torch.as_tensor(np.where(graph.solutions > 0, 0.99 * WIN, 0.0)).float())
    return Solver(KnownModel(known.rules, value, known.num_actions), config, ()).eval()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("iterations", [1, 4])
def test_the_exact_value_solves_every_puzzle(rule: str, iterations: int) -> None:
    solver = exact_solver(SolverConfig("dtsn", act_iterations=iterations, act_rule=rule))  # type: ignore[arg-type]
    assert play(solver, puzzles_of("test")).all()


def test_play_of_a_hand_does_not_depend_on_the_others(model: KnownModel) -> None:
    solver = Solver(model, SolverConfig("dtsn", act_iterations=40), ()).eval()
    hands = puzzles_of("validation")[:40]
    together = play(solver, hands, seed=1)
    assert 0 < together.sum() < len(hands)
    assert (play(solver, hands[20:], seed=1) == together[20:]).all()
    assert (play(looked_up(solver), hands, seed=1) == together).all()


def test_one_step_training_is_dtsn_with_one_expansion(model: KnownModel) -> None:
    batch = next(batches(demonstrate(50, 0), 64, 1, 0))
    found = [
        Solver(model, SolverConfig(name, iterations=1), ()).loss(batch).total for name in ("search", "dtsn")
    ]
    assert found[0].item() == found[1].item()


def test_batches_show_every_decision_once_in_an_epoch() -> None:
    data = demonstrate(40, 0)
    seen = torch.cat([batch.observation for batch in batches(data, 36, 10, 0)])  # type: ignore[misc]
    assert sorted(seen.tolist()) == sorted(data.states[:, :-1].ravel().tolist())
    first = next(batches(data, 36, 1, 0))
    graph, end = build_graph(), first.observation.numpy()  # type: ignore[union-attr]
    assert first.path is not None
    assert (first.path[:, 0] == first.action).all()
    for action in first.path.numpy().T:  # every path leads to 24
        end = np.where(action < 0, end, graph.next[end, action])
    assert graph.is_won[end].all()
    assert (first.terminated == (first.reward > 0)).all()
    assert (first.q_target == WIN).all()


def test_a_short_run_learns_and_is_repeated_bitwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = VARIANTS["dtsn-1000-T8"]
    once, twice = (train(variant, 0, 6) for _ in range(2))
    for name, weight in once.state_dict().items():
        assert torch.equal(weight, twice.state_dict()[name]), name
    monkeypatch.setattr(run, "ACT_ITERATIONS", (1, 2))
    arguments = ("dtsn-1000-T8", "0", "6", str(tmp_path / "row.json"), str(tmp_path / "solver"))
    monkeypatch.setattr("sys.argv", ["run", *arguments])
    run.main()
    row = json.loads((tmp_path / "row.json").read_text())
    assert [(t["act_T"], t["rule"], len(t["solved"])) for t in row["tests"]] == [
        (T, rule, 527) for rule in RULES for T in (1, 2)
    ]
    again = Solver.load(tmp_path / "solver", world_model=known_game24())
    state = torch.tensor([0, 5])
    assert torch.equal(again.world_model.value(state), once.world_model.value(state))


class Pretend:
    """Writes a row for every job: more search solves more, D-TSN more than value-only."""

    def run(self, jobs: dict[Cell, Job]):
        for cell, job in jobs.items():
            variant, path = VARIANTS[cell.variant], Path(job.arguments[3])
            tests = [
                {"act_T": T, "rule": rule, "solved": "1" * (T + cell.seed) + "0" * (200 - T - cell.seed)}
                for T in ACT_ITERATIONS
                for rule in RULES
            ]
            row = {**vars(variant), "seed": cell.seed, "weights": 1234, "cpu_seconds": 5.0, "tests": tests}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row))
            yield cell, DONE


def test_campaign_goes_on_where_it_stopped_and_reports(tmp_path: Path) -> None:
    campaign = Game24Campaign(seeds=3, results=tmp_path / "results", runs=tmp_path / "runs")
    total = len(campaign.cells())
    ends = run_campaign(campaign, Pretend(), "dtsn reproduce game24")
    next(ends)
    assert len(list(run_campaign(campaign, Pretend(), "again"))) == total - 1
    assert not list(run_campaign(campaign, Pretend(), "again"))
    assert json.loads((campaign.results / "meta.json").read_text())["command"].splitlines() == [
        "dtsn reproduce game24",
        "again",
    ]
    summary = summarise(scores(read_runs(campaign.results)))
    row = next(
        row
        for row in summary["rows"]
        if (row["train_T"], row["trajectories"], row["act_T"], row["rule"]) == (8, 10_000, 8, "greedy")
    )
    wanted = {"trajectories", "train_T", "act_T", "solver", "rule", "success", "n", "seeds"}
    assert wanted <= set(row)
    assert (row["solver"], row["success"], row["n"], row["seeds"]) == ("dtsn", 9 / 200, 600, 3)
    # Value-only training is D-TSN with T = 1: its runs stand for both.
    ones = [row for row in summary["rows"] if row["train_T"] == 1 and row["trajectories"] == 2000]
    assert {row["solver"] for row in ones} == {"dtsn", "search"}
    pytest.importorskip("matplotlib")
    page = tmp_path / "game24-results.md"
    written = build_game24_report(campaign.results, page)
    assert all(path.exists() for path in written)
    cell = re.search(r"D-TSN, trained with T = 8 \| greedy \| 4\.5 \(([\d.]+) to ([\d.]+)", page.read_text())
    assert cell is not None
    # Every seed fails on the same puzzles, so they count once: wider than if all games were independent.
    assert float(cell[1]) < 2.9
    assert float(cell[2]) > 6.9
    assert "| *T = 16, follow-up* | – | – | – | 49.58 | 92.38 |" in page.read_text()
    assert build_game24_report(tmp_path / "nothing", page) == []


def test_ablations_change_one_setting_and_can_be_trained() -> None:
    plain = VARIANTS["dtsn-2000-T8"].config(0)
    for ablation in ABLATIONS:
        variant = VARIANTS[f"{ablation}-2000-T8"]
        changed = flat(dataclasses.asdict(variant.config(0)))
        assert sum(value != changed[name] for name, value in flat(dataclasses.asdict(plain)).items()) == 1
        config = dataclasses.replace(variant.config(0), search_warmup=0)
        trainer = Trainer(config, (), 4, world_model=known_game24(16, 4))
        metrics = [trainer.update(batch) for batch in batches(demonstrate(50, 0), 32, 2, 0)]
        assert np.isfinite(metrics[-1]["loss"])
        assert ("ranking" in metrics[-1]) == (ablation != "no_ranking")


@pytest.mark.parametrize("wrong", [{"variants": ("dtsn",)}, {"seeds": 0}, {"steps": 0}])
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Game24Campaign(**wrong)  # type: ignore[arg-type]
