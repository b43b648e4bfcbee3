"""The steps of training: their numbers, learning rates and gradients, and settings that allow no step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dtsn.config import NetworkConfig, SolverConfig, TrainConfig
from dtsn.data.format import ObservationSpec
from dtsn.data.reader import Dataset
from dtsn.errors import UserError
from dtsn.models.encoders import GridEncoder, ImpalaEncoder
from dtsn.solvers import planning
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.loop import train_run
from dtsn.training.runs import read_metrics
from dtsn.training.trainer import Trainer
from short_runs import CONFIG, QNET, Whole, each_solver, make, of, outcome, train
from short_runs import dataset as dataset
from short_runs import whole as whole


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


def test_discounts_agree(dataset: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(SolverConfig(discount=0.9), NetworkConfig(encoder="grid"))
    trainer = Trainer(config, dataset.observation, dataset.num_actions)
    with pytest.raises(ValueError, match=r"solver\.discount must be 1, .*, got 0\.9"):
        train_run(tmp_path / "run", trainer, dataset)


def test_more_in_a_batch_than_there_is(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"batch_size must be 1 to {len(dataset)}, .*, got 9999"):
        train(tmp_path, dataset, replace(QNET, batch_size=9999))
