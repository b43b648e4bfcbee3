"""The viewer's server: hands out the page, lists runs and runs searches. It keeps no state of its own.

A client sends the whole question every time (which run, which level, the actions so far, how to search) and
gets the hall (Navigation) or the frame (Procgen) as it is after those actions and the document of
``dtsn.inspection.document`` for the next decision.

The server is meant for the person in front of it. It answers only to the host names it was started with,
so that a foreign page cannot reach it by pointing a name of its own here, and refuses requests that
another origin's page has made. Runs are looked up below one folder and nowhere else.
"""

from __future__ import annotations

import base64
import errno
import io
import ipaddress
import json
import os
import socket
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dtsn import pretrained
from dtsn.arrays import Bytes
from dtsn.config import SOLVERS, Rule
from dtsn.envs.navigation import MOVES, NavigationOptions, make_levels, step
from dtsn.envs.procgen import FRAME_SHAPE, GAMES, NUM_ACTIONS, SPLITS, ProcgenEnv, ProcgenOptions
from dtsn.experts.value_iteration import optimal_steps
from dtsn.inspection.document import describe_navigation, describe_procgen
from dtsn.solvers.solver import Solver
from dtsn.training.checkpoint import CheckpointError, checkpoints, load_state
from dtsn.training.loading import load_solver

MAX_ITERATIONS = 200
MAX_ACTIONS = 1000  # of a Procgen episode: all of them are played again for every answer
MAX_BODY = 64 * 1024
MAX_RUNS = 500  # listed; more are found by name
MAX_DEPTH = 5  # of run folders below the given one
MAX_WAITING = 8  # searches beside the one that runs
SOLVERS_KEPT = 4

PAGE = Path(__file__).parent / "page"
SHIPPED = "shipped"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
ENVIRONMENTS: dict[
    tuple[tuple[int, ...] | None, int], str
] = {  # by the shape of observations and the number of actions
    ((3, NavigationOptions().size, NavigationOptions().size), len(MOVES)): "navigation",
    (FRAME_SHAPE, NUM_ACTIONS): "procgen",
}


class Question(BaseModel):
    """What the page asks; everything that decides the answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run: Annotated[str, Field(max_length=1000)]
    level: Annotated[int, Field(ge=0, lt=2**31)] = 0
    exits: Literal[1, 2] = 2
    layout: Literal["independent", "opposite"] = "independent"
    game: Annotated[str, Field(max_length=100)] = ProcgenOptions().game
    mode: Annotated[str, Field(max_length=100)] = ProcgenOptions().mode
    actions: Annotated[list[Annotated[int, Field(ge=0, lt=NUM_ACTIONS)]], Field(max_length=MAX_ACTIONS)] = []
    iterations: Annotated[int | None, Field(ge=1, le=MAX_ITERATIONS)] = None
    rule: Rule | None = None
    temperature: Annotated[float | None, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = None
    seed: Annotated[int, Field(ge=0, lt=2**20)] = 0


def serve(runs: Path, host: str, port: int, device: str, ready: Callable[[str], None]) -> None:
    """Answer on ``host:port`` until interrupted; ``ready`` is called with the address once it listens."""
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    app = create_app(runs, host, device)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    with listener:
        try:
            ready(f"http://{shown}:{listener.getsockname()[1]}/")
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            return  # the way to stop it


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on ``host``."""
    return host in LOOPBACK


def _listen(host: str, port: int) -> socket.socket:
    if not host:
        raise ValueError("host must not be empty: use 127.0.0.1, or 0.0.0.0 for every address")
    if not 0 <= port < 2**16:
        raise ValueError(f"port must lie in 0..65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} is in use: stop what runs there, or --port 0 takes a free one"
            ) from error
        reason = str(error.strerror).partition(" (while")[0]
        raise OSError(
            f"cannot listen on {host!r}, port {port}: {reason}; --host must be an address of this machine"
        ) from error


