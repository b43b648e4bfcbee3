"""The paper's claim on continuity, on a small world: losses along a line in parameter space.

``python tests/continuity.py docs/figures/continuity.png`` draws the figure of docs/design.md.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from dtsn.search import best_first_search
from dtsn.solvers.losses import q_loss
from reference import all_trees, random_model, reference_search

ACTIONS, ITERATIONS = 2, 3


def line_losses(points: int, seed: int = 6) -> dict[str, Tensor]:
    """Return the greedy tree's loss and the expected loss over all trees, at ``points`` between models."""
    start, end = (dict(random_model(ACTIONS, seed=s, scale=2.0).named_parameters()) for s in (seed, seed + 1))
    model = random_model(ACTIONS, seed=seed)
    root = torch.linspace(-1, 1, 5, dtype=torch.float64)[None]
    action, target = torch.zeros(1, dtype=torch.int64), torch.full((1,), 1.0, dtype=torch.float64)
    where = torch.linspace(0, 1, points)
    curves: dict[str, list[float]] = {"greedy": [], "expected": []}
    with torch.no_grad():
        for alpha in where.tolist():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.lerp(start[name], end[name], alpha))
            greedy = best_first_search(model, root, iterations=ITERATIONS, rule="greedy")
            curves["greedy"].append(float(q_loss(greedy.q, action, target)))
            expected = 0.0
            for selected in all_trees(ACTIONS, ITERATIONS):
                result = reference_search(model, root, selected)
                loss = q_loss(result.q_values[-1:], action, target)
                expected += float(result.log_probs.sum().exp() * loss)
            curves["expected"].append(expected)
    return {"where": where, **{name: torch.tensor(curve) for name, curve in curves.items()}}


def main(path: str) -> None:
    """Draw the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = line_losses(1000)
    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    greedy = curves["greedy"].clone()
    jumps = greedy.diff().abs() > 0.05 * (greedy.max() - greedy.min())
    greedy[1:][jumps] = float("nan")  # break the line where the loss jumps
    axes.plot(curves["where"], greedy, label="greedy tree", color="#c44e52")
    axes.plot(curves["where"], curves["expected"], label="expected over trees", color="#4c72b0")
    axes.set(xlabel="position on a line in parameter space", ylabel="loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1])
