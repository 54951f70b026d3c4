# Everything from a fresh clone: `make demo` and `make test` set up what they need, once.
#
#   make demo PHOTOS=~/pictures   the demo on your own folder of images (one folder per class)
#   make test-of MODULE=loader.config  the tests of one module
#   make test EXTRAS=dev          without DALI (800 MB)
#   make test WORKERS=1           one test at a time
#   make setup PYTHON=python3.12  another interpreter
#   make bench-peers DATA=folder  the comparison on your own JPEGs (one folder per class)
#   make fuzz SECONDS=3600        attack decoders, resampling and colour for an hour each (needs Clang)
#   make mutants TARGETS=cursor  mutation testing of one module; all of them take hours
#   make sanitize                 the contract suite with the native core under AddressSanitizer
#   make image VARIANT=cpu        the Docker image without CUDA and DALI

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= dev,dali
PHOTOS ?=
PYTEST ?=
# Processes that run tests side by side: two more than there are cores, as tests wait a quarter of their time; at most eight.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 1); [ $$cores -lt 7 ] && echo $$((cores + 2)) || echo 8)
DATA   ?=
CORPORA ?=
MINUTES ?= 30
VARIANT ?= cuda
SECONDS ?= 120
TARGETS ?=
MODULE  ?=

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.fastload-installed
# The build reads these; a change in any of them means installing again. Python sources are used where they lie.
BUILD_INPUTS := pyproject.toml scripts/setup.sh $(wildcard CMakeLists.txt) \
                $(wildcard fastload/native/*.cpp fastload/native/*.hpp fastload/native/jpeg/*.cpp fastload/native/jpeg/*.hpp \
                           fastload/native/cuda/*.cpp fastload/native/cuda/*.hpp fastload/native/cuda/*.cuh)

# An editable install knows the modules that there were: new, moved and gone ones mean installing again, too.
MODULES := build/modules

.DEFAULT_GOAL := help
.PHONY: FORCE help setup reinstall demo doctor test test-of test-fast test-whole test-reliability coverage soak corpora bench-peers fuzz sanitize mutants docs wheels image image-verify lint style format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

$(MODULES): FORCE
	@mkdir -p build; new=$@.$$$$; find fastload -name '*.py' -o -name '*.toml' | LC_ALL=C sort >$$new; \
	    if cmp -s $$new $@; then rm $$new; else mv $$new $@; fi

FORCE:

$(INSTALLED): $(BUILD_INPUTS) $(MODULES)
	@PYTHON="$(PYTHON)" VENV="$(VENV)" EXTRAS="$(EXTRAS)" bash scripts/setup.sh
	@touch $@

setup: $(INSTALLED) ## system packages where allowed, virtual environment, install; instant when done

reinstall: ## build and install again (after installing a compiler, for example)
	@rm -f $(INSTALLED)
	@$(MAKE) --no-print-directory setup

demo: $(INSTALLED) ## images through every backend into a training loop; PHOTOS=folder for your own
	@$(BIN)/fastload demo $(PHOTOS)

doctor: $(INSTALLED) ## what this machine has, and what to change
	@$(BIN)/fastload doctor

CPP_FILES := $(shell find fastload tests benchmarks -name '*.cpp' -o -name '*.hpp' -o -name '*.cuh')

lint: style ## ruff, clang-format, spelling, mypy --strict, and words that are not ours
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/python scripts/plain_words.py
	$(BIN)/codespell $$(git ls-files 2>/dev/null || echo fastload docs tests)

# Tests start Python a hundred times. Where a shell forbids to keep byte code, each would compile fastload again: 15 s of
# processor time for the tests alone.
test test-of test-fast test-whole test-reliability: export PYTHONDONTWRITEBYTECODE :=

# Forks of one process that has read all tests; where there is a GPU, which forks cannot use, processes that read them each.
FORKS = $(if $(wildcard /dev/nvidiactl),-n $(1) --dist $(2),-p tests.forks --forks $(1) $(3))

# tests/reliability is not even read: nothing in it is of these.
RUN_TESTS := $(BIN)/python -m pytest $(call FORKS,$(WORKERS),worksteal) --ignore tests/reliability

# mypy takes the time that tests wait: a quarter of that of two cores.
test: style ## lint, and all tests but those of test-whole and test-reliability; PYTEST="-k resume" passes options on
	@$(BIN)/mypy >build/mypy.log 2>&1 & types=$$!; \
	$(RUN_TESTS) -m "not whole and not reliability" $(PYTEST); tests=$$?; \
	wait $$types; types=$$?; echo "mypy:"; cat build/mypy.log; exit $$((tests ? tests : types))

test-of: $(INSTALLED) ## the tests of one module, MODULE=loader.config, without the slow ones; PYTEST="-m slow" for those
	file=$$($(BIN)/python -m tests.mirror $(MODULE)) && $(BIN)/python -m pytest -m "not slow and not whole" $(PYTEST) $$file

test-fast: $(INSTALLED) ## the quick tests, some 6,000, on two of the backends, for the everyday loop
	$(RUN_TESTS) -m "not slow and not whole and not reliability" $(PYTEST)

# Only files with such tests: to read all of them takes 24 s of processor time, and 12 more in a fresh clone.
FILES_WITH = $$(grep -lE '$(1)' tests/test_*.py tests/clients/test_*.py)

test-whole: $(INSTALLED) ## what takes long: runs of our tools, several ranks, Triton's interpreter, Ray and Lightning where installed
	$(RUN_TESTS) -m "whole and not reliability" $(PYTEST) $(call FILES_WITH,mark\.whole|whole_but|contestants)

# All tests of a file are in one process, as they share servers and builds. They wait for half of their time.
test-reliability: $(INSTALLED) ## faults: killed workers, full disks, hostile files, forks
	$(BIN)/python -m pytest $(call FORKS,$(WORKERS),loadfile,--whole-files) -m reliability $(PYTEST) tests/reliability $(call FILES_WITH,mark\.reliability)

# Two processes: coverage takes half as much processor time again. What only programs run that tests start is not counted.
coverage: export PYTHONDONTWRITEBYTECODE :=
coverage: $(INSTALLED) ## which lines the tests of `make test` run: a table of those that they do not, and pages in build/coverage
	@$(BIN)/python -c "import coverage" 2>/dev/null || $(BIN)/python -m pip install --quiet "coverage>=7.10" # before it, forks are lost
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest $(call FORKS,2,worksteal) --ignore tests/reliability -m "not whole and not reliability" $(PYTEST)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet --directory build/coverage/pages
	@$(BIN)/python -m coverage report

soak: $(INSTALLED) ## 30 minutes of faults at random: every sample accounted for, memory flat; MINUTES=3 for less
	$(BIN)/python -m tests.reliability.soak --minutes $(MINUTES)

corpora: $(INSTALLED) ## verdicts on the odd images of CORPORA=folder (scripts/fetch_corpora.sh gets some)
	$(BIN)/python scripts/corpora.py "$(CORPORA)"

bench-peers: $(INSTALLED) ## fastload beside some twenty ways to load images, about 20 minutes; DATA=folder for your own JPEGs
	$(BIN)/python -m benchmarks.peers $(if $(DATA),--data "$(DATA)") --json benchmarks/results/peers.json

FUZZED := colour floats neighbours noise recompress resample warp masks join decode device pairs seek formats exif tier answer

fuzz: $(INSTALLED) ## decoders, resampling and colour under attack, with sanitizers, against libjpeg-turbo, libpng and libwebp; SECONDS=3600 for an hour each
	cmake -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFASTLOAD_PYTHON=OFF \
	    -DFASTLOAD_FUZZ=ON -DFASTLOAD_SANITIZE=address,undefined
	cmake --build build/fuzz --parallel 2
	$(BIN)/python -m tests.fuzz.make_corpus build/fuzz/seeds && mkdir -p $(FUZZED:%=build/fuzz/corpus/%)
	for target in $(FUZZED); do \
	    [ -x build/fuzz/tests/fuzz/fuzz_$$target ] || { echo "fuzz_$$target needs libisal-dev, libpng-dev and libwebp-dev"; continue; }; \
	    build/fuzz/tests/fuzz/fuzz_$$target -max_len=$$(case $$target in device|seek|pairs) echo 16000;; *) echo 4000;; esac) -max_total_time=$(SECONDS) \
	        build/fuzz/corpus/$$target build/fuzz/seeds/$$target || exit 1; done

# DALI finds no libraries of its own under a sanitizer, which calls dlopen in its place; and freed memory is kept for a while.
sanitize: $(INSTALLED) ## the native core with AddressSanitizer and UBSan, under its tests and the contract suite (needs GCC)
	scripts/sanitize.sh $(BIN)/python tests/test_native_gather.py tests/test_native_decode.py tests/test_native_formats.py \
	    tests/test_decode_verdicts.py tests/test_colour_on_host.py tests/test_render_noise.py tests/test_render_jpeg.py tests/test_native_encode.py \
	    tests/test_masks.py tests/test_mosaics_in_the_core.py tests/test_tier.py \
	    tests/test_contract.py \
	    -k "not dali and not leaks_nothing" $(PYTEST)

mutants: $(INSTALLED) ## one small fault at a time in order, draws, cursor, ...: which of them does no test find?
	$(BIN)/python scripts/mutants.py $(TARGETS)

docs: $(INSTALLED) ## the manual as pages, to be opened as files: build/manual/index.html
	@$(BIN)/python -c "import mkdocs, material, mkdocstrings" 2>/dev/null || $(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir build/manual
	@echo "build/manual/index.html"

wheels: ## the wheels for the Pythons 3.10 to 3.15 that are here, tried without compiler and libjpeg
	@scripts/build_wheels.sh

image: ## the Docker image fastload:cuda; VARIANT=cpu for the one without CUDA
	@docker/verify.sh $(VARIANT) --build-only

image-verify: ## build the Docker image, run it and report (gigabytes); see docker/README.md
	@docker/verify.sh $(VARIANT)

format: $(INSTALLED) ## rewrite sources to the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
