"""A search as one plain document: what the viewer, ``dtsn plan`` and the golden tests read.

``describe_navigation`` (a level), ``describe_hall`` (any grid), ``describe_procgen`` (a frame of a level) and
``describe_search`` (any observation) make it; ``write_search`` and ``read_search`` keep it as JSON.
Version 1, with A actions and N = 1 + T·A nodes::

    format, version   "dtsn.search", 1
    solver            name, planner (best_first, full, one_step), iterations (T), rule, temperature (both null
                      without an expansion policy), discount, num_actions (A)
    source            null, or {"environment": "navigation", "level", "exits", "exit_layout", "time", "seed"}
    actions           [A] names
    nodes             [N], slot by slot: id, parent, action, root_action (null at the root), depth, reward,
                      value, path_value (null where the solver does not evaluate the node: the root and
                      inner nodes of a full tree), expanded_at (t, or null for a leaf)
    iterations        [T]: t (1 to T), expanded (id), probability (of that choice), open_size, open and q [A].
                      open lists the nodes that could be chosen as {id, probability}, the most probable
                      first, at most 100 of the open_size there are. q is null for an action whose leaves are
                      not all evaluated yet (only in full trees).
    q, action         [A] Q-values of the finished tree, and the best action
    best_path         ids from the root to the best leaf below that action
    cells             null, or {"id": [row, column]} of every node: where its actions lead by the true moves
    blocked           null, or ids whose path runs into a wall; they stay where they ran into it
    grid              null, or {"walls": [H][W] of 0 and 1, "robot": [row, column], "goal": [row, column]}

Numbers are rounded to seven digits, all that float32 has. A full tree is expanded breadth first, for certain.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dtsn.config import Rule
from dtsn.envs.navigation import ACTION_NAMES, MOVES, NavigationOptions, make_levels, observe, step
from dtsn.envs.procgen import ACTION_NAMES as PROCGEN_ACTIONS
from dtsn.evaluation.navigation import search_noise, trace_navigation
from dtsn.evaluation.procgen import procgen_noise
from dtsn.search import SearchTree
from dtsn.solvers.solver import Solver
from dtsn.storage import replace_durably

Document = dict[str, Any]

FORMAT, VERSION = "dtsn.search", 1
MAX_ITERATIONS = 1000
MAX_NODES = 20_000
MAX_OPEN = 100  # nodes of an open set that are listed: all of them would grow with T²
MAX_BYTES = 32 * 2**20


def describe_navigation(
    solver: Solver,
    level: int,
    options: NavigationOptions | None = None,
    *,
    time: int = 0,
    robot: ArrayLike | None = None,
    seed: int = 0,
    **search: Any,
) -> Document:
    """The search of one decision in a level, with the same random numbers as in ``evaluate_navigation``.

    ``robot`` is where it stands at ``time``; if not given, where the solver itself has driven it by then.
    ``search`` may change ``iterations``, ``rule`` and ``temperature``.
    """
    options = options or NavigationOptions()
    if time < 0 or seed < 0:
        raise ValueError(f"time and seed must not be negative, got time {time} and seed {seed}")
    solver = with_search(solver, **search)
    start = make_levels([level], options)
    if robot is None:
        robot = _robot_at(solver, level, options, time, seed) if time else start.robot[0]
    source = {"environment": "navigation", "level": int(level), "exits": options.exits}
    source |= {"exit_layout": options.exit_layout, "time": time, "seed": seed}
    uniforms = search_noise(start.seeds, seed, time, solver.act_iterations)
    return describe_hall(solver, start.walls[0], start.goal[0], robot, uniforms=uniforms, source=source)


def watch_navigation(
    solver: Solver, level: int, options: NavigationOptions | None = None, *, seed: int = 0, **search: Any
) -> Iterator[tuple[Document, str]]:
    """Every decision of an episode and what it led to: "", "arrived", "collided" or "out of time"."""
    options = options or NavigationOptions()
    start = make_levels([level], options)
    robot = start.robot
    for time in range(options.max_steps):
        document = describe_navigation(solver, level, options, time=time, robot=robot[0], seed=seed, **search)
        robot, arrived, hit = step(start.walls, start.goal, robot, [document["action"]])
        late = "out of time" if time + 1 == options.max_steps else ""
        yield document, "arrived" if arrived[0] else "collided" if hit[0] else late
        if arrived[0] or hit[0]:
            return


def _robot_at(solver: Solver, level: int, options: NavigationOptions, time: int, seed: int) -> NDArray[Any]:
    """The cell ``[2]`` in which the solver makes its decision number ``time`` (from 0)."""
    decisions = min(time + 1, options.max_steps)
    cells = trace_navigation(solver, level, replace(options, max_steps=decisions), seed)
    if len(cells) <= time + 1:
        raise ValueError(f"time must be below {len(cells) - 1}, where the episode ends, got {time}")
    cell: NDArray[Any] = cells[time]
    return cell


def describe_hall(
    solver: Solver,
    walls: ArrayLike,
    goal: ArrayLike,
    robot: ArrayLike,
    *,
    uniforms: torch.Tensor | None = None,
    seed: int = 0,
    source: dict[str, Any] | None = None,
    **search: Any,
) -> Document:
    """The search on any grid: ``walls [H, W]``, ``goal [2]`` and ``robot [2]`` (row, column)."""
    walls, goal, robot = np.asarray(walls, dtype=bool), np.asarray(goal), np.asarray(robot)
    if walls.ndim != 2:
        raise ValueError(f"walls must be a grid [H, W], got shape {list(walls.shape)}")
    for name, cell in (("goal", goal), ("robot", robot)):
        if cell.shape != (2,) or not np.issubdtype(cell.dtype, np.integer):
            raise ValueError(f"{name} must be (row, column), got {cell.tolist()}")
        if (cell < 0).any() or (cell >= walls.shape).any() or walls[tuple(cell)]:
            raise ValueError(f"{name} must be on a free cell of the {walls.shape} grid, got {cell.tolist()}")
    observation = observe(walls[None], goal[None], robot[None])[0]
    document = describe_search(
        solver, observation, uniforms=uniforms, seed=seed, actions=ACTION_NAMES, source=source, **search
    )
    cells, blocked = _walk(walls, robot, document["nodes"])
    grid = {"walls": walls.astype(int).tolist(), "robot": robot.tolist(), "goal": goal.tolist()}
    return document | {"cells": cells, "blocked": blocked, "grid": grid}


def search_again(solver: Solver, document: Document, *, seed: int = 0, **search: Any) -> Document:
    """The search of a solver in the hall of a document, at the same level and time if it names them."""
    grid, source = document["grid"], document["source"]
    if grid is None:
        raise ValueError("the document holds no hall to search anew: give the observation as .npy")
    solver, uniforms = with_search(solver, **search), None
    if source is not None:
        source = source | {"seed": seed}
        uniforms = search_noise(np.array([source["level"]]), seed, source["time"], solver.act_iterations)
    return describe_hall(solver, **grid, uniforms=uniforms, seed=seed, source=source)


def describe_observation(solver: Solver, path: Path, *, seed: int = 0, **search: Any) -> Document:
    """The search on an observation saved as ``.npy``; one that shows a hall is described as a hall."""
    try:
        observation = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not an array that numpy.save wrote ({error})") from error
    shape = solver.observation_shape
    if observation.shape != shape:
        raise ValueError(f"{path}: must have shape {shape}, got {observation.shape}")
    observation = np.array(observation)
    if solver.world_model.num_actions == len(MOVES) and _shows_hall(observation):
        robot, goal = (np.argwhere(observation[plane])[0] for plane in (2, 1))
        return describe_hall(solver, observation[0] == 1, goal, robot, seed=seed, **search)
    return describe_search(solver, observation, seed=seed, **search)


def _shows_hall(observation: NDArray[Any]) -> bool:
    """Whether these are Navigation's planes ``[3, H, W]``: walls, and one goal and robot off them."""
    if observation.ndim != 3 or len(observation) != 3 or not np.isin(observation, (0, 1)).all():
        return False
    walls, goal, robot = observation
    return bool(goal.sum() == robot.sum() == 1 and not (walls * (goal + robot)).any())


