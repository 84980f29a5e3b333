# Every target sets up .venv by itself; nothing else on the machine is touched.
.PHONY: demo test test-slow coverage test-generic test-triton test-gpu check format docs package bench sanitize fuzz clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The constraints hold in build environments too: an unpinned torch is gigabytes.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# An editable install knows the files that there were: its stamp carries a sum over their names. It compiles the kernel for this
# machine alone; `make package` compiles and tests all levels.
FILES := $(shell find src lab/src -name '*.py' | sort | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/.installed-$(FILES)
NATIVE := CMakeLists.txt $(shell find native -type f)

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,dev,docs,release]' --editable './lab[test]'
	touch $@

demo: $(STAMP)  ## the paper's experiments in miniature on this machine, and their report, in out/quick
	$(BIN)/fastmax-lab reproduce --budget quick --out out/quick
	$(BIN)/fastmax-lab report out/quick

# Each worker starts with one half of the tests in order, and shares fixtures; one that is done takes over from the other.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test: $(STAMP)  ## the tests, in minutes; with what takes many seconds each left out
	$(PYTEST)

test-slow: $(STAMP)  ## the slow tests: compilers, trainings, conversions, a browser, several processes
	$(PYTEST) --slow -m slow

coverage: $(STAMP)  ## the tests, with the coverage that must hold; tracing takes half as long again
	$(PYTEST) --cov --cov-fail-under 95

test-generic: $(STAMP)  ## on a machine without our instruction levels: the kernel, the definition, the layers, the states, the command
	$(PYTEST) tests/backends tests/nn tests/state tests/test_*.py

test-triton: $(STAMP)  ## the whole suite of the Triton backend in Triton's interpreter, all kernels compiled for all targets: a quarter of an hour of CPU time
	$(PYTEST) --interpreted -m interpreted tests/backends

# With VENV=... in an environment that is there, whose torch fits the driver: nothing is installed (CONTRIBUTING.md).
test-gpu: $(if $(filter .venv,$(VENV)),$(STAMP))  ## on a machine with a GPU: every backend there; ends in a line to report (docs/gpu.md)
	$(BIN)/python -m pytest -m gpu --gpu-report tests/backends

check: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter native/%,$(NATIVE))
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter native/%,$(NATIVE))
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## the documentation into site/, without network; a broken link, anchor or reference ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

package: $(STAMP)  ## the source distribution, the wheel made of it, and both tried in environments of their own, the kernel at every level; they are in dist/
	rm -rf dist
	$(BIN)/python -m build --config-setting cmake.define.FASTMAX_LEVELS=all --outdir dist/built .
	$(BIN)/python tools/repair_wheel.py dist/built dist
	$(BIN)/python -m pytest --numprocesses 0 --wheel "$$(ls dist/*.whl)" -m packaged tests/packaging

BENCHMARKS := core kernel decode generate dropout decay values narrow distributed long lra
bench: $(STAMP)  ## every benchmark; results go to lab/results/bench/
	$(foreach name,$(BENCHMARKS),$(BIN)/fastmax-lab bench $(name) --out lab/results/bench/$(name).jsonl &&) true

sanitize: $(STAMP)  ## the kernel tests under the address and undefined-behaviour sanitizers
	tools/sanitize.sh

MINUTES ?= 10
SEED ?= 0
fuzz: $(STAMP)  ## random calls on every backend against the definition; MINUTES and SEED choose how long and which
	$(BIN)/python -m tools.fuzz --minutes $(MINUTES) --seed $(SEED)

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
