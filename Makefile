# Each target needs nothing before it: `make serve` and `make test` set up what they use.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
PORT ?= 8000
# More flags for `kernelflume serve`, such as ARGS="--attention-nodes 3".
ARGS ?=
# More arguments for pytest, such as PYTEST_ARGS="tests/unit -k merge".
PYTEST_ARGS ?=

SERVICES := $(wildcard services/*/kernelflume)
SOURCES := libs/kernelflume $(SERVICES) $(wildcard benchmarks) scripts tests

.PHONY: help setup serve test check fmt proto reproduction reproduction-sweeps clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The script leaves a stamp when it is done; a stamp older than what the setup was made from makes it run again.
$(VENV)/.setup-%: pyproject.toml requirements/constraints.txt scripts/setup.sh
	scripts/setup.sh $*

setup: $(VENV)/.setup-dev ## make .venv with everything that serving, tests and checks need

serve: $(VENV)/.setup-all ## serve MODEL (smollm2) on PORT (8000)
	exec $(BIN)/kernelflume serve $(MODEL) --port $(PORT) --log-dir logs $(ARGS)

test: check ## all checks and all tests that need no GPU
	$(BIN)/python -m pytest -m "not gpu and not multigpu" $(PYTEST_ARGS)

check: $(VENV)/.setup-dev ## style, types, import rules, generated code: what CI runs besides the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/generate_protos.py --check

fmt: $(VENV)/.setup-dev ## format, and fix what can be fixed by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.setup-dev ## generate the gRPC code anew
	$(BIN)/python scripts/generate_protos.py

reproduction: $(VENV)/.setup-dev ## simulate the paper's sections 6.2 to 6.5 anew, and write docs/reproduction.md
	$(BIN)/python -m benchmarks.reproduction

reproduction-sweeps: $(VENV)/.setup-dev ## simulate anew what missed claims depend on, and write docs/reproduction.md
	$(BIN)/python -m benchmarks.reproduction --part sweeps

clean: ## remove everything that was generated, the environment too
	rm -rf $(VENV) build dist logs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find libs services tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
