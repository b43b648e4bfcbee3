"""Run folders of other people, in which the names that we write are links to elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dtsn.data import Dataset, Episode
from dtsn.drawing import new_figure, save
from dtsn.errors import UserError
from dtsn.evaluation.rows import ProcgenRow, write_rows
from dtsn.experts.collect import _Parts
from dtsn.reproduce.jobs import Job, start
from dtsn.reproduce.markdown import write_text
from dtsn.reproduce.records import write_record
from dtsn.solvers.solver import Solver
from dtsn.storage import replace_durably
from dtsn.training.loading import export_solver
from dtsn.training.runs import RunFolder
from dtsn.tuning.report import write_table
from dtsn.tuning.study import Trial

from .common import TINY, Outcome, contents, train, vectors
from .results import try_a_trial

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
    "evaluation",
    "evaluation/rows.csv.gz",
    "mlflow",
    "mlflow/mlflow.db",
    "exported",
    ".exported.old",
)
PARTS = (".lock", "request.json", ".request.json.partial", "rejected.txt", "episode-000000000.h5", "")


ROW = ProcgenRow(level=1, score=3.0, complete=True, steps=2)


def _draw(place: Path) -> None:
    save(new_figure(1, 1), place)


def _start_job(place: Path) -> None:
    start(Job("this", (), place)).wait()


# What the other commands write, below results/ and docs/.
WRITERS: dict[str, Callable[[Path], object]] = {
    "rows.csv.gz": lambda place: write_rows(place, [ROW]),
    "page.md": lambda place: write_text(place, "# A page"),
    "meta.json": lambda place: write_record(place, "dtsn report", {}),
    "figure.png": _draw,
    "figure.svg": _draw,
    "job.log": _start_job,
    "any.json": lambda place: replace_durably(place, b"{}"),
    "trials.csv": lambda place: write_table([Trial(0, {}, 0.5, "done")], place),
}


SEARCH = ("journal.log", "journal.log.lock", "trials", "trials/0", "trials/0/checkpoints")  # of dtsn tune


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

        def evaluate(run: Path) -> None:
            write_rows(RunFolder(run).folder("evaluation") / "rows.csv.gz", [ROW])

        def track(run: Path) -> None:
            own = RunFolder(run).folder("mlflow")
            (own / "mlflow.db").write_text("as MLflow does, by its own means")

        actions: dict[str, Callable[[Path], None]] = {
            "resume": go_on,
            "export": export,
            "evaluate": evaluate,
            "track": track,
        }
        for name in NAMES:
            for kind in ("copy", "file", "folder", "nothing", "hard link"):
                for action, act in actions.items():
                    if not _concerns(action, name, kind):
                        continue
                    run, outside = folder / "run", folder / "outside"
                    shutil.copytree(base, run)
                    _link(run / name, outside, kind)
                    _watch(
                        f"{action} with {name} as {kind}", lambda run=run, act=act: act(run), outside, result
                    )
                    shutil.rmtree(run)
                    shutil.rmtree(outside)
    writers = dict(WRITERS)
    if importlib.util.find_spec("optuna"):
        writers |= {name: lambda place: try_a_trial(folder / "results", path) for name in SEARCH}
    for name, write in writers.items():
        for kind in ("file", "folder", "nothing", "hard link"):
            place, outside = folder / "results" / name, folder / "outside"
            place.parent.mkdir(parents=True)
            _link(place, outside, kind)
            _watch(f"{name} as {kind}", lambda write=write, place=place: write(place), outside, result)
            shutil.rmtree(folder / "results")
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


def _concerns(action: str, name: str, kind: str) -> bool:
    """Whether an action reads or writes a name; trackers write by themselves, to files of their own."""
    own = {"evaluate": "evaluation", "track": "mlflow", "export": "exported"}
    if action == "track" and kind == "hard link":
        return False
    if any(place in name for place in own.values()):
        return own.get(action, "") in name and action in own
    return action == "resume" or (action == "export" and "step-" in name)


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
