"""The generated bad input of tests/test_bad_input_*.py, more of it."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

from .common import ROOT, Outcome


def bad_input(folder: Path, size: int = 5000) -> Outcome:
    """The generated cases of tests/test_bad_input_*.py, with enough examples of each to reach ``size``."""
    count, report = folder / "count", folder / "report.xml"
    examples = str(max(1, round(50 * size / 2000)))
    environment = {**os.environ, "DTSN_BAD_INPUT_EXAMPLES": examples, "DTSN_BAD_INPUT_COUNT": str(count)}
    files = sorted(map(str, ROOT.glob("tests/test_bad_input_*.py")))
    command = [sys.executable, "-m", "pytest", *files, "-m", "", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, env=environment, capture_output=True
    )
    result = Outcome(int(count.read_text()) if count.exists() else 0)
    suite = xml.etree.ElementTree.parse(report).getroot()
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failures.append(f"{case.get('name')}")
    result.check(done.returncode in (0, 1), done.stdout.decode()[-1000:])
    result.check(result.tried >= size, f"only {result.tried} cases were generated")
    return result
