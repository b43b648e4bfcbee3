"""The viewer's boundary: who may ask, how much and how slowly they may send, and how many may wait."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import anyio
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY = 64 * 1024
MAX_DOCUMENT = 8 * 2**20  # of a search that is uploaded
MAX_WAITING = 8  # searches beside the one that runs
MAX_CONNECTIONS = 200
HEAD_SECONDS = 10.0  # for a request's first lines to arrive
BODY_SECONDS = 20.0  # for its body
SEND_SECONDS = 30.0  # for a part of the answer to be taken
POLL_SECONDS = 0.1  # between two looks whether a client that waits is still there

UPLOAD = "/api/document"
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

Result = TypeVar("Result")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server on ``host``."""
    return host in LOOPBACK


def answers_to(bound: str, host_header: str) -> bool:
    """Tell whether a server bound to ``bound`` answers requests with this Host header.

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


def refusal(status: int, message: str) -> JSONResponse:
    """Return an answer that says why there is no other."""
    return JSONResponse({"error": message or HTTPStatus(status).phrase}, status)


class Guard:
    """Middleware in front of everything: checks a request and puts headers on every answer."""

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
            with anyio.fail_after(SEND_SECONDS):  # nobody may keep an answer in memory for ever
                await send(message)

        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        limit = MAX_DOCUMENT if scope["path"] == UPLOAD else MAX_BODY
        problem, body = self._problem(scope["method"], headers), b""
        if not problem:
            try:
                with anyio.fail_after(BODY_SECONDS):
                    body, fits = await _read(receive, limit)
            except TimeoutError:
                problem = (408, f"the request took longer than {BODY_SECONDS:g} seconds to arrive")
            else:
                problem = None if fits else (413, f"the request is larger than {limit} bytes")
        if problem:
            await refusal(*problem)(scope, receive, send_with_headers)
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
        kind = headers.get(b"content-type", "").partition(";")[0].strip()
        if method == "POST" and kind != "application/json":
            return 415, "the request must be application/json"
        return None


async def _read(receive: Receive, limit: int) -> tuple[bytes, bool]:
    """Return a request's body, and whether it is complete and within the limit.

    A large one is read to its end, or the browser that sends it would see a broken connection instead of
    the answer.
    """
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return b"", False
        if len(body) <= limit:
            body += message.get("body", b"")
        more = message.get("more_body", False)
    return body, len(body) <= limit


class Turnstile:
    """Lets one search run at a time and few wait: they keep the processor busy, two only take longer.

    Who goes away while waiting leaves the queue.
    """

    def __init__(self) -> None:
        self._one = anyio.CapacityLimiter(1)
        self.asked = 0  # searches that wait, and the one that runs

    async def run(self, request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function`` in a thread of its own when its turn has come."""
        if self.asked > MAX_WAITING:
            raise HTTPException(503, f"{MAX_WAITING} searches are waiting already: try again in a moment")
        self.asked += 1
        answers: list[Result] = []
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_gone, request, group.cancel_scope)
                answers.append(await anyio.to_thread.run_sync(function, *arguments, limiter=self._one))
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.asked -= 1
        if not answers:
            raise HTTPException(499, "the client has gone away")
        return answers[0]


async def _cancel_when_gone(request: Request, scope: anyio.CancelScope) -> None:
    while not await request.is_disconnected():
        await anyio.sleep(POLL_SECONDS)
    scope.cancel()


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that hangs up on clients whose request does not begin, or does not go on."""

    _waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting unless a request's first lines are complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waits is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waits = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