def describe_procgen(
    solver: Solver, frame: NDArray[np.uint8], level: int, *, time: int = 0, seed: int = 0, **search: Any
) -> Document:
    """The search on a ``frame [3, 64, 64]`` of a Procgen level, with the random numbers of ``solver_policy``.

    ``time`` counts the actions that led to the frame. ``search`` may change ``iterations``, ``rule`` and
    ``temperature``.
    """
    solver = with_search(solver, **search)
    uniforms = procgen_noise(np.array([level]), seed, np.array([time]), solver.act_iterations)
    return describe_search(solver, frame, uniforms=uniforms, actions=PROCGEN_ACTIONS)


def describe_search(
    solver: Solver,
    observation: torch.Tensor | NDArray[Any],
    *,
    uniforms: torch.Tensor | None = None,
    seed: int = 0,
    actions: tuple[str, ...] | None = None,
    source: dict[str, Any] | None = None,
    **search: Any,
) -> Document:
    """The search on one ``observation [...]``, by ``uniforms [1, T]`` or those that ``seed`` draws.

    ``search`` may change ``iterations``, ``rule`` and ``temperature``.
    """
    solver = with_search(solver, **search)
    num_actions, config = solver.world_model.num_actions, solver.config
    _check_size(solver, num_actions)
    if uniforms is None:
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(1, solver.act_iterations, generator=generator)
    tree = solver.plan(torch.as_tensor(observation)[None], uniforms=uniforms)
    row = tree.row(0)
    q = tree.q[0].cpu().numpy()
    if not (np.isfinite(q).all() and np.isfinite(row["path_value"]).all()):
        raise ValueError("the search gave values that are not finite: the solver has diverged")
    best_first, action = solver.kind.acting_planner == "best_first", int(q.argmax())
    nodes = _nodes(row, num_actions, best_first)
    return {
        "format": FORMAT,
        "version": VERSION,
        "solver": {
            "name": config.name,
            "planner": solver.kind.acting_planner,
            "iterations": len(row["selected"]),
            "rule": config.act_rule if best_first else None,
            "temperature": config.temperature if best_first else None,
            "discount": config.discount,
            "num_actions": num_actions,
        },
        "source": source,
        "actions": list(actions or map(str, range(num_actions))),
        "nodes": nodes,
        "iterations": _iterations(row, solver) if best_first else _breadth_first(row, num_actions),
        "q": [_number(value) for value in q],
        "action": action,
        "best_path": _best_path(tree, action),
        "cells": None,
        "blocked": None,
        "grid": None,
    }


