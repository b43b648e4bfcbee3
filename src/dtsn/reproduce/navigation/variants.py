"""Navigation's tables as data: which configurations are trained, on which halls, and how each is tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dtsn.config import SOLVERS, LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.envs.navigation import NavigationOptions
from dtsn.evaluation.rows import Scenario
from dtsn.reproduce.recipes import ABLATIONS, SEARCH_LENGTHS, SOLVER_RECIPES, Recipe

Purpose = Literal["table", "weight_search"]
LevelSet = Literal["levels", "act_levels"]  # the campaign's number of levels for the main tests, or for more

EXITS = (2, 1)
ACT_ITERATIONS = (5, 20, 50)  # searches to act with, besides the one trained with
SHOWN_LEVEL = 2_000_003  # of the test split: its way out is not the way to the goal
TEMPERATURES = (0.5, 1.0, 2.0)  # of the control that draws actions from softmax(Q / temperature)

# The path encoder computes shortest paths, so that a search has nothing left to do.
PATHS = TrainConfig(
    solver=SolverConfig(weights=LossWeights(q=0.1, cql=1.0, transition=0.1, reward=1.0)),
    network=NetworkConfig(encoder="paths", value_scale=10.0),
    steps=2000,
    search_warmup=300,
    augment="grid_symmetries",
)
POOLED = replace(
    PATHS,
    network=NetworkConfig(encoder="grid", value_scale=10.0, precision="bfloat16"),
    steps=3000,
    search_warmup=500,
)
# The training recipe of the main table; `dtsn train` and the demo start from it too.
NAVIGATION = TrainConfig(
    solver=SolverConfig(
        weights=LossWeights(
            q=0.1,
            cql=0.3,
            transition=0.3,
            reward=1.0,
            termination=1.0,
            conservative_reward=0.2,
            conservative_value=0.1,
        )
    ),
    network=NetworkConfig(encoder="maps", value_scale=10.0, termination=True),
    steps=1500,
    batch_size=64,
    learning_rate_warmup=50,
    weight_decay=1e-4,
    search_warmup=100,
    search_ramp=300,
    conservative_ramp=500,
)
# The same without what is not in the paper.
PLAIN = replace(
    NAVIGATION,
    solver=replace(
        NAVIGATION.solver,
        weights=replace(
            NAVIGATION.solver.weights, termination=0.0, conservative_reward=0.0, conservative_value=0.0
        ),
    ),
    network=replace(NAVIGATION.network, termination=False),
)


@dataclass(frozen=True)
class Family:
    """Solvers trained and tested under the same circumstances: a section of the results page."""

    key: str
    heading: str
    text: str
    options: NavigationOptions  # of the halls, with the two exits of training
    train: TrainConfig
    is_current: bool = True  # False: kept as a record of an earlier version; not in the default campaign


@dataclass(frozen=True)
class Trial:
    """A scenario, on one of the campaign's two numbers of levels."""

    scenario: Scenario
    levels: LevelSet = "levels"


@dataclass(frozen=True)
class Variant:
    """A row of a table: what is trained, how often, and how it is tested."""

    key: str  # names its folders
    family: Family
    recipe: Recipe
    train: TrainConfig
    seeds: int
    tests: tuple[Trial, ...] = ()
    plans: bool = False  # whether its plans are checked
    purpose: Purpose = "table"
    weights_of: str = ""  # the variant whose training runs it acts with; "": its own

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.recipe.title

    @property
    def solver(self) -> SolverConfig:
        """How it searches and what it minimises."""
        return self.train.solver

    @property
    def act_iterations(self) -> int:
        """T when acting, if nothing else is asked for."""
        return self.solver.act_iterations or self.solver.iterations

    @property
    def temperatures(self) -> list[float]:
        """Of the drawn actions that it is tested with."""
        found = [test.scenario.temperature for test in self.tests]
        return list(dict.fromkeys(t for t in found if t is not None))

    def scenario(self, exits: int) -> Scenario:
        """Return the scenario of the main table: acting as it was trained."""
        return Scenario(exits, self.act_iterations)

    def config(self, seed: int) -> TrainConfig:
        """Return the training run with a seed."""
        return replace(self.train, seed=seed)

    def options(self, exits: int) -> NavigationOptions:
        """Return the halls it is tested on."""
        return replace(self.family.options, exits=exits)


