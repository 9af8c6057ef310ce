"""`make bench-solver`: the list plan against CP-SAT's on recorded problems, into docs/benchmarks.md.

One thing to know: the figure is the exact objective of core.plan, which counts the time waited so far too; nothing any
planner does changes that part.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Iterator

from bench import problems
from bench.document import write_part
from gpuq.core import greedy
from gpuq.core.plan import check_plan, objective
from gpuq.core.problem import Problem
from gpuq.solve.cpsat import CpSat

BUDGETS_S = (0.1, 0.3, 1.0)


def waited(problem: Problem) -> float:
    """The part of the objective that is past, in weighted seconds."""
    return sum(queue.weight(0) * queue.heads[0].waited_s for queue in problem.queues)


def lines(found: list[Problem]) -> Iterator[str]:
    """The report."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    yield "# CP-SAT against the list plan\n"
    yield "Written by `make bench-solver`: recorded planning problems (bench/problems.py), one core.\n"
    yield (
        f"{time.strftime('%Y-%m-%d')}, commit {commit.stdout.strip()}, Python {platform.python_version()} on "
        f"{platform.machine()}; {len(found)} problems, {sum(len(each.queues) for each in found) / len(found):.0f} "
        "waiting jobs in the mean.\n"
    )
    yield (
        "| budget s | objective smaller by, mean / most | without the time waited, mean / most | better | worse "
        "| s, mean / most |"
    )
    yield "|---|---|---|---|---|---|"
    for budget_s in BUDGETS_S:
        yield row(found, budget_s)


def row(found: list[Problem], budget_s: float) -> str:
    """One budget over all problems."""
    whole, ahead, times_s, worse = [], [], [], 0
    for problem in found:
        first = greedy.plan(problem)
        began_s = time.perf_counter()
        plan = CpSat(budget_s, limit_s=1.5 * budget_s).improve(problem, first)
        times_s.append(time.perf_counter() - began_s)
        check_plan(problem, plan)
        before, after = (float(objective(problem, each)) / 1000 for each in (first, plan))
        past = waited(problem)
        worse += after > before
        whole.append(1 - after / before)
        ahead.append((before - after) / (before - past))
    number = len(found)
    return (
        f"| {budget_s:g} | {100 * sum(whole) / number:.2f}% / {100 * max(whole):.1f}% "
        f"| {100 * sum(ahead) / number:.2f}% / {100 * max(ahead):.1f}% "
        f"| {sum(1 for gain in whole if gain > 0)} | {worse} | {sum(times_s) / number:.2f} / {max(times_s):.2f} |"
    )


def main() -> int:
    """Measure, print, and with --write keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--every", type=int, default=1, help="only every n-th problem")
    asked = parser.parse_args()
    made: list[str] = []
    for line in lines(problems.read()[:: asked.every]):
        print(line, flush=True)
        made.append(line)
    if asked.write:
        write_part("solver", "\n".join(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
