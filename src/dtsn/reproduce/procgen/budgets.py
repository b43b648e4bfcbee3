"""How much of the paper's Procgen experiment to run: budgets and variants as data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dtsn.config import (
    PPG_CPU,
    Keep,
    LossWeights,
    NetworkConfig,
    PPGConfig,
    SolverConfig,
    TrainConfig,
)
from dtsn.envs.procgen import GAMES
from dtsn.reproduce.procgen.choice import ACTING, RECIPE, TEMPERATURES, candidate, contender
from dtsn.reproduce.recipes import ABLATIONS, SEARCH_LENGTHS, SOLVER_RECIPES, Recipe


@dataclass(frozen=True)
class ProcgenBudget:
    """How much of the paper's Procgen experiment to run; results of different budgets are never mixed."""

    mode: str
    expert: PPGConfig
    episodes: int  # in a data set, at least
    train: TrainConfig
    levels: int  # to test on
    temperature: float | None = None  # solvers draw actions from softmax(Q / τ); None: they take the best one
    more_episodes: dict[str, int] = field(default_factory=dict)  # in data sets of games with short ones
    keep_all_episodes: tuple[
        str, ...
    ] = ()  # games whose policy completes next to no level with this much training
    expert_overrides: dict[str, PPGConfig] = field(default_factory=dict)  # of games that need other settings
    scripted: tuple[str, ...] = ()  # games played by a scripted expert, as learning takes too long
    ablated: tuple[str, ...] = ()  # games that the ablations are run on
    start: TrainConfig | None = None  # the recipe that the choice began with, if another one was chosen

    def expert_of(self, game: str) -> PPGConfig:
        """Return how the behaviour policy of a game is trained."""
        return replace(self.expert_overrides.get(game, self.expert), game=game, mode=self.mode)

    def episodes_of(self, game: str) -> int:
        """Return how many episodes a game's data set has."""
        return self.more_episodes.get(game, self.episodes)

    def keep(self, game: str) -> Keep:
        """Return which episodes go into a game's data set: the successful ones where there are any."""
        return "all" if game in self.keep_all_episodes else "successful"

    def temperature_of(self, player: str) -> float | None:
        """Return the temperature that a solver, or a contender of the choice, draws its actions with."""
        if player in PROCGEN_BEST:
            return None
        return TEMPERATURES.get(contender(player).candidate or RECIPE, self.temperature)

    def config(self, variant: str, seed: int) -> TrainConfig:
        """Return the training run of a variant, or of a contender of the choice, with a seed."""
        name, solver = contender(variant)
        began = self.start if self.start and name and name not in ACTING else self.train
        return replace(candidate(PROCGEN_VARIANTS[solver].applied(began), name), seed=seed)

    def trained_as(self, player: str) -> str:
        """Return the run that a player acts with: its own, or that of the tables if it is trained alike."""
        name, solver = contender(player)
        if name is None:
            return PROCGEN_VARIANTS[player].weights_of or player
        alike = name in ACTING or self.config(player, 0) == self.config(solver, 0)
        return solver if alike else player


