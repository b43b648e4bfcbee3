"""Solvers as one graph: encoder, expansions and backup in an ONNX or ``torch.export`` file.

The graph takes observations ``[B, ...]`` with any B and answers with Q-values ``[B, A]`` and the best actions
``[B]``. Its search is greedy, or by random numbers that are an input. What was written is run and compared.
"""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from dtsn.errors import UserError
from dtsn.models.encoders import LowPrecision
from dtsn.models.spaces import sample_batch
from dtsn.storage import replaced

if TYPE_CHECKING:
    from dtsn.solvers.solver import Solver

OUTPUTS = ("q_values", "action")
WIDE = 1e4  # bounds beyond it say nothing about usual observations
BATCHES = (1, 5)  # that a written file is run with
TOLERANCE = 1e-3  # of Q-values relative to their size: beyond it the file is wrong, not rounded


class ExportError(UserError):
    """A solver that cannot be exported, or a file that does not do what the solver does."""


@dataclass(frozen=True)
class Export:
    """A written file and how it compares with the solver on random observations."""

    path: Path
    inputs: tuple[str, ...]
    difference: float  # largest |ΔQ|
    equal_actions: float  # share of rows in which both choose the same action


class Decision(nn.Module):
    """What a solver decides, as a function of tensors alone."""

    def __init__(self, solver: Solver, uniforms: bool, mask: bool):
        super().__init__()
        self.solver, self.draws, self.masked = solver, uniforms, mask

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the graph's inputs, in order."""
        return ("observation", *("uniforms",) * self.draws, *("invalid_actions",) * self.masked)

    def forward(self, observation: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations ``[B, ...]`` and the other ``inputs`` to Q ``[B, A]`` and actions ``[B]``."""
        given = dict(zip(self.inputs[1:], others, strict=True))
        q = self.solver.q_of_rows(
            observation, given.get("uniforms"), given.get("invalid_actions"), deterministic=not self.draws
        )
        return q, q.argmax(1)


def export_solver_graph(solver: Solver, path: Path, uniforms: bool, mask: bool) -> Export:
    """Write ``path`` (.onnx or .pt2) and compare it with the solver."""
    space = solver.observation_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ExportError(
            f"only solvers of Box observations can be exported, got {space}: flatten them first"
        )
    if path.suffix not in (".onnx", ".pt2"):
        raise ExportError(f"the file must end with .onnx or .pt2, got {path.name!r}")
    if uniforms and solver.kind.acting_planner != "best_first":
        raise ExportError(f"{solver.kind.title} draws nothing when acting: leave out uniforms")
    # A copy without gradients: a graph that is loaded must not ask for them.
    decision = Decision(copy.deepcopy(solver).eval().requires_grad_(False), uniforms, mask)
    with torch.no_grad():
        program = _program(decision)
        onnx = path.suffix == ".onnx"
        with replaced(path) as partial:
            run = _write_onnx(program, decision, partial) if onnx else _write_pt2(program, partial)
            return _compared(decision, run, path)


def _program(decision: Decision) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    inputs = random_inputs(decision, 3, 0)
    others = tuple({0: batch} for _ in inputs[1:])
    shapes = ({0: batch}, others) if others else ({0: batch},)
    try:
        return torch.export.export(decision, inputs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever a module of the caller's does that a graph cannot
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(
            f"the solver cannot be exported: {first}. Modules of your own must not branch on numbers in "
            "tensors, use len() of a tensor, or call what torch.export does not know"
        ) from error


def random_inputs(decision: Decision, batch: int, seed: int) -> tuple[Tensor, ...]:
    """Draw observations of the solver's space, random numbers, and masks that leave an action open."""
    solver, rng = decision.solver, np.random.default_rng(seed)
    space = solver.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    like = sample_batch(space, batch)
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    low, high = np.where(low < -WIDE, -3, low), np.where(high > WIDE, 3, high)
    drawn = rng.uniform(low, np.maximum(low, high), (batch, *space.shape))
    if not np.issubdtype(space.dtype, np.floating):
        drawn = np.rint(drawn)
    assert isinstance(like, Tensor)
    inputs = [torch.as_tensor(drawn).to(like.dtype)]
    if inputs[0].is_floating_point():
        inputs[0] = inputs[0].to(solver.dtype)
    if decision.draws:
        inputs.append(torch.as_tensor(rng.random((batch, solver.act_iterations), np.float32)))
    if decision.masked:
        closed = rng.random((batch, solver.world_model.num_actions)) < 0.4
        closed[:, 0] = False
        inputs.append(torch.as_tensor(closed))
    return tuple(tensor.to(solver.device) for tensor in inputs)


def _write_pt2(program: torch.export.ExportedProgram, path: Path) -> Any:
    torch.export.save(program, path)
    module = torch.export.load(path).module()
    return lambda *inputs: module(*inputs)


def _write_onnx(program: torch.export.ExportedProgram, decision: Decision, path: Path) -> Any:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (what torch writes the file with)
    except ImportError as error:
        raise ImportError("ONNX is not installed: pip install 'dtsn[export]'") from error
    if any(isinstance(module, LowPrecision) for module in decision.modules()):
        raise ExportError("precision must be 'float32' for ONNX, got 'bfloat16': export to .pt2 instead")
    names = list(decision.inputs)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of packages that nothing here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's own parts
            written = torch.onnx.export(
                program, input_names=names, output_names=list(OUTPUTS), dynamo=True, verbose=False
            )
    finally:
        logger.setLevel(level)
    assert written is not None
    written.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> list[Tensor]:
        given = {name: tensor.cpu().numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.as_tensor(found) for found in session.run(list(OUTPUTS), given)]

    return run


def _compared(decision: Decision, run: Any, path: Path) -> Export:
    """Run the file beside the solver on random observations."""
    worst, equal = 0.0, []
    for seed, batch in enumerate(BATCHES):
        inputs = random_inputs(decision, batch, seed)
        (q, action), (theirs, chosen) = decision(*inputs), run(*inputs)
        ours, theirs = (torch.nan_to_num(x.cpu().double(), neginf=0.0) for x in (q, theirs))
        worst = max(worst, float((ours - theirs).abs().max()))
        size = max(1.0, float(ours.abs().max()))
        equal += (action.cpu() == chosen.cpu()).tolist()
    if not worst <= TOLERANCE * size:
        raise ExportError(f"{path} differs from the solver by {worst:.2g} in its Q-values: do not use it")
    return Export(path, decision.inputs, worst, sum(equal) / len(equal))
