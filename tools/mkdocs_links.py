"""A hook of MkDocs: links that leave docs/ lead nowhere on the site, so they become the file's path."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``[text](../results/x.json)`` by ``text (results/x.json)``."""
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", markdown)
