"""The solvers that the viewer can show: those of the package, runs below one folder, and given ones.

Folders are looked at as if somebody else had made them: what cannot be shown is one entry that says why.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
from starlette.exceptions import HTTPException

from dtsn import pretrained
from dtsn.checkpoint import CheckpointError, checkpoints, count_in, load_state
from dtsn.config import SOLVERS, SolverConfig, TrainConfig
from dtsn.envs.navigation import MOVES
from dtsn.envs.procgen import FRAME_SHAPE, GAMES, NUM_ACTIONS
from dtsn.errors import UserError
from dtsn.evaluation.game24 import known_game24
from dtsn.inspection.describe import check_size
from dtsn.inspection.document import SearchDocument
from dtsn.settings import config_from_dict
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver, observation_in
from dtsn.training.runs import Environment, RunFolder
from dtsn.viewer.replay import Game24, GymWorld, Navigation, Procgen, World

MAX_ITERATIONS = 200
MAX_RUNS = 500  # listed; more are found by name
MAX_DEPTH = 5  # of run folders below the given one
MAX_LOOKED_AT = 20_000  # folders
MAX_CHECKPOINTS = 100  # listed of a run, the newest
MAX_SIDE = 64  # of a hall
SOLVERS_KEPT = 4
SHIPPED, FILE = "shipped", "file"
READ = ("state.json", "model.safetensors")  # of a checkpoint


@dataclass(frozen=True)
class Shown:
    """A solver and the world that it is shown in."""

    solver: Solver
    world: World


@dataclass
class Library:
    """What can be shown. ``given`` are solvers by name, ``documents`` searches by file name."""

    runs: Path | None = None
    device: str = "cpu"
    given: Mapping[str, Shown] = field(default_factory=dict)
    documents: Mapping[str, SearchDocument] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.runs is not None and self.runs.exists() and not self.runs.is_dir():
            raise UserError(f"runs must be a folder, got the file {self.runs}")
        self.root = None if self.runs is None else self.runs.resolve()
        self._load_once = lru_cache(SOLVERS_KEPT)(self._load)

    def entries(self) -> list[dict[str, Any]]:
        """Return what the page lists: name, settings and world of every solver, or why it cannot be shown."""
        entries = [_saved(f"{FILE}/{name}", document) for name, document in self.documents.items()]
        entries += [_entry(name, shown.solver.config, shown.world) for name, shown in self.given.items()]
        if self.root is None:
            return entries
        shipped = sorted(pretrained.FOLDER.glob("navigation-*"))
        entries += [_described(f"{SHIPPED}/{path.name}", path) for path in shipped]
        return entries + [self._of_folder(path) for path in self._folders(self.root)]

    def worlds(self, entries: list[dict[str, Any]]) -> dict[str, World]:
        """Return the worlds of what is listed, by the name that entries give them."""
        worlds: dict[str, World] = {"navigation": Navigation(), "procgen": Procgen()}
        worlds |= {shown.world.name: shown.world for shown in self.given.values()}
        named = {entry["environment"] for entry in entries if "environment" in entry}
        return worlds | {name: _registered(name) for name in named - {FILE, *worlds}}

    def find(self, name: str, step: int | None = None) -> Shown:
        """Find a solver by the name it is listed under, at its newest checkpoint or at a step."""
        if name in self.given:
            return self.given[name]
        path = self._find(name)
        folder = _checkpoint(path, step)
        self._refuse_links(folder, name)
        try:
            changed = (folder / "state.json").stat().st_mtime_ns
        except OSError as error:
            raise CheckpointError(f"there is no checkpoint yet: {error}") from error
        return self._load_once(path, folder, changed)

    def document(self, name: str) -> SearchDocument | None:
        """Return a saved search by the name it is listed under."""
        kind, _, rest = name.partition("/")
        return self.documents.get(rest) if kind == FILE else None

    def _load(self, path: Path, folder: Path, _changed: int) -> Shown:
        world = _examined(path, folder).world
        rules = known_game24() if isinstance(world, Game24) else None
        return Shown(load_solver(folder, self.device, world_model=rules), world)

    def _find(self, name: str) -> Path:
        """Find the folder of a name. What lies outside is unknown, however the path gets there."""
        kind, _, rest = name.partition("/")
        if kind == SHIPPED and rest in os.listdir(pretrained.FOLDER):
            return pretrained.FOLDER / rest
        try:
            path = None if self.root is None else (self.root / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            path = None
        if path is None or not self._is_inside(path):
            raise HTTPException(404, f"unknown run {name!r}: choose one from the list of runs")
        return path

    def _is_inside(self, path: Path) -> bool:
        return any(path.resolve().is_relative_to(root) for root in (self.root, pretrained.FOLDER) if root)

    def _refuse_links(self, folder: Path, name: str) -> None:
        """Refuse a checkpoint of which anything that will be read lies elsewhere."""
        read = (folder, *(folder / file for file in READ), RunFolder.of(folder).config_path)
        if not all(self._is_inside(path) for path in read):
            raise HTTPException(404, f"unknown run {name!r}: choose one from the list of runs")

    def _folders(self, root: Path) -> list[Path]:
        """Run folders below the root, and exported solvers."""
        found: list[Path] = []
        for looked_at, (folder, below, files) in enumerate(os.walk(root)):  # does not follow links
            path = Path(folder)
            is_run = "checkpoints" in below or "state.json" in files
            if is_run:
                found.append(path)
            deep = len(path.relative_to(root).parts) >= MAX_DEPTH
            if is_run or deep or len(found) >= MAX_RUNS or looked_at >= MAX_LOOKED_AT:
                below.clear()
            below.sort()
        return found

    def _of_folder(self, path: Path) -> dict[str, Any]:
        assert self.root is not None
        raw = path.relative_to(self.root).as_posix()
        name = raw.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if name != raw:
            return {"name": name, "problem": "its name is not UTF-8: rename the folder"}
        try:
            self._refuse_links(_checkpoint(path, None), name)
        except HTTPException:
            return {"name": name, "problem": "it is linked to a place outside the folder of runs"}
        except ValueError as error:
            return {"name": name, "problem": str(error)}
        entry = _described(name, path)
        if "problem" in entry:  # names in it need not say where the folder of runs is
            entry["problem"] = entry["problem"].replace(f"{self.root}/", "")
        return entry


def check_bounds(config: SolverConfig, actions: int) -> None:
    """Refuse a solver whose search would block everybody else's, before it is loaded."""
    kind = SOLVERS[config.name]
    iterations = config.act_iterations or config.iterations
    if kind.acting_planner == "best_first" and iterations > MAX_ITERATIONS:
        raise UserError(f"act_iterations must be at most {MAX_ITERATIONS} to be shown, got {iterations}")
    check_size(kind.acting_planner, iterations, config.depth, actions)


