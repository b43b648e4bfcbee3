"""``dtsn eval``, and what else plays a run: on the levels it was trained on, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from cli_calls import QNET
from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.data import DatasetWriter, Episode
from dtsn.solvers.solver import Solver


@pytest.mark.parametrize("command", ["eval", "plan", "play"])
def test_a_run_of_another_environment_is_refused_by_its_name(
    command: str, folder: Path, inside: Callable[..., str]
) -> None:
    observations = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    with DatasetWriter(
        folder / "taxi.h5",
        env_id="Taxi",
        env_options={},
        num_actions=4,
        observation_shape=(4,),
        observation_dtype=np.float32,
    ) as writer:
        writer.add_episode(Episode(observations, np.array([1, 2]), np.array([-1.0, -1.0]), True, 0))
    small = ("--steps", "1", "--batch-size", "1", "--network.encoder", "mlp")
    inside("train", "taxi.h5", "--run", "run", *small)
    said = inside(command, "run", code=2)
    assert "[B, 4]" in said
    assert "trained on Taxi" in said


@pytest.mark.parametrize("command", ["eval", "plan", "play"])
def test_a_saved_solver_with_other_actions_is_refused(
    command: str, folder: Path, inside: Callable[..., str]
) -> None:
    solver = Solver.create("qnet", Box(-1, 1, (4,)), Discrete(2))
    solver.environment = "CartPole-v1"
    solver.save(folder / f"cartpole-{command}")
    said = inside(command, f"cartpole-{command}", code=2)
    assert "trained on CartPole-v1" in said
    assert "4 actions, got [B, 4] and 2" in said


def test_eval_plays_the_layout_trained_on(folder: Path, inside: Callable[..., str]) -> None:
    inside("collect", "--episodes", "20", "--exit-layout", "independent", "--out", "other.h5")
    qnet = ("--data", "other.h5", *QNET[2:], "--steps", "1", "--run", "run")
    inside("train", *qnet)
    for trained in ("run", "run/checkpoints/step-1"):
        assert "exits independent" in inside("eval", trained, "--levels", "5")
        assert (folder / trained / "evaluation/exits-2-T10-independent.csv.gz").exists()
        inside("plan", trained, "--out", "tree.json")
        document = json.loads((folder / "tree.json").read_text())
        assert document["source"]["options"]["exit_layout"] == "independent"
    assert "exits opposite" in inside("eval", "run", "--levels", "5", "--exit-layout", "opposite")


def test_eval_of_what_cannot_be_played(inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    inside("train", *QNET, "--steps", "1", "--run", "run")
    for changes, explanation in (
        (("--levels", "0"), "levels must be from 1 to"),
        (("--iterations", "0"), "act_iterations must be at least 1"),
        (("--device", "cuda"), "device 'cuda' is not available"),
        (("--device", "cuda:x"), "device must be auto, cpu, cuda, cuda:N or mps, got 'cuda:x'"),
    ):
        assert explanation in inside("eval", "run", *changes, code=2)
