# One command for each thing that a developer does. `make help` lists them.

PYTHON   ?= $(shell command -v python3.11 || command -v python3)
VENV     := .venv
BIN      := $(VENV)/bin
DEV      := $(VENV)/.installed-dev
DEMO     := $(VENV)/.installed-demo
BENCH_ARGS ?=
TEST_ARGS  ?=
BASE       ?= main
T          ?=
N          ?= 20
SECONDS    ?= 60
MODE       ?= both

export RAY_worker_niceness := 0

.DEFAULT_GOAL := help
.PHONY: help demo test check types rules format deflake torture bench bench-check bench-peers bench-report site window pages clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | awk -F'|' '{printf "  make %-12s  %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[data,spark,demo,console]'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[data,spark,train,serve,table,demo,console,dev]'
	@touch $@ $(DEMO)

demo: $(DEMO) ## a year of flights through brokers, consumers and Spark, from nothing, in a few minutes
	$(BIN)/python -m examples.flights

test: $(DEV) ## every test, those with Ray, Spark and Apache RocketMQ's Java code included
	$(BIN)/python -m tools.suite $(TEST_ARGS)

check: $(DEV) ## format, lint, types, layers, the site, house rules, seed coverage; names tests that BASE has not
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target types rules

types: $(DEV)
	$(BIN)/mypy

rules: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python -m pytest -q tests/unit/test_house_rules.py tests/unit/test_seed_coverage.py
	$(BIN)/python -m tools.new_tests $(BASE)

format: $(DEV) ## lay the code out and sort its imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

deflake: $(DEV) ## run the test T N times, half of them beside busy loops (T=tests/... N=20)
	$(BIN)/python -m tools.deflake '$(T)' $(N)

site: $(DEV) ## the pages of docs/ as a site in build/site; a broken link ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

window: $(DEV) ## a smoke of the suite with other Pythons and other Rays, and its table in docs/compatibility.md
	$(BIN)/python -m tools.window
	$(BIN)/python -m tools.compatibility

pages: $(DEV) ## write docs/seed-coverage.md, docs/reference.md, docs/compatibility.md and the tables of requests and settings anew
	$(BIN)/python tools/seed_coverage.py
	$(BIN)/python -m tools.page_tables
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.compatibility

torture: $(DEV) ## a cluster under kills, hangs and losses of power for SECONDS in MODE (async, flush, copies, both)
	$(BIN)/python -m tests.torture --seconds $(SECONDS) --mode $(MODE)

bench: $(DEV) ## measure this project (BENCH_ARGS=...)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: $(DEV) ## CPU a message of the hot paths against a base commit (BASE=main); more than a tenth dearer fails
	$(BIN)/python -m benchmarks.check --base $(BASE)

bench-peers: $(DEV) ## the same beside Apache RocketMQ 4.9.7, Apache Kafka 4.4.0, NATS JetStream and Redis Streams, in the same run
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[bench]'
	$(BIN)/python -m benchmarks --peers $(BENCH_ARGS)

bench-report: ## bench-peers, and the table of docs/benchmarks.md from that run alone
	$(MAKE) bench-peers BENCH_ARGS="--report docs/benchmarks.md $(BENCH_ARGS)"

clean: ## remove what was built and measured; the virtual environment stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks interop/target interop/kafka/target interop/kafka-spark/target interop/rocketmq-tests/target
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
