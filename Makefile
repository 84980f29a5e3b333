# Every target sets up .venv by itself; nothing else on the machine is touched.
.PHONY: demo test check format bench sanitize clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The constraints hold in build environments too: an unpinned torch is gigabytes.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# An editable install knows the files that there were: its stamp carries a sum over their names.
FILES := $(shell find src -name '*.py' | sort | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/.installed-$(FILES)
NATIVE := CMakeLists.txt $(shell find native -type f)

$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	touch $@

demo: $(STAMP)  ## exactness and growth of time, on this machine
	$(BIN)/fastmax demo

test: $(STAMP)  ## all tests, with the coverage that must hold
	$(BIN)/python -m pytest --numprocesses 2 --cov --cov-fail-under 95

check: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## every benchmark; results go to results/
	$(BIN)/fastmax bench core --out results/core.json
	$(BIN)/fastmax bench kernel --out results/kernel.json
	$(BIN)/fastmax bench decode --out results/decode.json
	$(BIN)/fastmax bench generate --out results/generate.json
	$(BIN)/fastmax bench dropout --out results/dropout.json
	$(BIN)/fastmax bench decay --out results/decay.json
	$(BIN)/fastmax bench long --out results/long.json
	$(BIN)/fastmax bench lra --out results/lra.json

sanitize: $(STAMP)  ## the kernel tests under the address and undefined-behaviour sanitizers
	tools/sanitize.sh

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
