"""Measure what the search costs."""

from __future__ import annotations

from pathlib import Path

from dtsn.cli.options import REPORT
from dtsn.cli.terminal import console, done
from dtsn.processes import prepare


def bench(
    out: Path = REPORT / "bench.json",
    page: Path = REPORT / "performance.md",
    quick: bool = False,
    compile: bool = False,
    threads: int = 1,
) -> None:
    """Measure the cost of the search, as ratios to plain calls of the same modules.

    Example: dtsn bench --quick

    Args:
        out: JSON file with the ratios and all rows behind them.
        page: Markdown file made of it; its figure goes to figures/ beside it.
        quick: measure the headline only, in less than a minute.
        compile: also act through torch.compile, which takes a minute to compile.
        threads: CPU threads; small networks are fastest with one.
    """
    from dtsn.bench.page import TARGETS, write_bench
    from dtsn.bench.run import run_bench

    prepare(threads)
    result = run_bench(quick=quick, compiled=compile, progress=console().print)
    for name, found in result["ratios"].items():
        target = TARGETS[name]
        verdict = target.verdict(found["value"])
        console().print(f"{target.title}: {found['value']:.3g} (target {target.wanted}: {verdict})")
    written = write_bench(result, out, page)
    done("wrote " + ", ".join(map(str, written)), f"read {page}")
