"""Training: the numbers of a step, runs that resume bitwise, and what a run folder is refused for."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dtsn.checkpoint import (
    CheckpointError,
    best_checkpoint,
    checkpoints,
    latest_checkpoint,
    load_state,
    load_tensors_of,
    save_checkpoint,
)
from dtsn.config import SOLVERS, LossWeights, NetworkConfig, SolverConfig, TrackerName, TrainConfig
from dtsn.data.format import ObservationSpec
from dtsn.data.reader import Dataset
from dtsn.envs.navigation import NavigationOptions
from dtsn.errors import UserError
from dtsn.experts.collect import collect_navigation
from dtsn.models.encoders import GridEncoder, ImpalaEncoder
from dtsn.processes import interrupt_on_sigterm
from dtsn.reproduce.navigation.variants import NAVIGATION, VARIANTS
from dtsn.settings import config_from_dict
from dtsn.solvers import planning
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver
from dtsn.storage import RunInUseError
from dtsn.training.loading import export_solver, load_solver
from dtsn.training.loop import train_run
from dtsn.training.runs import RunError, RunFolder, read_metrics
from dtsn.training.trainer import DivergedError, Trainer

STEPS = 8
CONFIG = TrainConfig(
    SolverConfig(iterations=3),
    NetworkConfig(encoder="grid", latent=16, hidden=16),
    steps=STEPS,
    batch_size=8,
    learning_rate_warmup=2,
    search_warmup=3,
    augment="grid_symmetries",
    checkpoint_every=3,
)
QNET = replace(CONFIG, solver=SolverConfig("qnet"))
each_solver = pytest.mark.parametrize("name", SOLVERS)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(collect_navigation(tmp_path_factory.mktemp("training") / "data.h5", episodes=20))


def of(name: str) -> TrainConfig:
    return replace(CONFIG, solver=replace(CONFIG.solver, name=name))


def make(dataset: Dataset, config: TrainConfig = CONFIG) -> Trainer:
    return Trainer(config, dataset.observation, dataset.num_actions)


def train(
    run: Path,
    dataset: Dataset,
    config: TrainConfig = CONFIG,
    *,
    resume: bool = False,
    stop: int | None = None,
    track: TrackerName = "none",
) -> Trainer:
    """Train to the end, or close the run after a step."""
    trainer = make(dataset, config)
    steps = train_run(run, trainer, dataset, resume=resume, track=track)
    for metrics in steps:
        if metrics["step"] == stop:
            steps.close()
    return trainer


def outcome(run: Path) -> dict[str, bytes]:
    """The bytes of all that a run leads to: weights, target, optimiser state, metrics."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    return {path.name: path.read_bytes() for path in (*newest.iterdir(), run / "metrics.jsonl")}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def whole(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a solver's uninterrupted training, made at first use."""
    runs: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp(name)
            train(runs[name], dataset, of(name))
        return runs[name]

    return get


Whole = Callable[[str], Path]


# --- the steps ---------------------------------------------------------------------------------------


def test_run_folder(whole: Whole) -> None:
    run = whole("dtsn")
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    terms = {"q", "cql", "transition", "reward", "expansion"}
    assert set(rows[0]) == terms | {"step", "loss", "gradient", "learning_rate"}
    assert [path.name for path in checkpoints(run / "checkpoints")] == ["step-6", "step-8"]
    config = json.loads((run / "config.json").read_bytes())
    assert config["env"]["id"] == "dtsn/Navigation-v0"
    assert config["env"]["options"]["exits"] == 2
    del config["dtsn"], config["data"], config["env"]
    assert config_from_dict(TrainConfig, config) == CONFIG
    model = load_tensors_of(run / "checkpoints/step-8", "model", load_state(run / "checkpoints/step-8"))
    assert any(key.startswith("target_encoder.") for key in model)


