"""Cheapest paths against Dijkstra's algorithm, values and gradients, and what the encoder makes of them."""

import heapq

import numpy as np
import pytest
import torch

from dtsn.envs.navigation import NavigationOptions, make_levels, observe
from dtsn.models.path_encoder import UNREACHED, CheapestPaths, PathEncoder


def dijkstra(source, cost):
    """V [H, W] and, per cell, the list of cells that its path enters, the last being where it ends."""
    height, width = source.shape
    value = np.full(source.shape, -np.inf)
    path = {}
    queue = [(-source[cell], cell, []) for cell in np.ndindex(source.shape)]
    heapq.heapify(queue)
    while queue:
        negative, cell, entered = heapq.heappop(queue)
        if cell in path:
            continue
        value[cell], path[cell] = -negative, entered
        row, column = cell
        for neighbour in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= neighbour[0] < height and 0 <= neighbour[1] < width and neighbour not in path:
                heapq.heappush(queue, (negative + cost[cell], neighbour, [cell, *entered]))
    return value, path


@pytest.mark.parametrize("seed", range(20))
def test_values_and_gradients_are_those_of_dijkstra(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, 2))
    source, cost = rng.normal(size=shape) * 4, rng.exponential(size=shape) + 1e-3
    weight = rng.normal(size=shape)
    sources, costs = (torch.from_numpy(a)[None, None].requires_grad_() for a in (source, cost))
    value = CheapestPaths.apply(sources, costs)
    expected, path = dijkstra(source, cost)
    np.testing.assert_allclose(value[0, 0].detach().numpy(), expected, rtol=0, atol=1e-12)
    (value[0, 0] * torch.from_numpy(weight)).sum().backward()
    to_source, to_cost = np.zeros(shape), np.zeros(shape)
    for cell, entered in path.items():
        to_source[entered[-1] if entered else cell] += weight[cell]
        for step in entered:
            to_cost[step] -= weight[cell]
    np.testing.assert_allclose(sources.grad[0, 0], to_source, atol=1e-12)
    np.testing.assert_allclose(costs.grad[0, 0], to_cost, atol=1e-12)


def test_gradcheck():
    torch.manual_seed(0)
    source = (3 * torch.randn(2, 2, 5, 4, dtype=torch.double)).requires_grad_()
    cost = (torch.rand(2, 2, 5, 4, dtype=torch.double) + 0.01).requires_grad_()
    assert torch.autograd.gradcheck(CheapestPaths.apply, (source, cost))


def test_the_longest_way_is_found():
    """A serpentine: the path visits most of the cells, far more than height plus width."""
    walls = torch.zeros(9, 9)
    walls[1::4, :-1] = walls[3::4, 1:] = 1
    source = torch.full((9, 9), -1000.0)
    source[0, 0] = 0
    value = CheapestPaths.apply(source, 1 + 500 * walls)
    assert value[8, 8] == -(8 + 4 * 8 + 8)


def test_gradients_that_are_not_finite_do_not_hang():
    source = torch.zeros(1, 1, 3, 3, requires_grad=True)
    value = CheapestPaths.apply(source, torch.ones(1, 1, 3, 3))
    value.backward(torch.full_like(value, torch.nan))
    assert source.grad.isnan().all()
    assert CheapestPaths.apply(torch.full((1, 1, 3, 3), torch.nan), torch.ones(1, 1, 3, 3)).isnan().all()


def encoder(seed=0):
    torch.manual_seed(seed)
    return PathEncoder((3, 20, 20), 32, 16)


def levels(count, exits=2):
    start = make_levels(np.arange(count), NavigationOptions(exits=exits))
    return torch.from_numpy(observe(start.walls, start.goal, start.robot))


def test_a_row_does_not_depend_on_its_batch():
    planes, net = levels(16), encoder()
    together = net(planes)
    alone = torch.cat([net(row[None]) for row in planes])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_planes_without_a_mark_or_with_several_give_finite_codes_and_gradients():
    net = encoder()
    planes = torch.zeros(3, 3, 20, 20)
    planes[1, 1, 3, 3] = planes[2, 1, 3, 3] = planes[2, 1, 4, 4] = 1
    codes = net(planes)
    codes.sum().backward()
    assert codes.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    torch.testing.assert_close(codes[0], net.last(torch.zeros(1, net.last.in_features))[0])


def test_costs_stay_in_their_bounds_whatever_the_weights():
    net = encoder()
    for scale in (1e6, -1e6):
        with torch.no_grad():
            net.log_cost.bias.fill_(scale)
        codes = net(levels(4))
        codes.square().sum().backward()
        assert codes.isfinite().all()
        assert all(p.grad.isfinite().all() for p in net.parameters())


def test_a_wall_across_the_map_changes_the_code_only_if_the_path_must_avoid_it():
    """Where walls are that no path would cross makes no difference: that is what lets it generalise."""
    net = encoder()
    with torch.no_grad():
        net.log_cost.weight.zero_()
        net.log_cost.weight[:, -3] = 5  # the plane of walls
        net.log_cost.bias.zero_()
    planes = torch.zeros(1, 3, 20, 20)
    planes[0, 1, 2, 2] = planes[0, 2, 2, 12] = 1  # goal and robot in one row
    far, elsewhere, between = planes.clone(), planes.clone(), planes.clone()
    far[0, 0, 15, :4] = 1
    elsewhere[0, 0, 17, 9:13] = 1
    between[0, 0, 0:4, 7] = 1
    torch.testing.assert_close(net(far), net(elsewhere))
    assert (net(between) - net(far)).abs().max() > 0.01


def test_the_hall_is_left_by_its_exit():
    """Path values of real levels are the optimal numbers of steps once walls are dear."""
    from dtsn.experts.value_iteration import optimal_steps

    start = make_levels(np.arange(64), NavigationOptions(exits=1))
    walls, goal = torch.from_numpy(start.walls).float(), torch.from_numpy(start.goal)
    source = torch.full((64, 20, 20), 10 * UNREACHED)
    source[torch.arange(64), goal[:, 0], goal[:, 1]] = 0
    value = CheapestPaths.apply(source, 1 + 1000 * walls)
    robot = torch.from_numpy(start.robot)
    steps = -value[torch.arange(64), robot[:, 0], robot[:, 1]]
    np.testing.assert_array_equal(steps.numpy(), optimal_steps(start))


def test_gradients_in_float64_are_those_in_float32():
    torch.manual_seed(0)
    encoder = PathEncoder((3, 20, 20), 16, 8)
    levels = make_levels(range(6), NavigationOptions())
    maps = torch.from_numpy(observe(levels.walls, levels.goal, levels.robot))
    weight = torch.randn(6, 8)
    (encoder(maps) * weight).sum().backward()
    single = [p.grad.clone() for p in encoder.parameters()]
    encoder.zero_grad()
    encoder.double()
    (encoder(maps) * weight).sum().backward()
    for ours, expected in zip(encoder.parameters(), single, strict=True):
        torch.testing.assert_close(ours.grad, expected.double(), rtol=1e-3, atol=1e-3)
