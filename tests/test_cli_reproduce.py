"""``dtsn reproduce`` and ``dtsn report``: runs done once, reports of what has rows, failures told."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.evaluation.rows import ProcgenRow, write_rows

TABLES = ("reproduce", "--variants", "qnet", "--seeds", "1", "--steps", "4", "--levels", "20")
TABLES += ("--validate-every", "2", "--jobs", "1")


def test_reproduce(tmp_path: Path, inside: Callable[..., str]) -> None:
    assert "qnet seed 0: done" in inside(*TABLES)
    results = tmp_path / "report/results/navigation"
    rows = [results / f"rows/qnet/seed-0/exits-{exits}-T10.csv.gz" for exits in (1, 2)]
    curve = results / "curves/qnet/seed-0.csv"
    with curve.open() as file:
        points = list(csv.DictReader(file))
    assert [point["step"] for point in points] == ["2", "4"]
    assert all(0 <= float(point[f"validation_success_{exits}"]) <= 1 for point in points for exits in (1, 2))
    assert json.loads((results / "meta.json").read_bytes())["command"].startswith(
        "dtsn reproduce --variants qnet"
    )
    files = [*rows, curve, *(tmp_path / "runs/navigation/qnet/seed-0/checkpoints").glob("*/*")]
    files.append(results / "meta.json")
    times = {path: path.stat().st_mtime_ns for path in files}
    assert "0 of 1 runs to do" in inside(*TABLES)
    assert {path: path.stat().st_mtime_ns for path in files} == times


def test_report_writes_what_has_rows(folder: Path, inside: Callable[..., str]) -> None:
    for budget in ("day", "tiny"):
        rows = [ProcgenRow(level, float(level % 3), True, 10) for level in range(6)]
        write_rows(folder / f"report/results/procgen/rows/{budget}/coinrun/qnet/seed-0.csv.gz", rows)
    inside("report", "--budget", "day")
    pages = [*(folder / "report").glob("*.md"), *(folder / "report/figures").iterdir()]
    written = {path: path.read_bytes() for path in pages}
    assert {path.name for path in written} == {"procgen-results.md", "procgen-scores.png"}  # no Navigation
    inside("report")
    assert (folder / "report/procgen-results-tiny.md").exists()
    assert {path.name for path in folder.iterdir()} == {"data.h5", "report"}
    assert {path: path.read_bytes() for path in written} == written
    refused = inside("report", "--budget", "paper", code=2)
    assert "no rows of navigation, procgen (paper budget), game24 or online" in refused


def test_failed_runs_are_reported(tmp_path: Path, inside: Callable[..., str]) -> None:
    log = tmp_path / "runs/navigation/qnet/seed-0.log"
    (tmp_path / "runs/navigation").mkdir(parents=True)
    (tmp_path / "runs/navigation/navigation-opposite-8-11.h5").write_bytes(b"garbage")
    said = inside(*TABLES, code=1)
    assert "qnet seed 0: failed, see runs/navigation/qnet/seed-0.log" in said
    assert "Traceback" not in said
    assert "navigation-opposite-8-11.h5: cannot be read" in log.read_text()
