"""The benchmark's parts at small sizes, and the page made of a result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dtsn.bench import deciding
from dtsn.bench.deciding import OnTensors, _ratios, make_solver, mctx_decisions, ways_of_acting
from dtsn.bench.mctx_policy import mctx_policy, one_core
from dtsn.bench.page import TARGETS, Target, performance_page, write_bench
from dtsn.bench.per_sample import search_one_sample
from dtsn.bench.runtime import RUNTIME_TABLE, frames_step
from dtsn.bench.search import BareModules, Case, search_functions
from dtsn.bench.small import small_step
from dtsn.bench.timing import interleave, machine, ratio
from dtsn.search import best_first_search
from reference import random_model, reference_search


def test_ratio_is_the_median_over_rounds() -> None:
    times = {"a": np.array([2.0, 3.0, 40.0, 2.0, 2.0]), "b": np.array([1.0, 1.0, 1.0, 2.0, 1.0])}
    assert ratio(times, "a", "b") == (2.0, 1.0)


def test_interleave_calls_in_turn_after_a_warm_up() -> None:
    calls: list[str] = []
    times = interleave({name: lambda name=name: calls.append(name) for name in "ab"}, 0, rounds=2)
    assert calls == ["a", "b"] * 3
    assert [len(values) for values in times.values()] == [2, 2]


def test_parts_of_a_small_step_run() -> None:
    (row,) = small_step(True)
    assert row["ms"].keys() == {"whole step", "bare modules", "fused modules", "choosing nodes", "backup"}
    assert row["operations"].keys() == row["ms"].keys()
    assert row["operations"]["whole step"] > row["operations"]["fused modules"] > 0


@pytest.mark.parametrize("spatial", [False, True])
def test_search_and_yardsticks_run(spatial: bool) -> None:
    case = Case(3, 2, 2, 4, spatial)
    for name, function in search_functions(case).items():
        result = function()
        assert (result is None) == name.startswith("train")


def test_bare_modules_are_the_transition_and_value_with_the_action_written_out() -> None:
    case = Case(3, 4, 5, 6)
    model = case.world_model()
    bare = BareModules(model, case)
    with torch.no_grad():
        first, last = bare.transition[0], bare.transition[2]
        first.weight.copy_(torch.cat([model.transition.weight, model.transition.action_bias.T], 1))
        first.bias.zero_()
        last.load_state_dict(model.transition.last.state_dict())
        observation, one_hot = case.observation(), torch.eye(3).repeat(5, 1)
        latent, expected = model.encode(observation), []
        for _ in range(case.iterations):
            state = latent.tanh().repeat_interleave(3, 0)  # [B·A, D]
            children, _ = model.expand(latent)
            expected += [bare.reward(torch.cat([state, one_hot], 1)).flatten()]
            expected += [model.value(children.flatten(0, 1))]
            latent = children[:, 0]
        torch.testing.assert_close(bare(observation), torch.cat(expected))


def test_per_sample_baseline_does_the_work_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model, root = random_model(3, seed=1), torch.randn(1, 5, dtype=torch.float64)
    tree = best_first_search(model, root, iterations=6)
    # The baseline keeps a list of open nodes: turn slots into places in it.
    slots, places = [0], []
    for t, slot in enumerate(tree.selected[0].tolist()):
        places.append(slots.index(slot))
        slots.remove(slot)
        slots += range(1 + 3 * t, 4 + 3 * t)
    draws = iter(places)
    monkeypatch.setattr(torch, "multinomial", lambda probs, n: torch.tensor([next(draws)]))
    q_values, log_probs = search_one_sample(model, root, 6)
    expected = reference_search(model, root, tree.selected[0].tolist())
    torch.testing.assert_close(q_values, expected.q_values, rtol=0, atol=1e-12)
    torch.testing.assert_close(log_probs, expected.log_probs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RUNTIME_TABLE)
def test_every_solver_of_the_runtime_table_makes_a_step(name: str, precision: str) -> None:
    frames_step(RUNTIME_TABLE[name][0], precision, batch=1)()


def small_result() -> dict:
    """A result as `run_bench` returns it, without measuring."""
    pairs = [f"{kind}_over_{other}" for kind in ("train", "infer") for other in ("bare", "fused")]
    rows = [
        {"part": "search", **vars(Case(4, 10, 1, 64)), "ms": {"train": 2.0, "infer": 1.0}}
        | {name: [1.5, 0.1] for name in pairs},
        {"part": "acting", "ms": {"all": 2.0, "encoder": 0.1}},
        {
            "part": "small",
            **vars(Case(4, 10, 32, 64)),
            "ms": {"whole step": 3.0, "backup": 0.5},
            "operations": {"whole step": 1600, "backup": 120},
        },
        {"part": "deciding", "batch": 1, "ms": {"act": 0.5, "compiled": 0.125}},
        {"part": "deciding", "batch": 64, "ms": {"act": 4.25}},
        {"part": "runtime", "solver": "TreeQN (depth 3)", "seconds": 9.0, "over_qnet": 70.0}
        | {"paper_over_qnet": None, "peak_gb": 0.9},
        {"part": "precision", "float32_over_bfloat16": 1.1},
        {"part": "growth", "over": "iterations", "sizes": [20, 200], "ms": [1.0, 10.0], "exponent": 1.0},
        {"part": "environment", "name": "navigation", "steps_per_second": 123456},
        {"part": "memory", "batch": 32, "iterations": [1, 200], "peak_gb": [0.5, 2.5]},
        {"part": "data", "load_over_train": [0.01, 0.001]},
    ]
    ratios = {name: {"value": 2.0, "target": target.limit, "spread": 0.2} for name, target in TARGETS.items()}
    return {"ratios": ratios, "machine": machine(), "rows": rows}


def test_verdict_leaves_room_for_noise() -> None:
    target = Target("", 5.0)
    verdicts = [target.verdict(value) for value in (4.0, 4.9, 5.4, 6.0)]
    assert verdicts == ["yes", "borderline", "borderline", "no"]
    assert Target("a figure").verdict(4.0) == Target("a figure").wanted == "–"


def test_ways_of_acting_decide_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(3, 4, 1, 6)
    solvers = make_solver(case), make_solver(case, OnTensors)
    arrays, tensors = (solver.world_model.for_one_row() for solver in solvers)
    assert arrays is not None
    assert tensors is None
    for observation in torch.rand(20, 6):
        ours, theirs = (solver.act(observation, deterministic=True) for solver in solvers)
        assert torch.equal(ours, theirs)
    monkeypatch.setattr(deciding, "compiled_kernel", lambda: None)  # Numba takes ten seconds
    assert [*ways_of_acting(case, None)] == ["act", "greedy on tensors"]


def test_fastest_way_counts_and_what_is_missing_is_left_out() -> None:
    times = {"act": np.full(3, 4.0), "compiled": np.full(3, 1.0), "mctx, 40 simulations": np.full(3, 2.0)}
    assert _ratios(1, times, ["act", "compiled"], [40]) == {"act_b1_over_mctx40": (0.5, 0.0)}
    times |= {"exported, greedy": np.full(3, 1.0), "greedy on tensors": np.full(3, 4.0)}
    assert _ratios(1, times, ["act"], []) == {"act_export_over_eager_b1": (0.25, 0.0)}
    assert _ratios(64, times, ["act"], []) == {}


def test_without_mctx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mctx", None)
    assert mctx_decisions(Case(3, 2, 1, 4)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_mctx_decides(batch: int) -> None:
    pytest.importorskip("mctx")
    with one_core():
        action = np.asarray(mctx_policy(Case(3, 2, batch, 4), 6)())
    assert action.shape == (batch,)
    assert ((action >= 0) & (action < 3)).all()


def test_page_shows_every_target_and_explains_those_not_clearly_kept() -> None:
    page = performance_page(small_result())
    headline, _, rest = page.partition("## Beyond the limit")
    explained = rest.partition("## ")[0]
    for target in TARGETS.values():
        assert target.title in headline
        assert (target.title in explained) == (target.verdict(2.0) in ("no", "borderline"))
    assert "123,456" in page
    assert "2.5 GB (T=200)" in page
    assert "out of memory" in page
    assert "| act | 0.50 | 4.25 |" in page
    assert "| compiled | 0.12 | – |" in page
    assert (
        "latent 64: whole step 3.0 ms, backup 0.5 ms; launched operations: whole step 1600, backup 120."
        in page
    )
    assert "Not measured" not in page


def test_page_names_what_was_not_measured() -> None:
    result = small_result()
    del result["ratios"]["act_b1_over_mctx40"]
    assert f"Not measured in this run: {TARGETS['act_b1_over_mctx40'].title}.\n" in performance_page(result)


def test_result_is_written_as_json_and_page(tmp_path) -> None:
    written = write_bench(small_result(), tmp_path / "results" / "bench.json", tmp_path / "page.md")
    assert all(path.exists() for path in written)
    assert json.loads(written[0].read_text())["ratios"].keys() == TARGETS.keys()
    assert written[2] == tmp_path / "figures" / "growth.png"


def test_committed_page_is_made_of_the_committed_result() -> None:
    root = Path(__file__).parent.parent
    result = json.loads((root / "results" / "bench.json").read_text())
    assert (root / "docs" / "performance.md").read_text() == performance_page(result)
