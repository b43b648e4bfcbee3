"""Settings as plain data: what a solver is, how it searches, learns and is trained.

No torch here, so that reading a configuration or printing ``--help`` costs nothing.
"""

from __future__ import annotations

import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dtsn.errors import UserError, UserTypeError, brief
from dtsn.spelling import did_you_mean

EncoderName = Literal[
    "auto", "mlp", "grid", "maps", "paths", "nature", "strided", "impala_small", "impala_fast", "impala"
]
Channels = Literal["auto", "first", "last"]
FrameEncoder = Literal["nature", "strided", "impala_small", "impala_fast", "impala"]
Rule = Literal["sample", "greedy", "epsilon_greedy"]
Keep = Literal["successful", "all"]  # episodes of a data set: those that completed their level, or every one
Precision = Literal["float32", "bfloat16"]
ValueForm = Literal["additive", "joint"]
Augmentation = Literal["none", "grid_symmetries"]
PlannerName = Literal["one_step", "full", "best_first"]
OnNan = Literal["stop", "skip"]
TrackerName = Literal["none", "tensorboard", "wandb", "mlflow"]

MAX_ITERATIONS = 10_000  # T: a file must not be able to ask for a search without end
MAX_DEPTH = 100


def check_types(config: Any) -> None:
    """Refuse a field whose value is of another type than its annotation; an int will do for a float."""
    for name, hint in typing.get_type_hints(type(config)).items():
        value, field_name = getattr(config, name), f"{type(config).__name__}.{name}"
        if typing.get_origin(hint) is Literal:
            if value not in [choice for choice in get_args(hint) if type(choice) is type(value)]:
                choices = ", ".join(get_args(hint))
                raise UserError(f"{field_name} must be one of {choices}, got {brief(value)}")
            continue
        kinds = list(get_args(hint)) if isinstance(hint, types.UnionType) else [hint]
        if float in kinds:
            kinds.append(int)
        truth = isinstance(value, bool) and bool not in kinds  # an int to Python, a mistake here
        if truth or not isinstance(value, tuple(kinds)):
            names = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
            raise UserTypeError(f"{field_name} must be {names}, got {value!r}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"{field_name} must fit 64 bits, got {value}")


@dataclass(frozen=True)
class SolverKind:
    """What makes a solver: its planners and its losses; and how it is shown."""

    title: str
    colour: str
    training_planner: PlannerName
    acting_planner: PlannerName
    losses: tuple[str, ...]


# In the order of the paper's tables.
SOLVERS = {
    "qnet": SolverKind("Q-network", "#cf4a3f", "one_step", "one_step", ("q", "cql")),
    "search": SolverKind(
        "Model-based Search", "#dd9a22", "one_step", "best_first", ("q", "cql", "transition", "reward")
    ),
    "treeqn": SolverKind("TreeQN", "#8262b8", "full", "full", ("q", "cql", "reward")),
    "dtsn": SolverKind(
        "D-TSN", "#1f6fb4", "best_first", "best_first", ("q", "cql", "transition", "reward", "expansion")
    ),
}


@dataclass(frozen=True)
class LossWeights:
    """λ1 to λ4 of the final loss, the REINFORCE term's weight, and terms outside the paper."""

    q: float = 0.1
    """λ1: squared error of the Q-value"""
    cql: float = 1.0
    """λ2: conservative Q-learning"""
    transition: float = 0.1
    """λ3: consistency of the transition module"""
    reward: float = 1.0
    """λ4: consistency of the reward module"""
    expansion: float = 1.0
    """REINFORCE term of the expected loss; 1 is the true gradient, 0 drops it"""
    termination: float = 0.0
    """outside the paper: cross-entropy of the termination head"""
    conservative_reward: float = 0.0
    """outside the paper: lowers the rewards of all actions; the reward loss holds those in the data"""
    conservative_value: float = 0.0
    """outside the paper: keeps the values of random maps below the return (maps encoder only)"""
    ranking: float = 0.0
    """outside the paper: the open node on the demonstrated path outranks the others (D-TSN)"""

    def __post_init__(self) -> None:
        check_types(self)
        for name, weight in vars(self).items():
            if not 0 <= weight < float("inf"):
                raise UserError(f"loss weight {name} must be finite and not negative, got {weight}")


@dataclass(frozen=True)
class SolverConfig:
    """How a solver searches and what it minimises."""

    name: str = "dtsn"
    """dtsn, search (Model-based Search), treeqn or qnet"""
    iterations: int = 10
    """T: expansions of a best-first search in training"""
    act_iterations: int | None = None
    """T when acting; as in training if not given"""
    act_rule: Rule = "sample"
    """how acting picks the node to expand: sample (Algorithm 1), greedy or epsilon_greedy"""
    epsilon: float = 0.1
    """chance of a random node under epsilon_greedy"""
    temperature: float = 1.0
    """temperature of the expansion policy softmax(path value / temperature)"""
    depth: int = 2
    """depth of TreeQN's full tree"""
    discount: float = 1.0
    """γ inside the tree; the paper's returns are undiscounted"""
    weights: LossWeights = field(default_factory=LossWeights)
    """λ of the loss terms"""
    telescoping: bool = True
    """Return of expansion t in REINFORCE: L_T − L_{t−1} (telescoped, lower variance), or L_T if off."""
    target_decay: float = 0.99
    """α of the target encoder's moving average"""
    merge: bool = False
    """outside the paper: expand every place only once when acting (maps encoder only)"""

    def __post_init__(self) -> None:
        check_types(self)
        if self.name not in SOLVERS:
            hint = did_you_mean(self.name, SOLVERS)
            names = ", ".join(SOLVERS)
            raise UserError(f"solver name must be one of {names}, got {brief(self.name)}{hint}")
        for name, most in (
            ("iterations", MAX_ITERATIONS),
            ("act_iterations", MAX_ITERATIONS),
            ("depth", MAX_DEPTH),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
            if value is not None and value > most:
                raise UserError(f"{name} must be at most {most}, got {value}")
        if not 1e-30 <= self.temperature < math.inf:
            raise UserError(f"temperature must be positive and finite, got {self.temperature}")
        for name in ("epsilon", "discount", "target_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must lie in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class NetworkConfig:
    """The world model's modules."""

    encoder: EncoderName = "auto"
    """mlp for vectors; grid, maps or paths for 0/1 maps; nature, strided, impala_small, impala_fast or impala
    for frames; auto (in Solver.create): mlp, grid or impala by the observation space"""
    channels: Channels = "auto"
    """where planes and frames have their channels: first [C, H, W] or last [H, W, C]; auto: by the shape"""
    latent: int = 128
    """size of a vector latent, or channels of a map latent"""
    hidden: int = 128
    """width of the hidden layers"""
    spatial: bool = False
    """grid encoder only: latents are maps [latent, H, W] instead of vectors"""
    readout: bool = True
    """grid encoder only: also read the features at each plane's single mark; off: global maxima alone"""
    normalised: bool = False
    """encoders of frames only: centre frames, draw orthogonal weights, normalise the latent; learns sooner"""
    precision: Precision = "float32"
    """number format of the encoder; the search is always float32"""
    value_scale: float = 10.0
    """Multiplies the value head's output; set it to the rough magnitude of returns."""
    value: ValueForm = "additive"
    """maps encoder only: f(goal's offset) + g(cells around), or joint: one function of both"""
    termination: bool = False
    """maps encoder only: predict where episodes end, and stop the search there"""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("latent", "hidden"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.value_scale < math.inf:
            raise UserError(f"value_scale must be positive and finite, got {self.value_scale}")


@dataclass(frozen=True)
class TrainConfig:
    """Every number of a training run."""

    solver: SolverConfig = field(default_factory=SolverConfig)
    """how the solver searches and what it minimises"""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """the world model's modules"""
    steps: int = 6000
    """optimiser steps"""
    batch_size: int = 128
    """transitions per step"""
    learning_rate: float = 1e-3
    """peak of the cosine schedule"""
    learning_rate_warmup: int = 100
    """steps in which the learning rate rises linearly to its peak"""
    weight_decay: float = 0.01
    """weight decay of AdamW"""
    gradient_clip: float = 10.0
    """largest gradient norm; larger gradients are scaled down to it"""
    search_warmup: int = 1000
    """train the first steps with one expansion instead of T: a fresh world model is not worth searching"""
    search_ramp: int = 0
    """then raise T from 2 to its full number over this many steps; 0: at once"""
    conservative_ramp: int = 0
    """raise the weight of the conservative value from 0 over the first steps; 0: at once"""
    augment: Augmentation = "none"
    """rotate and mirror square grids, states and actions together (outside the paper)"""
    checkpoint_every: int = 500
    """steps between checkpoints"""
    keep_checkpoints: int = 2
    """number of newest checkpoints to keep; with validation, the best one is kept as well"""
    on_nan: OnNan = "stop"
    """stop at a loss or gradient that is not finite, or skip the step; its batch is saved either way"""
    seed: int = 0
    """seed of weights, data order, augmentation and search"""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("steps", "batch_size", "checkpoint_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate_warmup", "search_warmup", "search_ramp", "conservative_ramp", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"weight_decay must be finite and not negative, got {self.weight_decay}")


@dataclass(frozen=True)
class PPGConfig:
    """Every number of a Phasic Policy Gradient run; the defaults follow its paper (Cobbe et al., 2020)."""

    game: str = "coinrun"
    """one of the 16 games of Procgen"""
    mode: str = "easy"
    """easy or hard, as the data of the D-TSN paper; some games have memory, exploration or extreme"""
    num_levels: int = 0
    """levels to learn on; 0: no limit"""
    steps: int = 100_000_000
    """environment steps in all"""
    num_envs: int = 64
    """episodes side by side"""
    rollout: int = 256
    """actions per episode and iteration"""
    action_repeat: int = 1
    """hold every action for this many frames; with more, random actions explore farther"""
    minibatches: int = 8
    """minibatches per pass over an iteration's actions"""
    policy_iterations: int = 32
    """N_π: iterations before an auxiliary phase"""
    policy_epochs: int = 1
    """E_π: passes over an iteration's actions for the policy"""
    value_epochs: int = 1
    """E_V: the same for the value network; a shared network takes the larger of the two for both"""
    auxiliary_epochs: int = 6
    """E_aux: passes over all actions of the phase; 0: no auxiliary phases"""
    clone_weight: float = 1.0
    """β_clone: keeps the policy where it is in an auxiliary phase"""
    translate: int = 0
    """pixels, at most, that frames are shifted by in auxiliary phases, which teach to ignore that"""
    still_penalty: float = 0.0
    """subtracted from the normalised reward of an action that leaves the frame as it was"""
    discount: float = 0.999
    """γ, from action to action"""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation"""
    entropy_weight: float = 0.01
    """weight of the entropy bonus"""
    clip: float = 0.2
    """clip probability ratios to 1 ± this"""
    learning_rate: float = 5e-4
    """learning rate of Adam in policy phases"""
    auxiliary_learning_rate: float = 5e-4
    """learning rate of Adam in auxiliary phases"""
    gradient_clip: float = math.inf
    """largest gradient norm; the paper does not clip"""
    shared: bool = False
    """policy and value share one network"""
    detach_values: bool = True
    """value gradients reach a shared trunk in auxiliary phases only; off and without these, this is PPO"""
    encoder: FrameEncoder = "impala"
    """nature or strided (small), impala (large), impala_fast (the same on half the resolution) or
    impala_small (half the residual blocks of that, and the last maps averaged)"""
    latent: int = 256
    """number of features between encoder and heads"""
    precision: Precision = "float32"
    """number format of the encoder"""
    checkpoint_every: int = 10
    """iterations between checkpoints"""
    keep_checkpoints: int = 2
    """number of newest checkpoints to keep"""
    seed: int = 0
    """seed of weights, levels and actions"""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("steps", "num_envs", "rollout", "action_repeat", "minibatches", "policy_iterations",
                     "policy_epochs", "value_epochs", "latent", "checkpoint_every",
                     "keep_checkpoints"):  # fmt: skip
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("num_levels", "auxiliary_epochs", "seed", "translate"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if not (self.shared or self.detach_values):
            raise UserError("detach_values must be on unless policy and value share one network: set shared")
        if self.batch % self.minibatches:
            raise UserError(
                f"minibatches must divide num_envs · rollout = {self.batch}, got {self.minibatches}"
            )
        for name in ("discount", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("clone_weight", "entropy_weight", "clip", "still_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        for name in ("learning_rate", "auxiliary_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not self.gradient_clip > 0:
            raise UserError(f"gradient_clip must be positive, got {self.gradient_clip}")

    @property
    def batch(self) -> int:
        """Decisions of an iteration."""
        return self.num_envs * self.rollout

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of an iteration, where no episode ends while an action is held."""
        return self.batch * self.action_repeat

    @property
    def iterations(self) -> int:
        """Iterations for ``steps``, rounded up."""
        return -(-self.steps // self.steps_per_iteration)


# What one core learns in minutes: a small shared network, short roll-outs, so many small updates and phases.
PPG_CPU = PPGConfig(
    steps=300_000,
    rollout=64,
    policy_iterations=16,
    policy_epochs=3,
    auxiliary_epochs=1,
    shared=True,
    encoder="nature",
    entropy_weight=0.003,
    gradient_clip=1.0,
)
