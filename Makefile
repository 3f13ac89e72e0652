# One entry for every chore; each target makes the virtual environment first if it is not there yet.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# xdist workers for the tests: one a core
WORKERS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
# what else pip is told, say a version of torch: make test VENV=.venv-2.10 PIP_OPTIONS="torch==2.10.*"
PIP_OPTIONS ?=
# which places make mutants tries
SEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help demo test oldest newest lint format types docs workflows bench mutants

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@echo "Setting up $(VENV): torch, lightning and the development tools (some minutes, some GB)."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_OPTIONS) --editable ".[dev]"
	@touch $@

demo: $(READY) ## train Spectral-RNN, LSTM and RNN on the adding problem (under 4 minutes)
	$(BIN)/python examples/demo.py

test: $(READY) ## run all tests and the documented examples
	$(BIN)/python -m pytest -n $(WORKERS)

oldest: ## run all tests with the oldest versions that are supported, in .venv-oldest
	$(MAKE) test VENV=.venv-oldest PIP_OPTIONS="--constraint .ci/oldest.txt"

newest: ## run all tests with the newest versions there are, in .venv-newest
	$(MAKE) test VENV=.venv-newest PIP_OPTIONS="--upgrade --upgrade-strategy eager"

lint: $(READY) ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## check the types
	$(BIN)/mypy

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@

docs: $(VENV)/.docs ## build the site into docs/_build/html, notebooks and all (under 2 minutes)
	$(BIN)/python -m sphinx -W --keep-going -q -j auto docs docs/_build/html

workflows: $(READY) ## check the workflows of GitHub
	$(BIN)/python -m pip install --quiet zizmor check-jsonschema
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

bench: $(READY) ## time against plain layers
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks

mutants: $(READY) ## change the core at places drawn by SEED, and see whether a test notices (half an hour)
	$(BIN)/python -m pip install --quiet --editable ".[dev,mutants]"
	nice $(BIN)/python -m mutation --seed $(SEED)
