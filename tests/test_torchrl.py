"""TorchRL: roll-outs, learning, and the loss against the solver's own."""

from __future__ import annotations

import pytest
import torch

from dtsn.batch import Batch
from dtsn.config import LossWeights, NetworkConfig, SolverConfig

pytest.importorskip("torchrl")

import gymnasium
from tensordict import TensorDict
from torchrl.envs import GymEnv
from torchrl.envs.libs.gym import GymWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate

from dtsn.integrations.torchrl import DTSNLoss, make_actor

SMALL = NetworkConfig(latent=8, hidden=16)


def config(discount: float = 0.9, **options: object) -> SolverConfig:
    return SolverConfig(
        **({"iterations": 3, "discount": discount, "weights": LossWeights(cql=0.0)} | options)
    )


class Identity(gymnasium.Env):
    """Reward 1 for the action that the one-hot observation shows."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action):
        reward = float(action == self.right)
        return self._draw(), reward, False, False, {}

    def _draw(self):
        self.right = int(self.np_random.integers(3))
        return torch.eye(3)[self.right].numpy()


def identity(categorical: bool = False) -> GymWrapper:
    env = GymWrapper(Identity(), categorical_action_encoding=categorical)
    env.set_seed(0)
    return env


class Masked(Identity):
    """Shows which actions are allowed: the right one never is."""

    observation_space = gymnasium.spaces.Dict(
        observation=Identity.observation_space, action_mask=gymnasium.spaces.MultiBinary(3)
    )

    def _draw(self):
        seen = super()._draw()
        return {"observation": seen, "action_mask": (1 - seen).astype("int8")}


def test_masks_of_the_environment_are_kept_to() -> None:
    env = GymWrapper(Masked(), categorical_action_encoding=True)
    env.set_seed(0)
    solver, actor = make_actor(config(), env, discount=0.9, network=SMALL, seed=0)
    for mode in (ExplorationType.DETERMINISTIC, ExplorationType.RANDOM):
        with set_exploration_type(mode), torch.no_grad():
            steps = env.rollout(20, actor)
        assert bool(steps["action_mask"].bool().gather(1, steps["action"][:, None]).all())
    loss, asked = DTSNLoss(actor, discount=0.9), []
    solver.td_target = lambda *given, **masks: (asked.append(masks), given[0])[1]
    loss(steps)
    assert torch.equal(asked[0]["invalid_actions"], ~steps["next", "action_mask"].bool())


def transitions(shape: tuple[int, ...], categorical: bool) -> TensorDict:
    torch.manual_seed(0)
    td = identity(categorical).rollout(int(torch.Size(shape).numel()))
    td["next", "terminated"] = torch.rand(*td.shape, 1) < 0.3
    return td.reshape(shape)


@pytest.mark.parametrize("categorical", [False, True])
def test_rollout(categorical: bool) -> None:
    env = identity(categorical)
    _, actor = make_actor(config(), env, discount=0.9, network=SMALL, seed=0)
    for mode in (ExplorationType.DETERMINISTIC, ExplorationType.RANDOM):
        with set_exploration_type(mode), torch.no_grad():
            steps = env.rollout(7, actor)
        assert steps["action_value"].shape == (7, 3)
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        q = [actor(steps.clone())["action_value"] for _ in range(2)]
    assert torch.equal(*q)


def test_real_environment() -> None:
    env = GymEnv("CartPole-v1")
    _, actor = make_actor("dtsn", env, network=SMALL, seed=0)
    assert env.rollout(5, actor)["next", "observation"].shape == (5, 4)


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("shape", [(12,), (3, 4)])
def test_the_loss_is_the_solvers(categorical: bool, shape: tuple[int, ...]) -> None:
    solver, actor = make_actor(config(), identity(categorical), discount=0.9, network=SMALL, seed=0)
    module = DTSNLoss(actor, discount=0.9)
    SoftUpdate(module, eps=0.9)
    batch = transitions(shape, categorical)
    torch.manual_seed(3)
    out = module(batch)
    out["loss"].backward()
    flat = batch.reshape(-1)
    after, reward = flat["next", "observation"], flat["next", "reward"].flatten()
    ended = flat["next", "terminated"].flatten()
    target = solver.td_target(reward, after, ended, 0.9)
    action = flat["action"] if categorical else flat["action"].long().argmax(-1)
    torch.manual_seed(3)
    expected = solver.loss(Batch(flat["observation"], action, reward, target, after, ended))
    torch.testing.assert_close(out["loss"], expected.total)
    torch.testing.assert_close(batch["td_error"].flatten(), expected.terms["q"])
    gradients = [p.grad.clone() for p in solver.world_model.parameters()]
    solver.zero_grad()
    expected.total.backward()
    for ours, theirs in zip(gradients, solver.world_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)


def test_weights_of_prioritised_replay() -> None:
    _, actor = make_actor(config(), identity(), discount=0.9, network=SMALL, seed=0)
    module, batch = DTSNLoss(actor, discount=0.9), transitions((6,), False)
    SoftUpdate(module, eps=0.9)
    batch["priority_weight"] = torch.zeros(6)
    assert module(batch)["loss"] == 0


def test_learns_the_identity() -> None:
    env = identity()
    solver, actor = make_actor(config(0.0, iterations=2), env, discount=0.0, network=SMALL, seed=0)
    module = DTSNLoss(actor, discount=0.0)
    updater = HardUpdate(module, value_network_update_interval=10)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    data = env.rollout(200)  # by random actions
    before = [p.clone() for p in solver.target_encoder.parameters()]
    torch.manual_seed(0)
    for _ in range(120):
        loss = module(data[torch.randint(200, (32,))])
        optimizer.zero_grad()
        loss["loss"].backward()
        optimizer.step()
        updater.step()
    assert solver.act(torch.eye(3), deterministic=True).tolist() == [0, 1, 2]
    assert not any(torch.equal(a, b) for a, b in zip(before, solver.target_encoder.parameters(), strict=True))


def test_plain_dqn_loss_takes_the_actor() -> None:
    _, actor = make_actor(config(), identity(), discount=0.9, network=SMALL, seed=0)
    module = DQNLoss(actor, action_space="one-hot", delay_value=False)
    module(transitions((6,), False))["loss"].backward()


def test_what_is_refused() -> None:
    _, actor = make_actor(config(), identity(), discount=0.9, network=SMALL, seed=0)
    with pytest.raises(ValueError, match=r"discount is 0\.9, the targets' is 0\.99"):
        DTSNLoss(actor, discount=0.99)
    with pytest.raises(ValueError, match="observation_key must be one of observation, got 'pixels'"):
        make_actor("dtsn", identity(), observation_key="pixels")
    with pytest.raises(ValueError, match="actions must be discrete, got Bounded"):
        make_actor("dtsn", GymEnv("Pendulum-v1"))
    batch = transitions((6,), False)
    batch["steps_to_next_obs"] = torch.full((6, 1), 3)
    with pytest.raises(ValueError, match="returns of several steps"):
        DTSNLoss(actor, discount=0.9)(batch)
