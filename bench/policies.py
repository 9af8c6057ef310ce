"""`make bench-policies TRACES=folder`: scheduling policies on public traces, into docs/benchmarks.md.

Suites: H (equal GPUs, jobs may be stopped), F (equal GPUs, nothing may be stopped), T (three GPU types with measured
speeds, jobs may be stopped), S (as T, two jobs may share GPUs), FT (three types, nothing may be stopped), FC (a part of
FT, small enough for a solver at every decision), M (two traces of H, half of the jobs may be stopped). Every policy of
a row gets the same trace, predictions and restart cost.

One thing to know: the folder is laid out as the table of suites below names its files, and is not part of gpuq; the
first part of the report compares the simulator with reference runs kept beside the traces.
"""

from __future__ import annotations

import argparse
import csv
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bench.document import write_part
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import Row, prepare, simulate
from gpuq.sim.speeds import read_table
from gpuq.sim.trace import read_trace

LOADS = (0.7, 0.9)
EQUAL = {
    "itp/cluster02": 96, "itp/cluster05": 16, "itp/cluster10": 8, "philly/103959": 24, "philly/0e4a51": 48,
    "philly/ee9e8c": 128, "muri/trace3": 64,
}  # fmt: skip
TYPES = {
    "gavel/philly_models_103959_s0": "V100:16,P100:16,K80:16", "gavel/philly_models_ed69ec_s0": "V100:8,P100:8,K80:8",
    "gavel/continuous_multi_s0": "V100:16,P100:16,K80:16",
}  # fmt: skip
STOPPING = ("impact", "srsf", "srtf", "las2d", "gittins2d")
GAVEL = ("gavel_maxmin", "gavel_makespan", "gavel_sjf")
MIXED = ("itp/cluster05", "philly/0e4a51")
MIXED_SHARE = 0.5  # of the jobs may be stopped
FIXED = ("greedy", "sjf", "saf", "easypp", "fifo_firstfit")
SUITES = {
    "H": ({name: f"V100:{gpus}" for name, gpus in EQUAL.items()}, (*STOPPING, "sjf", "saf")),
    "F": ({name: f"V100:{gpus}" for name, gpus in EQUAL.items()}, FIXED),
    "T": (TYPES, (*STOPPING, *GAVEL)),
    "S": (TYPES, ("impact", "lucid")),
    "FT": (TYPES, FIXED),
    "FC": ({name: gpus for name, gpus in TYPES.items() if "philly" in name}, ("impact", "greedy", "sjf")),
    "M": ({name: f"V100:{EQUAL[name]}" for name in MIXED}, ("impact", "srsf", "sjf")),
}
REFERENCE_NAMES = {
    "fifo": "fifo", "fifo_firstfit": "fifo_firstfit", "easy_perfect": "easy_perfect", "sjf_perfect": "sjf_perfect",
    "saf_perfect": "saf_perfect", "srtf_perfect": "srtf_perfect", "srsf_perfect": "srsf_perfect",
    "las2d": "las2d_1h_10h",
}  # fmt: skip


class Case(NamedTuple):
    """One trace at one load under some policies."""

    folder: Path
    trace: str
    gpus: str
    load: float | None
    policies: tuple[str, ...]
    seeds: int
    nodes_of: int = 8
    fixed: bool = False
    sharing: bool = False
    preemptible: float | None = None


def run(case: Case) -> list[Row]:
    """All policies and seeds of a case."""
    trace = read_trace(case.folder / f"{case.trace}.csv")
    setting = prepare(trace, parse_cluster(case.gpus, case.nodes_of), case.load, read_table(), case.sharing)
    return [
        simulate(setting, policy, seed, fixed=case.fixed, preemptible=case.preemptible).row
        for policy in case.policies
        for seed in range(case.seeds)
    ]


