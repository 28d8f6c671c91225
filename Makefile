# Two commands set up everything: `make demo` and `make test`. `make help` lists the rest.
#
# The environment is .venv, or the one given as VENV=; only what it lacks of what
# pyproject.toml lists is installed. The extension is built into python/tensordict, and
# `make demo` and `make test` install this checkout in editable form, so that the
# environment can be used at once. The commands below put python/ first on the path:
# they run this checkout, whatever else the environment holds.

VENV ?= .venv
PYTHON ?= python3
# Arguments for pytest: make test-python PYTEST='tests/ops -k select'
PYTEST ?= -n 2 --dist loadfile --no-loadscope-reorder
# Where the demo works: make demo DEMO='/data/demo --images 1000'
DEMO ?=
# Arguments for the benchmarks: make bench BENCH='--only view'; PEER= is a folder with
# the published release, which is fetched otherwise.
BENCH ?=
PEER ?=
ROUNDS ?= 5

# Other Pythons: make test-pythons TRY='3.15 3.11-torch-2.11' SUITES=all. Their environments
# have torch, 6 GB each. WITH=--libraries installs what the extras need, too.
TRY ?= $(PYTHONS)
SUITES ?= core
ENVIRONMENTS ?= build/pythons
WITH ?=
# And of the benchmarks there: make measure-pythons SPEED='--only operations --rounds 1'
SPEED ?=

# Wheels: make wheels TARGETS=x86_64-unknown-linux-gnu PYTHONS=3.13
TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
PYTHONS ?= 3.11 3.12 3.13 3.14 3.15

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

environment := $(abspath $(VENV))
python := $(environment)/bin/python
# Stamps belong to this checkout and name the environment they speak of.
stamps := build/stamps$(subst /,-,$(environment))
rust_sources := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
python_sources := $(shell find python -name '*.py' -o -name '*.pyi')
extension := $(wildcard python/tensordict/_rust*.so python/tensordict/_rust*.pyd)

export PYTHONPATH := $(abspath python)$(if $(PYTHONPATH),:$(PYTHONPATH))
export VIRTUAL_ENV := $(environment)
export PYO3_PYTHON := $(python)

.PHONY: help
help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- Set-up -------------------------------------------------------------------------

.PHONY: venv
venv: $(stamps)/dependencies ## create the environment and install what is missing in it

# Made anew where the environment was removed.
$(stamps)/dependencies: pyproject.toml tools/environment.py \
		$(if $(wildcard $(python)),,FORCE) | $(stamps)
	$(PYTHON) tools/environment.py $(environment)
	@touch $@

# The libraries of the extras, which some tests use: those tests are skipped without them.
$(stamps)/libraries: pyproject.toml $(stamps)/dependencies
	$(PYTHON) tools/environment.py $(environment) dev libraries
	@touch $@

.PHONY: libraries
libraries: $(stamps)/libraries ## install the libraries of the extras, for their tests

$(stamps):
	@mkdir -p $@

# Rebuilt when a source of it changed, and where the built module was removed.
$(stamps)/extension: $(rust_sources) pyproject.toml $(stamps)/dependencies \
		$(if $(extension),,FORCE)
	$(python) -m maturin develop --release --locked --skip-install
	@$(python) -m compileall -q python/tensordict  # where an import must not write it
	@touch $@

.PHONY: extension
extension: $(stamps)/extension ## build tensordict._rust into python/tensordict

# Writes a link to python/ and the command `tensordict`. pip, and not maturin, which would
# go through the development group once more, and needs a newer pip for it.
$(stamps)/installed: pyproject.toml \
		$(if $(wildcard $(environment)/bin/tensordict),,FORCE) | $(stamps)/extension
	MATURIN_PEP517_ARGS=--locked $(python) -m pip install --quiet --no-deps \
		--no-build-isolation --disable-pip-version-check --editable .
	@touch $@

.PHONY: dev
dev: $(stamps)/installed ## install this checkout into the environment, in editable form

.PHONY: FORCE
FORCE:

# --- Running ------------------------------------------------------------------------

.PHONY: demo
demo: $(stamps)/installed ## save, load and check a real model and a dataset
	$(python) -m tensordict demo $(DEMO)

.PHONY: test
test: test-core test-python ## run every test

