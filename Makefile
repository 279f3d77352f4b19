# Everything here works on a fresh machine with Python >= 3.10, git and make. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
# Tests wait for processes more than they compute, so three fit on two cores.
WORKERS ?= 3
CORPUS ?= ../shared/corpus
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# One tested Node: the one that a Python wheel brings into the virtual environment.
NPM := $(PY) hatch_build.py npm

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types unit web browser-test test-matrix bench backtest clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

# Each step leaves a stamp, so that a second `make` is instant. ------------------------------------------------------
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "TrainWatch needs Python 3.10 or newer, and $(PYTHON) is none; name one with make PYTHON=..."; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "No virtual environment could be made; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.runtime: $(VENV)/.made pyproject.toml scripts/install_torch.py
	$(PY) scripts/install_torch.py
	TRAINWATCH_WEB=skip $(PIP) install --quiet --editable '.[server,demo]' --group web
	@touch $@

$(VENV)/.tools: $(VENV)/.runtime
	$(PIP) install --quiet --group dev
	$(PY) -m scripts.install_postgres
	$(PY) -m scripts.install_chromium
	@touch $@

# ----------------------------------------------------------------------------------------------------------------------
setup: $(VENV)/.tools  ## Make .venv with everything for development, and build the dashboard
	@$(PY) hatch_build.py

demo: $(VENV)/.runtime  ## Start the dashboard and train: a healthy run, then one that becomes NaN (DEMO="--steps 50" ...)
	@$(PY) hatch_build.py
	@exec $(PY) -m trainwatch demo $(DEMO)

test: setup  ## Everything: lint, types, unit, integration, web and browser tests
	$(MAKE) --no-print-directory lint types unit web browser-test

lint: $(VENV)/.tools  ## ruff and biome
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(NPM) run lint

types: $(VENV)/.tools  ## mypy --strict and tsc
	$(PY) -m mypy
	$(NPM) run typecheck

unit: setup  ## Python tests that need no browser
	$(PY) -m pytest -m 'not browser and not matrix_full' -n $(WORKERS) --dist loadfile --no-loadscope-reorder

web: $(VENV)/.tools  ## Test and build the web UI
	$(NPM) run test
	$(PY) hatch_build.py

browser-test: setup  ## Tests that drive a real Chromium
	$(PY) -m pytest -m browser -n 2 --dist loadfile --no-loadscope-reorder

test-matrix: setup  ## Every setup and fault in docs/setups.md, and its table written anew
	$(PIP) install --quiet --group matrix
	rm -rf build/matrix
	MATRIX_RESULTS=$(CURDIR)/build/matrix $(PY) -m pytest tests/matrix -m 'matrix_full or not matrix_full' -n $(WORKERS) --dist loadfile --timeout 900; \
	  status=$$?; $(PY) -m tests.matrix.table build/matrix || exit 1; exit $$status


bench: setup  ## Print the figures that the README quotes
	@for script in benchmarks/*.py; do echo "== $$script"; $(PY) $$script || exit 1; done

backtest: $(VENV)/.runtime  ## Try the rules on published runs with labels (CORPUS=folder), and print the tables of docs/backtests.md
	@$(PY) scripts/backtest.py $(CORPUS) $(if $(WRITE),--write docs/backtests.md)

clean:  ## Remove what was built; .venv stays
	rm -rf build dist web/node_modules web/dist trainwatch/server/static .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
