"""Runs that resume bitwise, and what they do not resume from."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtsn.checkpoint import CheckpointError, latest_checkpoint, load_state, load_tensors_of, save_checkpoint
from dtsn.config import LossWeights
from dtsn.data.reader import Dataset
from dtsn.envs.navigation import NavigationOptions
from dtsn.experts.collect import collect_navigation
from dtsn.processes import interrupt_on_sigterm
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.loop import train_run
from dtsn.training.runs import read_metrics
from dtsn.training.trainer import Trainer
from short_runs import CONFIG, QNET, STEPS, Whole, contents, each_solver, make, of, outcome, train
from short_runs import dataset as dataset
from short_runs import started as started
from short_runs import whole as whole


@each_solver
def test_resumed_run_is_the_uninterrupted_one(
    name: str, dataset: Dataset, whole: Whole, tmp_path: Path
) -> None:
    for stop in (1, 3, 4, 7):  # before, at and after checkpoints and the end of the warm-up
        assert train(tmp_path, dataset, of(name), resume=stop > 1, stop=stop).step == stop
        assert latest_checkpoint(tmp_path / "checkpoints") == tmp_path / f"checkpoints/step-{stop}"
    train(tmp_path, dataset, of(name), resume=True)
    assert outcome(tmp_path) == outcome(whole(name))
    assert list(train_run(tmp_path, make(dataset, of(name)), dataset, resume=True)) == []  # it has ended
    assert outcome(tmp_path) == outcome(whole(name))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Solver, "loss"), (torch.optim.AdamW, "step"), (Solver, "update_target"), (Trainer, "update")],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_interrupt_in_the_middle_of_a_step(
    owner: Any,
    name: str,
    when: str,
    dataset: Dataset,
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes anywhere: between the optimiser's step and the target's, before a step is logged, …"""
    calls, real = itertools.count(), getattr(owner, name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        stop = next(calls) == 4
        if stop and when == "before":
            raise KeyboardInterrupt
        result = real(*arguments, **options)
        if stop:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, dataset)
    train(tmp_path, dataset, resume=True)
    assert outcome(tmp_path) == outcome(whole("dtsn"))


