"""Best-first graph search against a slow one, by value and gradient, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dtsn.envs.navigation import MOVES, SPLITS, NavigationOptions, make_levels
from dtsn.search import Expansion, Replay, backup, best_first_search
from reference import MaskedModel, random_model, reference_graph_search
from test_search import TOLERANCE, gradients
from test_search_ends import ENDS, TABLES, masked_case


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("case", range(48))
def test_equals_the_slow_graph_search(case: int, blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if blocks:
        monkeypatch.setattr(backup, "BLOCK_ELEMENTS", 300)
    model, root, options, _ = masked_case(case, rows=10)
    options.pop("invalid_actions", None)
    root.requires_grad_()
    tree = best_first_search(model, root, merge=True, **options)
    references = [
        reference_graph_search(model, root[row : row + 1], slots, options["discount"], options["temperature"])
        for row, slots in enumerate(tree.selected.tolist())
    ]
    q_values = torch.stack([reference.q_values for reference in references])
    log_probs = torch.stack([reference.log_probs for reference in references])
    torch.testing.assert_close(tree.q_values, q_values, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(tree.log_probs, log_probs, rtol=0, atol=TOLERANCE)
    rng = torch.Generator().manual_seed(case)
    weight_q = torch.randn(q_values.shape, generator=rng, dtype=torch.float64) / q_values.numel()
    weight_p = torch.randn(log_probs.shape, generator=rng, dtype=torch.float64) / log_probs.numel()
    finite = q_values.isfinite()
    ours, theirs = (
        gradients((weight_q * q)[finite].sum() + (weight_p * p).sum(), model, root)
        for q, p in ((tree.q_values, tree.log_probs), (q_values, log_probs))
    )
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=TOLERANCE)
    with torch.no_grad():
        again = best_first_search(model, root, merge=True, **options)
    for name in ("q", "q_values", "log_probs", *TABLES):
        torch.testing.assert_close(getattr(again, name), getattr(tree, name).detach(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rule", ["sample", "greedy", "epsilon_greedy"])
@pytest.mark.parametrize("case", range(20))
def test_one_row_on_numbers_is_the_same_graph_as_on_tensors(case: int, rule: str) -> None:
    model, root, options, _ = masked_case(case, rows=3)
    together = best_first_search(model, root, rule=rule, merge=True, **options)
    for row in range(len(root)):
        here = slice(row, row + 1)
        own = {n: v[here] if isinstance(v, Tensor) else v for n, v in options.items()}
        with torch.no_grad():
            alone = best_first_search(model, root[here], rule=rule, merge=True, **own)
        for name in ("q", "q_values", *TABLES):
            ours, theirs = getattr(alone, name), getattr(together, name)[here].detach()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)
        assert torch.equal(alone.merging.canonical, together.merging.canonical[here])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    actions=st.integers(1, 4),
    iterations=st.integers(1, 12),
    ends=st.sampled_from(ENDS),
)
def test_properties(seed: int, actions: int, iterations: int, ends: str) -> None:
    rng = torch.Generator().manual_seed(seed)
    model = MaskedModel(random_model(actions, (3,), seed=seed, scale=2.0), seed, 0.2, ends)
    root = model.roots(3, (3,), rng)
    tree = best_first_search(model, root, iterations=iterations, merge=True, generator=rng)
    canonical = tree.merging.canonical
    below = tree.root_action[:, :, None] == torch.arange(actions)
    counted = tree.leaf_value[:, :, None].where(below, -torch.inf).amax(1)
    torch.testing.assert_close(counted, tree.q, rtol=0, atol=TOLERANCE)
    assert torch.equal(tree.root_action.gather(1, tree.best_leaf[:, None])[:, 0], counted.argmax(1))
    for row in range(len(root)):
        slots = [slot for slot in tree.selected[row].tolist() if slot >= 0]
        assert canonical[row, slots].tolist() == slots  # no alias is expanded
        assert canonical[row, canonical[row]].tolist() == canonical[row].tolist()
        assert len(slots) <= 7  # no place is expanded twice, and there are seven
    # Where no two nodes are the same place, the graph is the tree.
    model.key = lambda latent: torch.arange(len(latent)) + int(1e9 * float(latent.detach().abs().sum()))
    uniforms = torch.rand(len(root), iterations, generator=rng)
    graph, plain = (
        best_first_search(model, root, iterations=iterations, uniforms=uniforms, merge=merge)
        for merge in (True, False)
    )
    assert not bool(graph.merging.alias.any())
    assert torch.equal(graph.selected, plain.selected)
    torch.testing.assert_close(graph.q_values, plain.q_values, rtol=0, atol=TOLERANCE)


class Diamond:
    """Two ways to one place: 0 → 1 → 3 and 0 → 2 → 3, the second dearer at first; 3 leads to 4."""

    NEXT = torch.tensor([[1, 2], [3, 3], [3, 3], [4, 4], [4, 4]])
    REWARD = torch.tensor([[-1.0, -2.0], [-5.0, -5.0], [-1.0, -1.0], [10.0, 10.0], [0.0, 0.0]])

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        place = latent[:, 0].long()
        return self.NEXT[place][:, :, None].float(), self.REWARD[place]

    def value(self, latent: Tensor) -> Tensor:
        return torch.zeros(len(latent))

    def key(self, latent: Tensor) -> Tensor:
        return latent[:, 0].long()


@pytest.mark.parametrize("rows", [1, 2])
def test_a_cheaper_way_to_a_known_place_counts(rows: int) -> None:
    # 0, then 1 (makes 3 at −6), then 2 (makes aliases of 3 at −3), then 3 (makes 4).
    slots = torch.tensor([[0, 1, 2, 3]]).expand(rows, -1)
    tree = best_first_search(Diamond(), torch.zeros(rows, 1), iterations=4, rule=Replay(slots), merge=True)
    assert tree.q_values[0].tolist() == [[-1, -2], [-6, -2], [-6, -3], [4, 7]]
    assert tree.merging.alias[0].nonzero().flatten().tolist() == [4, 5, 6, 8]


def test_a_model_without_keys_or_with_bad_ones_is_refused() -> None:
    class Bad(Diamond):
        def key(self, latent: Tensor) -> Tensor:
            return latent[:, 0]

    root = torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"merge needs a model with key\(latent\)"):
        best_first_search(random_model(2, (1,)).float(), root, iterations=3, merge=True)
    for rows in (1, 2):
        with torch.no_grad(), pytest.raises(ValueError, match="key must return int64"):
            best_first_search(Bad(), root[:rows], iterations=3, merge=True)
    with pytest.raises(ValueError, match="merge needs a discount above 0"):
        best_first_search(Diamond(), root, iterations=3, merge=True, discount=0)


class Hall:
    """Navigation as it is: latents are cells (row, column) and the number of the level; V = −Manhattan."""

    def __init__(self, walls: np.ndarray, goal: np.ndarray, moves: np.ndarray):
        self.walls = torch.tensor(np.pad(walls, ((0, 0), (1, 1), (1, 1)), constant_values=True))
        self.goal, self.moves = torch.tensor(goal), torch.tensor(moves)

    def expand(self, latent: Tensor) -> Expansion:
        level, cell = latent[:, 2].long(), latent[:, :2].long()
        cells = cell[:, None] + self.moves  # [B, A, 2]
        free = ~self.walls[level[:, None], cells[..., 0] + 1, cells[..., 1] + 1]
        children = torch.cat([cells, level[:, None, None].expand(-1, len(self.moves), 1)], 2).float()
        at_goal = (cells == self.goal[level][:, None]).all(2)
        return Expansion(children, -torch.ones(free.shape), free, at_goal)

    def value(self, latent: Tensor) -> Tensor:
        return -(latent[:, :2] - self.goal[latent[:, 2].long()]).abs().sum(1)

    def key(self, latent: Tensor) -> Tensor:
        return (latent[:, 0] * 64 + latent[:, 1]).long()


@pytest.mark.parametrize(("merge", "low", "high"), [(False, 0.0, 0.7), (True, 0.9, 1.0)])
def test_ten_expansions_leave_a_hall_with_one_exit_only_if_places_are_merged(
    merge: bool, low: float, high: float
) -> None:
    options = NavigationOptions(exits=1, exit_layout="opposite", hall=(8, 11))
    levels = make_levels(SPLITS["validation"][0] + np.arange(60), options)
    model, robot = Hall(levels.walls, levels.goal, MOVES), torch.tensor(levels.robot)
    number = torch.arange(len(robot))[:, None]
    solved = torch.zeros(len(robot), dtype=torch.bool)
    for _ in range(100):
        playing = ~solved
        if not bool(playing.any()):
            break
        root = torch.cat([robot, number], 1)[playing].float()
        with torch.no_grad():
            tree = best_first_search(model, root, iterations=10, rule="greedy", merge=merge)
        robot[playing] += torch.tensor(MOVES)[tree.q.argmax(1)]
        solved = (robot == model.goal).all(1)
    share = float(solved.float().mean())
    print(f"merge={merge}: {share:.2f}")
    assert low <= share <= high
