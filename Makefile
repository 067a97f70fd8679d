# Needs python3 (3.11 or newer) with pip; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
comma := ,

# The demo's default model is offline; the client library is installed only for a real endpoint.
DEMO_EXTRAS := $(if $(WITH),cli$(comma)$(WITH),demo$(if $(OPENAI_BASE_URL)$(OPENAI_API_KEY),$(comma)openai))

# Aden Hive is not on the package index, and has `make hive`.
SHOPS := $(subst _,-,$(patsubst examples/shops/with_%.py,%,$(wildcard examples/shops/with_*.py)))
$(if $(WITH),$(if $(filter $(WITH),$(SHOPS)),,$(error WITH= is one of: $(SHOPS). For hive: make hive)))

.DEFAULT_GOAL := help
.PHONY: help demo hive integrations test lint bench bench-report soak crash model ownership chaos standby nats mutation fuzz stalls docs clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(VENV)/.with-$(DEMO_EXTRAS) ## kill a working agent again and again, and see it finish (DIR= KILLS= SEED=), or one of a framework (WITH=langgraph, or another of examples/shops)
ifdef WITH
	@cd examples/shops && "$(CURDIR)/$(BIN)/recovery" crashtest with_$(subst -,_,$(WITH)):shop --task '"Buy tea and a cup."' --tool bank:pay \
		--points $(or $(KILLS),10) --kills 2 $(if $(SEED),--seed $(SEED))
else
	@$(BIN)/python examples/demo.py $(if $(DIR),--dir "$(DIR)") $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))
endif

test: $(VENV)/.with-dev ## the test suite without the long crash sweeps
	@tests/suite.sh $(BIN)/pytest

crash: $(VENV)/.with-dev ## the long crash sweeps, and tests that try crash points or random examples with many more of them
	@EVENTLOG_TEST_PROFILE=crash $(BIN)/pytest -m "crash or hypothesis or scaled" --figures $(VENV)/sweeps.json
	@$(BIN)/python -m tests.figures --sweeps $(VENV)/sweeps.json

stalls: $(VENV)/.with-dev ## tests of one process while its event loops, threads and flushes stall at random, as on a loaded machine (SEED=)
	@$(BIN)/pytest -q -n 4 -p tests.support.stalls -m "not crash" $(if $(SEED),--hypothesis-seed=$(SEED)) tests/unit tests/contract

chaos: $(VENV)/.with-dev ## three workers that are killed, stopped and cut off, and a server that is killed: 200 runs, effects counted outside (STORE= RUNS= MINUTES= SEED=)
	@$(BIN)/python -m tests.chaos $(STORE) --runs $(or $(RUNS),200) --minutes $(or $(MINUTES),6) $(if $(SEED),--seed $(SEED))

standby: $(VENV)/.with-dev ## the primary of a PostgreSQL pair is killed under live runs, and its standby promoted
	@$(BIN)/pytest -q -m "crash or not crash" tests/conformance/test_standby.py

nats: $(VENV)/.with-dev ## the tests of stores against NATS JetStream, on a private server
	@$(BIN)/pytest -q tests/conformance/test_nats.py

ownership: $(VENV)/.with-dev ## who owns a run, as a model: all behaviours within its bounds, by Debian's spin (installed if root)
	@command -v spin gcc >/dev/null || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -qq spin gcc
	@$(BIN)/python -m tests.ownership

model: $(VENV)/.with-dev ## random programs and aimed faults, and the library broken on purpose (PROGRAMS= SEED=)
	@$(BIN)/python -m tests.model --programs $(or $(PROGRAMS),1500) --minutes 11 $(if $(SEED),--seed $(SEED)) --table
	@$(BIN)/python -m tests.model.breaks

hive: $(VENV)/.with-dev ## Aden Hive's own classes, of a checkout, in processes that are killed (SRC= HIVE_PYTHON= KILLS=)
ifdef SRC
	@HIVE_SRC="$(SRC)" HIVE_KILLS=$(or $(KILLS),12) $(BIN)/pytest -q -s -m "not crash" tests/integration/kills/test_hive_kills.py
else
	@echo "skipped: give a checkout of Aden Hive, as in: make hive SRC=../hive   (see docs/hive.md)"
endif

integrations: $(VENV)/.with-dev ## integrations with the oldest and the newest versions of frameworks; LangGraph's own tests (ONLY= AGE= TIMES=)
	@$(BIN)/python -m tests.versions $(ONLY) $(if $(AGE),--age $(AGE)) $(if $(TIMES),--times $(TIMES))

fuzz: $(VENV)/.with-dev,fuzz ## fuzz the decoders, all in turn (SECONDS= TARGETS="...")
	@$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $(or $(SECONDS),60) --json $(VENV)/fuzz.json

mutation: $(VENV)/.with-dev ## change the core at random: the tests must notice (COUNT= SEED= ROOMS=)
	@$(BIN)/python -m tests.mutation $(ROOMS) --count $(or $(COUNT),100) --threshold 90 --map build/mutation-map.json $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.with-dev ## ruff, mypy, and the rules of the tree: layers, sizes, packaging
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/pytest -q -n auto -p no:cacheprovider tests/lint

bench: $(VENV)/.with-dev ## the benchmarks, beside other packages (NAMES= SCALE= DIR=)
	@$(BIN)/python -m tools.bench $(NAMES) --out $(or $(OUT),docs/benchmarks) $(if $(SCALE),--scale $(SCALE)) $(if $(DIR),--dir "$(DIR)")

bench-report: $(VENV)/.with-dev ## docs/benchmarks.md from what `make bench` has written
	@$(BIN)/python -m tools.bench.report

soak: $(VENV)/.with-dev ## an hour of 200 agents that crash and are killed, and a reader (MINUTES= AGENTS= SEED=)
	@$(BIN)/python -m tools.bench.soak --out $(or $(OUT),docs/benchmarks) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(AGENTS),--agents $(AGENTS)) $(if $(SEED),--seed $(SEED))

docs: $(VENV)/.with-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet: then no warning fails it
	@echo "see site/index.html"

clean: ## remove everything that these targets made
	rm -rf $(VENV) .venv-peers build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras, renewed when pyproject.toml changes.
$(VENV)/.with-%: $(VENV)/.created pyproject.toml
	@echo "installing .[$*] into $(VENV)"
	@$(PIP) --editable '.[$*]'
	@touch $@

# Some systems ship venv without its bundled pip; their own pip then puts one in.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; name one with make PYTHON=...")'
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; }
	@touch $@
