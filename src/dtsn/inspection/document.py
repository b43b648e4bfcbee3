"""A search as one plain document: text, figures, JSON and the viewer's page are all made from it.

The types are the schema: :func:`check_search` compares a document with them, docs/search-json.md is
generated from them. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from dtsn.errors import UserError
from dtsn.inspection.schema import MAX_ENTRIES, check_value, markdown_tables
from dtsn.storage import parse_json, read_bounded, replace_durably

FORMAT: Literal["dtsn.search"] = "dtsn.search"
VERSION: Literal[2] = 2
MAX_NODES = MAX_ENTRIES
MAX_OPEN = 100  # nodes of an open set that are listed: all of them would grow with T²
MAX_BYTES = 32 * 2**20
MAX_SIDE = 256  # rows and columns of a grid
PICTURES = ("data:image/png;base64,", "data:image/svg+xml;base64,")

Option: TypeAlias = str | int | float | bool | list[int] | None


class Searcher(TypedDict):
    """How the solver searched."""

    name: Annotated[str, "of the solver: `dtsn`, `search`, `treeqn`, `qnet`"]
    planner: Annotated[Literal["best_first", "full", "one_step"], "what grew the tree"]
    iterations: Annotated[int, "T, the expansions that the search may make"]
    rule: Annotated[str | None, "how it picks nodes; null without an expansion policy"]
    temperature: Annotated[float | None, "of the expansion policy; null without one"]
    discount: Annotated[float, "γ"]
    num_actions: Annotated[int, "A"]


class Source(TypedDict):
    """Where the observation is from."""

    environment: Annotated[str, "`navigation`, `procgen`, or a name of your own"]
    level: Annotated[int, "the level's seed"]
    options: Annotated[dict[str, Option], "of the environment: exits, layout, hall; game, mode"]
    time: Annotated[int, "actions since the start of the episode"]
    seed: Annotated[int, "of the search's random numbers"]


class Node(TypedDict):
    """One node of the tree. Children of invalid actions do not exist and are not listed."""

    id: Annotated[int, "its place in the list; parents come before their children"]
    parent: Annotated[int | None, "id of the parent; null at the root, as are the next two"]
    action: Annotated[int | None, "that leads to it from its parent"]
    root_action: Annotated[int | None, "the first action on its path"]
    depth: Annotated[int, "edges from the root"]
    reward: Annotated[float, "on the edge into it"]
    value: Annotated[float | None, "V; null where it is not evaluated: the root, inner nodes of a full tree"]
    path_value: Annotated[float | None, "V̄, discounted rewards and value from the root; null as `value`"]
    expanded_at: Annotated[int | None, "`t` of the iteration that expanded it; null for a leaf"]
    terminal: Annotated[float, "chance that the episode ends here; above ½ it is never expanded"]
    same_as: Annotated[int | None, "id of the node that stands for the same place and is searched instead"]
    label: Annotated[str | None, "the state in words, where the world is given"]


class OpenNode(TypedDict):
    """A node that could be chosen."""

    id: Annotated[int, "of the node"]
    probability: Annotated[float, "of choosing it, under the rule in use"]


class Iteration(TypedDict):
    """One expansion. A full tree is expanded breadth first, for certain."""

    t: Annotated[int, "from 1"]
    expanded: Annotated[int, "id of the node"]
    probability: Annotated[float, "of that choice"]
    open_size: Annotated[int, "how many nodes could be chosen"]
    open: Annotated[list[OpenNode], f"those nodes, the most probable first, at most {MAX_OPEN}"]
    q: Annotated[
        list[float | None],
        "A Q-values after it; null for invalid actions and where leaves of a full tree are not yet evaluated",
    ]


class Plan(TypedDict):
    """Whether the best path can be walked in the true world, up to the goal if it gets there."""

    steps: Annotated[int, "of the best path; none are counted behind the goal"]
    blocked_at: Annotated[int | None, "the step (from 1) that runs into a wall; null if all can be walked"]
    optimal_steps: Annotated[int, "how many of its first steps each come one nearer to the goal"]


class Grid(TypedDict):
    """A hall of Navigation, and where the true moves lead by each node's actions. Cells are [row, column]."""

    kind: Literal["grid"]
    walls: Annotated[list[list[int]], "rows of 0 and 1"]
    robot: Annotated[list[int], "its cell"]
    goal: Annotated[list[int], "its cell"]
    cells: Annotated[list[list[int]], "of every node; behind a wall they stay before it"]
    blocked: Annotated[list[int], "ids of nodes whose path runs into a wall"]
    true_values: Annotated[list[list[float | None]], "of every cell by value iteration; null in walls"]
    true_q: Annotated[list[float | None], "of the robot's actions; null for collisions"]
    plan: Annotated[Plan, "what the best path is worth in this hall"]


