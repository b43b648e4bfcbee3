"""From a solver to the document of one of its searches, for any observation."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtsn.arrays import Bools, Bytes, Float64s, Ints
from dtsn.config import PlannerName, Rule
from dtsn.envs.procgen import ACTION_NAMES as PROCGEN_ACTIONS
from dtsn.errors import UserError
from dtsn.evaluation.procgen import procgen_noise
from dtsn.inspection.document import (
    FORMAT,
    MAX_NODES,
    MAX_OPEN,
    VERSION,
    Iteration,
    Node,
    Picture,
    Scene,
    SearchDocument,
    Source,
)
from dtsn.search import SearchTree
from dtsn.solvers.solver import Solver

MAX_ITERATIONS = 1000

Label = Callable[[torch.Tensor], str]  # a latent [...] -> the state in words


def describe_search(
    solver: Solver,
    observation: torch.Tensor | NDArray[Any],
    *,
    uniforms: torch.Tensor | None = None,
    seed: int = 0,
    actions: Sequence[str] | None = None,
    invalid_actions: torch.Tensor | NDArray[Any] | None = None,
    label: Label | None = None,
    scene: Scene | None = None,
    source: Source | None = None,
    **search: Any,
) -> SearchDocument:
    """Search once and describe it.

    Args:
        solver: what searches.
        observation: ``[...]``, a single one.
        uniforms: ``[1, T]`` random numbers of the search; ``seed`` draws them if they are not given.
        seed: of ``uniforms``.
        actions: names of the A actions; numbers if not given.
        invalid_actions: ``[A]`` bool, actions that cannot be taken now.
        label: names states for readers, from latents ``[...]``: for worlds whose latents mean something.
        scene: what to show beside the tree, e.g. :func:`picture` of a rendered frame.
        source: where the observation is from.
        **search: ``iterations``, ``rule`` and ``temperature`` to change for this search.

    Returns:
        The document: plain data, ready for :func:`dtsn.inspection.write_search`.
    """
    solver = with_search(solver, **search)
    num_actions, config, planner = solver.world_model.num_actions, solver.config, solver.kind.acting_planner
    check_size(planner, solver.act_iterations, config.depth, num_actions)
    if actions is not None and len(actions) != num_actions:
        raise UserError(f"actions must be {num_actions} names, got {len(actions)}")
    if uniforms is None:
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(1, solver.act_iterations, generator=generator)
    observation = torch.as_tensor(observation)[None]
    invalid = None if invalid_actions is None else torch.as_tensor(invalid_actions, dtype=torch.bool)[None]
    rows = _Rows(solver.plan(observation, uniforms=uniforms, invalid_actions=invalid))
    labels = None if label is None else _labels(solver, observation, rows, label)
    best_first, action = planner == "best_first", int(rows.q.argmax())
    return {
        "format": FORMAT,
        "version": VERSION,
        "solver": {
            "name": config.name,
            "planner": planner,
            "iterations": rows.allowed if best_first else len(rows.selected),
            "rule": config.act_rule if best_first else None,
            "temperature": config.temperature if best_first else None,
            "discount": config.discount,
            "num_actions": num_actions,
        },
        "source": source,
        "actions": list(actions or map(str, range(num_actions))),
        "nodes": _nodes(rows, labels, best_first),
        "iterations": _choices(rows, solver) if best_first else _breadth_first(rows),
        "q": [_q(value) for value in rows.q],
        "action": action,
        "best_path": _best_path(rows, action),
        "scene": scene,
    }


def describe_procgen(
    solver: Solver, frame: Bytes, level: int, *, time: int = 0, seed: int = 0, **search: Any
) -> SearchDocument:
    """Describe the search on a ``frame [3, 64, 64]`` of Procgen, drawn as by ``solver_policy``.

    ``time`` counts the actions that led to the frame. ``search`` may change ``iterations``, ``rule`` and
    ``temperature``.
    """
    solver = with_search(solver, **search)
    uniforms = procgen_noise(np.array([level]), seed, np.array([time]), solver.act_iterations)
    source: Source = {
        "environment": "procgen",
        "level": int(level),
        "options": {},
        "time": time,
        "seed": seed,
    }
    shown = picture(frame.transpose(1, 2, 0))
    return describe_search(
        solver, frame, uniforms=uniforms, actions=PROCGEN_ACTIONS, scene=shown, source=source
    )


def picture(image: Bytes | str) -> Picture:
    """Return a scene of an image ``[H, W, 3]`` (uint8), or of an SVG's text."""
    if isinstance(image, str):
        kind, content = "svg+xml", image.encode()
    else:
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise UserError(f"a picture must be uint8 [H, W, 3], got {image.dtype} {list(image.shape)}")
        try:
            from PIL import Image
        except ImportError as error:
            raise ImportError("pictures need pillow: pip install 'dtsn[viewer]'") from error
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG")
        kind, content = "png", png.getvalue()
    return {"kind": "picture", "data": f"data:image/{kind};base64,{base64.b64encode(content).decode()}"}


