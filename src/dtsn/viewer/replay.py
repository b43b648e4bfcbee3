"""The worlds that the viewer can show: each plays an episode again and describes the search for what is next.

The server keeps no state, so an episode is its level, its options and the actions so far.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dtsn.arrays import Bools, Bytes, Ints
from dtsn.envs.game24 import puzzles_of
from dtsn.envs.game24_graph import DECISIONS, build_graph
from dtsn.envs.navigation import ACTION_NAMES, EXIT_LAYOUTS, MOVES, NavigationOptions, make_levels, step
from dtsn.envs.procgen import ACTION_NAMES as PROCGEN_ACTIONS
from dtsn.envs.procgen import GAMES, SPLITS, ProcgenEnv, ProcgenOptions
from dtsn.errors import UserError
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.experts.value_iteration import optimal_steps
from dtsn.inspection.describe import Label, describe_procgen, describe_search, picture, with_search
from dtsn.inspection.document import Picture, SearchDocument, Source, Words
from dtsn.inspection.game24 import PLACES, decide, describe_game24, game_text
from dtsn.inspection.navigation import describe_navigation
from dtsn.solvers.solver import Solver

MAX_ACTIONS = 1000  # of an episode: all of them are played again for every answer
HALLS = ((8, 11), (7, 12), (5, 14))  # of grids of 20 cells a side
TEST_LEVEL = 2_000_003  # of Navigation

TERMINAL_COLOURS = re.compile("\x1b\\[[0-9;]*m")

Options: TypeAlias = dict[str, str]


class Hall(TypedDict):
    """A hall, without a search in it."""

    kind: str
    walls: list[list[int]]
    robot: list[int]
    goal: list[int]
    path: list[list[int]]  # cells that the robot drove through


class State(TypedDict):
    """What the page shows of an episode beside the search."""

    time: int
    outcome: str | None  # goal, collision, time-out or over; None while it goes on
    status: str  # a sentence
    scene: Hall | Picture | Words | None


class Field(TypedDict):
    """A setting of a world: its choices, or those for every value of another field."""

    name: str
    choices: list[str] | dict[str, list[str]]
    by: str | None


class Ask(TypedDict):
    """What of a question concerns a world."""

    level: int
    options: Options
    actions: list[int]
    seed: int
    search: dict[str, Any]  # iterations, rule, temperature


class World(ABC):
    """An environment as the viewer knows it."""

    name: str
    actions: Sequence[str]  # their names
    level: int  # to begin with
    differ = "their first actions differ"  # when two solvers disagree on a level

    def fields(self) -> list[Field]:
        """Return the settings that the page offers; none by default."""
        return []

    def defaults(self, trained_on: dict[str, Any]) -> Options:
        """Return the settings to begin with, by what a run was trained on."""
        return {}

    @abstractmethod
    def answer(self, solver: Solver, ask: Ask) -> tuple[State, SearchDocument | None]:
        """Return the state after the actions so far and, if the episode goes on, the search for the next."""

    def disagree(self, first: Solver, second: Solver, levels: Ints, ask: Ask) -> Bools:
        """Tell on which of the levels ``[L]`` the two solvers do not do the same."""
        differ = []
        for level in levels.tolist():
            question: Ask = {**ask, "level": level, "actions": []}
            one, other = (self.answer(solver, question)[1] for solver in (first, second))
            differ.append(one is not None and other is not None and one["action"] != other["action"])
        return np.array(differ)


class Navigation(World):
    """Navigation on grids of one size."""

    name, actions, level = "navigation", ACTION_NAMES, TEST_LEVEL
    differ = "one arrives, the other does not"

    def __init__(self, size: int = 20):
        self.size = size
        NavigationOptions(size=size, hall=self._halls()[0])  # or it says why not

    def _halls(self) -> list[tuple[int, int]]:
        fitting = [hall for hall in HALLS if hall[1] <= self.size - 2]
        middle = (self.size - 1) // 2
        return fitting if self.size == 20 else [(max(1, middle - 2), min(self.size - 2, middle + 3))]

    def fields(self) -> list[Field]:
        """Return exits, their layout, and the hall."""
        return [
            {"name": "exits", "choices": ["1", "2"], "by": None},
            {"name": "layout", "choices": list(EXIT_LAYOUTS), "by": None},
            {"name": "hall", "choices": [f"{first}-{last}" for first, last in self._halls()], "by": None},
        ]

    def defaults(self, trained_on: dict[str, Any]) -> Options:
        """Return one exit, in the hall and with the layout that a run was trained on."""
        layout, hall = trained_on.get("exit_layout"), trained_on.get("hall")
        if layout not in EXIT_LAYOUTS:
            layout = NavigationOptions().exit_layout
        usual = NavigationOptions().hall if self.size == 20 else self._halls()[0]
        if isinstance(hall, list) and len(hall) == 2 and all(type(edge) is int for edge in hall):
            with contextlib.suppress(ValueError):  # of a hall that cannot be
                usual = NavigationOptions(size=self.size, hall=(hall[0], hall[1])).hall
        return {"exits": "1", "layout": layout, "hall": f"{usual[0]}-{usual[1]}"}

    def _options(self, options: Options) -> NavigationOptions:
        known = self.defaults({}) | {"exits": "2"}
        _refuse_unknown(options, known)
        chosen = known | options
        first, _, last = chosen["hall"].partition("-")
        if not (first.isdecimal() and last.isdecimal() and len(chosen["hall"]) < 9):
            raise UserError(f"hall must be FIRST-LAST, its rows and columns, got {chosen['hall']!r}")
        exits = int(chosen["exits"]) if chosen["exits"] in ("1", "2") else chosen["exits"]
        return NavigationOptions(
            exits=exits,  # type: ignore[arg-type]
            exit_layout=chosen["layout"],
            size=self.size,
            hall=(int(first), int(last)),
        )

    def answer(self, solver: Solver, ask: Ask) -> tuple[State, SearchDocument | None]:
        """Return the hall after the actions, and the search as in ``dtsn eval``."""
        options = self._options(ask["options"])
        state, robot = replay_navigation(ask["level"], options, ask["actions"])
        if state["outcome"] is not None:
            return state, None
        time = len(ask["actions"])
        return state, describe_navigation(
            solver, ask["level"], options, time=time, robot=robot, seed=ask["seed"], **ask["search"]
        )

    def disagree(self, first: Solver, second: Solver, levels: Ints, ask: Ask) -> Bools:
        """Tell where one arrives and the other does not."""
        options, solved = self._options(ask["options"]), []
        for solver in (first, second):
            rows = evaluate_navigation(
                with_search(solver, **ask["search"]), levels, options, seed=ask["seed"]
            )
            solved.append(np.array([row.success for row in rows]))
        differ: Bools = solved[0] != solved[1]
        return differ


def replay_navigation(level: int, options: NavigationOptions, actions: list[int]) -> tuple[State, Ints]:
    """Return an episode so far, and where the robot ``[2]`` is."""
    if any(action >= len(MOVES) for action in actions):
        raise UserError(f"actions of Navigation must lie in 0..{len(MOVES) - 1}, got {max(actions)}")
    start = make_levels([level], options)
    best, robot, outcome = int(optimal_steps(start)[0]), start.robot, None
    path = [robot[0].tolist()]
    for time, action in enumerate(actions, 1):
        if outcome:
            raise UserError(f"actions must end with the episode, after {time - 1}, got {len(actions)}")
        robot, success, collision = step(start.walls, start.goal, robot, np.array([action]))
        path.append(robot[0].tolist())
        if success[0] or collision[0]:
            outcome = "goal" if success[0] else "collision"
        elif time == options.max_steps:
            outcome = "time-out"
    time = len(actions)
    status = {
        None: f"Step {time}; the shortest path from the start has {best}.",
        "goal": f"Goal after {time} steps; the shortest path has {best}.",
        "collision": f"Collision at step {time}.",
        "time-out": f"Out of time after {time} steps.",
    }[outcome]
    hall: Hall = {
        "kind": "grid",
        "walls": start.walls[0].astype(int).tolist(),
        "robot": path[-1],
        "goal": start.goal[0].tolist(),
        "path": path,
    }
    return {"time": time, "outcome": outcome, "status": status, "scene": hall}, robot[0]


class Procgen(World):
    """The games of Procgen."""

    name, actions, level = "procgen", PROCGEN_ACTIONS, SPLITS["test"][0]

    def fields(self) -> list[Field]:
        """Return the game and its mode."""
        modes = {game: list(modes) for game, modes in GAMES.items()}
        return [
            {"name": "game", "choices": list(GAMES), "by": None},
            {"name": "mode", "choices": modes, "by": "game"},
        ]

    def defaults(self, trained_on: dict[str, Any]) -> Options:
        """Return the game and the mode that a run was trained on."""
        game, mode = trained_on.get("game"), trained_on.get("mode")
        game = game if game in GAMES else ProcgenOptions().game
        return {"game": game, "mode": mode if mode in GAMES[game] else ProcgenOptions().mode}

    def _options(self, options: Options) -> ProcgenOptions:
        known = {"game": ProcgenOptions().game, "mode": ProcgenOptions().mode}
        _refuse_unknown(options, known)
        return ProcgenOptions(**(known | options))

    def answer(self, solver: Solver, ask: Ask) -> tuple[State, SearchDocument | None]:
        """Return the frame after the actions, and the search as in ``dtsn eval``."""
        options, time = self._options(ask["options"]), len(ask["actions"])
        game = ProcgenEnv(options.game, options.mode)
        frame, _ = game.reset(options={"level": ask["level"]})
        played = _play(game, frame, {}, ask["actions"])
        outcome = None if not played.done else "goal" if played.info["complete"] else "over"
        words = {
            None: f"Step {time}",
            "goal": f"Completed after {time} steps",
            "over": f"Over after {time} steps",
        }
        status = f"{words[outcome]}; score {played.score:.1f}."
        shown = picture(played.observation.transpose(1, 2, 0))
        state: State = {"time": time, "outcome": outcome, "status": status, "scene": shown}
        if played.done:
            return state, None
        document = describe_procgen(
            solver, played.observation, ask["level"], time=time, seed=ask["seed"], **ask["search"]
        )
        return state, document


class Game24(World):
    """The Game of 24; levels are the test puzzles, over and over."""

    name, actions, level = "dtsn/Game24-v0", PLACES, 0

    def answer(self, solver: Solver, ask: Ask) -> tuple[State, SearchDocument | None]:
        """Return the operations so far and what is left, and the search as in an evaluation."""
        _refuse_unknown(ask["options"], {})
        graph, puzzles, made = build_graph(), puzzles_of("test"), ask["actions"]
        hand = int(puzzles[ask["level"] % len(puzzles)])
        if len(made) > DECISIONS:
            raise UserError(f"actions must end with the game, after {DECISIONS}, got {len(made)}")
        states = decide(hand, made)
        over = len(made) == DECISIONS
        outcome = None if not over else "goal" if graph.is_won[states[-1]] else "over"
        status = {None: f"Decision {len(made)} of {DECISIONS}.", "goal": "Solved.", "over": "Not solved."}
        state: State = {
            "time": len(made),
            "outcome": outcome,
            "status": status[outcome],
            "scene": {"kind": "text", "text": game_text(states, made)},
        }
        if over:
            return state, None
        cards = graph.hands[hand].tolist()
        return state, describe_game24(solver, cards, actions=made, seed=ask["seed"], **ask["search"])


Render: TypeAlias = Callable[[gymnasium.Env], Bytes | str | None]


class GymWorld(World):
    """Any Gymnasium environment with discrete actions whose episodes are decided by seed and actions."""

    def __init__(
        self,
        env: gymnasium.Env,
        *,
        render: Render | None = None,
        actions: Sequence[str] | None = None,
        label: Label | None = None,
        name: str | None = None,
        level: int = 0,
    ):
        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise UserError(f"env must have discrete actions, got {env.action_space}")
        count = int(env.action_space.n)
        if actions is not None and len(actions) != count:
            raise UserError(f"actions must be {count} names, got {len(actions)}")
        self.env, self.render, self.label, self.level = env, render or _own_picture, label, level
        self.actions = tuple(actions or map(str, range(count)))
        self.name = name or (env.spec.id if env.spec else type(env.unwrapped).__name__)

    def answer(self, solver: Solver, ask: Ask) -> tuple[State, SearchDocument | None]:
        """Return the state after the actions, as the render function shows it, and the search."""
        _refuse_unknown(ask["options"], {})
        observation, info = self.env.reset(seed=ask["level"])
        played = _play(self.env, observation, info, ask["actions"])
        time, scene = len(ask["actions"]), _scene(self.render(self.env))
        status = f"{'Over after' if played.done else 'Step'} {time}; return {played.score:g}."
        outcome = "over" if played.done else None
        state: State = {"time": time, "outcome": outcome, "status": status, "scene": scene}
        if played.done:
            return state, None
        source: Source = {
            "environment": self.name,
            "level": ask["level"],
            "options": {},
            "time": time,
            "seed": ask["seed"],
        }
        mask = played.info.get("action_mask")
        document = describe_search(
            solver,
            np.asarray(played.observation),
            seed=_mixed(ask["seed"], ask["level"], time),
            actions=self.actions,
            invalid_actions=None if mask is None else ~np.asarray(mask, dtype=bool),
            label=self.label,
            scene=scene,
            source=source,
            **ask["search"],
        )
        return state, document


@dataclass
class _Played:
    observation: NDArray[Any]
    info: dict[str, Any]
    score: float
    done: bool


def _play(env: gymnasium.Env, observation: Any, info: dict[str, Any], actions: list[int]) -> _Played:
    """Return an episode after its actions."""
    played = _Played(observation, info, 0.0, False)
    for time, action in enumerate(actions):
        if played.done:
            raise UserError(f"actions must end with the episode, after {time}, got {len(actions)}")
        if action >= env.action_space.n:
            raise UserError(f"actions must be below {env.action_space.n}, got {action}")
        observation, reward, terminated, truncated, info = env.step(action)
        played = _Played(observation, info, played.score + float(reward), bool(terminated or truncated))
    return played


def _own_picture(env: gymnasium.Env) -> Bytes | str | None:
    """Return what the environment renders by itself, if it was made with a render mode that returns it."""
    return env.render() if env.render_mode in ("rgb_array", "ansi") else None


def _scene(rendered: Any) -> Picture | Words | None:
    if rendered is None:
        return None
    if isinstance(rendered, str):
        if rendered.lstrip().startswith("<svg"):
            return picture(rendered)
        return {"kind": "text", "text": TERMINAL_COLOURS.sub("", rendered)}
    return picture(np.asarray(rendered))


def _mixed(seed: int, level: int, time: int) -> int:
    """Return a seed for every decision."""
    return int(np.random.SeedSequence([seed, level, time]).generate_state(1, np.uint64)[0] >> 1)


def _refuse_unknown(options: Options, known: Options) -> None:
    if unknown := sorted(set(options) - set(known)):
        raise UserError(f"options must be among {', '.join(known) or 'none'}, got {unknown[0]!r}")
