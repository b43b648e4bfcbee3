"""The performance page: what `dtsn bench` measured, against what it should be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtsn.bench.timing import Row
from dtsn.reproduce.markdown import runtime_table, table
from dtsn.storage import replace_durably, replaced


@dataclass(frozen=True)
class Target:
    """A limit that a ratio should keep."""

    title: str
    limit: float | None = None  # at most that; None: a figure without a limit
    paper: str = "–"

    def verdict(self, value: float) -> str:
        """Say yes, no, or borderline: between runs on a busy machine ratios move by a tenth."""
        if self.limit is None:
            return "–"
        if abs(value - self.limit) <= 0.1 * self.limit:
            return "borderline"
        return "yes" if value <= self.limit else "no"

    @property
    def wanted(self) -> str:
        """The limit in words."""
        return "–" if self.limit is None else f"≤ {self.limit:g}"


TARGETS = {
    "train_over_modules_a15_b256": Target("training step ÷ bare modules, A=15, B=256", 1.0),
    "train_over_modules_a4_b256": Target("training step ÷ bare modules, A=4, B=256", 1.15),
    "train_over_fused_a15_b256": Target("training step ÷ fused modules (pure overhead), A=15, B=256", 1.2),
    "infer_over_modules_a4_b1": Target("inference ÷ bare modules, A=4, B=1, T=10", 1.3),
    "train_over_modules_a4_b32_l64": Target("training step ÷ bare modules, A=4, B=32, latent 64", 1.2),
    "act_b1_over_mctx40": Target("our fastest decision ÷ mctx with 40 simulations, B=1", 0.5),
    "act_b64_over_mctx40": Target("our fastest decisions ÷ mctx with 40 simulations, B=64", 0.6),
    "act_b1_over_mctx10": Target("our fastest decision ÷ mctx with 10 simulations, B=1", 2.0),
    "act_export_over_eager_b1": Target("exported graph ÷ the same search on torch's modules, B=1", 0.5),
    "dtsn10_over_qnet": Target("D-TSN(10) ÷ Q-network, A=15, B=256", 5.0, paper="6.8"),
    "treeqn2_over_dtsn10": Target("TreeQN-2 ÷ D-TSN(10), A=15, B=256", paper="1.21"),
    "treeqn3_peak_gb": Target(
        "TreeQN-3 peak memory in GB, A=15, B=256, latent 256", 4.0, paper="more than 11"
    ),
    "reference_over_dtsn": Target("per-sample Python search ÷ ours, A=15, B=256"),
    "t200_over_t20": Target("time(T=200) ÷ time(T=20)", 11.0),
    "ddp2_weights_difference": Target(
        "largest difference of a weight after 100 steps, 2 processes against 1", 1e-6
    ),
}


PAGE = """# Performance

Written by `dtsn bench`; do not edit. Measured on {machine}.{unmeasured}

```
dtsn bench                      # about five minutes; --quick for the headline alone
dtsn bench --compile            # and acting through torch.compile, a minute more
```

Every ratio is of functions called in turn in one process, on one thread: the median over rounds, ± half the
width of the middle half. *Bare modules* are layers of the same sizes as one would call them without a tree:
the encoder on B rows, then T times transition, reward and value on B·A rows with the one-hot action
concatenated, forward and backward.
*Fused modules* are the library's own `expand` and `value`, whose first layers run on B rows, and so does the
whole reward head, which has an output for each action; what is above those is the search alone.
*Borderline* is within a tenth of the limit: between runs on a busy machine ratios move that much. The
encoder is a two-layer perceptron as wide as the latent (the cheapest there is, so that it hides nothing),
for maps the residual one.

{headline}

T is 10 but in the row of T=200 and T=20 (A=15, B=32). The latent is 256 at B=256 and in that row; it is 64
in the rows with B=1 and B=64 (A=4) and in the per-sample search. *mctx* is Gumbel MuZero with perceptrons of
the same sizes, compiled by JAX, on one core. 40 simulations evaluate the model as often as ten expansions of
four actions, 10 simulations a quarter as often.

## Beyond the limit, or near it

{above}

## What the ratios are made of

- *Training.* Actions share the first layers of the fused modules. With few actions there is little
  arithmetic to share. What the search adds is storing latents and reading them back, and so for their
  gradients.
- *Inference.* With one row every operation costs its launch, so the tree is kept in plain numbers
  (`dtsn.search.single_row`) and small perceptrons run on NumPy views of their weights, which launches in a
  fraction of the time. Numba compiles both to one function (`solver.compile_acting()`), which takes the rows
  of a batch one by one. Both sides run in `torch.inference_mode`, decisions among decisions; right after a
  training step, with cold caches, a decision takes longer.
