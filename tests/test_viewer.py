"""The viewer's server through real sockets: it answers what the library computes, and survives bad guests."""

from __future__ import annotations

import base64
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")
import uvicorn
from PIL import Image

from dtsn import pretrained
from dtsn.checkpoint import load_state, save_checkpoint
from dtsn.config import SOLVERS, NetworkConfig, SolverConfig, TrainConfig
from dtsn.envs.navigation import NavigationOptions, make_levels
from dtsn.envs.procgen import (
    FRAME_SHAPE,
    GAMES,
    NUM_ACTIONS,
    SPLITS,
    ProcgenOptions,
    load_envpool,
    play_levels,
)
from dtsn.evaluation.navigation import evaluate_navigation, trace_navigation
from dtsn.evaluation.procgen import solver_policy
from dtsn.experts.value_iteration import optimal_steps
from dtsn.inspection import check_search, describe_navigation, to_json
from dtsn.pretrained import shipped
from dtsn.solvers.solver import Solver
from dtsn.training.loading import load_solver
from dtsn.training.trainer import Trainer
from dtsn.viewer import show
from dtsn.viewer.guard import MAX_WAITING, answers_to
from dtsn.viewer.library import MAX_ITERATIONS, SOLVERS_KEPT, Library, Shown
from dtsn.viewer.replay import MAX_ACTIONS, GymWorld
from dtsn.viewer.server import MEDIA_TYPES, PAGE, create_app, server_config

DTSN = pretrained.FOLDER / "navigation-dtsn"
LEVEL = 2_000_014


@cache
def easy_level() -> int:
    """A level with one exit whose goal is near and which both shipped solvers solve."""
    levels, options = np.arange(2_000_000, 2_000_400), NavigationOptions(exits=1)
    near = levels[optimal_steps(make_levels(levels, options)) <= 6]
    for name in ("dtsn", "qnet"):
        rows = evaluate_navigation(load_solver(pretrained.FOLDER / f"navigation-{name}"), near, options)
        near = near[[row.success and row.steps <= 8 for row in rows]]
    return int(near[0])


