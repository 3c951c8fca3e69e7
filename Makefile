# Every target does its own set-up and says plainly what is missing where it cannot.
# More words for the program behind a target: make serve ARGS="--listen 127.0.0.1:0"

ARGS ?=
PY   := .venv/bin/python

# Stamps: the virtual environment is touched again only when these files change.
PINS := pyproject.toml constraints.txt scripts/setup-venv.sh
RUN  := .venv/.ready-run
DEV  := .venv/.ready-dev

.DEFAULT_GOAL := help
.PHONY: help venv serve demo test check spec bench lint

help:  ## what can be made
	@echo 'make TARGET [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(DEV)  ## the virtual environment .venv, with everything that development needs
	@echo ".venv is ready: $$($(PY) --version)"

serve: $(RUN)  ## run the broker on 127.0.0.1:1883
	@$(PY) -m flowguard serve $(ARGS)

demo: $(RUN)  ## a flash crowd against a small broker, live in the terminal, under a minute
	@$(PY) -m flowguard demo $(ARGS)

test: $(DEV)  ## the tests (ARGS for pytest)
	@scripts/setup-test-peers.sh
	@$(PY) -m pytest $(ARGS)

check: lint test  ## the one gate: lint and test

lint: $(DEV)  ## format, lint, types and layers; changes nothing
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

spec: $(DEV)  ## which statements of the MQTT standards the tests prove
	@$(PY) tests/spec/coverage.py $(ARGS)

bench: $(DEV)  ## flowguard beside other brokers, in one run on this machine
	@$(PY) -m benchmarks $(ARGS)

$(RUN): $(PINS)
	@scripts/setup-venv.sh run

$(DEV): $(PINS)
	@scripts/setup-venv.sh dev
