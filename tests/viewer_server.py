"""The viewer's server on a free port, runs to show, and a client that can say anything."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")
import uvicorn

from dtsn import pretrained
from dtsn.checkpoint import save_checkpoint
from dtsn.config import NetworkConfig, SolverConfig, TrainConfig
from dtsn.envs.navigation import NavigationOptions, make_levels
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, load_envpool
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.experts.value_iteration import optimal_steps
from dtsn.training.loading import load_solver
from dtsn.training.trainer import Trainer
from dtsn.viewer.library import Library
from dtsn.viewer.server import create_app, server_config

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
