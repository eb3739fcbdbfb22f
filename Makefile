# Every target makes the environment it needs on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help book pdf test execute format run sweep clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
	@echo
	@echo '  make execute CHAPTER=07                            one chapter, at its defaults, in place'
	@echo '  make run CHAPTER=07 PRESET=paper ARGS="-p seed 3"  a copy under _runs/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,test,dask,pdf]'
	touch $@

book: $(READY)  ## render the book from the executed notebooks; FRESH=1 executes them first
	$(if $(FRESH),$(BIN)/python -m lib.execution --jobs 2)
	$(BIN)/jupyter-book build . -W -n --keep-going
	@echo 'The book: file://$(CURDIR)/_build/html/index.html'

pdf: book  ## print the built book into one PDF (needs Chromium)
	$(BIN)/python -m lib.printing

# One thread per process: the same sums in the same order on every machine, two workers on two cores.
book test execute sweep: export OMP_NUM_THREADS = 1

test: book  ## everything that must be true: style, units, notebooks, the built book
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n 2 --dist loadfile
	$(BIN)/pytest -n 2 --dist loadfile --nbval -p no:cacheprovider notebooks

execute: $(READY)  ## re-execute chapters in place; CHAPTER=07 for one
	$(BIN)/python -m lib.execution $(CHAPTER)

format: $(READY)  ## format the code, chapters included
	$(BIN)/ruff format --quiet lib tests benchmarks
	$(BIN)/ruff check --fix --quiet lib tests benchmarks
	PATH=$(CURDIR)/$(BIN):$$PATH jupytext --quiet --pipe-fmt py:percent \
	  --pipe 'ruff format --quiet --config notebooks/ruff.toml --stdin-filename notebooks/cell.py -' notebooks/*.md

run: $(READY)  ## execute a copy: CHAPTER=07 [PRESET=paper] [ARGS="-p seed 3"]
	$(if $(CHAPTER),,$(error which chapter? make run CHAPTER=07))
	@$(BIN)/python -m lib.runs run $(CHAPTER) $(if $(PRESET),--preset $(PRESET)) $(ARGS)

sweep: $(READY)  ## copies along one parameter: CHAPTER=07 PARAM=d VALUES="32 48 64"
	$(if $(and $(CHAPTER),$(PARAM),$(VALUES)),,$(error make sweep CHAPTER=07 PARAM=d VALUES="32 48 64"))
	@$(BIN)/python -m lib.runs sweep $(CHAPTER) $(PARAM) $(VALUES) $(if $(PRESET),--preset $(PRESET)) $(ARGS)

clean:  ## remove the built book and the runs
	rm -rf _build _runs