- *Small products* take no longer than the launch of an operation, and a training step launches many an
  iteration, forward and backward: the modules' own, about twenty to choose a node, and a backup of all
  iterations at once.{small} The additional launches explain most of the ratio, not all of it.
- *Q-network.* Ten expansions are ten times the world model; only the encoder is shared, and a target
  encoder is added.
- *TreeQN-2* makes 240 transitions and 225 values where D-TSN(10) makes 150 and 150: 1.55 times the
  arithmetic, after the same encoder. What makes the modules cheaper makes both cheaper. *TreeQN-3* holds
  the tables of 3616 nodes a row and the chunk of leaves in flight.
- *The per-sample search* pays by the operation, ours by the arithmetic, most of it in the modules
  themselves.
- *T.* Memory that a step frees is kept for the next (`processes.prepare`), which saves page faults.
  Choosing among T·A open nodes is a quadratic term, seen only where the modules are small.

## Search against modules

{search}

Maps at larger T·B take minutes a step on one core and are left out.

## The paper's runtime table

64×64 frames, A=15, batch 256, latent 256, Nature encoder; a step is forward and backward of the whole loss.
The paper's ratios are from a GPU and its own encoder. Peak memory is that of a process that makes one step.

{runtime}

TreeQN of depth 3 grows its trees a few rows at a time without gradient and runs the best path below each
root action again with gradient (see `full_expansion`). At four actions TreeQN-2 is cheaper than D-TSN(10): 20
transitions against 40.{memory}

The encoder in bfloat16 (`--network.precision bfloat16`) makes the D-TSN(10) step {bfloat16} × as fast: most
of it is the world model, which stays in float32. What it does to success on Navigation is in
[results.md](results.md).

## Growth

Exponents are fitted to the larger half of the sizes; 1 is linear.

{grown}

![Time of a training step against T, A, B and the latent](figures/growth.png)

## One decision

Batch 1, A=4, T=10, latent 64, no gradient:
{acting}.
*modules* is ten times expand and value by torch, *search* the search with a world model that costs
nothing.{compiled}{deciding}

## Environments and data

