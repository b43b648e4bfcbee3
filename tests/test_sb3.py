"""Stable-Baselines3: learning, and what its users expect of an algorithm and of a policy."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from dtsn.config import LossWeights, NetworkConfig, SolverConfig

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from dtsn.integrations.sb3 import DTSN, SolverPolicy

SMALL = NetworkConfig(latent=8, hidden=16)
SHORT = SolverConfig("dtsn", iterations=2, discount=0.0, weights=LossWeights(cql=0.0))
FAST = {
    "learning_starts": 20,
    "exploration_fraction": 0.5,
    "target_update_interval": 50,
    "learning_rate": 1e-2,
    "train_freq": 1,
    "buffer_size": 500,
    "seed": 0,
    "device": "cpu",
}


def agent(env: object = None, **options: object) -> DTSN:
    return DTSN(env or IdentityEnv(3), SHORT, network=SMALL, gamma=0.0, **(FAST | options))


class Two(gymnasium.Env):
    """Observations are dicts; the right action is the one that the parts agree on."""

    observation_space = Dict(
        choice=Discrete(2), place=Box(-1, 1, (2,)), frame=Box(0, 255, (2, 2, 3), np.uint8)
    )
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


@pytest.fixture(scope="module")
def trained() -> DTSN:
    return agent().learn(200)


def test_learns_the_identity(trained: DTSN) -> None:
    actions, _ = trained.predict(np.arange(3), deterministic=True)
    assert actions.tolist() == [0, 1, 2]


def test_every_term_of_the_loss_trains_and_the_average_moves(trained: DTSN) -> None:
    names = trained.logger.name_to_value
    assert {"train/loss", "train/q", "train/transition", "train/reward", "train/expansion"} <= set(names)
    fresh = agent().solver
    now = trained.solver
    for module in ("encoder", "transition", "reward_head"):  # the value does not count at discount 0
        old, new = (list(getattr(s.world_model, module).parameters()) for s in (fresh, now))
        assert not any(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    average = zip(now.target_encoder.parameters(), fresh.target_encoder.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in average)


def test_saved_and_loaded(trained: DTSN, tmp_path: Path) -> None:
    trained.save(tmp_path / "agent")
    trained.save_replay_buffer(tmp_path / "replay")
    loaded = DTSN.load(tmp_path / "agent", env=IdentityEnv(3))
    for key, value in trained.policy.state_dict().items():
        assert torch.equal(value, loaded.policy.state_dict()[key])
    assert loaded.predict(2, deterministic=True)[0] == 2
    loaded.load_replay_buffer(tmp_path / "replay")
    loaded.learn(5, reset_num_timesteps=False)
    assert loaded.num_timesteps == 205
    trained.policy.save(tmp_path / "policy")
    assert SolverPolicy.load(tmp_path / "policy").predict(1, deterministic=True)[0] == 1


def test_the_same_seed_learns_the_same() -> None:
    weights = [agent().learn(40).solver.state_dict() for _ in range(2)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_deterministic_predictions_are() -> None:
    config = SolverConfig("dtsn", iterations=20, temperature=10.0, discount=0.99)
    model = DTSN(gymnasium.make("CartPole-v1"), config, network=SMALL, device="cpu")
    obs = np.random.default_rng(0).uniform(-1, 1, (40, 4)).astype(np.float32)
    actions = [model.predict(obs, deterministic=True)[0].tolist() for _ in range(3)]
    assert actions[0] == actions[1] == actions[2]
    assert model.predict(obs[0], deterministic=True)[0].shape == ()
    with torch.no_grad():
        model.q_net.set_training_mode(False)
        q = [model.q_net(torch.as_tensor(obs)) for _ in range(2)]
    assert torch.equal(*q)  # targets, too


def test_vectorised_environments_and_callbacks() -> None:
    class Count(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 12

    model = agent(DummyVecEnv([lambda: IdentityEnv(3)] * 3), learning_starts=3)
    callback = Count()
    model.learn(100, callback=callback)
    assert callback.n_calls == 12
    assert model.num_timesteps == 36


def test_dict_observations() -> None:
    model = DTSN(Two(), SHORT, network=SMALL, gamma=0.0, **FAST)
    model.learn(24)
    assert model.predict(Two.observation_space.sample(), deterministic=True)[0] in (0, 1)


def test_own_encoder() -> None:
    encoder = torch.nn.Linear(4, 5)
    model = DTSN(gymnasium.make("CartPole-v1"), encoder=encoder, device="cpu")
    assert model.solver.world_model.latent_shape == (5,)
    nets = [model.q_net.solver, model.q_net_target.solver]
    assert nets[0].world_model.encoder is not nets[1].world_model.encoder


def test_policy_for_plain_dqn() -> None:
    kwargs = {"solver": SHORT, "network": SMALL}
    model = DQN(SolverPolicy, IdentityEnv(3), gamma=0.0, policy_kwargs=kwargs, **FAST).learn(200)
    assert model.predict(np.arange(3), deterministic=True)[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_steps": 3}, r"n_steps must be 1, got 3: .*one"),
        ({"gamma": 0.9}, r"discount is 0, the targets' is 0\.9"),
        ({"policy_kwargs": {"net_arch": [3]}}, "no 'net_arch': use solver, network and encoder"),
        (
            {"policy_kwargs": {"solver": "dtsn"}},
            "policy_kwargs must not have 'solver': pass it to DTSN itself",
        ),
        ({"policy": "MlpPolicy"}, "policy must be SolverPolicy or a subclass, got 'MlpPolicy'"),
    ],
)
def test_what_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DTSN(IdentityEnv(3), SHORT, network=SMALL, **({"gamma": 0.0} | options))


def test_a_policy_in_the_place_of_the_environment() -> None:
    with pytest.raises(ValueError, match="env must be an environment, got 'MlpPolicy'"):
        DTSN("MlpPolicy", "CartPole-v1")


def test_without_the_extra_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "dtsn.integrations.sb3")
    with pytest.raises(ImportError, match=r"^Stable-Baselines3 is not installed: pip install 'dtsn\[sb3\]'$"):
        importlib.import_module("dtsn.integrations.sb3")
