"""The viewer's server: hands out the page, lists runs and runs searches. It keeps no state of its own.

A client sends the whole question every time (which run, which level, the actions so far, how to search) and
gets the state after those actions and the document of ``dtsn.inspection.document`` for the next decision.

The server is meant for the person in front of it. It answers only to the host names it was started with,
so that a foreign page cannot reach it by pointing a name of its own here, and refuses requests that
another origin's page has made. Runs are looked up below one folder and nowhere else.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from dtsn.config import SOLVERS, Rule
from dtsn.errors import UserError
from dtsn.inspection.describe import with_search
from dtsn.inspection.document import SearchDocument, parse_search
from dtsn.viewer.guard import MAX_CONNECTIONS, UPLOAD, Guard, PatientProtocol, Turnstile, refusal
from dtsn.viewer.library import MAX_ITERATIONS, Library
from dtsn.viewer.replay import MAX_ACTIONS, Ask, State, World

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
COMPARED = 160  # levels times expansions that one question may compare


Word = Annotated[str, Field(max_length=100)]


class Question(BaseModel):
    """What the page asks; everything that decides the answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run: Annotated[str, Field(max_length=1000)]
    step: Annotated[int | None, Field(ge=0, lt=2**53)] = None
    level: Annotated[int, Field(ge=0, lt=2**31)] = 0
    options: Annotated[
        dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=100)]],
        Field(max_length=20),
    ] = {}
    actions: Annotated[list[Annotated[int, Field(ge=0, lt=2**16)]], Field(max_length=MAX_ACTIONS)] = []
    iterations: Annotated[int | None, Field(ge=1, le=MAX_ITERATIONS)] = None
    rule: Rule | None = None
    temperature: Annotated[float | None, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = None
    seed: Annotated[int, Field(ge=0, lt=2**20)] = 0

    def ask(self) -> Ask:
        """Return what of it concerns a world."""
        search = {"iterations": self.iterations, "rule": self.rule, "temperature": self.temperature}
        return {
            "level": self.level,
            "options": dict(self.options),
            "actions": self.actions,
            "seed": self.seed,
            "search": search,
        }


class Comparison(BaseModel):
    """Two questions, whose solvers are compared on the levels that follow the first's."""

    model_config = ConfigDict(strict=True, extra="forbid")

    first: Question
    second: Question


def serve(
    library: Library, host: str = "127.0.0.1", port: int = 8765, ready: Callable[[str], None] = print
) -> None:
    """Answer on ``host:port`` until interrupted; ``ready`` is called with the address once it listens."""
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    config = server_config(create_app(library, host))
    with listener:
        try:
            ready(f"http://{shown}:{listener.getsockname()[1]}/")
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            return  # the way to stop it


def server_config(app: FastAPI) -> uvicorn.Config:
    """Return how uvicorn serves: it hangs up on slow and on too many clients."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=PatientProtocol,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )


def _listen(host: str, port: int) -> socket.socket:
    if not host:
        raise UserError("host must not be empty: use 127.0.0.1, or 0.0.0.0 for every address")
    if not 0 <= port < 2**16:
        raise UserError(f"port must lie in 0..65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} is in use: stop what runs there; port 0 takes a free one") from error
        reason = str(error.strerror).partition(" (while")[0]
        raise OSError(
            f"cannot listen on {host!r}, port {port}: {reason}; host must be an address of this machine"
        ) from error


def create_app(library: Library, host: str = "127.0.0.1") -> FastAPI:
    """Return the application."""
    turnstile = Turnstile()
    app = FastAPI(title="dtsn view", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, host=host)
    for path in sorted(PAGE.glob("*.*")):
        _add_file(app, path)

    @app.get("/api/runs")
    def list_runs() -> JSONResponse:
        return JSONResponse(overview(library))

    @app.post("/api/search")
    async def search(question: Question, request: Request) -> JSONResponse:
        return JSONResponse(await turnstile.run(request, answer, library, question))

    @app.post("/api/disagree")
    async def disagree(comparison: Comparison, request: Request) -> JSONResponse:
        return JSONResponse(await turnstile.run(request, compare, library, comparison))

    @app.post(UPLOAD)
    async def open_document(request: Request) -> JSONResponse:
        content = await request.body()
        document = await turnstile.run(request, parse_search, content, "the file")
        return JSONResponse({"state": _saved_state(document), "search": document})

    _add_refusals(app)
    return app


def overview(library: Library) -> dict[str, Any]:
    """Return what can be shown and chosen."""
    entries = library.entries()
    return {
        "runs": entries,
        "folder": None if library.runs is None else str(library.runs),
        "max_iterations": MAX_ITERATIONS,
        "solvers": {name: {"title": kind.title, "colour": kind.colour} for name, kind in SOLVERS.items()},
        "worlds": {name: _about(world) for name, world in library.worlds(entries).items()},
    }


def _about(world: World) -> dict[str, Any]:
    about = {"actions": list(world.actions), "fields": world.fields(), "level": world.level}
    return about | {"differ": world.differ}


def answer(library: Library, question: Question) -> dict[str, Any]:
    """Return the state after the actions so far and, if the episode goes on, the search for the next one."""
    if document := library.document(question.run):
        return {"state": _saved_state(document), "search": document}
    shown = library.find(question.run, question.step)
    state, search = shown.world.answer(shown.solver, question.ask())
    return {"state": state, "search": search}


def _saved_state(document: SearchDocument) -> State:
    """Return what is shown beside a search that was saved."""
    source, scene = document["source"], document["scene"]
    where = "A saved search."
    if source is not None:
        where = f"A saved search: {source['environment']}, level {source['level']}, step {source['time']}."
    if scene is not None and scene["kind"] == "grid":
        hall = {name: scene[name] for name in ("kind", "walls", "robot", "goal")}
        return {"time": 0, "outcome": None, "status": where, "scene": hall | {"path": [scene["robot"]]}}  # type: ignore[typeddict-item]
    return {"time": 0, "outcome": None, "status": where, "scene": scene}


def compare(library: Library, comparison: Comparison) -> dict[str, Any]:
    """Find the first of the next levels on which two solvers disagree, and the last that was tried."""
    first, second = (library.find(asked.run, asked.step) for asked in (comparison.first, comparison.second))
    if first.world.name != second.world.name:
        raise UserError(f"both runs must be of one world, got {first.world.name} and {second.world.name}")
    ask = comparison.first.ask()
    expansions = [with_search(shown.solver, **ask["search"]).act_iterations for shown in (first, second)]
    begin = ask["level"] + 1
    levels = np.arange(begin, min(begin + max(1, COMPARED // max(expansions)), 2**31))
    if not len(levels):
        raise UserError(f"level must leave room for more, got {ask['level']}")
    differ = first.world.disagree(first.solver, second.solver, levels, ask)
    found = int(levels[differ.argmax()]) if differ.any() else None
    return {"level": found, "last": int(levels[-1])}


def _add_file(app: FastAPI, path: Path) -> None:
    """Serve one file of the page at a fixed address: no path of a request ever reaches the disk."""
    media_type, url = MEDIA_TYPES[path.suffix], "/" if path.name == "index.html" else f"/{path.name}"
    response = Response(path.read_bytes(), media_type=media_type)
    app.add_api_route(url, lambda: response, methods=["GET"])


def _add_refusals(app: FastAPI) -> None:
    """Answer every failure with a sentence."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return refusal(422, _first_problem(error))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return refusal(error.status_code, str(error.detail))

    @app.exception_handler(ValueError)
    async def wrong(_: Request, error: ValueError) -> JSONResponse:
        return refusal(422, str(error))

    @app.exception_handler(ImportError)
    async def missing(_: Request, error: ImportError) -> JSONResponse:
        return refusal(503, str(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return refusal(500, f"the server failed ({type(error).__name__}): its terminal says where")


def _first_problem(error: RequestValidationError) -> str:
    """Return the first thing that is wrong with a question; long and nested values are not repeated."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"][1:]) or "the request"
    value = problem.get("input")
    got = f", got {value!r}"[:80] if isinstance(value, str | int | float) else ""
    return f"{where}: {problem['msg']}{got}"
