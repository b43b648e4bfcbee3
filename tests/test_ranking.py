"""The ranking loss: which open node lies on the demonstrated path, and log π of it, by a slow search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from dtsn.batch import Batch
from dtsn.config import LossWeights, NetworkConfig, SolverConfig, TrainConfig
from dtsn.data.format import Episode
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter
from dtsn.envs.navigation import MOVES, grid_symmetries
from dtsn.errors import UserError
from dtsn.search import best_first_search
from dtsn.solvers.solver import Solver
from dtsn.training.trainer import Trainer
from reference import Node, expand, path_value
from test_search import TOLERANCE, gradients
from test_search_ends import masked_case


def slow(
    model, root: Tensor, selected: list[int], path: list[int], discount: float, temperature: float
) -> tuple[list[int], Tensor]:
    """The open slot on the path before each choice, and log π of it."""
    nodes: list[Node | None] = [Node(root)]
    open_slots, way = [0], {0: 0}  # slots on the path -> how many of its actions lead there
    found, log_probs = [], []
    for slot in selected:
        on_path = [n for n in open_slots if n in way]
        assert len(on_path) <= 1
        found.append(on_path[0] if on_path else -1)
        if on_path:
            scores = torch.stack(
                [torch.as_tensor(path_value(nodes[n], discount), dtype=torch.float64) for n in open_slots]
            )
            log_probs.append(torch.log_softmax(scores / temperature, 0)[open_slots.index(on_path[0])])
        else:
            log_probs.append(root.new_zeros(()))
        if slot < 0:
            continue
        expand(model, nodes[slot], discount)
        open_slots.remove(slot)
        for action, child in enumerate(nodes[slot].children):
            nodes.append(child)
            if child and not child.is_end:
                open_slots.append(len(nodes) - 1)
                if slot in way and way[slot] < len(path) and path[way[slot]] == action:
                    way[len(nodes) - 1] = way[slot] + 1
    return found, torch.stack(log_probs)


@pytest.mark.parametrize("case", range(0, 24, 2))
def test_the_demonstrated_node_and_its_probability(case: int) -> None:
    model, root, options, _ = masked_case(case, rows=8)
    root.requires_grad_()
    rng = torch.Generator().manual_seed(case)
    actions, iterations = 1 + case % 5, options["iterations"]
    path = torch.randint(actions, (len(root), 1 + case % 4), generator=rng)
    path[:3] = path[:3].cumsum(1).clamp(max=actions).masked_fill_(path[:3].cumsum(1) >= actions, -1)
    path = torch.where((path < 0).cummax(1).values, -1, path)  # once over, over for good
    tree = best_first_search(model, root, **options)
    slots, log_probs = tree.demonstrated(path)
    expected = [
        slow(
            model,
            root[row : row + 1],
            tree.selected[row].tolist(),
            [action for action in path[row].tolist() if action >= 0],
            options["discount"],
            options["temperature"],
        )
        for row in range(len(root))
    ]
    assert slots.tolist() == [found for found, _ in expected]
    theirs = torch.stack([found for _, found in expected])
    torch.testing.assert_close(log_probs, theirs, rtol=0, atol=TOLERANCE)
    if iterations > 1:
        weight = torch.randn(theirs.shape, generator=rng, dtype=torch.float64)
        pair = [gradients((weight * found).sum(), model, root) for found in (log_probs, theirs)]
        for ours, slowly in zip(*pair, strict=True):
            torch.testing.assert_close(ours, slowly, rtol=0, atol=TOLERANCE)
    with torch.no_grad():
        again = best_first_search(model, root, **options).demonstrated(path)
    assert torch.equal(again[0], slots)
    torch.testing.assert_close(again[1], log_probs.detach(), rtol=0, atol=TOLERANCE)


def make(name: str = "dtsn", **config: object) -> Solver:
    options = SolverConfig(name, iterations=4, weights=LossWeights(ranking=0.5), **config)
    network = NetworkConfig(latent=8, hidden=16)
    return Solver.create(options, Box(-1, 1, (5,)), Discrete(3), network=network, seed=0)


def transitions(path: Tensor | None) -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch(
        observation=torch.rand(6, 5, generator=rng),
        action=torch.arange(6) % 3,
        reward=torch.zeros(6),
        q_target=torch.zeros(6),
        next_observation=torch.rand(6, 5, generator=rng),
        terminated=torch.zeros(6, dtype=torch.bool),
        path=path,
    )


def test_training_makes_the_search_follow_demonstrations() -> None:
    solver = make()
    path = torch.stack([torch.arange(6) % 3, torch.arange(6) // 3, torch.arange(6) % 2], 1)
    batch, rng = transitions(path), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(solver.world_model.parameters(), lr=3e-3)
    losses = []
    for _ in range(120):
        loss = solver.train().loss(batch, generator=rng)
        losses.append(loss.means()["ranking"])
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    one = solver.loss(batch, iterations=1)  # nothing to choose
    assert not bool(one.terms["ranking"].any())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, "batch.path must hold the demonstrated actions"),
        (torch.zeros(6, dtype=torch.int64), r"batch.path must be int64 \[6, K\]"),
        (torch.zeros(6, 2), r"batch.path must be int64 \[6, K\], got torch.float32"),
        (torch.full((6, 2), 3), r"batch.path must lie in -1..2, got 3"),
        (torch.full((6, 2), -2), r"batch.path must lie in -1..2, got -2"),
        (torch.zeros(6, 2, dtype=torch.int64), "batch.path must begin with batch.action"),
    ],
)
def test_bad_paths(path: Tensor | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make().loss(transitions(path))


@pytest.mark.parametrize("name", ["qnet", "search", "treeqn"])
def test_solvers_that_do_not_choose_cannot_rank(name: str) -> None:
    with pytest.raises(UserError, match=rf"weights.ranking must be 0 .*got 0.5 for '{name}'"):
        make(name)


def data(folder: Path) -> Path:
    with DatasetWriter(
        folder / "d.h5",
        env_id="e",
        env_options={},
        num_actions=4,
        observation_shape=(3, 5, 5),
        observation_high=1,
    ) as writer:
        rng = np.random.default_rng(0)
        for length in (1, 3, 7, 2):
            frames = rng.integers(2, size=(length + 1, 3, 5, 5)).astype(np.uint8)
            rewards = np.arange(length, dtype=np.float32)
            writer.add_episode(Episode(frames, rng.integers(4, size=length), rewards, True, 0))
    return folder / "d.h5"


def test_data_sets_yield_the_actions_that_follow(tmp_path: Path) -> None:
    with Dataset(data(tmp_path)) as dataset:
        episodes = [dataset.episode(index) for index in range(4)]
        expected = {
            (episode.observations[step].tobytes(), *(*episode.actions[step : step + 3], -1, -1)[:3])
            for episode in episodes
            for step in range(len(episode.actions))
        }
        batch = next(dataset.batches(13, seed=0, path=3))
        assert isinstance(batch.observation, Tensor)
        assert batch.path is not None
        assert torch.equal(batch.path[:, 0], batch.action)
        rows = zip(batch.observation.numpy(), batch.path.tolist(), strict=True)
        assert {(frame.tobytes(), *path) for frame, path in rows} == expected
        assert next(dataset.batches(13, seed=0)).path is None
        with pytest.raises(UserError, match="path must not be negative"):
            dataset.batches(13, seed=0, path=-1)


def test_trainers_ask_for_paths(tmp_path: Path) -> None:
    network = NetworkConfig(encoder="grid", latent=8, hidden=8)
    weights = LossWeights(ranking=1.0)
    config = TrainConfig(
        SolverConfig(iterations=3, weights=weights),
        network,
        steps=3,
        batch_size=8,
        search_warmup=1,
        augment="grid_symmetries",
    )
    with Dataset(data(tmp_path)) as dataset:
        metrics = list(Trainer(config, dataset.observation, 4).run(dataset))
    assert [row["ranking"] > 0 for row in metrics] == [False, True, True]


def test_symmetries_turn_whole_paths() -> None:
    rng = np.random.default_rng(0)
    path = rng.integers(-1, len(MOVES), (200, 3))
    frames = np.zeros((200, 1, 3, 3))
    given = {"observation": frames, "next_observation": frames, "action": path[:, 1].clip(min=0)}
    turned = grid_symmetries({**given, "path": path}, np.random.default_rng(1))
    for column in range(3):  # as each of its actions would be
        alone = grid_symmetries({**given, "action": path[:, column].clip(min=0)}, np.random.default_rng(1))
        expected = np.where(path[:, column] < 0, -1, alone["action"])
        assert np.array_equal(turned["path"][:, column], expected)
