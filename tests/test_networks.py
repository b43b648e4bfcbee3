"""Encoders, transitions and heads: shapes, what they are sensitive to, and what they refuse."""

from __future__ import annotations

import math
import re

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from dtsn.config import NetworkConfig
from dtsn.models.build import make_encoder, make_world_model
from dtsn.models.encoders import (
    GridEncoder,
    ImpalaEncoder,
    MapEncoder,
    NatureEncoder,
    NormalisedEncoder,
    StridedEncoder,
    VectorEncoder,
    _read,
    coordinates,
)
from dtsn.models.heads import ActionMLP, MapHead, MapTransition

ACTIONS, LATENT = 3, 6
VECTOR = Box(-1, 1, (5,))
GRID = Box(0, 1, (3, 5, 6), np.uint8)  # not square: height and width must not be mixed up
FRAMES = Box(0, 255, (3, 36, 40), np.uint8)

SMALL = {"latent": LATENT, "hidden": 8}
# name -> space, configuration, class of the encoder, shape of a latent
NETWORKS = {
    "mlp": (VECTOR, NetworkConfig(**SMALL), VectorEncoder, (LATENT,)),
    "grid": (GRID, NetworkConfig(**SMALL), GridEncoder, (LATENT,)),
    "grid-maxima": (GRID, NetworkConfig(**SMALL, readout=False), GridEncoder, (LATENT,)),
    "map": (GRID, NetworkConfig(**SMALL, spatial=True), MapEncoder, (LATENT, 5, 6)),
    "impala": (FRAMES, NetworkConfig(**SMALL), ImpalaEncoder, (LATENT,)),
    "impala_fast": (FRAMES, NetworkConfig(encoder="impala_fast", **SMALL), ImpalaEncoder, (LATENT,)),
    "impala_small": (FRAMES, NetworkConfig(encoder="impala_small", **SMALL), ImpalaEncoder, (LATENT,)),
    "nature": (FRAMES, NetworkConfig(**SMALL, encoder="nature"), NatureEncoder, (LATENT,)),
    "strided": (FRAMES, NetworkConfig(**SMALL, encoder="strided"), StridedEncoder, (LATENT,)),
    "normalised": (
        FRAMES,
        NetworkConfig(**SMALL, encoder="strided", normalised=True),
        NormalisedEncoder,
        (LATENT,),
    ),
}
each_network = pytest.mark.parametrize("name", NETWORKS)


def observations(space: Box, batch: int = 7) -> Tensor:
    """Whole numbers, so that uint8 and floats hold the same."""
    low, high = (-1, 1) if space is VECTOR else (0, int(space.high.max()))
    return torch.randint(low, high + 1, (batch, *space.shape), generator=torch.Generator().manual_seed(0))


def closest(rows: Tensor) -> float:
    """The smallest distance between two rows, without the rounding errors of a matrix product."""
    return float(torch.pdist(rows.detach()).min())


def world_model(name: str, seed: int = 0, **changes: object):
    space, config, _, _ = NETWORKS[name]
    torch.manual_seed(seed)
    return make_world_model(space, ACTIONS, NetworkConfig(**(vars(config) | changes)))


@each_network
def test_shapes(name: str) -> None:
    space, _, kind, latent = NETWORKS[name]
    model = world_model(name)
    assert isinstance(model.encoder, kind)  # `auto` read the space
    u = model.encode(observations(space).float())
    assert u.shape == (7, *latent)
    children, rewards = model.expand(u)
    assert children.shape == (7, ACTIONS, *latent)
    assert rewards.shape == (7, ACTIONS)
    assert model.value(u).shape == (7,)


@each_network
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float64, torch.float16])
def test_any_dtype_of_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    model = world_model(name)
    numbers = observations(NETWORKS[name][0]).clamp(0, 1)
    torch.testing.assert_close(model.encode(numbers.to(dtype)), model.encode(numbers.float()))


@each_network
def test_a_row_alone_equals_the_row_in_its_batch(name: str) -> None:
    model, obs = world_model(name).double(), observations(NETWORKS[name][0]).double()

    def outputs(batch: Tensor) -> tuple[Tensor, ...]:
        u = model.encode(batch)
        return (u, *model.expand(u), model.value(u))

    together = outputs(obs)
    for row in range(len(obs)):
        for alone, whole in zip(outputs(obs[row : row + 1]), together, strict=True):
            torch.testing.assert_close(alone[0], whole[row], rtol=0, atol=1e-12)


@each_network
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = world_model(name, hidden=32)
    u = model.encode(observations(NETWORKS[name][0], 16).float())
    children, rewards = model.expand(u)
    (children.square().sum() + rewards.square().sum() + model.value(u).square().sum()).backward()
    dead = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead


