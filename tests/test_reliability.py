"""Short versions of the tests behind docs/reliability.md; `make torture` runs the long ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faults import table
from faults.common import without_tensorboard

# name -> (size, least number of tries)
SIZES = {
    "kill": (6, 6),
    "resume": (3, 12),
    "disk_full": (4, 4),
    "flip": (56, 56),
    "malice": (0, 100),
    "hostile_memory": (0, 60),
    "hostile_links": (1, 150),
    "every_syscall_of_a_save": (41, 10),
    "untyped_errors": (0, 100),
    "hostile_runs_in_viewer": (1, 60),
    "nan_paths_agree": (30, 30),
    "two_processes": (2, 4),
    "not_finite": (12, 12),
    "versions": (1, 15),
}


# They try hundreds of files, one process after the other, and have no shorter version.
LONG = ("hostile_links", "untyped_errors")
QUICK_AND_SLOW = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SIZES]


@pytest.mark.parametrize("name", QUICK_AND_SLOW)
def test_short(name: str, tmp_path: Path) -> None:
    size, least = SIZES[name]
    with without_tensorboard():
        result = table.TESTS[name].run(tmp_path, size)
    assert result.failures == []
    assert result.tried >= least


def test_page_is_made_of_the_results() -> None:
    rows = json.loads(table.RESULTS.read_text())
    assert table.PAGE.read_text() == table.make_page(rows)
    assert all(row["failed"] == 0 for row in rows.values())
