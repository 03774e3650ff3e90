# make demo: the main job on the embedded default    make test: everything that must stay true
# make bench: speed as ratios within one run          make docs: the reference and the table of faults, written by program and tests
# make soak: kills, hostile inputs, long and large    make audit: known vulnerabilities of the tested set, asked of PyPI
# make trace: the memory of real training steps, traced without weights, beside its price

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test bench soak trace docs lint audit clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("routing needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m pipelines.demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

bench: $(STAMP)
	$(BIN)/python -m pipelines.bench
	$(BIN)/python -m pipelines.bench_estimate
	$(BIN)/python -m pipelines.bench_fit
	$(BIN)/python -m pipelines.bench_guard
	$(BIN)/python -m pipelines.bench_prefix
	$(BIN)/python -m pipelines.bench_query
	$(BIN)/python -m pipelines.bench_report

soak: $(STAMP)
	$(BIN)/python -m pipelines.soak
	$(BIN)/python -m pipelines.soak_inputs
	$(BIN)/python -m pipelines.soak_large

trace: $(STAMP)
	$(BIN)/python -m pipelines.trace.grid

# Fails where nobody answers. An environment of its own: what pip-audit needs is no part of the tested set. --strict: a package nobody knows is no clean one.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(VENV)-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

docs: $(STAMP)
	$(BIN)/python -m pytest -m fault --write-faults --numprocesses auto --maxprocesses 4 --dist loadfile
	$(BIN)/python -m pipelines.write_docs

clean:
	rm -rf $(VENV) $(VENV)-audit build dist *.egg-info
