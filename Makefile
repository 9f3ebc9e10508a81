# `make demo` and `make test` need nothing but Python 3.10-3.12 and make; the rest goes into .venv.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3 python; do \
	$$p -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup
EXPERIMENTS := $(patsubst scripts/experiments/%/__main__.py,%,$(wildcard scripts/experiments/*/__main__.py))

# Real data beside the checkout, where there are any; see `gpflow_ext.datasets`.
ifndef GPFLOW_EXT_DATA
ifneq ($(wildcard ../shared/data/README.md),)
export GPFLOW_EXT_DATA := $(abspath ../shared/data)
endif
endif
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test check slow lint audit bench docs pictures tutorials notebooks reproduce reproduce-quick zoo packages clean

demo: $(SETUP)
	$(BIN)/python scripts/demo.py

# The linters and the tests that a change touches: a minute and a half.
check: lint
	$(BIN)/python -m scripts.tools.check $(CHECK_ARGS)

# The next share of the long tests, recorded in docs/results/slow_tests.jsonl.
slow: $(SETUP)
	$(BIN)/python -m scripts.tools.slow_tests $(SLOW_ARGS)

test: $(SETUP)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

bench: $(SETUP)
	$(BIN)/python -m scripts.benchmarks all

docs: $(SETUP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(SETUP)
	$(BIN)/python -m scripts.tools.pictures

# The outputs and pictures that the tutorials show, some minutes; and the tutorials as notebooks.
tutorials: $(SETUP)
	$(BIN)/python -m scripts.tools.tutorials

notebooks: $(SETUP)
	$(BIN)/python -m scripts.tools.tutorials --notebooks notebooks

# The papers' experiments: hours, into docs/results, what is recorded there is not measured again; or minutes, into runs.
reproduce reproduce-quick: $(SETUP)
	set -e; for method in $(EXPERIMENTS); do \
		echo "$$method"; $(BIN)/python -m scripts.experiments.$$method $(if $(findstring quick,$@),--quick); done

zoo: $(SETUP)
	$(BIN)/python -m scripts.tools.make_zoo

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

# Known vulnerabilities of the exact versions that the tests run with; needs the network.
audit: $(SETUP)
	$(BIN)/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

# The sdist and the wheel in clean environments of 3.10, 3.11 and 3.12; needs a package index.
packages: $(SETUP)
	$(BIN)/python -m scripts.tools.packages

$(SETUP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.10, 3.11 or 3.12 was found. Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(SETUP)

clean:
	rm -rf $(VENV) runs notebooks site build dist .pytest_cache .mypy_cache .ruff_cache
