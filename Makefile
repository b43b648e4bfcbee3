# `make demo` and `make test` work on a fresh machine with Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-lowest torture soak check clean

demo: .venv/core
	$(BIN)/dtsn demo

test: check

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: .venv/dev
	$(BIN)/pytest -m slow

# What docs/reliability.md tells of; `.venv/bin/python -m tests.faults NAME ...` runs some of it.
torture: .venv/dev
	$(BIN)/python -m tests.faults

soak: .venv/dev
	$(BIN)/python -m tests.faults soak

# The tests with the lower ends of the dependency ranges. KEEP=torch leaves torch to its range: its lower end
# is a download of gigabytes where pip finds no build for the CPU alone.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --editable . $$($(PYTHON) tests/lowest.py $(KEEP))
	.venv-lowest/bin/python -m pytest -m "not slow"

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The installs are stamped: they run again only when the dependencies change.
.venv/core: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[plots]"
	touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ .venv/core

clean:
	rm -rf .venv .venv-lowest .pytest_cache .mypy_cache .ruff_cache
