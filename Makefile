# Commands for contributors; `make` alone lists them.
#
# Each step leaves a stamp, so that a second run skips it until its lock file changes. A fresh machine needs Python
# and make, nothing else.
# Written for GNU make 3.81 (macOS) and later.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
DEPS := .deps
CLIENTS := tests/e2e/clients
UV ?= $(if $(wildcard $(BIN)/uv),$(BIN)/uv,uv)

PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
# A lock file names all there is; some libraries ask for more than is used (requirements/override.txt).
HASHED := $(PIP_INSTALL) --require-hashes --no-deps
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes \
	--python-version 3.11 --override requirements/override.txt --custom-compile-command 'make lock' $(ARGS)
NPM := PATH="$(CURDIR)/$(DEPS)/bin:$$PATH" npm
NPM_FLAGS := --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error \
	--omit-lockfile-registry-resolved=true

GO_BUILD = cd $(CLIENTS)/go && GOTOOLCHAIN=local GOFLAGS=-buildvcs=false $(CURDIR)/$(DEPS)/bin/go build \
	-o $(CURDIR)/$(DEPS)/go

# Three processes on two cores: end-to-end tests mostly wait for what they started. A file stays with one of them, so
# that its tests share what they set up.
PARALLEL := -n 3 --dist loadfile

# A stamp shows that something was made once; this checks whether it is still there, and makes it again
# otherwise (a Python or Node that was upgraded away leaves a dangling link).
absent = $(if $(realpath $(1)),,FORCE)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-deps system-parts check bench reliability fuzz mutants soak dist reference lock clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo 'ARGS="..." passes arguments on to demo, test, test-fast, bench, fuzz, mutants, soak and lock.'

setup: .venv/.setup ## Make .venv with the locked dependencies and .venv/bin/tollgate

demo: setup ## Run the gateway with a filled team and a simulated chain
	@exec $(BIN)/tollgate demo $(ARGS)

test: .venv/.dev ## Run all tests; lists what is missing on this machine
	@$(MAKE) --no-print-directory --keep-going test-deps || \
		echo 'make test: not every part for the end-to-end tests could be installed; see above.' >&2
	@$(BIN)/pytest $(or $(ARGS),$(PARALLEL))

test-fast: .venv/.dev ## Run the unit tests alone, on two cores
	@$(BIN)/pytest -n 2 --dist worksteal --ignore=tests/e2e -m 'not e2e' --hypothesis-profile=tollgate-fast $(ARGS)

# Where a machine forbids it, every worker and every service that a test starts would compile all modules again.
test test-fast: export PYTHONDONTWRITEBYTECODE =

test-deps: system-parts $(DEPS)/web3/.installed $(DEPS)/starknet/.installed $(DEPS)/js/.installed $(DEPS)/go/.installed ## Install what the end-to-end tests drive: clients, anvil, an OIDC provider, stripe-mock, toxiproxy, nginx, dnsmasq, wrk, valgrind, Chromium

check: .venv/.dev ## Check format, lint, types and the import contract
	@$(BIN)/ruff format --check src tests bench scripts
	@$(BIN)/ruff check src tests bench scripts
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: .venv/.dev system-parts ## Measure against a direct call and nginx
	@$(BIN)/python -m bench $(ARGS)

reliability: .venv/.dev ## Measure what callers notice while upstreams fail; write it into docs/reliability.md
	@WRITE_RELIABILITY=1 $(BIN)/pytest tests/e2e/test_reliability.py $(ARGS)

fuzz: .venv/.dev ## Fuzz ten minutes a target (ARGS="--seconds 60 request"); atheris is used where it is installed
	@PYTHONPATH=.:tests/e2e $(BIN)/python -m tests.fuzz $(ARGS)

mutants: .venv/.dev ## Change the code in a sample of places and count the changes that tests catch
	@$(BIN)/python scripts/mutants.py $(ARGS)

soak: .venv/.dev ## Run the service under mixed load for ten minutes; memory and descriptors must stay flat
	@$(BIN)/python -m bench.soak $(ARGS)

dist: setup ## Build wheel, sdist and bill of materials into dist/, the same bytes for the same commit
	@$(BIN)/python scripts/dist.py

reference: setup ## Generate docs/reference, the dashboard and the alert rules from the code
	@$(BIN)/python scripts/reference_pages.py
	@$(BIN)/python scripts/telemetry_files.py