@pytest.mark.parametrize("name", ["grid", "grid-maxima", "map"])
def test_every_plane_and_every_cell_matters(name: str) -> None:
    model = world_model(name, hidden=32)
    empty = torch.zeros(1, *GRID.shape)
    marks = torch.eye(empty.numel()).view(-1, *GRID.shape)  # one mark in one cell of one plane
    u = model.encode(torch.cat([empty, marks])).flatten(1)
    assert closest(u) > 1e-5  # no two observations look alike: what and where are both seen


def test_a_single_mark_points_at_its_features() -> None:
    planes = torch.zeros(1, 3, 2, 3)
    planes[0, 0, 1, 2] = 1  # one mark
    planes[0, 1, 0, 1] = planes[0, 1, 1, 0] = 1  # two marks point nowhere, as does the empty third plane
    features = torch.arange(1.0, 13).view(1, 2, 2, 3)  # cell (1, 2) holds 6 and 12
    assert _read(planes, features).view(2, 3).tolist() == [[6, 0, 0], [12, 0, 0]]


@each_network
def test_low_precision_is_of_the_encoder_only(name: str) -> None:
    exact, low = world_model(name), world_model(name, precision="bfloat16")
    obs = observations(NETWORKS[name][0])
    u, rough = exact.encode(obs.float()), low.encode(obs.float())
    assert rough.dtype == torch.float32
    assert not torch.equal(u, rough)
    torch.testing.assert_close(rough, u, rtol=0.05, atol=0.05 * float(u.detach().abs().max()))
    assert torch.equal(low.value(u), exact.value(u))  # the search reads float32, by float32 modules


@pytest.mark.parametrize("encoder", ["nature", "strided", "impala_small", "impala_fast", "impala"])
def test_a_normalised_encoder_tells_frames_apart_before_it_is_trained(encoder: str) -> None:
    frames = torch.full((9, *FRAMES.shape), 200)  # alike but for a mark, as the frames of a game are
    for frame in range(9):
        row, column = divmod(frame, 3)
        frames[frame, :, 4 + 10 * row : 8 + 10 * row, 4 + 12 * column : 8 + 12 * column] = 20

    def spread(normalised: bool) -> float:
        torch.manual_seed(0)
        network = NetworkConfig(encoder=encoder, latent=64, normalised=normalised)
        latents = torch.tanh(make_encoder(FRAMES, network)(frames)).detach()
        return float(latents.std(0).mean())

    assert spread(normalised=True) > 5 * spread(normalised=False)


def test_the_latents_of_a_normalised_encoder_have_mean_0_and_deviation_1() -> None:
    u = world_model("normalised", latent=64).encoder(observations(FRAMES))
    torch.testing.assert_close(u.mean(1), torch.zeros(7), rtol=0, atol=1e-5)
    torch.testing.assert_close(u.std(1, correction=0), torch.ones(7), rtol=0, atol=1e-3)


def test_a_normalised_encoder_centres_signed_frames_too() -> None:
    signed = Box(-1, 1, FRAMES.shape, np.float32)
    frames = observations(FRAMES).float()
    encoders = [make_encoder(space, NETWORKS["normalised"][1]) for space in (FRAMES, signed)]
    encoders[1].load_state_dict(encoders[0].state_dict())
    u = [encoder(shown) for encoder, shown in zip(encoders, (frames, frames / 127.5 - 1), strict=True)]
    torch.testing.assert_close(u[1], u[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "grid", "map"])
def test_only_encoders_of_frames_can_be_normalised(name: str) -> None:
    with pytest.raises(ValueError, match="normalised=True needs an encoder of frames"):
        world_model(name, normalised=True)


def test_map_head_sees_where() -> None:
    torch.manual_seed(0)
    head = MapHead(2, (4, 6), 32, ACTIONS)
    marks = torch.eye(2 * 4 * 6).view(-1, 2, 4, 6)
    out = head(5 * marks)
    assert closest(out) > 1e-5


def test_coordinates() -> None:
    rows, columns = [[-1, -1, -1], [1, 1, 1]], [[-1, 0, 1], [-1, 0, 1]]
    assert coordinates(2, 3).tolist() == [rows, columns]


@pytest.mark.parametrize("name", ["mlp", "map"])
def test_value_scale_scales_values_only(name: str) -> None:
    plain, scaled = (world_model(name, value_scale=scale) for scale in (1.0, 20.0))
    u = plain.encode(observations(NETWORKS[name][0]).float())
    torch.testing.assert_close(scaled.value(u), 20 * plain.value(u))
    assert torch.equal(scaled.expand(u)[1], plain.expand(u)[1])


# --- all actions at once -----------------------------------------------------------------------------


