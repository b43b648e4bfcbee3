"""Who runs the jobs of a campaign: Ray for real, on this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from dtsn.cli.main import is_for_users
from dtsn.cli.reproduce import Workers
from dtsn.errors import UserError
from dtsn.reproduce.jobs import DONE, Job, LocalProcesses
from dtsn.reproduce.ray_tasks import RayTasks

SLEEP = "import time; time.sleep(600.125)"


def sleepers() -> list[int]:
    """Processes of the job that sleeps."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if SLEEP in path.read_text():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def test_ray_runs_reports_and_cancels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.json").write_text("{}")
    jobs = {
        "sleeping": Job("timeit", ("-n", "1", "-r", "1", SLEEP), Path("logs/sleeping.log")),
        "good": Job("json.tool", ("here.json",), Path("logs/good.log")),  # paths are of the campaign's folder
        "bad": Job("json.tool", ("missing.json",), Path("logs/bad.log")),
    }
    ends = RayTasks(cpus=2).run(jobs)
    assert dict([next(ends), next(ends)]) == {"good": DONE, "bad": "failed, see logs/bad.log"}
    assert "missing.json" in (tmp_path / "logs/bad.log").read_text()
    started = time.monotonic()
    while not sleepers() and time.monotonic() - started < 60:  # Ray starts its workers in any order
        time.sleep(0.2)
    assert len(sleepers()) == 1
    started = time.monotonic()
    ends.close()  # as Ctrl-C does
    assert time.monotonic() - started < 60
    assert not sleepers()


def test_nothing_to_do_starts_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("started"))
    assert not list(RayTasks().run({}))


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^Ray is not installed: pip install 'dtsn\[ray\]'$") as caught:
        Workers("ray").make()
    assert is_for_users(caught.value)


def test_workers() -> None:
    assert Workers(jobs=3).make() == LocalProcesses(3)
    with pytest.raises(UserError, match="jobs must be at least 1, got 0"):
        Workers(jobs=0)
    with pytest.raises(UserError, match="address is for the executor ray, got 'auto' for local"):
        Workers(address="auto")
    if pytest.importorskip("ray"):
        assert Workers("ray", address="auto").make("cuda") == RayTasks("auto", 2, gpus=1)
