# make setup, then make demo, test, check, bench. Everything stays inside this directory and nothing asks for root, but
# for programs that tests run: make system installs those where it may do so without a password, else it says which.
SHELL := /bin/bash
# PYTHON=... names the interpreter. Without it: that of .venv if there is one, else the first that can install sandq.
PYTHONS := $(or $(PYTHON),$(wildcard .venv/bin/python) python3 python3.14 python3.13 python3.12 python3.11)
# Tests start hundreds of Python processes: compiling all modules in each takes more time than what they do.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
STAMP := .venv/.up-to-date
SPARK_STAMP := .venv/.spark-up-to-date
PEERS_STAMP := .venv/.peers-up-to-date
WORKERS_STAMP := .venv/.workers-up-to-date
DOCS_STAMP := .venv/.docs-up-to-date

PACKAGES := $(wildcard sandq sandctl pyspark_sandq demo benchmarks integrations/workers/sandq_workers)

.PHONY: setup spark demo system test test-fast test-long test-interop test-suites test-flaky test-pythons check docs bench bench-peers release clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml packaging/client/pyproject.toml
	@rm -f $@
	@python=$$(packaging/choose-python $(PYTHONS)) || exit 1; \
	  [ "$$($(BIN)/python --version 2>&1)" = "$$($$python --version 2>&1)" ] || rm -rf .venv; \
	  $$python -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  -e packaging/client -e .
	@touch $@

# The pipeline's extra, some 700 MB; Java comes from the system.
spark: $(SPARK_STAMP)

$(SPARK_STAMP): requirements-spark.lock $(STAMP)
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-spark.lock
	@touch $@

# The distribution sandq-workers, and the frameworks that its tests run: Celery.
$(WORKERS_STAMP): requirements-workers.lock integrations/workers/pyproject.toml $(STAMP)
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-workers.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  -e integrations/workers
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m demo $(if $(INPUT),--input "$(INPUT)")

system:
	@tests/install-system-packages

# Every feature and every promise; what each suite cost stands at its end. tests/README.md says what belongs where.
test: $(SPARK_STAMP) $(DOCS_STAMP) $(WORKERS_STAMP) system
	$(BIN)/python -m tests.support.runner

# Before each commit: `make check`, the units, and a few examples of each property.
test-fast: check
	TEST_FAST=1 $(BIN)/python -m tests.support.runner --fast

# More seeds, kills, pages and sizes of the same, and other Python versions: hours.
test-long: $(SPARK_STAMP) $(DOCS_STAMP) $(WORKERS_STAMP) system
	$(BIN)/python -m tests.support.runner --long
	$(BIN)/python -m tests.support.pythons

# On Debian roots with other Python versions; root only. make test-pythons ROOTS="--smoke 3.14"
test-pythons: $(STAMP) system
	$(BIN)/python -m tests.support.pythons $(ROOTS)

# Beside other products' programs.
test-interop: $(STAMP) system
	$(BIN)/python -m pytest -n 2 --dist worksteal -m interop tests/interop

# kombu's own integration tests, which are downloaded.
test-suites: $(WORKERS_STAMP) system
	$(BIN)/python -m tests.support.suites

# All suites again and again on a machine that is loaded on purpose: each test that is not always green is named.
test-flaky: $(SPARK_STAMP) $(DOCS_STAMP) $(WORKERS_STAMP) system
	$(BIN)/python -m tests.support.flaky $(FLAKY)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy --strict $(PACKAGES)
	$(BIN)/pytest -q tests/unit/test_floors.py tests/unit/test_language.py tests/unit/test_shapes.py
	$(BIN)/python -m tests.support.audit_dependencies

# The generator of the documentation site.
$(DOCS_STAMP): requirements-docs.lock $(STAMP)
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

# The documentation site, into build/docs/site and site.zip. A broken link or anchor is an error.
docs: $(DOCS_STAMP)
	$(BIN)/python packaging/site/build.py

# make bench BENCH="--group small"; python -m benchmarks --help says what else there is.
bench: $(SPARK_STAMP)
	$(BIN)/python -m benchmarks $(BENCH)

# The Python clients of the brokers below.
$(PEERS_STAMP): requirements-peers.lock $(SPARK_STAMP)
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-peers.lock
	@touch $@

# Beside other brokers, each started by the program. It leaves out what is not installed, and says so; for all of them:
# apt-get install --no-install-recommends nats-server redis-server beanstalkd rabbitmq-server postgresql-15
# (Debian also starts services of them then, on their usual ports; nothing here needs those.)
bench-peers: $(PEERS_STAMP)
	$(BIN)/python -m benchmarks.peers

# Wheels with the documentation site, source, what they depend on, a bill of materials and checksums, into dist/:
# docs/releases.md.
release: docs
	rm -rf dist
	$(BIN)/python packaging/release.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
