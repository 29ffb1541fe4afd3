# make demo: set up, then replay a recorded run whose tool calls are really executed.
# make test: set up, then lint, types, import contracts and the whole test suite.
# Both work from a bare clone; a second call does only what has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A GPU machine keeps the torch it has (>= 2.11); a CPU machine gets the CPU build of this version.
TORCH := torch==2.13.0

.PHONY: demo test install clean

demo: $(VENV)/.installed-demo
	@echo "==> ringsmith run 1 --platform cpu --world-size 2"
	$(BIN)/ringsmith run 1 --platform cpu --world-size 2

test: install
	@echo "==> lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "==> types"
	$(BIN)/mypy
	@echo "==> import contracts"
	$(BIN)/lint-imports --no-cache
	@echo "==> tests"
	$(BIN)/pytest -m "not slow"
	@echo "==> a hundred kills at random"
	$(BIN)/pytest -m slow -n 0
	@echo "==> benchmark: seconds per verdict on this machine (printed, never judged)"
	@mkdir -p build
	$(BIN)/python -m harness.benchmark speed --platform cpu >build/benchmark-cpu.json

install: $(VENV)/.installed

# With everything, which the tests need.
$(VENV)/.installed: pyproject.toml scripts/install
	PYTHON=$(PYTHON) TORCH="$(TORCH)" scripts/install $(VENV) models,plots,inspect,ray,remote,node,serve,mcp,debug,dev
	@touch $@ $(VENV)/.installed-demo

# With what a run needs: the rest is another minute and a half.
$(VENV)/.installed-demo: pyproject.toml scripts/install
	PYTHON=$(PYTHON) TORCH="$(TORCH)" scripts/install $(VENV) models,plots
	@touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
