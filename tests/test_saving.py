"""Solvers as folders: what is written is read back, and what does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn

from dtsn.checkpoint import CheckpointError
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.errors import UserError
from dtsn.solvers.saving import space_from_json, space_to_json
from dtsn.solvers.solver import Solver

SMALL = NetworkConfig(latent=6, hidden=16)
SPACES = [
    Box(-np.inf, np.inf, (4,)),
    Box(np.array([-1.5, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)),
    Box(0, 255, (12, 16, 3), np.uint8),
    Box(0, 1, (3, 5, 6), np.uint8),
    *(Box(np.iinfo(k).min, np.iinfo(k).max, (2,), k) for k in (np.int8, np.int32, np.int64, np.uint64)),
    Discrete(5, start=-1),
    MultiBinary(3),
    MultiBinary([2, 2]),
    MultiDiscrete([3, 2], start=[1, 0]),
    Dict(b=Discrete(3), a=Tuple([Box(-1, 1, (2,)), MultiBinary(2)])),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_through_json(space: gymnasium.Space) -> None:
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("space", [SPACES[1], SPACES[2], SPACES[-1]], ids=str)
def test_a_loaded_solver_is_the_saved_one(name: str, space: gymnasium.Space, tmp_path: Path) -> None:
    config = SolverConfig(name, iterations=3, temperature=0.5)
    solver = Solver.create(config, space, Discrete(3), network=SMALL, seed=0)
    folder = solver.save(tmp_path / "mine")
    loaded = Solver.load(folder)
    assert (loaded.config, loaded.network, loaded.observation_space) == (config, SMALL, space)
    assert not loaded.training
    for key, tensor in solver.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[key])
    observation = space.sample()
    q = [s.eval()(observation, deterministic=True) for s in (solver, loaded)]
    assert torch.equal(*q)
    assert Solver.load(folder, act_iterations=7).act_iterations == 7
    with pytest.raises(UserError, match="fields of SolverConfig, got 'act_iteration'"):
        Solver.load(folder, act_iteration=7)
    card = (folder / "README.md").read_text()
    assert SOLVERS[name].title in card
    assert "Solver.load" in card


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_precision_survives(dtype: torch.dtype, tmp_path: Path) -> None:
    solver = Solver.create("dtsn", SPACES[0], Discrete(3), network=SMALL, seed=0).to(dtype).eval()
    loaded = Solver.load(solver.save(tmp_path / "mine"))
    assert loaded.dtype == dtype
    observation = torch.randn(4, 4)
    assert torch.equal(
        loaded.act(observation, deterministic=True), solver.act(observation, deterministic=True)
    )


def test_weights_of_one_solver_act_as_another(tmp_path: Path) -> None:
    made = {
        name: Solver.create(name, SPACES[0], Discrete(3), network=SMALL, seed=0) for name in ("qnet", "dtsn")
    }
    folders = {name: solver.save(tmp_path / name) for name, solver in made.items()}
    assert Solver.load(folders["dtsn"], name="qnet").target_encoder is None
    learner = Solver.load(folders["qnet"], name="dtsn")
    assert learner.target_encoder is not None  # as at the start of training: a copy, not other fresh weights
    for key, tensor in learner.world_model.encoder.state_dict().items():
        assert torch.equal(learner.target_encoder.state_dict()[key], tensor)


def test_saving_again_replaces(tmp_path: Path) -> None:
    for seed in (0, 1):
        solver = Solver.create("qnet", SPACES[0], Discrete(2), network=SMALL, seed=seed)
        solver.save(tmp_path / "mine")
        weight = Solver.load(tmp_path / "mine").world_model.value_head.first.weight
        assert torch.equal(weight, solver.world_model.value_head.first.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match="not a saved solver"):
        Solver.create("qnet", SPACES[0], Discrete(2), network=SMALL).save(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_own_encoder_is_asked_for(tmp_path: Path) -> None:
    def encoder() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))

    solver = Solver.create("dtsn", SPACES[0], Discrete(2), encoder=encoder(), seed=0)
    solver.save(tmp_path / "mine")
    with pytest.raises(ValueError, match="pass a module of that class as encoder="):
        Solver.load(tmp_path / "mine")
    loaded = Solver.load(tmp_path / "mine", encoder=encoder())
    observation = torch.randn(3, 4)
    q = [s.eval()(observation, deterministic=True) for s in (solver, loaded)]
    assert torch.equal(*q)
    with pytest.raises(CheckpointError, match=r"not hold a solver with this encoder: .* must be"):
        Solver.load(tmp_path / "mine", encoder=nn.Linear(4, 6))
    Solver.create("dtsn", SPACES[0], Discrete(2), seed=0).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="leave out encoder="):
        Solver.load(tmp_path / "plain", encoder=encoder())


def test_own_world_models_cannot_be_described(tmp_path: Path) -> None:
    model = Solver.create("dtsn", SPACES[0], Discrete(2)).world_model
    with pytest.raises(ValueError, match="state_dict"):
        Solver(model, SolverConfig(), observation_shape=(4,)).save(tmp_path / "mine")


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    folder = Solver.create("qnet", SPACES[0], Discrete(2), network=SMALL).save(tmp_path / "mine")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="damaged"):
        Solver.load(folder)
    with pytest.raises(CheckpointError):
        Solver.load(tmp_path / "nothing")


def test_messages_name_the_environment_it_was_trained_on(tmp_path: Path) -> None:
    solver = Solver.create("qnet", SPACES[0], Discrete(2), network=SMALL)
    solver.environment = "CartPole-v1"
    loaded = Solver.load(solver.save(tmp_path / "mine"))
    assert "CartPole-v1" in (tmp_path / "mine" / "README.md").read_text()
    with pytest.raises(ValueError, match=r"shape \[B, 4\].*got \[1, 3\]; .*trained on CartPole-v1"):
        loaded.act(np.zeros((1, 3), np.float32))


def test_unusual_settings_survive(tmp_path: Path) -> None:
    network = dataclasses.replace(SMALL, channels="last", encoder="nature")
    space = Box(-np.inf, np.inf, (40, 36, 3))
    solver = Solver.create("qnet", space, Discrete(2), network=network, seed=0)
    assert Solver.load(solver.save(tmp_path / "mine")).network == network
