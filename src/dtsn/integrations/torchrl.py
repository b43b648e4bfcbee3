"""TorchRL: a solver as a Q-value actor, and the whole loss of the paper as a loss module.

.. code-block:: python

    env = GymEnv("CartPole-v1")
    solver, actor = make_actor("dtsn", env)
    loss_module = DTSNLoss(actor, discount=0.99)
    updater = SoftUpdate(loss_module, eps=0.99)
"""

from __future__ import annotations

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
    from tensordict import TensorDict, TensorDictBase
    from tensordict.nn import TensorDictModule, TensorDictParams, dispatch
    from torchrl.envs import EnvBase
    from torchrl.envs.utils import ExplorationType, exploration_type
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss
except ImportError as error:
    raise ImportError("TorchRL is not installed: pip install 'dtsn[torchrl]'") from error

STEPS = "steps_to_next_obs"  # what TorchRL's multi-step transform leaves in a batch


class QValues(nn.Module):
    """A solver that draws its expansions where TorchRL explores at random, and is deterministic elsewhere."""

    def __init__(self, solver: Solver):
        super().__init__()
        self.solver = solver

    def forward(self, observation: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Map observations ``[..., *shape]`` to Q ``[..., A]``, −inf where not ``allowed [..., A]``."""
        drawn = exploration_type() == ExplorationType.RANDOM
        closed = None if allowed is None else ~allowed.bool()
        q_values: Tensor = self.solver(observation, invalid_actions=closed, deterministic=not drawn)
        return q_values


def make_actor(
    solver: str | SolverConfig | Solver,
    env: EnvBase,
    *,
    discount: float = 0.99,
    observation_key: str = "observation",
    action_mask_key: str = "action_mask",
    network: NetworkConfig | None = None,
    encoder: nn.Module | None = None,
    seed: int | None = None,
) -> tuple[Solver, QValueActor]:
    """Make a solver for an environment's specs, and the actor that reads its actions from the Q-values.

    ``solver`` may be one that you made; otherwise ``network``, ``encoder`` and ``seed`` are those of
    ``Solver.create``, and ``discount`` is that of the search. Where the environment shows ``action_mask_key``
    (true: allowed), actor and targets keep to it.
    """
    spec, seen = env.action_spec_unbatched, env.observation_spec_unbatched
    if not hasattr(spec.space, "n"):
        raise UserError(f"the environment's actions must be discrete, got {type(spec).__name__}")
    if observation_key not in seen.keys(True, True):
        known = ", ".join(map(str, seen.keys(True, True)))
        raise UserError(f"observation_key must be one of {known}, got {observation_key!r}")
    if not isinstance(solver, Solver):
        space = _space(seen[observation_key])
        actions = gymnasium.spaces.Discrete(int(spec.space.n))
        config = online_config(solver, discount)
        solver = Solver.create(config, space, actions, network=network, encoder=encoder, seed=seed)
    masks = [action_mask_key] if action_mask_key in seen.keys(True, True) else []
    return solver, QValueActor(QValues(solver), in_keys=[observation_key, *masks], spec=spec)


def _space(spec: Any) -> gymnasium.spaces.Box:
    """Return the Box of an observation's spec; unbounded where the spec does not say."""
    limits = getattr(spec, "space", None)
    low, high = (getattr(limits, name, None) for name in ("low", "high"))
    dtype = torch.zeros((), dtype=spec.dtype).numpy().dtype.type
    if low is None or high is None:
        bound = torch.inf if spec.dtype.is_floating_point else torch.iinfo(spec.dtype).max
        return gymnasium.spaces.Box(-bound, bound, tuple(spec.shape), dtype)
    return gymnasium.spaces.Box(low.cpu().numpy(), high.cpu().numpy(), tuple(spec.shape), dtype)


class DTSNLoss(DQNLoss):  # type: ignore[misc]
    """The paper's whole loss (REINFORCE and consistency, too) on TD targets.

    Target parameters are kept as for ``DQNLoss``, so ``SoftUpdate`` and ``HardUpdate`` move them; the
    averaged encoder behind the consistency loss moves by itself, before each loss with gradients. Priorities
    for prioritised replay are written, and its weights are used.
    """

    value_network: TensorDictModule
    value_network_params: TensorDictParams
    target_value_network_params: TensorDictParams

    def __init__(self, actor: QValueActor, *, discount: float = 0.99, delay_value: bool = True):
        """Make the loss of an actor by :func:`make_actor`; ``discount`` is that of its solver."""
        super().__init__(actor, delay_value=delay_value)
        online_config(self.solver.config, discount)
        self.discount = discount

    @property
    def solver(self) -> Solver:
        """The actor's solver."""
        return next(module for module in self.value_network.modules() if isinstance(module, Solver))

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Return the loss of transitions of any batch shape; terms of the loss beside it, for logs."""
        keys, rows = self.tensor_keys, tensordict.reshape(-1)
        if STEPS in tensordict:
            raise UserError(
                "DTSNLoss does not take returns of several steps: the reward and transition modules learn "
                "what *one* step brings; leave out the multi-step transform"
            )
        name, *masks = self.value_network.in_keys
        seen, after = rows.get(name), rows.get(("next", name))
        closed = ~rows.get(("next", masks[0])).bool() if masks else None
        reward = rows.get(("next", keys.reward)).flatten()
        ended = rows.get(("next", keys.terminated)).flatten()
        with self.target_value_network_params.to_module(self.value_network):
            target = self.solver.td_target(reward, after, ended, self.discount, invalid_actions=closed)
        action = rows.get(keys.action)
        action = action.flatten() if self.action_space == "categorical" else action.long().argmax(-1)
        weight = rows.get(keys.priority_weight, None)
        with self.value_network_params.to_module(self.value_network):
            if torch.is_grad_enabled():
                self.solver.update_target()
            batch = Batch(seen, action, reward, target, after, ended)
            loss = self.solver.loss(batch, weight=None if weight is None else weight.flatten())
        error = loss.terms["q"].reshape(*tensordict.shape, 1)
        tensordict.set(keys.priority, error, inplace=True)
        terms = {f"{term}_term": values.mean() for term, values in loss.terms.items()}
        return TensorDict({"loss": loss.total, **terms})