class Picture(TypedDict):
    """The state as a picture."""

    kind: Literal["picture"]
    data: Annotated[str, "a `data:` address, PNG or SVG in base64"]


class Words(TypedDict):
    """The state as text."""

    kind: Literal["text"]
    text: Annotated[str, "shown as it is"]


Scene: TypeAlias = Grid | Picture | Words


class SearchDocument(TypedDict):
    """One search."""

    format: Literal["dtsn.search"]
    version: Literal[2]
    solver: Annotated[Searcher, "who searched"]
    source: Annotated[Source | None, "where; null for an observation from elsewhere"]
    actions: Annotated[list[str], "A names"]
    nodes: Annotated[list[Node], "at most 1 + T·A"]
    iterations: Annotated[list[Iteration], "at most T; fewer if nothing was left to expand"]
    q: Annotated[list[float | None], "A Q-values of the finished tree; null for invalid actions"]
    action: Annotated[int, "the best one"]
    best_path: Annotated[
        list[int],
        "ids from the root to the best leaf below that action; behind a node that is the same place as "
        "another, the path goes on below that one",
    ]
    scene: Annotated[Scene | None, "what the solver saw, if it can be shown"]


def write_search(path: str | Path, document: SearchDocument) -> Path:
    """Write a document as JSON, in one step; one that ``read_search`` would refuse is refused here."""
    path = Path(path)
    check_search(document, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, to_json(document).encode())
    return path


def to_json(document: SearchDocument) -> str:
    """Write the document as text: a line per field, node and iteration, so that two can be compared."""
    lines = []
    for name, value in document.items():
        text = _compact(value)
        if name in ("nodes", "iterations"):
            text = "[\n  " + ",\n  ".join(map(_compact, value)) + "\n ]"  # type: ignore[call-overload]
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def read_search(path: str | Path) -> SearchDocument:
    """Read a document that ``write_search`` wrote; refuse anything else by a ValueError that says why."""
    path = Path(path)
    try:
        content = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; write_search or dtsn plan writes one") from None
    return parse_search(content, str(path))


def parse_search(content: bytes, name: str) -> SearchDocument:
    """Parse the document in a file's ``content``; errors begin with the file's ``name``."""
    try:
        document = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: not JSON ({error}); give a file that dtsn plan wrote") from error
    check_search(document, name)
    return document  # type: ignore[no-any-return]


