# Everything here sets itself up: it needs Python 3.10+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: test lint demo bench docs results clean

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

# Every table of results/tables; days of computing from nothing, but what is finished is not run again.
# One alone: experiments/losses.py TABLE, which also runs the searches that it needs. BCCD is not shipped:
# make results BCCD=PATH WEIGHTS=mobilenet_v2.pth
ABLATIONS := substitutions functions-and-scale localization segments denominator heads proposals twelve-seeds \
	algorithms-at-length substitutions-again denominator-again
results: $(READY)
	$(BIN)/python experiments/losses.py retinanet faster-rcnn deformable-detr
	$(BIN)/python experiments/losses.py retinanet-again faster-rcnn-again deformable-detr-again
	$(BIN)/python experiments/losses.py $(ABLATIONS)
	$(BIN)/python experiments/algorithms.py algorithms algorithms-again
ifdef BCCD
	$(BIN)/python experiments/losses.py bccd bccd-again transfer-again safe trap --data $(BCCD) --weights $(WEIGHTS)
endif
	$(BIN)/python experiments/proxy.py
	$(BIN)/python experiments/presets.py
	$(BIN)/python experiments/cost.py
	$(BIN)/python docs/make_figures.py

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
