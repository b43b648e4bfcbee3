"""Runs made to break the viewer: each may be one bad entry of the list, and nothing more."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvicorn

from dtsn import pretrained
from dtsn.checkpoint import _digest
from dtsn.viewer.library import Library
from dtsn.viewer.server import Question, answer, create_app, overview, server_config

from .common import Outcome

GOOD = "good"
SECONDS, WAITING = 10.0, 60.0  # for one list and its answers: of work, and in all
SECRET = "a-secret-of-another-folder"


def shipped() -> Path:
    return pretrained.FOLDER / "navigation-dtsn"


def state_with(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A copy of a sound checkpoint whose state says something else, and is sealed."""
    shutil.copytree(shipped(), run)
    state = json.loads((run / "state.json").read_text())
    del state["sha256"]
    change(state)
    (run / "state.json").write_text(json.dumps({**state, "sha256": _digest(state)}))


def with_config(run: Path, text: str | bytes) -> None:
    shutil.copytree(shipped(), run / "checkpoints/step-3")
    (run / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())


def pipe_at(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def linked_old(run: Path) -> None:
    """A checkpoint under its other name, linked to a place outside the folder."""
    outside = run.parent.parent / "outside"
    if not outside.exists():
        state_with(outside, lambda state: state.update(version=SECRET))
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/.step-9.old").symlink_to(outside)


def linked_file(run: Path, name: str) -> None:
    shutil.copytree(shipped(), run)
    outside = run.parent.parent / f"outside-{name}"
    shutil.move(run / name, outside)
    (run / name).symlink_to(outside)


def linked_config(run: Path) -> None:
    """A run whose config.json is somebody else's."""
    with_config(run, "{}")
    outside = run.parent.parent / "outside.json"
    outside.write_text(json.dumps({"env": {"id": SECRET, "options": {"game": SECRET}}}))
    (run / "config.json").unlink()
    (run / "config.json").symlink_to(outside)


def damaged(run: Path, name: str, content: bytes) -> None:
    shutil.copytree(shipped(), run)
    (run / name).write_bytes(content)


def solver_says(**said: Any) -> Callable[[Path], None]:
    return lambda run: state_with(run, lambda state: state["config"]["solver"].update(said))


def state_says(**said: Any) -> Callable[[Path], None]:
    return lambda run: state_with(run, lambda state: state.update(said))


USELESS = '{"env": {"options": {"hall": [9, 1], "exit_layout": []}}}'
KNOWN = ("HTTPException", "CheckpointError", "ValueError", "ValidationError")  # answered with a sentence
DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE: dict[str, Callable[[Path], None]] = {
    "NaN step": state_says(step=math.nan),
    "infinite temperature": solver_says(temperature=math.inf),
    "NaN temperature": solver_says(temperature=math.nan),
    "text as temperature": solver_says(temperature="hot"),
    "T without end": solver_says(act_iterations=2 * 10**9),
    "T of training without end": solver_says(iterations=10**18),
    "negative T": solver_says(iterations=-1),
    "true T": solver_says(iterations=True),
    "a list as T": solver_says(iterations=[10]),
    "deep tree": solver_says(name="treeqn", depth=10**6),
    "deeper tree": solver_says(name="treeqn", depth=10**18),
    "unknown solver": solver_says(name="oracle"),
    "a list as solver": state_says(config={"solver": []}),
    "no solver": state_says(config={}),
    "null config": state_says(config=None),
    "text as shape": state_says(observation_shape="3x20x20"),
    "a number as shape": state_says(observation_shape=3),
    "a large shape": state_says(observation_shape=[3_000_000_000, "a"]),
    "a larger shape": state_says(observation_shape=[10**30, "a"]),
    "a wide hall": state_says(observation_shape=[3, 10**9, 10**9]),
    "a narrow hall": state_says(observation_shape=[3, 1, 1]),
    "a fractional hall": state_says(observation_shape=[3, 20.0, 20.0]),
    "many actions": state_says(num_actions=5_000_000),
    "text as actions": state_says(num_actions="4"),
    "another environment": state_says(observation_shape=[4, 84, 84], num_actions=6),
    "an environment of nobody's": state_says(env={"id": "../../x", "options": {}}),
    "a list as environment": state_says(env=[]),
    "not sealed": lambda run: damaged(run, "state.json", b'{"format": "dtsn-checkpoint"}'),
    "not JSON": lambda run: damaged(run, "state.json", b"{"),
    "no state": lambda run: damaged(run, "state.json", b""),
    "binary state": lambda run: damaged(run, "state.json", bytes(range(256))),
    "deep state": lambda run: damaged(run, "state.json", DEEP.encode()),
    "large state": lambda run: damaged(run, "state.json", b" " * (2 << 20)),
    "damaged weights": lambda run: damaged(run, "model.safetensors", b"\xff" * 100),
    "no weights": lambda run: damaged(run, "model.safetensors", b""),
    "deep config": lambda run: with_config(run, DEEP),
    "NaN config": lambda run: with_config(run, '{"env": {"options": {"hall": [NaN, NaN]}}}'),
    "a list as config": lambda run: with_config(run, "[]"),
    "null environment": lambda run: with_config(run, '{"env": null}'),
    "options of no use": lambda run: with_config(
        run, '{"env": {"options": {"hall": [9, 1], "exit_layout": []}}}'
    ),
    "binary config": lambda run: with_config(run, bytes(range(256))),
    "large config": lambda run: with_config(run, b" " * (2 << 20)),
    "pipe as state": lambda run: pipe_at(run / "state.json"),
    "pipe as state of a step": lambda run: pipe_at(run / "checkpoints/step-1/state.json"),
    "pipe as weights": lambda run: (state_with(run, lambda _: None), pipe_at(run / "model.safetensors"))[0],
    "pipe as config": lambda run: (with_config(run, "{}"), pipe_at(run / "config.json"))[0],
    "pipe as checkpoint": lambda run: pipe_at(run / "checkpoints/step-1"),
    "pipe as checkpoints": lambda run: pipe_at(run / "checkpoints"),
    "file as checkpoints": lambda run: (run.mkdir(), (run / "checkpoints").write_text(""))[0],
    "no checkpoint": lambda run: (run / "checkpoints").mkdir(parents=True),
    "state is a folder": lambda run: (run / "state.json").mkdir(parents=True),
    "a step beyond numbers": lambda run: (run / f"checkpoints/step-{9**200}").mkdir(parents=True),
    "linked old checkpoint": linked_old,
    "linked config": linked_config,
    "numbers beyond numbers": lambda run: with_config(
        run, '{"env": {"id": "dtsn/Navigation-v0", "options": {"hall": [1e999, -1e999]}}}'
    ),
    "linked state": lambda run: linked_file(run, "state.json"),
    "linked weights": lambda run: linked_file(run, "model.safetensors"),
    "linked to itself": lambda run: (run.mkdir(), (run / "state.json").symlink_to(run / "state.json"))[0],
    "\x1b[31mred": lambda run: damaged(run, "state.json", b"{"),
    "name\nof two lines": lambda run: damaged(run, "state.json", b"{"),
    "not UTF-8 \udcff": lambda run: shutil.copytree(shipped(), run) and None,
    "<img src=x onerror=alert(1)>": lambda run: damaged(run, "state.json", b"{"),
}


def hostile_runs_in_viewer(folder: Path, _size: int) -> Outcome:
    """Put every hostile run beside a good one, and look at both."""
    result = Outcome()
    overview(Library(folder))  # what is imported and read once takes its time
    for number, (name, make) in enumerate(HOSTILE.items()):
        runs = folder / str(number) / "runs"
        shutil.copytree(shipped(), runs / GOOD)
        make(runs / name)
        result.tried += 1
        result.failures += [f"{name!r}: {failure}" for failure in _examine(runs, name)]
        shutil.rmtree(folder / str(number))
    _ask_over_http(folder / "all", result)
    return result


def _ask_over_http(folder: Path, result: Outcome) -> None:
    """All of them in one folder, over a real socket: the list is whole, and every question is answered."""
    runs = folder / "runs"
    shutil.copytree(shipped(), runs / GOOD)
    for name, make in HOSTILE.items():
        make(runs / name)
    with _serving(runs) as port:
        status, listed = _request(port, "GET", "/api/runs")
        names = {entry["name"]: entry for entry in listed.get("runs", [])}
        result.tried += 1
        result.check(status == 200 and "problem" not in names.get(GOOD, {"problem": ""}), f"list: {status}")
        result.check(SECRET not in json.dumps(listed), "the list tells of another folder")
        asked = [name for name in HOSTILE if name.isprintable() and name.isascii()]
        for name in [*asked, GOOD]:
            status, said = _request(port, "POST", "/api/search", {"run": name})
            result.tried += 1
            result.check(status in (200, 404, 422), f"asking for {name!r}: {status} {said}"[:300])
            result.check(name != GOOD or status == 200, f"the good run: {status} {said}"[:300])
            result.check(SECRET not in json.dumps(said), f"{name!r} tells of another folder")


@contextmanager
def _serving(runs: Path) -> Iterator[int]:
    config = server_config(create_app(Library(runs)))
    config.log_level = "critical"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def _request(port: int, method: str, path: str, question: Any = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=WAITING)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if question is None else json.dumps(question), headers)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


