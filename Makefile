# `make demo` and `make test` work on a fresh machine with Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo test lint types check docs wheel test-slow test-lowest torture soak report bench clean

demo: .venv/core
	$(BIN)/dtsn demo

# Types beside the tests, which often wait for a process or a browser.
test: lint
	$(MAKE) --jobs=2 types check

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

check: .venv/dev
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: .venv/dev
	$(BIN)/pytest -m slow

# The site, in site/; `.venv/bin/mkdocs serve` shows it while you write.
docs: .venv/dev
	$(BIN)/mkdocs build --strict --quiet

wheel: .venv/dev
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# What docs/reliability.md reports; `.venv/bin/python -m tests.faults NAME ...` runs some of it.
torture: .venv/dev
	$(BIN)/python -m tests.faults

soak: .venv/dev
	$(BIN)/python -m tests.faults soak

# The pages and figures of this repository, from its own rows.
report: .venv/core
	$(BIN)/dtsn report --results results --out docs/results.md
	$(BIN)/python tools/readme_table.py

bench: .venv/core
	$(BIN)/dtsn bench --out results/bench.json --page docs/performance.md

# The tests with the lower ends of the dependency ranges. KEEP=torch leaves torch to its range: its lower end
# is a download of gigabytes where pip finds no build for the CPU alone.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --editable . $$($(PYTHON) tools/lowest.py $(KEEP))
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
	rm -rf .venv .venv-lowest .pytest_cache .mypy_cache .ruff_cache site dist
