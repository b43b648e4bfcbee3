"""Give D-TSN an encoder and a world model of your own and train it in a loop of your own.

    python examples/own_world_model.py

The task: steer a point on a line to 0 within a few steps of ±1; observations are the position, [B, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dtsn import Batch, Solver, SolverConfig, WorldModel

LATENT, ACTIONS = 32, 2


class Encoder(nn.Module):
    """Position [B, 1] -> pre-activation u [B, LATENT]: any module will do; it ends without a tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, LATENT))

    def forward(self, observation: Tensor) -> Tensor:
        out: Tensor = self.net(observation / 5)
        return out


class Transition(nn.Module):
    """State h [B, LATENT] -> change of u by each action, [B, ACTIONS, LATENT]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, ACTIONS * LATENT))

    def forward(self, state: Tensor) -> Tensor:
        out: Tensor = self.net(state)
        return out.view(-1, ACTIONS, LATENT)


class Value(nn.Module):
    """State h [B, LATENT] -> value [B]; multiplied by the rough magnitude of returns."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, state: Tensor) -> Tensor:
        out: Tensor = self.net(state)
        return 5 * out.squeeze(1)


def make_solver() -> Solver:
    model = WorldModel(
        encoder=Encoder(),
        transition=Transition(),
        reward=nn.Linear(LATENT, ACTIONS),  # h -> rewards [B, ACTIONS]
        value=Value(),
        num_actions=ACTIONS,
    )
    return Solver(model, SolverConfig("dtsn", iterations=5), observation_shape=(1,))


def sample_batch(size: int, generator: torch.Generator) -> Batch:
    """Draw steps of an expert that walks to 0; each costs 1, so the return is minus the distance."""
    position = torch.randint(1, 6, (size, 1), generator=generator).float()
    position *= torch.randint(2, (size, 1), generator=generator) * 2 - 1  # -5 … -1, 1 … 5
    action = (position < 0).long().squeeze(1)  # 0: left, 1: right
    after = position - position.sign()
    return Batch(
        observation=position,
        action=action,
        reward=-torch.ones(size),
        q_target=-position.abs().squeeze(1),
        next_observation=after,
        terminated=(after == 0).squeeze(1),
    )


def main(steps: int = 300) -> float:
    """Train and return the share of positions in which the solver walks towards 0."""
    torch.manual_seed(0)
    solver, generator = make_solver(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(solver.world_model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = solver.train().loss(sample_batch(64, generator), generator=generator)
        optimizer.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        solver.update_target()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.total.item():.3f}")
    test = sample_batch(256, torch.Generator().manual_seed(1))
    right = float((solver.eval().act(test.observation) == test.action).float().mean())
    print(f"walks towards 0 in {right:.0%} of positions")
    return right


if __name__ == "__main__":
    main()