def check_search(document: Any, name: str = "document") -> None:
    """Raise a ValueError that begins with ``name`` and says what is wrong with a document, if anything is."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UserError(f"{name}: not a {FORMAT} document; write_search or dtsn plan writes one")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise UserError(f"{name}: version {version!r:.80} cannot be read, only {VERSION}; make it anew")
    try:
        check_value(document, SearchDocument)
        _check_tree(document)  # type: ignore[arg-type]
        _check_scene(document)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"{name}: {str(error).lstrip(' .')}") from error


def _check_tree(document: SearchDocument) -> None:
    """Check that the parts fit each other: everything that a reader may follow leads to a node."""
    nodes, iterations, actions = document["nodes"], document["iterations"], len(document["actions"])
    solver = document["solver"]
    _require(solver["num_actions"] == actions >= 1, "solver.num_actions must count the actions")
    _require(1 <= len(iterations) <= solver["iterations"], "solver.iterations must be 1 or more, and enough")
    _require(1 < len(nodes) <= 1 + len(iterations) * actions, "nodes must fit the iterations and actions")
    expanded_at: dict[int, int] = {}
    for t, iteration in enumerate(iterations, 1):
        _require(iteration["expanded"] not in expanded_at, "iterations must expand every node at most once")
        expanded_at[iteration["expanded"]] = t
    for n, node in enumerate(nodes):
        _require(_fits(node, n, nodes, actions, expanded_at), f"nodes[{n}] does not fit the iterations")
        missing = {node["value"] is None, node["path_value"] is None}
        both = len(missing) == 1 and (missing == {False} or n in expanded_at)
        _require(both, f"nodes[{n}] must have a value and a path value")
        _require(0 <= node["terminal"] <= 1, f"nodes[{n}].terminal must lie in [0, 1]")
    edges = [(node["parent"], node["action"]) for node in nodes]
    _require(len(set(edges)) == len(nodes), "nodes must have one child for an action at most")
    for t, iteration in enumerate(iterations, 1):
        ids = [iteration["expanded"], *(entry["id"] for entry in iteration["open"])]
        fits = iteration["t"] == t and len(iteration["q"]) == actions
        fits = fits and all(0 <= n < len(nodes) and _made_at(nodes[n], nodes) < t for n in ids)
        _require(fits, f"iterations[{t - 1}] does not fit the tree")
    path = document["best_path"]
    follows = bool(path) and path[0] == 0 and all(0 < n < len(nodes) for n in path[1:])
    follows = follows and all(nodes[n]["parent"] in (m, nodes[m]["same_as"]) for m, n in pairwise(path))
    follows = follows and len(path) > 1 and nodes[path[1]]["action"] == document["action"]
    _require(follows, "best_path must lead from the root down the tree, by the best action first")
    _require(len(document["q"]) == actions, f"q must have {actions} entries, got {len(document['q'])}")
    _require(0 <= document["action"] < actions, f"action must be in 0 .. {actions - 1}")


def _fits(node: Node, n: int, nodes: list[Node], actions: int, expanded_at: dict[int, int]) -> bool:
    """Tell whether a node is what its place, its parent and the iterations say."""
    parent, action, alias = node["parent"], node["action"], node["same_as"]
    if node["id"] != n or node["expanded_at"] != expanded_at.get(n):
        return False
    if alias is not None and not 0 <= alias < len(nodes):
        return False
    if n == 0:
        return parent is action is node["root_action"] is None and node["depth"] == 0
    if parent is None or action is None or not 0 <= parent < n or not 0 <= action < actions:
        return False
    above = nodes[parent]
    top = action if parent == 0 else above["root_action"]
    expanded = above["expanded_at"] is not None
    return expanded and node["root_action"] == top and node["depth"] == above["depth"] + 1


def _made_at(node: Node, nodes: list[Node]) -> int:
    """Return the iteration that made a node; 0 for the root."""
    return 0 if node["parent"] is None else nodes[node["parent"]]["expanded_at"] or 0


def _check_scene(document: SearchDocument) -> None:
    scene, nodes = document["scene"], len(document["nodes"])
    if scene is None or scene["kind"] == "text":
        return
    if scene["kind"] == "picture":
        _require(scene["data"].startswith(PICTURES), f"scene.data must begin with {' or '.join(PICTURES)}")
        return
    walls = scene["walls"]
    height, width = len(walls), len(walls[0]) if walls else 0
    fits = 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and all(len(row) == width for row in walls)
    _require(fits and all(set(row) <= {0, 1} for row in walls), "scene.walls must be rows of 0 and 1")
    _require(document["actions"] == ["E", "S", "W", "N"], "a grid needs the actions E, S, W, N")
    values = scene["true_values"]
    fits = len(values) == height and all(len(row) == width for row in values)
    _require(fits and len(scene["true_q"]) == 4, "scene.true_values must have the shape of the walls")
    _require(len(scene["cells"]) == nodes, "scene.cells must give the cell of every node")
    for name, cell in _cells(scene):
        inside = len(cell) == 2 and 0 <= cell[0] < height and 0 <= cell[1] < width
        _require(inside, f"the cell of {name} is not on the grid: {cell}")
    _require(all(0 <= n < nodes for n in scene["blocked"]), "scene.blocked must be ids of nodes")
    plan, most = scene["plan"], len(document["best_path"]) - 1
    blocked_at = plan["blocked_at"]
    fits = 0 <= plan["optimal_steps"] <= plan["steps"] <= most
    fits = fits and (blocked_at is None or 1 <= blocked_at <= plan["steps"])
    _require(fits, "scene.plan does not fit the best path")


def _cells(scene: Grid) -> Iterator[tuple[str, list[int]]]:
    yield "robot", scene["robot"]
    yield "goal", scene["goal"]
    yield from ((f"node {n}", cell) for n, cell in enumerate(scene["cells"]))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def schema_page() -> str:
    """Write docs/search-json.md."""
    return f"""# A search as JSON

`dtsn plan --out tree.json` writes one search as a document; `dtsn plan --state tree.json` shows it again,
`dtsn view tree.json` opens it in the browser, and text, figures and the viewer's page are made from the
same document. In Python: `describe_search`, `describe_navigation`, `describe_hall`, `write_search` and
`read_search` of `dtsn.inspection`. `read_search` checks the whole document and refuses files above
{MAX_BYTES // 2**20} MB.

This page is generated from the types in `dtsn.inspection.document` (`python tests/test_inspection.py`).
Version {VERSION}. A is the number of actions, T of expansions. Numbers have seven digits. For the same level,
step and seed the document shows the search that `dtsn eval` makes.

{markdown_tables(SearchDocument)}"""
