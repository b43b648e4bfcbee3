"""Procgen: the 16 games."""