def test_action_mlp_is_the_plain_net_of_state_and_one_hot_action() -> None:
    torch.manual_seed(0)
    mlp = ActionMLP(LATENT, 8, ACTIONS, LATENT).double()
    torch.manual_seed(0)
    first, last = nn.Linear(LATENT + ACTIONS, 8).double(), nn.Linear(8, LATENT).double()
    by_action = (mlp.action_bias - first.bias).detach().T  # the plain net has a bias of its own
    concatenated = torch.cat([mlp.weight.detach(), by_action], 1)
    torch.testing.assert_close(first.weight.detach(), concatenated, rtol=0, atol=1e-6)  # the same start
    first.weight.data = concatenated  # and now free of float32 rounding
    state = torch.randn(5, LATENT, dtype=torch.float64)
    h, plain_h = state.clone().requires_grad_(), state.clone().requires_grad_()
    one_hot = torch.eye(ACTIONS, dtype=torch.float64).expand(5, -1, -1)
    joint = torch.cat([plain_h[:, None].expand(-1, ACTIONS, -1), one_hot], 2)  # [B, A, D + A]
    expected = last(torch.relu(first(joint)))
    got = mlp(h)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
    # A random linear function of the output, so that no entry's gradient can hide behind another's.
    weight = torch.randn_like(got)
    (got * weight).sum().backward()
    (expected * weight).sum().backward()
    for ours, theirs in [
        (h.grad, plain_h.grad),
        (mlp.weight.grad, first.weight.grad[:, :LATENT]),
        (mlp.action_bias.grad, first.weight.grad[:, LATENT:].T),
        (mlp.action_bias.grad.sum(0), first.bias.grad),
        (mlp.last.weight.grad, last.weight.grad),
        (mlp.last.bias.grad, last.bias.grad),
    ]:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


def test_map_transition_is_one_convolution_net_per_action() -> None:
    torch.manual_seed(0)
    net = MapTransition(2, ACTIONS, 8).double()
    state = torch.randn(5, 2, 4, 6, dtype=torch.float64)
    for action in range(ACTIONS):
        mixed = torch.relu(net.shared(state) + net.action_bias[action].view(1, -1, 1, 1))
        torch.testing.assert_close(net(state)[:, action], net.last(mixed), rtol=0, atol=1e-13)


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (gymnasium.spaces.Text(7), "Text("),
        (gymnasium.spaces.Dict(words=gymnasium.spaces.Sequence(VECTOR)), "Sequence("),
        (Box(-1, 1, ()), "()"),
        (Box(-1, 1, (5, 5)), "(5, 5)"),
        (Box(0, 1, (2, 3, 5, 5)), "(2, 3, 5, 5)"),
        (Box(0, 255, (64, 3, 60), np.uint8), "(64, 3, 60) may be [C, H, W] or [H, W, C]"),
        (Box(0, 255, (5, 5, 5), np.uint8), "(5, 5, 5) may be [C, H, W] or [H, W, C]"),
        (Box(-np.inf, np.inf, (3, 8, 8)), "float32 in [-inf, inf] may be maps or frames"),
        (Box(0, 10, (3, 8, 8), np.uint8), "uint8 in [0, 10] may be maps or frames"),
        (Box(-1, 1, (0,)), "(0,)"),
        (Box(0, 1, (3, 0, 5), np.uint8), "(3, 0, 5)"),
    ],
)
def test_bad_observation_spaces(space: gymnasium.Space, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        make_world_model(space, ACTIONS, NetworkConfig(**SMALL))


@pytest.mark.parametrize(
    ("space", "config", "named"),
    [
        (FRAMES, {"encoder": "mlp"}, "'mlp'.*(3, 36, 40)"),
        (VECTOR, {"encoder": "grid"}, "'grid'.*(5,)"),
        (VECTOR, {"encoder": "impala"}, "'impala'.*(5,)"),
        (Box(0, 255, (3, 35, 64), np.uint8), {"encoder": "nature"}, "(3, 35, 64).*too small"),
        (VECTOR, {"spatial": True}, "spatial.*'mlp'"),
        (FRAMES, {"spatial": True}, "spatial.*'impala'"),
        (GRID, {"spatial": True, "encoder": "nature"}, "spatial.*'nature'"),
        (FRAMES, {"encoder": "resnet"}, "encoder must be one of.*'resnet'"),
        (GRID, {"encoder": ""}, "encoder must be one of.*''"),
        (VECTOR, {"encoder": "resnet"}, "encoder must be one of.*'resnet'"),
        (GRID, {"hidden": 7}, "hidden.*7"),  # an eighth of 7: a convolution without channels
    ],
)
def test_encoders_that_do_not_fit(space: Box, config: dict[str, object], named: str) -> None:
    pattern = re.escape(named).replace(re.escape(".*"), ".*")
    with pytest.raises(ValueError, match=pattern):
        make_encoder(space, NetworkConfig(**config))


def test_many_planes_of_a_small_map_are_no_image() -> None:
    encoder = make_encoder(Box(0, 1, (6, 4, 4), np.uint8), NetworkConfig(**SMALL))
    assert encoder(torch.zeros(2, 6, 4, 4)).shape == (2, LATENT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("latent", "hidden") for value in (0, -3)],
        *[("value_scale", value) for value in (0.0, -1.0, math.inf, math.nan)],
    ],
)
def test_bad_configurations(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        NetworkConfig(**{name: value})
