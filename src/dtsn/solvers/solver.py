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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gymnasium
import torch
from torch import Tensor, nn

from dtsn.batch import Batch, Observation, Part
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig
from dtsn.errors import UserError
from dtsn.models.build import make_world_model
from dtsn.models.known import KnownModel
from dtsn.models.world_model import WorldModel, update_average
from dtsn.search import SearchTree
from dtsn.solvers import losses, saving
from dtsn.solvers.acting_kernel import compiled_actions, on_numbers
from dtsn.solvers.checks import (
    check_batch,
    check_kinds,
    check_own_model,
    check_support,
    check_valid,
    checked_actions,
    checked_column,
    checked_discount_of,
    checked_weight,
    overridden,
    without_given,
)
from dtsn.solvers.export import Export, export_solver_graph
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.objective import conservative_value, loss_terms
from dtsn.solvers.observations import read_batch, read_mask, read_rows, read_uniforms
from dtsn.solvers.planning import act_iterations, best_values, grow_trees


class Solver(nn.Module):
    """A Q-network that plans: ``solver(observations [B, ...]) -> Q [B, A]``, trainable end to end.

    Observations may be tensors or NumPy arrays with any leading dimensions, or none. Searches of D-TSN and
    Model-based Search *draw* the nodes to expand, also when acting: pass ``deterministic=True`` to expand the
    most promising node instead, or ``uniforms`` or a ``generator`` to fix what is drawn.
    """

    def __init__(
        self,
        world_model: WorldModel | KnownModel,
        config: SolverConfig | None = None,
        observation_shape: tuple[int, ...] | None = None,
        *,
        observation_space: gymnasium.Space[Any] | None = None,
        network: NetworkConfig | None = None,
    ):
        super().__init__()
        check_kinds(world_model, config)
        self.config = without_given(config or SolverConfig(), world_model)
        self.kind = SOLVERS[self.config.name]
        self.losses = tuple(name for name in self.kind.losses if name not in world_model.given)
        self.world_model = world_model
        check_support(self.config, world_model)
        self.observation_space = observation_space
        shape = observation_shape if observation_space is None else observation_space.shape
        self.observation_shape = None if shape is None else tuple(shape)
        self.network = network  # what the modules were made by; None if they are the caller's
        self.own: Literal["encoder", "world_model"] | None = None  # what the caller brought
        self.environment: str | None = None  # the id of what it was trained on, for messages
        self.target_encoder: nn.Module | None = None
        if "transition" in self.losses:
            assert isinstance(world_model, WorldModel)
            self.target_encoder = copy.deepcopy(world_model.encoder).requires_grad_(False)
        self._compiles = False
        self._compiled: Callable[..., Tensor] | None = None

    @classmethod
    def create(
        cls,
        solver: str | SolverConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        network: NetworkConfig | None = None,
        encoder: nn.Module | None = None,
        world_model: WorldModel | KnownModel | None = None,
        seed: int | None = None,
    ) -> Solver:
        """Make a solver with fresh modules that fit the spaces, or with a world model of yours.

        Args:
            solver: a name (``"dtsn"``, ``"search"``, ``"treeqn"``, ``"qnet"``), or a whole configuration.
            observation_space: Box, or Discrete, MultiBinary, MultiDiscrete, Dict, Tuple, which are flattened.
            action_space: ``Discrete(A)``, starting at 0.
            network: sizes and encoder of the world model; sane defaults if not given.
            encoder: your own, from observations ``[B, ...]`` (of a Dict space: a dict of them) to latents
                ``[B, D]`` or ``[B, C, H, W]`` without a last activation; the other modules are made to fit.
            world_model: your own, instead of ``network`` and ``encoder``: one whose rules are known
                (:class:`~dtsn.models.known.KnownModel`), or a :class:`WorldModel` of your modules.
            seed: of fresh weights; the same seed gives the same weights.

        Returns:
            A module from observations ``[B, ...]`` to Q-values ``[B, A]``.
        """
        num_actions = checked_actions(action_space)
        config = solver if isinstance(solver, SolverConfig) else SolverConfig(solver)
        if world_model is not None:
            check_own_model(world_model, num_actions, alone=network is None and encoder is None)
            made = cls(world_model, config, observation_space=observation_space, network=NetworkConfig())
            made.own = "world_model"
            return made
        network = network or NetworkConfig()
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU
            model = make_world_model(observation_space, num_actions, network, encoder)
        made = cls(model, config, observation_space=observation_space, network=network)
        made.own = None if encoder is None else "encoder"
        return made

    def save(self, folder: str | Path) -> Path:
        """Write weights, configuration, spaces and a model card into ``folder``; :meth:`load` reads them."""
        return saving.save_solver(self, Path(folder))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "cpu",
        encoder: nn.Module | None = None,
        world_model: WorldModel | KnownModel | None = None,
        **search: Any,
    ) -> Solver:
        """Read a solver from a folder of :meth:`save`, ready to act.

        ``encoder`` or ``world_model`` is one like that which the solver was made with, if it was your own: a
        folder holds its weights, not its code. ``search`` overrides fields of the :class:`SolverConfig`, e.g.
        ``act_iterations=50``.
        """
        saved = saving.read_solver(Path(folder), encoder=encoder, world_model=world_model)
        config = overridden(saved.solver, search)

        def make() -> Solver:
            actions = gymnasium.spaces.Discrete(saved.num_actions)
            return cls.create(
                config,
                saved.observation_space,
                actions,
                network=saved.network if world_model is None else None,
                encoder=encoder,
                world_model=world_model,
                seed=0,
            ).to(saved.dtype)

        solver = saving.with_weights(make, saved)
        solver.environment = saved.environment
        return solver.to(device).eval()

    def export(self, path: str | Path, *, uniforms: bool = False, mask: bool = False) -> Export:
        """Write the whole decision as one graph for any batch size, and compare the file with the solver.

        Args:
            path: a file that ends with .onnx (needs ``dtsn[export]``) or .pt2 (``torch.export``).
            uniforms: draw expansions by an input ``uniforms [B, T]``; otherwise the search is greedy.
            mask: take an input ``invalid_actions [B, A]`` (bool).
        """
        return export_solver_graph(self, Path(path), uniforms, mask)

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self._any_tensor().device

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self._any_tensor().dtype

    def _any_tensor(self) -> Tensor:
        """Return some parameter; a world model written by hand may have none."""
        found = next(self.parameters(), None)
        return torch.zeros(()) if found is None else found

    def forward(
        self,
        observation: Any,
        *,
        invalid_actions: Any = None,
        uniforms: Any = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Tensor:
        """Compute Q ``[..., A]`` by the training planner in ``train()`` mode, the acting one in ``eval()``.

        ``invalid_actions [..., A]`` have the value −inf; ``uniforms [..., T]`` or ``generator`` fix what the
        search draws.
        """
        search = invalid_actions, uniforms, generator, deterministic
        rows, lead = self._rows(observation)
        tree = self._tree(not self.training, self.world_model.encode(rows), lead, *search)
        return tree.q.reshape(*lead, -1)

    def plan(
        self,
        observation: Any,
        *,
        invalid_actions: Any = None,
        uniforms: Any = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> SearchTree:
        """Search ``observation [B, ...]`` by the acting planner, without gradients; return the trees."""
        search = invalid_actions, uniforms, generator, deterministic
        with torch.no_grad():
            rows, lead = self._rows(observation, batched=True)
            return self._tree(True, self.world_model.encode(rows), lead, *search)

    def act(
        self,
        observation: Any,
        *,
        invalid_actions: Any = None,
        uniforms: Any = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Tensor:
        """Return the best actions ``[...]`` by the acting planner.

        Its search draws the nodes to expand, by ``uniforms [..., T]`` or ``generator`` if given;
        ``deterministic`` expands the most promising ones.
        """
        with torch.inference_mode():  # nothing of the tree is kept, so the fastest mode will do
            rows, lead = self._rows(observation)
            latent = self.world_model.encode(rows)
            decide = self._compiled_action if self._compiles else self._best_action
            best = decide(latent, lead, invalid_actions, uniforms, generator, deterministic)
        return best.reshape(lead).clone()  # an ordinary tensor again

    def compile_acting(self) -> None:
        """Let ``act`` run compiled, which takes seconds to a minute at its next call.

        Batches of small vector latents on the CPU go through one function compiled by Numba (``dtsn[fast]``),
        which reads the weights as they are at every call. All else, or where Numba is not installed, goes
        through ``torch.compile``: each batch size is compiled by itself, and so is each copy of the solver.
        """
        self._compiles = True

    def _compiled_action(
        self,
        latent: Tensor,
        lead: tuple[int, ...],
        invalid_actions: Any,
        uniforms: Any,
        generator: torch.Generator | None,
        deterministic: bool,
    ) -> Tensor:
        closed = read_mask(invalid_actions, lead, self.world_model.num_actions, latent.device)
        noise = read_uniforms(uniforms, lead, self.act_iterations)
        best = compiled_actions(self, latent, closed, noise, generator, deterministic)
        if best is not None:
            return best
        search = latent, latent.shape[:1], closed, noise, generator, deterministic
        if on_numbers(self, latent):
            return self._best_action(*search)
        if self._compiled is None:
            self._compiled = torch.compile(self._best_action, dynamic=False)
        return self._compiled(*search)

    def __getstate__(self) -> dict[str, Any]:
        # What was compiled holds this solver's weights: copies compile for themselves.
        return self.__dict__ | {"_compiled": None}

    def _best_action(self, *search: Any) -> Tensor:
        return self._tree(True, *search).q.argmax(1)

    def td_target(
        self,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        discount: float | Tensor | None = None,
        *,
        invalid_actions: Any = None,
        deterministic: bool = True,
    ) -> Tensor:
        """Compute ``r + γ max Q(s′, ·)``, or ``r`` where the episode terminated: ``[...]`` for ``q_target``.

        By the acting planner without gradients. γ is the search's, or one number ``[...]`` for each
        transition. ``invalid_actions [..., A]`` are of ``next_observation``.
        """
        with torch.no_grad():
            like = self._any_tensor()
            ended = torch.as_tensor(terminated, device=like.device).bool()
            rows, lead = self._rows(next_observation, "next_observation", unused=ended)
            ended = checked_column("terminated", ended, lead, like)
            now = checked_column("reward", reward, lead, like).to(like.dtype)
            factor = checked_discount_of(self.config, discount, lead, like)
            closed = read_mask(invalid_actions, lead, self.world_model.num_actions, like.device)
            best = best_values(self.world_model, self.config, rows, ~ended.reshape(-1), closed, deterministic)
            return torch.where(ended, now, now + factor * best.to(now.dtype).reshape(lead))

    def loss(
        self,
        batch: Batch,
        *,
        iterations: int | None = None,
        uniforms: Any = None,
        weight: Any = None,
        generator: torch.Generator | None = None,
        conservative_ramp: float = 1.0,
        part: Part | None = None,
    ) -> LossTerms:
        """Compute the solver's loss, a mean over the batch.

        ``iterations`` overrides T (a warm-up trains with T = 1); ``uniforms [B, T]`` or ``generator`` fix
        what the search draws. ``weight [B]`` multiplies each sample's loss, as prioritised replay asks for;
        the squared TD errors to prioritise by are ``terms["q"]``.
        ``conservative_ramp`` multiplies the conservative value's term. ``part`` says which rows of a larger
        batch these are: what is drawn for a row is then the same as in the whole batch.
        """
        if iterations is not None and iterations < 1:
            raise UserError(f"iterations must be at least 1, got {iterations}")
        batch = batch.to(self.device)
        observation, lead = self._rows(batch.observation, batched=True)
        check_batch(batch, lead[0], self.world_model.num_actions)
        weight = None if weight is None else checked_weight(weight, lead[0], self._any_tensor())
        config = self.config
        latent = self.world_model.encode(observation)
        if part is not None and uniforms is None and self.kind.training_planner == "best_first":
            uniforms = part.draw((iterations or config.iterations,), generator, latent.device)
        tree = self._tree(False, latent, lead, None, uniforms, generator, iterations=iterations)
        check_valid(batch.action, tree.node_mask)
        compares = "transition" in self.losses and config.weights.transition
        target = self._target(batch.next_observation, lead) if compares else None
        terms = loss_terms(self.losses, config, self.world_model, batch, tree, target)
        if config.weights.conservative_value:
            term = conservative_value(self.world_model, observation, batch.q_target, generator, part)
            terms["conservative_value"] = conservative_ramp * term
        return losses.combine(terms, config.weights, weight)

    def update_target(self) -> None:
        """Move the target encoder towards the encoder; call after each optimiser step."""
        if self.target_encoder is not None:
            assert isinstance(self.world_model, WorldModel)
            update_average(self.target_encoder, self.world_model.encoder, self.config.target_decay)

    def _tree(self, acting: bool, *search: Any, iterations: int | None = None) -> SearchTree:
        """Grow the trees of acting or training; ``search`` is what :func:`grow_trees` takes, in order."""
        return grow_trees(self.world_model, self.config, acting, *search, iterations=iterations)

    def q_of_rows(
        self, rows: Tensor, uniforms: Tensor | None, invalid_actions: Tensor | None, deterministic: bool
    ) -> Tensor:
        """Compute Q ``[B, A]`` by the acting planner, of rows that need no check, as in an exported graph."""
        latent, lead = self.world_model.encode(rows), (rows.shape[0],)
        return self._tree(True, latent, lead, invalid_actions, uniforms, None, deterministic).q

    @property
    def act_iterations(self) -> int:
        """T when acting."""
        return act_iterations(self.config)

    def _target(self, next_observation: Observation, lead: tuple[int, ...]) -> Tensor:
        assert self.target_encoder is not None
        assert isinstance(self.world_model, WorldModel)
        with torch.no_grad():
            rows, found = self._rows(next_observation, "next_observation", batched=True)
            if found != lead:
                raise UserError(f"next_observation must have {lead[0]} rows, got {found[0]}")
            target: Tensor = self.target_encoder(rows)
            return self.world_model.state(target)

    def _rows(
        self,
        observation: Any,
        name: str = "observation",
        batched: bool = False,
        unused: Tensor | None = None,
    ) -> tuple[Observation, tuple[int, ...]]:
        """Read observations as rows ``[B, ...]`` on the solver's device, with their leading dimensions."""
        shape, space, like = self.observation_shape, self.observation_space, self._any_tensor()
        try:
            return (read_batch if batched else read_rows)(observation, space, shape, like, name, unused)
        except ValueError as error:
            if self.environment is None:
                raise
            raise UserError(f"{error}; the solver was trained on {self.environment}") from error
