"""Solvers as folders: weights (safetensors), configuration and spaces (JSON), and a model card.

The format is that of checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import dtsn
from dtsn.checkpoint import CheckpointError, check_tensors, load_state, load_tensors_of, save_checkpoint
from dtsn.config import NetworkConfig, SolverConfig
from dtsn.errors import UserError, brief
from dtsn.models.spaces import parts
from dtsn.models.world_model import WorldModel, update_average
from dtsn.settings import config_from_dict
from dtsn.storage import replace_durably

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver

TARGET = "target_encoder."  # only training needs these parameters
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
MAX_VALUES = 1 << 22  # in an observation of a folder that is to be believed
MAX_ACTIONS = 1 << 12
BOX_DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
]


@dataclass(frozen=True)
class SavedSolver:
    """What a folder holds."""

    folder: Path
    solver: SolverConfig
    network: NetworkConfig
    observation_space: gymnasium.Space[Any]
    num_actions: int
    dtype: torch.dtype
    environment: str | None
    tensors: dict[str, Tensor]
    own: str | None  # what its maker brought: encoder or world_model


def save_solver(solver: Solver, folder: Path) -> Path:
    """Write a solver as ``folder``, in place of an earlier one; other things there are left alone."""
    if solver.network is None or solver.observation_space is None:
        raise UserError(
            "the solver's modules are your own, which a folder cannot describe: keep its state_dict(), or "
            "make the solver by Solver.create(..., world_model=...)"
        )
    if folder.exists() and not (folder / "state.json").is_file():
        raise FileExistsError(f"{folder} is not a saved solver: choose another folder")
    state = {
        "version": dtsn.__version__,
        "config": {
            "solver": dataclasses.asdict(solver.config),
            "network": dataclasses.asdict(solver.network),
        },
        "observation_space": space_to_json(solver.observation_space),
        "num_actions": solver.world_model.num_actions,
        "dtype": str(solver.dtype).removeprefix("torch."),
        "own_encoder": solver.own == "encoder",
        "own_world_model": solver.own == "world_model",
        "environment": solver.environment,
    }
    shape = solver.observation_shape
    state |= {} if shape is None else {"observation_shape": list(shape)}
    weights = {name: tensor.cpu() for name, tensor in solver.state_dict().items()}
    save_checkpoint(folder, {"model": weights}, state)
    replace_durably(folder / "README.md", model_card(solver).encode())
    return folder


def read_solver(folder: Path, **own: Any) -> SavedSolver:
    """Read a folder of :func:`save_solver`; ``own`` modules are the reader's, or None."""
    state = load_state(folder)
    if "observation_space" not in state:
        raise CheckpointError(f"{folder} is a checkpoint of a training run: use load_solver")
    try:
        config = state["config"]
        saved = SavedSolver(
            folder=folder,
            solver=config_from_dict(SolverConfig, config["solver"]),
            network=config_from_dict(NetworkConfig, config["network"]),
            observation_space=read_space(state["observation_space"]),
            num_actions=_checked_count("num_actions", state["num_actions"], MAX_ACTIONS),
            dtype=DTYPES[state.get("dtype", "float32")],
            environment=state.get("environment"),
            tensors=load_tensors_of(folder, "model", state),
            own=next((name for name in own if state.get(f"own_{name}")), None),
        )
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CheckpointError(f"{folder} does not hold a solver of this dtsn version: {error}") from error
    for name, given in own.items():
        check_own(folder, name, saved.own == name, given is not None)
    return saved


def check_own(folder: Path, name: str, own: bool, given: bool) -> None:
    """Refuse to read a solver without its maker's ``name``, or with one that it was not made with."""
    if own != given:
        kind, remedy = "dtsn's", f"leave out {name}="
        if own:
            kind, remedy = "its maker's", f"pass a module of that class as {name}="
        raise UserError(f"{folder} holds a solver whose {name.replace('_', ' ')} is {kind}: {remedy}")


def adopt_weights(solver: Solver, tensors: Mapping[str, Tensor]) -> None:
    """Load a solver's weights; an averaged encoder without any becomes a copy of the encoder."""
    solver.load_state_dict(tensors, strict=False)
    averaged = any(name.startswith(TARGET) for name in tensors)
    if solver.target_encoder is not None and not averaged:
        assert isinstance(solver.world_model, WorldModel)
        update_average(solver.target_encoder, solver.world_model.encoder, 0.0)


def with_weights(make: Callable[[], Solver], saved: SavedSolver) -> Solver:
    """Return a solver made by ``make`` with the weights of a folder."""
    try:
        if saved.own is None:
            with torch.device("meta"):  # takes no memory: a folder may claim more than it holds
                empty = make()
            check_tensors(empty.state_dict(), _of_use(saved.tensors, empty), optional=TARGET)
        solver = make()
        tensors = _of_use(saved.tensors, solver)
        check_tensors(solver.state_dict(), tensors, optional=TARGET)
        adopt_weights(solver, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        made = "of this dtsn version" if saved.own is None else f"with this {saved.own.replace('_', ' ')}"
        raise CheckpointError(f"{saved.folder} does not hold a solver {made}: {error}") from error
    return solver


def _of_use(tensors: Mapping[str, Tensor], solver: Solver) -> Mapping[str, Tensor]:
    """Leave out the averaged encoder for a solver without, as when D-TSN's weights act as a Q-network."""
    if solver.target_encoder is not None:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(TARGET)}


