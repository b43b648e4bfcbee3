"""The command line as tests call it, in a process of its own or in this one, in a folder with a data set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dtsn.cli import main as cli

SMALL = ("--batch-size", "8", "--network.latent", "16", "--network.hidden", "16")
QNET = ("--data", "data.h5", "--solver.name", "qnet", *SMALL)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``dtsn ...`` in a process of its own, to which Ctrl-C can be sent."""
    return subprocess.Popen(
        [sys.executable, "-m", "dtsn", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process has printed when it ends; one that hangs is killed with its children."""
    try:
        return process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def dtsn(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints, on stderr if it fails; it ends with this exit code and without a traceback."""
    process = start(folder, *arguments)
    out, err = finish(process)
    assert "Traceback" not in err, err
    assert process.returncode == code, out + err
    return err if code else out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set, made by the command."""
    folder = tmp_path_factory.getbasetemp() / "cli"
    if not folder.exists():  # once for all files that ask
        folder.mkdir()
        out = dtsn(folder, "collect", "navigation", "--episodes", "20", "--out", "data.h5")
        assert "wrote data.h5" in out
        assert "next: dtsn train data.h5" in out
    return folder


@pytest.fixture
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own, with the data in it."""
    (tmp_path / "data.h5").hardlink_to(data / "data.h5")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """As ``dtsn``, but the entry point is called in this process, which spares the imports."""

    def call(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dtsn", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        ended = 0
        try:
            cli.main()
        except SystemExit as exit:
            ended = exit.code
        printed = capsys.readouterr()
        assert ended == code, printed
        return (
            printed.err
            if code in (1, 2) and printed.err
            else printed.out + printed.err
            if code == 130
            else printed.out
        )

    return call
