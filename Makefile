# Every target works on a fresh clone: what it needs, it installs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PARTS ?=
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-deep check format generate lock simulate services bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(READY)  ## create .venv with Strata and its development tools

demo: $(READY)  ## a run that is killed and rescaled in front of your eyes, and proofs that it did not matter
	$(BIN)/strata demo

test: $(READY)  ## run all tests; those whose real part is missing say how to bring it
	$(BIN)/pytest

test-deep: $(READY)  ## run all tests with many more generated examples
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest --timeout=1800

check: $(READY)  ## formatting, lint, types, layers, generated files
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.generate --check

format: $(READY)  ## format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: $(READY)  ## write the generated files anew
	$(BIN)/python -m scripts.generate

lock: $(READY)  ## resolve and pin all requirements anew
	$(LOCK) --upgrade pyproject.toml --extra dev --extra s3 --output-file requirements/dev.txt
	$(LOCK) --upgrade requirements/services.in --constraints requirements/dev.txt --output-file requirements/services.txt
	$(LOCK) --upgrade requirements/bench.in --constraints requirements/dev.txt --constraints requirements/torch.txt \
		--overrides requirements/bench-overrides.txt --output-file requirements/bench.txt

simulate: $(READY)  ## run the coordinator in SEEDS simulated worlds; START is the first seed
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --start $(or $(START),0)

services: $(READY)  ## bring the real servers that tests use; PARTS="s3 etcd" for some of them
	$(BIN)/python -m scripts.parts install $(PARTS)

bench: $(READY)  ## run the benchmarks; run nothing else meanwhile
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/bench.txt
	$(BIN)/python -m pip install --quiet --no-deps --constraint requirements/torch.txt torchft
	$(BIN)/python -m scripts.parts install s3 torch
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.sharding
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.coordinator
	$(BIN)/python -m benchmarks.storage
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.data

clean:  ## remove .venv and everything else that was made here
	rm -rf $(VENV) requirements/azurite/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