def with_search(
    solver: Solver,
    *,
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
) -> Solver:
    """Return the same solver (weights are shared) that searches otherwise when it acts."""
    asked = {"act_iterations": iterations, "act_rule": rule, "temperature": temperature}
    changes = {name: value for name, value in asked.items() if value is not None}
    if iterations is not None and iterations > MAX_ITERATIONS:
        raise UserError(f"iterations must be at most {MAX_ITERATIONS}, got {iterations}")
    changed = copy.copy(solver)
    changed.config = replace(solver.config, **changes)  # type: ignore[arg-type]
    return changed


def check_size(planner: PlannerName, iterations: int, depth: int, actions: int) -> None:
    """Refuse searches whose documents nobody could look at, before they run."""
    if planner == "best_first":
        nodes = 1 + iterations * actions
    else:
        nodes, level = 1 + actions, actions
        for _ in range(1, depth if planner == "full" else 1):
            level *= actions
            nodes += level
            if nodes > MAX_NODES:
                break
    if nodes > MAX_NODES:
        raise UserError(f"the search would have {nodes} nodes or more: at most {MAX_NODES} can be described")


class _Rows:
    """The only tree of a batch as arrays, of the slots that hold a node and the iterations that expand one.

    Both are numbered anew, without gaps: nodes become ids ``[N]``, iterations count from 0.
    """

    def __init__(self, tree: SearchTree):
        row = tree.row(0)
        self.actions, self.allowed = tree.num_actions, tree.selected.shape[1]
        self.slots: Ints = np.flatnonzero(row["exists"])
        self.number = np.full(len(row["exists"]), -1)  # slot -> id
        self.number[self.slots] = np.arange(len(self.slots))
        self.times: Ints = np.flatnonzero(row["selected"] >= 0)  # when something was left to expand
        self.selected: Ints = self.number[row["selected"][self.times]]
        self.parent: Ints = np.concatenate([[-1], self.number[row["parent"][self.slots[1:]]]])
        self.action: Ints = (self.slots - 1) % self.actions
        self.root_action, self.depth = row["root_action"][self.slots], row["depth"][self.slots]
        self.reward, self.value = row["reward"][self.slots], row["value"][self.slots]
        self.path_value = row["path_value"][self.slots]
        self.leaf, self.leaf_value = row["leaf"][self.slots], row["leaf_value"][self.slots]
        self.expanded_at: Ints = np.full(len(self.slots), -1)
        self.expanded_at[self.selected] = np.arange(len(self.selected))
        self.terminal = np.zeros(len(self.slots))
        if tree.terminal is not None:
            self.terminal = tree.terminal[0].double().cpu().numpy()[self.slots]
        self.same_as: Ints = np.arange(len(self.slots))  # the node itself, where it is no alias
        if tree.merging is not None:
            self.same_as = self.number[tree.merging.canonical[0].cpu().numpy()[self.slots]]
        self.q_values, self.q = row["q_values"], tree.q[0].cpu().numpy()
        if np.isnan(self.q).any() or not np.isfinite(self.q.max()) or not np.isfinite(self.path_value).all():
            raise UserError("the search gave values that are not finite: the solver has diverged")

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def alias(self) -> Bools:
        """``[N]`` which nodes are the same place as an earlier one."""
        alias: Bools = self.same_as != np.arange(len(self))
        return alias

    def made_before(self, t: int) -> Ints:
        """List the ids of the nodes that there are when iteration ``t`` chooses."""
        return np.flatnonzero(self.slots < 1 + self.times[t] * self.actions)


def _nodes(rows: _Rows, labels: list[str] | None, best_first: bool) -> list[Node]:
    evaluated = rows.leaf | best_first
    evaluated[0] = False
    nodes: list[Node] = [
        {
            "id": n,
            "parent": int(rows.parent[n]),
            "action": int(rows.action[n]),
            "root_action": int(rows.root_action[n]),
            "depth": int(rows.depth[n]),
            "reward": _number(rows.reward[n]),
            "value": _number(rows.value[n]) if evaluated[n] else None,
            "path_value": _number(rows.path_value[n]) if evaluated[n] else None,
            "expanded_at": None if rows.expanded_at[n] < 0 else int(rows.expanded_at[n]) + 1,
            "terminal": _number(rows.terminal[n]),
            "same_as": int(rows.same_as[n]) if rows.alias[n] else None,
            "label": None if labels is None else labels[n],
        }
        for n in range(len(rows))
    ]
    nodes[0]["parent"] = nodes[0]["action"] = nodes[0]["root_action"] = None
    return nodes


