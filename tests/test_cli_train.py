"""``dtsn train`` and what follows it: what is written, evaluated and exported, stopped and resumed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_calls import QNET, finish, start
from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.checkpoint import latest_checkpoint
from dtsn.training.runs import read_metrics


def test_train_and_eval(folder: Path, inside: Callable[..., str]) -> None:
    train = ("train", *QNET, "--steps", "6", "--run", "runs/q")
    assert "next: dtsn eval runs/q" in inside(*train)
    run = folder / "runs/q"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert json.loads((run / "config.json").read_bytes())["network"]["latent"] == 16
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    said = inside(*train, code=2)
    assert said.startswith("dtsn: runs/q already has a training run")
    assert said.count("\n") == 1
    shorter = (*train[:-3], "5", *train[-2:], "--resume")
    said = inside(*shorter, code=2)
    assert "steps" in said
    assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    out = inside("eval", "runs/q", "--levels", "20")
    assert "2 exits" in out
    assert "1 exit" in out
    rows = [run / f"evaluation/exits-{exits}-T10.csv.gz" for exits in (1, 2)]
    inside("eval", "runs/q", "--levels", "20", "--out", "again")
    assert [path.read_bytes() for path in rows] == [(folder / "again" / p.name).read_bytes() for p in rows]
    # Tests of other circumstances are in files of their own.
    before = [path.read_bytes() for path in rows]
    inside("eval", "runs/q", "--levels", "20", "--split", "validation", "--rule", "greedy", "--seed", "3")
    assert (run / "evaluation/exits-1-T10-greedy-validation-seed3.csv.gz").exists()
    assert [path.read_bytes() for path in rows] == before
    said = inside("eval", "model", "runs/q", "data.h5", "--transitions", "100")
    assert "qnet, T = 10, 100 transitions of data.h5" in said
    assert "a single expansion does in 0%" in said  # a Q-network makes one
    said = inside("export", "runs/q", "graph", "--pt2", "--mask")
    assert "wrote graph.pt2: Q-values differ by at most" in " ".join(said.split())
    inside("export", "runs/q", "solver")
    inside("eval", "solver", "--levels", "20")
    assert [path.read_bytes() for path in rows] == [
        (folder / "solver/evaluation" / path.name).read_bytes() for path in rows
    ]


def test_brackets_in_paths_are_brackets(folder: Path, inside: Callable[..., str]) -> None:
    said = inside("train", *QNET, "--steps", "2", "--run", "[/x][bold]y")
    assert "into [/x][bold]y" in said
    assert (folder / "[/x][bold]y" / "config.json").exists()
    assert "next: dtsn eval [/x][bold]y" in said


def test_best_by_validation(folder: Path, inside: Callable[..., str]) -> None:
    train = ("train", *QNET, "--steps", "4", "--checkpoint-every", "2", "--run", "run")
    out = inside(*train, "--validate-levels", "3")
    assert "best by validation: run/checkpoints/step-" in out


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    process.kill()
    pytest.fail("waited for too long")


def test_interrupt_saves_and_resumes(folder: Path) -> None:
    train = ("train", *QNET, "--steps", "100000", "--checkpoint-every", "5", "--run", "run")
    stopped: list[int] = []
    for by in (signal.SIGTERM, signal.SIGINT):
        first = stopped[-1] if stopped else 0
        process = start(folder, *train, *(["--resume"] if stopped else []))
        wait_for(lambda: newest(folder / "run") > first, process)  # noqa: B023
        process.send_signal(by)
        out, err = finish(process)
        assert process.returncode == 130, out + err
        assert "Traceback" not in err
        stopped.append(newest(folder / "run"))
        assert f"stopped at step {stopped[-1]}, checkpoint saved" in out
        rows = read_metrics(folder / "run/metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, stopped[-1] + 1))
    assert stopped[0] < stopped[1]


def test_training_logs_where_there_is_no_terminal(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtsn.cli.terminal.LOG_SECONDS", 0.0)
    out = inside("train", *QNET, "--steps", "3", "--run", "run")
    assert len(re.findall(r"^training qnet: [123]/3 in 0:00:\d\d.*loss [\d.]+", out, re.MULTILINE)) == 3


def newest(run: Path) -> int:
    path = latest_checkpoint(run / "checkpoints")
    return int(path.name.removeprefix("step-")) if path else 0


def test_interrupt_before_the_first_step_claims_no_checkpoint(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dtsn.training.trainer.Trainer.update", interrupted)
    out = inside("train", *QNET, "--run", "run", code=130)
    assert newest(folder / "run") == 0
    assert "checkpoint saved" not in out
