# Every target does its own set-up and says plainly what is missing where it cannot.
# More words for the program behind a target: make serve ARGS="--listen 127.0.0.1:0"

ARGS ?=
PY   := .venv/bin/python

# Stamps: the virtual environment is touched again only when these files change.
PINS := pyproject.toml constraints.txt scripts/setup-venv.sh
RUN  := .venv/.ready-run
DEV  := .venv/.ready-dev
BENCH := .venv/.ready-bench

# The compiled build is compared with its sources by content: scripts/compile.py.
# Serving does not wait for it: the first start runs in pure Python.
COMPILE_LATER = $(if $(PURE),:,$(PY) scripts/compile.py --background)

# Measurements wait for it. Fails if PURE is set or if nothing can be compiled.
TRY_COMPILE = $(if $(PURE),false,{ $(MAKE) -s --no-print-directory rooms || \
	{ echo 'going on without: half the speed, the same broker' >&2; false; }; })

PEERS := scripts/setup-test-peers.sh

QUICK := $(addprefix tests/flowguard/,codec cluster flow routing session node stores/test_contract.py)

.DEFAULT_GOAL := help
.PHONY: help venv serve serve-redis serve-kafka cluster kafka demo simulate wheels test quick soak mixed torture attack drill fuzz check spec bench bench-check bench-instructions bench-store bench-log bench-overload bench-cluster bench-cascade bench-experiments bench-law search-law bench-published bench-redis bench-kafka bench-analysis scoreboard lint docs compile rooms

help:  ## list the targets
	@echo 'make TARGET [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(DEV)  ## make .venv with everything that development needs
	@echo ".venv is ready: $$($(PY) --version)"

serve: $(RUN)  ## run the broker on 127.0.0.1:1883 (PURE=1: pure Python, no compiling)
	@$(COMPILE_LATER)
	@$(if $(PURE),FLOWGUARD_PURE=1) exec .venv/bin/flowguard serve $(ARGS)

serve-redis: $(RUN)  ## run it on a redis-server of its own, in flowguard-redis
	@.venv/bin/python -c 'import redis' 2>/dev/null || .venv/bin/python -m pip install -q -c constraints.txt 'redis[hiredis]'
	@$(COMPILE_LATER)
	@$(if $(PURE),FLOWGUARD_PURE=1) exec scripts/serve-with.sh redis $(ARGS)

serve-kafka: $(RUN)  ## run it with a Kafka of its own, in flowguard-kafka; clients "app-..." have their queues there
	@.venv/bin/python -c 'import aiokafka' 2>/dev/null || .venv/bin/python -m pip install -q -c constraints.txt 'aiokafka[zstd]'
	@scripts/setup-kafka.sh kafka
	@$(COMPILE_LATER)
	@$(if $(PURE),FLOWGUARD_PURE=1) exec scripts/serve-with.sh kafka $(ARGS)

cluster: $(RUN)  ## run three nodes as one broker on a redis-server of their own, in flowguard-cluster
	@.venv/bin/python -c 'import redis' 2>/dev/null || .venv/bin/python -m pip install -q -c constraints.txt 'redis[hiredis]'
	@$(COMPILE_LATER)
	@$(if $(PURE),FLOWGUARD_PURE=1) exec $(PY) scripts/cluster.py $(ARGS)

wheels: $(DEV)  ## build wheels and source archives of flowguard-mqtt and flowguard-guard, in dist
	@$(PY) -m hatchling build -d dist
	@$(PY) guard/make.py build/guard && cd build/guard && $(CURDIR)/$(PY) -m hatchling build -d $(CURDIR)/dist

compile: rooms  ## compile the packages that every message passes, with mypyc
	@echo "compiled: .compiled"

demo: $(RUN)  ## show a flash crowd against a small broker, live in the terminal, about 20 s after the set-up
	@$(PY) -m flowguard demo $(ARGS)

test: $(DEV)  ## run all tests; as root, install other brokers and clients first (ARGS for pytest)
	@$(PEERS)
	@# One process writes the bytecode of the tests, else each of the processes does: 12 s of each.
	@[ -e tests/__pycache__ ] || $(PY) -m pytest --collect-only -q tests >/dev/null || true
	@$(if $(ARGS),,LEAVE_OUT_COMPILED=1) $(PY) -m pytest -n $$((2 * $$(nproc) + 1)) --durations=25 --durations-min=10 $(ARGS)

quick: $(DEV)  ## test the packages without IO, in a minute on an idle machine (ARGS for pytest)
	@HYPOTHESIS_PROFILE=quick $(PY) -m pytest -q -n auto -m 'not slow and not long' $(QUICK) $(ARGS)

soak: $(DEV)  ## run the property tests with fresh examples, ten minutes (ARGS="--minutes 300 --seed 7 tests/flowguard/flow")
	@$(PY) -m tests.soak $(ARGS)

mixed: $(DEV)  ## run a broker under mixed load for 30 minutes and judge its memory (ARGS="--minutes 10")
	@if $(TRY_COMPILE); then export PYTHONPATH='$(CURDIR)/.compiled'; fi; $(PY) -m tests.soak.mixed $(ARGS)

kafka:  ## download Kafka into .peers, for tests and benchmarks
	@scripts/setup-kafka.sh && echo 'Kafka is in .peers/kafka'

simulate: $(RUN)  ## simulate a crowd under several policies (ARGS="flash_crowd"; without ARGS: list the scenarios)
	@$(PY) -m flowguard simulate $(if $(ARGS),$(ARGS),--list)

