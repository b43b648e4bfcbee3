"""``dtsn doctor``: what it finds on a machine, and what it says where something is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.cli.doctor import packages


def test_doctor(folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(folder.iterdir())
    out = inside("doctor")
    for finding in ("core packages", "torch 2.", "device", "threads", "shipped dtsn", "shipped qnet", "disk"):
        assert finding in out
    assert "the core works" in out
    assert sorted(folder.iterdir()) == before

    monkeypatch.setattr("dtsn.cli.doctor.EXPECTED", {"dtsn": 51})
    out = inside("doctor", code=1)
    assert "bad     shipped dtsn" in out
    assert "1 of the checks above failed" in out

    monkeypatch.setattr("dtsn.pretrained.FOLDER", folder)
    assert "does not work" in inside("doctor", code=1)
    assert "cannot write to" in inside("doctor", "--folder", "missing", code=1)


def test_doctor_knows_the_extras() -> None:
    lines = [
        "rich<16,>=14",
        "gone",
        'minari[hdf5]<0.6,>=0.5.3; extra == "minari"',
        "lost>=1; extra == 'viewer'",
    ]
    lines += ['dtsn[minari]; extra == "dev"', 'lost; python_version < "4" and extra == "viewer"']
    findings = {finding.name: finding for finding in packages(lines)}
    assert findings["core packages"].state == "bad"
    assert "not installed: gone" in findings["core packages"].text
    assert findings["extra minari"].state == "ok"
    assert findings["extra viewer"].state == "missing"
    assert findings["extra viewer"].text.endswith('; pip install "dtsn[viewer]"')
    assert "extra dev" not in findings
