"""World models for spaces: an encoder that can read the observations, and modules that fit its latents."""

from __future__ import annotations

import math
from typing import Any, get_args

import gymnasium
import torch
from torch import Tensor, nn

from dtsn.config import EncoderName, NetworkConfig
from dtsn.errors import UserError
from dtsn.models.encoders import (
    ChannelsFirst,
    GridEncoder,
    ImpalaEncoder,
    LowPrecision,
    MapEncoder,
    NatureEncoder,
    NormalisedEncoder,
    StridedEncoder,
    VectorEncoder,
)
from dtsn.models.heads import ActionMLP, MapHead, MapTransition, RewardMLP, ValueMLP
from dtsn.models.maps import (
    CROP,
    MOVES,
    AdditiveValue,
    EgocentricEncoder,
    EnteredCellReward,
    GoalTermination,
    JointValue,
    MapWorldModel,
    MoveTransition,
)
from dtsn.models.path_encoder import PathEncoder
from dtsn.models.spaces import Flatten, content, divisor, has_channels_last, is_bytes, sample_batch
from dtsn.models.world_model import WorldModel


def make_world_model(
    observation_space: gymnasium.Space[Any],
    num_actions: int,
    config: NetworkConfig,
    encoder: nn.Module | None = None,
) -> WorldModel:
    """Make the world model for an observation space: encoder by ``config`` or yours, heads to fit it."""
    if config.encoder == "maps" and encoder is None:
        return _map_world_model(observation_space, num_actions, config)
    if config.termination:
        raise UserError(f"a termination head needs the maps encoder, got {config.encoder!r}")
    if encoder is None:
        encoder, latent = make_encoder(observation_space, config), _latent_shape(observation_space, config)
    else:
        latent = found_latent_shape(encoder, observation_space)
    hidden = config.hidden
    if len(latent) == 3:
        channels, size = latent[0], (latent[1], latent[2])
        return WorldModel(
            encoder,
            MapTransition(channels, num_actions, hidden),
            MapHead(channels, size, hidden, num_actions),
            MapHead(channels, size, hidden, scale=config.value_scale),
            num_actions,
            latent,
        )
    return WorldModel(
        encoder,
        ActionMLP(latent[0], hidden, num_actions, latent[0]),
        RewardMLP(latent[0], hidden, num_actions),
        ValueMLP(latent[0], hidden, config.value_scale),
        num_actions,
        latent,
    )


def _map_world_model(space: gymnasium.Space[Any], num_actions: int, config: NetworkConfig) -> MapWorldModel:
    """Return the world model of :mod:`dtsn.models.maps`."""
    shape = space.shape if isinstance(space, gymnasium.spaces.Box) else None
    if shape is None or len(shape) != 3 or shape[0] < 3 or has_channels_last(shape, config.channels):
        raise UserError(f"encoder 'maps' reads planes [walls, goal, robot, ...] × H × W, got {space}")
    if num_actions != len(MOVES):
        raise UserError(f"encoder 'maps' knows {len(MOVES)} moves (E, S, W, N), got {num_actions} actions")
    if config.spatial or config.normalised or config.precision != "float32":
        raise UserError("encoder 'maps' needs spatial, normalised=False and precision='float32', got others")
    value = AdditiveValue if config.value == "additive" else JointValue
    return MapWorldModel(
        EgocentricEncoder((shape[1], shape[2])),
        MoveTransition(num_actions),
        EnteredCellReward(),
        value(config.hidden, config.value_scale),
        num_actions,
        (CROP**2 + 2,),
        GoalTermination() if config.termination else None,
    )


def _latent_shape(space: gymnasium.Space[Any], config: NetworkConfig) -> tuple[int, ...]:
    """Return the latent's shape by the encoder's name: a map as large as the planes, or a vector."""
    if not config.spatial:
        return (config.latent,)
    rows = slice(0, 2) if has_channels_last(space.shape, config.channels) else slice(1, 3)
    return (config.latent, *space.shape[rows])


