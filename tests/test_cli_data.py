"""``dtsn data``: data sets looked at, exported and imported, and damage noticed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli_calls import data as data
from cli_calls import folder as folder
from cli_calls import inside as inside
from dtsn.data import Dataset


def test_data_goes_to_minari_and_back(
    folder: Path, inside: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    out = inside("data", "info", "data.h5")
    assert re.search(r"num episodes +20 *\n", out)
    assert re.search(r"observations +\[\d+, 3, 20, 20\] uint8, checksum right", out)
    assert "wrote 20 episodes" in inside("data", "export", "data.h5", "navigation/test-v0")
    assert "already exists" in inside("data", "export", "data.h5", "navigation/test-v0", code=2)
    inside("data", "import", "navigation/test-v0", "back.h5")
    with Dataset("data.h5") as ours, Dataset("back.h5") as theirs:
        for name in ("actions", "rewards", "q_values", "dones", "levels"):
            np.testing.assert_array_equal(ours.array(name), theirs.array(name))
        np.testing.assert_array_equal(ours.episode(7).observations, theirs.episode(7).observations)
    assert "back.h5: already exists" in inside("data", "import", "navigation/test-v0", "back.h5", code=2)
    assert "missing/data-v0" in inside("data", "import", "missing/data-v0", "new.h5", code=2)


def test_damaged_data_is_noticed(folder: Path, inside: Callable[..., str]) -> None:
    content = bytearray((folder / "data.h5").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "bad.h5").write_bytes(content)
    assert "bad.h5" in inside("data", "info", "bad.h5", code=2)


def test_data_alone_says_what_there_is(inside: Callable[..., str]) -> None:
    assert all(f"  {name}" in inside("data") for name in ("info", "export", "import", "import-dgrl"))
