"""The ways of acting side by side: on tensors, as it is, compiled, exported, and mctx's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dtsn.bench.mctx_policy import mctx_policy, one_core
from dtsn.bench.search import Case
from dtsn.bench.timing import Row, Times, interleave, milliseconds, ratio
from dtsn.config import SolverConfig
from dtsn.models.world_model import WorldModel
from dtsn.solvers.acting_kernel import compiled_kernel
from dtsn.solvers.solver import Solver

Decide = Callable[[], object]


class OnTensors(WorldModel):
    """A world model whose modules run on tensors in any case: subclasses offer no arrays."""


def make_solver(case: Case, kind: type[WorldModel] = WorldModel) -> Solver:
    """Make a D-TSN with the modules of ``case``."""
    model = case.world_model()
    parts = model.encoder, model.transition, model.reward_head, model.value_head
    space = gymnasium.spaces.Box(0, 1, (case.latent,), np.float32)
    config = SolverConfig("dtsn", iterations=case.iterations)
    return Solver(kind(*parts, case.actions, model.latent_shape), config, observation_space=space).eval()


def ways_of_acting(case: Case, run_exported: Callable[[Any], object] | None) -> dict[str, Decide]:
    """Return our decisions for ``case.batch`` observations, by name."""
    observation = case.observation().numpy()
    solver, on_tensors = make_solver(case), make_solver(case, OnTensors)
    found: dict[str, Decide] = {
        "act": lambda: solver.act(observation),
        "greedy on tensors": lambda: on_tensors.act(observation, deterministic=True),
    }
    if compiled_kernel() is not None:
        compiled = make_solver(case)
        compiled.compile_acting()
        found["compiled"] = lambda: compiled.act(observation)
    if run_exported is not None:
        found["exported, greedy"] = lambda: run_exported(observation)
    return found


def exported(solver: Solver) -> Callable[[Any], object] | None:
    """Export the solver to onnxruntime on one thread: a function of observations, None without it."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = solver.export(Path(folder) / "solver.onnx").path
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda observation: session.run(None, {"observation": observation})


def deciding(quick: bool) -> Iterator[Row]:
    """Time the ways of acting, and mctx with as many model evaluations."""
    with one_core():
        run_exported = exported(make_solver(Case(4, 10, 1, 64)))
        for batch in (1, 64):
            case = Case(4, 10, batch, 64)
            ways, mctx = ways_of_acting(case, run_exported), mctx_decisions(case)
            others = {_mctx_name(simulations): decide for simulations, decide in mctx.items()}
            # Decisions among decisions, as in an episode: ten in a row.
            times = interleave(ways | others, 1.0 if quick else 4.0, calls=10 if batch == 1 else 1)
            yield {
                "part": "deciding",
                **vars(case),
                "ms": milliseconds(times),
                "ratios": _ratios(batch, times, [*ways], [*mctx]),
            }


def mctx_decisions(case: Case) -> dict[int, Decide]:
    """Return mctx's decisions by their simulations: as many model evaluations as ours, or a quarter."""
    try:
        return {n: mctx_policy(case, n) for n in ([40, 10] if case.batch == 1 else [40])}
    except ImportError:
        return {}


def _mctx_name(simulations: int) -> str:
    return f"mctx, {simulations} simulations"


def _ratios(batch: int, times: Times, ours: list[str], mctx: list[int]) -> dict[str, tuple[float, float]]:
    """Return the best of our ways against mctx's simulations, and an exported graph against tensors."""
    found = {
        f"act_b{batch}_over_mctx{n}": min(ratio(times, way, _mctx_name(n)) for way in ours) for n in mctx
    }
    if batch == 1 and "exported, greedy" in times:
        found["act_export_over_eager_b1"] = ratio(times, "exported, greedy", "greedy on tensors")
    return found
