# `make demo` and `make test` are all that a fresh machine needs (git, make, Python 3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check format bench schema pins clean

setup: $(READY)

$(READY): envs/dev.txt envs/demo.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eyas needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/demo.txt
	touch $(READY)

# The whole workflow on small real input, in demo-run/ (see config/demo.yaml), and its report.
demo: $(READY)
	$(BIN)/snakemake --profile profiles/demo all
	$(BIN)/snakemake --profile profiles/demo --report report.html
	$(BIN)/snakemake --profile profiles/demo --quiet all -- tally
	@echo
	@echo "Look at demo-run/report.html (a browser opens it), demo-run/prepared/ and demo-run/logs/."

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

# Formats, lints, and a dry run of every profile.
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint
	for profile in profiles/*/; do $(BIN)/snakemake --profile $$profile -n --quiet all -- all || exit 1; done

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile rules

# Ratios against what the libraries alone can do; nothing else should run meanwhile.
bench: $(READY)
	$(BIN)/python benchmarks/run.py

# config/schema.json, for editors; a test fails when it is old.
schema: $(READY)
	$(BIN)/python scripts/write_schema.py config/schema.json

# Resolve envs/*.in anew.
pins:
	rm -rf $(VENV)-pins && $(PYTHON) -m venv $(VENV)-pins
	for name in workflow dev; do \
	  $(VENV)-pins/bin/python -m pip install --quiet -r envs/$$name.in && \
	  { echo "# Pinned from $$name.in by \`make pins\`."; $(VENV)-pins/bin/python -m pip freeze --quiet; } > envs/$$name.txt || exit 1; \
	done
	rm -rf $(VENV)-pins

clean:
	rm -rf demo-run .pytest_cache .ruff_cache
