"""d3rlpy's DiscreteCQL on CartPole data with a solver as its Q-function.

    pip install -r requirements.txt && pip install --no-deps 'd3rlpy>=2.8,<2.9'
    python train.py

d3rlpy's loss replaces the paper's: the search is differentiated through, without the REINFORCE term and the
consistency losses. `Trainer` (offline) has them.
"""

import sys
from dataclasses import dataclass

import d3rlpy
import gymnasium
import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.q_functions import QFunctionFactory
from d3rlpy.models.torch.q_functions import ContinuousQFunction, DiscreteQFunction
from d3rlpy.models.torch.q_functions.mean_q_function import (
    DiscreteMeanQFunction,
    DiscreteMeanQFunctionForwarder,
)

from dtsn import LossWeights, Solver, SolverConfig

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000


class SolverQ(DiscreteMeanQFunction):
    """Q-values of a solver in the form that d3rlpy's losses expect."""

    def __init__(self, encoder: torch.nn.Module, space: gymnasium.Space, actions: int):
        super().__init__(encoder, 1, actions)
        config = SolverConfig("dtsn", iterations=5, discount=0.99, weights=LossWeights(cql=0.0))
        self.solver = Solver.create(config, space, gymnasium.spaces.Discrete(actions))

    def forward(self, x: torch.Tensor):
        """Observations ``[B, 4]`` -> d3rlpy's output with ``q_value [B, A]``."""
        out = super().forward(x)
        return out._replace(q_value=self.solver(x, deterministic=not self.training))


@dataclass()
class SolverQFactory(QFunctionFactory):
    """Makes the Q-function and the object that computes its errors."""

    space: gymnasium.Space = None

    def create_discrete(self, encoder, hidden_size: int, action_size: int):
        """The Q-function of a discrete action space."""
        q: DiscreteQFunction = SolverQ(encoder, self.space, action_size)
        return q, DiscreteMeanQFunctionForwarder(q, action_size)

    def create_continuous(self, encoder, hidden_size: int) -> ContinuousQFunction:
        """Refused: solvers plan over discrete actions."""
        raise NotImplementedError("solvers plan over discrete actions")

    @staticmethod
    def get_type() -> str:
        """The factory's name in d3rlpy's files."""
        return "dtsn"


assert EncoderFactory
dataset, env = d3rlpy.datasets.get_cartpole()
cql = d3rlpy.algos.DiscreteCQLConfig(
    batch_size=64, gamma=0.99, q_func_factory=SolverQFactory(space=env.observation_space)
).create(device="cpu")
cql.fit(
    dataset,
    n_steps=STEPS,
    n_steps_per_epoch=max(1, STEPS // 10),
    evaluators={"return": d3rlpy.metrics.EnvironmentEvaluator(env)},
)