def test_metrics_after_the_checkpoint_are_made_anew(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    train(tmp_path, dataset, stop=4)
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    train(tmp_path, dataset, resume=True)
    assert outcome(tmp_path) == outcome(whole("dtsn"))


def test_resume_from_before_a_damaged_checkpoint(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    train(tmp_path, dataset, stop=7)
    (tmp_path / "checkpoints/step-7/model.safetensors").write_bytes(b"garbage")
    train(tmp_path, dataset, resume=True)
    assert outcome(tmp_path) == outcome(whole("dtsn"))


def test_all_checkpoints_damaged(dataset: Dataset, tmp_path: Path) -> None:
    train(tmp_path, dataset, QNET, stop=2)
    (tmp_path / "checkpoints/step-2/state.json").unlink()
    before = contents(tmp_path)
    for resume in (False, True):
        with pytest.raises(CheckpointError, match="damaged"):
            train(tmp_path, dataset, QNET, resume=resume)
    assert contents(tmp_path) == before


OTHER = {
    "steps": replace(QNET, steps=7),
    "learning_rate": replace(QNET, learning_rate=0.1),
    "seed": replace(QNET, seed=1),
    "iterations": replace(QNET, solver=replace(QNET.solver, iterations=4)),
    "cql": replace(QNET, solver=replace(QNET.solver, weights=LossWeights(cql=0.5))),
    "hidden": replace(QNET, network=replace(QNET.network, hidden=8)),
}


@pytest.mark.parametrize("field", OTHER)
def test_resume_with_another_config(field: str, dataset: Dataset, started: Path) -> None:
    before = contents(started)
    with pytest.raises(CheckpointError, match=rf"\b{field}\b"):
        train(started, dataset, OTHER[field], resume=True)
    assert contents(started) == before


def test_resume_with_other_observations(started: Path, tmp_path: Path) -> None:
    options = NavigationOptions(size=12, hall=(3, 8))
    with (
        Dataset(collect_navigation(tmp_path / "small.h5", episodes=2, options=options)) as small,
        pytest.raises(CheckpointError, match="observation_shape"),
    ):
        train(started, small, QNET, resume=True)


def test_resume_with_other_data(started: Path, dataset: Dataset, tmp_path: Path) -> None:
    before = contents(started)
    with (
        Dataset(collect_navigation(tmp_path / "other.h5", episodes=20, seed=1)) as other,
        pytest.raises(CheckpointError, match=r"was trained on other data .*use the same data set"),
    ):
        train(started, other, QNET, resume=True)
    assert contents(started) == before
    same = collect_navigation(tmp_path / "same.h5", episodes=20)  # elsewhere, at another time
    shutil.copytree(started, tmp_path / "run")
    with Dataset(same) as data:
        train(tmp_path / "run", data, QNET, resume=True)


def test_resume_of_nothing(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="typo holds no run to resume"):
        train(tmp_path / "typo", dataset, QNET, resume=True)
    assert os.listdir(tmp_path) == []


def test_what_is_kept_may_change(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    train(tmp_path, dataset, stop=2)
    changed = replace(CONFIG, checkpoint_every=2, keep_checkpoints=1, on_nan="skip")
    train(tmp_path, dataset, changed, resume=True)
    weights = [outcome(run)["model.safetensors"] for run in (tmp_path, whole("dtsn"))]
    assert weights[0] == weights[1]


def test_more_steps_prolong_a_run(dataset: Dataset, tmp_path: Path) -> None:
    """To the last bit as if the learning rate had followed the new total from there on."""
    train(tmp_path / "run", dataset, QNET)
    longer = replace(QNET, steps=12)
    train(tmp_path / "run", dataset, longer, resume=True)
    trainer = make(dataset, QNET)
    list(trainer.run(dataset))
    trainer.config = longer
    rates = [row["learning_rate"] for row in trainer.run(dataset)]
    assert rates == [row["learning_rate"] for row in read_metrics(tmp_path / "run/metrics.jsonl")][STEPS:]
    assert rates[0] == longer.learning_rate * 0.5 * (1 + math.cos(math.pi * STEPS / 12))
    state = load_state(tmp_path / "run/checkpoints/step-12")
    model = load_tensors_of(tmp_path / "run/checkpoints/step-12", "model", state)
    assert all(torch.equal(model[name], tensor) for name, tensor in trainer.solver.state_dict().items())
    with pytest.raises(CheckpointError, match="steps must be at least 12, as before, got 8"):
        train(tmp_path / "run", dataset, QNET, resume=True)


def test_sigterm_saves_as_an_interrupt_does(dataset: Dataset, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    steps = train_run(tmp_path, make(dataset, QNET), dataset)
    for _ in range(5):
        next(steps)
    with pytest.raises(KeyboardInterrupt), interrupt_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    steps.close()  # type: ignore[attr-defined]
    assert latest_checkpoint(tmp_path / "checkpoints") == tmp_path / "checkpoints/step-5"
    assert signal.getsignal(signal.SIGTERM) is before


def forged(path: Path, **changes: Any) -> None:
    """Change a checkpoint's state and seal it, as one who means harm can."""
    state = json.loads((path / "state.json").read_bytes()) | changes
    state.pop("sha256")
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps({**state, "sha256": digest}))


@pytest.mark.parametrize("step", ["abc", 10**30, -1, 1.5, True, None, [], 9])
def test_resume_with_a_bad_step(step: Any, dataset: Dataset, started: Path, tmp_path: Path) -> None:
    shutil.copytree(started, tmp_path / "run")
    forged(tmp_path / "run/checkpoints/step-2", step=step)
    with pytest.raises(CheckpointError, match=r"step-2 does not fit .*: step must be a whole number"):
        train(tmp_path / "run", dataset, QNET, resume=True)


def first_of(tensors: dict[str, torch.Tensor], ending: str) -> str:
    return next(name for name in tensors if name.endswith(ending))


BAD_TENSORS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "no optimiser": ("optimizer", lambda t: t.clear(), "must not be empty"),
    "another parameter": ("optimizer", lambda t: t.update({"99.step": torch.ones(())}), "got '99'"),
    "no parameter": ("optimizer", lambda t: t.update({"x": torch.ones(())}), "got 'x'"),
    "another moment": ("optimizer", lambda t: t.update({"0.max": torch.ones(())}), "'0.max' must be absent"),
    "half a state": ("optimizer", lambda t: t.pop(first_of(t, "exp_avg_sq")), "must be there"),
    "another shape": ("optimizer", lambda t: t.update({first_of(t, "exp_avg"): torch.ones(3)}), "must be"),
    "NaN moments": ("optimizer", lambda t: t[first_of(t, "exp_avg")].fill_(math.nan), "must be finite"),
    "NaN weights": ("model", lambda t: t[first_of(t, "weight")].fill_(math.nan), "must be finite"),
    "bool weights": ("model", lambda t: t.update({n: v.bool() for n, v in t.items()}), "got bool"),
    "no weights": ("model", lambda t: t.clear(), "must be there"),
}


@pytest.mark.parametrize("kind", BAD_TENSORS)
def test_resume_with_bad_tensors(kind: str, dataset: Dataset, started: Path, tmp_path: Path) -> None:
    stem, change, said = BAD_TENSORS[kind]
    path = started / "checkpoints/step-2"
    state = load_state(path)
    tensors = {each: load_tensors_of(path, each, state) for each in ("model", "optimizer")}
    change(tensors[stem])
    del state["files"]
    save_checkpoint(tmp_path / "step-2", tensors, state)
    trainer = make(dataset, QNET)
    before = [p.clone() for p in trainer.solver.parameters()]
    with pytest.raises(CheckpointError, match=rf"step-2 does not fit .*{said}"):
        trainer.restore(tmp_path / "step-2")
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.solver.parameters(), strict=True))
    if stem == "model":
        with pytest.raises(CheckpointError, match=said):
            load_solver(tmp_path / "step-2")
