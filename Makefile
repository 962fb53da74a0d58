# Each target does its own set-up: a fresh clone needs only Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-api test-clients test-faults test-scale test-package fuzz docs format bench clean

demo: $(DEMO)  ## index the bundled sample, search it by words and by meaning, evaluate it
	$(BIN)/rankwell demo

test: $(STAMP)  ## lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal  # neighbours share fixtures

format: $(STAMP)  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-scale: $(STAMP)  ## the tests that need Ray: local clusters of worker processes
	$(PIP) -e extras/rankwell-ray
	$(BIN)/pytest extras/rankwell-ray/tests

docs: $(DEMO)  ## the pages as a web site, with a reference of the commands and the Python API: out/site/README.html
	$(PIP) -e '.[models,serve,docs]'
	$(BIN)/python -m sphinx -q -W -b html docs out/site

test-clients: $(STAMP)  ## the clients of Cohere, Voyage, LiteLLM, LlamaIndex, Haystack and others, and exported models in Qdrant, LanceDB and PostgreSQL, in environments of their own: ten minutes
	RANKWELL_ENVIRONMENTS=$(CURDIR)/out/environments $(BIN)/pytest tests/serve/test_clients.py tests/rank/test_elsewhere.py

test-faults: $(STAMP)  ## 1,000 flipped bits, a fault at each operation, kills, a full and a read-only disk: half an hour
	RANKWELL_FAULTS=1000 $(BIN)/pytest -s tests/faults tests/retrieve/test_durability.py tests/rank/test_cache.py
	RANKWELL_KILLS=50 $(BIN)/pytest -s -k kill tests/serve/test_search_log.py tests/training/fit/test_refit.py

fuzz: $(STAMP)  ## mutated inputs for every reader, MINUTES=10 of them; what goes wrong is kept in tests/fuzz and replayed by `make test`
	$(BIN)/python bench/fuzz_readers.py --minutes $(or $(MINUTES),10) --seed $$(date +%s) --keep tests/fuzz

test-api: $(STAMP)  ## schemathesis against a service, and a service without torch, each in an environment of its own
	RANKWELL_ENVIRONMENTS=$(CURDIR)/out/environments $(BIN)/pytest tests/serve/test_description.py

test-package: $(STAMP)  ## the wheel in empty environments: the core alone, with the oldest packages, and what README types
	RANKWELL_ENVIRONMENTS=$(CURDIR)/out/environments $(BIN)/pytest tests/package

DATA ?= $(or $(RANKWELL_DATA),../shared/data)
bench: $(STAMP)  ## every command beside its kernels and peers, then first stages side by side (an hour; needs the public data)
	$(PIP) -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python bench/commands.py $(DATA) --out docs/results/commands/commands.json
	$(BIN)/python bench/first_stage.py

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rankwell needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'once: rankwell, torch and what they need, into $(VENV); the model is in the package'
	$(PIP) -e '.[models,serve]'
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@ $(DEMO)

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
