"""The paper's tables as data: which configurations to train and evaluate, and the paper's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dtsn.config import (
    PPG_CPU,
    Keep,
    LossWeights,
    NetworkConfig,
    PPGConfig,
    SolverConfig,
    TrainConfig,
)
from dtsn.envs.navigation import NavigationOptions
from dtsn.envs.procgen import GAMES

# Navigation: trained on two exits, tested on both. Chosen on validation levels; see docs/experiments-log.md.
NAVIGATION = TrainConfig(
    solver=SolverConfig(weights=LossWeights(q=0.1, cql=1.0, transition=0.1, reward=1.0)),
    network=NetworkConfig(encoder="paths", value_scale=10.0),
    steps=2000,
    search_warmup=300,
    augment="grid_symmetries",
)
# An encoder that pools features over the map does not generalise by itself, so it tells solvers apart.
NAVIGATION_POOLED = replace(
    NAVIGATION,
    network=NetworkConfig(encoder="grid", value_scale=10.0, precision="bfloat16"),
    steps=3000,
    search_warmup=500,
)
# The same without symmetries, which are outside the paper: less data, so more is left to the solver.
NAVIGATION_RAW = replace(NAVIGATION_POOLED, augment="none")


@dataclass(frozen=True)
class Variant:
    """A row of a table: how it differs from the common configuration and what is played with it."""

    title: str
    train: TrainConfig
    layout: str = "independent"  # of the exits, in training and testing
    act_iterations: tuple[int, ...] = ()  # searches to test seed 0 with, besides the one it was trained with
    tested: bool = True  # False: only validated, to choose settings by

    @property
    def solver(self) -> SolverConfig:
        """How it searches and what it minimises."""
        return self.train.solver

    def config(self, seed: int) -> TrainConfig:
        """The training run of this variant with a seed."""
        return replace(self.train, seed=seed)

    def options(self, exits: int) -> NavigationOptions:
        """The levels it is tested on."""
        return NavigationOptions(exits=exits, exit_layout=self.layout)


def _train(
    name: str = "dtsn",
    base: TrainConfig = NAVIGATION,
    *,
    weights: dict[str, float] | None = None,
    **changes: Any,
) -> TrainConfig:
    weighted = replace(base.solver.weights, **(weights or {}))
    return replace(base, solver=replace(base.solver, name=name, weights=weighted, **changes))


_TITLES = {
    "qnet": "Model-free Q-network",
    "search": "Model-based Search",
    "treeqn": "TreeQN",
    "dtsn": "D-TSN",
}
_ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "dtsn-no-telescoping": ("D-TSN w/o telescoping sum", {"telescoping": False}),
    "dtsn-no-reinforce": ("D-TSN w/o REINFORCE term", {"weights": {"expansion": 0}}),
    "dtsn-no-auxiliary": ("D-TSN w/o auxiliary losses", {"weights": {"transition": 0, "reward": 0}}),
}
# λ1 to λ4 and the REINFORCE weight on a log scale, one at a time around what was chosen.
WEIGHTS_TRIED = {
    "q": ("λ1", (0.01, 1.0)),
    "cql": ("λ2", (0.1, 10.0, 30.0)),
    "transition": ("λ3", (0.01, 1.0)),
    "reward": ("λ4", (0.1, 10.0)),
    "expansion": ("REINFORCE", (0.1, 10.0)),
}


def _weights(suffix: str, base: TrainConfig) -> dict[str, Variant]:
    """Shorter runs of D-TSN that tell loss weights apart."""
    chosen = vars(base.solver.weights)
    title = ", ".join(f"{symbol} = {chosen[term]:g}" for term, (symbol, _) in WEIGHTS_TRIED.items())
    tried = {f"weights{suffix}": Variant(f"as chosen: {title}", base, tested=False)}
    for term, (symbol, values) in WEIGHTS_TRIED.items():
        for value in values:
            train = _train(base=base, weights={term: value})
            tried[f"weights-{term}-{value:g}{suffix}"] = Variant(f"{symbol} = {value:g}", train, tested=False)
    return tried


NAVIGATION_VARIANTS = {
    "qnet": Variant(_TITLES["qnet"], _train("qnet")),
    "search": Variant(_TITLES["search"], _train("search"), act_iterations=(20, 50)),
    "treeqn": Variant(_TITLES["treeqn"], _train("treeqn")),
    "dtsn": Variant(_TITLES["dtsn"], _train(), act_iterations=(20, 50)),
    **{name: Variant(title, _train(**changes)) for name, (title, changes) in _ABLATIONS.items()},
    "dtsn-5": Variant("D-TSN (n_itr=5)", _train(iterations=5)),
    "dtsn-20": Variant("D-TSN (n_itr=20)", _train(iterations=20)),
    "dtsn-bfloat16": Variant(
        "D-TSN, encoder in bfloat16",
        replace(NAVIGATION, network=replace(NAVIGATION.network, precision="bfloat16")),
    ),
    **{
        f"{name}-pooled": Variant(
            title,
            _train(name, NAVIGATION_POOLED),
            act_iterations=(20, 50) if name in ("dtsn", "search") else (),
        )
        for name, title in _TITLES.items()
    },
    **{f"{name}-raw": Variant(title, _train(name, NAVIGATION_RAW)) for name, title in _TITLES.items()},
    **{
        f"{name}-raw": Variant(title, _train(base=NAVIGATION_RAW, **changes))
        for name, (title, changes) in _ABLATIONS.items()
    },
    **{
        f"{name}-opposite": Variant(title, _train(name), layout="opposite") for name, title in _TITLES.items()
    },
    **_weights("", replace(NAVIGATION, steps=1000)),
    **_weights("-raw", replace(NAVIGATION_RAW, steps=1500)),
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


@dataclass(frozen=True)
class ProcgenBudget:
    """How much of the paper's Procgen experiment to run; results of different budgets are never mixed."""

    mode: str
    expert: PPGConfig
    episodes: int  # in a data set
    train: TrainConfig
    levels: int  # to test on
    unfinished: tuple[str, ...] = ()  # games whose policy completes next to no level with this much training
    other_experts: dict[str, PPGConfig] = field(default_factory=dict)  # of games that need other settings
    scripted: tuple[str, ...] = ()  # games played by a scripted expert, as learning takes too long

    def expert_of(self, game: str) -> PPGConfig:
        """How the behaviour policy of a game is trained."""
        return replace(self.other_experts.get(game, self.expert), game=game, mode=self.mode)

    def keep(self, game: str) -> Keep:
        """Which episodes go into a game's data set: the successful ones where there are any."""
        return "all" if game in self.unfinished else "successful"

    def config(self, variant: str, seed: int) -> TrainConfig:
        """The training run of a variant with a seed."""
        return replace(_train(base=self.train, **PROCGEN_VARIANTS[variant]), seed=seed)


