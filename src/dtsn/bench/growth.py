"""How the time of a training step grows with the size of the search."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtsn.bench.search import Case, search_functions
from dtsn.bench.timing import Row, interleave, ratio


def growth(quick: bool) -> Iterator[Row]:
    """Time a training step as T, A, B and the latent grow."""
    base = Case(15, 20, 32, 256)
    sweeps = {
        "iterations": [20, 200] if quick else [5, 10, 20, 50, 100, 200],
        "actions": [] if quick else [2, 4, 8, 15, 30],
        "batch": [] if quick else [8, 16, 32, 64, 128],
        "latent": [] if quick else [32, 64, 128, 256],
    }
    for name, sizes in sweeps.items():
        if not sizes:
            continue
        steps = {str(n): search_functions(Case(**{**vars(base), name: n}))["train"] for n in sizes}
        times = interleave(steps, 0, 2 if quick else 3)
        medians = np.array([np.median(times[str(n)]) for n in sizes])
        half = len(sizes) // 2  # small sizes pay for launching operations, large ones for arithmetic
        row: Row = {
            "part": "growth",
            "over": name,
            "sizes": sizes,
            "ms": [round(1000 * float(x), 2) for x in medians],
            "exponent": round(
                float(np.polyfit(np.log(sizes[half - 1 :]), np.log(medians[half - 1 :]), 1)[0]), 2
            ),
        }
        if name == "iterations":
            row["ratios"] = {"t200_over_t20": ratio(times, "200", "20")}
        yield row
