"""``dtsn view``: it prints its address, stops on an interrupt, and refuses in a sentence."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")


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
