"""Stable-Baselines3: a DQN with the whole loss of the paper, and a policy for SB3's own DQN.

.. code-block:: python

    from dtsn.integrations.sb3 import DTSN

    model = DTSN("CartPole-v1", seed=0)
    model.learn(50_000)
    model.save("cartpole")
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import NetworkConfig, SolverConfig
from dtsn.errors import UserError
from dtsn.integrations.online import online_config
from dtsn.solvers.solver import Solver

try:
    from stable_baselines3 import DQN
    from stable_baselines3.common.policies import BasePolicy
    from stable_baselines3.dqn.policies import DQNPolicy
except ImportError as error:
    raise ImportError("Stable-Baselines3 is not installed: pip install 'dtsn[sb3]'") from error


class SolverQNetwork(BasePolicy):  # type: ignore[misc]
    """SB3's Q-network, with a solver inside."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        solver: SolverConfig,
        network: NetworkConfig | None,
        encoder: nn.Module | None,
    ):
        super().__init__(observation_space, action_space, normalize_images=False)
        self.solver = Solver.create(
            solver, observation_space, action_space, network=network, encoder=copy.deepcopy(encoder)
        )

    def forward(self, obs: Any) -> Tensor:
        """Return Q-values ``[B, A]``: by a sampled search in training, as targets by a deterministic one."""
        return self.solver(self.read(obs), deterministic=not self.training)  # type: ignore[no-any-return]

    def read(self, obs: Any) -> Any:
        """Return observations in the form of their space: SB3 keeps single choices as columns ``[B, 1]``."""
        return _read(obs, self.observation_space)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        return self.solver.act(self.read(observation), deterministic=deterministic)


class SolverPolicy(DQNPolicy):  # type: ignore[misc]
    """A policy for SB3's plain ``DQN``: ``DQN(SolverPolicy, env, policy_kwargs={"solver": "dtsn"})``.

    DQN's own loss lacks the REINFORCE term and the consistency losses; :class:`DTSN` has them.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        lr_schedule: Any,
        solver: str | SolverConfig = "dtsn",
        network: NetworkConfig | None = None,
        encoder: nn.Module | None = None,
        discount: float = 0.99,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ):
        """Take ``solver``, ``network`` and ``encoder`` as ``Solver.create``; ``discount`` is DQN's gamma."""
        unused = set(others) - {"normalize_images"}  # which SB3 passes to every policy
        if unused:
            raise UserError(f"policy_kwargs has no {sorted(unused)[0]!r}: use solver, network and encoder")
        self.solver_config = solver if isinstance(solver, SolverConfig) else online_config(solver, discount)
        self.network, self.encoder_of_ones_own = network, [encoder]  # in a list: not a submodule
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            normalize_images=False,  # the solver scales by the space
        )

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.optimizer = self.optimizer_class(  # the averaged encoder is not for the optimiser
            self.q_net.solver.world_model.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    def make_q_net(self) -> SolverQNetwork:
        """Make a Q-network with fresh weights."""
        network = SolverQNetwork(
            self.observation_space,
            self.action_space,
            self.solver_config,
            self.network,
            self.encoder_of_ones_own[0],
        )
        return network.to(self.device)  # type: ignore[no-any-return]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "lr_schedule": self._dummy_schedule,
            "solver": self.solver_config,
            "network": self.network,
            "encoder": self.encoder_of_ones_own[0],
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
        }


class DTSN(DQN):  # type: ignore[misc]
    """DQN that trains a solver by the paper's whole loss on TD targets.

    All that SB3's users know of ``DQN`` holds: ``learn``, ``predict``, ``save``, ``load``, replay buffers,
    callbacks and vectorised environments.
    """

    def __init__(
        self,
        env: Any,
        solver: str | SolverConfig = "dtsn",
        *,
        network: NetworkConfig | None = None,
        encoder: nn.Module | None = None,
        gamma: float = 0.99,
        policy: type[SolverPolicy] = SolverPolicy,
        policy_kwargs: dict[str, Any] | None = None,
        n_steps: int = 1,
        **options: Any,
    ):
        """Make an agent; ``options`` are those of SB3's ``DQN``.

        Args:
            env: an environment, its id, or a VecEnv.
            solver: ``"dtsn"``, ``"search"``, ``"treeqn"`` or ``"qnet"``, or a configuration.
            network: sizes and encoder of the world model.
            encoder: your own, as in ``Solver.create``.
            gamma: the discount of targets and searches.
            policy: ``SolverPolicy`` or a subclass.
            policy_kwargs: more arguments of the policy, such as ``optimizer_class``.
            n_steps: 1; see the error.
            options: ``learning_rate``, ``buffer_size``, ``exploration_fraction``, ``seed``, …
        """
        if not (isinstance(policy, type) and issubclass(policy, SolverPolicy)):
            raise UserError(f"policy must be SolverPolicy or a subclass, got {policy!r}")
        if isinstance(env, str) and env.endswith("Policy"):
            raise UserError(f"env must be an environment, got {env!r}: DTSN brings its own policy")
        if n_steps != 1:
            raise UserError(
                f"n_steps must be 1, got {n_steps}: the reward and transition modules learn what *one* step "
                "brings, which the sum of several rewards and a state several steps on do not say"
            )
        config = online_config(solver, gamma)
        own = {"solver": config, "network": network, "encoder": encoder}
        twice = sorted(own.keys() & (policy_kwargs or {}).keys())
        if twice:
            raise UserError(f"policy_kwargs must not have {twice[0]!r}: pass it to DTSN itself")
        super().__init__(policy, env, gamma=gamma, policy_kwargs=own | (policy_kwargs or {}), **options)

    @property
    def solver(self) -> Solver:
        """The solver that is trained; ``model.solver.save(folder)`` keeps it without SB3."""
        return self.q_net.solver  # type: ignore[no-any-return]

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make optimiser steps on batches of the replay buffer."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        totals: dict[str, list[float]] = {}
        for _ in range(gradient_steps):
            for name, value in self._step(batch_size).items():
                totals.setdefault(name, []).append(value)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in totals.items():
            self.logger.record(f"train/{name}", sum(values) / len(values))

    def _step(self, batch_size: int) -> dict[str, float]:
        data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        seen, after = self.q_net.read(data.observations), self.q_net.read(data.next_observations)
        reward, ended = data.rewards.squeeze(1), data.dones.squeeze(1).bool()
        target = self.q_net_target.solver.td_target(reward, after, ended, self.gamma)
        loss = self.solver.loss(Batch(seen, data.actions.squeeze(1).long(), reward, target, after, ended))
        self.policy.optimizer.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.solver.world_model.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self.solver.update_target()
        return loss.means()


def _read(obs: Any, space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _read(obs[key], part) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Discrete):
        return obs.long().reshape(-1)
    return obs.long() if isinstance(space, gymnasium.spaces.MultiDiscrete) else obs