@dataclass(frozen=True)
class _Run:
    """What a checkpoint says of itself, as far as it can be believed."""

    config: SolverConfig
    world: World
    trained_on: dict[str, Any]
    step: int | None


def _examined(path: Path, folder: Path) -> _Run:
    """Read what a run says, whatever it says; a CheckpointError tells why it cannot be shown."""
    try:
        state = load_state(folder)
        config = config_from_dict(TrainConfig, state.get("config")).solver
        trained_on, actions = _trained_on(path, state), count_in(state, "num_actions", 2**16)
        check_bounds(config, actions)
        if trained_on.id == Game24.name:
            return _Run(config, Game24(), {}, None)
        seen = observation_in(state)
        world = _world(seen if isinstance(seen, tuple) else seen.shape, actions, trained_on.id)
        return _Run(config, world, trained_on.options, count_in(state, "step", 2**53))
    except (KeyError, AttributeError) as error:
        raise CheckpointError(f"its state.json lacks {error}") from error
    except (ValueError, TypeError, OSError, RecursionError, OverflowError) as error:
        raise CheckpointError(str(error)[:300]) from error


def _described(name: str, path: Path) -> dict[str, Any]:
    """Return what the list tells of a run, or why there is nothing to tell."""
    try:
        run = _examined(path, _checkpoint(path, None))
    except CheckpointError as error:
        return {"name": name, "problem": str(error)}
    trained_on = run.trained_on
    if run.world.name == "procgen" and "game" not in trained_on:
        trained_on = {**trained_on, "game": _likely_game(name)}
    return _entry(name, run.config, run.world, trained_on) | {"steps": _steps(path), "step": run.step}


