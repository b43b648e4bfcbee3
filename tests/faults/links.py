"""Run folders of other people, in which the names that we write are links to elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dtsn.data import Dataset, Episode
from dtsn.errors import UserError
from dtsn.experts.collect import _Parts
from dtsn.solvers.solver import Solver
from dtsn.training.loading import export_solver

from .common import TINY, Outcome, contents, train, vectors

# What a run writes, under its own name or one of those that could be guessed.
NAMES = (
    ".lock",
    "metrics.jsonl",
    ".metrics.jsonl.partial",
    "config.json",
    ".config.json.partial",
    "checkpoints",
    "checkpoints/step-1",
    "checkpoints/step-2",
    "checkpoints/step-3",
    "checkpoints/.step-1.old",
    "checkpoints/.step-2.old",
    "checkpoints/.step-3.partial",
    "checkpoints/.step-1.pruned",
    "checkpoints/.step-1.0123456789abcdef.pruned",
    "checkpoints/step-2/state.json",
    "checkpoints/step-2/model.safetensors",
    "tensorboard",
    "diverged",
)
PARTS = (".lock", "request.json", ".request.json.partial", "rejected.txt", "episode-000000000.h5", "")


def hostile_links(folder: Path, size: int = 1) -> Outcome:
    """Link every name to a file, a folder, a link and nothing, then go on with the run or the collection."""
    result, path = Outcome(), vectors(folder / "data.h5")
    base = folder / "base"
    with Dataset(path) as dataset:
        train(base, dataset, replace(TINY, steps=3, keep_checkpoints=2), stop=2)

        def go_on(run: Path) -> None:
            train(run, dataset, replace(TINY, steps=6, keep_checkpoints=1), validate=_score)

        def export(run: Path) -> None:
            export_solver(run, run / "exported")

        actions: dict[str, Callable[[Path], None]] = {"resume": go_on, "export": export}
        for name in NAMES:
            for kind in ("copy", "file", "folder", "nothing", "hard link"):
                for action, act in actions.items():
                    run, outside = folder / "run", folder / "outside"
                    shutil.copytree(base, run)
                    _link(run / name, outside, kind)
                    _watch(
                        f"{action} with {name} as {kind}", lambda run=run, act=act: act(run), outside, result
                    )
                    shutil.rmtree(run)
                    shutil.rmtree(outside)
    for name in PARTS:
        for kind in ("file", "folder", "nothing"):
            parts, outside = folder / ".d.h5.parts", folder / "outside"
            if name:
                parts.mkdir()
            _link(parts / name if name else parts, outside, kind)
            _watch(
                f"collect with {name or 'the folder'} as {kind}",
                lambda p=parts: _collect(p, path),
                outside,
                result,
            )
            parts.unlink() if parts.is_symlink() else shutil.rmtree(parts)
            shutil.rmtree(outside)
    return result


def _score(solver: Solver) -> float:
    return float(next(solver.parameters()).detach().double().abs().mean())


def _link(place: Path, outside: Path, kind: str) -> None:
    """Put a link at ``place``, which may be taken, to something below ``outside``."""
    target = outside / "target"
    outside.mkdir()
    (outside / "precious.txt").write_text("years of work")
    if kind == "folder" or (kind == "copy" and place.is_dir()):
        shutil.copytree(place, target) if place.is_dir() and kind == "copy" else target.mkdir()
        (target / "precious.txt").write_text("years of work")
    elif kind == "copy" and place.exists():
        shutil.copy(place, target)
    elif kind in ("file", "copy", "hard link"):
        target.write_text('{"step": 1}\n{"step": 99}\n')
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    if kind == "hard link":
        os.link(target, place)
    else:
        place.symlink_to(target)


def _watch(case: str, act: Callable[[], None], outside: Path, result: Outcome) -> None:
    before, names = contents(outside), sorted(outside.rglob("*"))
    result.tried += 1
    with suppress(UserError, OSError):  # refused, or done without the link
        act()
    same = contents(outside) == before and sorted(outside.rglob("*")) == names
    result.check(same, f"{case}: outside has changed")


def _collect(folder: Path, path: Path) -> None:
    """What a collection writes before, while and after it plays."""
    header = {
        "env_id": "test",
        "env_options": {},
        "num_actions": 3,
        "observation_shape": (4,),
        "observation_dtype": "float32",
    }
    parts = _Parts(folder, header)
    try:
        with Dataset(path) as dataset:
            episode: Episode = dataset.episode(0)
        parts.reject(7)
        parts.add(0, episode)
    finally:
        parts.lock.release()
