"""The examples run: the scripts with small settings, the notebook cell by cell."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_navigation() -> None:
    success = example("navigation").main(episodes=20, steps=2, levels=4)
    assert set(success) == {"qnet", "dtsn"}


def test_own_environment() -> None:
    scores = example("own_environment").main(tests=20)
    assert scores["chance"] + 5 < scores["D-TSN"] <= scores["expert"]


def test_own_world_model() -> None:
    assert example("own_world_model").main(steps=150) > 0.95


def test_known_world() -> None:
    assert example("known_world").main(steps=100) > 0.9


@pytest.mark.parametrize(
    ("name", "needs", "arguments", "said"),
    [
        (
            "online_dqn",
            "dtsn",
            ("--steps", "200", "--learning-starts", "100", "--train-every", "50", "--updates", "2"),
            "greedy, 10 episodes: ",
        ),
        ("sb3_cartpole", "stable_baselines3", ("300",), "mean return"),
        ("torchrl_cartpole", "torchrl", ("256",), "mean return"),
    ],
)
def test_online(
    name: str,
    needs: str,
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which has imported torch already."""
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code
    for number, source in enumerate(code):
        exec(compile(source, f"{path.name}[{number}]", "exec"), names)
