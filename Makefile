# Every target works on a fresh clone: what it needs, it installs into .venv first.
# The first of these that is new enough; on many clusters python3 is 3.6, and newer ones have names of their own.
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
STRATA := $(VENV)/.strata
READY := $(VENV)/.ready
PARTS ?=
# Tests of make test compute more than they wait, and those of make test-full the other way round.
CORES ?= $(shell nproc 2>/dev/null || echo 2)
# MEASURE=1 records which lines of src/ the processes of pytest execute, in build/coverage; MEASURE=all also those of the
# programs that tests start, which takes twice as long.
PYTEST := $(BIN)/$(if $(MEASURE),coverage run -m pytest,pytest)
# Compiled modules are kept in .venv, also on a machine that forbids them beside the sources: without them, each process of
# a test compiles all of Strata and its libraries.
unexport PYTHONDONTWRITEBYTECODE
# Nothing outside of .venv is imported, such as what a cluster's modules put on this path, and Python behaves as by default.
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONWARNINGS PYTHONOPTIMIZE PYTHONDEVMODE PYTHONINSPECT
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-slow test-deep fuzz mutate coverage uncovered test-deploy test-ha check format generate lock simulate simulate-bugs services bench dashboard dashboard-check dist release-check docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Strata with what it needs to run, which is all that the demonstration takes. The version in the metadata of the
# installation is that of the package.
$(STRATA): pyproject.toml requirements/worker.txt requirements/build.txt src/strata/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Strata needs Python 3.11 or newer, \
	and %s is %s. Name another: make PYTHON=..." % (sys.executable, sys.version.split()[0]))'
	@$(PYTHON) scripts/environment.py $(VENV) requirements/worker.txt requirements/build.txt --editable .
	@touch $@

$(READY): $(STRATA) requirements/dev.txt
	@$(PYTHON) scripts/environment.py $(VENV) requirements/dev.txt
	@touch $@

setup: $(READY)  ## create .venv with Strata and its development tools

demo: $(STRATA)  ## a run that is killed and rescaled in front of your eyes, and proofs that it did not matter
	@$(BIN)/strata demo

test: $(READY)  ## run the tests that need nothing but this environment, in at most 5 minutes
	$(PYTEST) -n $$((1 + $(CORES))) --dist loadgroup -m "(quick or not full) and not slow"

test-full: $(READY)  ## run the other tests, on the real servers that make services installs, in about 15 minutes
	$(PYTEST) -n $$((2 * $(CORES))) --dist loadgroup -m "full and not quick and not slow"

test-slow: $(READY)  ## run the long proofs that make test and make test-full leave out
	$(BIN)/pytest -n $(CORES) --dist loadgroup -m slow --durations=15

test-deep: $(READY)  ## run all tests with many more generated examples
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest -n $(CORES) --dist loadgroup --timeout=1800

test-deploy: $(READY) src/strata/dashboard/static/index.html  ## run images and Compose files in containers: kills, partitions, upgrades; needs root and podman
	STRATA_TEST_DEPLOY=1 $(BIN)/pytest tests/deploy --durations=15

fuzz: $(READY)  ## send 10,000 mutated messages to each transport of a coordinator
	STRATA_FUZZ_MESSAGES=10000 $(BIN)/pytest -q --timeout=3600 tests/integration/security/test_fuzz.py tests/integration/security/test_http_fuzz.py

mutate: $(READY)  ## change the code in MUTANTS places per package and see whether tests notice; SEED says where, PACKAGES="wire" which
	@$(PYTHON) scripts/environment.py $(VENV) requirements/mutate.txt
	$(BIN)/python -m scripts.mutate --mutants $(or $(MUTANTS),40) --seed $(or $(SEED),1) $(PACKAGES)

coverage: $(READY)  ## run both lanes, and list the lines of src/ that no test executes, also as HTML; needs make services
	rm -rf build/coverage
	CI=true $(MAKE) MEASURE=all test
	CI=true $(MAKE) MEASURE=all test-full
	$(BIN)/python -m scripts.uncovered --html

uncovered: $(READY)  ## list the lines that no test executed with MEASURE=1; fails if coverage has dropped
	$(BIN)/python -m scripts.uncovered --tolerate 20

check: $(READY)  ## formatting, lint, types, layers, generated files
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.generate --check

