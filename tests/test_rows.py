"""Rows on disk: round trips, names, and files that are damaged."""

from __future__ import annotations

import csv
import gzip
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtsn.evaluation.rows import (
    NavigationRow,
    PlanRow,
    ProcgenRow,
    Scenario,
    count_rows,
    name_of,
    read_rows,
    rows_path,
    write_rows,
)

ROWS = [NavigationRow(2_000_000 + n, 2, n % 3 > 0, n % 3 == 0, 10 + n, 10) for n in range(6)]
NAMES = ",".join(field.name for field in fields(NavigationRow)).encode()


@given(
    st.builds(
        Scenario,
        exits=st.sampled_from([1, 2]),
        act_iterations=st.integers(1, 10**6),
        rule=st.sampled_from(["sample", "greedy"]),
        temperature=st.none() | st.integers(1, 9999).map(lambda n: n / 100),
    )
)
def test_a_scenario_is_found_by_its_name(scenario: Scenario) -> None:
    assert Scenario.named(scenario.name) == scenario
    assert name_of(rows_path(Path("rows"), scenario.name)) == scenario.name


def test_names_of_scenarios() -> None:
    assert Scenario(2, 10).name == "exits-2-T10"  # the name that files of version 0.1 have
    assert Scenario(1, 50, "greedy").name == "exits-1-T50-greedy"
    assert Scenario(1, 10, temperature=0.5).name == "exits-1-T10-softmax-0.5"


@pytest.mark.parametrize(
    "name", ["", "exits-3-T10", "exits-2", "exits-2-T10-validation", "plans", "exits-2-T10-softmax-"]
)
def test_other_names_are_no_scenarios(name: str) -> None:
    assert Scenario.named(name) is None


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (ROWS, NavigationRow),
        ([PlanRow(1, 2, 30, 4, 20), PlanRow(2, 1, 3, 0, 3)], PlanRow),
        ([ProcgenRow(5, -1.25, False, 17), ProcgenRow(6, 10.0, True, 3)], ProcgenRow),
    ],
)
def test_round_trip(tmp_path: Path, rows: list, kind: type) -> None:
    path = write_rows(tmp_path / "new" / "a.csv.gz", rows)
    found = read_rows(path, kind)
    assert list(found) == [field.name for field in fields(kind)]
    for name, column in found.items():
        np.testing.assert_array_equal(column, [getattr(row, name) for row in rows])
    assert count_rows(path) == len(rows)


def test_same_rows_same_bytes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv.gz", ROWS)
    assert path.read_bytes() == write_rows(tmp_path / "b.csv.gz", ROWS).read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv.gz", "b.csv.gz"]
    with gzip.open(path, "rt") as file:
        _, *lines = csv.reader(file)
    assert [tuple(map(int, line)) for line in lines] == [astuple(row) for row in ROWS]
    write_rows(path, ROWS[:3])
    assert count_rows(path) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(NAMES + b"\n"),
        gzip.compress(b"level,exits\n1,2\n"),
        gzip.compress(NAMES + b"\n1,2,yes,0,3,3\n"),
        gzip.compress(NAMES + b"\n1,2,nan,0,3,3\n"),
        gzip.compress(NAMES + b"\n1,2,1,0,3,3\n")[:-9],
        gzip.compress(NAMES + b"\n1,2,1,0,3,3\n")[:12] + b"\xff" * 20,
    ],
    ids=["no gzip", "empty", "no rows", "other columns", "not a number", "not finite", "cut off", "damaged"],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "exits-2-T10.csv.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"exits-2-T10\.csv\.gz"):
        read_rows(path, NavigationRow)
    assert count_rows(path) <= 1


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert count_rows(tmp_path / "missing.csv.gz") == 0
