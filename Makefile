# make demo       install what the demo needs and run the quickstart
# make setup      .venv with everything for development
# make test       lint, types, quick tests
# make test-slow  tests that start processes, kill them, or need PyTorch as a peer
# make test-devices  the conformance suite on a restricted OpenCL device, and on one core of one
# make check      lint and types alone
# make protocol   generate the device worker's protocol from its .proto

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# an OpenCL from PyPI, where the system has no driver
POCL ?= $(shell ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || echo "pyopencl[pocl]")

.PHONY: demo setup test test-slow test-devices check protocol clean

demo: $(STAMP)-demo
	$(BIN)/pocketfed simulate configs/quickstart.yaml

setup: $(STAMP)-dev

test: check
	$(BIN)/python -m pytest -m "not slow" tests

test-slow: $(STAMP)-dev
	$(BIN)/python -m pytest -m slow tests

test-devices: $(STAMP)-dev
	POCKETFED_TEST_OPENCL=restricted $(BIN)/python -m pytest tests/backend
	POCKETFED_TEST_OPENCL=one-core $(BIN)/python -m pytest tests/backend

check: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit("pocketfed needs Python 3.11 or later; try: make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip

$(STAMP)-demo: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install -q -e '.[server,data]' $(if $(POCL),'$(POCL)')
	touch $@

$(STAMP)-dev: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install -q -e '.[dev]' $(if $(POCL),'$(POCL)')
	$(BIN)/pip install -q --no-deps 'aeon>=1.0'  # its files alone: see the extra timeseries
	touch $@ $(STAMP)-demo

# by the generators whose output works with the oldest grpcio and protobuf that Flower admits
protocol:
	$(PYTHON) -m venv build/protocol
	build/protocol/bin/pip install -q grpcio-tools==1.66.2 mypy-protobuf==3.6.0 'setuptools<81'
	PATH=build/protocol/bin:$$PATH python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. \
		--grpc_python_out=. --mypy_grpc_out=. client/worker/protocol/worker.proto

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