class Server:
    """A server on a free port and a client that can say anything."""

    def __init__(self, library: Library):
        self.runs = library.runs
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = server_config(create_app(library))
        config.log_level = "critical"
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    def close(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join()
        self.socket.close()

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        received = {name.lower(): value for name, value in response.getheaders()}
        assert len(received) == len(response.getheaders())  # none twice, however often it is asked
        return response.status, received, content

    def post(self, body: bytes, **headers: str) -> tuple[int, Any]:
        headers = {"Content_Type": "application/json"} | headers
        status, _, content = self.request("POST", "/api/search", body, **headers)
        return status, json.loads(content)

    def search(self, **question: Any) -> tuple[int, Any]:
        asked = {"run": "shipped/navigation-dtsn", "options": {"exits": "1"}} | question
        return self.post(json.dumps(asked).encode())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, an exported solver, one of another environment, and links to elsewhere."""
    root = tmp_path_factory.mktemp("view")
    runs, outside = root / "runs", root / "outside"
    for step in (2000, 3000):
        shutil.copytree(DTSN, runs / f"study/dtsn-0/checkpoints/step-{step}")
    options = {"exits": 2, "exit_layout": "opposite", "hall": [8, 11]}
    said = {"env": {"id": "dtsn/Navigation-v0", "options": options}}
    (runs / "study/dtsn-0/config.json").write_text(json.dumps(said))
    shutil.copytree(DTSN, runs / "exported")
    shutil.copytree(DTSN, outside)
    state = json.loads((DTSN / "state.json").read_text())
    save_checkpoint(
        runs / "frames/checkpoints/step-1",
        {"model": {}},
        {"config": state["config"], "observation_shape": [4, 84, 84], "num_actions": 6, "step": 1},
    )
    (runs / "empty/checkpoints").mkdir(parents=True)
    (runs / "damaged").mkdir()
    (runs / "damaged/state.json").write_text("{")
    (runs / "linked").symlink_to(outside)
    (runs / "linked-file").mkdir()
    for name in ("state.json", "model.safetensors"):
        (runs / "linked-file" / name).symlink_to(outside / name)
    (runs / "linked-step/checkpoints").mkdir(parents=True)
    (runs / "linked-step/checkpoints/step-1").symlink_to(outside)
    return runs


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    server = Server(Library(runs))
    yield server
    server.close()


# --- what it answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in PAGE.iterdir()))
def test_page_is_served_with_closed_doors(server: Server, name: str) -> None:
    path = "/" if name == "index.html" else f"/{name}"
    server.request("GET", path)
    status, headers, content = server.request("GET", path)
    assert status == 200
    assert content == (PAGE / name).read_bytes()
    assert headers["content-type"].partition(";")[0] == MEDIA_TYPES[Path(name).suffix]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert not any(name.startswith("access-control") for name in headers)


def test_page_needs_nothing_from_elsewhere() -> None:
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        for word in (
            "://",
            "eval(",
            "innerHTML",
            'style="',
            "onclick=",
        ):  # most of them the policy would drop
            assert word not in text, path.name


def test_runs_are_listed(server: Server) -> None:
    status, _, content = server.request("GET", "/api/runs")
    overview = json.loads(content)
    listed = {run.pop("name"): run for run in overview["runs"]}
    shown = ["shipped/navigation-dtsn", "shipped/navigation-qnet", "exported", "study/dtsn-0"]
    assert status == 200
    assert sorted(name for name, run in listed.items() if "problem" not in run) == sorted(shown)
    problems = {name: run["problem"] for name, run in listed.items() if "problem" in run}
    assert set(problems) == {"damaged", "empty", "frames", "linked-file", "linked-step"}
    assert "no checkpoint yet" in problems["empty"]
    assert "outside the folder" in problems["linked-file"]
    assert "dtsn.viewer.show" in problems["frames"]
    assert listed["study/dtsn-0"] == {
        "solver": "dtsn",
        "planner": "best_first",
        "environment": "navigation",
        "size": 20,
        "options": {"exits": "1", "layout": "opposite", "hall": "8-11"},
        "iterations": 10,
        "rule": "sample",
        "temperature": 1.0,
        "step": load_state(shipped("dtsn"))["step"],
        "steps": [2000, 3000],
    }
    usual = NavigationOptions()
    hall = f"{usual.hall[0]}-{usual.hall[1]}"
    assert listed["exported"]["options"] == {"exits": "1", "layout": usual.exit_layout, "hall": hall}
    assert listed["shipped/navigation-qnet"]["planner"] == "one_step"
    assert listed["shipped/navigation-qnet"]["iterations"] is None
    assert overview["solvers"]["dtsn"] == {"title": "D-TSN", "colour": SOLVERS["dtsn"].colour}


def test_checkpoint_of_a_run_can_be_chosen(server: Server) -> None:
    for step, status in ((None, 200), (2000, 200), (3000, 200), (5, 422)):
        assert server.search(run="study/dtsn-0", step=step, iterations=1)[0] == status


def test_folder_may_be_a_run_itself(runs: Path) -> None:
    library = Library(runs / "study/dtsn-0")
    assert library.entries()[-1]["name"] == "."
    assert library.find(".").solver.config.name == "dtsn"


def test_missing_folder_shows_the_shipped_solvers(tmp_path: Path) -> None:
    assert len(Library(tmp_path / "none").entries()) == 2


@pytest.mark.parametrize("run", ["shipped/navigation-dtsn", "study/dtsn-0", "exported"])
def test_search_is_the_library_s(server: Server, run: str) -> None:
    search = {"iterations": 7, "rule": "epsilon_greedy", "temperature": 0.5}
    status, reply = server.search(run=run, level=LEVEL, actions=[1], seed=3, **search)
    assert status == 200
    robot = reply["state"]["scene"]["robot"]
    options = NavigationOptions(exits=1)
    expected = describe_navigation(load_solver(DTSN), LEVEL, options, time=1, robot=robot, seed=3, **search)
    assert reply["search"] == json.loads(json.dumps(expected))
    check_search(reply["search"])


@pytest.mark.parametrize("solver", ["dtsn", "qnet"])
def test_following_the_answers_is_the_evaluated_episode(server: Server, solver: str) -> None:
    run, level, actions = f"shipped/navigation-{solver}", easy_level(), []
    while (reply := server.search(run=run, level=level, actions=actions)[1])["search"]:
        actions.append(reply["search"]["action"])
    trained = load_solver(pretrained.FOLDER / f"navigation-{solver}")
    cells = trace_navigation(trained, level, NavigationOptions(exits=1))
    assert reply["state"]["scene"]["path"] == cells.tolist()
    assert reply["state"]["outcome"] == "goal"
    assert reply["state"]["status"].startswith(f"Goal after {len(actions)} steps; the shortest path has ")


def test_collision_and_time_out_end_an_episode(server: Server) -> None:
    outcomes = {}
    for actions in ([0] * 5, [1] * 5):
        for n in range(6):
            status, reply = server.search(level=LEVEL, actions=actions[:n])
            if status == 200 and reply["state"]["outcome"]:
                outcomes[n] = reply["state"]["outcome"]
                assert reply["search"] is None
                assert server.search(level=LEVEL, actions=[*actions[:n], 0])[0] == 422
                break
    assert set(outcomes.values()) == {"collision"}
    level = 2_000_001
    path = server.search(level=level)[1]["state"]["scene"]["path"]
    back_and_forth = [1, 3] * 100  # south of the robot is free
    state = server.search(level=level, actions=back_and_forth)[1]["state"]
    assert (state["outcome"], state["time"], state["scene"]["robot"]) == ("time-out", 200, path[0])


def test_a_run_under_training_shows_its_newest_checkpoint(runs: Path) -> None:
    library, run = Library(runs), runs / "study/dtsn-0"
    first = library.find("study/dtsn-0")
    assert library.find("study/dtsn-0") is first
    newer = run / "checkpoints/step-4000"
    shutil.copytree(DTSN, newer)
    try:
        assert library.find("study/dtsn-0") is not first
    finally:
        shutil.rmtree(newer)
    assert library._load_once.cache_info().maxsize == SOLVERS_KEPT


# --- Procgen -------------------------------------------------------------------------------------------


def save_procgen_solver(run: Path) -> None:
    """An untrained solver for Procgen, as a run."""
    try:
        load_envpool()
    except ImportError as error:
        pytest.skip(str(error))
    config = TrainConfig(
        solver=SolverConfig(iterations=4), network=NetworkConfig(encoder="nature", latent=16, hidden=16)
    )
    Trainer(config, FRAME_SHAPE, NUM_ACTIONS).save(run / "checkpoints")


@pytest.fixture(scope="module")
def procgen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runs = tmp_path_factory.mktemp("procgen")
    save_procgen_solver(runs / "leaper/dtsn-0")
    said = {"env": {"id": "dtsn/Procgen-v0", "options": {"game": "heist", "mode": "hard"}}}
    for name, data in (("nameless", {}), ("said", said)):
        shutil.copytree(runs / "leaper/dtsn-0", runs / name)
        (runs / name / "config.json").write_text(json.dumps(data))
    server = Server(Library(runs))
    yield server
    server.close()


LEAPER = {"game": "leaper", "mode": "easy"}
PROCGEN: dict[str, Any] = {"run": "leaper/dtsn-0", "options": LEAPER, "level": SPLITS["test"][0]}


def test_procgen_runs_are_listed_with_their_likely_game(procgen: Server) -> None:
    listed = json.loads(procgen.request("GET", "/api/runs")[2])
    runs = {run["name"]: run for run in listed["runs"] if run["environment"] == "procgen"}
    games = {name: (run["options"]["game"], run["options"]["mode"]) for name, run in runs.items()}
    unsaid = {"leaper/dtsn-0": ("leaper", "easy"), "nameless": ("coinrun", "easy")}
    assert games == {**unsaid, "said": ("heist", "hard")}
    game, mode = listed["worlds"]["procgen"]["fields"]
    assert game["choices"] == list(GAMES)
    assert (mode["by"], mode["choices"]) == ("game", {game: list(modes) for game, modes in GAMES.items()})
    assert listed["worlds"]["procgen"]["level"] == SPLITS["test"][0]


def test_following_the_answers_is_the_played_procgen_episode(procgen: Server) -> None:
    level, seed = SPLITS["test"][0] + 3, 2
    solver = load_solver(procgen.runs / "leaper/dtsn-0")
    policy = solver_policy(solver, np.array([level]), seed)
    (played,) = play_levels(ProcgenOptions("leaper"), [(0, level)], policy)
    length, actions = len(played.actions), played.actions.tolist()
    for n in (0, 1, length // 2, length - 1):
        question = PROCGEN | {"level": level, "seed": seed, "actions": actions[:n]}
        status, reply = procgen.search(**question)
        assert (status, reply) == procgen.search(**question)
        assert status == 200
        check_search(reply["search"])
        assert reply["search"]["action"] == actions[n]
        assert len(reply["search"]["nodes"]) == 1 + 4 * NUM_ACTIONS
        assert pixels(reply["state"]["scene"]["data"]).tolist() == played.observations[n].tolist()
        assert (reply["state"]["time"], reply["state"]["outcome"]) == (n, None)
    state = (reply := procgen.search(**PROCGEN | {"level": level, "actions": actions})[1])["state"]
    assert reply["search"] is None
    assert state["outcome"] == ("goal" if played.complete else "over")
    assert state["status"].endswith(f"after {length} steps; score {played.rewards.sum():.1f}.")
    assert pixels(state["scene"]["data"]).tolist() == played.observations[-1].tolist()
    assert procgen.search(**PROCGEN | {"level": level, "actions": [*actions, 0]})[0] == 422


def pixels(address: str) -> np.ndarray:
    """The frame [3, 64, 64] of a picture given as its own address."""
    kind, _, text = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))).transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"options": {"game": "Leaper"}}, "did you mean 'leaper'"),
        ({"options": LEAPER | {"mode": "memory"}}, "for leaper, got 'memory'"),
        ({"options": LEAPER | {"exits": "1"}}, "options must be among game, mode, got 'exits'"),
        ({"actions": [15]}, "actions must be below 15, got 15"),
        ({"actions": [4] * (MAX_ACTIONS + 1)}, "at most 1000 items"),
        ({"level": 2**31 - 1}, "got 2147483647"),
        ({"run": "shipped/navigation-dtsn", "actions": [4], "options": {}}, "must lie in 0..3, got 4"),
    ],
)
def test_bad_procgen_question_is_refused(procgen: Server, bad: dict[str, Any], sentence: str) -> None:
    status, reply = procgen.search(**PROCGEN | bad)
    assert status == 422
    assert sentence in reply["error"]


def test_missing_procgen_is_said(procgen: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("Procgen needs the system library libGL.so.1; run: apt-get install libgl1")

    monkeypatch.setattr("dtsn.envs.procgen.load_envpool", missing)
    status, reply = procgen.search(**PROCGEN)
    assert (status, reply["error"][:13]) == (503, "Procgen needs")
    assert procgen.search(iterations=1)[0] == 200


# --- bad guests ----------------------------------------------------------------------------------------


BAD_QUESTIONS: dict[str, dict[str, Any] | bytes] = {
    "unknown run": {"run": "nowhere"},
    "parent": {"run": "../outside"},
    "parent through a run": {"run": "study/../../outside"},
    "shipped parent": {"run": "shipped/../../../../../etc"},
    "absolute": {"run": "/etc"},
    "link": {"run": "linked"},
    "linked file": {"run": "linked-file"},
    "linked checkpoint": {"run": "linked-step"},
    "null byte": {"run": "a\0b"},
    "surrogate": b'{"run": "\\ud800"}',
    "long name": {"run": "x" * 900},
    "longer name": {"run": "x" * 5000},
    "no checkpoint": {"run": "empty"},
    "damaged": {"run": "damaged"},
    "another environment": {"run": "frames"},
    "no run": b"{}",
    "T too large": {"iterations": MAX_ITERATIONS + 1},
    "T absurd": {"iterations": 10**9},
    "T endless": b'{"run": "exported", "iterations": ' + b"9" * 5000 + b"}",
    "T zero": {"iterations": 0},
    "T text": {"iterations": "10"},
    "T true": {"iterations": True},
    "T fraction": {"iterations": 1.5},
    "NaN": {"temperature": float("nan")},
    "infinite": {"temperature": float("inf")},
    "negative": {"temperature": -1},
    "cold": {"temperature": 0},
    "rule": {"rule": "best"},
    "exits": {"options": {"exits": "3"}},
    "exits as a number": {"options": {"exits": 1}},
    "layout": {"options": {"layout": "round"}},
    "hall": {"options": {"hall": "12-7"}},
    "hall of words": {"options": {"hall": "here"}},
    "hall of digits": {"options": {"hall": "9" * 99 + "-" + "9"}},
    "unknown option": {"options": {"game": "leaper"}},
    "many options": {"options": {str(n): "1" for n in range(100)}},
    "step": {"step": 10**17},
    "step text": {"step": "newest"},
    "level": {"level": -1},
    "large level": {"level": 2**63},
    "seed": {"seed": -1},
    "action": {"actions": [4]},
    "actions": {"actions": "EEE"},
    "many actions": {"actions": [1, 3] * 101},
    "unknown field": {"ruin": 1},
    "list": b"[]",
    "number": b"7",
    "nothing": b"",
    "not JSON": b"{'run': 1}",
    "not UTF-8": b"\xff\xfe\xfa",
    "deep": b"[" * 60_000,
    "deep field": b'{"run": "exported", "actions": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "10 MB": b'{"run": "' + b"x" * 10_000_000 + b'"}',
}


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_bad_question_is_refused_with_a_sentence(server: Server, name: str) -> None:
    question = BAD_QUESTIONS[name]
    status, reply = server.search(**question) if isinstance(question, dict) else server.post(question)
    assert 400 <= status < 500
    assert set(reply) == {"error"}
    assert 5 < len(reply["error"]) < 1200
    assert "Traceback" not in reply["error"]
    assert server.search(iterations=1)[0] == 200  # it lives on


def test_refusal_names_the_value_and_the_field(server: Server) -> None:
    assert server.search(iterations=10**9)[1]["error"].startswith("iterations: ")
    assert "got 1000000000" in server.search(iterations=10**9)[1]["error"]
    assert "'nowhere'" in server.search(run="nowhere")[1]["error"]
    # What lies outside cannot be told from what does not exist.
    inside, outside = (server.search(run=run)[1]["error"] for run in ("nowhere", "../outside"))
    assert inside.replace("nowhere", "../outside") == outside


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/%2e%2e/server.py", "//etc/passwd", "/page/", "/docs", "/openapi.json", "/state.json"],
)
def test_nothing_else_is_served(server: Server, path: str) -> None:
    status, headers, _ = server.request("GET", path)
    assert status == 404
    assert "content-security-policy" in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.", "[::1"]
)
def test_foreign_host_is_refused(server: Server, host: str) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/runs"), ("POST", "/api/search")):
        assert server.request(method, path, b"{}", Host=host)[0] == 403


def test_foreign_pages_cannot_ask(server: Server) -> None:
    body, own = b'{"run": "exported", "iterations": 1}', f"http://127.0.0.1:{server.port}"
    assert server.post(body, Origin=own)[0] == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{server.port}"):
        assert server.post(body, Origin=origin)[0] == 403
    assert server.post(body, Sec_Fetch_Site="cross-site")[0] == 403
    # A form or a fetch without preflight cannot say application/json.
    assert server.post(body, Content_Type="text/plain")[0] == 415
    status, headers, _ = server.request("OPTIONS", "/api/search", Origin=own)
    assert status == 405
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    ("bound", "host", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:8765", True),
        ("127.0.0.1", "localhost:8765", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("::1", "[::1]:8765", True),
        ("127.0.0.1", "192.168.0.5:8765", False),
        ("192.168.0.5", "192.168.0.5:8765", True),
        ("192.168.0.5", "localhost:8765", False),
        ("box.lan", "box.lan:8765", True),
        ("box.lan", "evil.example", False),
        ("0.0.0.0", "192.168.0.5:8765", True),
        ("0.0.0.0", "localhost:8765", True),
        ("0.0.0.0", "evil.example:8765", False),
        ("::", "[fe80::1]:8765", True),
    ],
)
def test_hosts(bound: str, host: str, answered: bool) -> None:
    assert answers_to(bound, host) is answered


def test_only_so_many_searches_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    release, started = threading.Event(), []

    def slow(*_: Any, **__: Any) -> dict[str, Any]:
        started.append(1)
        assert release.wait(20)
        return {}

    monkeypatch.setattr("dtsn.viewer.replay.describe_navigation", slow)
    with ThreadPoolExecutor(MAX_WAITING + 4) as pool:
        asked = [pool.submit(server.search) for _ in range(MAX_WAITING + 4)]
        refused = [done for done in (_first_done(asked, 3)) if done[0] == 503]
        assert len(refused) == 3
        assert "try again" in refused[0][1]["error"]
        assert server.request("GET", "/")[0] == 200  # the page is not behind them
        assert len(started) == 1
        release.set()
        assert [future.result()[0] for future in asked].count(200) == MAX_WAITING + 1


def test_who_goes_away_leaves_the_queue(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    release, started = threading.Event(), []

    def slow(*_: Any, **__: Any) -> dict[str, Any]:
        started.append(1)
        assert release.wait(20)
        return {}

    monkeypatch.setattr("dtsn.viewer.replay.describe_navigation", slow)
    body = b'{"run": "shipped/navigation-dtsn"}'
    head = f"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.search)
        while not started:
            time.sleep(0.01)
        for _ in range(3):  # more than may wait, if any of them stayed
            impatient = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_WAITING)]
            for client in impatient:
                client.sendall(head.encode() + body)
            time.sleep(0.3)
            for client in impatient:
                client.close()
            time.sleep(0.5)
        release.set()
        assert running.result()[0] == 200
    assert server.search()[0] == 200
    assert len(started) == 2  # none of those who left was searched for


def test_slow_clients_are_hung_up_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "BODY_SECONDS"):
        monkeypatch.setattr(f"dtsn.viewer.guard.{name}", 0.3)
    head = f"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    kinds = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    answers = {"": b"", head: b"", head + kinds + "{": b" 408 "}
    for sent, answer in answers.items():
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.sendall(sent.encode())
            received = b""
            while part := client.recv(4096):
                received += part
            assert answer in received
            assert bool(answer) == bool(received)
    assert server.search(iterations=1)[0] == 200


# --- saved searches, two solvers, other people's environments --------------------------------------------


def test_saved_search_is_checked_and_shown(server: Server, tmp_path: Path) -> None:
    document = describe_navigation(load_solver(DTSN), LEVEL, NavigationOptions(exits=1), iterations=3)
    kind = {"Content_Type": "application/json"}
    status, _, content = server.request("POST", "/api/document", to_json(document).encode(), **kind)
    assert status == 200
    reply = json.loads(content)
    assert reply["search"] == json.loads(to_json(document))
    assert reply["state"]["status"] == f"A saved search: navigation, level {LEVEL}, step 0."
    assert reply["state"]["scene"]["robot"] == document["scene"]["robot"]
    for bad in (b"", b"[]", b"{", b"[" * 100_000, to_json(document).replace('"q"', '"Q"').encode()):
        status, _, content = server.request("POST", "/api/document", bad, **kind)
        assert status == 422
        assert json.loads(content)["error"].startswith("the file: ")
    assert server.request("POST", "/api/document", b" " * (9 << 20), **kind)[0] == 413

    library = Library(documents={"tree.json": document})
    assert [entry["name"] for entry in library.entries()] == ["file/tree.json"]
    assert library.document("file/tree.json") is document


def test_next_level_where_solvers_disagree(server: Server) -> None:
    options = NavigationOptions(exits=1)
    solvers = [load_solver(pretrained.FOLDER / f"navigation-{name}") for name in ("dtsn", "qnet")]
    levels = np.arange(LEVEL + 1, LEVEL + 17)
    success = [[row.success for row in evaluate_navigation(s, levels, options)] for s in solvers]
    differ = [level for level, one, other in zip(levels.tolist(), *success, strict=True) if one != other]
    asked = {"level": LEVEL, "options": {"exits": "1"}}
    question = {side: asked | {"run": f"shipped/navigation-{name}"} for side, name in
                (("first", "dtsn"), ("second", "qnet"))}  # fmt: skip
    kind = {"Content_Type": "application/json"}
    status, _, content = server.request("POST", "/api/disagree", json.dumps(question).encode(), **kind)
    assert status == 200
    assert json.loads(content) == {"level": differ[0] if differ else None, "last": LEVEL + 16}
    question["second"]["run"] = "nowhere"
    assert server.request("POST", "/api/disagree", json.dumps(question).encode(), **kind)[0] == 404


class Corridor(gymnasium.Env):
    """Five cells; left is closed at the left end."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "ansi"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(1, 3))
        return self.observe()

    def step(self, action: int) -> Any:
        self.place += 2 * action - 1
        observation, info = self.observe()
        return observation, -1.0, self.place == 4, False, info

    def observe(self) -> Any:
        return np.array([self.place / 4], np.float32), {"action_mask": np.array([self.place > 0, True])}

    def render(self) -> str:
        return "\x1b[1m" + "".join("R" if n == self.place else "." for n in range(5)) + "\x1b[0m"


def test_show_serves_solvers_in_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Library] = []
    monkeypatch.setattr("dtsn.viewer.server.serve", lambda library, *_: served.append(library))
    spaces = Corridor.observation_space, Corridor.action_space
    solver = Solver.create("dtsn", *spaces)
    show(solver, Corridor())
    show({"mine": solver, "other": Solver.create("qnet", *spaces)}, Corridor(), actions=("left", "right"))
    assert [list(library.given) for library in served] == [["D-TSN"], ["mine", "other"]]
    assert served[1].given["mine"].world.actions == ("left", "right")
    with pytest.raises(ValueError, match="actions must be 2 names, got 1"):
        show(solver, Corridor(), actions=("left",))
    three = Solver.create("dtsn", spaces[0], gymnasium.spaces.Discrete(3))
    with pytest.raises(ValueError, match="solver 'D-TSN' must have 2 actions as env has, got 3"):
        show(three, Corridor())