def model_card(solver: Solver) -> str:
    """Return the README of a solver's folder: what it is, what it reads, how it is loaded."""
    config, count = solver.config, sum(p.numel() for p in solver.world_model.parameters())
    searches = solver.kind.acting_planner == "best_first"
    planner = f"best-first search, {solver.act_iterations} expansions" if searches else "full expansion"
    own = {"encoder": ", encoder=YourEncoder()", "world_model": ", world_model=your_model"}
    trained = f"\nTrained on `{solver.environment}`.\n" if solver.environment else ""
    return f"""---
library_name: dtsn
tags: [reinforcement-learning, planning, tree-search]
---
# {solver.kind.title} (`{config.name}`)
{trained}
- Observations: `{solver.observation_space}`
- Actions: {solver.world_model.num_actions}
- Planner when acting: {planner}, discount {config.discount:g}
- Parameters: {count:,}

```python
from dtsn import Solver

solver = Solver.load("path/of/this/folder"{own.get(solver.own or "", "")})
action = solver.act(observation, deterministic=True)
```

`model.safetensors` holds the weights, `state.json` the configuration, the spaces and checksums.
Written by dtsn {dtsn.__version__}.
"""


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """Return an observation space as plain JSON."""
    name = type(space).__name__
    match space:
        case spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"type": name, "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"type": name, "n": int(space.n), "start": int(space.start)}
        case spaces.MultiBinary():
            return {"type": name, "shape": list(space.shape)}
        case spaces.MultiDiscrete():
            return {"type": name, "nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
        case spaces.Dict() | spaces.Tuple():
            found = [[key, space_to_json(part)] for key, part in parts(space)]
            return {"type": name, "spaces": found}
        case _:
            raise UserError(f"observation space {space} cannot be saved")


def read_space(said: Any) -> gymnasium.Space[Any]:
    """Read the space that a file claims; a wrong or a huge one is refused before anything is made of it."""
    try:
        _check_size(said)
        return space_from_json(said)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UserError(f"observation_space must be a known space, got {brief(said)}") from error


def space_from_json(said: dict[str, Any]) -> gymnasium.Space[Any]:
    """Return the inverse of :func:`space_to_json`."""
    match said["type"]:
        case "Box":
            if said["dtype"] not in BOX_DTYPES:
                raise UserError(
                    f"observation dtype must be one of {', '.join(BOX_DTYPES)}, got {brief(said['dtype'])}"
                )
            shape, dtype = _checked_shape(said["shape"]), np.dtype(said["dtype"]).type
            low, high = (np.asarray(_unbound(said[name]), np.float64) for name in ("low", "high"))
            return spaces.Box(
                *(np.broadcast_to(_cast(bound, dtype), shape) for bound in (low, high)), shape, dtype
            )
        case "Discrete":
            return spaces.Discrete(_checked_count("n", said["n"]), start=int(said["start"]))
        case "MultiBinary":
            shape = _checked_shape(said["shape"])
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(said["nvec"], start=said["start"])
        case "Dict":
            return spaces.Dict([(str(key), space_from_json(part)) for key, part in said["spaces"]])
        case "Tuple":
            return spaces.Tuple([space_from_json(part) for _, part in said["spaces"]])
        case other:
            raise UserError(f"unknown observation space {other!r}")


def _cast(bound: np.ndarray, dtype: Any) -> np.ndarray:
    """Return a bound in the space's own type; as a float, that of int64 lies just beyond it."""
    if np.dtype(dtype).kind not in "iu":
        return bound.astype(dtype)
    limits = np.iinfo(dtype)
    inside = np.where((bound > limits.min) & (bound < float(limits.max)), bound, 0).astype(dtype)
    ends = np.where(bound >= float(limits.max), limits.max, limits.min).astype(dtype)
    cast: np.ndarray = np.where((bound > limits.min) & (bound < float(limits.max)), inside, ends)
    return cast


def _check_size(said: Any) -> None:
    """Refuse a space of more values than an observation may have, before anything is made of it."""
    values, waiting = 0, [said]
    while waiting:
        part = waiting.pop()
        if "spaces" in part:
            waiting += [inner for _, inner in part["spaces"]]
        elif part["type"] in ("Box", "MultiBinary"):
            values += math.prod(_checked_shape(part["shape"]))
        elif part["type"] == "Discrete":
            values += _checked_count("n", part["n"])
        else:
            nvec = np.asarray(part["nvec"], np.int64)
            values += int(nvec.clip(0, MAX_VALUES).sum())
        if values > MAX_VALUES:
            raise UserError(f"an observation must have at most {MAX_VALUES} values, got more")


def _bound(values: np.ndarray) -> Any:
    """Write a bound as one number if it is the same everywhere; infinity, not in JSON, as text."""
    values = values.astype(np.float64)
    if values.size and (values == values.flat[0]).all():
        values = values.flat[0]
    return np.vectorize(lambda x: x if math.isfinite(x) else str(x), otypes=[object])(values).tolist()


def _unbound(said: Any) -> Any:
    return [_unbound(part) for part in said] if isinstance(said, list) else float(said)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, list) and len(shape) <= 8 else [None]
    if (
        not all(type(side) is int and 0 <= side <= MAX_VALUES for side in sizes)
        or math.prod(sizes) > MAX_VALUES
    ):
        raise UserError(
            f"observation shape must be at most 8 sizes of {MAX_VALUES} values in all, got {brief(shape)}"
        )
    return tuple(sizes)


def _checked_count(name: str, value: Any, most: int = MAX_VALUES) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise UserError(f"{name} must be a whole number from 1 to {most}, got {brief(value)}")
    return value
