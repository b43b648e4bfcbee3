# `make demo` and `make test` work on a fresh machine with Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow check clean

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
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