def _choices(rows: _Rows, solver: Solver) -> list[Iteration]:
    """Return the choices of a best-first search, each with the open set that it was made from."""
    iterations: list[Iteration] = []
    for t, chosen in enumerate(rows.selected):
        made = rows.made_before(t)
        waiting = (rows.expanded_at[made] >= t) | (rows.expanded_at[made] < 0)
        ids = made[waiting & ~(rows.terminal[made] > 0.5) & ~rows.alias[made]]
        probability = _policy(rows.path_value[ids].astype(np.float64), solver)
        order = np.argsort(-probability, kind="stable")[:MAX_OPEN]
        iterations.append(
            {
                "t": t + 1,
                "expanded": int(chosen),
                "probability": _number(probability[ids == chosen][0]),
                "open_size": len(ids),
                "open": [{"id": int(ids[k]), "probability": _number(probability[k])} for k in order],
                "q": [_q(value) for value in rows.q_values[rows.times[t]]],
            }
        )
    return iterations


def _policy(path_value: Float64s, solver: Solver) -> Float64s:
    """Return the probability by which the acting rule picks each of the open nodes ``[n]``."""
    config, greedy = solver.config, np.zeros(len(path_value))
    greedy[path_value.argmax()] = 1
    if config.act_rule == "greedy":
        return greedy
    if config.act_rule == "epsilon_greedy":
        return (1 - config.epsilon) * greedy + config.epsilon / len(path_value)
    weight = np.exp((path_value - path_value.max()) / config.temperature)
    policy: Float64s = weight / weight.sum()
    return policy


def _breadth_first(rows: _Rows) -> list[Iteration]:
    """Return the expansions of a full tree, of which nothing is left to chance."""
    iterations: list[Iteration] = []
    below = [np.flatnonzero(rows.leaf & (rows.root_action == action)) for action in range(rows.actions)]
    for t, chosen in enumerate(rows.selected):
        waiting = [n for n in rows.made_before(t).tolist() if n >= chosen]
        newest = np.searchsorted(rows.slots, 1 + (rows.times[t] + 1) * rows.actions) - 1
        known = [len(ids) > 0 and ids[-1] <= newest for ids in below]
        q = [
            _number(rows.path_value[ids].max()) if there else None
            for ids, there in zip(below, known, strict=True)
        ]
        iterations.append(
            {
                "t": t + 1,
                "expanded": int(chosen),
                "probability": 1.0,
                "open_size": len(waiting),
                "open": [{"id": n, "probability": float(n == chosen)} for n in waiting[:MAX_OPEN]],
                "q": q,
            }
        )
    return iterations


def _best_path(rows: _Rows, action: int) -> list[int]:
    """Walk from the root to the leaf that counts most; behind an alias the way goes on from its place."""
    path = _way_to(rows, _best_leaf(rows, rows.root_action == action, rows.leaf_value))
    place = int(rows.same_as[path[-1]])
    if place == path[-1]:
        return path
    below = np.zeros(len(rows), dtype=bool)
    below[place] = True
    for n in range(place + 1, len(rows)):
        below[n] = below[rows.parent[n]]
    if not (rows.leaf & below & ~rows.alias).any():
        return path  # the place is exhausted
    onward = _way_to(rows, _best_leaf(rows, below & ~rows.alias, rows.path_value))
    return path + onward[onward.index(place) + 1 :]


def _best_leaf(rows: _Rows, among: Bools, value: NDArray[Any]) -> int:
    return int(np.where(among & rows.leaf, value, -np.inf).argmax())


def _way_to(rows: _Rows, leaf: int) -> list[int]:
    path = [leaf]
    while path[-1]:
        path.append(int(rows.parent[path[-1]]))
    return path[::-1]


def _labels(solver: Solver, observation: torch.Tensor, rows: _Rows, label: Label) -> list[str]:
    """Return the states in words: the tree keeps no latents, so its expansions are made once more."""
    words = [""] * len(rows)
    with torch.no_grad():
        latents = {0: solver.world_model.encode(observation.to(solver.device))[0]}
        words[0] = label(latents[0])
        for t, chosen in enumerate(rows.selected.tolist()):
            children = solver.world_model.expand(latents.pop(chosen)[None])[0][0]  # [A, ...]
            for action in range(rows.actions):
                n = int(rows.number[1 + rows.times[t] * rows.actions + action])
                if n >= 0:
                    latents[n] = children[action]
                    words[n] = label(children[action])
    return words


def _number(value: Any) -> float:
    """Round to seven digits, all that float32 has."""
    return float(f"{float(value):.7g}") + 0.0  # no negative zero


def _q(value: Any) -> float | None:
    """Return a Q-value; null for an invalid action."""
    return None if np.isneginf(value) else _number(value)