torture: $(DEV)  ## kill a broker 3,000 times under load (ARGS="--kills 500 --seed 1")
	@$(PY) -m tests.torture $(ARGS)

attack: $(DEV)  ## attack brokers in 42 ways, each with a bound and a control (ARGS="--only pause")
	@if $(TRY_COMPILE); then export PYTHONPATH='$(CURDIR)/.compiled'; fi; $(PY) -m tests.attacks $(ARGS)

drill: $(DEV)  ## do an operator's second day on real brokers, and write docs/operate/day-two.md
	@$(PY) -m tests.drill $(ARGS)

fuzz: $(DEV)  ## mutate inputs of the decoder or a connection, guided by coverage (ARGS="decode --inputs 1e8")
	@scripts/setup-fuzzer.sh
	@$(PY) -m tests.fuzz $(if $(ARGS),$(ARGS),decode)

check: $(RUN)  ## run all checks and tests
	@# The compiler, on which long tests wait, needs only the packages of the broker. It runs beside
	@# the rest of the set-up and lint, and stops if lint fails. So does the script that installs the
	@# other programs that tests need.
	@setsid $(PY) scripts/compile.py & compiler=$$!; trap 'kill -- -$$compiler' INT TERM; \
	$(PEERS) & peers=$$!; \
	$(MAKE) --no-print-directory lint || { kill -- -$$compiler; wait $$peers; exit 1; }; \
	wait $$peers; $(MAKE) --no-print-directory test

lint: $(DEV)  ## check format, lint, types and layers
	@$(PY) -m ruff format --check --exclude benchmarks .
	@$(PY) -m ruff check --exclude benchmarks .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

bench-check: $(BENCH)  ## check and test the benchmarks, which make check leaves out (ARGS for pytest)
	@$(PY) -m ruff format --check benchmarks tests/benchmarks
	@$(PY) -m ruff check benchmarks tests/benchmarks
	@$(PY) -m mypy benchmarks
	@$(PY) -m pytest -n auto tests/benchmarks $(ARGS)

docs: $(DEV)  ## build the documentation into site/; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

spec: $(DEV)  ## list the statements of the MQTT standards with their tests
	@$(PY) tests/spec/coverage.py $(ARGS)

bench: $(BENCH) rooms  ## measure flowguard beside other brokers; then store, simulator and analysis
	@$(PY) -m benchmarks $(ARGS)
	@$(if $(filter-out --write,$(ARGS)),,\
		$(PY) -m benchmarks.experiments --only scale $(ARGS) && $(PY) -m benchmarks.analysis)

bench-instructions: $(BENCH) rooms  ## count instructions per message with Valgrind (ARGS="--only w10 --write")
	@$(PY) -m benchmarks.instructions $(ARGS)

bench-store: $(BENCH) rooms  ## measure the RocksDB store alone
	@$(PY) -m benchmarks.parts --only store $(ARGS)

bench-log: $(BENCH) rooms  ## measure the durable log beside client queues
	@PYTHONPATH=.compiled $(PY) -m benchmarks.parts --only store-log,log- $(ARGS)

bench-overload: $(BENCH) rooms  ## run three times the capacity for a minute, with and without protection; E1 to E12
	@$(PY) -m benchmarks.parts --only overload $(ARGS)

bench-cluster: $(BENCH) rooms  ## measure what workers and nodes cost, and what becomes of a cluster if a node dies
	@$(PY) -m benchmarks.cluster $(ARGS)
	@$(PY) -m benchmarks.parts --only nodes $(ARGS)

bench-cascade: $(BENCH) rooms  ## kill one of three busy nodes, with and without protection (ARGS="--write")
	@$(PY) -m benchmarks.parts --only nodes-cascade $(ARGS)

bench-redis: $(BENCH) rooms  ## measure the store on Redis beside the published schema, PostgreSQL and RocksDB (ARGS="--write")
	@PYTHONPATH=.compiled $(PY) -m benchmarks.redis $(ARGS)

bench-kafka: $(BENCH) rooms kafka  ## measure applications in Kafka beside TBMQ's way and the log (ARGS="--write")
	@PYTHONPATH=.compiled $(PY) -m benchmarks.kafka $(ARGS)

bench-analysis: $(BENCH)  ## measure time and memory of flowguard analyze by rows (ARGS="--rows 1e8")
	@$(PY) -m benchmarks.analysis $(ARGS)

bench-experiments: $(BENCH)  ## run E1 to E13 in virtual time, each with a control that must fail (ARGS="--only E2 --scale 0.05")
	@$(PY) -m benchmarks.experiments $(ARGS)

bench-law: $(BENCH)  ## compare all policies in every fixed scenario (ARGS="--only load --seeds 5")
	@$(PY) -m benchmarks.law $(ARGS)

bench-published: $(BENCH)  ## simulate the two published figures of HiveMQ (ARGS="--scale 0.1 --write")
	@$(PY) -m benchmarks.published $(ARGS)

search-law: $(BENCH)  ## measure the regret of each policy on random loads (ARGS="--loads 300 --first 1001 --write")
	@$(PY) -m benchmarks.law.search $(ARGS)

scoreboard: $(BENCH) rooms  ## run the kit against other brokers, bare and behind the proxy (ARGS="--only mosquitto")
	@$(PY) -m benchmarks.survivors $(ARGS)

rooms: $(RUN)
	@$(PY) scripts/compile.py

$(RUN): $(PINS)
	@scripts/setup-venv.sh run

$(DEV): $(PINS)
	@scripts/setup-venv.sh dev

$(BENCH): $(PINS)
	@scripts/setup-venv.sh bench
