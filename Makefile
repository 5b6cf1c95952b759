# Needs python3 (3.10 or newer), a C++17 compiler and make. Everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input --quiet -c constraints.txt
STAMP := $(VENV)/.set-up
# Seconds for one test; a longer one carries its own mark. As many tests at a time as there are processors.
PYTEST_FLAGS := --timeout=300 --numprocesses=auto --dist=worksteal

# What calls for a new installation. Python files are used where they lie, but the installation remembers which folders
# are packages.
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*) \
    $(shell find src -name __init__.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo lint format test test-all sanitise clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything, the compiled part included

# The build tools go into .venv first and the build runs there, not in an isolated environment of its own:
# constraints do not reach into those, and a kept build folder recompiles only what changed.
$(STAMP): $(BUILD_INPUTS) | $(BIN)/python
	$(PIP_INSTALL) cmake nanobind ninja scikit-build-core
	$(PIP_INSTALL) --no-build-isolation -e '.[train,publish,dev]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

demo: setup ## train a small network at 2, 3 and 4 bits on the embedded digits
	$(BIN)/bitstrata demo

lint: setup ## ruff and mypy
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

format: setup ## sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

test: lint ## lint, then every test but the long ones
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'not long'

test-all: lint ## everything; writes the result to docs/test-all.md
	$(BIN)/python tools/test_all.py $(PYTEST_FLAGS)

sanitise: setup ## all kernels under sanitisers in guarded memory, and for ARM where a cross compiler is installed
	$(BIN)/python -m pytest tests/native

clean: ## remove what was built, and the caches of tools; .venv stays and is brought up to date by the next target
	rm -rf $(STAMP) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
