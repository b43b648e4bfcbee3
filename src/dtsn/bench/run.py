"""The whole benchmark, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dtsn.bench.acting import acting_latency, compiled_acting
from dtsn.bench.deciding import deciding
from dtsn.bench.environments import pipeline
from dtsn.bench.growth import growth
from dtsn.bench.page import TARGETS
from dtsn.bench.per_sample import per_sample_against_ours
from dtsn.bench.ranks import processes_against_one
from dtsn.bench.runtime import runtime_table
from dtsn.bench.search import search_against_modules
from dtsn.bench.small import small_step
from dtsn.bench.timing import Row, machine


def run_bench(
    *, quick: bool = False, compiled: bool = False, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measure everything: ``{"ratios": {name: {value, target, spread}}, "machine": {…}, "rows": […]}``."""
    began = time.perf_counter()
    rows: list[Row] = []
    ratios: dict[str, tuple[float, float]] = {}
    parts = (
        search_against_modules,
        small_step,
        acting_latency,
        deciding,
        runtime_table,
        per_sample_against_ours,
        growth,
        pipeline,
        processes_against_one,
    )
    for part in parts:
        progress((part.__doc__ or "").splitlines()[0].rstrip("."))
        for row in part(quick):
            ratios |= row.pop("ratios", {})
            rows.append(row)
    if not {"act_b1_over_mctx40", "act_export_over_eager_b1"} <= ratios.keys():
        progress("Rows were left out for want of jax, mctx or onnxruntime: pip install 'dtsn[bench]'")
    if compiled:
        progress("Acting compiled by torch.compile: a minute")
        rows.append(compiled_acting())
    return {
        "ratios": {
            name: {"value": float(f"{value:.5g}"), "target": TARGETS[name].limit, "spread": round(spread, 4)}
            for name, (value, spread) in sorted(ratios.items())
        },
        "machine": {**machine(), "seconds": round(time.perf_counter() - began), "quick": quick},
        "rows": rows,
    }