def create_app(runs: Path, host: str = "127.0.0.1", device: str = "cpu") -> FastAPI:
    """The application; ``runs`` is the folder below which runs are found."""
    if runs.exists() and not runs.is_dir():
        raise ValueError(f"runs must be a folder, got the file {runs}")
    library = Library(runs, device)
    one_at_a_time = anyio.CapacityLimiter(1)  # searches keep the processor busy: two at once only take longer
    asked = 0  # searches that wait, and the one that runs
    app = FastAPI(title="dtsn view", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, host=host)
    for path in sorted(PAGE.glob("*.*")):
        _add_file(app, path)

    @app.get("/api/runs")
    def list_runs() -> JSONResponse:
        return JSONResponse(
            {
                "runs": library.entries(),
                "folder": str(runs),
                "max_iterations": MAX_ITERATIONS,
                "games": GAMES,
                "procgen_level": SPLITS["test"][0],
            }
        )

    @app.post("/api/search")
    async def search(question: Question) -> JSONResponse:
        nonlocal asked
        if asked > MAX_WAITING:
            raise HTTPException(503, f"{MAX_WAITING} searches are waiting already: try again in a moment")
        asked += 1
        try:
            return await anyio.to_thread.run_sync(answer, library, question, limiter=one_at_a_time)
        finally:
            asked -= 1

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _refusal(422, _first_problem(error))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return _refusal(error.status_code, str(error.detail))

    @app.exception_handler(ValueError)
    async def wrong(_: Request, error: ValueError) -> JSONResponse:
        return _refusal(422, str(error))

    @app.exception_handler(ImportError)
    async def missing(_: Request, error: ImportError) -> JSONResponse:
        return _refusal(503, str(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return _refusal(500, f"the server failed ({type(error).__name__}): its terminal says where")

    return app


def answer(library: Library, question: Question) -> JSONResponse:
    """The state after the actions so far and, if the episode goes on, the search for the next one."""
    solver = library.solver(question.run)
    search: dict[str, Any] = {
        "time": len(question.actions),
        "seed": question.seed,
        "iterations": question.iterations,
        "rule": question.rule,
        "temperature": question.temperature,
    }
    document = None
    if _environment(solver.observation_shape, solver.world_model.num_actions) == "procgen":
        frame, state = replay_procgen(
            question.level, ProcgenOptions(question.game, question.mode), question.actions
        )
        if not state["done"]:
            document = describe_procgen(solver, frame, question.level, **search)
    else:
        options = NavigationOptions(exits=question.exits, exit_layout=question.layout)
        state = replay(question.level, options, question.actions)
        if state["outcome"] is None:
            robot = state["path"][-1]
            document = describe_navigation(solver, question.level, options, robot=robot, **search)
    return JSONResponse({"state": state, "search": document})


def replay(level: int, options: NavigationOptions, actions: list[int]) -> dict[str, Any]:
    """An episode so far: the hall, the cells that the robot drove through, and how it ended, if it did."""
    if any(action >= len(MOVES) for action in actions):
        raise ValueError(f"actions of Navigation must lie in 0..{len(MOVES) - 1}, got {max(actions)}")
    start = make_levels([level], options)
    robot, path, outcome = start.robot, [start.robot[0].tolist()], None
    for time, action in enumerate(actions, 1):
        if outcome:
            raise ValueError(f"actions must end with the episode, after {time - 1}, got {len(actions)}")
        robot, success, collision = step(start.walls, start.goal, robot, np.array([action]))
        path.append(robot[0].tolist())
        if success[0] or collision[0]:
            outcome = "goal" if success[0] else "collision"
        elif time == options.max_steps:
            outcome = "time-out"
    return {
        "walls": start.walls[0].astype(int).tolist(),
        "goal": start.goal[0].tolist(),
        "path": path,
        "time": len(actions),
        "outcome": outcome,
        "optimal_steps": int(optimal_steps(start)[0]),
    }


def replay_procgen(level: int, options: ProcgenOptions, actions: list[int]) -> tuple[Bytes, dict[str, Any]]:
    """A Procgen episode so far: its newest frame ``[3, 64, 64]``, and what the page shows of it."""
    game = ProcgenEnv(options.game, options.mode)
    frame, _ = game.reset(options={"level": level})
    score, done, completed = 0.0, False, False
    for time, action in enumerate(actions):
        if done:
            raise ValueError(f"actions must end with the episode, after {time}, got {len(actions)}")
        frame, reward, terminated, truncated, info = game.step(action)
        score, done = score + reward, terminated or truncated
        completed = done and info["complete"]
    png = io.BytesIO()
    Image.fromarray(frame.transpose(1, 2, 0)).save(png, "PNG")
    shown = "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
    return frame, {
        "frame": shown,
        "time": len(actions),
        "score": score,
        "done": done,
        "completed": completed,
    }


# --- runs --------------------------------------------------------------------------------------------


class Library:
    """The solvers that can be shown: those of the package, and runs below one folder."""

    def __init__(self, runs: Path, device: str):
        self.root, self.device = runs.resolve(), device
        self._load_once = lru_cache(SOLVERS_KEPT)(self._load)

    def entries(self) -> list[dict[str, Any]]:
        """Name and search settings of every solver, those of the package first."""
        found = [(f"{SHIPPED}/{path.name}", path) for path in sorted(pretrained.FOLDER.glob("navigation-*"))]
        found += [(path.relative_to(self.root).as_posix(), path) for path in self._folders()]
        return [described for name, path in found if (described := self._describe(name, path))]

    def solver(self, name: str) -> Solver:
        """A solver by the name it is listed under; the newest checkpoint of a run that is still trained."""
        path = self._find(name)
        newest = _newest_state(path)
        return self._load_once(path, name, newest, newest.stat().st_mtime_ns if newest.exists() else 0)

    def _load(self, path: Path, name: str, _newest: Path, _changed: int) -> Solver:
        solver = load_solver(path, self.device)
        if _environment(solver.observation_shape, solver.world_model.num_actions) is None:
            raise ValueError(
                f"run {name!r} is of neither Navigation nor Procgen: the viewer cannot show its search"
            )
        return solver

    def _find(self, name: str) -> Path:
        """The folder of a name. What lies outside is unknown, however the path gets there."""
        kind, _, rest = name.partition("/")
        if kind == SHIPPED and rest in os.listdir(pretrained.FOLDER):
            return pretrained.FOLDER / rest
        try:
            path: Path | None = (self.root / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            path = None
        if path is None or not self._holds(path):
            raise HTTPException(404, f"unknown run {name!r}: choose one from the list of runs")
        return path

    def _holds(self, run: Path) -> bool:
        """Whether all of a run that would be read is below the root: links to elsewhere are not followed."""
        patterns = ("*", "checkpoints/step-*", "checkpoints/step-*/*")
        read = [run, *(path for pattern in patterns for path in run.glob(pattern))]
        return all(path.resolve().is_relative_to(self.root) for path in read)

    def _folders(self) -> list[Path]:
        """Run folders below the root, and exported solvers."""
        found: list[Path] = []
        for folder, below, files in os.walk(self.root):  # does not follow links
            path = Path(folder)
            is_run = "checkpoints" in below or "state.json" in files
            if is_run and self._holds(path):
                found.append(path)
            if is_run or len(path.relative_to(self.root).parts) >= MAX_DEPTH or len(found) >= MAX_RUNS:
                below.clear()
            below.sort()
        return found

    def _describe(self, name: str, path: Path) -> dict[str, Any] | None:
        """What the list tells of a run; nothing of one that cannot be shown."""
        try:
            state = load_state(_newest_state(path).parent)
            environment = _environment(tuple(state["observation_shape"]), state["num_actions"])
            if environment is None:
                return None
            solver = state["config"]["solver"]
            planner = SOLVERS[solver["name"]].acting_planner
            iterations = solver["act_iterations"] or solver["iterations"]
            settings = {
                "iterations": iterations,
                "rule": solver["act_rule"],
                "temperature": solver["temperature"],
            }
        except (CheckpointError, KeyError, TypeError):
            return None
        if planner != "best_first":
            settings = dict.fromkeys(settings)
        known = {"name": name, "solver": solver["name"], "planner": planner, "step": state.get("step")}
        known["environment"] = environment
        if environment == "procgen":
            known |= {"game": _likely_game(name, path), "mode": _trained_on(path).get("mode", "easy")}
        return known | settings


def _environment(observation_shape: tuple[int, ...] | None, num_actions: int) -> str | None:
    return ENVIRONMENTS.get((observation_shape, num_actions))


def _trained_on(path: Path) -> dict[str, Any]:
    """The options of the environment that a run's data are of; nothing where its config.json does not say."""
    try:
        return dict(json.loads((path / "config.json").read_text())["env"]["options"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _likely_game(name: str, path: Path) -> str:
    """The game that a run was trained on; for an exported solver, which does not say so, by its name."""
    game = _trained_on(path).get("game")
    if game in GAMES:
        return str(game)
    for text in (name, path.name):
        named = [game for game in GAMES if game in text.lower()]
        if named:
            return max(named, key=text.lower().rfind)
    return ProcgenOptions().game


def _newest_state(path: Path) -> Path:
    """The ``state.json`` of a run's newest checkpoint, or of the folder if it is a checkpoint itself."""
    steps = [] if (path / "state.json").exists() else checkpoints(path / "checkpoints")
    return (steps[-1] if steps else path) / "state.json"


# --- the boundary ------------------------------------------------------------------------------------


class Guard:
    """Middleware in front of everything: who asks, how much they send, and the headers of every answer."""

    def __init__(self, app: ASGIApp, host: str):
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or pass on one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *RAW_HEADERS]}
            await send(message)

        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        problem = self._problem(scope["method"], headers)
        body = b"" if problem else await _read(receive)
        if body is None:
            problem = (413, f"the request is larger than {MAX_BODY} bytes")
        if problem:
            await _refusal(*problem)(scope, receive, send_with_headers)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay_body() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay_body, send_with_headers)

    def _problem(self, method: str, headers: dict[bytes, str]) -> tuple[int, str] | None:
        host = headers.get(b"host", "")
        if not answers_to(self.host, host):
            return (
                403,
                f"this server does not answer to the host {host!r}: use the address that dtsn view printed",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin != f"http://{host}":
            return 403, f"requests from pages of {origin!r} are not answered"
        if headers.get(b"sec-fetch-site") in ("cross-site", "same-site") and method != "GET":
            return 403, "requests from pages of other sites are not answered"
        if (
            method == "POST"
            and headers.get(b"content-type", "").partition(";")[0].strip() != "application/json"
        ):
            return 415, "the request must be application/json"
        return None


def answers_to(bound: str, host_header: str) -> bool:
    """Whether a server bound to ``bound`` answers requests with this Host header.

    A wildcard address has no name of its own: it answers to addresses in numbers and to localhost, which no
    foreign name can stand for.
    """
    name = host_header.rpartition(":")[0] if host_header.rpartition(":")[2].isdigit() else host_header
    name = name.removeprefix("[").removesuffix("]").lower()
    if bound in LOOPBACK:
        return name in LOOPBACK
    if bound in ("0.0.0.0", "::"):
        return name == "localhost" or _is_address(name)
    return name == bound.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _read(receive: Receive) -> bytes | None:
    """A request's body, or None if it is too large. A large one is read to its end, or the browser that
    sends it would see a broken connection instead of the answer."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        if len(body) <= MAX_BODY:
            body += message.get("body", b"")
        more = message.get("more_body", False)
    return body if len(body) <= MAX_BODY else None


def _add_file(app: FastAPI, path: Path) -> None:
    """One file of the page under its own fixed address: no path of a request ever reaches the disk."""
    media_type, url = MEDIA_TYPES[path.suffix], "/" if path.name == "index.html" else f"/{path.name}"
    response = Response(path.read_bytes(), media_type=media_type)
    app.add_api_route(url, lambda: response, methods=["GET"])


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message or HTTPStatus(status).phrase}, status)


def _first_problem(error: RequestValidationError) -> str:
    """The first thing that is wrong with a question; long and nested values are not repeated."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"][1:]) or "the request"
    value = problem.get("input")
    got = f", got {value!r}"[:80] if isinstance(value, str | int | float) else ""
    return f"{where}: {problem['msg']}{got}"