def with_search(
    solver: Solver,
    *,
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
) -> Solver:
    """The same solver (weights are shared) that searches otherwise when it acts."""
    asked = {"act_iterations": iterations, "act_rule": rule, "temperature": temperature}
    changes = {name: value for name, value in asked.items() if value is not None}
    if iterations is not None and iterations > MAX_ITERATIONS:
        raise ValueError(f"iterations must be at most {MAX_ITERATIONS}, got {iterations}")
    changed = copy.copy(solver)
    changed.config = replace(solver.config, **changes)  # type: ignore[arg-type]
    return changed


def _check_size(solver: Solver, actions: int) -> None:
    """Refuse searches whose documents nobody could look at, before they run."""
    if solver.kind.acting_planner == "best_first":
        nodes = 1 + solver.act_iterations * actions
    else:
        depth = solver.config.depth if solver.kind.acting_planner == "full" else 1
        nodes = sum(actions**level for level in range(depth + 1))
    if nodes > MAX_NODES:
        raise ValueError(f"the search would have {nodes} nodes: at most {MAX_NODES} can be described")


def _nodes(row: dict[str, NDArray[Any]], actions: int, best_first: bool) -> list[dict[str, Any]]:
    leaf = row["expanded_at"] == len(row["selected"])
    evaluated = leaf | best_first
    evaluated[0] = False
    nodes = [
        {
            "id": n,
            "parent": int(row["parent"][n]),
            "action": (n - 1) % actions,
            "root_action": int(row["root_action"][n]),
            "depth": int(row["depth"][n]),
            "reward": _number(row["reward"][n]),
            "value": _number(row["value"][n]) if evaluated[n] else None,
            "path_value": _number(row["path_value"][n]) if evaluated[n] else None,
            "expanded_at": None if leaf[n] else int(row["expanded_at"][n]) + 1,
        }
        for n in range(len(leaf))
    ]
    nodes[0] |= {"parent": None, "action": None, "root_action": None}
    return nodes


