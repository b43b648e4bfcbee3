"""The paper's four solvers: four rows of data over one world model.

============  ==========================  ====================  ==============================================
solver        planner in training         planner when acting   losses
============  ==========================  ====================  ==============================================
``qnet``      one step                    one step              Q, CQL
``search``    one step                    best-first            Q, CQL, transition, reward
``treeqn``    full tree                   full tree             Q, CQL, reward
``dtsn``      best-first, sampled         best-first            Q, CQL, transition, reward, expansion
============  ==========================  ====================  ==============================================
"""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.models.networks import make_world_model
from dtsn.models.world_model import WorldModel, update_average
from dtsn.search import SearchTree, best_first_search, full_expansion
from dtsn.solvers import losses
from dtsn.solvers.losses import LossTerms


class Solver(nn.Module):
    """A Q-network that plans: ``solver(observations [B, ...]) -> Q [B, A]``, trainable end to end."""

    def __init__(
        self,
        world_model: WorldModel,
        config: SolverConfig | None = None,
        observation_shape: tuple[int, ...] | None = None,
    ):
        super().__init__()
        self.config = config or SolverConfig()
        self.kind = SOLVERS[self.config.name]
        self.world_model = world_model
        self.observation_shape = observation_shape
        self.target_encoder: nn.Module | None = None
        if "transition" in self.kind.losses:
            self.target_encoder = copy.deepcopy(world_model.encoder).requires_grad_(False)

    @classmethod
    def create(
        cls,
        solver: str | SolverConfig,
        observation_space: gymnasium.Space[np.ndarray],
        action_space: gymnasium.Space[np.int64],
        *,
        network: NetworkConfig | None = None,
        seed: int | None = None,
    ) -> Solver:
        """Make a solver with fresh modules that fit the spaces.

        Args:
            solver: a name (``"dtsn"``, ``"search"``, ``"treeqn"``, ``"qnet"``), or a whole configuration.
            observation_space: of observations ``[...]``; the encoder is chosen to fit it.
            action_space: ``Discrete(A)``, starting at 0.
            network: sizes and encoder of the world model; sane defaults if not given.
            seed: of the weights; the same seed gives the same weights.

        Returns:
            A module from observations ``[B, ...]`` to Q-values ``[B, A]``.
        """
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise ValueError(
                f"action_space must be Discrete, got {action_space}: D-TSN plans over discrete actions"
            )
        if action_space.start != 0:
            raise ValueError(f"action_space must start at 0, got {action_space}: shift the actions first")
        config = solver if isinstance(solver, SolverConfig) else SolverConfig(solver)
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            model = make_world_model(observation_space, int(action_space.n), network or NetworkConfig())
        return cls(model, config, observation_space.shape)

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self._any_tensor().device

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self._any_tensor().dtype

    def _any_tensor(self) -> Tensor:
        """Some parameter; a world model written by hand may have none."""
        return next(self.parameters(), torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        """Q-values ``[B, A]`` by the training planner in ``train()`` mode, the acting one in ``eval()``."""
        latent = self.world_model.encode(self._checked(observation))
        if self.training:
            return self._train_tree(latent).q
        return self._act_tree(latent).q

    def plan(
        self,
        observation: Tensor | np.ndarray,
        *,
        invalid_actions: Tensor | None = None,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> SearchTree:
        """The acting planner's search trees for ``observation [B, ...]``, without gradients."""
        with torch.no_grad():
            latent = self.world_model.encode(self._checked(observation))
            return self._act_tree(latent, invalid_actions, uniforms, generator)

    def act(
        self,
        observation: Tensor | np.ndarray,
        *,
        invalid_actions: Tensor | None = None,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The best actions ``[B]`` by the acting planner; ``uniforms [B, T]`` fix what its search draws."""
        with torch.inference_mode():  # nothing of the tree is kept, so the fastest mode will do
            latent = self.world_model.encode(self._checked(observation))
            best = self._best_action(latent, invalid_actions, uniforms, generator)
        return best.clone()  # an ordinary tensor again

    def compile_acting(self) -> None:
        """Let ``act`` run through ``torch.compile``: a minute at first, then much faster for few rows.

        Worth it for long episodes played one at a time. Each batch size is compiled by itself.
        """
        self._best_action = torch.compile(self._best_action, dynamic=False)  # type: ignore[method-assign]

    def _best_action(
        self,
        latent: Tensor,
        invalid_actions: Tensor | None,
        uniforms: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        return self._act_tree(latent, invalid_actions, uniforms, generator).q.argmax(1)

    def loss(
        self, batch: Batch, *, iterations: int | None = None, generator: torch.Generator | None = None
    ) -> LossTerms:
        """The solver's loss; ``iterations`` overrides T (a warm-up trains with T = 1)."""
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        batch = batch.to(self.device)
        observation = self._checked(batch.observation)
        self._check_batch(batch)
        config = self.config
        latent = self.world_model.encode(observation)
        tree = self._train_tree(latent, iterations, generator)
        terms = {
            "q": losses.q_loss(tree.q_values, batch.action, batch.q_target),  # [B, T]
            "cql": losses.cql_loss(tree.q_values, batch.action),  # [B, T]
        }
        weights = config.weights
        after_each = weights.q * terms["q"] + weights.cql * terms["cql"]  # L_t
        terms = {name: term[:, -1] for name, term in terms.items()}
        if "transition" in self.kind.losses:
            predicted = _of_action(tree.root_children, batch.action).tanh()
            terms["transition"] = losses.transition_loss(predicted, self._target(batch.next_observation))
            if batch.next_valid is not None:  # what no environment showed is nothing to learn
                terms["transition"] = terms["transition"].where(batch.next_valid, 0.0)
        if "reward" in self.kind.losses:
            terms["reward"] = losses.reward_loss(tree.root_rewards, batch.action, batch.reward)
        if "expansion" in self.kind.losses and weights.expansion:
            terms["expansion"] = losses.expansion_loss(tree.log_probs, after_each, config.telescoping)
        return losses.combine(terms, weights)

    def update_target(self) -> None:
        """Move the target encoder towards the encoder; call after each optimiser step."""
        if self.target_encoder is not None:
            update_average(self.target_encoder, self.world_model.encoder, self.config.target_decay)

    def _train_tree(
        self, latent: Tensor, iterations: int | None = None, generator: torch.Generator | None = None
    ) -> SearchTree:
        config = self.config
        if self.kind.training_planner == "best_first":
            return best_first_search(
                self.world_model,
                latent,
                iterations=iterations or config.iterations,
                temperature=config.temperature,
                discount=config.discount,
                generator=generator,
            )
        depth = config.depth if self.kind.training_planner == "full" else 1
        return full_expansion(self.world_model, latent, depth=depth, discount=config.discount)

    def _act_tree(
        self,
        latent: Tensor,
        invalid_actions: Tensor | None = None,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> SearchTree:
        config = self.config
        if self.kind.acting_planner == "best_first":
            return best_first_search(
                self.world_model,
                latent,
                iterations=self.act_iterations,
                rule=config.act_rule,
                temperature=config.temperature,
                epsilon=config.epsilon,
                discount=config.discount,
                invalid_actions=invalid_actions,
                uniforms=uniforms,
                generator=generator,
            )
        depth = config.depth if self.kind.acting_planner == "full" else 1
        return full_expansion(
            self.world_model, latent, depth=depth, discount=config.discount, invalid_actions=invalid_actions
        )

    @property
    def act_iterations(self) -> int:
        """T when acting."""
        return self.config.act_iterations or self.config.iterations

    def _target(self, next_observation: Tensor) -> Tensor:
        assert self.target_encoder is not None
        with torch.no_grad():
            target: Tensor = self.target_encoder(self._checked(next_observation, "next_observation"))
            return target.tanh()

    def _checked(self, observation: Tensor | np.ndarray, name: str = "observation") -> Tensor:
        """Observations as a tensor on the solver's device, refused if they do not fit or are not finite."""
        try:
            tensor = torch.as_tensor(observation, device=self.device)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"{name} must be a batch of arrays, got {type(observation).__name__}") from error
        shape = self.observation_shape
        fits = tensor.dim() >= 2 and len(tensor) > 0 and (shape is None or tensor.shape[1:] == shape)
        if not fits:
            expected = "[B, ...]" if shape is None else f"[B, {', '.join(map(str, shape))}]"
            raise ValueError(f"{name} must have shape {expected} with B > 0, got {list(tensor.shape)}")
        if tensor.is_complex():
            raise ValueError(f"{name} must be real numbers, got {tensor.dtype}")
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)  # a finite float64 can be infinite in float32
            if not bool(tensor.isfinite().all()):
                row = int((~tensor.isfinite()).flatten(1).any(1).nonzero()[0])
                raise ValueError(f"{name} {row} of the batch has NaN or infinite entries")
        return tensor

    def _check_batch(self, batch: Batch) -> None:
        size, actions = len(batch.observation), self.world_model.num_actions
        if batch.next_observation.shape != batch.observation.shape:
            got = list(batch.next_observation.shape)
            raise ValueError(
                f"batch.next_observation must have shape {list(batch.observation.shape)}, got {got}"
            )
        for name in ("action", "reward", "q_target"):
            tensor = getattr(batch, name)
            if tensor.shape != (size,):
                raise ValueError(f"batch.{name} must have shape [{size}], got {list(tensor.shape)}")
        valid = batch.next_valid
        if valid is not None and (valid.shape != (size,) or valid.dtype != torch.bool):
            raise ValueError(f"batch.next_valid must be bool [{size}], got {valid.dtype} {list(valid.shape)}")
        if batch.action.dtype != torch.int64:
            raise ValueError(f"batch.action must be int64, got {batch.action.dtype}")
        low, high = (int(x) for x in batch.action.aminmax())
        if low < 0 or high >= actions:
            raise ValueError(f"batch.action must lie in 0..{actions - 1}, got {low if low < 0 else high}")
        for name in ("reward", "q_target"):
            tensor = getattr(batch, name)
            if tensor.is_complex() or not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"batch.{name} must be real and finite, got {tensor.dtype} with other entries"
                )


def _of_action(children: Tensor, action: Tensor) -> Tensor:
    """Children ``[B, A, ...]`` -> the one by each sample's action ``[B, ...]``."""
    return children[torch.arange(len(action), device=action.device), action]