_MAIN_HALLS = NavigationOptions(hall=(8, 11), exit_layout="opposite")
_OLD_HALLS = NavigationOptions(hall=(7, 12), exit_layout="independent")
FAMILIES = {
    family.key: family
    for family in (
        Family(
            "main",
            "Solvers",
            "Halls with walls on rows and columns 8 to 11 and two exits on opposite sides; no augmentation.",
            _MAIN_HALLS,
            NAVIGATION,
        ),
        Family(
            "plain",
            "The paper's losses alone",
            "The same halls and map latents without what we add to the paper's losses: no termination, no "
            "conservative terms, for any of the four solvers.",
            _MAIN_HALLS,
            PLAIN,
        ),
        Family(
            "hall-7-12",
            "Larger halls: walls on 7 to 12",
            "The same recipe, trained and tested in halls with 4 × 4 cells inside.",
            replace(_MAIN_HALLS, hall=(7, 12)),
            NAVIGATION,
        ),
        Family(
            "hall-5-14",
            "Larger halls: walls on 5 to 14",
            "The same recipe, trained and tested in halls with 8 × 8 cells inside.",
            replace(_MAIN_HALLS, hall=(5, 14)),
            NAVIGATION,
        ),
        Family(
            "independent",
            "Exits placed independently",
            "The same recipe where the two exits are any two cells of the walls, in training and testing.",
            replace(_MAIN_HALLS, exit_layout="independent"),
            NAVIGATION,
        ),
        Family(
            "paths",
            "Path encoder",
            "An encoder that computes shortest paths on the map, for when you know that the world is a map. "
            "It makes the search unnecessary: the Q-network with it is as good as D-TSN. Halls 7 to 12, "
            "independent exits, grid symmetries as augmentation.",
            _OLD_HALLS,
            PATHS,
            is_current=False,
        ),
        Family(
            "paths-opposite",
            "Path encoder, exits on opposite sides",
            "The same with opposite exits, in training and testing.",
            replace(_OLD_HALLS, exit_layout="opposite"),
            PATHS,
            is_current=False,
        ),
        Family(
            "pooled",
            "Pooling encoder",
            "An encoder that pools features over the map and reads them at the robot's and the goal's cell; "
            "halls and augmentation as for the path encoder.",
            _OLD_HALLS,
            POOLED,
            is_current=False,
        ),
        Family(
            "pooled-plain",
            "Pooling encoder without augmentation",
            "The pooling encoder on the 1000 trajectories as they are.",
            _OLD_HALLS,
            replace(POOLED, augment="none"),
            is_current=False,
        ),
    )
}

# The grid of loss weights, the same for every solver: each weight that its loss has, around the recipe's.
SYMBOLS = {"q": "λ1", "cql": "λ2", "transition": "λ3", "reward": "λ4"}
WEIGHT_FACTORS = (0.1, 10.0)
# What it chose: the best mean success over both scenarios on validation levels, the recipe's where none is
# better, the first of equals.
CHOSEN_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "qnet": {"q": 0.01},
    "search": {"q": 0.01},
    "treeqn": {"cql": 3.0},
}

# Rows of the main table beyond the paper's, parts of D-TSN beyond the paper's ablations; and, for the solvers
# that use no transition, the other value form, which suits them better.
EXTENSIONS = {
    "dtsn_graph": Recipe("dtsn_graph", "D-TSN, merged search", settings={"merge": True}, weights_of="dtsn")
}
# Is it training through the search that pays in larger halls, or merging alone?
_SEARCH_GRAPH = Recipe(
    "search_graph",
    "Model-based Search, merged search",
    "search",
    settings={"merge": True},
    weights_of="search",
)
OWN_ABLATIONS = {
    recipe.key: recipe
    for recipe in (
        Recipe(
            "dtsn-no-termination",
            "D-TSN w/o termination",
            without="the termination head",
            weights={"termination": 0},
            network={"termination": False},
        ),
        Recipe(
            "dtsn-no-conservative-reward",
            "D-TSN w/o conservative reward",
            without="the conservative reward",
            weights={"conservative_reward": 0},
        ),
        Recipe(
            "dtsn-no-conservative-value",
            "D-TSN w/o conservative value",
            without="the conservative value",
            weights={"conservative_value": 0},
        ),
        Recipe(
            "dtsn-joint-value",
            "D-TSN, joint value",
            without="the additive value",
            network={"value": "joint"},
        ),
        Recipe(
            "dtsn-ranking",
            "D-TSN with the ranking loss",
            added="the ranking loss",
            weights={"ranking": 1.0},
        ),
        Recipe("qnet-joint-value", "Q-network, joint value", "qnet", network={"value": "joint"}),
        Recipe("treeqn-joint-value", "TreeQN, joint value", "treeqn", network={"value": "joint"}),
    )
}
_BFLOAT16 = Recipe("dtsn-bfloat16", "D-TSN, encoder in bfloat16", network={"precision": "bfloat16"})


