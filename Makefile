# make demo: from nothing to a table and pictures.   make check: what is quick.   make test: every check that CI runs.
PYTHON ?= python3
VENV ?= .venv
DEMO_DIR ?= demo
DEMO_SIZE ?= demo
BIN := $(abspath $(VENV))/bin
GEOMANO := cd $(DEMO_DIR) && $(BIN)/geomano
# torch first and by its exact version: a looser request may fetch another build of several gigabytes.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# The extra [baselines] without what FNO and U-NO never import: neuraloperator asks for wandb and its thirty packages.
BASELINES := neuraloperator tensorly tensorly-torch opt_einsum requests urllib3 idna certifi charset-normalizer
# The extras [wandb] and [mlflow] without what their offline modes never import.
LOGGERS := wandb xxhash opentelemetry-exporter-otlp-proto-http opentelemetry-exporter-otlp-proto-common \
  opentelemetry-exporter-otlp-common opentelemetry-exporter-http-transport googleapis-common-protos \
  opentelemetry-api opentelemetry-sdk opentelemetry-semantic-conventions opentelemetry-proto \
  mlflow-skinny anyio cachetools databricks-sdk fastapi gitdb GitPython importlib_metadata python-dotenv smmap sqlparse \
  starlette zipp
PARTS := data_prep kernels launch slurm

.PHONY: demo check test install install-dev system-packages view lint types imports unit-tests quick-tests docs wheel clean

demo: install
	@mkdir -p $(DEMO_DIR)
	$(GEOMANO) data generate darcy --samples 250 --grid 85 --out data/darcy_smoke.h5
	$(GEOMANO) data convert data/darcy_smoke.h5 --problem darcy --train 200 --test 50 --stride 4 --out data/darcy_smoke.zarr
	$(GEOMANO) launch $(DEMO_SIZE)
	$(GEOMANO) report $(DEMO_SIZE)
	@echo
	@echo "Everything is in $(DEMO_DIR)/: the store in data/, a folder for each seed in runs/$(DEMO_SIZE)/,"
	@echo "the table and the figures in runs/$(DEMO_SIZE)/report/."
	@echo "Next, after 'source $(VENV)/bin/activate && cd $(DEMO_DIR)':"
	@printf '  %-66s %s\n' \
	  'geomano monitor $(DEMO_SIZE)' 'the curves in TensorBoard' \
	  'geomano launch darcy_smoke --vary model.depth=1,2,4 --name depth' 'a sweep over the depth' \
	  'geomano train navier_stokes_smoke' 'a time-dependent problem' \
	  'geomano -h' 'everything else'

test: install-dev system-packages lint types imports unit-tests
# What takes no more than two minutes: before a commit that is worth a push.
check: install-dev lint types imports quick-tests

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (a few minutes the first time)"
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable ".[dev,docs,fast-io,onnx]"
	$(PIP_INSTALL) --no-deps $(BASELINES) $(LOGGERS)
	@touch $@

# The Triton kernels are tested with the release of constraints.txt and with a newer one, beside it.
NEWER_TRITON := $(abspath $(VENV))/triton-3.9.0
$(NEWER_TRITON): $(VENV)/.installed-dev
	rm -rf $@ $@.new
	$(BIN)/python -m pip install --quiet --no-deps --target $@.new triton==3.9.0
	mv $@.new $@

# What tests need: a C++ compiler for the CPU kernel, MPI for several ranks, a browser for TensorBoard, and a real Slurm
# with its accounting.
SYSTEM_PACKAGES := g++ openmpi-bin chromium libpmix-dev munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins \
  slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
system-packages:
	@if dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing $(SYSTEM_PACKAGES)"; apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(SYSTEM_PACKAGES) >/dev/null; \
	else echo "No right to install $(SYSTEM_PACKAGES): tests that need what is missing will not run"; fi

# One folder in which every part stands where it is imported from, for tools that read files.
VIEW ?= build/view
view:
	@rm -rf $(VIEW) && mkdir -p $(VIEW)/geomano_hpc
	@ln -s $(CURDIR)/geomano_hpc/* $(VIEW)/geomano_hpc/
	@ln -s $(addprefix $(CURDIR)/,$(PARTS)) $(VIEW)/geomano_hpc/

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: view
	cd build/view && $(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p geomano_hpc
	MYPYPATH=build/view $(BIN)/mypy tests docs/hooks

imports: view
	cd build/view && PYTHONPATH=. $(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --no-cache

# Side by side, each with one thread, and one more than there are cores: the worker with the tests on Slurm mostly waits.
CORES := $(shell nproc)
WORKERS := $(shell echo $$(($(CORES) < 4 ? $(CORES) + 1 : 4)))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadgroup
unit-tests: $(NEWER_TRITON)
	GEOMANO_NEWER_TRITON=$(NEWER_TRITON) $(PYTEST) -n $(WORKERS) --cov --cov-report=term --durations=15

quick-tests:
	$(PYTEST) -n $(CORES) -m "not slow"

# The site, in build/site. A dead link, an example that fails or any other warning is an error (but not with --quiet).
docs: install-dev view
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site: file://$(CURDIR)/build/site/index.html"

wheel: install-dev
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf build dist .coverage* .mypy_cache .ruff_cache .pytest_cache