@each_solver
def test_same_seed_same_run(name: str, dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    torch.manual_seed(123)  # of no consequence
    train(tmp_path / "same", dataset, of(name))
    assert outcome(tmp_path / "same") == outcome(whole(name))
    trainer = train(tmp_path / "other", dataset, replace(of(name), seed=1, steps=1))
    first, other = (read_metrics(run / "metrics.jsonl")[0] for run in (whole(name), tmp_path / "other"))
    assert all(first[key] != other[key] for key in ("loss", "q", "gradient"))
    assert trainer.step == 1


@pytest.mark.parametrize("name", ["qnet", "dtsn"])
def test_q_values_are_learnt(name: str, dataset: Dataset) -> None:
    config = replace(of(name), steps=40, batch_size=32, learning_rate=1e-2, augment="none")
    errors = [row["q"] for row in make(dataset, config).run(dataset)]
    assert sum(errors[-5:]) < 0.7 * sum(errors[:5])


def test_auto_encoder_needs_a_space() -> None:
    with pytest.raises(UserError, match=r"network.encoder must be named .* whose bounds are unknown"):
        Trainer(TrainConfig(), (3, 20, 20), 4)


def test_auto_encoder_goes_by_the_bounds_of_the_data(dataset: Dataset, tmp_path: Path) -> None:
    config = replace(QNET, network=NetworkConfig(latent=8, hidden=8), steps=2)
    trainer = train(tmp_path, dataset, config)
    assert isinstance(trainer.solver.world_model.encoder, GridEncoder)
    assert isinstance(load_solver(tmp_path).world_model.encoder, GridEncoder)
    assert isinstance(Solver.load(tmp_path / "checkpoints/step-2").world_model.encoder, GridEncoder)
    frames = Trainer(config, ObservationSpec.of((3, 20, 20), np.uint8), 4)
    assert isinstance(frames.solver.world_model.encoder, ImpalaEncoder)


@pytest.mark.parametrize("name", ["search", "dtsn"])
def test_stand_ins_for_next_observations_are_not_learned(name: str, dataset: Dataset) -> None:
    """The transition loss is that of the real ones alone, and what stands in for others has no say."""
    solver = make(dataset, of(name)).solver.train()
    batch = next(dataset.batches(8, 0))
    valid = torch.arange(8) % 3 != 0

    def terms(**changes: torch.Tensor) -> LossTerms:
        return solver.loss(replace(batch, **changes), generator=torch.Generator().manual_seed(0))

    plain, masked = terms(), terms(next_valid=valid)
    assert torch.equal(masked.terms["transition"], torch.where(valid, plain.terms["transition"], 0.0))
    for other in set(plain.terms) - {"transition"}:
        assert torch.equal(masked.terms[other], plain.terms[other])
    black = torch.where(valid[:, None, None, None], batch.next_observation, 0)
    assert torch.equal(terms(next_valid=valid, next_observation=black).total, masked.total)
    assert torch.equal(terms(next_valid=torch.ones(8, dtype=torch.bool)).total, plain.total)


def test_a_tree_that_no_machine_can_hold() -> None:
    network = NetworkConfig(latent=4, hidden=4)
    with pytest.raises(UserError, match=r"depth must make a full tree of at most 1048576 leaves .* got 100"):
        Trainer(TrainConfig(SolverConfig("treeqn", depth=100), network), (4,), 2)
    with pytest.raises(UserError, match="depth must be at most 100, got 1000000"):
        SolverConfig("treeqn", depth=10**6)
    with pytest.raises(UserError, match="act_iterations must be at most 10000, got 2000000000"):
        SolverConfig(act_iterations=2 * 10**9)


def test_learning_rate_rises_and_falls_along_a_cosine(dataset: Dataset) -> None:
    config = replace(QNET, steps=10, learning_rate=0.1, learning_rate_warmup=4)
    rates = [row["learning_rate"] for row in make(dataset, config).run(dataset)]
    expected = [0.025, 0.0487764, 0.0678381, 0.0793893, 0.0654508, 0.05, 0.0345492, 0.0206107, 0.0095492]
    assert rates == pytest.approx([*expected, 0.0024472], rel=1e-4)
    trainer = make(dataset, replace(config, learning_rate_warmup=0))
    assert next(trainer.run(dataset))["learning_rate"] == 0.1
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.1]


