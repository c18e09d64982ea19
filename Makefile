# `make demo` and `make test` set up what they need on a fresh machine first: the demo what eyespan
# runs on, everything else also what tests and tables need. All versions are those of requirements.txt.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# A loose range would pull a CUDA build of several gigabytes; this one has a CPU build.
TORCH ?= torch==2.13.0
CPP := $(shell find cpp -name '*.cc' -o -name '*.h' 2>/dev/null)
export OMP_WAIT_POLICY := passive
export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test test-all check bench bench-host soak clean

setup: $(VENV)/.ready-all

$(VENV)/.ready: pyproject.toml requirements.txt CMakeLists.txt $(CPP)
	@echo "Setting up $(VENV) for this folder alone. The first time takes some minutes:"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "1/3 torch, the largest part"
	@$(PY) -m pip install --quiet $(TORCH)
	@echo "2/3 a compiler's helpers (cmake, ninja, nanobind)"
	@$(PY) -m pip install --quiet -c requirements.txt cmake ninja nanobind scikit-build-core
	@echo "3/3 transformers, and eyespan itself: its C++ core is compiled now"
	@$(PY) -m pip install --quiet -c requirements.txt --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-all: $(VENV)/.ready
	@echo "Adding what tests, tables and grammars need"
	@$(PY) -m pip install --quiet -r requirements.txt
	@touch $@

demo: $(VENV)/.ready
	$(PY) -m eyespan demo

check: setup
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	scripts/check_core.sh $(PY)

# One process a core, each with one thread: the models are tiny.
JOBS ?= 2
PYTEST := env OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist worksteal

test: check
	$(PYTEST) -m "not slow and not gpu"

test-all: check
	$(PYTEST) -m "not gpu"

# The README's table and RECAP's on the demo's set; start it again after an interruption and it goes
# on. The runs took 21 minutes on one core, the trained drafters' weights included; replay adds a few.
# An answer that differs or fails ends it with 1, after the report.
#   overview: README, Tables 2, 3, 15, Figure 6      1: Tables 1, 18, Figure 8     8: also Figure 4
#   replay: Tables 5 to 7, 14, 16, 17, Figures 3, 5, 7
BENCH_OUT ?= build/bench
BENCH_RUNS := runs/overview.toml $(foreach n,1 4 8 9 10 11 13,runs/recap_table$(n).toml)

bench: setup
	@code=0; $(PY) -m eyespan bench run $(BENCH_RUNS) --out $(BENCH_OUT) || code=$$?; \
	test $$code -le 1 || exit $$code; \
	test -e $(BENCH_OUT)/replay/manifest.json || \
		$(PY) -m eyespan replay --record demo --out $(BENCH_OUT)/replay || exit; \
	$(PY) -m eyespan bench report $(BENCH_OUT) || exit; \
	$(PY) -m eyespan bench report $(BENCH_OUT)/replay || exit; \
	$(PY) -m eyespan bench report $(BENCH_OUT) --markdown overview || exit; \
	exit $$code

bench-host: $(VENV)/.ready
	$(PY) -m benchmarks.host

# Thousands of random requests on one engine; nothing may differ, nothing may grow.
MINUTES ?= 30

soak: setup
	$(PY) -m benchmarks.soak --minutes $(MINUTES)

clean:
	rm -rf $(VENV) build dist
