# SPDX-License-Identifier: Apache-2.0
# A thin front door to CMake presets. `make help` lists the doors.
.PHONY: all deps demo check check-seeds bench install help clean
JOBS := $(shell nproc 2>/dev/null || echo 2)

all: ## build the library and the command line tool into build/
	@scripts/deps build
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS)

deps: ## install what building and testing need (root on Debian), or print the one apt line
	@scripts/deps all

demo: all ## the main job on real input: refused, served and explained
	@build/rapt-demo examples/data

check: ## all tests: C under ctest, Python under pytest, sanitizers, and the counts in tests/floor.json
	@scripts/deps all
	@python3 scripts/check

check-seeds: ## only the tests of the bug reports that rapt exists for, by their names (part of check)
	@scripts/deps all
	@scripts/python-env build/venv
	@PYTHONNOUSERSITE=1 build/venv/bin/python -m pytest -v tests/py/seeds

bench: ## every bar with its figure and verdict
	@scripts/deps all
	@cmake --preset check >/dev/null
	@cmake --build --preset check -j $(JOBS) >/dev/null
	@python3 scripts/bench

install: all ## install under PREFIX (default /usr/local)
	@cmake --install build --prefix $(or $(PREFIX),/usr/local)

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

clean: ## remove build folders
	@rm -rf build build-asan
