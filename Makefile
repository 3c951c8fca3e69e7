# Every target does its own set-up and says plainly what is missing where it cannot.
# More words for the program behind a target: make serve ARGS="--listen 127.0.0.1:0"

ARGS ?=
PY   := .venv/bin/python

# Stamps: the virtual environment is touched again only when these files change.
PINS := pyproject.toml constraints.txt scripts/setup-venv.sh
RUN  := .venv/.ready-run
DEV  := .venv/.ready-dev

# The compiled build is compared with its sources by content: scripts/compile.py.
# Serving does not wait for it: the first start runs in pure Python.
COMPILE_LATER = $(if $(PURE),:,$(PY) scripts/compile.py --background)

# Measurements wait for it. Fails if PURE is set or if nothing can be compiled.
TRY_COMPILE = $(if $(PURE),false,{ $(MAKE) -s --no-print-directory rooms || \
	{ echo 'going on without: half the speed, the same broker' >&2; false; }; })

QUICK := $(addprefix tests/flowguard/,codec flow routing session node stores/test_contract.py)

.DEFAULT_GOAL := help
.PHONY: help venv serve serve-redis kafka demo simulate test quick soak mixed torture attack fuzz check spec bench bench-instructions bench-store bench-log bench-overload bench-experiments bench-law search-law bench-published bench-redis bench-kafka bench-analysis scoreboard lint docs compile rooms

help:  ## what can be made
	@echo 'make TARGET [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(DEV)  ## the virtual environment .venv, with everything that development needs
	@echo ".venv is ready: $$($(PY) --version)"

serve: $(RUN)  ## run the broker on 127.0.0.1:1883 (PURE=1: without compiling it first)
	@$(COMPILE_LATER)
	@$(if $(PURE),FLOWGUARD_PURE=1) exec .venv/bin/flowguard serve $(ARGS)

serve-redis: $(RUN)  ## the same on a redis-server of its own, in flowguard-redis (Debian's redis-server)
	@.venv/bin/python -c 'import redis' 2>/dev/null || .venv/bin/python -m pip install -q -c constraints.txt 'redis[hiredis]'
	@$(COMPILE_LATER)
	@$(if $(PURE),FLOWGUARD_PURE=1) exec scripts/serve-redis.sh $(ARGS)

compile: rooms  ## compile the hot rooms with mypyc, as serve does where it can
	@echo "compiled: .compiled"

demo: $(RUN)  ## a flash crowd against a small broker, live in the terminal, about a minute
	@$(PY) -m flowguard demo $(ARGS)

test: $(DEV)  ## the tests, three processes per core; as root, first the clients they need (ARGS for pytest)
	@scripts/setup-test-peers.sh
	@$(PY) -m pytest -n $$((3 * $$(nproc))) --durations=25 --durations-min=10 $(ARGS)

quick: $(DEV)  ## the rooms without IO in under a minute: few examples, no slow test (ARGS for pytest)
	@HYPOTHESIS_PROFILE=quick $(PY) -m pytest -q -n auto -m 'not slow and not long' $(QUICK) $(ARGS)

soak: $(DEV)  ## fresh examples for the property tests, ten minutes (ARGS="--minutes 300 --seed 7 tests/flowguard/flow")
	@$(PY) -m tests.soak $(ARGS)

mixed: $(DEV)  ## a broker under mixed load for 30 minutes: memory, descriptors and threads stay flat (ARGS="--minutes 10")
	@if $(TRY_COMPILE); then export PYTHONPATH='$(CURDIR)/.compiled'; fi; $(PY) -m tests.soak.mixed $(ARGS)

kafka:  ## Kafka's jars from Maven, into .peers, for tests and benchmarks (make test fetches them, too)
	@scripts/setup-kafka.sh && echo 'Kafka is in .peers/kafka'

simulate: $(RUN)  ## a crowd in virtual time, under several policies (ARGS="flash_crowd"; without: which there are)
	@$(PY) -m flowguard simulate $(if $(ARGS),$(ARGS),--list)

torture: $(DEV)  ## a broker killed 3,000 times under load; restarts with 100,000 messages (ARGS="--kills 500 --seed 1")
	@$(PY) -m tests.torture $(ARGS)