def _iterations(row: dict[str, NDArray[Any]], solver: Solver) -> list[dict[str, Any]]:
    """The choices of a best-first search, each with the open set that it was made from."""
    actions, iterations = solver.world_model.num_actions, []
    for t, chosen in enumerate(row["selected"]):
        made = np.arange(1 + t * actions)
        ids = made[row["expanded_at"][made] >= t]
        probability = _policy(row["path_value"][ids].astype(np.float64), solver)
        order = np.argsort(-probability, kind="stable")[:MAX_OPEN]
        iterations.append(
            {
                "t": t + 1,
                "expanded": int(chosen),
                "probability": _number(probability[ids == chosen][0]),
                "open_size": len(ids),
                "open": [{"id": int(ids[k]), "probability": _number(probability[k])} for k in order],
                "q": [_number(value) for value in row["q_values"][t]],
            }
        )
    return iterations


def _policy(path_value: NDArray[np.float64], solver: Solver) -> NDArray[np.float64]:
    """With what probability the acting rule picks each of the open nodes ``[n]``."""
    config, greedy = solver.config, np.zeros(len(path_value))
    greedy[path_value.argmax()] = 1
    if config.act_rule == "greedy":
        return greedy
    if config.act_rule == "epsilon_greedy":
        return (1 - config.epsilon) * greedy + config.epsilon / len(path_value)
    weight = np.exp((path_value - path_value.max()) / config.temperature)
    policy: NDArray[np.float64] = weight / weight.sum()
    return policy


def _breadth_first(row: dict[str, NDArray[Any]], actions: int) -> list[dict[str, Any]]:
    """The expansions of a full tree, of which nothing is left to chance."""
    steps, iterations = len(row["selected"]), []
    leaf = row["expanded_at"] == steps
    below = [np.flatnonzero(leaf & (row["root_action"] == action)) for action in range(actions)]
    for t in range(steps):
        waiting = range(t, 1 + t * actions)  # slots are numbered in breadth-first order
        opened = [{"id": n, "probability": float(n == t)} for n in waiting[:MAX_OPEN]]
        last = (t + 1) * actions  # the newest slot
        q = [_number(row["path_value"][ids].max()) if ids[-1] <= last else None for ids in below]
        iterations.append(
            {"t": t + 1, "expanded": t, "probability": 1.0, "open_size": len(waiting), "open": opened, "q": q}
        )
    return iterations


def _best_path(tree: SearchTree, action: int) -> list[int]:
    leaf = (tree.expanded_at[0] == tree.selected.shape[1]) & (tree.root_action[0] == action)
    node = int(tree.path_value[0].masked_fill(~leaf, -torch.inf).argmax())
    path = [node]
    while path[-1]:
        path.append(int(tree.parent[0, path[-1]]))
    return path[::-1]


def _walk(
    walls: NDArray[np.bool_], robot: NDArray[Any], nodes: list[dict[str, Any]]
) -> tuple[dict[str, list[int]], list[int]]:
    """Where the true dynamics lead by each node's actions, and the nodes whose path runs into a wall."""
    cells, blocked = np.tile(robot, (len(nodes), 1)), np.zeros(len(nodes), dtype=bool)
    goal = np.array([[-1, -1]])  # an episode would end at the goal; a latent path goes on
    for node in nodes[1:]:
        parent, n = node["parent"], node["id"]
        cells[n], blocked[n] = cells[parent], blocked[parent]
        if not blocked[n]:
            moved, _, collision = step(walls[None], goal, cells[n][None], [node["action"]])
            cells[n], blocked[n] = moved[0], collision[0]
    return {str(n): cell for n, cell in enumerate(cells.tolist())}, np.flatnonzero(blocked).tolist()


