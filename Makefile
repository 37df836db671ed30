# bertpt: everything runs in .venv, which is made when it is missing, stale or moved. Needs Python >= 3.11 and a
# package index, nothing else.  Another interpreter: make test PYTHON=python3.12

# The first of these that is new enough; else python3, and scripts/venv.py says what is wrong with it.
PYTHON ?= $(firstword $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python; done) python3)
# Processes that run tests.
JOBS ?= 2

# Always through the interpreter: console scripts name their folder and break when it is moved.
RUN := .venv/bin/python -m

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-faults test-slow proof lint format bench clean

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "make: $(PYTHON) is not there; bertpt needs Python >= 3.11: install it, or say where: make PYTHON=..." >&2; \
		exit 2; }
	@$(PYTHON) scripts/venv.py $(if $(filter command environment,$(firstword $(origin PYTHON))),--this-python)

demo: venv ## the whole pipeline on the demo corpus, to a table of results (3 to 5 minutes on 2 cores)
	$(RUN) bertpt run --config demo

test: venv ## all tests but the slow ones
	$(RUN) pytest -m "not slow" -n $(JOBS)

test-faults: venv ## kills, full disks, damaged files: more than 200 kills, 500 corruptions (about 10 minutes)
	BERTPT_FAULTS=full $(RUN) pytest tests/faults -n $(JOBS)

test-slow: venv ## the slow tests
	$(RUN) pytest -m slow

proof: venv ## train until the model has demonstrably learnt context (20 to 45 minutes)
	$(RUN) bertpt run --config proof

lint: venv ## style and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

format: venv ## put the code into the form that lint asks for
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: venv ## the benchmarks of scripts/bench; one alone: make bench BENCH=name
	.venv/bin/python scripts/bench $(BENCH)

clean: ## remove .venv and what the tools leave behind; data/ and runs/ stay
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './data/*' -not -path './runs/*' -prune -exec rm -rf {} +