attack: $(DEV)  ## brokers attacked from outside in thirty ways, ten minutes; each with its bound and its control (ARGS="--only pause")
	@if $(TRY_COMPILE); then export PYTHONPATH='$(CURDIR)/.compiled'; fi; $(PY) -m tests.attacks $(ARGS)

fuzz: $(DEV)  ## the decoder, or a connection, under changing inputs, by coverage (ARGS="decode --inputs 1e8")
	@scripts/setup-fuzzer.sh
	@$(PY) -m tests.fuzz $(if $(ARGS),$(ARGS),decode)

check: lint test  ## the one gate: lint and test

lint: $(DEV)  ## format, lint, types and layers; changes nothing
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

docs: $(DEV)  ## the pages of docs/ and README.md as a site, in site/; fails on a link that leads nowhere
	@$(PY) -m mkdocs build --strict $(ARGS)

spec: $(DEV)  ## statements of the MQTT standards that tests claim to prove
	@$(PY) tests/spec/coverage.py $(ARGS)

bench: $(DEV) rooms  ## flowguard beside other brokers, in one run on this machine; then store, simulator, analysis
	@$(PY) -m benchmarks $(ARGS)
	@$(if $(filter-out --write,$(ARGS)),,\
		$(PY) -m benchmarks.experiments --only scale $(ARGS) && $(PY) -m benchmarks.analysis)

bench-instructions: $(DEV) rooms  ## instructions per message, counted by Valgrind, beside what they were (ARGS="--only w10 --write")
	@$(PY) -m benchmarks.instructions $(ARGS)

bench-store: $(DEV) rooms  ## the RocksDB store by itself: layouts, fetch, restart, drift, merge (make bench has it too)
	@$(PY) -m benchmarks.parts --only store $(ARGS)

bench-log: $(DEV) rooms  ## the durable log beside client queues: append, disk, replay, layouts; fleets and crowds that come back
	@PYTHONPATH=.compiled $(PY) -m benchmarks.parts --only store-log,log- $(ARGS)

bench-overload: $(DEV) rooms  ## three times the capacity for a minute, with and without protection; E1 to E12
	@$(PY) -m benchmarks.parts --only overload $(ARGS)

bench-redis: $(DEV) rooms  ## the store on Redis beside the published schema, PostgreSQL and RocksDB, three minutes (ARGS="--write")
	@$(PY) -c 'import psycopg' 2>/dev/null || $(PY) -m pip install -q -c constraints.txt 'psycopg[binary]'
	@PYTHONPATH=.compiled $(PY) -m benchmarks.redis $(ARGS)

bench-kafka: $(DEV) rooms kafka  ## applications in Kafka beside TBMQ's way and the log; one far behind; 500 idle (ARGS="--write")
	@PYTHONPATH=.compiled $(PY) -m benchmarks.kafka $(ARGS)

bench-analysis: $(DEV)  ## flowguard analyze: time and memory by rows of samples (ARGS="--rows 1e8")
	@$(PY) -m benchmarks.analysis $(ARGS)

bench-experiments: $(DEV)  ## E1 to E13 in virtual time, each with a control that has to fail (ARGS="--only E2 --scale 0.05")
	@$(PY) -m benchmarks.experiments $(ARGS)

bench-law: $(DEV)  ## the law and all others in every scenario: is it dominated anywhere? (ARGS="--only load --seeds 5")
	@$(PY) -m benchmarks.law $(ARGS)

bench-published: $(DEV)  ## the two pictures of the article that this broker began with, simulated (ARGS="--scale 0.1 --write")
	@$(PY) -m benchmarks.published $(ARGS)

search-law: $(DEV)  ## random loads: how far is each policy from the best one? (ARGS="--loads 300 --first 1001 --write")
	@$(PY) -m benchmarks.law.search $(ARGS)

scoreboard: $(DEV) rooms  ## who survives a crowd: the kit at other brokers, bare and behind the proxy (ARGS="--only mosquitto")
	@$(PY) -m benchmarks.survivors $(ARGS)

rooms: $(RUN)
	@$(PY) scripts/compile.py

$(RUN): $(PINS)
	@scripts/setup-venv.sh run

$(DEV): $(PINS)
	@scripts/setup-venv.sh dev