def test_search_warmup_expands_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    real = planning.best_first_search

    def spy(*arguments: Any, **options: Any) -> Any:
        searched.append(options["iterations"])
        return real(*arguments, **options)

    monkeypatch.setattr(planning, "best_first_search", spy)
    list(make(dataset, replace(CONFIG, steps=5)).run(dataset))
    assert searched == [1, 1, 1, 3, 3]


def test_gradients_are_clipped(dataset: Dataset) -> None:
    norms = {}
    for clip in (1e-3, 1e9):
        trainer = make(dataset, replace(QNET, gradient_clip=clip))
        reported = next(trainer.run(dataset))["gradient"]
        gradients = [p.grad.norm() for p in trainer.solver.world_model.parameters() if p.grad is not None]
        norms[clip] = reported, float(torch.stack(gradients).norm())
    assert norms[1e9] == pytest.approx((norms[1e9][0],) * 2)
    assert norms[1e-3] == pytest.approx((norms[1e9][0], 1e-3), rel=1e-3)  # the log shows the norm before


def test_target_encoder_follows(dataset: Dataset) -> None:
    trainer = make(dataset, replace(CONFIG, solver=replace(CONFIG.solver, target_decay=0.75)))
    steps = trainer.run(dataset)
    assert trainer.solver.target_encoder is not None
    old = [p.clone() for p in trainer.solver.target_encoder.parameters()]
    next(steps)
    encoder = trainer.solver.world_model.encoder.parameters()
    for before, now, after in zip(old, encoder, trainer.solver.target_encoder.parameters(), strict=True):
        torch.testing.assert_close(after, 0.75 * before + 0.25 * now)


