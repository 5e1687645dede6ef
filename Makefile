# make setup, then make demo, test, check, bench. Everything stays inside this directory and nothing asks for root, but
# for programs that tests run: make system installs those where it may do so without a password, else it says which.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.up-to-date

# Suites come as the project grows: those that are there are run.
SUITES := $(wildcard tests/unit tests/property tests/scenarios tests/simulation tests/faults tests/interop tests/e2e \
                      tests/regressions)
PACKAGES := $(wildcard sandq sandctl demo benchmarks)

.PHONY: setup demo system test test-long check bench clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "sandq needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Name another one: make setup PYTHON=python3.11" >&2; exit 1; }
	@rm -f $@
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m demo $(if $(INPUT),--input "$(INPUT)")

system:
	@tests/install-system-packages

test: $(STAMP) system
	$(BIN)/pytest -n 2 --dist worksteal -rs $(SUITES)

test-long: $(STAMP) system
	TEST_RANDOM=1 $(BIN)/pytest -n 2 -rs -m "long or not long" $(SUITES)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy --strict $(PACKAGES)
	$(BIN)/pytest -q tests/unit/test_floors.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
