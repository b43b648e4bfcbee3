"""d3rlpy's DiscreteCQL with a solver as its Q-function, on CartPole data of a clumsy controller.

    pip install -r requirements.txt && pip install --no-deps 'd3rlpy>=2.8,<2.9'
    python train.py

d3rlpy's loss replaces the paper's: the search is differentiated through, without the REINFORCE term and the
consistency losses. dtsn's own `Trainer` has them.
"""

import sys
from dataclasses import dataclass

import d3rlpy
import gymnasium
import numpy as np
from d3rlpy.models.q_functions import QFunctionFactory
from d3rlpy.models.torch.q_functions import QFunctionOutput
from d3rlpy.models.torch.q_functions.mean_q_function import (
    DiscreteMeanQFunction,
    DiscreteMeanQFunctionForwarder,
)

from dtsn import Solver, SolverConfig

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
env = gymnasium.make("CartPole-v1")


class SolverQ(DiscreteMeanQFunction):
    """Q-values of a solver in the form that d3rlpy's losses expect."""

    def __init__(self, encoder, hidden_size: int, action_size: int):
        super().__init__(encoder, hidden_size, action_size)  # d3rlpy asks for an encoder; it is not used
        config = SolverConfig("dtsn", iterations=5, discount=0.99)
        self.solver = Solver.create(config, env.observation_space, env.action_space)

    def forward(self, x):
        """Observations ``[B, 4]`` -> d3rlpy's output with ``q_value [B, A]``."""
        q_values = self.solver(x, deterministic=not self.training)
        return QFunctionOutput(q_value=q_values, quantiles=None, taus=None)


@dataclass()
class SolverQFactory(QFunctionFactory):
    """Makes the Q-function and the object that computes its errors."""

    def create_discrete(self, encoder, hidden_size: int, action_size: int):
        """Make the Q-function of a discrete action space."""
        q = SolverQ(encoder, hidden_size, action_size)
        return q, DiscreteMeanQFunctionForwarder(q, action_size)

    @staticmethod
    def get_type() -> str:
        """Name the factory in d3rlpy's files."""
        return "dtsn"


def collect(episodes: int, seed: int = 0) -> d3rlpy.dataset.MDPDataset:
    """Episodes of a controller that pushes towards where the pole falls, with every third push at random."""
    rng, columns = np.random.default_rng(seed), {"observations": [], "actions": [], "rewards": []}
    terminals, timeouts = [], []
    for episode in range(episodes):
        observation, done = env.reset(seed=seed + episode)[0], False
        while not done:
            action = int(observation[2] + 0.5 * observation[3] > 0)
            action = int(rng.integers(2)) if rng.random() < 1 / 3 else action
            columns["observations"].append(observation)
            columns["actions"].append([action])
            observation, reward, terminated, truncated, _ = env.step(action)
            columns["rewards"].append([reward])
            terminals.append(float(terminated))
            timeouts.append(float(truncated and not terminated))
            done = terminated or truncated
    arrays = {name: np.array(values) for name, values in columns.items()}
    return d3rlpy.dataset.MDPDataset(**arrays, terminals=np.array(terminals), timeouts=np.array(timeouts))


config = d3rlpy.algos.DiscreteCQLConfig(batch_size=64, gamma=0.99, q_func_factory=SolverQFactory())
config.create(device="cpu").fit(
    collect(60),
    n_steps=STEPS,
    n_steps_per_epoch=max(1, STEPS // 5),
    evaluators={"return": d3rlpy.metrics.EnvironmentEvaluator(env)},
    logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
)