def _number(value: Any) -> float:
    return float(f"{float(value):.7g}") + 0.0  # no negative zero


# --- on disk -----------------------------------------------------------------------------------------


def write_search(path: str | Path, document: Document) -> Path:
    """Write a document as JSON, in one step; one that ``read_search`` would refuse is refused here."""
    path = Path(path)
    check_search(document, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, to_json(document).encode())
    return path


def to_json(document: Document) -> str:
    """The document as text: a line per field, node and iteration, so that two of them can be compared."""
    compact = (",", ":")
    lines = []
    for name, value in document.items():
        text = json.dumps(value, separators=compact, allow_nan=False)
        if name in ("nodes", "iterations"):
            rows = (json.dumps(item, separators=compact, allow_nan=False) for item in value)
            text = "[\n  " + ",\n  ".join(rows) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_search(path: str | Path) -> Document:
    """A document that ``write_search`` wrote; anything else is refused by a ValueError that says why."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; dtsn plan --out {path} writes one")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: larger than {MAX_BYTES // 2**20} MB, so not a search that dtsn wrote")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); give a file that dtsn plan wrote") from error
    check_search(document, str(path))
    return document  # type: ignore[no-any-return]


_SOURCE = {"environment": str, "level": int, "exits": int, "exit_layout": str, "time": int, "seed": int}
_OPEN = {"id": int, "probability": float}
_FIELDS: dict[str, Any] = {
    "format": str,
    "version": int,
    "solver": {
        "name": str,
        "planner": str,
        "iterations": int,
        "rule": (str, None),
        "temperature": (float, None),
        "discount": float,
        "num_actions": int,
    },
    "source": (_SOURCE, None),
    "actions": [str],
    "nodes": [
        {
            "id": int,
            "parent": (int, None),
            "action": (int, None),
            "root_action": (int, None),
            "depth": int,
            "reward": float,
            "value": (float, None),
            "path_value": (float, None),
            "expanded_at": (int, None),
        }
    ],
    "iterations": [
        {
            "t": int,
            "expanded": int,
            "probability": float,
            "open_size": int,
            "open": [_OPEN],
            "q": [(float, None)],
        }
    ],
    "q": [float],
    "action": int,
    "best_path": [int],
    "cells": (dict, None),
    "blocked": ([int], None),
    "grid": ({"walls": [[int]], "robot": [int], "goal": [int]}, None),
}


def check_search(document: Any, name: str = "document") -> None:
    """Raise a ValueError that begins with ``name`` and says what is wrong with a document, if anything is."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{name}: not a {FORMAT} document; dtsn plan --out FILE.json writes one")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise ValueError(f"{name}: version {version!r} cannot be read, only {VERSION}; upgrade dtsn")
    try:
        _check_kind(document, _FIELDS)
        _check_tree(document)
        if document["grid"] is not None:
            _check_grid(document)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).lstrip(' .')}") from error


def _check_kind(value: Any, kind: Any) -> None:
    """Compare a JSON value with a type, "this or null" (a tuple), fields (a dict) or items (a list).

    An error begins with the place, which is put together on the way out: most documents are fine.
    """
    if isinstance(kind, tuple):
        if value is not None:
            _check_kind(value, kind[0])
    elif isinstance(kind, dict):
        if not isinstance(value, dict) or set(value) != set(kind):
            fields = ", ".join(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f" must have the fields {', '.join(kind)}; got {fields}")
        for name, inner in kind.items():
            try:
                _check_kind(value[name], inner)
            except ValueError as error:
                raise ValueError(f".{name}{error}") from None
    elif isinstance(kind, list):
        if not isinstance(value, list) or len(value) > MAX_NODES:
            raise ValueError(f" must be a list of at most {MAX_NODES} entries")
        for index, item in enumerate(value):
            try:
                _check_kind(item, kind[0])
            except ValueError as error:
                raise ValueError(f"[{index}]{error}") from None
    elif kind is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f" must be a finite number, got {value!r}")
    elif type(value) is not kind:
        raise ValueError(f" must be of type {kind.__name__}, got {value!r}")


