# `make demo` and `make test` are all that a fresh machine needs (git, make, Python 3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SGLANG := .venv-sglang
SGLANG_CPU := .venv-sglang-cpu

.PHONY: setup demo status report test check format docs bench schema pins sglang sglang-cpu clean

setup: $(READY)

$(READY): envs/dev.txt envs/demo.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eyas needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/demo.txt
	touch $(READY)

# The whole workflow on small real input, in demo-run/ (see config/demo.yaml), and its report.
# `make demo FAST=1`: a fraction of the prompts and shorter answers, in demo-run-fast/; `make demo LONG=1`: more
# dialogues and a longer training, in demo-run-long/.
DEMO := demo-run
ifdef FAST
DEMO := demo-run-fast
OTHER := --directory $(DEMO) --config 'prepare={cap: 12}' 'generate={max_new_tokens: 48}' \
         'train={max_minutes: 1, optimizer: adamw, batch_tokens: 256}' \
         'evaluate={prompts: 2, max_new_tokens: 32, min_acceptance: 1.02}' \
         'datasets={B2_opencodeinstruct: {prepare: {cap: 12}}, B9_chitchat: {prepare: {cap: 24}}}'
endif
ifdef LONG
DEMO := demo-run-long
OTHER := --directory $(DEMO) --config 'train={max_minutes: 12}' 'datasets={B9_chitchat: {prepare: {cap: 2000}}}'
endif

demo: $(READY)
	$(BIN)/snakemake all --profile profiles/demo $(OTHER)
	$(BIN)/snakemake --profile profiles/demo --report report.html $(OTHER)
	$(BIN)/snakemake tally --profile profiles/demo --quiet all $(OTHER)
	@echo
	@echo "Look at $(DEMO)/report.html (a browser opens it), $(DEMO)/prepared/, $(DEMO)/responses/, $(DEMO)/draft/ and $(DEMO)/logs/."

# Where the run in this folder stands; it may be asked at any time.
status: $(READY)
	$(BIN)/python scripts/status.py

# The report from what is there so far, which also says what is not; `snakemake --report` needs a run that is through.
report: $(READY)
	$(BIN)/python scripts/describe_run.py --whole --out report.html

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

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

# The documentation, in site/: open site/index.html (for its search: python -m http.server -d site). A link that leads
# nowhere is an error.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

# Ratios against what the libraries alone can do; nothing else should run meanwhile.
bench: $(READY)
	$(BIN)/python benchmarks/run.py

# What is generated from the configuration's models: config/schema.json, for editors, and the page of its keys; a test
# fails when one is old.
schema: $(READY)
	$(BIN)/python scripts/write_schema.py config/schema.json
	$(BIN)/python scripts/write_config_reference.py docs/configuration.md

# Resolve envs/*.in anew.
pins:
	rm -rf $(VENV)-pins && $(PYTHON) -m venv $(VENV)-pins
	for name in workflow dev; do \
	  $(VENV)-pins/bin/python -m pip install --quiet -r envs/$$name.in && \
	  { echo "# Pinned from $$name.in by \`make pins\`."; $(VENV)-pins/bin/python -m pip freeze --quiet | sed 's/+cpu$$//'; } > envs/$$name.txt || exit 1; \
	done
	rm -rf $(VENV)-pins

# SGLang for the target's server, on a host with NVIDIA GPUs.
sglang: $(SGLANG)/.ready

$(SGLANG)/.ready: envs/sglang.txt
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check -r envs/sglang.txt
	touch $@

# SGLang on a CPU, for tests with a small model (tests/sglang_cpu/README.md); torch first: the rest must not choose one.
sglang-cpu: $(SGLANG_CPU)/.ready

$(SGLANG_CPU)/.ready: $(wildcard tests/sglang_cpu/requirements*.txt)
	test -x $(SGLANG_CPU)/bin/python || $(PYTHON) -m venv $(SGLANG_CPU)
	$(SGLANG_CPU)/bin/python -m pip install --quiet --disable-pip-version-check $$(grep ^torch== tests/sglang_cpu/requirements.txt)
	$(SGLANG_CPU)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/sglang_cpu/requirements.txt
	$(SGLANG_CPU)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/sglang_cpu/requirements-nodeps.txt
	touch $@

clean:
	rm -rf demo-run demo-run-fast demo-run-long site .pytest_cache .ruff_cache