_PROCGEN_SOLVER = SolverConfig(weights=LossWeights(q=0.1, cql=1.0, transition=0.1, reward=1.0))
# Where a completed level is the only reward, undiscounted returns of successful episodes are all alike:
# they do not tell a step towards the end from one away from it. These do, as in the authors' own script.
_PROCGEN_DISCOUNTED = replace(_PROCGEN_SOLVER, discount=0.99)
# CQL's term alone is the cross-entropy of softmax(Q). Not in the paper: what readers compare with first.
CLONING = Recipe("cloning", "Behaviour cloning (ours)", "qnet", weights={"q": 0})
# The paper's solvers take the action of the highest Q-value. Searches still draw what they expand, so D-TSN
# and Model-based Search do not choose the same action in the same state every time. With a greedy search they
# do, and so does D-TSN with one expansion, which shows what its search adds to its weights.
PROCGEN_BEST = {
    f"{name}-best": Recipe(f"{name}-best", f"{each.title}, best action", name, weights_of=name)
    for name, each in SOLVER_RECIPES.items()
} | {
    f"{name}-greedy-best": Recipe(
        f"{name}-greedy-best",
        f"{SOLVER_RECIPES[name].title}, greedy search, best action",
        name,
        settings={"act_rule": "greedy"},
        weights_of=name,
    )
    for name in ("search", "dtsn")
}
ONE_EXPANSION = Recipe(
    "dtsn-one-best",
    f"{SOLVER_RECIPES['dtsn'].title}, one expansion, best action",
    settings={"act_iterations": 1},
    weights_of="dtsn",
)
PROCGEN_BEST[ONE_EXPANSION.key] = ONE_EXPANSION
PROCGEN_VARIANTS = SOLVER_RECIPES | {CLONING.key: CLONING} | ABLATIONS | SEARCH_LENGTHS | PROCGEN_BEST
PROCGEN_CHANGED = (*ABLATIONS, *SEARCH_LENGTHS)  # D-TSN without a part or with another search length
PROCGEN_ROWS = tuple(name for name in PROCGEN_VARIANTS if name not in (*PROCGEN_CHANGED, *PROCGEN_BEST))
PROCGEN_ABLATIONS = ("dtsn-no-reinforce", "dtsn-no-telescoping", *SEARCH_LENGTHS)
PROCGEN_TITLES = {
    "random": "Random actions",
    "expert": "Behaviour policy",
    **{key: recipe.title for key, recipe in PROCGEN_VARIANTS.items()},
}
# Small fish and rare rewards: values must be learned before a policy can be. Hence a network that sees more,
# near rewards only, longer moves, and a policy that learns more slowly than the values.
BIGFISH_EXPERT = replace(
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
# An action is held for two frames: random ones explore farther, and a decision costs the same. Each is
# learned from once, without auxiliary phases, which learn no more but cost as much as new ones. The encoder
# is a cheap one: it learns as much from a frame.
_DAY_EXPERT = replace(
    PPG_CPU,
    steps=2_621_440,
    encoder="strided",
    num_envs=128,
    rollout=32,
    action_repeat=2,
    minibatches=16,
    policy_iterations=1,
    policy_epochs=1,
    auxiliary_epochs=0,
    detach_values=False,
    still_penalty=0.01,
    discount=0.98,
    entropy_weight=0.01,
)
_DAY_EXPERT_AT_FIRST = replace(_DAY_EXPERT, encoder="impala_small")
# Episodes that make 100,000 transitions: with 500 of maze's, which are short, networks learn levels by heart.
_HUNDRED_THOUSAND = {
    "bossfight": 1200,
    "caveflyer": 600,
    "chaser": 600,
    "climber": 1000,
    "coinrun": 1800,
    "dodgeball": 900,
    "fruitbot": 1000,
    "heist": 2500,
    "jumper": 1300,
    "leaper": 1200,
    "maze": 7000,
    "miner": 3200,
    "ninja": 3100,
    "starpilot": 700,
}
# The world model's losses weigh less than elsewhere: rewards of 10 make large squares, and latents that are
# easy to predict, those that hardly change, are no help to tell frames apart in the first thousands of steps.
_DAY_START = TrainConfig(
    solver=replace(
        _PROCGEN_DISCOUNTED,
        weights=replace(_PROCGEN_SOLVER.weights, transition=0.01, reward=0.01),
    ),
    network=NetworkConfig(encoder="strided", latent=128, hidden=128, value_scale=10.0, normalised=True),
    steps=5000,
    batch_size=64,
    learning_rate=1e-3,
    search_warmup=500,
)
PROCGEN_BUDGETS = {
    # The whole pipeline in a minute a game: to see that it works, not to see results.
    "tiny": ProcgenBudget(
        mode="easy",
        expert=replace(PPG_CPU, steps=1024, num_envs=16, auxiliary_epochs=1),
        episodes=2,
        keep_all_episodes=tuple(GAMES),
        train=TrainConfig(
            solver=_PROCGEN_SOLVER,
            network=NetworkConfig(encoder="nature", latent=32, hidden=32, value_scale=10.0, normalised=True),
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
        keep_all_episodes=("bigfish", "starpilot"),
        expert_overrides={"bigfish": BIGFISH_EXPERT},
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
        expert=_DAY_EXPERT,
        expert_overrides={
            # Its curve is level from 250,000 steps on.
            "coinrun": replace(_DAY_EXPERT_AT_FIRST, steps=655_360),
            **dict.fromkeys(("chaser", "fruitbot", "starpilot"), _DAY_EXPERT_AT_FIRST),
        },
        episodes=500,
        more_episodes=_HUNDRED_THOUSAND,
        # Where completing a level takes a policy much better than one of this budget.
        keep_all_episodes=("bossfight", "chaser", "dodgeball", "fruitbot", "starpilot"),
        scripted=("bigfish", "climber", "heist", "leaper", "maze", "miner", "plunder"),
        # Where the first seed's solvers lie apart most: the largest Z-scores, of either sign, of any of them.
        ablated=("chaser", "dodgeball", "plunder", "starpilot"),
        start=_DAY_START,
        # Half the size plays as well on validation levels and is cheaper.
        train=candidate(_DAY_START, "small"),
        levels=500,
        # The best action of a solver that learned from a policy with noise often leaves it stuck.
        temperature=0.5,
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
