"""`python -m bench [--only NAME] [--write]`: measure, print, and with --write keep it in docs/benchmarks.md.

One thing to know: nothing here fails because a figure is missed. A table says so; tests are never timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import crash, inside, latency, throughput, upkeep
from bench.document import DOCUMENT, write_part
from bench.figures import PEER, Row, table
from bench.machine import ROOT, load, machine_line
from bench.peer import tsp_program
from bench.place import Place

QUIET_LOAD = 1.5


class Benchmark(NamedTuple):
    """One measurement and how it is called."""

    name: str
    measure: Callable[[Place], list[Row]]


BENCHMARKS = (
    Benchmark("help", latency.help_and_completion),
    Benchmark("submit", latency.submit_command),
    Benchmark("first", latency.first_instruction),
    Benchmark("intake", throughput.durable_submits),
    Benchmark("drain", throughput.drain),
    Benchmark("status", latency.status_of_many),
    Benchmark("upkeep", upkeep.idle_and_loaded),
    Benchmark("crash", crash.killed),
    Benchmark("plan", inside.planning_pass),
    Benchmark("restart", crash.restart),
    Benchmark("commit", inside.one_commit),
    Benchmark("agent", inside.agent_start),
)


def main() -> int:
    """Run the chosen benchmarks; returns the exit code."""
    chosen, write = _arguments()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="gpuq-bench-") as directory:
        place = Place(Path(directory), tsp_program())
        machine, before = machine_line(place.directory), load()
        for benchmark in chosen:
            print(f"{benchmark.name}: {(benchmark.measure.__doc__ or '').strip()}", file=sys.stderr, flush=True)
            rows += benchmark.measure(place)
    text = _report(machine, before, rows, place.tsp is not None)
    print(text)
    if write:
        write_part("speed", _document(text))
        print(f"written to {DOCUMENT.relative_to(ROOT)}", file=sys.stderr)
    return 0


def _arguments() -> tuple[list[Benchmark], bool]:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure gpuq on this machine.")
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md; measures everything")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("--write needs all figures: leave out --only")
    if given.write and load() > QUIET_LOAD:
        parser.error(f"the load is {load():.1f}; wait until it is below {QUIET_LOAD} before figures are written down")
    return [each for each in BENCHMARKS if not given.only or each.name in given.only], given.write


def _report(machine: str, before: float, rows: list[Row], has_peer: bool) -> str:
    missed = [row.what for row in rows if row.holds is False]
    verdict = f"Missed: {'; '.join(missed)}." if missed else "Every figure to hold is held."
    return "\n".join(
        (
            f"Machine: {machine}.",
            f"Load of the last minute: {before:.2f} before, {load():.2f} after (ended {time.strftime('%H:%M')}).",
            "",
            *table(rows, has_peer),
            "",
            verdict,
        )
    )


def _document(report: str) -> str:
    peer = f"`{PEER}` is task-spooler, measured in the same run on the same machine." if tsp_program() else ""
    return f"""# Speed

Written by `python -m bench --write` (`make bench` prints the same). Times are wall clock, medians with extremes; the
column CPU is user and system time of the measured process. GPUs are simulated, processes, journal, agent and shims are
real, and each measurement has a temporary home of its own. {peer}

{report}
"""


if __name__ == "__main__":
    sys.exit(main())
