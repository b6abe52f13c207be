# Every target makes what it needs: a virtual environment from python3, nothing by hand before.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
CONFIG ?= configs/tiny.py
# As many as there are cores and memory for, see tests/conftest.py.
WORKERS ?= auto
# Tests start many processes: each loads what the first one compiled.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: train compare test test-all lint clean

train: $(VENV)/installed
	$(RUN) -m launch.train --config=$(CONFIG) $(ARGS)

compare: $(VENV)/installed
	$(RUN) -m launch.sweep --config=configs/ablations/compare.py $(ARGS)

test: $(VENV)/installed-test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -n $(WORKERS) --dist=loadfile -m "not slow" $(ARGS)

test-all: $(VENV)/installed-test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -n $(WORKERS) --dist=loadfile $(ARGS)

lint: $(VENV)/installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip

$(VENV)/installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e .
	@touch $@

$(VENV)/installed-test: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e ".[test]"
	@touch $@ $(VENV)/installed
