"""Deep Q-learning with a solver in one file, on the public names of dtsn, Gymnasium and PyTorch alone.

python examples/online_dqn.py --env CartPole-v1 --solver dtsn --steps 50000
"""

import argparse
import copy
import dataclasses
import random
import time

import gymnasium
import numpy as np
import torch

from dtsn import Batch, LossWeights, Solver, SolverConfig


def parse() -> argparse.Namespace:
    """Read the settings; the defaults are rl-zoo's for DQN on CartPole."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--solver", default="dtsn", choices=["dtsn", "search", "treeqn", "qnet"])
    parser.add_argument("--iterations", type=int, default=5, help="expansions of a search")
    parser.add_argument("--steps", type=int, default=50_000, help="of the environment")
    parser.add_argument("--learning-starts", type=int, default=1000)
    parser.add_argument("--train-every", type=int, default=256, help="environment steps between updates")
    parser.add_argument("--updates", type=int, default=128, help="optimiser steps of an update")
    parser.add_argument(
        "--target-every", type=int, default=10, help="environment steps between target copies"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--replay-size", type=int, default=100_000)
    parser.add_argument("--learning-rate", type=float, default=2.3e-3)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument(
        "--explore", type=float, default=0.16, help="share of the steps until epsilon is final"
    )
    parser.add_argument("--final-epsilon", type=float, default=0.04)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="folder for the solver")
    return parser.parse_args()


class Replay:
    """The last transitions, by field of `Batch`."""

    def __init__(self, size: int, space: gymnasium.spaces.Box):
        frames = np.zeros((size, *space.shape), space.dtype)
        self.fields = {
            "observation": frames,
            "action": np.zeros(size, np.int64),
            "reward": np.zeros(size, np.float32),
            "next_observation": frames.copy(),
            "terminated": np.zeros(size, bool),
        }
        self.size, self.added = size, 0

    def add(self, *transition: object) -> None:
        """Put a transition in place of the oldest."""
        for field, value in zip(self.fields.values(), transition, strict=True):
            field[self.added % self.size] = value
        self.added += 1

    def sample(self, size: int, rng: np.random.Generator) -> Batch:
        """Draw a batch with repetition."""
        rows = rng.integers(min(self.added, self.size), size=size)
        return Batch.of({name: field[rows] for name, field in self.fields.items()})


def evaluate(solver: Solver, name: str, episodes: int, seed: int) -> float:
    """Return the mean return of deterministic acting."""
    env, total = gymnasium.make(name), 0.0
    for episode in range(episodes):
        observation, done = env.reset(seed=seed + episode)[0], False
        while not done:
            action = solver.act(observation, deterministic=True).item()
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Learn, and say how it goes."""
    args = parse()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = gymnasium.make(args.env)
    weights = LossWeights(q=1.0, cql=0.0, transition=0.001)  # own data; latents that do not collapse
    config = SolverConfig(args.solver, iterations=args.iterations, discount=args.discount, weights=weights)
    solver = Solver.create(config, env.observation_space, env.action_space, seed=args.seed)
    target = copy.deepcopy(solver)
    optimizer = torch.optim.Adam(solver.world_model.parameters(), lr=args.learning_rate)
    replay = Replay(args.replay_size, env.observation_space)

    def update() -> float:
        batch = replay.sample(args.batch_size, rng)
        q = target.td_target(batch.reward, batch.next_observation, batch.terminated, args.discount)
        loss = solver.loss(dataclasses.replace(batch, q_target=q)).total
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(solver.world_model.parameters(), 10)
        optimizer.step()
        solver.update_target()
        return loss.item()

    observation, _ = env.reset(seed=args.seed)
    returns, episode_return, loss, start = [], 0.0, float("nan"), time.time()
    for step in range(1, args.steps + 1):
        epsilon = max(args.final_epsilon, 1 - step / (args.explore * args.steps) * (1 - args.final_epsilon))
        if rng.random() < epsilon:
            action = int(rng.integers(env.action_space.n))
        else:
            action = int(solver.act(observation))
        following, reward, terminated, truncated, _ = env.step(action)
        replay.add(observation, action, reward, following, terminated)
        observation, episode_return = following, episode_return + float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            observation, episode_return = env.reset()[0], 0.0
        if step >= args.learning_starts and step % args.train_every == 0:
            loss = float(np.mean([update() for _ in range(args.updates)]))
        if step % args.target_every == 0:
            target.load_state_dict(solver.state_dict())
        if step % 5000 == 0 or step == args.steps:
            recent = np.mean(returns[-20:]) if returns else float("nan")
            print(f"{step:>8} steps  return {recent:7.1f}  loss {loss:.3f}  {time.time() - start:.0f} s")
    print(f"greedy, 10 episodes: {evaluate(solver, args.env, 10, 10_000 + args.seed):.1f}")
    if args.save:
        solver.save(args.save)


if __name__ == "__main__":
    main()
