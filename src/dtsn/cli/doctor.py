"""Check what is installed and whether it works."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import dtsn
from dtsn.cli.options import Device, pick_device
from dtsn.cli.terminal import console, done
from dtsn.pretrained import shipped
from dtsn.processes import prepare

LEVELS = 50
EXPECTED = {"dtsn": 45, "qnet": 30}  # of LEVELS two-exit test levels: far below what they solve

# As installed metadata has them: rich<16,>=14 or minari[hdf5]>=0.5.3; extra == "minari"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?[^;]*(?:;.*extra == [\"'](\w+)[\"'])?")


class CheckResult(NamedTuple):
    """One line of the report; only what is ``bad`` breaks the core."""

    state: Literal["ok", "missing", "bad"]
    name: str
    text: str


def doctor(folder: Path = Path(), device: Device = "auto") -> None:
    """Check the installation: what is there, what is missing and how to get it, whether the core works.

    Plays a few levels with the shipped solvers and writes a file that it removes. The exit code is 0 if the
    core works and 1 if it does not; missing extras do not count.

    Example: dtsn doctor

    Args:
        folder: where to try to write.
        device: where to run; auto takes CUDA where there is one.
    """
    prepare()
    bad = 0
    style = {"ok": "green", "missing": "yellow", "bad": "bold red"}
    for result in examine(folder, pick_device(device)):
        bad += result.state == "bad"
        console().print(f"{result.state:<8}", style=style[result.state], end="")
        console().print(f"{result.name:<18}{result.text}")
    if bad:
        done(f"{bad} of the checks above failed", "pip install --force-reinstall dtsn")
        sys.exit(1)
    done("the core works; nothing written", "dtsn demo")


def examine(folder: Path, device: str) -> Iterator[CheckResult]:
    """Look at the packages, the machine, the shipped solvers and the disk below ``folder``."""
    yield CheckResult(
        "ok", "dtsn", f"{dtsn.__version__} on Python {platform.python_version()}, {platform.system()}"
    )
    yield from packages(importlib.metadata.requires("dtsn") or [])
    yield from _machine()
    for name in EXPECTED:
        yield _shipped(name, device)
    yield _disk(folder)


def packages(requirements: list[str]) -> Iterator[CheckResult]:
    """Yield the core packages, and each extra: present, or the command that gets it."""
    extras: dict[str, list[str]] = {}
    for line in requirements:
        if (found := _REQUIREMENT.match(line)) and found[1] != "dtsn":
            extras.setdefault(found[2] or "", []).append(found[1])
    for extra, names in sorted(extras.items()):
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        text = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
        if not extra:
            broken = f"; not installed: {', '.join(missing)}" if missing else ""
            yield CheckResult("bad" if missing else "ok", "core packages", text + broken)
        elif extra != "dev":
            command = f'not installed: {", ".join(missing)}; pip install "dtsn[{extra}]"'
            yield CheckResult("missing" if missing else "ok", f"extra {extra}", command if missing else text)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[CheckResult]:
    import torch

    cuda = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if cuda else "no CUDA device here; small networks do not need one"
    yield CheckResult("ok", "device", f"{'cuda' if cuda else 'cpu'} ({name})")
    wanted = os.environ.get("OMP_NUM_THREADS", "not set")
    text = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads, OMP_NUM_THREADS {wanted}"
    yield CheckResult("ok", "threads", f"{text}; commands use one unless told")


def _shipped(name: str, device: str) -> CheckResult:
    """Load a shipped solver and let it play: a wrong build of torch would show here."""
    from dtsn.envs.navigation import NavigationOptions
    from dtsn.evaluation.levels import first_levels
    from dtsn.evaluation.navigation import evaluate_navigation
    from dtsn.training.loading import load_solver

    try:
        solver = load_solver(shipped(name), device)
        rows = evaluate_navigation(solver, first_levels("test", LEVELS), NavigationOptions())
    except (ValueError, OSError, RuntimeError) as error:
        return CheckResult("bad", f"shipped {name}", f"does not work: {error}")
    solved = sum(row.success for row in rows)
    text = f"solves {solved} of {LEVELS} halls (expected: at least {EXPECTED[name]})"
    return CheckResult("ok" if solved >= EXPECTED[name] else "bad", f"shipped {name}", text)


def _disk(folder: Path) -> CheckResult:
    from dtsn.storage import write_durably

    path, content = folder / f".dtsn-doctor-{secrets.token_hex(4)}", secrets.token_bytes(1 << 16)
    try:
        write_durably(path, content)
        same, free = path.read_bytes() == content, shutil.disk_usage(folder).free
    except OSError as error:
        return CheckResult("bad", "disk", f"cannot write to {folder.resolve()}: {error}")
    finally:
        path.unlink(missing_ok=True)
    text = f"{folder.resolve()} can be written, {free / 1e9:.1f} GB free"
    return (
        CheckResult("ok", "disk", text)
        if same
        else CheckResult("bad", "disk", f"{folder} does not keep its data")
    )