lock: $(DEPS)/node/.installed ## Resolve all lock files again (ARGS=--upgrade takes newer versions)
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --group build -c requirements/runtime.txt -o requirements/build.txt
	$(COMPILE) pyproject.toml --extra postgres --extra valkey -c requirements/runtime.txt -o requirements/image.txt
	$(COMPILE) --group dev -c requirements/image.txt -c requirements/build.txt -o requirements/dev.txt
	$(COMPILE) requirements/client-web3.in -o requirements/client-web3.txt
	$(COMPILE) requirements/client-starknet.in -o requirements/client-starknet.txt
	$(COMPILE) requirements/node.in -o requirements/node.txt
	$(COMPILE) requirements/go.in -o requirements/go.txt
	cd $(CLIENTS) && $(NPM) install --package-lock-only $(NPM_FLAGS)

clean: ## Remove the environments, the caches and what was built
	rm -rf .venv $(DEPS) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the project's own environment

.venv/.made: $(call absent,$(BIN)/python)
	@scripts/make-venv $(PYTHON) .venv
	@touch $@

.venv/.setup: .venv/.made requirements/runtime.txt requirements/build.txt pyproject.toml $(call absent,$(BIN)/tollgate)
	@echo 'setup: installing the locked dependencies into .venv' >&2
	@$(BIN)/python $(HASHED) -r requirements/runtime.txt -r requirements/build.txt
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: .venv/.setup requirements/dev.txt
	@echo 'setup: installing the development tools into .venv' >&2
	@$(BIN)/python $(HASHED) -r requirements/dev.txt
	@touch $@

# ---- what the end-to-end tests drive

system-parts:
	@scripts/system-parts

# web3 and starknet-py cannot share an environment: their requirements conflict.
$(DEPS)/web3/.installed: requirements/client-web3.txt $(call absent,$(DEPS)/web3/bin/python)
	@echo 'test-deps: installing web3.py' >&2
	@scripts/make-venv $(PYTHON) $(DEPS)/web3
	@$(DEPS)/web3/bin/python $(HASHED) -r requirements/client-web3.txt
	@touch $@

$(DEPS)/starknet/.installed: requirements/client-starknet.txt $(call absent,$(DEPS)/starknet/bin/python)
	@echo 'test-deps: installing starknet.py' >&2
	@scripts/make-venv $(PYTHON) $(DEPS)/starknet
	@$(DEPS)/starknet/bin/python $(HASHED) -r requirements/client-starknet.txt
	@touch $@

$(DEPS)/node/.installed: requirements/node.txt $(call absent,$(DEPS)/bin/node)
	@scripts/link-node $(PYTHON) $(DEPS)
	@touch $@

$(DEPS)/js/.installed: $(CLIENTS)/package.json $(CLIENTS)/package-lock.json $(DEPS)/node/.installed \
		$(call absent,$(DEPS)/js/node_modules/.package-lock.json)
	@echo 'test-deps: installing ethers, viem, starknet.js, anvil, oidc-provider and axe' >&2
	@mkdir -p $(DEPS)/js && rm -f $@
	@cp $(CLIENTS)/package.json $(CLIENTS)/package-lock.json $(DEPS)/js/
	@cd $(DEPS)/js && $(NPM) ci $(NPM_FLAGS)
	@touch $@

$(DEPS)/go-toolchain/.installed: requirements/go.txt $(call absent,$(DEPS)/bin/go)
	@scripts/link-go $(PYTHON) $(DEPS)
	@touch $@

# Built from locked sources (go.sum), with the installed toolchain: no other is downloaded.
$(DEPS)/go/.installed: $(CLIENTS)/go/go.mod $(CLIENTS)/go/go.sum $(DEPS)/go-toolchain/.installed \
		$(call absent,$(DEPS)/go/stripe-mock) $(call absent,$(DEPS)/go/toxiproxy-server)
	@echo 'test-deps: building stripe-mock and toxiproxy' >&2
	@mkdir -p $(DEPS)/go && rm -f $@
	@$(GO_BUILD)/stripe-mock github.com/stripe/stripe-mock
	@$(GO_BUILD)/toxiproxy-server github.com/Shopify/toxiproxy/v2/cmd/server
	@touch $@
