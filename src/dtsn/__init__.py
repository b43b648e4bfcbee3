"""Differentiable Tree Search Network: a Q-network that plans."""

__version__ = "0.1.0"