def _tests(train: TrainConfig, more: bool, levels: LevelSet) -> tuple[Trial, ...]:
    """Return how a solver is tested: as trained, and ``more``: greedily, or with drawn actions."""
    solver = train.solver
    trained = solver.act_iterations or solver.iterations
    tests = [Trial(Scenario(exits, trained), levels) for exits in EXITS]
    if not more:
        return tuple(tests)
    if searches(solver.name):
        tests += [Trial(Scenario(exits, trained, "greedy"), levels) for exits in EXITS]
    else:
        tests += [
            Trial(Scenario(exits, trained, temperature=temperature), "act_levels")
            for temperature in TEMPERATURES
            for exits in EXITS
        ]
    return tuple(tests)


def searches(solver: str) -> bool:
    """Tell whether a solver acts by best-first search, so that T and the rule say something."""
    return SOLVERS[solver].acting_planner == "best_first"


def _family(
    family: Family,
    recipes: Iterable[Recipe],
    seeds: int,
    *,
    more: bool = True,
    act: Iterable[str] = (),
    levels: LevelSet = "act_levels",
) -> list[Variant]:
    """List the variants of a family; those of ``act`` are tested with other searches too.

    The main family's keys are the recipes' own.
    """
    found = []
    for recipe in recipes:
        train = recipe.applied(_weighted(family, recipe.solver))
        tests = _tests(train, more, levels)
        if recipe.key in act:
            searched = [Scenario(exits, t) for t in ACT_ITERATIONS for exits in EXITS]
            tests += tuple(Trial(scenario, "act_levels") for scenario in searched)
        prefix = "" if family.key == "main" else f"{family.key}-"
        shared = recipe.weights_of and prefix + recipe.weights_of
        key = prefix + recipe.key
        found.append(Variant(key, family, recipe, train, seeds, tests, plans=more, weights_of=shared))
    return found


def _weighted(family: Family, solver: str) -> TrainConfig:
    """Return the family's configuration with the loss weights that were chosen for a solver."""
    if not family.is_current:
        return family.train
    base = family.train.solver
    weights = replace(base.weights, **CHOSEN_WEIGHTS.get(solver, {}))
    return replace(family.train, solver=replace(base, weights=weights))


def _weight_search(family: Family) -> list[Variant]:
    """Return every solver with one of its weights changed at a time; validated alone, never tested."""
    found = []
    for solver, recipe in SOLVER_RECIPES.items():
        tried = [replace(recipe, key=f"weights-{solver}", title="the recipe's")]
        for term, symbol in SYMBOLS.items():
            chosen = getattr(family.train.solver.weights, term)
            for value in (factor * chosen for factor in WEIGHT_FACTORS if term in SOLVERS[solver].losses):
                key, title = f"weights-{solver}-{term}-{value:g}", f"{symbol} = {value:g}"
                tried.append(replace(recipe, key=key, title=title, weights={term: value}))
        for one in tried:
            train = one.applied(family.train)
            found.append(Variant(one.key, family, one, train, 1, purpose="weight_search"))
    return found


def _variants() -> dict[str, Variant]:
    main, solvers = FAMILIES["main"], SOLVER_RECIPES.values()
    both = [SOLVER_RECIPES["qnet"], SOLVER_RECIPES["dtsn"], *EXTENSIONS.values()]
    every = [*solvers, *ABLATIONS.values()]
    old = {key: FAMILIES[key] for key in ("paths", "paths-opposite", "pooled", "pooled-plain")}
    found = [
        *_family(main, [*solvers, *EXTENSIONS.values()], 5, act=("search", "dtsn"), levels="levels"),
        *_family(main, [*ABLATIONS.values(), *OWN_ABLATIONS.values()], 3, act=("dtsn-ranking",)),
        *_family(main, SEARCH_LENGTHS.values(), 3, more=False),
        *_family(FAMILIES["plain"], solvers, 3),
        *_family(
            FAMILIES["hall-7-12"],
            [*solvers, _SEARCH_GRAPH, *EXTENSIONS.values()],
            5,
            act=("search", "search_graph", "dtsn", "dtsn_graph"),
        ),
        *_family(FAMILIES["hall-5-14"], both, 2),
        *_family(FAMILIES["independent"], [*solvers, *EXTENSIONS.values()], 2),
        *_weight_search(main),
        *_family(old["paths"], [*every, *SEARCH_LENGTHS.values(), _BFLOAT16], 1, more=False),
        *_family(old["paths-opposite"], solvers, 1, more=False),
        *_family(old["pooled"], solvers, 1, more=False),
        *_family(old["pooled-plain"], every, 1, more=False),
    ]
    return {variant.key: variant for variant in found}


VARIANTS: Mapping[str, Variant] = _variants()


def of_family(key: str) -> list[Variant]:
    """Return the variants of a family's tables."""
    return [row for row in VARIANTS.values() if row.family.key == key and row.purpose == "table"]
