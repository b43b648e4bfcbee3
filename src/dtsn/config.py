"""Every number of the project as plain data: what a solver is, how it searches, learns and is trained.

No torch here, so that reading a configuration or printing ``--help`` costs nothing.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import Literal, get_args

EncoderName = Literal["auto", "mlp", "grid", "nature", "impala"]
Rule = Literal["sample", "greedy", "epsilon_greedy"]
Precision = Literal["float32", "bfloat16"]
Augmentation = Literal["none", "grid_symmetries"]
PlannerName = Literal["one_step", "full", "best_first"]


@dataclass(frozen=True)
class SolverRow:
    """What makes a solver: its planners and its losses."""

    train: PlannerName
    act: PlannerName
    losses: tuple[str, ...]


SOLVERS = {
    "qnet": SolverRow("one_step", "one_step", ("q", "cql")),
    "search": SolverRow("one_step", "best_first", ("q", "cql", "transition", "reward")),
    "treeqn": SolverRow("full", "full", ("q", "cql", "reward")),
    "dtsn": SolverRow("best_first", "best_first", ("q", "cql", "transition", "reward", "expansion")),
}


@dataclass(frozen=True)
class LossWeights:
    """λ1 to λ4 of the final loss, and the REINFORCE term's weight."""

    q: float = 1.0
    """λ1: squared error of the Q-value"""
    cql: float = 1.0
    """λ2: conservative Q-learning"""
    transition: float = 1.0
    """λ3: consistency of the transition module"""
    reward: float = 1.0
    """λ4: consistency of the reward module"""
    expansion: float = 1.0
    """REINFORCE term of the expected loss; 1 is the true gradient, 0 drops it"""

    def __post_init__(self) -> None:
        for name, weight in vars(self).items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"loss weight {name} must be finite and not negative, got {weight}")


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
    """of the expansion policy softmax(path value / temperature)"""
    depth: int = 2
    """of TreeQN's full tree"""
    discount: float = 1.0
    """γ inside the tree; the paper's returns are undiscounted"""
    weights: LossWeights = field(default_factory=LossWeights)
    """λ of the loss terms"""
    telescoping: bool = True
    """credit each expansion with the change of the loss since; off: with the whole loss"""
    target_decay: float = 0.99
    """α of the target encoder's moving average"""

    def __post_init__(self) -> None:
        if self.name not in SOLVERS:
            near = difflib.get_close_matches(str(self.name).lower(), SOLVERS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown solver {self.name!r}, choose one of {', '.join(SOLVERS)}{hint}")
        for name in ("iterations", "act_iterations", "depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.act_rule not in get_args(Rule):
            raise ValueError(f"act_rule must be one of {', '.join(get_args(Rule))}, got {self.act_rule!r}")
        if not 1e-30 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")
        for name in ("epsilon", "discount", "target_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class NetworkConfig:
    """The world model's modules."""

    encoder: EncoderName = "auto"
    """mlp for vectors, grid for maps of 0/1 planes, nature (small) or impala (large) for frames"""
    latent: int = 128
    """size of a vector latent, or channels of a map latent"""
    hidden: int = 128
    """width of the hidden layers"""
    spatial: bool = False
    """grid encoder only: latents are maps [latent, H, W] instead of vectors"""
    readout: bool = True
    """grid encoder only: read the features where a plane has its single mark; off: global maxima alone"""
    precision: Precision = "float32"
    """of the encoder; the search is always float32"""
    value_scale: float = 1.0
    """factor on the value head's output: returns of tens are out of reach of a fresh network"""

    def __post_init__(self) -> None:
        for name in ("latent", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.encoder not in get_args(EncoderName):
            names = ", ".join(get_args(EncoderName))
            raise ValueError(f"unknown encoder {self.encoder!r}, choose one of {names}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {get_args(Precision)}, got {self.precision!r}")
        if not 0 < self.value_scale < math.inf:
            raise ValueError(f"value_scale must be positive and finite, got {self.value_scale}")


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
    """transitions a step"""
    learning_rate: float = 1e-3
    """peak of the cosine schedule"""
    learning_rate_warmup: int = 100
    """steps of linear rise before it"""
    weight_decay: float = 0.01
    """of AdamW"""
    gradient_clip: float = 10.0
    """largest norm of a gradient step"""
    search_warmup: int = 1000
    """first steps with one expansion instead of T: a fresh world model is not worth searching"""
    augment: Augmentation = "none"
    """turn and mirror square grids, states and actions together (outside the paper; for all solvers alike)"""
    checkpoint_every: int = 500
    """steps between checkpoints"""
    keep_checkpoints: int = 2
    """newest ones to keep"""
    seed: int = 0
    """of weights, data order, augmentation and search"""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "checkpoint_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate_warmup", "search_warmup", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.augment not in get_args(Augmentation):
            raise ValueError(f"augment must be one of {get_args(Augmentation)}, got {self.augment!r}")
        for name in ("learning_rate", "gradient_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be finite and not negative, got {self.weight_decay}")
