"""World models: encoder, transition, reward and value."""

from dtsn.models.build import make_world_model
from dtsn.models.world_model import WorldModel

__all__ = ["WorldModel", "make_world_model"]
