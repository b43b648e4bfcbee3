"""Break it on purpose, many times: the tests behind docs/reliability.md.

``make torture`` runs all but the soak, ``make soak`` that one, ``python -m tests.faults NAME ...`` some.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from .common import without_tensorboard
from .table import TESTS, record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(TESTS)}; all but the soak if none"
    )
    parser.add_argument(
        "--size", type=int, help="another number of tries (or steps, or minutes); not recorded"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(TESTS):
        parser.error(f"unknown test {sorted(unknown)[0]!r}, choose from {', '.join(TESTS)}")
    torch.set_num_threads(1)
    failed = 0
    for name in chosen.names or [name for name in TESTS if name != "soak"]:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as folder, without_tensorboard():
            result = TESTS[name].run(Path(folder), chosen.size or TESTS[name].size)
        seconds = time.monotonic() - start
        print(f"{name}: {result.tried} tried, {len(result.failures)} failed, {seconds:.0f} s", flush=True)
        print(*(f"  {line}" for line in [*result.notes, *result.failures[:10]]), sep="\n", flush=True)
        failed += len(result.failures)
        if chosen.size is None:
            record(name, result, seconds)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
