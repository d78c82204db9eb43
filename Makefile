# Everything is installed into .venv; the first target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPARKS := 3.5 4.0
FOLDERS = $(addprefix $(VENV)s/spark-,$(SPARKS))
SPACE := $() $()
PYTHONS := python3.11 python3.12 python3.13
DEMO := demo-out
CAPTURE := tests/captures/demo.pcap
SECONDS := 60
KERNELS := $(VENV)/.kernels
COLLECTED := $(VENV)/.collected
# Tests start the program many times: its modules are compiled once.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: readme demo test test-all test-interpreted test-spark test-compiled test-sparks sparks test-wheel trial wheel wheels one-more-wheel kernels fuzz lint bench reference docs release clean help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -q -e '.[all]' --group test --group lint
	@touch $@

$(KERNELS): $(BIN)/.ready $(shell find dissector pipelines tools -name '*.py')
	$(BIN)/python -m tools.kernels
	@touch $@

kernels: $(KERNELS)  ## compile all kernels that have changed, to the user's cache

demo: $(BIN)/.ready  ## dissect a recorded capture, analyze it, and make a report
	$(BIN)/amqpscope dissect $(CAPTURE) -o $(DEMO)/tables
	$(BIN)/amqpscope analyze $(DEMO)/tables -o $(DEMO)/stats --master 'local[*]'
	$(BIN)/amqpscope report $(DEMO)/stats -o $(DEMO)/report.html
	@echo
	@echo "The report: file://$(abspath $(DEMO))/report.html"
	@echo "A capture of yours: $(BIN)/amqpscope handshakes FILE.pcap    or: $(BIN)/amqpscope report FILE.pcap -o page.html"

# pytest rewrites each module of tests once (15 s in all): here, by two processes, else by each of five that begin together.
$(COLLECTED): | $(BIN)/.ready
	@printf '%s\n' 'tests/dissector' 'tests --ignore=tests/dissector' \
		| xargs -P 2 -L 1 $(BIN)/python -m pytest --collect-only -qq > /dev/null || true  # what fails, fails below
	@touch $@

test: $(BIN)/.ready $(COLLECTED)  ## run the tests: interpreted ones while kernels compile, those with Spark beside compiled ones
	@$(MAKE) --no-print-directory -j3 test-interpreted test-spark test-compiled

test-all: export AMQPSCOPE_THOROUGH = 1
test-all: test  ## run them with all cases and many random examples, and those that take long

# Huge pages, which numpy asks for, are cleared as a whole, and most tests use little of them.
test-interpreted test-spark test-compiled: export NUMPY_MADVISE_HUGEPAGE = 0
SIDE_BY_SIDE := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test-interpreted: $(BIN)/.ready
	$(BIN)/python -m pytest -m "not (spark or compiled or wheel)" $(SIDE_BY_SIDE)

test-spark: $(KERNELS)
	$(BIN)/python -m pytest -m "spark and not wheel"

test-compiled: $(KERNELS)
	$(BIN)/python -m pytest -m "compiled and not (spark or wheel)" $(SIDE_BY_SIDE)

test-sparks: sparks  ## run a short set of tests with each version of Spark in SPARKS, which it installs
	AMQPSCOPE_SPARKS=$(subst $(SPACE),:,$(addprefix $(CURDIR)/,$(FOLDERS))) $(BIN)/python -m pytest -n $(words $(SPARKS)) \
		tests/pipelines/test_versions.py::test_rows_are_those_of_one_process

sparks: $(BIN)/.ready
	@$(MAKE) --no-print-directory -j $(addsuffix /.ready,$(FOLDERS))

# What else is needed comes from the environment that all tests run in.
$(VENV)s/spark-%/.ready: $(BIN)/.ready
	rm -rf $(@D)
	$(BIN)/python -m pip install -q --no-compile --target $(@D) 'pyspark==$*.*'
	@touch $@

test-wheel: wheel  ## test the wheel in an empty environment
	AMQPSCOPE_WHEEL="$(CURDIR)/dist" $(BIN)/python -m pytest -m wheel

trial: wheel  ## install the wheel by pip, pipx and uvx into empty environments, and time first answers
	$(BIN)/python -m tools.trial dist/*.whl

wheel:  ## build a wheel with compiled kernels, in dist
	rm -rf dist
	@$(MAKE) --no-print-directory one-more-wheel

wheels:  ## build such a wheel for each version of Python in PYTHONS
	rm -rf dist
	@for each in $(PYTHONS); do $(MAKE) --no-print-directory one-more-wheel PYTHON=$$each VENV=$(VENV)s/$$(basename $$each) || exit; done

one-more-wheel: $(BIN)/.ready
	rm -rf build
	$(BIN)/python -m tools.kernels build/compiled
	$(BIN)/python -m pip wheel -q --no-deps --wheel-dir dist -C compiled=$(abspath build/compiled) .

fuzz: $(BIN)/.ready  ## fuzz everything that reads bytes, a minute each (make fuzz SECONDS=600 for longer)
	$(BIN)/python -m pip install -q --group fuzz
	$(BIN)/python -m tests.fuzz all --seconds $(SECONDS)

lint: $(BIN)/.ready  ## style, types, and whether what is made from data is fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/mypy
	$(BIN)/python -m amqpscope.spec.reference --check
	$(BIN)/python -m amqpscope.dissector.cli.published --check

bench: $(BIN)/.ready  ## measure against tshark and the floor (needs tshark for the first)
	$(BIN)/python -m tests.benchmarks

reference: $(BIN)/.ready  ## write docs/reference.md, the manual page and the schemas of JSON anew
	$(BIN)/python -m amqpscope.spec.reference
	$(BIN)/python -m amqpscope.dissector.cli.published

docs: $(BIN)/.ready  ## build the documentation site in build/site, and fail on dead links
	$(BIN)/python -m pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

readme: $(BIN)/.ready  ## run the commands of README as they are written, and compare what it shows of them
	$(BIN)/python -m tools.readme
	$(BIN)/python -m tools.screens

release: $(BIN)/.ready  ## make a release: make release VERSION=0.2.0 (CONTRIBUTING, Releases)
	$(BIN)/python -m tools.release "$(VERSION)"
	$(MAKE) reference
	$(MAKE) lint test-all test-wheel docs readme
	$(BIN)/python -m tools.release "$(VERSION)" --finish
	@echo "Committed and tagged v$(VERSION), built in dist/ and build/site/. Next: git push --follow-tags"

clean:  ## remove what the targets above made
	rm -rf $(VENV) $(VENV)s $(DEMO) build dist src/*.egg-info