format: $(READY)  ## format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: $(READY)  ## write the generated files anew
	$(BIN)/python -m scripts.generate

lock: $(READY)  ## resolve and pin all requirements anew
	$(LOCK) --upgrade pyproject.toml --extra dev --extra data --extra s3 --output-file requirements/dev.txt
	$(LOCK) --upgrade requirements/services.in --constraints requirements/dev.txt --output-file requirements/services.txt
	$(LOCK) --upgrade requirements/bench.in --constraints requirements/dev.txt --constraints requirements/torch.txt \
		--overrides requirements/bench-overrides.txt --output-file requirements/bench.txt
	$(LOCK) --upgrade requirements/build.in --constraints requirements/dev.txt --output-file requirements/build.txt
	$(LOCK) --upgrade requirements/mutate.in --constraints requirements/dev.txt --output-file requirements/mutate.txt
	$(LOCK) --upgrade pyproject.toml --constraints requirements/dev.txt --output-file requirements/coordinator.txt
	$(LOCK) --upgrade pyproject.toml --extra data --extra s3 --constraints requirements/dev.txt \
		--output-file requirements/worker.txt

simulate: $(READY)  ## run the coordinator in SEEDS simulated worlds; START is the first seed
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --start $(or $(START),0)
	$(BIN)/python -m tests.simulation --replicas --seeds $(or $(REPLICA_SEEDS),1000) --start $(or $(START),0)
	$(BIN)/python -m tests.simulation --dispatcher --seeds $(or $(DISPATCHER_SEEDS),1000) --start $(or $(START),0)

simulate-bugs: $(READY)  ## look for every planted bug in SEEDS simulated worlds each
	$(BIN)/python -m tests.simulation --bugs --seeds $(or $(SEEDS),2000)

test-ha: $(READY)  ## FAULTS random faults on coordinators, etcd and their network; SEED says which
	$(BIN)/python -m tests.ha --faults $(or $(FAULTS),200) --seed $(or $(SEED),1)

services: $(READY)  ## install the real servers that tests use; PARTS="s3 etcd" for some of them
	$(BIN)/python -m scripts.parts install $(PARTS)

dashboard:  ## build the dashboard into the package; needs npm, and node 20.19 or newer
	npm ci --silent --prefix dashboard
	npm run --silent build --prefix dashboard

dashboard-check:  ## types, lint and unit tests of the dashboard; needs npm
	test -d dashboard/node_modules || npm ci --silent --prefix dashboard
	npm run --silent check --prefix dashboard

# The page in a release is that of its sources.
src/strata/dashboard/static/index.html: $(shell find dashboard -name node_modules -prune -o -type f -print)
	$(MAKE) dashboard
	@touch $@

dist: $(READY) src/strata/dashboard/static/index.html  ## build wheel and sdist, twice and equal, with a list of what they consist of
	$(BIN)/python -m scripts.parts install release > /dev/null
	$(BIN)/python -m scripts.release build

release-check: dist  ## install the wheel on each Python that is here, and run the demonstration from elsewhere
	$(BIN)/python -m scripts.release check

docs: $(READY)  ## build the documentation as a site that works offline, in build/site
	$(BIN)/python -m scripts.parts install docs > /dev/null
	$(BIN)/python -m scripts.site

bench: $(READY)  ## run the benchmarks; run nothing else meanwhile
	@$(PYTHON) scripts/environment.py $(VENV) requirements/bench.txt
	$(BIN)/python -m pip install --quiet --no-deps --constraint requirements/torch.txt torchft
	$(BIN)/python -m scripts.parts install s3 torch etcd
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.service.tracing
	$(BIN)/python -m benchmarks.sharding
	$(BIN)/python -m benchmarks.returning_workers
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.service.coordinator
	$(BIN)/python -m benchmarks.service.fairness
	$(BIN)/python -m benchmarks.service.http
	$(BIN)/python -m benchmarks.service.ha
	$(BIN)/python -m benchmarks.service.security
	$(BIN)/python -m benchmarks.storage
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.sharded
	$(BIN)/python -m benchmarks.replicas
	$(BIN)/python -m benchmarks.staging
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.transforms

clean:  ## remove .venv and everything else that was made here
	rm -rf $(VENV) requirements/azurite/node_modules dashboard/node_modules src/strata/dashboard/static .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
