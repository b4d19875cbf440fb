# Everything a developer or CI runs. Each target sets up what it needs, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | \
		awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# One stamp per set of packages: a target installs only what it needs, and only once.
$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.base: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.spark: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[spark]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[dev,spark]'
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

.PHONY: demo
demo: $(VENV)/.spark ## Run the main job end to end: append, kill, recover, work, query
	$(BIN)/stratalog demo

T ?=

.PHONY: test
test: $(VENV)/.dev ## Set up and pass all tests, or some: make test T=tests/unit/log
	$(BIN)/python -m pytest -n auto --dist loadgroup --max-worker-restart 0 $(T)

.PHONY: fast
fast: $(VENV)/.dev ## The unit tests that take no time: without Spark, kills and the crash sweep
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow" tests/unit

.PHONY: versions
versions: $(VENV)/.python ## The quick tests on every other interpreter that is found, without Spark
	$(BIN)/python scripts/versions.py $(T)

.PHONY: profile
profile: $(VENV)/.dev ## Profile one path of the engine: make profile W=append-fsync
	$(BIN)/python -m benchmarks.path_profile $(W)

.PHONY: check
check: $(VENV)/.dev ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.PHONY: sweep
sweep: $(VENV)/.dev ## The exhaustive crash sweep, more kills, fuzzing and random histories (about 25 minutes)
	STRATALOG_SWEEP=exhaustive STRATALOG_KILLS=100 STRATALOG_FUZZ=500000 STRATALOG_EXAMPLES=1000 STRATALOG_MUTATIONS=5000 \
		$(BIN)/python -m pytest -n auto --timeout 3600 -o faulthandler_timeout=3540 tests/crash tests/fuzz tests/property tests/outsider

.PHONY: bench
bench: $(VENV)/.bench ## Measure against rivals and physical limits; writes benchmarks/results
	$(BIN)/python -m benchmarks

.PHONY: clean
clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(VENV)-3.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
