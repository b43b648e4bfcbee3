"""The wheel holds everything that the demo needs, and runs it where the sources are not."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
DEMO = ("demo", "--levels", "3", "--out", "demo")
WRITTEN = {"side-by-side.gif", "search.png"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_what_is_no_code(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    for name in (
        "py.typed",
        "pretrained/navigation-dtsn/model.safetensors",
        "viewer/page/app.js",
    ):
        assert f"dtsn/{name}" in names
    assert all(name.startswith(("dtsn/", "dtsn-")) for name in names)


def test_the_wheel_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, with this environment's dependencies; the slow test below installs those too."""
    ZipFile(wheel).extractall(tmp_path / "unpacked")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked"), "OMP_NUM_THREADS": "1"}
    where = [sys.executable, "-c", "import dtsn; print(dtsn.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(tmp_path))
    subprocess.run([sys.executable, "-m", "dtsn", *DEMO], cwd=tmp_path, env=environment, check=True)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == WRITTEN


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[plots]"], check=True, timeout=1800)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([tmp_path / "venv/bin/dtsn", *DEMO], cwd=tmp_path, env=environment, check=True)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == WRITTEN
