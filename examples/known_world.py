"""Search a world whose rules are known, and learn the value alone: the Tower of Hanoi with three discs.

    python examples/known_world.py

A state is one whole number: the pegs of the discs, smallest first, as digits in base 3. An action takes the
top disc of one peg to another. The demonstrations are shortest solutions.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.spaces import Discrete

from dtsn import Batch, KnownModel, Solver, SolverConfig, StateMLP

DISCS, MOVES = 3, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
STATES, GOAL = 3**DISCS, 3**DISCS - 1  # the goal: all discs on peg 2


def rules(state: np.ndarray) -> tuple[np.ndarray, ...]:
    """States [B] -> next states, rewards, which moves are valid and which arrive, all [B, 6]."""
    pegs = state[:, None] // 3 ** np.arange(DISCS) % 3  # [B, DISCS]
    top = np.stack([np.where((pegs == p).any(1), (pegs == p).argmax(1), DISCS) for p in range(3)], 1)
    source, target = np.array(MOVES).T
    valid = top[:, source] < top[:, target]  # a disc goes onto a larger one, or onto an empty peg
    after = state[:, None] + (target - source) * 3 ** top[:, source]
    return after, -np.ones(valid.shape), valid, after == GOAL


def demonstrations() -> Batch:
    """Return a shortest path from every state, one step each; each move costs 1."""
    everywhere = np.arange(STATES)
    after, reward, valid, _ = rules(everywhere)
    distance = np.where(everywhere == GOAL, 0.0, np.inf)
    for _ in range(2**DISCS):  # no state is farther than 2^DISCS − 1 moves
        ahead = np.where(valid, distance[np.where(valid, after, 0)], np.inf)
        distance = np.minimum(distance, 1 + ahead.min(1))
    state, action = everywhere[:GOAL], ahead.argmin(1)[:GOAL]
    arrived = after[state, action]
    return Batch.of(
        {
            "observation": state,
            "action": action,
            "reward": reward[state, action],
            "q_target": -distance[state],
            "next_observation": arrived,
            "terminated": arrived == GOAL,
        }
    )


def main(steps: int = 200) -> float:
    """Train, and return the share of states from which the greedy search solves the puzzle."""
    torch.manual_seed(0)
    model = KnownModel(rules, StateMLP(Discrete(STATES), hidden=64, scale=5), len(MOVES), arrays="numpy")
    config = SolverConfig("dtsn", iterations=5)
    solver = Solver.create(config, Discrete(STATES), Discrete(len(MOVES)), world_model=model)
    optimizer, batch = torch.optim.Adam(solver.parameters(), lr=1e-2), demonstrations()
    for _ in range(steps):
        loss = solver.train().loss(batch)
        optimizer.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    solver.eval()
    state, solved = np.arange(GOAL), np.zeros(GOAL, bool)
    for _ in range(2 * 2**DISCS):
        action = solver.act(state[~solved], deterministic=True).numpy()
        state[~solved] = rules(state[~solved])[0][np.arange(len(action)), action]
        solved = state == GOAL
        if solved.all():
            break
    print(f"solves the puzzle from {solved.mean():.0%} of {GOAL} states")
    return float(solved.mean())


if __name__ == "__main__":
    main()
