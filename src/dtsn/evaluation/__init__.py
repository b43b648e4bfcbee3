"""Evaluation: batched roll-outs, plans against the real hall, and the rows they leave on disk."""
