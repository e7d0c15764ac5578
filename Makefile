# Each target does its own set-up: it needs Python 3.11 or newer with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUNNABLE := $(VENV)/.runnable
SOURCES := pyproject.toml client/pyproject.toml constraints.txt
# Processes that run tests.
WORKERS ?= 2
# Each training framework has an environment and a folder of tests of its own. Airflow is not among
# them, as it brings 130 packages and takes some minutes: make test-with-airflow.
FRAMEWORKS := $(filter-out airflow,$(notdir $(patsubst %/requirements.txt,%,$(wildcard tests/integrations/*/requirements.txt))))

OFFLINE := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 DO_NOT_TRACK=1 FLWR_TELEMETRY_ENABLED=0

# Compiled modules are kept, whatever the environment says: each lane compiles every test, and each
# service and command that a test starts compiles what it loads.
export PYTHONDONTWRITEBYTECODE :=

# As the command line has it: idle threads that wait for work take time from the other process.
export OPENBLAS_NUM_THREADS := 1

.PHONY: run demo clients test test-all test-both test-numerics test-system test-browser test-generated test-deploy test-image test-integrations \
  renders check safety-lines licences audit release docs benchmarks figures screenshots clean

run: $(RUNNABLE)  ## serve on SQLite at 127.0.0.1:8000
	$(BIN)/dpledger serve

demo: $(RUNNABLE)  ## train a classifier twice against a temporary service
	$(BIN)/dpledger demo

# Several may go on at once (make -j2 test test-browser), so each has a folder for its files.
PYTEST = $(BIN)/python -m pytest --basetemp $(or $(TMPDIR),/tmp)/dpledger-$@
# A file's tests run in one process and in their order. tests/lanes.py says which test is in which lane.
PARALLEL = $(PYTEST) --numprocesses $(WORKERS) --dist loadfile

test: $(INSTALLED)  ## what each change must pass, on SQLite and on a real PostgreSQL server
	$(PARALLEL) -m "unit or service"

test-all: test-both test-numerics test-system test-browser test-generated test-deploy test-integrations  ## every test

test-both: $(INSTALLED)  ## what `test` runs, and all of it on both databases
	DPLEDGER_TEST_ALL=1 $(PARALLEL) -m "unit or service"

# Arithmetic gives way to tests that wait for one another.
test-numerics: $(INSTALLED)  ## the accounting core against its definitions, every branch of it
	nice $(PARALLEL) tests/accounting tests/rows --cov

test-system: $(INSTALLED)  ## whole processes that are broken, killed or loaded; needs Debian's nginx
	DPLEDGER_TEST_ALL=1 $(PARALLEL) -m system

test-browser: $(INSTALLED)  ## the pages in a real browser; needs Debian's chromium-headless-shell, or chromium
	$(PYTEST) -o addopts="--strict-markers --strict-config -q" tests/browser

test-generated: $(INSTALLED) .generated/python/installed .generated/typescript/installed .generated/go/installed  ## clients generated from the OpenAPI document; needs node and npm, and tests Go and R if they are installed
	$(PYTEST) -o addopts="--strict-markers --strict-config -q" tests/generated

test-deploy: $(INSTALLED) .deploy/installed  ## the chart as Helm renders it, and other manifests, against schemas
	$(PYTEST) -o addopts="--strict-markers --strict-config -q" tests/deploy

renders: .deploy/installed  ## render the chart's profiles anew into tests/deploy/golden
	@for file in tests/deploy/profiles/*.yaml; do \
	  .deploy/bin/python tests/deploy/render.py $$file > tests/deploy/golden/$$(basename $$file) || exit 1; done

.deploy/installed: tests/deploy/requirements.txt
	@test -x .deploy/bin/python || $(PYTHON) -m venv .deploy
	@.deploy/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# Not among test-all: it takes some minutes and downloads a Debian.
test-image: $(INSTALLED)  ## build the image, and start it; needs root, Debian's buildah and debootstrap
	$(PYTEST) -o addopts="--strict-markers --strict-config -q -s -rs" tests/image

.generated/python/installed: tests/generated/python/requirements.txt
	@test -x .generated/python/bin/python || $(PYTHON) -m venv .generated/python
	@.generated/python/bin/python -m pip install --quiet --disable-pip-version-check \
	  --requirement $<
	@touch $@

clients: $(INSTALLED) .generated/typescript/installed .generated/go/installed  ## generate clients in TypeScript, Go and R into .generated/clients; needs node and npm
	@rm -rf .generated/clients && mkdir -p .generated/clients/typescript .generated/clients/r
	.generated/typescript/node_modules/.bin/openapi-typescript docs/api/openapi.json \
	  -o .generated/clients/typescript/schema.d.ts
	.generated/go/bin/openapi-generator-cli generate --config examples/other_languages/go/generator.yaml \
	  --input-spec docs/api/openapi.json --output .generated/clients/go/dpledger > .generated/go/log
	$(BIN)/python examples/other_languages/r/generate.py docs/api/openapi.json .generated/clients/r/dpledger.R

.generated/go/installed: examples/other_languages/go/requirements.txt
	@test -x .generated/go/bin/python || $(PYTHON) -m venv .generated/go
	@.generated/go/bin/python -m pip install --quiet --disable-pip-version-check \
	  --requirement $<
	@touch $@

.generated/typescript/installed: $(wildcard tests/generated/typescript/package*.json)
	@mkdir -p .generated/typescript
	@cp $^ .generated/typescript
	@cd .generated/typescript && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

test-integrations: $(FRAMEWORKS:%=test-with-%)  ## the client in real training loops

test-with-%: $(INSTALLED) .integrations/%/installed
	DPLEDGER_COMMAND=$(CURDIR)/$(BIN)/dpledger OMP_NUM_THREADS=1 $(OFFLINE) \
	  .integrations/$*/bin/python -m pytest tests/integrations/$*

.PRECIOUS: .integrations/%/installed
.integrations/%/installed: tests/integrations/%/requirements.txt \
    tests/integrations/%/constraints.txt client/pyproject.toml
	@echo "Installing what the tests with $* need; this is done once"
	@$(PYTHON) -m venv .integrations/$*
	@.integrations/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --requirement tests/integrations/$*/requirements.txt \
	  --constraint tests/integrations/$*/constraints.txt --editable ./client pytest
	@touch $@

check: $(INSTALLED)  ## format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

safety-lines: $(INSTALLED)  ## delete each safety line in a copy, and see its test fail
	$(BIN)/python -m tests.safety_lines

licences: $(INSTALLED)  ## every installed package and its licence; fails if one is not allowed
	$(BIN)/pip-licenses --with-system

audit: .audit/installed  ## known vulnerabilities of the pinned versions; fails if it cannot ask
	@.audit/bin/python -c 'import socket; socket.create_connection(("api.osv.dev", 443), 10)' \
	  2>/dev/null || { \
	  echo "The advisory service api.osv.dev cannot be reached: NOTHING WAS AUDITED."; exit 1; }
	.audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict \
	  --vulnerability-service osv --progress-spinner off

# An environment of its own: what asks is no part of what is asked about.
.audit/installed: deploy/audit.txt
	@test -x .audit/bin/python || $(PYTHON) -m venv .audit
	@.audit/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

release: .release/installed  ## build, try and describe both packages in dist/; TAG=v1.2.3 must name them
	.release/bin/python -m deploy.release.release $(if $(TAG),--tag $(TAG))

.release/installed: deploy/release/requirements.txt
	@test -x .release/bin/python || $(PYTHON) -m venv .release
	@.release/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

benchmarks: $(INSTALLED)  ## print the benchmark tables; peers are compared if installed
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/accountant.py
	$(BIN)/python benchmarks/schemes.py
	$(BIN)/python benchmarks/scheme_bars.py
	$(BIN)/python benchmarks/last_iterate.py
	$(BIN)/python benchmarks/capabilities.py
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python benchmarks/starts.py
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/new_noises.py
	$(BIN)/python benchmarks/changing_noise.py
	$(BIN)/python benchmarks/bulk.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/watchers.py
	$(BIN)/python benchmarks/readers.py
	$(BIN)/python benchmarks/race.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/outage.py
	$(BIN)/python benchmarks/logs.py
	$(BIN)/python benchmarks/tamper.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/certificates.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/refused.py

docs: .docs/installed  ## build the documentation site in .docs/site; fails at a link that leads to nothing
	.docs/bin/python -m deploy.site.sources .docs/source
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --strict --config-file deploy/site/mkdocs.yml

.docs/installed: deploy/site/requirements.txt
	@test -x .docs/bin/python || $(PYTHON) -m venv .docs
	@.docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

figures: $(INSTALLED)  ## redraw the figures of docs/theory/figures.md
	$(BIN)/dpledger figures --out docs/theory/figures

screenshots: $(INSTALLED)  ## take the pictures of docs/screenshots anew; needs Debian's chromium
	$(BIN)/python -m tests.browser.screenshots

# What `run` and `demo` need, and what else a change needs; the second brings the first.
$(RUNNABLE): EXTRA := demo
$(INSTALLED): EXTRA := dev
$(RUNNABLE) $(INSTALLED): $(SOURCES)
	@command -v $(PYTHON) >/dev/null || { \
	  echo "dpledger needs Python 3.11 or newer, and '$(PYTHON)' was not found. Install it, or say"; \
	  echo "which to use: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "dpledger needs Python 3.11 or newer; '$(PYTHON)' is"; $(PYTHON) --version; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks the venv module. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing dpledger and what it needs; this is done once"
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --editable ./client --editable '.[$(EXTRA)]'
	@touch $(RUNNABLE) $@

clean:
	rm -rf $(VENV) .integrations .audit .generated .release .deploy .docs dist
