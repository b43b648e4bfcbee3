"""Evaluation: batched roll-outs, one row per episode."""
