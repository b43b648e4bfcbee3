"""The paper's own numbers (Mittal & Lee, 2024)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperNumber:
    """A rate of the paper, in percent, with its standard error where it gives one."""

    success: float
    error: float | None = None
    collision: float | None = None


# (variant, exits, search iterations when acting) -> the paper's number, from its Navigation tables.
PAPER_NAVIGATION = {
    ("qnet", 2, 10): PaperNumber(94.5, 0.2, 4.4),
    ("search", 2, 10): PaperNumber(93.2, 0.3, 6.7),
    ("treeqn", 2, 10): PaperNumber(95.4, 0.2, 3.8),
    ("dtsn", 2, 10): PaperNumber(99.0, 0.1, 0.7),
    ("qnet", 1, 10): PaperNumber(47.1, 0.5, 50.2),
    ("search", 1, 10): PaperNumber(86.9, 0.3, 12.4),
    ("treeqn", 1, 10): PaperNumber(51.8, 0.5, 39.2),
    ("dtsn", 1, 10): PaperNumber(99.3, 0.1, 0.2),
    ("dtsn-no-telescoping", 1, 10): PaperNumber(98.5, 0.1),
    ("dtsn-no-reinforce", 1, 10): PaperNumber(97.7, 0.2),
    ("dtsn-no-auxiliary", 1, 10): PaperNumber(91.1, 0.3),
    ("dtsn-5", 2, 5): PaperNumber(97.4),
    ("dtsn-5", 1, 5): PaperNumber(96.6),
    ("dtsn-20", 2, 20): PaperNumber(99.5),
    ("dtsn-20", 1, 20): PaperNumber(99.1),
    ("dtsn", 2, 20): PaperNumber(99.3),
    ("dtsn", 1, 20): PaperNumber(99.4),
    ("dtsn", 2, 50): PaperNumber(99.7),
    ("dtsn", 1, 50): PaperNumber(99.6),
    ("search", 2, 20): PaperNumber(91.1),
    ("search", 1, 20): PaperNumber(84.6),
    ("search", 2, 50): PaperNumber(89.5),
    ("search", 1, 50): PaperNumber(80.4),
}

# The paper's mean scores per game (mode hard), and its aggregates.
PAPER_PROCGEN = {
    "bigfish": {"qnet": 21.49, "search": 14.51, "treeqn": 19.06, "dtsn": 20.80},
    "bossfight": {"qnet": 8.77, "search": 6.16, "treeqn": 8.31, "dtsn": 8.53},
    "caveflyer": {"qnet": 2.01, "search": 3.35, "treeqn": 3.57, "dtsn": 3.53},
    "chaser": {"qnet": 5.79, "search": 4.43, "treeqn": 6.46, "dtsn": 6.66},
    "climber": {"qnet": 2.81, "search": 5.34, "treeqn": 4.34, "dtsn": 5.20},
    "coinrun": {"qnet": 5.02, "search": 6.50, "treeqn": 5.07, "dtsn": 6.56},
    "dodgeball": {"qnet": 1.10, "search": 4.66, "treeqn": 4.79, "dtsn": 5.52},
    "fruitbot": {"qnet": 14.00, "search": 10.50, "treeqn": 15.59, "dtsn": 13.85},
    "heist": {"qnet": 0.81, "search": 1.97, "treeqn": 1.99, "dtsn": 2.12},
    "jumper": {"qnet": 3.39, "search": 4.06, "treeqn": 3.42, "dtsn": 4.31},
    "leaper": {"qnet": 7.57, "search": 6.35, "treeqn": 7.87, "dtsn": 8.05},
    "maze": {"qnet": 2.00, "search": 2.63, "treeqn": 2.18, "dtsn": 2.51},
    "miner": {"qnet": 1.42, "search": 1.55, "treeqn": 1.55, "dtsn": 1.63},
    "ninja": {"qnet": 5.07, "search": 5.15, "treeqn": 5.16, "dtsn": 5.88},
    "plunder": {"qnet": 12.77, "search": 9.67, "treeqn": 12.50, "dtsn": 13.26},
    "starpilot": {"qnet": 15.53, "search": 13.57, "treeqn": 16.98, "dtsn": 16.91},
}
# Of the policies behind the authors' data (PPG, 100 million steps, mode hard); not in the paper.
PAPER_PROCGEN_EXPERT = {
    **{"bigfish": 26.2, "bossfight": 11.0, "caveflyer": 9.7, "chaser": 7.9, "climber": 10.1, "coinrun": 8.5},
    **{"dodgeball": 8.8, "fruitbot": 23.5, "heist": 3.4, "jumper": 6.3, "leaper": 9.1, "maze": 6.8},
    **{"miner": 10.9, "ninja": 9.4, "plunder": 17.8, "starpilot": 21.4},
}
PAPER_PROCGEN_Z = {
    "search": 0.11,
    "treeqn": 0.22,
    "dtsn": 0.31,
    "dtsn-no-telescoping": 0.28,
    "dtsn-no-reinforce": 0.29,
}
PAPER_PROCGEN_WINS = {"qnet": "13/16", "search": "14/16", "treeqn": "13/16"}

# The same experiment, run again for the follow-up (Mittal, Kang & Lee, 2025).
RERUN_PROCGEN = {
    "bigfish": {"qnet": 21.67, "search": 16.36, "treeqn": 20.38, "dtsn": 21.76},
    "bossfight": {"qnet": 8.83, "search": 7.33, "treeqn": 8.35, "dtsn": 8.50},
    "caveflyer": {"qnet": 2.05, "search": 3.52, "treeqn": 3.57, "dtsn": 3.71},
    "chaser": {"qnet": 5.77, "search": 5.31, "treeqn": 6.37, "dtsn": 6.77},
    "climber": {"qnet": 2.85, "search": 4.93, "treeqn": 4.13, "dtsn": 5.62},
    "coinrun": {"qnet": 5.18, "search": 6.33, "treeqn": 5.01, "dtsn": 6.40},
    "dodgeball": {"qnet": 1.05, "search": 4.26, "treeqn": 4.70, "dtsn": 5.30},
    "fruitbot": {"qnet": 14.09, "search": 10.76, "treeqn": 15.43, "dtsn": 14.00},
    "heist": {"qnet": 0.87, "search": 2.24, "treeqn": 1.91, "dtsn": 2.43},
    "jumper": {"qnet": 3.21, "search": 3.97, "treeqn": 3.74, "dtsn": 4.65},
    "leaper": {"qnet": 7.78, "search": 6.36, "treeqn": 7.85, "dtsn": 8.20},
    "maze": {"qnet": 2.02, "search": 2.26, "treeqn": 2.50, "dtsn": 3.30},
    "miner": {"qnet": 1.41, "search": 1.35, "treeqn": 2.06, "dtsn": 1.71},
    "ninja": {"qnet": 5.07, "search": 5.07, "treeqn": 5.05, "dtsn": 6.61},
    "plunder": {"qnet": 13.77, "search": 9.74, "treeqn": 12.47, "dtsn": 12.75},
    "starpilot": {"qnet": 15.74, "search": 14.83, "treeqn": 17.91, "dtsn": 16.42},
}
RERUN_PROCGEN_Z = {"search": 0.10, "treeqn": 0.27, "dtsn": 0.35}
RERUN_PROCGEN_WINS = {"qnet": "13/16", "search": "16/16", "treeqn": "13/16"}

# The follow-up's Game of 24 (Llama3-8B), success in percent: (solver, trajectories, T trained, T acting).
FOLLOW_UP_GAME24 = {
    **{("dtsn", n, 8, 8): rate for n, rate in ((1000, 31.46), (2000, 38.25), (10_000, 45.24))},
    **{("search", n, 1, 8): rate for n, rate in ((1000, 12.45), (2000, 15.09), (10_000, 21.32))},
    **{
        ("dtsn", 2000, 1, T): rate
        for T, rate in ((1, 20.75), (4, 31.51), (8, 38.16), (16, 49.76), (128, 89.29))
    },
    **{("dtsn", 2000, 8, T): rate for T, rate in ((16, 49.91), (128, 91.42))},
    **{("dtsn", 2000, 16, T): rate for T, rate in ((16, 49.58), (128, 92.38))},
}
