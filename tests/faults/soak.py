"""Train, evaluate and view at once, for a long time."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np

from dtsn.experts.collect import collect_navigation

from .common import Outcome, leftovers

SOAK_MEMORY = 8 * 2**30  # of addresses, which torch reserves far more of than it uses
FLAT = 2.0  # MB an hour
EVALUATE = """
import sys, torch
from dtsn.pretrained import shipped
from dtsn.envs.navigation import NavigationOptions
from dtsn.evaluation.levels import first_levels
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.training.loading import load_solver
torch.set_num_threads(1)
while True:
    evaluate_navigation(load_solver(shipped("dtsn")), first_levels("test", 50), NavigationOptions())
"""


def soak(folder: Path, size: int = 30) -> Outcome:
    """Train, evaluate and view at once for ``size`` minutes: memory, files and threads stay flat."""
    result = Outcome()
    path = collect_navigation(folder / "data.h5", episodes=50)
    python = [sys.executable]
    train = [*python, "-m", "dtsn", "train", "--data", str(path), "--run", str(folder / "runs/soak")]
    commands = {
        "train": [*train, "--steps", "1000000", "--checkpoint-every", "50", "--batch-size", "32"],
        "eval": [*python, "-c", EVALUATE],
    }
    if importlib.util.find_spec("dtsn.viewer") and importlib.util.find_spec("uvicorn"):
        commands["view"] = [
            *python,
            "-u",
            "-m",
            "dtsn",
            "view",
            "--runs",
            str(folder / "runs"),
            "--port",
            "0",
        ]
    else:
        result.notes.append("the viewer is not installed: only training and evaluation ran")
    before = _descendants(os.getpid())
    processes = {name: _limited(command, folder / f"{name}.log") for name, command in commands.items()}
    samples: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in processes}
    asked, answered, number = 0, 0, 0  # since the viewer first answered
    start = time.monotonic()
    try:
        while time.monotonic() - start < 60 * size:
            for name, process in processes.items():
                if process.poll() is not None:
                    result.failures.append(f"{name} ended: {(folder / f'{name}.log').read_text()[-500:]}")
                    return result
                samples[name].append((time.monotonic() - start, _measure(process.pid)))
            if "view" in processes:
                number += 1
                good = _ask(folder / "view.log", number)
                asked += bool(answered or good)
                answered += good
            time.sleep(1)
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
    for name, rows in samples.items():
        result.tried += 1
        _judge(name, rows, result)
    result.check(_descendants(os.getpid()) <= before, "processes are left behind")
    result.check(not leftovers(folder), f"left behind: {leftovers(folder)}")
    if "view" in processes:
        result.notes.append(f"the viewer answered {answered} of {asked} questions since its first answer")
        result.check(0 < answered == asked, f"the viewer answered {answered} of {asked} questions")
        result.check(asked > 0.8 * number, f"the viewer answered only after {number - asked} questions")
    return result


def _limited(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (SOAK_MEMORY, SOAK_MEMORY)),
        )


def _measure(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        "memory": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def _descendants(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def _judge(name: str, rows: list[tuple[float, dict[str, float]]], result: Outcome) -> None:
    """The slope over the second half: the first one warms caches up."""
    rows = rows[len(rows) // 2 :]
    hours = np.array([seconds for seconds, _ in rows]) / 3600
    memory = np.array([row["memory"] for _, row in rows])
    slope = float(np.polyfit(hours, memory, 1)[0])
    grown = {kind: rows[-1][1][kind] - rows[0][1][kind] for kind in ("threads", "files")}
    result.notes.append(
        f"{name}: {memory.mean():.0f} MB, {slope:+.1f} MB an hour, {grown['files']:+.0f} files"
    )
    # A noisy level is not a slope: what counts is what it would add up to in the time measured.
    result.check(
        slope * (hours[-1] - hours[0]) < max(FLAT, 0.02 * memory.mean()),
        f"{name}: memory grows, {slope} MB/h",
    )
    result.check(grown["threads"] <= 1 and grown["files"] <= 3, f"{name}: grows: {grown}")


def _ask(log: Path, number: int) -> bool:
    """One question to the viewer, whose address is in its log."""
    words = log.read_text().split()
    address = next((word for word in words if word.startswith("http://")), None)
    if address is None:
        return False
    try:
        with urllib.request.urlopen(f"{address}api/runs", timeout=30) as answer:
            runs = [run for run in json.load(answer)["runs"] if "problem" not in run]
        if not runs:  # before the first checkpoint
            return False
        question = {"run": runs[number % len(runs)]["name"], "level": number}
        request = urllib.request.Request(
            f"{address}api/search", json.dumps(question).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status == 200
    except (OSError, ValueError, KeyError):
        return False
