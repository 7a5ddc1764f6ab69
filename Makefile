# `make figures` and `make test` each do all the set-up on a fresh machine; `make` alone lists what there is.
# ARGS is passed on: make figures ARGS="fedselect --preset real", make test ARGS="-k layout".

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SITE_STAMP := $(VENV)/.site-installed
# Candidates; the first one that is Python 3.11, 3.12 or 3.13 is used.
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python)
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# One thread: results then do not depend on the number of cores, and parallel processes do not compete for them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
# torch must be pinned in the very command that brings in its dependants, or they pull in another build of it.
WHAT := -c constraints.txt -e '.[test,cluster]'

.DEFAULT_GOAL := help
.PHONY: help setup figures evidence gpu-evidence test site site-packages fuzz golden lint format wheel bench notebooks references clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv (Python 3.11 to 3.13; PYTHON=... to choose it) and install everything into it

figures: setup ## draw every figure at preset quick
	@$(BIN)/pfl figures $(ARGS)

evidence: setup ## draw the committed evidence again from its records: no training, no data needed
	@$(BIN)/pfl figures --evidence $(ARGS)

test: setup ## the whole test suite on all cores, reference notebooks by nbval included
	$(PYTEST) -n auto --dist loadfile --no-loadscope-reorder --nbval --nbval-current-env --nbval-cell-timeout=300 $(ARGS)

site: $(SITE_STAMP) ## build the site into site/: open site/index.html, no server or network needed
	rm -rf build/site
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/site/doctrees -c docs . build/site/html
	rm -rf site && mv build/site/html site

site-packages: $(SITE_STAMP) ## install what `make site` needs

fuzz: setup ## random faults (kills, damaged files, bad input), a few minutes; ARGS="--scale 10", --help
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(ARGS)

golden: setup ## rewrite tests/golden/*.json, the stored numbers that the tests compare with
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.write $(ARGS)

lint: setup ## check rules and format (ruff) and types (mypy); changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## fix rules, where ruff can, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: setup ## build the wheel into dist/ and try it in an empty environment
	@.ci/wheel

bench: setup ## speed compared with a plain PyTorch loop
	$(PYTEST) tests/benchmarks $(ARGS)

gpu-evidence: setup ## on a machine with a GPU: check it, measure it, compute runs at preset paper; tables in gpu-evidence/
	@$(BIN)/python -m tests.gpu gpu-evidence $(ARGS)

notebooks: setup ## refresh the outputs that notebooks/ carries: the best stored evidence, else preset quick
	@$(BIN)/pfl figures --write-notebooks $(ARGS)

references: setup ## rewrite tests/notebooks/, the ci copies that nbval compares with
	@$(BIN)/python tests/notebooks/write.py $(ARGS)

clean: ## remove caches and build leftovers; .venv/ and data/ stay
	rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks
	find pfl_core tests notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

# Runs again only when one of the two files changes. An incomplete .venv, or one with a wrong Python, is replaced.
$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import pip; $(FITS)' 2>/dev/null || { $(find_python); $$found -m venv --clear $(VENV); }
	@echo "Installing torch and about 180 packages into $(VENV) (2 GB on disk; a minute or two)"
	@$(dots); start=$$(date +%s); sh .ci/install $(VENV) $(WHAT); failed=$$?; kill $$dots; \
	[ $$failed -eq 0 ] && echo " done in $$(( $$(date +%s) - start )) s"
	@touch $@

# What only the site needs.
$(SITE_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[site]'
	@touch $@

define find_python
found=; for python in $(PYTHONS); do $$python -c '$(FITS)' 2>/dev/null && found=$$python && break; done; \
[ "$$found" ] || { echo "No Python 3.11, 3.12 or 3.13 among: $(PYTHONS). Install it, or say where: make PYTHON=/path/to/python3.11" >&2; exit 1; }
endef

# Prints a dot every two seconds until the shell that started it ends.
define dots
( while sleep 2 && kill -0 $$$$; do printf .; done 2>/dev/null ) & dots=$$!
endef
