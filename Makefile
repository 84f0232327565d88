# `make demo`, `make test` and `make lint` each prepare .venv by themselves, `make lowest` .venv-lowest, `make cuda` .venv-cuda. PYTHON
# picks the interpreter they are made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest
CUDA := .venv-cuda
PAGES := build/pages
CUDA_LIBRARY := $(CUDA)/stand-in/libcuda.so.1
WORKERS ?= 2
DEMO_DB := demo.db
DEMO_FIGURE := reports/demo-curves.png
DEMO_REPORT := reports/demo-report.html

# Tests start one process per worker; each with one thread, or they stand in each other's way.
export OMP_NUM_THREADS ?= 1

.PHONY: help install demo test lowest cuda reliability lint docs clean
help:
	@echo "make demo   train FedAvg, Ditto and FedALA on the embedded digits, print the table, save $(DEMO_FIGURE) and $(DEMO_REPORT)"
	@echo "make test   the test suite"
	@echo "make lowest   the test suite with the oldest libraries that pyproject.toml allows; installs 6 GB in $(LOWEST)"
	@echo "make cuda   rounds of all methods on PyTorch's CUDA build, without a GPU; installs 5 GB in $(CUDA), needs g++"
	@echo "make reliability   kills, signals and starves run, import and db upgrade at 100 places each, and draws 200 federations for each method"
	@echo "make lint   ruff and mypy"
	@echo "make docs   the documentation as a site, build/site/index.html; a broken link is an error"
	@echo "make clean  remove .venv, $(LOWEST), $(CUDA) and what the demo made"

install: $(STAMP)

define environment
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' here. Install Python 3.11 or newer, or say: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); pflbench needs Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(@D)
endef

$(STAMP): pyproject.toml
	$(environment)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@mkdir -p reports
	$(BIN)/pflbench run -m fedavg -m ditto -m fedala -d digits --rounds 30 --seeds 0-2 --db $(DEMO_DB)
	$(BIN)/pflbench table accuracy -d digits --db $(DEMO_DB)
	$(BIN)/pflbench plot curves -d digits --db $(DEMO_DB) -o $(DEMO_FIGURE)
	$(BIN)/pflbench report --db $(DEMO_DB) -o $(DEMO_REPORT)
	@$(BIN)/python -c 'import pathlib, sys; print(pathlib.Path(sys.argv[1]).absolute().as_uri())' $(DEMO_REPORT)

# Where this is set, each of the many processes that tests start would compile the package anew, and pytest rewrite all assertions.
test lowest: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not slow"

# pip cannot choose the oldest versions, uv can.
$(LOWEST)/.installed: pyproject.toml
	$(environment)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[dev]'
	@touch $@

lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/pytest -n $(WORKERS) --dist loadfile -m "not slow"

# `===` takes PyTorch's CUDA build from PyPI, also where another index has a build for CPUs: by the rules 2.13.0+cpu is newer.
$(CUDA)/.installed: pyproject.toml
	@command -v $(CXX) >/dev/null || { echo "No '$(CXX)' here: make cuda needs a C++ compiler. Debian has one in the package g++" >&2; exit 2; }
	$(environment)
	$(CUDA)/bin/pip install --quiet --disable-pip-version-check torch===2.13.0 pytest pytest-xdist --editable .
	@touch $@

# Triton brings the headers of CUDA's runtime. By its name the library is the driver's as well.
$(CUDA_LIBRARY): tests/cuda/runtime.cpp $(CUDA)/.installed
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -O1 -Wall -fPIC -shared -Wl,-soname,$(@F) -o $@ $< \
	  -I$$($(CUDA)/bin/python -c 'import pathlib, triton; print(pathlib.Path(triton.__file__).parent / "backends/nvidia/include")')

cuda: $(CUDA_LIBRARY)
	LD_PRELOAD=$(abspath $<) $(CUDA)/bin/pytest -n $(WORKERS) -p no:cacheprovider --tb=short tests/cuda

reliability: export PYTHONDONTWRITEBYTECODE :=
reliability: $(STAMP)
	PFLBENCH_TRIES=100 $(BIN)/pytest -n $(WORKERS) -m "" tests/reliability
	PFLBENCH_FEDERATIONS=200 $(BIN)/pytest -n $(WORKERS) -m "not slow" tests/run/test_federations.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# MkDocs takes one folder: links to the files that the pages refer to, in their places.
docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	rm -rf $(PAGES) && mkdir -p $(PAGES)/tests
	for file in README.md CONTRIBUTING.md CHANGELOG.md CITATION.cff LICENSE docs examples reports benchmarks; do ln -s ../../$$file $(PAGES)/$$file; done
	ln -s ../../../tests/golden $(PAGES)/tests/golden
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(LOWEST) $(CUDA) $(DEMO_FIGURE) $(DEMO_FIGURE:.png=.caption.txt) $(DEMO_REPORT) .pytest_cache .mypy_cache .ruff_cache build dist
	rm -rf $(DEMO_DB) $(DEMO_DB)-wal $(DEMO_DB)-shm $(DEMO_DB).lock $(DEMO_DB).checkpoints
