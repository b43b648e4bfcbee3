"""Solvers in other libraries' training loops; each module needs the extra of its name."""
