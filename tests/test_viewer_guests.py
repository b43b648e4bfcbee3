"""The viewer's server survives bad guests: each is refused in a sentence, and the next one answered."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")

from dtsn.viewer.guard import MAX_WAITING, answers_to
from dtsn.viewer.library import MAX_ITERATIONS
from viewer_server import Server
from viewer_server import runs as runs
from viewer_server import server as server

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


def _first_done(futures: list[Any], count: int) -> list[Any]:
    end = time.monotonic() + 20
    while sum(future.done() for future in futures) < count and time.monotonic() < end:
        time.sleep(0.01)
    return [future.result() for future in futures if future.done()]
