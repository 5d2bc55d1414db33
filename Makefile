# One list of commands; continuous integration calls the same.
VENV ?= .venv
PYTHON ?= python3
WORKERS ?= 2
BIN := $(VENV)/bin
# A torch that is there already is kept. The upper bound keeps the CPU build where the index has one.
TORCH := 'torch>=2.11,<2.14'
QUICK := tests/engine tests/schedulers tests/kv_allocators tests/plugins tests/text
UNMARKED := not slow and not clients and not gpu and not multigpu and not weights

.PHONY: help demo check format quick test slow clients coverage gpu fuzz site clean

help:
	@echo "make demo    create the environment and run the embedded model"
	@echo "make quick   the core's tests, a minute on two idle cores"
	@echo "make test    create the environment if needed; checks and tests"
	@echo "make check   format, lint, types, import rules"
	@echo "make slow    the long tests: full products, soak runs"
	@echo "make clients the server's tests with lm-eval, LangChain, LiteLLM, guidellm and aiperf, in an environment of their own"
	@echo "make fuzz    the fuzzers at length: folders, chats, traces, requests, configurations; about half an hour"
	@echo "make site    the documentation as a site, in build/site"
	@echo "make gpu     the tests that need an accelerator"

$(VENV)/.base: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and nanofw into $(VENV) (about 200 MB the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# One thread: the embedded model is so small that more of them wait for each other on a busy machine.
demo: $(VENV)/.base
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/nanofw run

check: $(VENV)/.dev
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/pyright --threads $(WORKERS) --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

quick: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m '$(UNMARKED)' --ignore-glob='*_faults.py' $(QUICK)

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m '$(UNMARKED)'

coverage: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m '$(UNMARKED)' --cov --cov-report=term:skip-covered

slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m 'slow and not clients and not gpu and not multigpu and not weights'

# Programs of others that are clients of the server; docs/serving.md names the versions that were tried.
CLIENTS := 'lm-eval[api,hf]' langchain-openai litellm guidellm aiperf
CLIENTS_VENV ?= build/clients
$(CLIENTS_VENV)/.clients: pyproject.toml Makefile
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' $(CLIENTS)
	@touch $@

# aiperf brings dash, and the plugin of dash for pytest warns when it is loaded, which is an error here.
clients: $(CLIENTS_VENV)/.clients
	OMP_NUM_THREADS=1 $(CLIENTS_VENV)/bin/python -m pytest -q -p no:dash -m clients tests/server/clients

# FOLDERS of each family; the seeds are FIRST to FIRST + FOLDERS - 1.
FOLDERS ?= 500
# Batches of four random requests: five minutes.
BATCHES ?= 5000
FIRST ?= 0
# Configurations take ten minutes, chats two, traces and the planted faults, which must be found, one each.
CASES ?= 20000
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.checkpoints --folders $(FOLDERS) --first $(FIRST)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.chats $(FIRST) $(CASES)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.tokenizer_folders $(FIRST) $(FOLDERS)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.traces $(FIRST) $(CASES)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.requests $(FIRST) $(BATCHES)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.configs $(FIRST) $(CASES)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.planting

gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m 'gpu or multigpu'

site: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	$(BIN)/python tools/site.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
