"""The command line as a user meets it: what it writes, how it is stopped, what it says when it cannot."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dtsn import campaign, cli, evaluation
from dtsn.campaign import Campaign, run_task
from dtsn.checkpoint import latest_checkpoint
from dtsn.collect import collect_navigation
from dtsn.config import NetworkConfig, SolverConfig, TrainConfig
from dtsn.training import read_metrics

SMALL = ("--batch-size", "8", "--network.latent", "16", "--network.hidden", "16")
QNET = ("--data", "data.h5", "--solver.name", "qnet", *SMALL)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``dtsn ...`` in a process of its own, to which Ctrl-C can be sent."""
    return subprocess.Popen(
        [sys.executable, "-m", "dtsn.cli", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process has printed when it ends; one that hangs is killed with its children."""
    try:
        return process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def dtsn(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints, on stderr if it fails; it ends with this exit code and without a traceback."""
    process = start(folder, *arguments)
    out, err = finish(process)
    assert "Traceback" not in err, err
    assert process.returncode == code, out + err
    return err if code else out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set, made by the command."""
    folder = tmp_path_factory.mktemp("cli")
    out = dtsn(folder, "collect", "navigation", "--episodes", "20", "--out", "data.h5")
    assert "wrote data.h5" in out
    assert "next: dtsn train --data data.h5" in out
    return folder


@pytest.fixture
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own, with the data in it."""
    (tmp_path / "data.h5").hardlink_to(data / "data.h5")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """As ``dtsn``, but the entry point is called in this process, which spares the imports."""

    def call(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dtsn", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        ended = 0
        try:
            cli.main()
        except SystemExit as exit:
            ended = exit.code
        printed = capsys.readouterr()
        assert ended == code, printed
        return printed.err if code == 2 else printed.out

    return call


# --- help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_an_example(command: str, tmp_path: Path) -> None:
    out = dtsn(tmp_path, command, "--help")
    assert f"Example: dtsn {command}" in out
    assert "__tyro" not in out


def test_help_lists_the_commands(tmp_path: Path) -> None:
    out = dtsn(tmp_path, "--help")
    assert all(command in out for command in cli.COMMANDS)


# --- the usual way -----------------------------------------------------------------------------------


def test_train_and_eval(folder: Path, inside: Callable[..., str]) -> None:
    train = ("train", *QNET, "--steps", "6", "--run", "runs/q")
    assert "next: dtsn eval runs/q" in dtsn(folder, *train)
    run = folder / "runs/q"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert json.loads((run / "config.json").read_bytes())["network"]["latent"] == 16
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    said = inside(*train, code=2)
    assert said.startswith("dtsn: runs/q already has a training run")
    assert said.count("\n") == 1
    longer = (*train[:-3], "7", *train[-2:], "--resume")
    said = inside(*longer, code=2)
    assert "steps" in said
    assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    out = dtsn(folder, "eval", "runs/q", "--levels", "20")
    assert "2 exits" in out
    assert "1 exit" in out
    rows = [run / f"evaluation/exits-{exits}-T10.csv.gz" for exits in (1, 2)]
    inside("eval", "runs/q", "--levels", "20", "--out", "again")
    assert [path.read_bytes() for path in rows] == [(folder / "again" / p.name).read_bytes() for p in rows]
    inside("export", "runs/q", "solver")
    inside("eval", "solver", "--levels", "20")
    assert [path.read_bytes() for path in rows] == [
        (folder / "solver/evaluation" / path.name).read_bytes() for path in rows
    ]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    process.kill()
    pytest.fail("waited for too long")


def test_interrupt_saves_and_resumes(folder: Path) -> None:
    train = ("train", *QNET, "--steps", "100000", "--checkpoint-every", "5", "--run", "run", "--resume")
    stopped = []
    for _ in range(2):
        first = stopped[-1] if stopped else 0
        process = start(folder, *train)
        wait_for(lambda: newest(folder / "run") > first, process)  # noqa: B023
        process.send_signal(signal.SIGINT)
        out, err = finish(process)
        assert process.returncode == 130, out + err
        assert "Traceback" not in err
        stopped.append(newest(folder / "run"))
        assert f"stopped at step {stopped[-1]}, checkpoint saved" in out
        rows = read_metrics(folder / "run/metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, stopped[-1] + 1))
    assert stopped[0] < stopped[1]


def newest(run: Path) -> int:
    path = latest_checkpoint(run / "checkpoints")
    return int(path.name.removeprefix("step-")) if path else 0


def test_interrupt_before_the_first_step_claims_no_checkpoint(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dtsn.training.Trainer.update", interrupted)
    out = inside("train", *QNET, "--run", "run", code=130)
    assert newest(folder / "run") == 0
    assert "checkpoint saved" not in out


# --- what it refuses ---------------------------------------------------------------------------------

MISTAKES = {
    "unknown command": (("trian",), "train"),
    "no command": ((), "collect"),
    "unknown option": (("train", "--solver.nam", "qnet"), "--solver.name"),
    "unknown solver": (("train", "--solver.name", "qnett"), "did you mean 'qnet'"),
    "unknown encoder": (("train", "--network.encoder", "gird"), "grid"),
    "unknown variant": (("reproduce", "--variants", "dtsnn"), "dtsn"),
    "negative steps": (("train", "--steps", "-3"), "steps must be at least 1, got -3"),
    "steps of no number": (("train", "--steps", "many"), "many"),
    "no episodes": (("collect", "--out", "new.h5", "--episodes", "0"), "episodes is 0"),
    "data exists": (("collect", "--out", "data.h5", "--episodes", "1"), "data.h5: already exists"),
    "no data": (("train", "--data", "missing.h5"), "missing.h5: no such file"),
    "garbage data": (("train", "--data", "garbage.h5"), "garbage.h5"),
    "data is a folder": (("train", "--data", "."), "no such file"),
    "batch too large": (("train", *QNET, "--batch-size", "9999", "--run", "run"), "batch_size is 9999"),
    "run is a file": (("train", *QNET, "--run", "garbage.h5"), "garbage.h5"),
    "run below a file": (("train", *QNET, "--run", "garbage.h5/run"), "garbage.h5"),
    "no threads": (("train", *QNET, "--threads", "0", "--run", "run"), "threads"),
    "diverged": (("train", *QNET, "--learning-rate", "1e30", "--run", "run"), "try a smaller learning_rate"),
    "export of nothing": (("export", "missing", "out"), "missing is neither a checkpoint nor a run folder"),
    "no run": (("eval", "missing", "--levels", "20"), "missing is neither a checkpoint nor a run folder"),
    "run of garbage": (("eval", "garbage.h5", "--levels", "20"), "garbage.h5"),
    "no jobs": (("reproduce", "--jobs", "0", "--variants", "qnet"), "jobs"),
    "no test levels": (("reproduce", "--levels", "0", "--variants", "qnet"), "levels"),
    "too many test levels": (("reproduce", "--levels", "1000001", "--variants", "qnet"), "levels"),
    "no reproduction steps": (("reproduce", "--steps", "0", "--variants", "qnet"), "steps"),
    "no validation": (("reproduce", "--validate-every", "0", "--variants", "qnet"), "validate_every"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(
    mistake: str, folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "garbage.h5").write_bytes(b"garbage" * 1000)

    def started(*_: object, **__: object) -> None:
        raise AssertionError("runs are started before their settings are checked")

    monkeypatch.setattr(campaign.time, "sleep", started)
    monkeypatch.setattr(campaign.subprocess, "Popen", started)
    arguments, explanation = MISTAKES[mistake]
    said = inside(*arguments, code=2)
    assert explanation in said
    assert "Traceback" not in said


@pytest.mark.parametrize("mistake", ["unknown command", "unknown solver", "negative steps", "garbage data"])
def test_mistakes_from_the_shell(mistake: str, folder: Path) -> None:
    (folder / "garbage.h5").write_bytes(b"garbage" * 1000)
    arguments, explanation = MISTAKES[mistake]
    assert explanation in dtsn(folder, *arguments, code=2)


def test_eval_of_what_cannot_be_played(inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    inside("train", *QNET, "--steps", "1", "--run", "run")
    for changes, explanation in (
        (("--levels", "0"), "levels must be from 1 to"),
        (("--iterations", "0"), "act_iterations must be at least 1"),
        (("--device", "cuda"), "device 'cuda' is not available"),
    ):
        assert explanation in inside("eval", "run", *changes, code=2)


# --- the paper's tables ------------------------------------------------------------------------------

TABLES = ("reproduce", "--variants", "qnet", "--seeds", "1", "--steps", "4", "--levels", "20")
TABLES += ("--validate-every", "2", "--jobs", "1")


def test_reproduce(tmp_path: Path) -> None:
    assert "qnet seed 0: done" in dtsn(tmp_path, *TABLES)
    results = tmp_path / "results/navigation"
    rows = [results / f"rows/qnet/seed-0/exits-{exits}-T10.csv.gz" for exits in (1, 2)]
    curve = results / "curves/qnet/seed-0.csv"
    with curve.open() as file:
        points = list(csv.DictReader(file))
    assert [point["step"] for point in points] == ["2", "4"]
    assert all(0 <= float(point[f"validation_success_{exits}"]) <= 1 for point in points for exits in (1, 2))
    assert json.loads((results / "meta.json").read_bytes())["command"].startswith(
        "dtsn reproduce --variants qnet"
    )
    files = [*rows, curve, *(tmp_path / "runs/navigation/qnet/seed-0/checkpoints").glob("*/*")]
    times = {path: path.stat().st_mtime_ns for path in files}
    assert "0 of 1 runs to do" in dtsn(tmp_path, *TABLES)
    assert {path: path.stat().st_mtime_ns for path in files} == times


def test_failed_runs_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "runs/navigation/qnet/seed-0.log"
    (tmp_path / "runs/navigation").mkdir(parents=True)
    (tmp_path / "runs/navigation/navigation-independent.h5").write_bytes(b"garbage")
    process = start(tmp_path, *TABLES)
    out, err = finish(process)
    assert process.returncode == 1
    assert "qnet seed 0: failed, see runs/navigation/qnet/seed-0.log" in out
    assert "Traceback" not in err
    assert "navigation-independent.h5: cannot be read" in log.read_text()


@pytest.fixture
def small_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    collect_navigation(tmp_path / "runs/navigation-independent.h5", episodes=20)
    monkeypatch.setattr(campaign, "VALIDATION_LEVELS", 5)
    network = NetworkConfig(encoder="grid", latent=16, hidden=16)
    config = TrainConfig(SolverConfig("qnet"), network, steps=4, batch_size=8, checkpoint_every=2)
    monkeypatch.setattr(Campaign, "config", lambda *_: config)
    return Campaign(
        ("qnet",), 1, 1, 4, levels=5, validate_every=2, results=tmp_path / "results", runs=tmp_path / "runs"
    )


def curve_steps(settings: Campaign) -> list[float]:
    with (settings.results / "curves/qnet/seed-0.csv").open() as file:
        return [float(row["step"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("stopped_in", range(1, 7))
def test_stopped_at_any_time(
    stopped_in: int, small_campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it validates (calls 1 to 4) or tests (5 and 6), it makes up for what it missed."""
    calls = iter(range(1, 100))
    real = evaluation.evaluate_navigation

    def killed(*arguments: object, **options: object) -> object:
        if next(calls) == stopped_in:
            raise SystemExit("killed")
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluation, "evaluate_navigation", killed)
    with pytest.raises(SystemExit):
        run_task(small_campaign, "qnet", 0)
    assert small_campaign.missing("qnet", 0)
    run_task(small_campaign, "qnet", 0)
    assert small_campaign.missing("qnet", 0) == []
    assert curve_steps(small_campaign) == [2, 4]


def test_rows_of_fewer_levels_do_not_pass_for_the_table(small_campaign: Campaign) -> None:
    run_task(small_campaign, "qnet", 0)
    assert small_campaign.missing("qnet", 0) == []
    assert replace(small_campaign, levels=10).missing("qnet", 0) != []


def test_damaged_rows_are_made_anew(small_campaign: Campaign) -> None:
    run_task(small_campaign, "qnet", 0)
    path = small_campaign.rows_path("qnet", 0, 1, 10)
    rows = path.read_bytes()
    for blob in (b"", b"garbage", rows[:-1], rows[: len(rows) // 2], rows[:20] + b"\xff" * 9 + rows[29:]):
        path.write_bytes(blob)
        assert small_campaign.missing("qnet", 0) == [(1, 10)]
    run_task(small_campaign, "qnet", 0)
    assert path.read_bytes() == rows


def test_order_of_runs() -> None:
    """One seed of each solver comes before the second of any, ablations last."""
    tasks = Campaign(seeds=2).tasks()
    assert tasks[:4] == [("qnet", 0), ("search", 0), ("treeqn", 0), ("dtsn", 0)]
    assert {seed for _, seed in tasks[4:8]} == {1}
    assert len(tasks) == len(set(tasks)) == 8 + 9
