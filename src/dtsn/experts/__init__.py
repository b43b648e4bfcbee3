"""Behaviour policies that make the offline data."""
