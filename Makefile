# Everything here makes .venv first; there is no other step. Python >= 3.10, make and a C compiler are all it takes.

RUN := .venv/bin/python

.PHONY: help demo test unit check generated format bench bench-policies bench-published bench-solver venv clean

help:
	@echo "make demo     some twenty jobs on simulated GPUs, in less than 40 s"
	@echo "make test     all tests (make unit: only those that start no process that lasts)"
	@echo "make check    lint, types, layout, generated files"
	@echo "make bench-policies TRACES=folder    scheduling policies on public traces, into docs/benchmarks.md"
	@echo "make bench-published TRACES=folder   published results beside the simulator's, into docs/benchmarks.md"
	@echo "make bench-solver    CP-SAT against the list plan on recorded problems, into docs/benchmarks.md"
	@echo "make bench    the figures of this machine, printed with its name and the date"

venv:
	@.ci/venv

demo: venv
	@.venv/bin/gpuq demo

test: venv
	@.ci/packages
	$(RUN) -m pytest -n 2 --dist worksteal

unit: venv
	$(RUN) -m pytest -n 2 --dist worksteal -m "not e2e and not chaos"

check: venv
	.venv/bin/ruff check
	.venv/bin/mypy
	@.ci/generated --check
	$(RUN) -m pytest -q tests/test_layout.py

generated: venv
	@.ci/generated

format: venv
	.venv/bin/ruff check --select I --fix
	.venv/bin/ruff format

bench-solver: venv
	$(RUN) -m bench.solver --write

bench: venv
	$(RUN) -m bench

bench-policies: venv
	$(RUN) -m bench.policies $(TRACES) --write

bench-published: venv
	$(RUN) -m bench.published $(TRACES) --write

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
