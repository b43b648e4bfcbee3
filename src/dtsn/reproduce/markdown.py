"""Pages: Markdown tables, files, and one self-contained HTML file made of several Markdown pages."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

NORMAL = 1.959963984540054  # two-sided 95% quantile: every interval of the pages is by it

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #1d6fb8; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem 1.2rem 4rem; }
h1 { border-bottom: 2px solid var(--accent); padding-bottom: .3rem; margin-top: 3rem; }
h2 { margin-top: 2.2rem; }
nav { background: var(--soft); border-radius: .6rem; padding: .6rem 1rem; }
nav a { margin-right: 1.2rem; }
a { color: var(--accent); }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .7rem; text-align: left; vertical-align: top; }
th { background: var(--soft); }
tr:hover td { background: var(--soft); }
img { background: #fff; border-radius: .4rem; max-width: 100%; }
pre { background: var(--soft); border-radius: .4rem; overflow-x: auto; padding: .7rem 1rem; }
code { font-size: .92em; }
"""


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def runtime_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The paper's runtime table beside ours, from the rows of a result."""
    lines = [
        [
            row["solver"],
            f"{row['seconds']:.2f}",
            f"{row['over_qnet']:.1f}",
            row["paper_over_qnet"] or "out of memory",
            f"{row['peak_gb']:.1f}",
        ]
        for row in rows
        if row["part"] == "runtime"
    ]
    return table(["solver", "s a step", "÷ Q-network", "paper", "peak GB"], lines)


def configuration(config: Any) -> str:
    """Every number of a configuration dataclass as a Markdown table."""
    return table(("Setting", "Value"), ((f"`{name}`", value) for name, value in _settings(config)))


def _settings(config: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def write_text(path: Path, text: str) -> Path:
    """Write a page or data file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_html(path: Path, pages: Sequence[Path], title: str) -> Path:
    """One HTML file of several Markdown pages, pictures inside: it can be mailed and opened anywhere."""
    names = [_heading(page.read_text()) for page in pages]
    bodies = [
        f'<section id="page-{i}">{_html(page.read_text(), page.parent)}</section>'
        for i, page in enumerate(pages)
    ]
    links = "".join(f'<a href="#page-{i}">{escape(name)}</a>' for i, name in enumerate(names))
    nav = f"<nav>{links}</nav>" if len(pages) > 1 else ""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    document = (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{nav}{"".join(bodies)}</body></html>\n'
    )
    return write_text(path, document)


def _heading(markdown: str) -> str:
    return next((line[2:] for line in markdown.splitlines() if line.startswith("# ")), "page")


def _html(markdown: str, folder: Path) -> str:
    from markdown_it import MarkdownIt

    # Raw HTML is escaped: result folders may come from strangers. Only line breaks in cells come back.
    body: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    body = body.replace("&lt;br&gt;", "<br>").replace("<table>", '<div class="table"><table>')
    body = body.replace("</table>", "</table></div>")
    return re.sub(r'<img src="([^":]+)"', lambda found: f'<img src="{_embedded(folder, found[1])}"', body)


def _embedded(folder: Path, name: str) -> str:
    """A picture beside a page as a data URI; its name if it is not there."""
    path = folder / name
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        return name
    kind = {".svg": "svg+xml", ".gif": "gif"}.get(path.suffix, "png")
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