@pytest.fixture(scope="module")
def corridor() -> Iterator[Server]:
    spaces = Corridor.observation_space, Corridor.action_space
    solvers = {
        name: Solver.create(SolverConfig(name, iterations=3), *spaces, seed=0) for name in ("dtsn", "qnet")
    }
    world = GymWorld(Corridor(), actions=("left", "right"), label=lambda latent: f"{len(latent)} numbers")
    server = Server(Library(given={name: Shown(solver, world) for name, solver in solvers.items()}))
    yield server
    server.close()


def test_other_people_s_environments_are_shown(corridor: Server) -> None:
    overview = json.loads(corridor.request("GET", "/api/runs")[2])
    assert [run["name"] for run in overview["runs"]] == ["dtsn", "qnet"]
    assert overview["worlds"]["Corridor"]["actions"] == ["left", "right"]
    status, reply = corridor.search(run="dtsn", options={}, level=5, actions=[0])
    assert status == 200
    check_search(reply["search"])
    assert reply["state"]["scene"]["kind"] == "text"
    assert reply["state"]["scene"]["text"] in (".R...", "R....")
    assert (reply["state"]["time"], reply["state"]["status"]) == (1, "Step 1; return -1.")
    assert reply["search"]["nodes"][0]["label"].endswith(" numbers")
    assert corridor.search(run="dtsn", options={}, level=5, actions=[0]) == (status, reply)
    start = corridor.search(run="qnet", options={}, level=5)[1]["state"]["scene"]["text"].index("R")
    left_end = corridor.search(run="dtsn", options={}, level=5, actions=[0] * start)[1]["search"]
    assert left_end["q"][0] is None  # left is closed there
    over = corridor.search(run="dtsn", options={}, level=5, actions=[1] * (4 - start))[1]
    assert (over["search"], over["state"]["outcome"]) == (None, "over")
    assert corridor.search(run="dtsn", options={}, level=5, actions=[2])[0] == 422