def _entry(
    name: str, config: SolverConfig, world: World, trained_on: dict[str, Any] | None = None
) -> dict[str, Any]:
    planner = SOLVERS[config.name].acting_planner
    searches = planner == "best_first"
    return {
        "name": name,
        "solver": config.name,
        "planner": planner,
        "environment": world.name,
        "size": getattr(world, "size", None),
        "options": world.defaults(trained_on or {}),
        "iterations": config.act_iterations or config.iterations if searches else None,
        "rule": config.act_rule if searches else None,
        "temperature": config.temperature if searches else None,
        "step": None,
        "steps": [],
    }


def _saved(name: str, document: SearchDocument) -> dict[str, Any]:
    """Return the entry of a search that was saved: there is nothing to choose."""
    solver = document["solver"]
    return {
        "name": name,
        "solver": solver["name"],
        "planner": solver["planner"],
        "environment": FILE,
        "size": None,
        "options": {},
        "iterations": None,
        "rule": None,
        "temperature": None,
        "step": None,
        "steps": [],
    }


def _world(shape: tuple[int, ...], actions: int, env_id: str) -> World:
    """Return the world of a run: the one its data are of or, where nothing says so, by shapes."""
    if shape == FRAME_SHAPE and actions == NUM_ACTIONS:
        return Procgen()
    square = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] <= MAX_SIDE
    if square and actions == len(MOVES) and env_id in ("", "dtsn/Navigation-v0"):
        return Navigation(shape[1])
    if env_id.startswith("dtsn/") and env_id in gymnasium.registry:
        return _registered(env_id)
    trained = f"trained on {env_id[:100]!r}" if env_id else "of neither Navigation nor Procgen"
    raise UserError(f"{trained}: show it with dtsn.viewer.show(solver, env)")


@lru_cache(8)
def _registered(env_id: str) -> World:
    """Return one of the package's own environments, which may name states by a method ``label(latent)``."""
    if env_id == Game24.name:
        return Game24()
    env = gymnasium.make(env_id, render_mode="ansi")
    return GymWorld(env, label=getattr(env.unwrapped, "label", None))


def _trained_on(path: Path, state: dict[str, Any]) -> Environment:
    """Return what a run's data are of: by its config.json, or by the state of a solver that was exported."""
    said = RunFolder(path).environment()
    if said is not None:
        return said
    if state.get("environment") == Game24.name:  # a solver that was saved
        return Environment(Game24.name, {})
    exported = state.get("env")
    if isinstance(exported, dict) and isinstance(exported.get("options"), dict):
        return Environment(str(exported.get("id")), exported["options"])
    return Environment("", {})


def _likely_game(name: str) -> str | None:
    """Return the game that a run's name names last."""
    named = [game for game in GAMES if game in name.lower()]
    return max(named, key=name.lower().rfind) if named else None


def _checkpoint(path: Path, step: int | None) -> Path:
    """Return a run's checkpoint of a step, or its newest; the folder itself if it is a checkpoint."""
    if (path / "state.json").exists():
        return path
    found = checkpoints(path / "checkpoints")
    if step is not None:
        found = [folder for folder in found if _step_of(folder) == step]
    if not found:
        wanted = "yet" if step is None else f"of step {step}"
        raise CheckpointError(f"there is no checkpoint {wanted}")
    for folder in reversed(found[-3:]):  # a damaged one is passed over
        try:
            load_state(folder)
        except CheckpointError:
            continue
        return folder
    return found[-1]


def _steps(path: Path) -> list[int]:
    """Return the steps of a run's checkpoints, oldest first; none of a folder that is one checkpoint."""
    if (path / "state.json").exists():
        return []
    return [_step_of(folder) for folder in checkpoints(path / "checkpoints")[-MAX_CHECKPOINTS:]]


def _step_of(folder: Path) -> int:
    return int(folder.name.strip(".").removeprefix("step-").removesuffix(".old")[:18])
