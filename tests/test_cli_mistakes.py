"""What the command line says when it cannot: a line for mistakes and interrupts, a traceback for bugs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli_calls import QNET, dtsn
from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.reproduce import jobs

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


def test_interrupts_are_explained(inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dtsn.evaluation.navigation.evaluate_navigation", interrupted)
    monkeypatch.setattr("dtsn.inspection.describe_navigation", interrupted)
    monkeypatch.setattr("dtsn.inspection.watch_navigation", interrupted)
    for command in ("eval", "plan", "play", "demo"):
        assert "the same command again starts anew" in inside(command, code=130)