def test_bfloat16(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    trainer = train(tmp_path, dataset, replace(CONFIG, network=replace(CONFIG.network, precision="bfloat16")))
    assert {p.dtype for p in trainer.solver.parameters()} == {torch.float32}
    low, full = (read_metrics(run / "metrics.jsonl") for run in (tmp_path, whole("dtsn")))
    assert low[0]["loss"] != full[0]["loss"]
    assert low[0]["loss"] == pytest.approx(full[0]["loss"], rel=0.05)


# --- resuming ----------------------------------------------------------------------------------------


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


def test_run_folder_is_not_overwritten(dataset: Dataset, whole: Whole) -> None:
    run = whole("qnet")
    before = contents(run)
    with pytest.raises(FileExistsError, match="already has a training run: resume it"):
        train(run, dataset, of("qnet"))
    assert contents(run) == before


OTHER = {
    "steps": replace(QNET, steps=7),
    "learning_rate": replace(QNET, learning_rate=0.1),
    "seed": replace(QNET, seed=1),
    "iterations": replace(QNET, solver=replace(QNET.solver, iterations=4)),
    "cql": replace(QNET, solver=replace(QNET.solver, weights=LossWeights(cql=0.5))),
    "hidden": replace(QNET, network=replace(QNET.network, hidden=8)),
}


@pytest.fixture(scope="module")
def started(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("started")
    train(run, dataset, QNET, stop=2)
    return run


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


def test_discounts_agree(dataset: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(SolverConfig(discount=0.9), NetworkConfig(encoder="grid"))
    trainer = Trainer(config, dataset.observation, dataset.num_actions)
    with pytest.raises(ValueError, match=r"solver\.discount must be 1, .*, got 0\.9"):
        train_run(tmp_path / "run", trainer, dataset)


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


def test_what_a_run_was_trained_on(whole: Whole, tmp_path: Path) -> None:
    run = whole("dtsn")
    for folder in (run, run / "checkpoints/step-8"):
        trained = RunFolder.of(folder).environment()
        assert trained is not None
        assert trained.id == "dtsn/Navigation-v0"
        assert trained.options["exits"] == 2
    assert RunFolder(tmp_path).environment() is None
    for said in ("[]", "{", '{"env": []}', '{"env": {"id": 3, "options": {}}}', '{"a": NaN}', "[" * 10**5):
        (tmp_path / "config.json").write_text(said)
        with pytest.raises(RunError, match=re.escape(str(tmp_path / "config.json"))):
            RunFolder(tmp_path).environment()


BAD_LINES = [b"[]", b"null", b'"a"', b'{"loss": 1}', b'{"step": "1"}', b'{"step": 1, "loss": "x"}',
             b"\xff\xfe", b"[" * 50_000, b'{"step": true}', b'{"step": -1}', b'{"step": 1e400}',
             b"\0" * 100]  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[:20]))
def test_a_log_that_is_none(line: bytes, dataset: Dataset, started: Path, tmp_path: Path) -> None:
    shutil.copytree(started, tmp_path / "run")
    log = tmp_path / "run/metrics.jsonl"
    before = log.read_bytes()
    log.write_bytes(line + b"\n" + before)
    for read in (RunFolder(tmp_path / "run").metrics, lambda: train(log.parent, dataset, QNET, resume=True)):
        with pytest.raises(RunError, match=rf"{re.escape(str(log))} line 1 must be a JSON object of numbers"):
            read()
    log.write_bytes(before + line)  # half-written: a line ends with a line break
    train(log.parent, dataset, QNET, resume=True)


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


LINKED = [".lock", "metrics.jsonl", "config.json", "checkpoints", "tensorboard"]


@pytest.mark.parametrize("name", LINKED)
def test_nothing_is_written_through_links(name: str, dataset: Dataset, started: Path, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(started, run)
    target = outside / name
    if (run / name).is_dir():
        shutil.move(run / name, target)
    else:
        outside.mkdir()
        target.write_bytes((run / name).read_bytes() if (run / name).exists() else b'{"step": 99}')
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    before = contents(outside)
    with suppress(UserError, OSError):
        train(run, dataset, QNET, resume=True, track="tensorboard" if name == "tensorboard" else "none")
    assert contents(outside) == before


def test_a_folder_is_one_run_at_a_time(dataset: Dataset, tmp_path: Path) -> None:
    steps = train_run(tmp_path, make(dataset, QNET), dataset)
    next(steps)
    with pytest.raises(RunInUseError, match=rf"{tmp_path} is in use by process {os.getpid()} on .* since 2"):
        train_run(tmp_path, make(dataset, QNET), dataset, resume=True)
    steps.close()  # type: ignore[attr-defined]
    assert not (tmp_path / ".lock").exists()
    (tmp_path / ".lock").write_text('{"pid": 1}')  # of a process that was killed
    train(tmp_path, dataset, QNET, resume=True)
    assert not (tmp_path / ".lock").exists()


# --- validation --------------------------------------------------------------------------------------

SCORES = {3: 0.9, 6: 0.2, 8: 0.5}


def test_best_checkpoint_is_kept(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    config = replace(CONFIG, keep_checkpoints=1)
    trainer = make(dataset, config)
    steps = train_run(tmp_path, trainer, dataset, validate=lambda _: SCORES[trainer.step])
    shown = {row["step"]: row["validation"] for row in steps if "validation" in row}
    assert shown == SCORES
    folder = tmp_path / "checkpoints"
    assert [path.name for path in checkpoints(folder)] == ["step-3", "step-8"]
    assert best_checkpoint(folder) == folder / "step-3"
    for name in ("model.safetensors", "metrics.jsonl"):  # scoring changes nothing
        assert outcome(tmp_path)[name] == outcome(whole("dtsn"))[name]


def test_stopped_while_validating(dataset: Dataset, tmp_path: Path) -> None:
    """The step is saved without a score, and scored when the run goes on."""

    def interrupted(_: Solver) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(train_run(tmp_path, make(dataset, QNET), dataset, validate=interrupted))
    folder = tmp_path / "checkpoints"
    assert latest_checkpoint(folder) == folder / "step-3"
    assert best_checkpoint(folder) is None
    list(train_run(tmp_path, make(dataset, QNET), dataset, resume=True, validate=lambda _: 1.0))
    assert best_checkpoint(folder) == folder / "step-3"


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_score_that_is_no_number(score: float, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"step 3: the score of validate must be finite, got {score}"):
        list(train_run(tmp_path, make(dataset, QNET), dataset, validate=lambda _: score))


# --- what goes wrong ---------------------------------------------------------------------------------


def all_finite(folder: Path) -> bool:
    found = checkpoints(folder)
    states = [load_state(path) for path in found]
    return all(
        bool(tensor.isfinite().all())
        for path, state in zip(found, states, strict=True)
        for stem in ("model", "optimizer")
        for tensor in load_tensors_of(path, stem, state).values()
    )


def test_nan_loss(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = itertools.count(1), Solver.loss

    def loss(*arguments: Any, **options: Any) -> LossTerms:
        terms = real(*arguments, **options)
        return terms if next(calls) < 5 else replace(terms, total=terms.total * math.nan)

    monkeypatch.setattr(Solver, "loss", loss)
    with pytest.raises(DivergedError, match="step 5: loss nan"):
        train(tmp_path, dataset, QNET)
    assert latest_checkpoint(tmp_path / "checkpoints") == tmp_path / "checkpoints/step-3"
    assert all_finite(tmp_path / "checkpoints")
    assert all(
        math.isfinite(value) for row in read_metrics(tmp_path / "metrics.jsonl") for value in row.values()
    )


def test_nan_gradient_changes_no_weight(dataset: Dataset) -> None:
    trainer = make(dataset, QNET)
    before = [p.clone() for p in trainer.solver.parameters()]
    next(trainer.solver.world_model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(DivergedError, match="gradient norm nan"):
        next(trainer.run(dataset))
    assert trainer.step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.solver.parameters(), strict=True))


def test_skipped_steps_change_nothing_but_end(dataset: Dataset, tmp_path: Path) -> None:
    trainer = make(dataset, replace(QNET, on_nan="skip", steps=20))
    before = [p.clone() for p in trainer.solver.parameters()]
    next(trainer.solver.world_model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    rows = []
    with pytest.raises(DivergedError, match=r"step 11 after 10 skipped steps: .*diverged"):
        rows.extend(train_run(tmp_path, trainer, dataset))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.solver.parameters(), strict=True))
    assert len(os.listdir(tmp_path / "diverged")) == 10
    assert load_state(tmp_path / "checkpoints/step-9")["skips"] == 9


@pytest.mark.parametrize("rate", [1e20, 1e37])
def test_huge_learning_rate(rate: float, dataset: Dataset, tmp_path: Path) -> None:
    config = replace(QNET, learning_rate=rate, learning_rate_warmup=0, checkpoint_every=1)
    with pytest.raises(DivergedError):
        train(tmp_path, dataset, config)
    assert all_finite(tmp_path / "checkpoints")


def test_more_in_a_batch_than_there_is(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"batch_size must be 1 to {len(dataset)}, .*, got 9999"):
        train(tmp_path, dataset, replace(QNET, batch_size=9999))


def test_tensorboard(dataset: Dataset, tmp_path: Path) -> None:
    train(tmp_path, dataset, replace(QNET, steps=20, batch_size=1), track="tensorboard")
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()


def test_without_tensorboard(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train(tmp_path / "none", dataset, replace(QNET, steps=1))
    assert sorted(os.listdir(tmp_path / "none")) == ["checkpoints", "config.json", "metrics.jsonl"]
    with pytest.raises(
        ImportError, match=r"^TensorBoard is not installed: pip install 'dtsn\[tensorboard\]'$"
    ):
        train(tmp_path / "board", dataset, replace(QNET, steps=1), track="tensorboard")


# --- trained solvers ---------------------------------------------------------------------------------


def test_load_solver(dataset: Dataset, whole: Whole, tmp_path: Path) -> None:
    run = whole("dtsn")
    trainer = make(dataset)
    trainer.restore(run / "checkpoints/step-8")
    exported = export_solver(run, tmp_path / "dtsn")
    assert sorted(os.listdir(exported)) == ["model.safetensors", "state.json"]
    frames = dataset.episode(0).observations
    uniforms = torch.rand(len(frames), 3)
    expected = trainer.solver.plan(frames, uniforms=uniforms).q
    for folder in (run, str(run), run / "checkpoints/step-8", exported):
        solver = load_solver(folder)
        assert not solver.training
        assert solver.config == CONFIG.solver
        assert torch.equal(solver.plan(frames, uniforms=uniforms).q, expected)


def test_export_replaces_no_other_folder(whole: Whole, tmp_path: Path) -> None:
    """A folder of the user's own is not for us to delete, nor is the run that is exported."""
    (tmp_path / "thesis.txt").write_text("years of work")
    run = tmp_path / "run"
    shutil.copytree(whole("qnet"), run)
    before = contents(tmp_path)
    for out in (tmp_path, run, run / "checkpoints"):
        with pytest.raises((FileExistsError, ValueError), match=str(out)):
            export_solver(run, out)
        assert contents(tmp_path) == before


def test_load_solver_that_searches_otherwise(whole: Whole) -> None:
    solver = load_solver(whole("dtsn"), act_iterations=7, act_rule="greedy")
    assert solver.act_iterations == 7
    assert solver.config == replace(CONFIG.solver, act_iterations=7, act_rule="greedy")
    with pytest.raises(ValueError, match="act_iterations must be at least 1, got 0"):
        load_solver(whole("dtsn"), act_iterations=0)
    with pytest.raises((TypeError, ValueError), match="act_iteration") as error:
        load_solver(whole("dtsn"), act_iteration=7)
    assert "does not hold a solver" not in str(error.value)  # the checkpoint is not to blame


def test_load_solver_without_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=str(folder)):
            load_solver(folder)


OF_ANOTHER_VERSION: dict[str, dict[str, Any]] = {
    "unknown field": {"config": {**asdict(CONFIG), "dropout": 0.1}},
    "unknown solver": {"config": {**asdict(CONFIG), "solver": {"name": "muzero"}}},
    "other network": {"config": {**asdict(CONFIG), "network": {"encoder": "grid", "latent": 17}}},
    "config of no fields": {"config": [1]},
    "no config": {"config": None},
    "four actions": {"num_actions": "four"},
    "negative actions": {"num_actions": -1},
    "a scalar": {"observation_shape": 3},
    "no planes": {"observation_shape": [3, 20]},
}


@pytest.mark.parametrize("kind", OF_ANOTHER_VERSION)
def test_load_solver_of_another_version(kind: str, whole: Whole, tmp_path: Path) -> None:
    path = whole("dtsn") / "checkpoints/step-8"
    state = load_state(path)
    model = load_tensors_of(path, "model", state)
    del state["files"]
    save_checkpoint(tmp_path / "other", {"model": model}, {**state, **OF_ANOTHER_VERSION[kind]})
    with pytest.raises(CheckpointError, match=str(tmp_path / "other")):
        load_solver(tmp_path / "other")


# --- configurations ----------------------------------------------------------------------------------

CHANGED = [
    LossWeights(q=0.1, cql=0.2, transition=0.3, reward=0.4, expansion=0),
    SolverConfig("search", act_iterations=50, act_rule="greedy", weights=LossWeights(q=2), telescoping=False),
    NetworkConfig("impala", latent=7, hidden=9, spatial=True, precision="bfloat16", value_scale=10.0),
    replace(CONFIG, learning_rate=1e-5, seed=3),
    NAVIGATION,
    *(variant.config(2) for variant in VARIANTS.values()),
]


@pytest.mark.parametrize("config", CHANGED, ids=lambda config: type(config).__name__)
def test_config_round_trip(config: Any) -> None:
    assert config_from_dict(type(config), json.loads(json.dumps(asdict(config)))) == config
    for field in dataclasses.fields(config):
        unknown = {**asdict(config), field.name + "s": 1}
        with pytest.raises(TypeError, match=f"{type(config).__name__} has no field '{field.name}s'"):
            config_from_dict(type(config), unknown)


def test_unknown_field_of_a_nested_config() -> None:
    values = asdict(CONFIG)
    values["solver"]["weights"]["entropy"] = 1.0
    with pytest.raises(TypeError, match="LossWeights has no field 'entropy'"):
        config_from_dict(TrainConfig, values)
    assert config_from_dict(TrainConfig, {}) == TrainConfig()
