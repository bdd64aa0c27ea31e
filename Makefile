# Everything a newcomer types: `make demo` and `make test`. Each builds what it needs
# in .venv from python3, a C compiler and make.
#
# On another interpreter, beside it: make test PYTHON=python3.14t VENV=.venv-3.14t, and
# with DEV=check without torch, Triton and transformers, whose tests are then skipped.

PYTHON ?= python3
VENV   := .venv
DEV    := dev
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := $(shell find pp3shm -name '*.py' -o -name '*.pyi' -o -name '*.[ch]' -o -name '*.cdef') \
	pyproject.toml setup.py MANIFEST.in

.PHONY: demo test test-rdma demo-rdma storm-rdma bench bench-compute weak-memory tools torture torture-long qualify lint clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt --upgrade pip

# The package is installed as a wheel, not linked: what runs is what a user gets.
# Its parts are installed in two steps so that a changed source rebuilds the wheel
# and downloads nothing.
$(VENV)/.demo-packages: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt '.[demo]'
	@touch $@
$(VENV)/.dev-packages: pyproject.toml constraints.txt $(VENV)/.demo-packages
	$(PIP) install -c constraints.txt '.[$(DEV)]'
	@touch $@
$(VENV)/.package: $(SOURCES) $(VENV)/.demo-packages
	rm -rf build pp3shm.egg-info
	$(PIP) install --no-deps --force-reinstall .
	@touch $@

demo: $(VENV)/.package
	$(BIN)/pp3shm demo $(ARGS)

test: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/python -P -m pytest $(ARGS)

# Real verbs, in emulated guests with soft-RoCE, one and two: docs/rdma.md. Where they
# cannot start (status 77), the reason is printed and that is all.
LAB := $(PYTHON) tools/rdma-lab/lab.py --install
test-rdma: $(VENV)/.dev-packages $(VENV)/.package
	@$(LAB) --timeout 400 -- sh tests/rdma/run.sh $(CURDIR)/$(BIN)/python $(ARGS) \
	  || test $$? = 77
	@$(LAB) --pair --timeout 180 -- sh tests/rdma/run.sh $(CURDIR)/$(BIN)/python $(ARGS) \
	  || test $$? = 77

# The demo with its worker on the other of two guests.
demo-rdma: $(VENV)/.package
	@$(LAB) --pair --timeout 400 -- sh tests/rdma/demo.sh "$(CURDIR)/$(BIN)/pp3shm" \
	  --tokens=40 --check-rounds=200 $(ARGS) || test $$? = 77

# Kills, stops and cut links, some minutes of them at each call, a thousand in all:
# .storm/storm.jsonl. Linux 6.1 can hang under it: docs/rdma.md.
storm-rdma: $(VENV)/.dev-packages $(VENV)/.package
	@mkdir -p .storm
	@PP3_LAB_KERNEL=linux-image-6.12-amd64 $(LAB) --timeout 900 -- \
	  $(CURDIR)/$(BIN)/python tests/rdma/storm.py --minutes 8 --directory .storm $(ARGS) \
	  || test $$? = 77

bench: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/python -P -m pytest benchmarks
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	$(BIN)/pp3shm bench $(ARGS)

bench-compute: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/python benchmarks/compute.py $(ARGS)

# The ring's text under every schedule and old value that C11 allows: docs/proof.md.
weak-memory: $(BIN)/python
	$(BIN)/python tests/relacy/report.py

# Checkers that some figures need and nothing else does.
tools: $(VENV)/.tool-packages
$(VENV)/.tool-packages: tests/torture/tools.txt | $(BIN)/python
	$(PIP) install --require-hashes --no-deps -r $<
	@touch $@

# The figures of docs/reliability.md: a quarter of an hour, or all of them. Both go on
# where they were stopped, and take --only NAME.
torture: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/python tests/torture/run.py --form medium $(ARGS)
torture-long: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/python tests/torture/run.py --form long $(ARGS)

# Real rounds of every engine against the target's distribution: qualified/receipt.json.
qualify: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/python tests/qualify/run.py $(ARGS)

lint: $(VENV)/.dev-packages $(VENV)/.package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHON=$(BIN)/python sh tools/warnings.sh

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .storm .torture qualified bench-results
