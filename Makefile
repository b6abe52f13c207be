# Every target makes what it needs: a virtual environment from python3, nothing by hand before.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
CONFIG ?= tiny
# The oldest packages that the base install declares, as jax==0.8.3.
FLOOR = $(shell sed -n '/^install_requires/,/^$$/s/^  \(.*\)>=/\1==/p' setup.cfg)
FLOOR_TESTS = tests/combinators tests/interop/linen_test.py tests/interop/linen_stream_test.py \
  tests/models/depth_test.py tests/models/residual_stream_test.py tests/models/decode_test.py \
  tests/kernels/depth_attention_test.py tests/kernels/sources_test.py \
  tests/kernels/unused_outputs_test.py
# What other programs are asked about, in their newest releases.
LIVE = torch transformers accelerate lm-eval
LIVE_TESTS = tests/interop tests/study/evaluation tests/combinators/published
# A GPU machine without network: what is carried to it, and a fake for it, see docs/gpu.md.
KIT_PYTHON ?= python3.12
KIT_GLIBC = $(foreach n,2_28 2_27 2_24 2_17,--platform=manylinux_$(n)_x86_64) \
  --platform=manylinux2014_x86_64 --platform=manylinux1_x86_64
KIT_RUN = $(shell unshare --net --map-root-user true 2>/dev/null && echo unshare --net --map-root-user) \
  env JAX_PLATFORMS=cpu PYTHONPATH=$(VENV)-gpu/site $(VENV)-gpu/bin/python
KIT_TESTS = $(wildcard tests/kernels/*_gpu_test.py)
# As many as there are cores and memory for, see tests/conftest.py.
WORKERS ?= auto
# A file is one worker's; those that take long come first, see tests/conftest.py.
SHARE = --dist=loadfile --no-loadscope-reorder
# What takes seconds; `slow` is for CI, and `release` for before a release, see setup.cfg.
QUICK = not slow and not release
# Tests start many processes: each loads what the first one compiled.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: train compare test test-slow test-all test-floor test-live gpu-kit lint docs clean

train: $(VENV)/installed
	$(RUN) -m resjax train --config=$(CONFIG) $(ARGS)

compare: $(VENV)/installed
	$(RUN) -m resjax sweep --config=ablations/compare $(ARGS)

test: $(VENV)/installed-test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -n $(WORKERS) $(SHARE) -m "$(QUICK)" $(ARGS)

test-slow: $(VENV)/installed-test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -n $(WORKERS) $(SHARE) -m "slow and not release" $(ARGS)

test-all: $(VENV)/installed-test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -n $(WORKERS) $(SHARE) $(ARGS)

# Combinators on the oldest JAX and Flax that setup.cfg declares, without the packages of the trainer.
test-floor: $(VENV)-floor/installed
	JAX_PLATFORMS=cpu $(VENV)-floor/bin/python -m pytest -n $(WORKERS) $(SHARE) \
	  -m "$(QUICK)" $(or $(ARGS),$(FLOOR_TESTS))

# Exported folders in transformers, published modules, scores of lm-eval: all tests of them.
test-live: $(VENV)-live/installed
	HF_HUB_OFFLINE=1 JAX_PLATFORMS=cpu $(VENV)-live/bin/python -m pytest -n $(WORKERS) $(SHARE) \
	  $(or $(ARGS),$(LIVE_TESTS))

# Without a network where the kernel lets one take it away. No torch: it is there on the machine.
gpu-kit: .whl $(VENV)-gpu/installed
	rm -rf $(VENV)-gpu/site $(VENV)-gpu/runs
	$(KIT_RUN) -m pip install --quiet --no-index --no-deps --no-compile --target $(VENV)-gpu/site .whl/*.whl
	! $(KIT_RUN) -m pip check | grep -v -e "requires torch," -e "requires triton," -e "^No broken"
	$(KIT_RUN) -m pytest -q -n $(WORKERS) $(SHARE) -m "$(QUICK)" $(KIT_TESTS)
	$(KIT_RUN) -m resjax train --config=tiny --workdir=$(VENV)-gpu/runs/tiny --config.train.steps=20 \
	  --config.optim.warmup_steps=5 --config.data.root=$(VENV)-gpu/runs/data
	$(KIT_RUN) -m resjax bench gpu_day --dry_run --minutes=2 --out=$(VENV)-gpu/runs/gpu_day
	@echo "$$(ls .whl | wc -l) wheels, $$(du -m .whl | cut -f1) MB, for Python 3.12 and JAX 0.11.2: .whl"

lint: $(VENV)/installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(VENV)/installed-docs
	$(VENV)/bin/codespell --config docs/site/codespell.cfg *.md docs resjax launch configs
	rm -rf docs/generated
	JAX_PLATFORMS=cpu $(RUN) -m sphinx --fail-on-warning --keep-going --quiet \
	  --conf-dir docs/site docs build/site $(ARGS)
	$(RUN) -m tests.site_widths build/site

clean:
	rm -rf $(VENV) $(VENV)-floor $(VENV)-live $(VENV)-gpu .whl build docs/generated *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip

$(VENV)/installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e ".[train]"
	@touch $@

# ml_collections: tests build decoders from configs.
$(VENV)-floor/installed: setup.cfg pyproject.toml
	$(MAKE) VENV=$(VENV)-floor $(VENV)-floor/bin/python
	$(VENV)-floor/bin/python -m pip install --quiet -e . $(FLOOR) ml_collections hypothesis \
	  pytest pytest-xdist pytest-cov pytest-timeout
	@touch $@

$(VENV)-live/installed: setup.cfg pyproject.toml
	$(MAKE) VENV=$(VENV)-live $(VENV)-live/installed-test
	$(VENV)-live/bin/python -m pip install --quiet --upgrade $(LIVE)
	@touch $@

$(VENV)/installed-test: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e ".[test]"
	@touch $@ $(VENV)/installed

$(VENV)/installed-docs: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet -e ".[train,docs]"
	@touch $@

# A package without a wheel of its own is built here: it must be one of Python alone.
.whl: launch/bench/gpu_kit.txt | $(VENV)/bin/python
	rm -rf $@ $@.part
	$(RUN) -m pip download --quiet --no-deps --python-version=3.12 --implementation=cp $(KIT_GLIBC) \
	  --dest=$@.part --requirement=$<
	for source in $@.part/*.tar.gz; do \
	  $(RUN) -m pip wheel --quiet --no-deps --wheel-dir=$@.part $$source && rm $$source || exit 1; done
	mv $@.part $@
	@touch $@

$(VENV)-gpu/installed: launch/bench/gpu_machine.txt
	@$(KIT_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null || \
	  { echo "error: $(KIT_PYTHON) is missing or no Python 3.12; name one: make gpu-kit KIT_PYTHON=PATH"; exit 1; }
	$(KIT_PYTHON) -m venv $(VENV)-gpu
	$(VENV)-gpu/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-gpu/bin/python -m pip install --quiet --requirement=$<
	@touch $@