Environment steps a second, one thread: {steps}. Loading and augmenting a batch takes
{load} of the training step of D-TSN on Navigation.
"""


def write_bench(result: dict[str, Any], out: Path, page: Path | None) -> list[Path]:
    """Write the JSON, and the page made of it with its figure."""
    written = [out]
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(out, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    if page is not None:
        figure = draw_growth(result, page.parent / "figures" / "growth.png")
        page.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(page, performance_page(result).encode())
        written += [page, figure]
    return written


def draw_growth(result: dict[str, Any], path: Path) -> Path:
    """Draw the time of a training step against T, A, B and the latent, on logarithmic axes."""
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row["part"] == "growth"]
    figure = Figure(figsize=(3 * len(rows), 3), layout="constrained", dpi=120)
    all_axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for axes, row in zip(all_axes, rows, strict=True):
        axes.loglog(row["sizes"], row["ms"], "o-", color="#2a6f97")
        axes.loglog(
            row["sizes"], [row["ms"][-1] * n / row["sizes"][-1] for n in row["sizes"]], ":", color="#999999"
        )
        axes.set_title(f"{row['over']}: exponent {row['exponent']}", fontsize=10)
        axes.set_xticks(row["sizes"], [str(n) for n in row["sizes"]], fontsize=8)
        axes.minorticks_off()
    all_axes[0].set_ylabel("ms a step (dotted: linear)")
    with replaced(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
    return path


def performance_page(result: dict[str, Any]) -> str:
    """Write ``docs/performance.md``: the tables of a result, with what is above its limit."""
    rows, info = result["rows"], result["machine"]
    found = result["ratios"]
    headline = [
        [
            TARGETS[name].title,
            TARGETS[name].paper,
            TARGETS[name].wanted,
            f"**{_figure(found[name]['value'])}**"
            + (f" ± {found[name]['spread'] / 2:.2f}" if found[name]["spread"] else ""),
            TARGETS[name].verdict(found[name]["value"]),
        ]
        for name in TARGETS
        if name in found
    ]
    search = [
        [
            *(row[name] for name in ("actions", "iterations", "batch")),
            f"{row['latent']}×20×20" if row["spatial"] else row["latent"],
            *(f"{row[name][0]:.2f}" for name in ("train_over_bare", "train_over_fused")),
            *(f"{row[name][0]:.2f}" for name in ("infer_over_bare", "infer_over_fused")),
            f"{row['ms']['train']:.1f}",
            f"{row['ms']['infer']:.1f}",
        ]
        for row in _part(rows, "search")
    ]
    grown = [
        [
            row["over"],
            row["exponent"],
            ", ".join(f"{n}: {ms:g}" for n, ms in zip(row["sizes"], row["ms"], strict=True)),
        ]
        for row in _part(rows, "growth")
    ]
    acting = _part(rows, "acting")[0]["ms"]
    compiled = _part(rows, "compiled")
    precision, data = _part(rows, "precision")[0], _part(rows, "data")[0]
    memory = _part(rows, "memory")
    return PAGE.format(
        machine=f"{info['processor']}, {info['threads']} of {info['cores']} cores (load {info['load']}), "
        f"torch {info['torch']}, dtsn {info.get('dtsn', '0.1')}",
        unmeasured=_unmeasured(found),
        headline=table(["ratio", "paper", "target", "measured", "kept"], headline),
        above="\n".join(
            f"- {TARGETS[name].title}: {_figure(found[name]['value'])}"
            for name in TARGETS
            if name in found and TARGETS[name].verdict(found[name]["value"]) in ("no", "borderline")
        )
        + _small_sizes(rows)
        or "Nothing.",
        search=table(
            [
                "A",
                "T",
                "B",
                "latent",
                "train ÷ bare",
                "train ÷ fused",
                "infer ÷ bare",
                "infer ÷ fused",
                "train, ms",
                "infer, ms",
            ],
            search,
        ),
        runtime=runtime_table(rows),
        bfloat16=f"{precision['float32_over_bfloat16']:.2f}",
        grown=table(["over", "exponent", "ms a step"], grown),
        acting=", ".join(f"{name} {ms:.2f} ms" for name, ms in acting.items()),
        compiled="".join(
            f"\n\nCompiled by `torch.compile`, in {row['compile_seconds']:.0f} s: "
            f"{row['ms']['compiled']:.2f} ms, {row['compiled_over_bare'][0]:.2f} × the bare modules "
            "(`solver.compile_acting()`)."
            for row in compiled
        ),
        small="".join(
            f" At A={row['actions']}, B={row['batch']}, latent {row['latent']}: "
            + ", ".join(f"{name} {ms:.1f} ms" for name, ms in row["ms"].items())
            + "; launched operations: "
            + ", ".join(f"{name} {count}" for name, count in row["operations"].items())
            + "."
            for row in _part(rows, "small")
        ),
        deciding=_deciding(_part(rows, "deciding")),
        steps=", ".join(f"{row['name']} {row['steps_per_second']:,}" for row in _part(rows, "environment")),
        memory="".join(
            f"\n\nMemory grows linearly with T: one D-TSN step at batch {row['batch']} peaks at "
            + ", ".join(f"{gb:g} GB (T={t})" for t, gb in zip(row["iterations"], row["peak_gb"], strict=True))
            + "."
            for row in memory
        ),
        load=f"{100 * data['load_over_train'][0]:.1f}%",
    )


def _small_sizes(rows: list[Row]) -> str:
    """Return a line on the training steps of 32 rows and more that cost more than the target for their A."""
    beyond = [
        f"A={row['actions']}, T={row['iterations']}, B={row['batch']}, latent {row['latent']}: {ratio:.2f}"
        for row in _part(rows, "search")
        if row["batch"] >= 32 and (ratio := row["train_over_bare"][0]) > {4: 1.15, 15: 1.0}[row["actions"]]
    ]
    if not beyond:
        return ""
    return f"\n- training at smaller sizes: {'; '.join(beyond)}"


def _unmeasured(found: dict[str, Any]) -> str:
    """Return a sentence on the rows that this result lacks."""
    missing = [target.title for name, target in TARGETS.items() if name not in found]
    return f"\n\nNot measured in this run: {'; '.join(missing)}." if missing else ""


def _deciding(rows: list[Row]) -> str:
    """Return the ways of acting, in milliseconds."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    cells = [
        [name, *(f"{row['ms'][name]:.2f}" if name in row["ms"] else "–" for row in rows)] for name in names
    ]
    return (
        "\n\nThe ways of acting, from a NumPy observation to an action, in ms. *act* is what you get "
        "without\nasking, *on tensors* the same search with all modules by torch, *compiled* after\n"
        "`solver.compile_acting()`, *exported* by onnxruntime:\n\n"
        + table(["decision", *(f"B={row['batch']}" for row in rows)], cells)
    )


def _figure(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1e}"


def _part(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row["part"] == name]