def found_latent_shape(encoder: nn.Module, space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """Return the shape of an encoder's latents, found by running it on two observations of the space."""
    if not isinstance(encoder, nn.Module):
        raise UserError(f"encoder must be a module, such as MyEncoder(), got {encoder!r}")
    observation = sample_batch(space, 2)
    training = {module: module.training for module in encoder.modules()}
    encoder.eval()  # running statistics must not see made-up observations
    try:
        with torch.no_grad():
            latent: Tensor = encoder(observation)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise UserError(f"encoder cannot read a batch of two observations of {space}: {error}") from error
    finally:
        for module, mode in training.items():
            module.training = mode
    shape = tuple(latent.shape) if isinstance(latent, Tensor) else ()
    if len(shape) not in (2, 4) or shape[0] != 2 or not math.prod(shape):
        got = list(shape) if isinstance(latent, Tensor) else type(latent).__name__
        raise UserError(f"encoder must return latents [2, D] or [2, C, H, W] for two observations, got {got}")
    return shape[1:]


def make_encoder(space: gymnasium.Space[Any], config: NetworkConfig) -> nn.Module:
    """Make the encoder ``config`` names; ``auto`` goes by the observation space."""
    if isinstance(space, gymnasium.spaces.Box):
        encoder = _box_encoder(space, config)
    elif config.encoder in ("auto", "mlp") and not config.spatial:
        flatten = Flatten(space)
        encoder = nn.Sequential(flatten, VectorEncoder(flatten.size, config.hidden, config.latent))
    else:
        raise UserError(
            f"encoder {config.encoder!r} reads planes [C, H, W], but observations of {space} are flattened: "
            "use 'mlp' or an encoder of your own"
        )
    return LowPrecision(encoder) if config.precision == "bfloat16" else encoder


def _box_encoder(space: gymnasium.spaces.Box, config: NetworkConfig) -> nn.Module:
    shape = space.shape
    if not math.prod(shape):
        raise UserError(f"observations of shape {shape} are empty")
    name = _encoder_name(space, config)
    if config.spatial and name != "grid":
        raise UserError(f"spatial latents need the grid encoder, got {name!r}")
    if config.normalised and name in ("mlp", "grid", "paths"):
        raise UserError(f"normalised=True needs an encoder of frames, got {name!r}")
    if name == "mlp":
        encoder = VectorEncoder(shape[0], config.hidden, config.latent)
        return nn.Sequential(Flatten(space), encoder) if is_bytes(space) else encoder  # divided by 255
    if has_channels_last(shape, config.channels):
        return ChannelsFirst(_plane_encoder(name, (shape[2], shape[0], shape[1]), space, config))
    return _plane_encoder(name, shape, space, config)


def _encoder_name(space: gymnasium.spaces.Box, config: NetworkConfig) -> EncoderName:
    """Return the encoder that ``auto`` stands for, or the named one if it can read the shape."""
    shape, name = space.shape, config.encoder
    if name not in get_args(EncoderName):
        raise UserError(f"encoder must be one of {', '.join(get_args(EncoderName))}, got {name!r}")
    if len(shape) not in (1, 3):
        raise UserError(
            f"observations must be vectors [D] or planes [C, H, W], got shape {shape}: "
            "reshape them or bring an encoder of your own"
        )
    if name == "auto" and len(shape) == 1:
        return "mlp"
    if name == "auto":
        held = content(space)
        if held == "unknown":
            raise UserError(
                f"observations {shape} of {space.dtype} in [{space.low.min():g}, {space.high.max():g}] "
                "may be maps or frames: name one of grid, paths, nature, strided, impala_small, impala_fast, "
                "impala, or bring an encoder of your own"
            )
        return "grid" if held == "planes" else "impala"
    if (name == "mlp") != (len(shape) == 1):
        kind = "vectors [D]" if name == "mlp" else "planes [C, H, W]"
        raise UserError(f"encoder {name!r} reads {kind}, but observations have shape {shape}")
    return name


def _plane_encoder(
    name: EncoderName, shape: tuple[int, ...], space: gymnasium.spaces.Box, config: NetworkConfig
) -> nn.Module:
    """Return an encoder of planes or frames ``[C, H, W]``."""
    match name:
        case "grid" if config.spatial:
            return MapEncoder(shape[0], config.hidden, config.latent)
        case "grid":
            return GridEncoder(shape, config.hidden, config.latent, config.readout)
        case "paths":
            return PathEncoder(shape, config.hidden, config.latent)
        case _ if config.normalised:
            encoder = _frame_encoder(name, shape, config.latent, divisor=1)
            return NormalisedEncoder(encoder, config.latent, divisor(space), signed=space.low.min() < 0)
        case _:
            return _frame_encoder(name, shape, config.latent, divisor(space))


def _frame_encoder(
    name: EncoderName, shape: tuple[int, ...], latent: int, divisor: float | None
) -> nn.Module:
    """Return an encoder of frames ``[C, H, W]``."""
    match name:
        case "nature":
            return NatureEncoder(shape, latent, divisor)
        case "strided":
            return StridedEncoder(shape, latent, divisor)
        case "impala_small":
            return ImpalaEncoder(
                shape, latent, (16, 32, 64), stride=2, blocks=1, pooled=True, divisor=divisor
            )
        case _:
            return ImpalaEncoder(shape, latent, stride=2 if name == "impala_fast" else 1, divisor=divisor)
