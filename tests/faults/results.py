"""Results and searches of other people: each file is garbage once, each field says something else once."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dtsn.data import Dataset
from dtsn.evaluation.rows import NavigationRow, ProcgenRow, write_rows
from dtsn.reproduce.game24.report import build_game24_report
from dtsn.reproduce.navigation.plan import Campaign
from dtsn.reproduce.navigation.report import build_navigation_report
from dtsn.reproduce.online.report import summarise
from dtsn.reproduce.procgen.plan import ProcgenCampaign
from dtsn.reproduce.procgen.report import build_procgen_report
from dtsn.reproduce.records import write_record
from dtsn.tuning.study import Tuning

from .common import TINY

Case = tuple[str, Path, Callable[[Path], object]]

VALUES: list[Any] = [None, True, -1, 10**400, "\x1b[31m", [[]], {}, {"a": []}]
GAME24: dict[str, Any] = {
    "solver": "dtsn", "trajectories": 2000, "train_iterations": 8, "ablation": None, "seed": 0,
    "weights": 10, "cpu_seconds": 1.0, "tests": [{"act_T": 8, "rule": "greedy", "solved": "0101"}],
}  # fmt: skip
ONLINE: dict[str, Any] = {
    "task": "cartpole", "agent": "dqn", "seed": 0,
    "curve": [{"step": 1, "return": 1.0, "cpu_seconds": 1.0, "returns": [1.0, 1.0]}],
}  # fmt: skip
RUNTIME = {"part": "runtime", "solver": "x", "seconds": 1, "over_qnet": 1, "paper_over_qnet": 1, "peak_gb": 1}
RECORD: dict[str, Any] = {"command": "dtsn", "machine": {"cores": 2}, "configs": {"dtsn": {}}}
NUMBERS: dict[str, Any] = {
    "scripted": [],
    "keep_all_episodes": [],
    "expert": {},
    "expert_overrides": {"maze": {}},
}
JSON: dict[str, dict[str, Any]] = {
    "game24/rows/a-0.json": GAME24,
    "online/rows/a-0.json": ONLINE,
    "bench.json": {"rows": [RUNTIME]},
    "navigation/meta.json": RECORD,
    "procgen/rows/cpu/meta.json": {"command": "dtsn", "numbers": NUMBERS},
}


def make_results(folder: Path) -> Path:
    """A folder of results that reports are made of."""
    halls = [NavigationRow(level, 2, level == 1, False, 9, 5) for level in (1, 2)]
    write_rows(folder / "navigation/rows/dtsn/seed-0/exits-2-T10.csv.gz", halls)
    played = [ProcgenRow(level=level, score=3.0, complete=True, steps=2) for level in (1, 2)]
    for player in ("random", "expert", "dtsn"):
        write_rows(folder / f"procgen/rows/cpu/maze/{player}/seed-0.csv.gz", played)
    for name in ("navigation/curves/dtsn/seed-0.csv", "procgen/curves/cpu/maze.csv"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("step,loss,return\n1,2,3\n2,,4\n")
    for name, content in JSON.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def _navigation(path: Path, results: int) -> None:
    Campaign(results=path.parents[results] / "navigation").check_record()
    build_navigation_report(path.parents[results], path.parents[results] / "out/page.md")


def _procgen(path: Path, results: int) -> None:
    ProcgenCampaign(results=path.parents[results] / "procgen").check_record()
    build_procgen_report(path.parents[results], path.parents[results] / "out", "cpu")


def _game24(path: Path) -> None:
    build_game24_report(path.parents[1], path.parents[1] / "out/page.md")


def _record(path: Path) -> None:
    write_record(path, "dtsn", {})
    _procgen(path, 3)


# File -> how it is read.
READERS: dict[str, Callable[[Path], object]] = {
    "navigation/meta.json": partial(_navigation, results=1),
    "navigation/curves/dtsn/seed-0.csv": partial(_navigation, results=3),
    "navigation/rows/dtsn/seed-0/exits-2-T10.csv.gz": partial(_navigation, results=4),
    "procgen/rows/cpu/meta.json": _record,
    "procgen/rows/cpu/maze/dtsn/seed-0.csv.gz": partial(_procgen, results=5),
    "procgen/curves/cpu/maze.csv": partial(_procgen, results=3),
    "bench.json": partial(_procgen, results=0),
    "game24/rows/a-0.json": _game24,
    "online/rows/a-0.json": lambda path: summarise(path.parents[1]),
}


def search_on(folder: Path) -> Tuning:
    return Tuning(folder, TINY, ("weights",), {})


def _search(path: Path) -> None:
    """Go on with a search: read what was tried, and choose what to try next."""
    search_on(path.parent)._next(9, set())


def make_search(folder: Path) -> Path | None:
    """A journal of a trial that is done, one that is not, and one that waits; None without Optuna."""
    if importlib.util.find_spec("optuna") is None:
        return None
    search = search_on(folder)
    assert search._next(9, set())
    search._study.tell(0, 0.5)
    assert search._next(9, set())
    search._study.enqueue_trial({"solver.weights.q": 0.1})
    return folder / "journal.log"


def try_a_trial(folder: Path, data: Path) -> None:
    """All that a search writes."""
    with Dataset(data) as dataset:
        list(search_on(folder).run(1, dataset, lambda solver: 0.0))


def garbage_for_results(folder: Path, contents: dict[str, bytes]) -> Iterator[Case]:
    """Each file as garbage, a pipe, a device, a folder: to be refused."""
    kinds: dict[str, Callable[[Path], object]] = {
        "a pipe": os.mkfifo,
        "a device": lambda path: os.symlink("/dev/zero", path),
        "a folder": os.mkdir,
        **{kind: partial(Path.write_bytes, data=content) for kind, content in contents.items()},
    }
    base = make_results(folder / "results-base")
    readers = dict(READERS)
    if make_search(base / "search"):
        readers["search/journal.log"] = _search
    for number, (name, read) in enumerate(readers.items()):
        for kind, make in kinds.items():
            if "search" in name and kind == "nothing":  # a new journal
                continue
            if "meta" in name and kind == "a step of text":  # an object that says nothing
                continue
            if "navigation/curves" in name and kind == "a text":  # a table without rows
                continue
            place = folder / f"results-{number}-{kind.replace(' ', '-')}" / name
            shutil.copytree(base, place.parents[name.count("/")])
            place.unlink()
            make(place)
            yield f"{kind} in place of {name}", place, read
    for kind, make in list(kinds.items())[:3]:
        lock = folder / f"lock-{kind.replace(' ', '-')}" / "journal.log.lock"
        if "search/journal.log" in readers:
            shutil.copytree(base / "search", lock.parent)
            make(lock)
            yield f"{kind} as the journal's lock", lock, _search
    for name, read in (
        ("navigation/curves/dtsn/seed-x.csv", partial(_navigation, results=3)),
        ("procgen/rows/cpu/maze/dtsn/seed-x.csv.gz", partial(_procgen, results=5)),
    ):
        place = folder / f"named-{name.replace('/', '-')}" / name
        shutil.copytree(base, place.parents[name.count("/")])
        place.write_bytes(b"step\n1\n")
        yield f"a file named {name}", place, read


def results_that_say_anything(folder: Path, every: int = 1) -> Iterator[Case]:
    """Each field of rows, records and the journal with another value: refused, or read as what it is.

    Of the changes, only one in ``every`` is made.
    """
    base = make_results(folder / "said-base")
    fields = [
        (name, number, changed)
        for name, content in JSON.items()
        for number, changed in enumerate(_changes(content))
    ]
    for name, number, changed in fields[::every]:
        place = folder / f"said-{name.replace('/', '-')}-{number}" / name
        shutil.copytree(base, place.parents[name.count("/")])
        place.write_text(json.dumps(changed))
        yield f"change {number} of {name}", place, READERS[name]
    journal = make_search(folder / "said-search")
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal else []
    steps = [
        (line, number, changed)
        for line, said in enumerate(lines)
        for number, changed in enumerate([*_changes(said), {"op_code": 99}, {"op_code": 2}])
    ]
    for line, number, changed in steps[::every]:
        place = folder / f"said-journal-{line}-{number}" / "journal.log"
        place.parent.mkdir()
        place.write_text("".join(json.dumps(x) + "\n" for x in [*lines[:line], changed, *lines[line + 1 :]]))
        yield f"change {number} of the journal's line {line}: {str(changed)[:200]}", place, _search


def large_results(folder: Path) -> Iterator[Case]:
    """Files of results and journals that claim much, or that are endless."""
    base = make_results(folder / "large-base")
    row = json.dumps({**GAME24, "tests": GAME24["tests"] * 15_000}).encode()
    contents = {
        "lists": b'{"a": [' + b"[]," * (2**20 // 3 - 10) + b"[]]}",
        "many tests": row,
        "a long line": b"step" + b"," * (2**22 - 10) + b"\n",
        "short lines": b"step,return\n" + b"\n" * (2**22 - 20),
        "no end": None,
    }
    readers = dict(READERS)
    journal = make_search(base / "search")
    if journal:
        readers["search/journal.log"] = _search
        begun = journal.read_text().splitlines()
        create = next(line for line in begun if json.loads(line)["op_code"] == 4)
        contents |= {
            "many trials": (
                "\n".join(begun)
                + "\n"
                + (create + "\n") * min(2**16 - len(begun), 2**24 // (len(create) + 1) - 50)
            ).encode(),
            "one long line": (begun[0] + "\n").encode()
            + b'{"op_code": 2, "a": ['
            + b"[]," * 5 * 10**6
            + b"[]]}\n",
        }
    for number, (name, read) in enumerate(readers.items()):
        for kind, content in contents.items():
            place = folder / f"large-{number}-{kind.replace(' ', '-')}" / name
            shutil.copytree(base, place.parents[name.count("/")])
            place.write_bytes(content or b"")
            if content is None:
                os.truncate(place, 2**40)
            yield f"{kind} in {name}", place, read
    many = folder / "large-many" / "game24/rows/a-0.json"
    many.parent.mkdir(parents=True)
    for number in range(100):
        many.with_name(f"a-{number}.json").write_bytes(row.replace(b'"seed": 0', b'"seed": %d' % number))
    yield "a hundred large rows", many.parents[1], lambda path: _game24(path / "rows/a-0.json")


def _changes(content: Any) -> Iterator[Any]:
    """The same JSON with one of its parts replaced or left out."""
    for where in _places(content):
        for value in VALUES:
            yield _changed(content, where, value)


def _places(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts: Any = ()
    if isinstance(content, (dict, list)):
        parts = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in parts:
        yield (*above, key)
        yield from _places(value, (*above, key))


def _changed(content: Any, where: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(content))
    inner = copy
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return copy
