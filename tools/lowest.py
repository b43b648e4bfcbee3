"""Print the lower end of every dependency's range, for pip; packages named as arguments keep their range."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
tools = [need for need in extras["dev"] if need.startswith(("pytest", "hypothesis"))]
parts = [part for part in extras if part not in ("bench", "dev", "docs")]
for need in [*project["dependencies"], *(need for part in parts for need in extras[part]), *tools]:
    name = re.split(r"[^\w-]", need)[0]
    lowest = re.sub(r">=([\d.]+).*", r"==\1", need)
    print(need if name in sys.argv[1:] else lowest)
