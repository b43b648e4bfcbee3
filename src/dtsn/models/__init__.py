"""World models: learned (encoder, transition, reward and value), or known (rules and a value)."""

from dtsn.models.build import make_world_model
from dtsn.models.known import KnownModel, StateMLP, TableRules
from dtsn.models.world_model import WorldModel

__all__ = ["KnownModel", "StateMLP", "TableRules", "WorldModel", "make_world_model"]
