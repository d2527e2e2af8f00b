# `make demo` shows the main job, `make test` checks the code, `make slow` whole stories and several processes; all set
# up .venv on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test unit slow lint docs bench clean
demo: .venv/ready
	$(BIN)/dmc demo -o demo

# Lint and tests at the same time: mypy keeps one core busy, and leaves the other to the tests.
test: .venv/ready
	$(MAKE) --no-print-directory --jobs 2 lint unit

# Two workers with one thread each: the suite is many small models, not one large one.
unit: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

slow: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m slow

lint: .venv/ready
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy

# Warnings are errors: a link or a reference that leads nowhere.
docs: .venv/ready
	$(BIN)/mkdocs build --strict

# Ratios measured in one run, on free cores; about forty minutes on two of them.
bench: .venv/ready
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/waiting_threads.py

# uv resolves and links in seconds where pip takes minutes; bytecode is compiled once, here, not at each start.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dmc needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --compile-bytecode --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv demo site .pytest_cache .mypy_cache .ruff_cache
