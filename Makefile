# Every target below needs nothing but Python 3.11.5 or newer: the package runs on 3.11.0,
# but packages that build the manual do not.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
# Its versions with the digests of their files.
REQUIREMENTS := requirements/$(notdir $(CONSTRAINTS))
BIN := .venv/bin

.PHONY: help install demo table reproduce test test-all test-night test-fast bench \
  scale properties lint format docs wheel lock audit release publish clean

help:
	@echo 'make demo       FeSEM against FedAvg and NonFed on rotated digits, with figures'
	@echo 'make table      every method on rotated digits, tuned, five seeds: two tables'
	@echo 'make reproduce  published figures: PAPER=ifca (PAPER=all), BUDGET=processor hours,'
	@echo '                RERUN=1 also runs what the ledger has'
	@echo 'make test       every kind of test (FESEM_DATA_DIR names the folder of real data)'
	@echo 'make test-all   also the tests of the night: every page, binary, paper, method'
	@echo 'make test-fast  the tests of the single modules'
	@echo 'make bench      ours against PyTorch, FedJAX and pfl: one table of ratios'
	@echo 'make scale      runs of a million clients (CLIENTS=): seconds, memory, files'
	@echo 'make properties 50,000 random federations; those that fail are kept and tried first'
	@echo 'make lint       ruff and mypy'
	@echo 'make docs       the manual, in build/site; broken links and references fail'
	@echo 'make wheel      a wheel in dist/, tried in an environment of its own'
	@echo 'make lock       digests of all pinned packages, their licenses, the SBOM'
	@echo 'make audit      known vulnerabilities of the pinned packages'
	@echo 'make release    checks a release and builds it in dist/'
	@echo 'make publish    uploads dist/ to the package index'
	@echo 'make install    .venv with the project and its test extras'

install: .venv/installed

# Every process compiles all that it imports, two seconds of work, where this is set.
export PYTHONDONTWRITEBYTECODE :=

# Modules are compiled when they are first imported: most never are. A terminal is shown
# what is downloaded.
PIP := $(BIN)/python -m pip install $(if $(MAKE_TERMOUT),,--quiet) --no-compile
DEMO_REQUIREMENTS := requirements/demo-$(notdir $(CONSTRAINTS))

# Nothing is installed, or used to build, whose digest is not in requirements/. The demo
# and the binaries need half of it.
.venv/demo: setup.cfg setup.py requirements/build.txt $(DEMO_REQUIREMENTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and "The pinned packages need Python 3.11.5 or newer; pass PYTHON=python3.12, say.")'
	@echo 'Installs JAX and what the demo needs into .venv: 1.1 GB, about a minute.'
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --requirement requirements/build.txt
	$(PIP) --require-hashes --no-build-isolation --requirement $(DEMO_REQUIREMENTS)
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

.venv/installed: .venv/demo $(REQUIREMENTS)
	@echo 'Installs what tests, the manual and loggers need: 0.4 GB more.'
	$(PIP) --require-hashes --no-build-isolation --requirement $(REQUIREMENTS)
	touch $@

demo: .venv/demo
	$(BIN)/python -m experiments.compare --flagfile=experiments/presets/demo.flags

table: .venv/demo
	$(BIN)/python -m experiments.compare --flagfile=experiments/presets/table_digits.flags
	$(BIN)/python -m experiments.compare --flagfile=experiments/presets/table_digits_suite.flags

# Without PAPER: the list of papers. Runs resume; the page has what the ledger holds,
# which RERUN=1 measures again.
BUDGET ?= 1e6

reproduce: .venv/demo
ifdef PAPER
	$(BIN)/python -m reproductions.reproduce --paper=$(PAPER) --budget=$(BUDGET) --page \
	  $(if $(RERUN),--rerun)
else
	$(BIN)/python -m reproductions.reproduce --list
endif

# Files of tests marked `optimized`, whose programs are those of users; all others compile
# without optimization.
OPTIMIZED := $(addprefix tests/,$(addsuffix _test.py,\
  server/em server/kmeans training/cohort training/client_losses core/sums))

# A third worker on two cores is slower: it compiles programs that the others have too.
WORKERS ?= 2

# The compiler allocates small objects by the million. With the allocator of Debian's
# package libjemalloc2, used where it is installed, tests take a sixth less time.
JEMALLOC := $(firstword $(wildcard /usr/lib/*-linux-gnu/libjemalloc.so.2))
# Threads of BLAS and OpenMP would spin, a core each, beside those of the other worker.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
  $(if $(JEMALLOC),LD_PRELOAD=$(JEMALLOC) MALLOC_CONF=thp:always )$(BIN)/python \
  -m pytest -n $(WORKERS) --dist worksteal

test: install
	FESEM_TEST_OPTIMIZED=1 $(PYTEST) -m 'optimized and not nightly' $(OPTIMIZED)
	$(PYTEST) -m 'not optimized and not nightly'

test-all: test test-night

# Of what they try `make test` has an example.
test-night: install
	FESEM_TEST_OPTIMIZED=1 $(PYTEST) -m 'optimized and nightly' $(PYTEST_FLAGS) \
	  $(OPTIMIZED)
	$(PYTEST) -m 'nightly and not optimized' $(PYTEST_FLAGS)

# Without whole methods, runs and commands, which compile most programs, and without what
# they measure and draw.
FAST := $(addprefix tests/,core data models server utils)

test-fast: install
	$(PYTEST) -m 'not slow and not nightly' $(FAST)

bench: install
	$(BIN)/python -m benchmarks.peers $(BENCH)

CLIENTS ?= 1000000

scale: install
	$(BIN)/python -m benchmarks.scale --num_clients=$(CLIENTS) $(SCALE)

# Cases that fail are kept in .hypothesis/properties.
PROPERTIES ?= 50000

properties: install
	FESEM_PROPERTIES=$(PROPERTIES) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
	  tests/algorithms/properties_test.py tests/tasks/properties_test.py \
	  -k 'test_properties or equation_6 or after_a_checkpoint or streamed_clients'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	PYTHON=$(PYTHON) CONSTRAINTS=$(CONSTRAINTS) bash .ci/wheel dist/*.whl

# Both use a tool from the package index, in an environment of its own.
lock: install
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv
	PATH="$(CURDIR)/build/lock/bin:$$PATH" bash .ci/lock
	$(BIN)/python .ci/licenses

audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes \
	  --requirement $(REQUIREMENTS)

release: install
	PYTHON=$(PYTHON) CONSTRAINTS=$(CONSTRAINTS) bash .ci/release

# REPOSITORY=testpypi tries it on the index for tests.
REPOSITORY ?= pypi

publish: install
	$(BIN)/python -m twine upload --repository $(REPOSITORY) dist/*

clean:
	rm -rf .venv .venv-wheel build dist runs plots
