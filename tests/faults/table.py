"""The table of faults: what each row does, how often, and the page that is made of the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bad_input import bad_input
from .common import ROOT, Outcome
from .corruption import flip
from .disk import disk_full
from .divergence import not_finite
from .hostile_runs import hostile_runs_in_viewer
from .kill import kill
from .links import hostile_links
from .locking import two_processes
from .malice import malice
from .memory import hostile_memory
from .numbers import nan_paths_agree
from .resume import resume, same_seed
from .soak import soak
from .syscalls import every_syscall_of_a_save
from .untyped import untyped_errors
from .versions import versions

RESULTS, PAGE = ROOT / "results/reliability.json", ROOT / "docs/reliability.md"


@dataclass(frozen=True)
class Test:
    """A row of the table."""

    title: str
    target: str
    run: Callable[[Path, int], Outcome]
    size: int


TESTS = {
    "kill": Test(
        "`kill -9` at random moments of training with a checkpoint at every step, then resume",
        "0 of 1000 kills lose the last complete checkpoint, 0 leave an unreadable one; bitwise the same end",
        kill,
        1000,
    ),
    "resume": Test(
        "stop after every step of 200, each solver; weights, target, optimiser, data order, scores, metrics",
        "every checkpoint bitwise that of the uninterrupted run",
        resume,
        200,
    ),
    "same_seed": Test(
        "two processes with the same seed, one thread, 1000 steps, each solver",
        "bitwise equal",
        same_seed,
        1000,
    ),
    "disk_full": Test(
        "disk full while a checkpoint, the log or a data set is written",
        "the old one stays, the error names the file, exit code 2, nothing is left behind",
        disk_full,
        200,
    ),
    "flip": Test(
        "one flipped bit or a cut-off end in any file of a checkpoint or data set, or a data set "
        "that is changed after it was opened",
        "0 of 1050 accepted; the error names the file",
        flip,
        1000,
    ),
    "malice": Test(
        "pickles under any name, zip and gzip bombs, JSON nested a million deep, headers that lie, links and "
        "foreign storage in HDF5, paths with `..`, pipes and devices, configurations that claim terabytes",
        "nothing executed, bounded memory and time, an error that names the file",
        malice,
        10,
    ),
    "hostile_memory": Test(
        "files and headers that claim more than they hold: frames of gigabytes in small chunks, chunks and "
        "array headers that inflate to gigabytes, shapes of strings, networks of terabytes, archives of many "
        "files, files, logs and journals without an end",
        "each read within 1 GB and 30 s of CPU time; a typed error that names the file, or what it honestly "
        "holds",
        hostile_memory,
        1,
    ),
    "hostile_links": Test(
        "every name that a run, a collection, a search, a report or a figure writes is a link to a file, a "
        "folder or nothing elsewhere",
        "nothing outside the folder is made, changed or deleted",
        hostile_links,
        1,
    ),
    "every_syscall_of_a_save": Test(
        "every open, write, fsync, close, truncate, rename, mkdir, unlink and rmdir of saving, saving again "
        "and pruning fails, or is the last one before the process, or the machine, dies",
        "an older or the new checkpoint is whole, and the run goes on to the same end, bitwise",
        every_syscall_of_a_save,
        1,
    ),
    "untyped_errors": Test(
        "garbage, pipes, devices and wrong types in place of every file that is read, and of every field of "
        "a checkpoint that is resumed, of results that are reported and of a search that goes on",
        "a typed error that names the file, or what it honestly says, within 30 s of CPU time",
        untyped_errors,
        1,
    ),
    "hostile_runs_in_viewer": Test(
        "runs beside a good one in the viewer's folder: states that say anything, searches without an end, "
        "pipes, links to elsewhere, deep nesting, names that are not UTF-8",
        "each is one entry with its reason; the list and the good run are answered within 10 s of CPU time; "
        "nothing outside is served",
        hostile_runs_in_viewer,
        1,
    ),
    "nan_paths_agree": Test(
        "models with NaN or infinite values and rewards, searched in a batch, with gradient and one by one",
        "the same trees and Q-values, 0 of 400 differ",
        nan_paths_agree,
        400,
    ),
    "two_processes": Test(
        "two processes start in one run folder; the holder is killed, a third goes on; or the holder is on "
        "another host, whose lock the system does not know; or another host takes over while this one sleeps",
        "exactly one works, the other is told who; a stale lock is taken over, one of another host after 10 "
        "minutes without a sign of life",
        two_processes,
        100,
    ),
    "not_finite": Test(
        "NaN or infinity in loss or gradient at a random step",
        "stopped or skipped as set, the batch kept, every checkpoint finite",
        not_finite,
        120,
    ),
    "bad_input": Test(
        "generated bad input to the API, configurations and the command line",
        "at least 5000, each refused by a typed error that names field and value",
        bad_input,
        5000,
    ),
    "versions": Test(
        "formats of the future and the past",
        "refused with a sentence, or read as they were meant",
        versions,
        1,
    ),
    "soak": Test(
        "30 minutes of training, evaluation and viewing at once under a memory limit",
        "flat memory, no leaked files, threads or processes; every question answered",
        soak,
        30,
    ),
}


def record(name: str, result: Outcome, seconds: float) -> None:
    """Add a row to the JSON file, and make the page anew."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows[name] = {
        "tried": result.tried,
        "failed": len(result.failures),
        "target": TESTS[name].target,
        "notes": result.notes,
        "failures": result.failures[:10],
        "seconds": round(seconds),
    }
    rows = {key: rows[key] for key in [*TESTS, *rows] if key in rows}
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(make_page(rows))


def make_page(rows: dict[str, Any]) -> str:
    """docs/reliability.md."""
    lines = [
        "# Reliability",
        "",
        "Nothing lost, nothing silent, nothing executed. `make torture` runs every row but the last,",
        "`make soak` the last one; `tests/faults/` holds them, and `make test` runs short versions.",
        "This page is generated from [results/reliability.json](../results/reliability.json).",
        "",
        "| what is done | target | tried | failed |",
        "|---|---|---:|---:|",
    ]
    for name, test in TESTS.items():
        row = rows.get(name)
        numbers = f"{row['tried']} | {row['failed']}" if row else "not run yet |"
        lines.append(f"| {test.title} | {test.target} | {numbers} |")
    lines += ["", "## Notes", ""]
    lines += [_note(name, row) for name, row in rows.items()]
    lines += [
        "",
        "## What this does not show",
        "",
        "- `kill -9` ends a process, not the machine. Against a loss of power every file and folder is",
        "  fsynced before it takes its place, which no test here can prove.",
        "- Bitwise equality holds for CPUs: one machine, one version of torch and one number of threads.",
        "  On CUDA some sums of gradients have no fixed order.",
        "- Locks: on one host the system's `flock` decides. A lock of another host counts as held until ten",
        "  minutes have passed without a sign of life (its file is touched twice a minute). So two hosts",
        "  whose shared folder does not pass `flock` on, and that start a run in the same second, are not",
        "  told apart; nor are hosts whose clocks differ by more than ten minutes.",
        "- A data set that somebody changes while it is open is noticed by its size and time of change,",
        "  which damage does not forge.",
        "",
        "How files are read and what is trusted: [SECURITY.md](../SECURITY.md).",
    ]
    return "\n".join(lines) + "\n"


def _note(name: str, row: dict[str, Any]) -> str:
    return f"- `{name}`: " + "; ".join([*row["notes"], f"{row['seconds']} s"]) + "."
