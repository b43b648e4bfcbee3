"""Misspelt names: what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], before: str = "; ") -> str:
    """Return a hint at the known name nearest to a misspelt one, to end a message with, or nothing."""
    near = difflib.get_close_matches(str(name).lower(), known, 1)
    return f"{before}did you mean {near[0]!r}?" if near else ""