_PROCGEN_SOLVER = SolverConfig(weights=LossWeights(q=0.1, cql=1.0, transition=0.1, reward=1.0))
# Where a completed level is the only reward, undiscounted returns of successful episodes are all alike:
# they do not tell a step towards the end from one away from it. These do, as in the authors' own script.
_PROCGEN_DISCOUNTED = replace(_PROCGEN_SOLVER, discount=0.99)
PROCGEN_VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in _TITLES},
    # CQL's term alone is the cross-entropy of softmax(Q). Not in the paper: what readers compare with first.
    "cloning": {"name": "qnet", "weights": {"q": 0}},
    **{name: changes for name, (_, changes) in _ABLATIONS.items()},
}
PROCGEN_TITLES = {
    "random": "Random actions",
    "expert": "Behaviour policy",
    "cloning": "Behaviour cloning (ours)",
    **{name: variant.title for name, variant in NAVIGATION_VARIANTS.items() if name in PROCGEN_VARIANTS},
}
PROCGEN_BUDGETS = {
    # The whole pipeline in a minute a game: to see that it works, not to see results.
    "tiny": ProcgenBudget(
        mode="easy",
        expert=replace(PPG_CPU, steps=1024, num_envs=16, auxiliary_epochs=1),
        episodes=2,
        unfinished=tuple(GAMES),
        train=TrainConfig(
            solver=_PROCGEN_SOLVER,
            network=NetworkConfig(encoder="nature", latent=32, hidden=32, value_scale=10.0),
            steps=4,
            batch_size=8,
            search_warmup=2,
        ),
        levels=2,
    ),
    # A few hours for four games on two cores.
    "cpu": ProcgenBudget(
        mode="easy",
        expert=replace(PPG_CPU, steps=409_600, precision="bfloat16"),
        episodes=500,
        unfinished=("bigfish", "starpilot"),
        # Small fish and rare rewards: values must be learned before a policy can be. Hence a network that
        # sees more, near rewards only, longer moves, and a policy that learns more slowly than the values.
        other_experts={
            "bigfish": replace(
                PPG_CPU,
                game="bigfish",
                steps=5_242_880,
                precision="bfloat16",
                encoder="impala_fast",
                action_repeat=4,
                rollout=128,
                minibatches=16,
                policy_iterations=4,
                policy_epochs=1,
                auxiliary_epochs=2,
                discount=0.9,
                gae_lambda=0.9,
                entropy_weight=0.01,
                learning_rate=1e-4,
                auxiliary_learning_rate=1e-3,
            )
        },
        train=TrainConfig(
            solver=_PROCGEN_DISCOUNTED,
            network=NetworkConfig(
                encoder="nature", latent=256, hidden=256, value_scale=10.0, precision="bfloat16"
            ),
            steps=1500,
            batch_size=64,
            learning_rate=5e-4,
            search_warmup=300,
            checkpoint_every=250,
        ),
        levels=500,
    ),
    # Policies that can play, and solvers trained long enough to differ: some hours of a core for each game.
    # All in float32, since bfloat16 is many times slower on a CPU without instructions for it.
    "day": ProcgenBudget(
        mode="easy",
        # An action is held for two frames: random ones explore farther, and a decision costs the same.
        expert=replace(
            PPG_CPU,
            steps=1_310_720,
            encoder="impala_fast",
            action_repeat=2,
            policy_iterations=4,
            policy_epochs=2,
            auxiliary_epochs=1,
            discount=0.98,
            entropy_weight=0.01,
            learning_rate=3e-4,
        ),
        episodes=500,
        scripted=("maze",),
        train=TrainConfig(
            solver=_PROCGEN_DISCOUNTED,
            network=NetworkConfig(encoder="impala_fast", latent=128, hidden=128, value_scale=10.0),
            steps=5000,
            batch_size=64,
            learning_rate=5e-4,
            search_warmup=500,
        ),
        levels=500,
    ),
    "paper": ProcgenBudget(
        mode="hard",
        expert=PPGConfig(mode="hard"),
        episodes=1000,
        train=TrainConfig(
            solver=_PROCGEN_SOLVER,
            network=NetworkConfig(encoder="impala", latent=256, hidden=256, value_scale=10.0),
            steps=220_000,
            batch_size=256,
            learning_rate=5e-4,
            search_warmup=20_000,
            checkpoint_every=5000,
        ),
        levels=1000,
    ),
}