def _examine(runs: Path, name: str) -> list[str]:
    library, failures = Library(runs), []
    began, work = time.monotonic(), time.process_time()
    try:
        listed = overview(library)
        text = json.dumps(listed, allow_nan=False).encode()  # as the server sends it
        entries = {entry["name"]: entry for entry in listed["runs"]}
        if SECRET.encode() in text:
            failures.append("the list tells of another folder")
        if "problem" in entries.get(GOOD, {"problem": "it is not listed"}):
            failures.append("the good run is not listed")
        if any(not entry.get("problem", "x").strip() for entry in entries.values()):
            failures.append("a bad run without a reason")
    except Exception as error:
        failures.append(f"the list: {type(error).__name__}: {error}"[:200])
    for run in (name, GOOD):
        try:
            reply = answer(library, Question(run=run, iterations=1 if run == GOOD else None))
            json.dumps(reply, allow_nan=False).encode()
            if name == "linked old checkpoint" and run == name:
                failures.append("a run outside the folder is served")
        except Exception as error:
            known = type(error).__name__ in (
                "HTTPException",
                "CheckpointError",
                "ValueError",
                "ValidationError",
            )
            if not known or run == GOOD:
                failures.append(f"asking for {run!r}: {type(error).__name__}: {error}"[:200])
    took, worked = time.monotonic() - began, time.process_time() - work
    if took > WAITING or worked > SECONDS:
        failures.append(f"took {took:.0f} s, {worked:.0f} of them at work")
    return failures
