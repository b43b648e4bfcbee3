"""Collect expert data, train a D-TSN and a Q-network on it, compare them on unseen halls with one exit.

    python examples/navigation.py

The command line does the same with checkpoints: dtsn collect, dtsn train, dtsn eval.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from dtsn import Dataset, Trainer
from dtsn.envs.navigation import NavigationOptions
from dtsn.evaluation.levels import first_levels
from dtsn.evaluation.navigation import evaluate_navigation
from dtsn.experts.collect import collect_navigation
from dtsn.reproduce.navigation.variants import NAVIGATION


def main(episodes: int = 1000, steps: int = 1000, levels: int = 200) -> dict[str, float]:
    """Return the success rate of each solver on test halls with one exit."""
    success = {}
    with tempfile.TemporaryDirectory() as folder:
        path = collect_navigation(Path(folder) / "navigation.h5", episodes=episodes)
        for name in ("qnet", "dtsn"):
            config = replace(
                NAVIGATION,
                solver=replace(NAVIGATION.solver, name=name),
                steps=steps,
                search_warmup=steps // 5,
            )
            with Dataset(path) as data:
                trainer = Trainer(config, data.observation, data.num_actions)
                for metrics in trainer.run(data):
                    if metrics["step"] % 100 == 0:
                        print(f"{name}, step {metrics['step']}: loss {metrics['loss']:.3f}")
            halls = first_levels("test", levels)
            rows = evaluate_navigation(trainer.solver.eval(), halls, NavigationOptions(exits=1))
            success[name] = sum(row.success for row in rows) / len(rows)
            print(f"{name} reaches the goal in {success[name]:.0%} of {levels} halls with one exit")
    return success


if __name__ == "__main__":
    main()
