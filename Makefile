# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
#
# Every target sets up what it needs: on a fresh clone a virtual environment with the pinned
# dependencies and the compiled module, later only what changed.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install -qq --disable-pip-version-check --constraint constraints.txt

CPP_SOURCES := $(wildcard $(foreach part,flashmask/csrc vmm/csrc vmm/csrc/*,$(part)/*.cpp $(part)/*.h))
DEPENDENCIES := $(VENV)/.dependencies
NATIVE := build/.native
READY := $(DEPENDENCIES) $(NATIVE)

NO_GPU := gpu-check: torch.cuda.is_available() is False on this machine. Nothing was checked.
OLD_PYTHON := Python 3.10 or newer is needed. Choose one with: make PYTHON=...

.PHONY: help demo test browser check format bench bench-checkpoints bench-memory gpu-check wheel clean

help:
	@echo "make demo       train a small language model on packed documents, with a picture and a table"
	@echo "make test       run the tests"
	@echo "make check      lint, formatting and types"
	@echo "make format     put Python and C++ into the form that check wants"
	@echo "make bench      time the CPU kernels against the attention of torch"
	@echo "make bench-checkpoints   time loads, saves and conversions beside torch DCP and others"
	@echo "make bench-memory   replay traces under all allocators, time the allocator beside others"
	@echo "make gpu-check  run the tests that need a GPU"
	@echo "make wheel      build a wheel into dist/"
	@echo "make clean      remove all that was built; the virtual environment stays"

demo: $(READY)
	$(RUN) examples/train_packed_lm.py

test: $(READY) browser
	$(RUN) -m pytest -q

# The tests of the memory viewer drive Chromium. Where a container lets us, it is installed; BROWSER=0 leaves
# it out, and those tests then say that they were skipped.
browser:
	@test "$(BROWSER)" != 0 || exit 0; \
	for name in chromium chromium-browser google-chrome; do \
	    command -v $$name > /dev/null && exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo "Installing chromium (apt-get) for the tests of the memory viewer"; \
	    { apt-get update -qq && apt-get install -y -qq chromium; } > /dev/null 2>&1 && exit 0; \
	fi; \
	echo "There is no chromium: the tests of the memory viewer's page are skipped"

check: $(DEPENDENCIES)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP_SOURCES)

format: $(DEPENDENCIES)
	$(RUN) -m ruff check --fix-only --quiet .
	$(RUN) -m ruff format .
	$(VENV)/bin/clang-format -i $(CPP_SOURCES)

bench: $(READY)
	$(RUN) -m benchmarks.flashmask.cpu

bench-checkpoints: $(DEPENDENCIES)
	$(RUN) -m benchmarks.flexckpt

bench-memory: $(READY)
	$(RUN) -m benchmarks.vmm.fragmentation
	$(RUN) -m benchmarks.vmm.replay_speed
	$(RUN) -m benchmarks.vmm.hot_path
	$(RUN) -m benchmarks.vmm.cpu_training

gpu-check: $(READY)
	@$(RUN) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("$(NO_GPU)")'
	$(RUN) -m pytest -q -m gpu
	$(RUN) -m benchmarks.vmm.gpu_check

# setuptools packs whatever lies in its build folder, also files which have since been deleted.
wheel: $(DEPENDENCIES)
	rm -rf build/lib* build/bdist*
	PORTABLE=1 $(RUN) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf build dist demo_out *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find flashmask vmm -name '*.so' -delete
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# torch comes first: building the package asks it for its headers, and building deepspeed imports it.
$(DEPENDENCIES): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("$(OLD_PYTHON)")'
	@test -x $(RUN) || echo "Creating $(VENV)"
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned dependencies into $(VENV)"
	@$(PIP) torch setuptools
	@BUILD_NATIVE=0 $(PIP) --no-build-isolation --editable '.[demo,transformers,deepspeed,dev]'
	@touch $@

$(NATIVE): $(DEPENDENCIES) setup.py $(CPP_SOURCES)
	@echo "Compiling flashmask._C, vmm._core and vmm._torch_cpu"
	@$(RUN) setup.py --quiet build_ext --inplace
	@touch $@
