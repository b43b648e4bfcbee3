"""The command line as a user meets it: what it writes, how it is stopped, what it says when it cannot."""

from __future__ import annotations

import csv
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image, ImageSequence

import dtsn as package
from dtsn.checkpoint import latest_checkpoint
from dtsn.cli import main as cli
from dtsn.cli.arguments import Group
from dtsn.cli.doctor import packages
from dtsn.data import Dataset, DatasetWriter, Episode
from dtsn.envs.navigation import NavigationOptions, make_levels, observe
from dtsn.evaluation.navigation import trace_navigation
from dtsn.evaluation.rows import ProcgenRow, write_rows
from dtsn.inspection import read_search
from dtsn.pretrained import shipped
from dtsn.reproduce import jobs
from dtsn.reproduce.navigation.variants import SHOWN_LEVEL
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.runs import read_metrics

SMALL = ("--batch-size", "8", "--network.latent", "16", "--network.hidden", "16")
QNET = ("--data", "data.h5", "--solver.name", "qnet", *SMALL)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``dtsn ...`` in a process of its own, to which Ctrl-C can be sent."""
    return subprocess.Popen(
        [sys.executable, "-m", "dtsn", *arguments],
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
    assert "next: dtsn train data.h5" in out
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
        return (
            printed.err
            if code in (1, 2) and printed.err
            else printed.out + printed.err
            if code == 130
            else printed.out
        )

    return call


# --- help --------------------------------------------------------------------------------------------


def leaves() -> dict[str, Callable[..., None]]:
    """Every command by what one types, those of groups with the name of the sub-command."""
    found: dict[str, Callable[..., None]] = {}
    for section in cli.COMMANDS.values():
        for name, entry in section.items():
            if isinstance(entry, Group):
                found |= {f"{name} {word}": command for word, command in entry.commands.items()}
            else:
                found[name] = entry
    return found


EVERY_COMMAND = leaves()


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_help_shows_an_example(command: str, inside: Callable[..., str]) -> None:
    out = inside(*command.split(), "--help")
    assert f"Example: dtsn {command}" in out
    assert "__tyro" not in out


HELP = """
import contextlib, io, json, sys, time
seconds = []
for command in sys.argv[1:]:
    from dtsn.cli.main import main
    sys.argv = ["dtsn", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    seconds.append(time.process_time() - sum(seconds))
slow = {"torch", "matplotlib", "PIL", "h5py", "minari", "fastapi", "uvicorn"} & set(sys.modules)
print(json.dumps([seconds, sorted(slow)]))
"""


def test_help_does_not_wait(tmp_path: Path) -> None:
    """Nothing heavy is imported, and no help takes a second of the processor, imports included."""
    call = [sys.executable, "-c", HELP, *EVERY_COMMAND]
    result = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    seconds, slow = json.loads(result.stdout)
    assert not slow
    assert len(seconds) == len(EVERY_COMMAND)
    assert max(seconds) < 1.0


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_every_option_is_explained(command: str) -> None:
    function = EVERY_COMMAND[command]
    options = inspect.signature(function).parameters
    explained = re.findall(
        r"^    (\w+): \S", (inspect.getdoc(function) or "").partition("Args:")[2], re.MULTILINE
    )
    assert explained == list(options)


def test_help_lists_the_commands(tmp_path: Path) -> None:
    out = dtsn(tmp_path, "--help")
    assert all(f"  {name} " in out for section in cli.COMMANDS.values() for name in section)
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("command", ["collect", "train", "eval", "reproduce"])
def test_help_of_a_group_names_procgen(command: str, inside: Callable[..., str]) -> None:
    out = inside(command, "--help")
    assert f"dtsn {command} [navigation|procgen" in out
    assert "navigation  " in out
    assert "(default)" in out


def test_version(inside: Callable[..., str]) -> None:
    assert inside("--version") == f"dtsn {package.__version__}\n"


# --- the usual way -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("command", ["eval", "plan", "play"])
def test_a_run_of_another_environment_is_refused_by_its_name(
    command: str, folder: Path, inside: Callable[..., str]
) -> None:
    observations = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    with DatasetWriter(
        folder / "taxi.h5",
        env_id="Taxi",
        env_options={},
        num_actions=4,
        observation_shape=(4,),
        observation_dtype=np.float32,
    ) as writer:
        writer.add_episode(Episode(observations, np.array([1, 2]), np.array([-1.0, -1.0]), True, 0))
    small = ("--steps", "1", "--batch-size", "1", "--network.encoder", "mlp")
    inside("train", "taxi.h5", "--run", "run", *small)
    said = inside(command, "run", code=2)
    assert "[B, 4]" in said
    assert "trained on Taxi" in said


@pytest.mark.parametrize("command", ["eval", "plan", "play"])
def test_a_saved_solver_with_other_actions_is_refused(
    command: str, folder: Path, inside: Callable[..., str]
) -> None:
    solver = Solver.create("qnet", Box(-1, 1, (4,)), Discrete(2))
    solver.environment = "CartPole-v1"
    solver.save(folder / f"cartpole-{command}")
    said = inside(command, f"cartpole-{command}", code=2)
    assert "trained on CartPole-v1" in said
    assert "4 actions, got [B, 4] and 2" in said


def test_eval_plays_the_layout_trained_on(folder: Path, inside: Callable[..., str]) -> None:
    inside("collect", "--episodes", "20", "--exit-layout", "independent", "--out", "other.h5")
    qnet = ("--data", "other.h5", *QNET[2:], "--steps", "1", "--run", "run")
    inside("train", *qnet)
    for trained in ("run", "run/checkpoints/step-1"):
        assert "exits independent" in inside("eval", trained, "--levels", "5")
        assert (folder / trained / "evaluation/exits-2-T10-independent.csv.gz").exists()
        inside("plan", trained, "--out", "tree.json")
        document = json.loads((folder / "tree.json").read_text())
        assert document["source"]["options"]["exit_layout"] == "independent"
    assert "exits opposite" in inside("eval", "run", "--levels", "5", "--exit-layout", "opposite")


# --- looking into a search ---------------------------------------------------------------------------


def test_plan(folder: Path, inside: Callable[..., str]) -> None:
    out = inside("plan", "--out", "tree.json")
    assert "dtsn, best first, 10 expansions; sample at temperature 1; level 2000003, 1 exit; step 0" in out
    assert "best leaf" in out
    assert out.endswith(" kB)\nnext: dtsn plan --state tree.json\n")
    document = read_search(folder / "tree.json")
    assert document["source"]["level"] == SHOWN_LEVEL

    again = inside("plan", "--state", "tree.json", "--out", "copy.json")
    assert again.splitlines()[:-2] == out.splitlines()[:-2]
    assert read_search(folder / "copy.json") == document

    inside("plan", "--state", "tree.json", "--iterations", "3", "--rule", "greedy", "--out", "new.json")
    anew = read_search(folder / "new.json")
    assert (anew["solver"]["iterations"], anew["solver"]["rule"]) == (3, "greedy")
    assert anew["scene"]["walls"] == document["scene"]["walls"]


def test_plan_of_a_state_refuses_no_search(folder: Path, inside: Callable[..., str]) -> None:
    inside("plan", "--out", "tree.json")
    assert "iterations" in inside("plan", "--state", "tree.json", "--iterations", "0", code=2)


def test_brackets_in_paths_are_brackets(folder: Path, inside: Callable[..., str]) -> None:
    said = inside("train", *QNET, "--steps", "2", "--run", "[/x][bold]y")
    assert "into [/x][bold]y" in said
    assert (folder / "[/x][bold]y" / "config.json").exists()
    assert "next: dtsn eval [/x][bold]y" in said


def test_plan_draws_pictures(folder: Path, inside: Callable[..., str]) -> None:
    assert "wrote tree.svg" in inside("plan", "--time", "2", "--iterations", "4", "--out", "tree.svg")
    assert "wrote tree.png" in inside("plan", str(shipped("qnet")), "--exits", "2", "--out", "tree.png")
    assert ElementTree.parse(folder / "tree.svg").getroot().tag.endswith("svg")
    with Image.open(folder / "tree.png") as picture:
        assert picture.width > 1000


def test_plan_of_an_observation(folder: Path, inside: Callable[..., str]) -> None:
    start = make_levels([SHOWN_LEVEL], NavigationOptions(exits=1))
    np.save("state.npy", observe(start.walls, start.goal, start.robot)[0])
    out = inside("plan", "--state", "state.npy", "--rule", "greedy")
    level = inside("plan", "--rule", "greedy")
    assert out.splitlines()[1:] == level.splitlines()[1:]
    assert "●" in out


def test_play_shows_the_evaluated_episode(folder: Path, inside: Callable[..., str]) -> None:
    solver = load_solver(shipped("dtsn"))
    cells = trace_navigation(solver, SHOWN_LEVEL, NavigationOptions(exits=1))
    out = inside("play", "--delay", "0")
    assert out.count("step ") == len(cells) - 1
    assert f"arrived after {len(cells) - 1} steps" in out
    assert "nothing written\nnext: dtsn plan" in out

    out = inside("play", "--delay", "0.1", "--out", "deep/episode.gif")
    assert "wrote deep/episode.gif" in out
    with Image.open(folder / "deep/episode.gif") as film:
        assert sum(1 for _ in ImageSequence.Iterator(film)) == len(cells)
    assert (folder / "deep/episode.gif").stat().st_size < 100_000


def test_play_in_a_terminal(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    slept: list[float] = []
    monkeypatch.setattr("dtsn.inspection.text.time.sleep", slept.append)
    out = inside("play", "--delay", "0.5")
    assert f"arrived after {len(slept)} steps" in out
    assert set(slept) == {0.5}
    assert "\x1b[" in out


# --- the machine and the data ------------------------------------------------------------------------


def test_doctor(folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(folder.iterdir())
    out = inside("doctor")
    for finding in ("core packages", "torch 2.", "device", "threads", "shipped dtsn", "shipped qnet", "disk"):
        assert finding in out
    assert "the core works" in out
    assert sorted(folder.iterdir()) == before

    monkeypatch.setattr("dtsn.cli.doctor.EXPECTED", {"dtsn": 51})
    out = inside("doctor", code=1)
    assert "bad     shipped dtsn" in out
    assert "1 of the checks above failed" in out

    monkeypatch.setattr("dtsn.pretrained.FOLDER", folder)
    assert "does not work" in inside("doctor", code=1)
    assert "cannot write to" in inside("doctor", "--folder", "missing", code=1)


def test_doctor_knows_the_extras() -> None:
    lines = [
        "rich<16,>=14",
        "gone",
        'minari[hdf5]<0.6,>=0.5.3; extra == "minari"',
        "lost>=1; extra == 'viewer'",
    ]
    lines += ['dtsn[minari]; extra == "dev"', 'lost; python_version < "4" and extra == "viewer"']
    findings = {finding.name: finding for finding in packages(lines)}
    assert findings["core packages"].state == "bad"
    assert "not installed: gone" in findings["core packages"].text
    assert findings["extra minari"].state == "ok"
    assert findings["extra viewer"].state == "missing"
    assert findings["extra viewer"].text.endswith('; pip install "dtsn[viewer]"')
    assert "extra dev" not in findings


def test_data_goes_to_minari_and_back(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    out = inside("data", "info", "data.h5")
    assert re.search(r"num episodes +20 *\n", out)
    assert re.search(r"observations +\[\d+, 3, 20, 20\] uint8, checksum right", out)
    assert "wrote 20 episodes" in inside("data", "export", "data.h5", "navigation/test-v0")
    assert "already exists" in inside("data", "export", "data.h5", "navigation/test-v0", code=2)
    inside("data", "import", "navigation/test-v0", "back.h5")
    with Dataset("data.h5") as ours, Dataset("back.h5") as theirs:
        for name in ("actions", "rewards", "q_values", "dones", "levels"):
            np.testing.assert_array_equal(ours.array(name), theirs.array(name))
        np.testing.assert_array_equal(ours.episode(7).observations, theirs.episode(7).observations)
    assert "back.h5: already exists" in inside("data", "import", "navigation/test-v0", "back.h5", code=2)
    assert "missing/data-v0" in inside("data", "import", "missing/data-v0", "new.h5", code=2)


def test_damaged_data_is_noticed(folder: Path, inside: Callable[..., str]) -> None:
    content = bytearray((folder / "data.h5").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "bad.h5").write_bytes(content)
    assert "bad.h5" in inside("data", "info", "bad.h5", code=2)


def test_data_alone_says_what_there_is(inside: Callable[..., str]) -> None:
    assert all(f"  {name}" in inside("data") for name in ("info", "export", "import", "import-dgrl"))


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


# --- what it refuses ---------------------------------------------------------------------------------

MISTAKES = {
    "resume of nothing": (("train", *QNET, "--run", "typo", "--resume"), "typo holds no run to resume"),
    "no validation levels": (("train", *QNET, "--run", "run", "--validate-levels", "-1"), "levels must be"),
    "unknown command": (("trian",), "did you mean 'train'?"),
    "unknown data command": (("data", "infoo"), "did you mean 'info'?"),
    "no such command": (("frobnicate",), "choose one of demo, "),
    "plan into what?": (("plan", "--out", "tree.txt"), "out must end in .svg, .png or .json, got tree.txt"),
    "plan too long": (("plan", "--iterations", "1001"), "iterations must be at most 1000, got 1001"),
    "plan of nothing": (("plan", "--iterations", "0"), "act_iterations must be at least 1"),
    "plan at no temperature": (("plan", "--temperature", "0"), "temperature must be positive"),
    "plan after the end": (("plan", "--time", "150"), "where the episode ends, got 150"),
    "plan of no level": (("plan", "--level", "-1"), "seeds must not be negative"),
    "plan without lines": (("plan", "--lines", "0"), "lines must be at least 1"),
    "plan by a wrong rule": (("plan", "--rule", "best"), "epsilon_greedy"),
    "picture too large": (
        ("plan", "--iterations", "400", "--out", "t.svg"),
        "too large to draw, at most 1500",
    ),
    "no state": (("plan", "--state", "missing.json"), "missing.json: no such file"),
    "no array": (("plan", "--state", "missing.npy"), "missing.npy"),
    "state of garbage": (("plan", "--state", "garbage.json"), "garbage.json: not JSON"),
    "array of garbage": (("plan", "--state", "garbage.npy"), "garbage.npy must be an array"),
    "array of another shape": (
        ("plan", "--state", "small.npy"),
        "small.npy: must have shape (3, 20, 20), got (2,)",
    ),
    "state of what?": (("plan", "--state", "garbage.h5"), "state must end in .json or .npy"),
    "play into what?": (("play", "--out", "film.mp4"), "out must end in .gif, got film.mp4"),
    "play backwards": (("play", "--delay", "-1"), "delay must be from 0 to 60 seconds, got -1"),
    "play with no run": (("play", "missing"), "missing is neither a checkpoint nor a run folder"),
    "export of no run": (("export",), "runs/dtsn-0 is neither a checkpoint nor a run folder"),
    "export to both": (("export", "--onnx", "--pt2"), "name one of --onnx and --pt2, got both"),
    "random numbers for a folder": (("export", "--uniforms"), "are inputs of a graph"),
    "no data to look at": (("data", "info"), "data/navigation.h5: no such file; dtsn collect makes it"),
    "garbage to look at": (("data", "info", "garbage.h5"), "garbage.h5"),
    "garbage to export": (("data", "export", "garbage.h5"), "garbage.h5"),
    "no command": ((), "collect"),
    "unknown option": (("train", "--solver.nam", "qnet"), "--solver.name"),
    "unknown solver": (("train", "--solver.name", "qnett"), "did you mean 'qnet'"),
    "unknown encoder": (("train", "--network.encoder", "gird"), "grid"),
    "unknown variant": (("reproduce", "--variants", "dtsnn"), "did you mean 'dtsn'?"),
    "no variants": (("reproduce", "--variants"), "at least one variant"),
    "unknown domain": (
        ("collect", "progcen"),
        "takes navigation|procgen, got 'progcen'; did you mean 'procgen'?",
    ),
    "unknown domain to train": (
        ("train", "progcen"),
        "progcen: no such file, nor navigation or procgen; did you mean 'procgen'?",
    ),
    "a near miss": (("train", "--iterations", "5"), "--solver.iterations"),
    "folder to look at": (
        ("data", "info", "."),
        ". is a folder: name a data set in it (.h5 files there: data.h5, garbage.h5)",
    ),
    "no such device": (
        ("plan", "--device", "gpu"),
        "device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'",
    ),
    "no such GPU": (("plan", "--device", "cuda:99"), "device 'cuda:99' is not available here: use cpu"),
    "no expert": (("collect", "procgen"), "dtsn expert procgen --game coinrun --mode easy trains one"),
    "expert of no run": (
        ("expert", "procgen", "--resume", "--run", "typo"),
        "typo holds no run to resume",
    ),
    "eval of no run": (("eval", "procgen", "typo"), "typo"),
    "world model of no run": (("eval", "model", "typo", "data.h5"), "typo is neither a checkpoint nor"),
    "no transitions": (("eval", "model", "typo", "data.h5", "--transitions", "0"), "transitions must be at"),
    "report of nothing": (("report", "--results", "missing"), "missing has no rows of navigation, procgen"),
    "negative steps": (("train", "--steps", "-3"), "steps must be at least 1, got -3"),
    "steps of no number": (("train", "--steps", "many"), "many"),
    "no episodes": (("collect", "--out", "new.h5", "--episodes", "0"), "episodes must be at least 1, got 0"),
    "data exists": (("collect", "--out", "data.h5", "--episodes", "1"), "data.h5: already exists"),
    "no data": (("train", "missing.h5"), "missing.h5: no such file"),
    "garbage data": (("train", "--data", "garbage.h5"), "garbage.h5"),
    "data is a folder": (("train", "--data", "."), "must be a data set file, got a folder"),
    "batch too large": (
        ("train", *QNET, "--batch-size", "9999", "--run", "run"),
        "batch_size must be 1 to 231",
    ),
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
    for suffix in ("h5", "json", "npy"):
        (folder / f"garbage.{suffix}").write_bytes(b"garbage" * 1000)
    np.save(folder / "small.npy", np.zeros(2))

    def started(*_: object, **__: object) -> None:
        raise AssertionError("runs are started before their settings are checked")

    monkeypatch.setattr(jobs.time, "sleep", started)
    monkeypatch.setattr(jobs.subprocess, "Popen", started)
    arguments, explanation = MISTAKES[mistake]
    said = inside(*arguments, code=2)
    assert explanation in said
    assert "Traceback" not in said


def test_bugs_keep_their_traceback(inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        np.zeros(2) + np.zeros(3)

    monkeypatch.setattr("dtsn.inspection.describe_navigation", broken)
    said = inside("plan", code=1)
    assert said.startswith("Traceback")
    assert "ValueError: operands could not be broadcast" in said
    assert said.endswith("dtsn: this is a bug in dtsn; please report it with the lines above\n")


def test_traceback_of_a_mistake_on_demand(
    inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTSN_TRACEBACK", "1")
    assert "Traceback" in inside("plan", "--lines", "0", code=1)


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
        (("--device", "cuda:x"), "device must be auto, cpu, cuda, cuda:N or mps, got 'cuda:x'"),
    ):
        assert explanation in inside("eval", "run", *changes, code=2)


def test_interrupts_are_explained(inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dtsn.evaluation.navigation.evaluate_navigation", interrupted)
    monkeypatch.setattr("dtsn.inspection.describe_navigation", interrupted)
    monkeypatch.setattr("dtsn.inspection.watch_navigation", interrupted)
    for command in ("eval", "plan", "play", "demo"):
        assert "the same command again starts anew" in inside(command, code=130)


# --- the paper's tables ------------------------------------------------------------------------------

TABLES = ("reproduce", "--variants", "qnet", "--seeds", "1", "--steps", "4", "--levels", "20")
TABLES += ("--validate-every", "2", "--jobs", "1")


def test_reproduce(tmp_path: Path, inside: Callable[..., str]) -> None:
    assert "qnet seed 0: done" in inside(*TABLES)
    results = tmp_path / "report/results/navigation"
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
    files.append(results / "meta.json")
    times = {path: path.stat().st_mtime_ns for path in files}
    assert "0 of 1 runs to do" in inside(*TABLES)
    assert {path: path.stat().st_mtime_ns for path in files} == times


def test_report_writes_what_has_rows(folder: Path, inside: Callable[..., str]) -> None:
    for budget in ("day", "tiny"):
        rows = [ProcgenRow(level, float(level % 3), True, 10) for level in range(6)]
        write_rows(folder / f"report/results/procgen/rows/{budget}/coinrun/qnet/seed-0.csv.gz", rows)
    inside("report", "--budget", "day")
    pages = [*(folder / "report").glob("*.md"), *(folder / "report/figures").iterdir()]
    written = {path: path.read_bytes() for path in pages}
    assert {path.name for path in written} == {"procgen-results.md", "procgen-scores.png"}  # no Navigation
    inside("report")
    assert (folder / "report/procgen-results-tiny.md").exists()
    assert {path.name for path in folder.iterdir()} == {"data.h5", "report"}
    assert {path: path.read_bytes() for path in written} == written
    refused = inside("report", "--budget", "paper", code=2)
    assert "no rows of navigation, procgen (paper budget), game24 or online" in refused


def test_failed_runs_are_reported(tmp_path: Path, inside: Callable[..., str]) -> None:
    log = tmp_path / "runs/navigation/qnet/seed-0.log"
    (tmp_path / "runs/navigation").mkdir(parents=True)
    (tmp_path / "runs/navigation/navigation-opposite-8-11.h5").write_bytes(b"garbage")
    said = inside(*TABLES, code=1)
    assert "qnet seed 0: failed, see runs/navigation/qnet/seed-0.log" in said
    assert "Traceback" not in said
    assert "navigation-opposite-8-11.h5: cannot be read" in log.read_text()