.PHONY: test-core
test-core: ## run the tests of the Rust core, which need no Python
	cargo test --locked --package tensordict-core

.PHONY: test-python
test-python: $(stamps)/installed $(stamps)/libraries ## run the tests of the package, doctests included
	@# The workers share the cores; torch's own threads would only add to them.
	OMP_NUM_THREADS=1 $(python) -m pytest $(PYTEST)

.PHONY: test-pythons
test-pythons: ## run the tests on other Pythons, from their wheels (TRY= SUITES= WITH=)
	$(PYTHON) tools/pythons.py $(TRY) --suites $(SUITES) --where $(ENVIRONMENTS) $(WITH)

.PHONY: test-newest
test-newest: ## the same on the newest Python that an environment can be made for
	$(MAKE) test-pythons TRY=newest

.PHONY: pythons-table
pythons-table: ## write what the tests answered on each Python into docs/dev/release.md
	$(PYTHON) tools/pythons_table.py $(ENVIRONMENTS)/results

# Other programs should be stopped meanwhile: make measure-pythons TRY='3.11 3.15'
.PHONY: measure-pythons
measure-pythons: ## measure other Pythons, and write the table in docs/performance.md (TRY= SPEED=)
	$(PYTHON) tools/pythons_speed.py $(TRY) --where $(ENVIRONMENTS) $(SPEED)

