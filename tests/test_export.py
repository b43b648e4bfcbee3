"""Exported graphs do what the solver does: every solver and encoder, any batch, by both formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from dtsn.config import NetworkConfig, SolverConfig
from dtsn.solvers.export import Decision, ExportError, random_inputs
from dtsn.solvers.solver import Solver

VECTOR, GRID = Box(-1, 1, (4,)), Box(0, 1, (3, 5, 6), np.uint8)
HALL = Box(0, 1, (3, 20, 20), np.uint8)
FRAMES = Box(0, 255, (36, 40, 3), np.uint8)
# encoder -> space; one solver for each encoder and one encoder for each solver
ENCODERS = {"mlp": VECTOR, "grid": GRID, "paths": GRID, "maps": HALL}
ENCODERS |= dict.fromkeys(("nature", "strided", "impala_small"), FRAMES)
CASES = [("dtsn", encoder) for encoder in ENCODERS]
CASES += [(name, "mlp") for name in ("search", "treeqn", "qnet")]
QUICK = [("dtsn", "mlp"), ("dtsn", "paths"), ("treeqn", "mlp")]  # an export takes seconds
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in QUICK]


def make(name: str = "dtsn", encoder: str = "mlp", **config: object) -> Solver:
    maps = encoder == "maps"
    network = NetworkConfig(encoder=encoder, latent=6, hidden=16, termination=maps)
    options = SolverConfig(name, **({"iterations": 2, "discount": 0.9} | config))
    return Solver.create(options, ENCODERS[encoder], Discrete(4 if maps else 3), network=network, seed=0)


@pytest.mark.parametrize(("name", "encoder"), QUICK + SLOW)
def test_pt2(name: str, encoder: str, tmp_path: Path) -> None:
    solver = make(name, encoder).train()
    found = solver.export(tmp_path / "solver.pt2")
    assert solver.training  # as it was
    assert found.difference < 1e-5
    assert found.equal_actions == 1
    graph = torch.export.load(found.path).module()
    for batch in (1, 2, 7):
        decision = Decision(solver.eval(), False, False)
        inputs = random_inputs(decision, batch, 10 + batch)
        q, action = graph(*inputs)
        if batch > 1:  # one row alone is searched by other arithmetic
            with torch.no_grad():
                assert torch.equal(q, decision(*inputs)[0])
        expected = solver.eval()(inputs[0], deterministic=True)
        torch.testing.assert_close(q, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(action, solver.act(inputs[0], deterministic=True))


def test_random_numbers_and_masks_are_inputs(tmp_path: Path) -> None:
    solver = make(iterations=4)
    found = solver.export(tmp_path / "solver.pt2", uniforms=True, mask=True)
    assert found.inputs == ("observation", "uniforms", "invalid_actions")
    inputs = random_inputs(Decision(solver, True, True), 6, 0)
    q, action = torch.export.load(found.path).module()(*inputs)
    expected = solver.eval()(inputs[0], uniforms=inputs[1], invalid_actions=inputs[2])
    torch.testing.assert_close(q, expected, rtol=1e-4, atol=1e-5)
    assert not inputs[2].gather(1, action[:, None]).any()


@pytest.mark.slow
def test_merging_searches(tmp_path: Path) -> None:
    solver = make("dtsn", "maps", merge=True, iterations=4)
    found = solver.export(tmp_path / "solver.pt2")
    assert found.equal_actions == 1
    inputs = random_inputs(Decision(solver, False, False), 5, 0)
    expected = solver.eval()(inputs[0], deterministic=True)
    torch.testing.assert_close(torch.export.load(found.path).module()(*inputs)[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "encoder"), CASES)
@pytest.mark.parametrize("drawn", [False, True])
def test_onnx(name: str, encoder: str, drawn: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    solver = make(name, encoder)
    if drawn and name in ("treeqn", "qnet"):
        return
    found = solver.export(tmp_path / "solver.onnx", uniforms=drawn, mask=drawn)
    assert found.difference < 1e-5
    session = onnxruntime.InferenceSession(found.path)
    for batch in (1, 2, 7, 64):
        inputs = random_inputs(Decision(solver, drawn, drawn), batch, batch)
        given = {key: value.numpy() for key, value in zip(found.inputs, inputs, strict=True)}
        q, action = session.run(["q_values", "action"], given)
        mask = {"invalid_actions": inputs[2], "uniforms": inputs[1]} if drawn else {"deterministic": True}
        expected = solver.eval()(inputs[0], **mask).detach()
        np.testing.assert_allclose(q, expected.numpy(), rtol=1e-4, atol=1e-5)
        assert (action == expected.argmax(1).numpy()).mean() == 1


class Branching(nn.Module):
    """A module that looks at numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x if float(x.sum()) > 0 else -x)


@pytest.mark.parametrize(
    ("solver", "path", "options", "said"),
    [
        (lambda: make(), "solver.txt", {}, r"must end with \.onnx or \.pt2, got 'solver\.txt'"),
        (lambda: make("qnet"), "q.pt2", {"uniforms": True}, "draws nothing"),
        (lambda: Solver.create("dtsn", Dict(a=VECTOR), Discrete(2)), "d.pt2", {}, "only solvers of Box"),
        (
            lambda: Solver.create("qnet", VECTOR, Discrete(2), network=NetworkConfig(precision="bfloat16")),
            "o.onnx",
            {},
            "precision must be 'float32' for ONNX, got 'bfloat16'",
        ),
        (
            lambda: Solver.create("qnet", VECTOR, Discrete(2), encoder=Branching()),
            "b.pt2",
            {},
            "cannot be exported: .*must not branch on numbers",
        ),
    ],
)
def test_what_is_refused(solver, path: str, options: dict[str, bool], said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said):
        solver().export(tmp_path / path, **options)
    assert not (tmp_path / path).exists()


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"^ONNX is not installed: pip install 'dtsn\[export\]'$"):
        make("qnet").export(tmp_path / "solver.onnx")