def _check_tree(document: Document) -> None:
    """The parts fit each other: everything that a reader may follow leads to a node."""
    nodes, actions, steps = document["nodes"], len(document["actions"]), len(document["iterations"])
    _require(document["solver"]["num_actions"] == actions >= 1, "solver.num_actions must count the actions")
    _require(document["solver"]["iterations"] == steps >= 1, "solver.iterations must count the iterations")
    _require(len(nodes) == 1 + steps * actions, f"nodes must be 1 + {steps} · {actions}, got {len(nodes)}")
    selected = [iteration["expanded"] for iteration in document["iterations"]]
    _require(len(set(selected)) == steps, "iterations must expand every node at most once")
    for t, iteration in enumerate(document["iterations"]):
        ids = [iteration["expanded"], *(entry["id"] for entry in iteration["open"])]
        fits = iteration["t"] == t + 1 and len(iteration["q"]) == actions
        fits = fits and all(0 <= n <= t * actions for n in ids)
        _require(fits, f"iterations[{t}] does not fit the tree")
    expanded_at = {n: t + 1 for t, n in enumerate(selected)}
    for n, node in enumerate(nodes):
        if n == 0:
            expected = {"id": 0, "parent": None, "action": None, "root_action": None, "depth": 0}
        else:
            parent = nodes[selected[(n - 1) // actions]]
            action = (n - 1) % actions
            top = parent["root_action"] if parent["id"] else action
            expected = {"id": n, "parent": parent["id"], "action": action, "root_action": top}
            expected |= {"depth": parent["depth"] + 1}
        expected |= {"expanded_at": expanded_at.get(n)}
        _require(expected.items() <= node.items(), f"nodes[{n}] does not fit the iterations")
        missing = {node["value"] is None, node["path_value"] is None}
        both = len(missing) == 1 and (missing == {False} or n in expanded_at)
        _require(both, f"nodes[{n}] must have a value and a path value")
    path = document["best_path"]
    follows = bool(path) and path[0] == 0 and all(0 < n < len(nodes) for n in path[1:])
    follows = follows and all(nodes[n]["parent"] == m for m, n in pairwise(path))
    _require(follows, "best_path must lead from the root down the tree")
    _require(len(document["q"]) == actions, f"q must have {actions} numbers, got {len(document['q'])}")
    _require(0 <= document["action"] < actions, f"action must be in 0 .. {actions - 1}")


def _check_grid(document: Document) -> None:
    grid, cells, nodes = document["grid"], document["cells"], len(document["nodes"])
    height, width = len(grid["walls"]), len(grid["walls"][0]) if grid["walls"] else 0
    fits = 0 < height <= 256 and 0 < width <= 256 and all(len(row) == width for row in grid["walls"])
    _require(fits and all(set(row) <= {0, 1} for row in grid["walls"]), "grid.walls must be rows of 0 and 1")
    _require(document["actions"] == list(ACTION_NAMES[: len(MOVES)]), "a grid needs the actions E, S, W, N")
    _require(isinstance(cells, dict) and len(cells) == nodes, "cells must give the cell of every node")
    for name, cell in {"robot": grid["robot"], "goal": grid["goal"], **cells}.items():
        inside = isinstance(cell, list) and len(cell) == 2 and {type(x) for x in cell} == {int}
        inside = inside and 0 <= cell[0] < height and 0 <= cell[1] < width
        _require(inside, f"the cell of {name} is not on the grid: {cell}")
    _require(all(str(n) in cells for n in range(nodes)), "cells must give the cell of every node")
    blocked = document["blocked"]
    _require(blocked is not None and all(0 <= n < nodes for n in blocked), "blocked must be ids of nodes")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
