"""Observation spaces: which encoder reads them, how they are flattened, and what is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor, nn

from dtsn.config import NetworkConfig, SolverConfig
from dtsn.models.build import make_encoder
from dtsn.models.encoders import ChannelsFirst, GridEncoder, ImpalaEncoder, VectorEncoder
from dtsn.models.spaces import Flatten, has_channels_last
from dtsn.solvers.solver import Solver

SMALL = NetworkConfig(latent=6, hidden=16)
COMPOSITE = Dict(
    image=Box(0, 255, (2, 3, 1), np.uint8),
    inner=Tuple([Discrete(3, start=2), MultiBinary((2, 2))]),
    choices=MultiDiscrete([2, 4]),
    place=Box(-1, 1, (2,)),
    one=Box(-1, 1, ()),
)


def batch_of(space: gymnasium.Space, size: int, seed: int = 0):
    """``size`` samples, stacked: a structure of arrays ``[size, ...]``."""
    space.seed(seed)
    return stack([space.sample() for _ in range(size)])


def stack(samples: list):
    if isinstance(samples[0], dict):
        return {key: stack([sample[key] for sample in samples]) for key in samples[0]}
    if isinstance(samples[0], tuple):
        return tuple(stack(list(column)) for column in zip(*samples, strict=True))
    return np.stack(samples)


@pytest.mark.parametrize(
    ("space", "encoder"),
    [
        (Box(0, 1, (3, 8, 8), np.uint8), GridEncoder),
        (Box(0, 1, (3, 8, 8), bool), GridEncoder),
        (Box(0, 1, (3, 8, 8), np.int64), GridEncoder),
        (Box(0, 1, (3, 8, 8), np.float32), ImpalaEncoder),
        (Box(-1, 1, (3, 8, 8), np.float32), ImpalaEncoder),
        (Box(0, 255, (3, 8, 8), np.uint8), ImpalaEncoder),
        (Box(0, 255, (3, 8, 8), np.float32), ImpalaEncoder),
        (Box(-np.inf, np.inf, (8,), np.float32), VectorEncoder),
    ],
)
def test_encoder_by_dtype_and_bounds(space: Box, encoder: type[nn.Module]) -> None:
    assert isinstance(make_encoder(space, SMALL), encoder)


@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (Box(0, 255, (3, 8, 8), np.uint8), 255),
        (Box(0, 255, (3, 8, 8), np.float32), 255),
        (Box(0, 1, (3, 8, 8), np.float32), 1),
    ],
)
def test_frames_reach_the_convolutions_in_0_to_1(space: Box, scale: int) -> None:
    encoder, seen = make_encoder(space, SMALL), []
    encoder.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    frames = torch.full((2, 3, 8, 8), scale / 2)
    encoder(frames)
    encoder(frames.double())
    assert all(torch.allclose(frame, torch.tensor(0.5)) for frame in seen)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_last_equal_channels_first(dtype: type) -> None:
    torch.manual_seed(0)
    last = make_encoder(Box(0, 255, (10, 12, 3), dtype), SMALL)
    torch.manual_seed(0)
    first = make_encoder(Box(0, 255, (3, 10, 12), dtype), SMALL)
    assert isinstance(last, ChannelsFirst)
    frames = torch.randint(256, (4, 3, 10, 12)).to(torch.uint8)
    torch.testing.assert_close(last(frames.movedim(1, -1)), first(frames))


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((3, 20, 20), False),
        ((20, 20, 3), True),
        ((210, 160, 3), True),
        ((4, 84, 84), False),
        ((84, 84, 12), True),
        ((6, 4, 4), False),
        ((4, 4, 6), True),
        ((1, 5, 9), False),
    ],
)
def test_channels_by_shape(shape: tuple[int, ...], last: bool) -> None:
    assert has_channels_last(shape, "auto") is last
    assert has_channels_last(shape, "last")
    assert not has_channels_last(shape, "first")


@pytest.mark.parametrize("shape", [(5, 5, 5), (6, 4, 5), (3, 8, 3)])
def test_channels_that_cannot_be_told(shape: tuple[int, ...]) -> None:
    space = Box(0, 1, shape, np.uint8)
    with pytest.raises(ValueError, match="set channels to"):
        make_encoder(space, SMALL)
    encoder = make_encoder(space, NetworkConfig(latent=6, hidden=16, channels="first"))
    assert encoder(torch.zeros(2, *shape)).shape == (2, 6)


def test_map_latents_of_channels_last_planes() -> None:
    network = NetworkConfig(latent=4, hidden=8, spatial=True)
    solver = Solver.create("dtsn", Box(0, 1, (5, 6, 3), np.uint8), Discrete(2), network=network, seed=0)
    assert solver.world_model.latent_shape == (4, 5, 6)
    assert solver(np.zeros((2, 5, 6, 3), np.uint8)).shape == (2, 2)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(5),
        Discrete(4, start=-2),
        MultiBinary(3),
        MultiDiscrete([3, 2, 4], start=[0, 5, -1]),
        COMPOSITE,
        Tuple([Discrete(3), Box(-1, 1, (2, 2))]),
    ],
    ids=str,
)
def test_flattened_as_gymnasium_does(space: gymnasium.Space) -> None:
    space.seed(0)
    samples = [space.sample() for _ in range(6)]
    expected = np.stack([gymnasium.spaces.flatten(space, sample) for sample in samples]).astype(np.float32)
    image = slice(0, 0)
    if space is COMPOSITE:  # bytes are scaled, which Gymnasium does not do
        keys = list(space.spaces)
        before = sum(gymnasium.spaces.flatdim(space[key]) for key in keys[: keys.index("image")])
        image = slice(before, before + 6)
        expected[:, image] /= 255
    seen: list[Tensor] = []
    solver = Solver.create("dtsn", space, Discrete(2), network=SMALL, seed=0)
    solver.world_model.encoder[0].register_forward_hook(lambda *args: seen.append(args[2]))
    assert solver(stack(samples)).shape == (6, 2)
    np.testing.assert_allclose(seen[0].numpy(), expected, rtol=1e-6)
    assert Flatten(space).size == gymnasium.spaces.flatdim(space)
    assert solver(samples[0]).shape == (2,)  # as it comes from the environment
    torch.testing.assert_close(
        solver.eval()(samples[0], deterministic=True), solver(stack(samples), deterministic=True)[0]
    )


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        ({"image": 0}, "observation must be a dict of"),
        (np.zeros(3), "observation must be a dict of"),
        (batch_of(COMPOSITE, 2) | {"place": np.zeros((3, 2), np.float32)}, "equally many rows"),
        (batch_of(COMPOSITE, 2) | {"place": np.zeros((2, 3), np.float32)}, r"observation\['place'\].*shape"),
        (
            batch_of(COMPOSITE, 2) | {"choices": np.array([[0, 4], [0, 0]])},
            r"\['choices'\] must lie in.*got 4",
        ),
        (batch_of(COMPOSITE, 2) | {"choices": np.array([[0.0, 1], [0, 0]])}, "whole numbers"),
        (batch_of(COMPOSITE, 2) | {"one": np.array([0, np.nan], np.float32)}, r"\['one'\] 1 .*NaN"),
        (
            batch_of(COMPOSITE, 2) | {"inner": (np.array([2, 3]),)},
            r"observation\['inner'\] must be a tuple of 2",
        ),
    ],
)
def test_bad_structures(observation: object, said: str) -> None:
    solver = Solver.create("dtsn", COMPOSITE, Discrete(2), network=SMALL, seed=0)
    with pytest.raises(ValueError, match=said):
        solver(observation)


def test_vectors_of_bytes_are_divided_by_255() -> None:
    memory, unit = Box(0, 255, (16,), np.uint8), Box(0, 1, (16,))
    solvers = [Solver.create("qnet", space, Discrete(2), network=SMALL, seed=0) for space in (memory, unit)]
    numbers = np.random.default_rng(0).integers(256, size=(5, 16), dtype=np.uint8)
    torch.testing.assert_close(solvers[0](numbers), solvers[1](numbers / np.float32(255)))


def test_discrete_out_of_range() -> None:
    solver = Solver.create("qnet", Discrete(3, start=1), Discrete(2), network=SMALL)
    assert solver(np.array([1, 3])).shape == (2, 2)
    with pytest.raises(ValueError, match=r"must lie in Discrete.*got 0"):
        solver(np.array([1, 0]))


# --- your own encoder --------------------------------------------------------------------------------


class Own(nn.Module):
    """Reads a dict of an image and a vector."""

    def __init__(self, latent: int = 5):
        super().__init__()
        self.image, self.place = nn.LazyLinear(latent), nn.Linear(2, latent)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return self.image(observation["image"].flatten(1).float() / 255) + self.place(observation["place"])


PAIR = Dict(image=Box(0, 255, (4, 4, 3), np.uint8), place=Box(-1, 1, (2,)))


def test_own_encoder_of_a_dict() -> None:
    solver = Solver.create(SolverConfig(iterations=3), PAIR, Discrete(2), encoder=Own(), seed=0)
    assert solver.world_model.latent_shape == (5,)
    assert solver(batch_of(PAIR, 3)).shape == (3, 2)
    assert solver.target_encoder is not None
    solver.update_target()


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (nn.Linear(5, 8), r"cannot read a batch of two observations of Box.*\(2x4 and 5x8\)"),
        (nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), r"must return latents \[2, D\].*got \[2\]"),
        (nn.LSTM(4, 8, batch_first=True), "must return latents.*got tuple"),
    ],
)
def test_own_encoder_that_does_not_fit(encoder: nn.Module, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Solver.create("dtsn", Box(-1, 1, (4,)), Discrete(2), encoder=encoder)


def test_map_latents_of_an_own_encoder() -> None:
    conv = nn.Conv2d(3, 7, 3, padding=1)
    solver = Solver.create("dtsn", Box(0, 1, (3, 5, 6)), Discrete(2), encoder=conv, network=SMALL)
    assert solver(torch.zeros(2, 3, 5, 6)).shape == (2, 2)


def test_own_encoder_is_tried_without_touching_it() -> None:
    encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout())
    encoder[2].eval()
    Solver.create("dtsn", Box(-1, 1, (4,)), Discrete(2), encoder=encoder)
    assert encoder[1].training
    assert not encoder[2].training
    assert encoder[1].num_batches_tracked == 0


def test_assigning_an_encoder_is_refused_in_words() -> None:
    solver = Solver.create("dtsn", Box(-1, 1, (4,)), Discrete(2), network=SMALL)
    solver.world_model.encoder = nn.Linear(4, 9)
    with pytest.raises(ValueError, match=r"encoder module must return shape \[1, 6\], got \[1, 9\]"):
        solver(torch.zeros(1, 4))
    solver.world_model.encoder = nn.Linear(4, 6)
    assert solver(torch.zeros(1, 4)).shape == (1, 2)
    with pytest.raises(ValueError, match="make the solver with encoder="):
        solver.update_target()