# A wheel as it is released, such as build/pythons/wheels/x86_64/3.15.built, built again
# where something in it changed.
build/pythons/wheels/%.built: $(rust_sources) $(python_sources) pyproject.toml \
		| $(stamps)/release
	@rm -f $(@D)/*-cp$(subst .,,$(*F))-*.whl
	$(release_environment) $(python) tools/wheels.py \
		--targets $(*D)-unknown-linux-gnu --pythons $(*F) --out $(@D)
	@touch $@

.PHONY: test-without-shortcuts
test-without-shortcuts: $(stamps)/extension ## run the tests near the native code without its shortcuts
	TENSORDICT_SHORTCUTS=0 OMP_NUM_THREADS=1 $(python) -m pytest $(PYTEST) \
		tests/containers tests/ops tests/property tests/concurrent

.PHONY: torture
torture: $(stamps)/extension ## kill saves five hundred times per layout
	TENSORDICT_KILLS=500 $(python) -m pytest -n 0 --timeout 3600 tests/storage/test_damage.py -k kill
	TENSORDICT_KILLS=200 $(python) -m pytest -n 0 --timeout 3600 tests/data/test_dataset_writer.py -k "kill or reader"
	TENSORDICT_RANK_KILLS=200 TENSORDICT_FLIPS=100 $(python) -m pytest -n 0 --timeout 7200 tests/checkpoint/test_kills_of_ranks.py

.PHONY: doctest
doctest: $(stamps)/extension ## run the examples of the docstrings and documents
	$(python) -m pytest tests/docs

# Documentation that cannot be built, or has a link that leads nowhere, is an error.
$(stamps)/docs: pyproject.toml $(stamps)/dependencies
	$(PYTHON) tools/environment.py $(environment) dev docs
	@touch $@

.PHONY: docs
docs: $(stamps)/extension $(stamps)/docs ## build the documentation site into docs/_build
	$(python) -m sphinx -W --keep-going -q -b html docs docs/_build

.PHONY: linkcheck
linkcheck: docs ## build the documentation site, and follow its links to its own pages
	$(python) tools/links.py docs/_build

# Measures what the plots show; other programs should be stopped meanwhile.
.PHONY: measurements
measurements: $(stamps)/extension $(if $(PEER),,build/release/.installed) ## measure what the plots of the documentation show
	$(python) -m benches.python --peer $(or $(PEER),build/release) --rounds $(ROUNDS) \
		--tree 'flat 4' --tree 'nested 20' --json docs/performance/operations.json
	$(python) benches/data_loader.py --peer $(or $(PEER),build/release) \
		--rounds $(ROUNDS) --json docs/performance/loader.json

.PHONY: plots
plots: $(stamps)/docs ## draw the plots of the documentation from the measurements in docs/performance
	$(python) tools/plots.py docs/performance

.PHONY: bench
bench: $(stamps)/extension $(if $(PEER),,build/release/.installed) ## compare with bare torch and with the published release
	$(python) -m benches.python --peer $(or $(PEER),build/release) $(BENCH)

.PHONY: bench-compile
bench-compile: $(stamps)/extension $(if $(PEER),,build/release/.installed) ## compile time and compiled calls beside the published release
	$(python) benches/compilation.py --peer $(or $(PEER),build/release) $(BENCH)

.PHONY: bench-storage
bench-storage: $(stamps)/extension $(if $(PEER),,build/release/.installed) ## saving and loading beside bare system calls and the published release
	$(python) benches/storage.py --peer $(or $(PEER),build/release) $(BENCH)

.PHONY: bench-tensorclass
bench-tensorclass: $(stamps)/extension $(if $(PEER),,build/release/.installed) ## fields of tensorclasses beside a property and the published release
	$(python) benches/tensorclass.py --peer $(or $(PEER),build/release) $(BENCH)

.PHONY: bench-clients
bench-clients: $(stamps)/extension $(if $(PEER),,build/release/.installed) ## what programs of users do, beside the published release
	$(python) benches/clients.py --peer $(or $(PEER),build/release) $(BENCH)

# The published release to compare with, apart from the environment.
build/release/.installed: | $(stamps)
	$(python) -m pip install --quiet --no-deps --target build/release \
		tensordict==0.15.3 'pyvers<0.3' importlib_metadata zipp
	@touch $@

# --- Releasing ------------------------------------------------------------------------

# maturin with zig, auditwheel and what writes bills of materials.
$(stamps)/release: pyproject.toml $(stamps)/dependencies
	$(PYTHON) tools/environment.py $(environment) dev release
	@touch $@

.PHONY: release-tools
release-tools: $(stamps)/release

# zig links against the old C library that manylinux_2_28 names, whichever is here. A wheel
# for each Python: the shortcuts and vectorcalls are not in the stable ABI (docs/dev/release.md).
# The time in archives is that of the commit, and paths of this machine are left out.
.PHONY: wheels
wheels: $(stamps)/release ## build wheels for Linux (TARGETS= PYTHONS=) into dist, and check them
	$(release_environment) $(python) tools/wheels.py \
		--targets $(TARGETS) --pythons $(PYTHONS) --out dist

.PHONY: sdist
sdist: $(stamps)/release ## build the source archive into dist, and a wheel from it
	$(release_environment) $(python) tools/wheels.py --sdist --out dist

release_environment = env -u PYO3_PYTHON PATH=$(environment)/bin:$$PATH

.PHONY: deny
deny: ## check licences, sources and known defects of the crates
	cargo deny --locked check $(DENY)

.PHONY: sbom
sbom: $(stamps)/release ## bills of materials (CycloneDX) of the package and of the crates into dist
	$(python) tools/bills.py --out dist

.PHONY: changelog
changelog: $(stamps)/docs ## add the fragments of changes/ to CHANGELOG.md: make changelog VERSION=0.2.0
	$(python) -m towncrier build --yes --version $(or $(VERSION),$(error VERSION= names the release))

# --- Before sending -------------------------------------------------------------------

.PHONY: format
format: $(stamps)/dependencies ## format Rust and Python
	cargo fmt --all
	$(python) -m ruff check --fix-only --quiet .
	$(python) -m ruff format .

.PHONY: lint
lint: $(stamps)/dependencies ## check format and lints of Rust and Python
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- --deny warnings
	@# The bindings compile for the newest Python, too, whichever is here.
	PYO3_CONFIG_FILE=$(abspath tools/cpython-3.15.txt) cargo check --quiet --locked \
		--package tensordict-python --target-dir target/cpython-3.15
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(environment)/bin/lint-imports

.PHONY: types
types: $(stamps)/extension ## check annotations, and the stub against the built module
	$(python) -m mypy
	$(python) -m mypy.stubtest tensordict._rust \
		--mypy-config-file pyproject.toml --allowlist tests/typing/stubtest_allowlist.txt

.PHONY: clean
clean: ## remove everything built here, .venv included
	cargo clean --quiet
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f python/tensordict/_rust*.so python/tensordict/_rust*.pyd
	find python tests benches tools -name __pycache__ -type d -prune -exec rm -rf {} +
