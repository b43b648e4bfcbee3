"""Short versions of the tests behind docs/reliability.md; `make torture` runs the long ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torture

SIZES = {
    "kill": 6,
    "resume": 3,
    "disk_full": 4,
    "flip": 56,
    "two_processes": 2,
    "not_finite": 12,
    "versions": 1,
}


@pytest.mark.parametrize("name", SIZES)
def test_short(name: str, tmp_path: Path) -> None:
    with torture.without_tensorboard():
        result = torture.TESTS[name].run(tmp_path, SIZES[name])
    assert result.failures == []
    assert result.tried >= SIZES[name]


def test_malice(tmp_path: Path) -> None:
    with torture.without_tensorboard():
        result = torture.malice(tmp_path, size=0)
    assert result.failures == []
    assert result.tried > 100


def test_page_is_made_of_the_results() -> None:
    rows = json.loads(torture.RESULTS.read_text())
    assert torture.PAGE.read_text() == torture.make_page(rows)
    assert all(row["failed"] == 0 for row in rows.values())
