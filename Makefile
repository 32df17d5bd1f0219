# Everything here sets itself up: it needs Python 3.10+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: test lint demo bench docs clean

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two workers of one thread each: threads that spin would fight

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/paploss demo

bench: $(READY)
	$(BIN)/python benchmarks/loss_speed.py
	$(BIN)/python benchmarks/loss_memory.py

docs: $(READY)  # site/index.html; broken links and anchors are errors
	$(BIN)/mkdocs build --strict

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