# The paper's mean scores per game (mode hard), and its aggregates.
PAPER_PROCGEN = {
    "bigfish": {"qnet": 21.49, "search": 14.51, "treeqn": 19.06, "dtsn": 20.80},
    "bossfight": {"qnet": 8.77, "search": 6.16, "treeqn": 8.31, "dtsn": 8.53},
    "caveflyer": {"qnet": 2.01, "search": 3.35, "treeqn": 3.57, "dtsn": 3.53},
    "chaser": {"qnet": 5.79, "search": 4.43, "treeqn": 6.46, "dtsn": 6.66},
    "climber": {"qnet": 2.81, "search": 5.34, "treeqn": 4.34, "dtsn": 5.20},
    "coinrun": {"qnet": 5.02, "search": 6.50, "treeqn": 5.07, "dtsn": 6.56},
    "dodgeball": {"qnet": 1.10, "search": 4.66, "treeqn": 4.79, "dtsn": 5.52},
    "fruitbot": {"qnet": 14.00, "search": 10.50, "treeqn": 15.59, "dtsn": 13.85},
    "heist": {"qnet": 0.81, "search": 1.97, "treeqn": 1.99, "dtsn": 2.12},
    "jumper": {"qnet": 3.39, "search": 4.06, "treeqn": 3.42, "dtsn": 4.31},
    "leaper": {"qnet": 7.57, "search": 6.35, "treeqn": 7.87, "dtsn": 8.05},
    "maze": {"qnet": 2.00, "search": 2.63, "treeqn": 2.18, "dtsn": 2.51},
    "miner": {"qnet": 1.42, "search": 1.55, "treeqn": 1.55, "dtsn": 1.63},
    "ninja": {"qnet": 5.07, "search": 5.15, "treeqn": 5.16, "dtsn": 5.88},
    "plunder": {"qnet": 12.77, "search": 9.67, "treeqn": 12.50, "dtsn": 13.26},
    "starpilot": {"qnet": 15.53, "search": 13.57, "treeqn": 16.98, "dtsn": 16.91},
}
# Of the policies behind the authors' data (PPG, 100 million steps, mode hard); not in the paper.
PAPER_PROCGEN_EXPERT = {
    **{"bigfish": 26.2, "bossfight": 11.0, "caveflyer": 9.7, "chaser": 7.9, "climber": 10.1, "coinrun": 8.5},
    **{"dodgeball": 8.8, "fruitbot": 23.5, "heist": 3.4, "jumper": 6.3, "leaper": 9.1, "maze": 6.8},
    **{"miner": 10.9, "ninja": 9.4, "plunder": 17.8, "starpilot": 21.4},
}
PAPER_PROCGEN_Z = {
    "search": 0.11,
    "treeqn": 0.22,
    "dtsn": 0.31,
    "dtsn-no-telescoping": 0.28,
    "dtsn-no-reinforce": 0.29,
}
PAPER_PROCGEN_WINS = {"qnet": "13/16", "search": "14/16", "treeqn": "13/16"}