def _first_done(futures: list[Any], count: int) -> list[Any]:
    end = time.monotonic() + 20
    while sum(future.done() for future in futures) < count and time.monotonic() < end:
        time.sleep(0.01)
    return [future.result() for future in futures if future.done()]


# --- the command ---------------------------------------------------------------------------------------


def start(*arguments: str, code: str = "from dtsn.cli.main import main; main()") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, "view", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_command_prints_its_address_and_stops_on_interrupt(tmp_path: Path) -> None:
    with start("--port", "0", "--runs", str(tmp_path), "--host", "0.0.0.0") as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert "warning" in process.stdout.readline()
        port = int(address.rstrip("/").rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=20)  # kept open: must not delay the end
        connection.request("GET", "/api/runs")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        connection.close()
    assert (process.returncode, out.strip(), err) == (0, "stopped", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "BUSY"], "is in use: "),
        (["--port", "70000"], "port must lie in 0..65535, got 70000"),
        (["nowhere.json"], "nowhere.json: no such file"),
        (["--host", "no such host"], "cannot listen on 'no such host'"),
        (["--host", ""], "host must not be empty"),
        (["--runs", __file__], "runs must be a folder"),
    ],
)
def test_command_refuses_in_a_sentence(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dtsn.cli.main import main

    with socket.create_server(("127.0.0.1", 0)) as busy:
        named = [str(busy.getsockname()[1]) if word == "BUSY" else word for word in arguments]
        monkeypatch.setattr(sys, "argv", ["dtsn", "view", *named])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1


def test_missing_extra_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dtsn.cli.main import main

    monkeypatch.delitem(sys.modules, "dtsn.viewer.server")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setattr(sys, "argv", ["dtsn", "view"])
    with pytest.raises(SystemExit):
        main()
    assert "pip install 'dtsn[viewer]'" in capsys.readouterr().err
