"""The paper's tables as data: which configurations to train and evaluate, and the paper's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtsn.config import LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.envs.navigation import NavigationOptions

# Navigation: trained on two exits, tested on both. Chosen on validation levels; see docs/experiments-log.md.
NAVIGATION = TrainConfig(
    solver=SolverConfig(weights=LossWeights(q=0.1, cql=1.0, transition=0.1, reward=1.0)),
    network=NetworkConfig(encoder="grid", value_scale=10.0, precision="bfloat16"),
    steps=3000,
    search_warmup=500,
    augment="grid_symmetries",
)


@dataclass(frozen=True)
class Variant:
    """A row of a table: how it differs from the common configuration and what is played with it."""

    title: str
    solver: SolverConfig
    layout: str = "independent"  # of the exits, in training and testing
    act_iterations: tuple[int, ...] = ()  # searches to test with, besides the one it was trained with

    def config(self, seed: int) -> TrainConfig:
        """The training run of this variant with a seed."""
        return replace(NAVIGATION, solver=self.solver, seed=seed)

    def options(self, exits: int) -> NavigationOptions:
        """The levels it is tested on."""
        return NavigationOptions(exits=exits, exit_layout=self.layout)


def _solver(
    name: str = "dtsn", *, weights: dict[str, float] | None = None, **changes: object
) -> SolverConfig:
    base = NAVIGATION.solver
    return replace(base, name=name, weights=replace(base.weights, **(weights or {})), **changes)  # type: ignore[arg-type]


NAVIGATION_VARIANTS = {
    "qnet": Variant("Model-free Q-network", _solver("qnet")),
    "search": Variant("Model-based Search", _solver("search"), act_iterations=(20, 50)),
    "treeqn": Variant("TreeQN", _solver("treeqn")),
    "dtsn": Variant("D-TSN", _solver(), act_iterations=(20, 50)),
    "dtsn-no-telescoping": Variant("D-TSN w/o telescoping sum", _solver(telescoping=False)),
    "dtsn-no-reinforce": Variant("D-TSN w/o REINFORCE term", _solver(weights={"expansion": 0})),
    "dtsn-no-auxiliary": Variant(
        "D-TSN w/o auxiliary losses", _solver(weights={"transition": 0, "reward": 0})
    ),
    "dtsn-5": Variant("D-TSN (n_itr=5)", _solver(iterations=5)),
    "dtsn-20": Variant("D-TSN (n_itr=20)", _solver(iterations=20)),
    "qnet-opposite": Variant("Model-free Q-network", _solver("qnet"), layout="opposite"),
    "search-opposite": Variant("Model-based Search", _solver("search"), layout="opposite"),
    "treeqn-opposite": Variant("TreeQN", _solver("treeqn"), layout="opposite"),
    "dtsn-opposite": Variant("D-TSN", _solver(), layout="opposite"),
}


@dataclass(frozen=True)
class PaperNumber:
    """A rate of the paper, in percent, with its standard error where it gives one."""

    success: float
    error: float | None = None
    collision: float | None = None


# (variant, exits, search iterations when acting) -> the paper's number, from its Navigation tables.
PAPER_NAVIGATION = {
    ("qnet", 2, 10): PaperNumber(94.5, 0.2, 4.4),
    ("search", 2, 10): PaperNumber(93.2, 0.3, 6.7),
    ("treeqn", 2, 10): PaperNumber(95.4, 0.2, 3.8),
    ("dtsn", 2, 10): PaperNumber(99.0, 0.1, 0.7),
    ("qnet", 1, 10): PaperNumber(47.1, 0.5, 50.2),
    ("search", 1, 10): PaperNumber(86.9, 0.3, 12.4),
    ("treeqn", 1, 10): PaperNumber(51.8, 0.5, 39.2),
    ("dtsn", 1, 10): PaperNumber(99.3, 0.1, 0.2),
    ("dtsn-no-telescoping", 1, 10): PaperNumber(98.5, 0.1),
    ("dtsn-no-reinforce", 1, 10): PaperNumber(97.7, 0.2),
    ("dtsn-no-auxiliary", 1, 10): PaperNumber(91.1, 0.3),
    ("dtsn-5", 2, 5): PaperNumber(97.4),
    ("dtsn-5", 1, 5): PaperNumber(96.6),
    ("dtsn-20", 2, 20): PaperNumber(99.5),
    ("dtsn-20", 1, 20): PaperNumber(99.1),
    ("dtsn", 2, 20): PaperNumber(99.3),
    ("dtsn", 1, 20): PaperNumber(99.4),
    ("dtsn", 2, 50): PaperNumber(99.7),
    ("dtsn", 1, 50): PaperNumber(99.6),
    ("search", 2, 20): PaperNumber(91.1),
    ("search", 1, 20): PaperNumber(84.6),
    ("search", 2, 50): PaperNumber(89.5),
    ("search", 1, 50): PaperNumber(80.4),
}