def mean(values: list[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def geometric(values: list[float]) -> float:
    """Geometric mean."""
    return math.exp(mean([math.log(value) for value in values]))


def suite_lines(pool: ProcessPoolExecutor, name: str, folder: Path, seeds: int) -> Iterator[str]:
    """Mean and p99 JCT of every policy relative to EASY, per setting and in the geometric mean."""
    traces, policies = SUITES[name]
    named = ("easy", *policies)
    share = MIXED_SHARE if name == "M" else None
    cases = [
        Case(folder, trace, gpus, load, named, seeds, 8, name.startswith("F"), name == "S", share)
        for trace, gpus in traces.items()
        for load in LOADS
    ]
    yield f"## Suite {name}\n"
    yield (
        f"{origin()}; {seeds} seed{'' if seeds == 1 else 's'} from 0; Helios prediction errors, 60 s per restart, "
        "nodes of 8 GPUs, loads by scaling submissions. Mean JCT / p99 JCT relative to EASY with owners' estimates, "
        "and mean JCT over the lower bound.\n"
    )
    yield f"| trace | load | EASY mean h / p99 h | {' | '.join(policies)} |"
    yield f"|---|---|---|{'---|' * len(policies)}"
    found: list[dict[str, list[Row]]] = []
    for case, of in zip(cases, rows_by_policy(pool, cases), strict=True):
        found.append(of)
        base_mean = mean([row.mean_jct_s for row in of["easy"]]) / 3600
        base_p99 = mean([row.p99_jct_s for row in of["easy"]]) / 3600
        cells = [cell(against_easy([of], policy, range(seeds))) for policy in policies]
        yield f"| {case.trace} | {case.load} | {base_mean:.1f} / {base_p99:.0f} | {' | '.join(cells)} |"
    cells = [cell(against_easy(found, policy, range(seeds))) for policy in policies]
    yield f"| **geometric mean** | | | {' | '.join(cells)} |"
    if seeds > 1:
        cells = [spread([against_easy(found, policy, (seed,)) for seed in range(seeds)]) for policy in policies]
        yield f"| least to most of a seed | | | {' | '.join(cells)} |"
    worst = [f"{max(mean([row.max_slowdown for row in of[policy]]) for of in found):,.0f}" for policy in policies]
    yield f"| worst slow-down | | | {' | '.join(worst)} |"


def rows_by_policy(pool: ProcessPoolExecutor, cases: list[Case]) -> Iterator[dict[str, list[Row]]]:
    """The rows of each case in order; policies of a case run beside one another."""
    parts = [case._replace(policies=(policy,)) for case in cases for policy in case.policies]
    done = pool.map(run, parts)
    for case in cases:
        yield {policy: next(done) for policy in case.policies}


def against_easy(found: list[dict[str, list[Row]]], policy: str, seeds: Sequence[int]) -> tuple[float, float, float]:
    """Mean JCT and p99 JCT relative to EASY, and mean JCT over the bound: geometric means over cases."""
    of_mean, of_p99, over_bound = [], [], []
    for of in found:
        rows, easy = ([of[name][seed] for seed in seeds] for name in (policy, "easy"))
        of_mean.append(mean([row.mean_jct_s for row in rows]) / mean([row.mean_jct_s for row in easy]))
        of_p99.append(mean([row.p99_jct_s for row in rows]) / mean([row.p99_jct_s for row in easy]))
        over_bound.append(mean([row.mean_jct_s / row.lower_bound_s for row in rows]))
    return geometric(of_mean), geometric(of_p99), geometric(over_bound)


def cell(found: tuple[float, float, float]) -> str:
    """As the table has it."""
    return f"{found[0]:.3f} / {found[1]:.2f} / {found[2]:.2f}"


def spread(of_seeds: list[tuple[float, float, float]]) -> str:
    """Least and most of the first two over seeds."""
    means, p99s = ([each[at] for each in of_seeds] for at in (0, 1))
    return f"{min(means):.3f}-{max(means):.3f} / {min(p99s):.2f}-{max(p99s):.2f}"


def reference_lines(pool: ProcessPoolExecutor, folder: Path) -> Iterator[str]:
    """The noise-free rows of the reference runs beside ours."""
    with (folder / "results/reference_runs.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    traces = {row["trace"]: (int(row["gpus"]), int(row["gpus_per_node"])) for row in rows}
    chosen = [trace for trace in traces if trace.removesuffix(".csv") in EQUAL or "jobs120" in trace]
    names = tuple(REFERENCE_NAMES)
    cases = [
        Case(folder, trace.removesuffix(".csv"), f"V100:{traces[trace][0]}", None, names, 1, traces[trace][1])
        for trace in chosen
    ]
    yield "\n## Against the reference runs\n"
    yield "Mean JCT in hours, ours / reference, and the difference; nothing in these rows is drawn at random.\n"
    yield f"| trace | {' | '.join(REFERENCE_NAMES)} |"
    yield f"|---|{'---|' * len(REFERENCE_NAMES)}"
    for case, found in zip(cases, pool.map(run, cases), strict=True):
        ours = {REFERENCE_NAMES[row.policy]: row.mean_jct_s / 3600 for row in found}
        theirs = {row["policy"]: float(row["mean_jct_h"]) for row in rows if row["trace"] == f"{case.trace}.csv"}
        cells = [_beside(ours[name], theirs.get(name)) for name in REFERENCE_NAMES.values()]
        yield f"| {case.trace} | {' | '.join(cells)} |"


def _beside(ours_h: float, theirs_h: float | None) -> str:
    if theirs_h is None:
        return "-"
    return f"{ours_h:.2f} / {theirs_h:.2f} ({100 * (ours_h / theirs_h - 1):+.1f}%)"


def head_lines() -> Iterator[str]:
    """What the report is."""
    yield "# Policies on public traces\n"
    yield "Written by `make bench-policies`. What they are, and what was left out: their folder's README."
    yield "Policies are described in [planner.md](planner.md).\n"
    yield f"{origin()}."


def origin() -> str:
    """When, of which commit, on what."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"Python {platform.python_version()} on {platform.machine()}"
    return f"{time.strftime('%Y-%m-%d')}, commit {commit.stdout.strip()}, {machine}"


def main() -> int:
    """Run everything and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the traces")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--suites", default=",".join(SUITES), help="write only these suites")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    asked = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        names = asked.suites.split(",")
        parts = {f"suite {name}": suite_lines(pool, name, asked.folder, asked.seeds) for name in names}
        if asked.suites == parser.get_default("suites"):
            parts = {"policies": chain(head_lines(), reference_lines(pool, asked.folder)), **parts}
        for name, part in parts.items():
            lines = []
            for line in part:
                print(line, flush=True)
                lines.append(line)
            if asked.write:
                write_part(name, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
