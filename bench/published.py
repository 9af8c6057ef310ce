"""`make bench-published TRACES=folder`: published results beside the simulator's, into docs/benchmarks.md.

Three tables: Muri's figures 9 and 10 (SRTF, SRSF), FGD's figure 9a (Random, BestFit, FGD) and Shockwave's canonical run
on 32 GPUs (max-min fairness, makespan). Exit status 1: a number is further off than its limit.

One thing to know: each paper's simulator has physics of its own, and the tables say which were taken over.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

from bench.document import write_part
from bench.fragmentation import RULES, allocated_percent, read
from gpuq.sim.cluster import Board, Placement, parse_cluster
from gpuq.sim.experiment import prepare, simulate
from gpuq.sim.policies.gavel import Gavel, least_makespan, max_min
from gpuq.sim.policies.ranked import gpu_time_left_s, time_left_s
from gpuq.sim.trace import read_trace
from gpuq.sim.world import Policy, SimJob, World

MURI_TRACES = ("trace1", "trace3", "trace4")
MURI_LIMIT_PERCENT = 5.5
MURI_START_S = 25.0  # the middle of its start-up times by model, 4 to 46 s
FGD_LIMIT_POINTS = 1.5
FGD_SEEDS = 3
SHOCKWAVE_ROUND_S = 120.0
SHOCKWAVE_RESTART_S = 20.0


class Beside(NamedTuple):
    """A number of ours, the published one, and how far apart they are against the limit (inf: none)."""

    ours: float
    published: float
    off: float
    limit: float

    @property
    def kept(self) -> bool:
        """Within the limit."""
        return abs(self.off) <= self.limit


class PlacedAnew:
    """Muri's physics: at every event all jobs are placed anew in order, and each that runs pays its start-up."""

    def __init__(self, name: str, rank: Callable[[SimJob], float]) -> None:
        self.name = name
        self._rank = rank

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Stop all, then start in order what fits."""
        for job in list(world.running.values()):
            world.stop(job)
        board = Board(world.cluster)
        chosen: list[tuple[SimJob, Placement]] = []
        for job in sorted(world.waiting.values(), key=lambda job: (self._rank(job), job.order)):
            placement = board.find(job.gpus, 0)
            if placement is not None:
                board.take(placement)
                chosen.append((job, placement))
        for job, placement in chosen:
            world.start(job, placement)


def flows_of(path: Path, gpus: int, nodes_of: int, policy: Policy, restart_s: float) -> tuple[float, float]:
    """Mean completion time and makespan [s] with known run times."""
    setting = prepare(read_trace(path), parse_cluster(f"V100:{gpus}", nodes_of), None)
    jobs = [
        SimJob(job, order, job.duration_s, job.duration_s, speeds)
        for order, (job, speeds) in enumerate(zip(setting.trace.jobs, setting.speeds, strict=True))
    ]
    world = World(setting.cluster, jobs, restart_s)
    world.run(policy)
    ends_s = [(job.submit_s, job.end_s or 0.0) for job in world.ended]
    return sum(end_s - submit_s for submit_s, end_s in ends_s) / len(ends_s), max(end_s for _, end_s in ends_s)


def percent_off(ours: float, published: float, limit: float = inf) -> Beside:
    """Compared by ratio."""
    return Beside(ours, published, 100.0 * (ours / published - 1.0), limit)


def muri_lines(folder: Path, kept: list[bool]) -> Iterator[str]:
    """Figures 9 and 10."""
    published = json.loads((folder / "results/muri_sim.json").read_text("utf-8"))
    yield "\n## Muri (SIGCOMM 2022), figures 9 and 10: 64 GPUs in nodes of 8, run times known\n"
    yield (
        "Mean JCT and makespan in seconds. First as Muri's simulator counts: all jobs placed anew at every event, and "
        f"each running job pays its start-up then, here {MURI_START_S:.0f} s for all: theirs, by model, are 4 to 46 s; "
        f"limit {MURI_LIMIT_PERCENT}%. Then the mean JCT of the simulator's own policy, where a restart costs 60 s.\n"
    )
    yield "| trace | order | published | Muri's physics | off | makespan published | ours | off | own physics | off |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for trace in MURI_TRACES:
        at = published["traces"].index(trace)
        path = folder / f"muri/{trace}.csv"
        setting = prepare(read_trace(path), parse_cluster("V100:64", 8), None)
        for name, rank in (("SRTF", time_left_s), ("SRSF", gpu_time_left_s)):
            mean_s, makespan_s = flows_of(path, 64, 8, PlacedAnew(name, rank), MURI_START_S)
            jct = percent_off(mean_s, published["mean_jct_s"][name][at], MURI_LIMIT_PERCENT)
            makespan = percent_off(makespan_s, published["makespan_s"][name][at], MURI_LIMIT_PERCENT)
            own = percent_off(simulate(setting, f"{name.lower()}_perfect").row.mean_jct_s, jct.published)
            kept += [jct.kept, makespan.kept]
            yield (
                f"| {trace} | {name} | {jct.published:,.0f} | {jct.ours:,.0f} | {jct.off:+.1f}% | "
                f"{makespan.published:,.0f} | {makespan.ours:,.0f} | {makespan.off:+.1f}% | {own.ours:,.0f} | "
                f"{own.off:+.1f}% |"
            )


def fgd_lines(folder: Path, kept: list[bool]) -> Iterator[str]:
    """Figure 9a."""
    with (folder / "results/fgd_openb_alloc.csv").open(newline="") as lines:
        published = {
            row["policy"]: float(row["alloc_pct_at_130"])
            for row in csv.DictReader(lines)
            if row["workload"] == "default"
        }
    yield "\n## FGD (ATC 2023), figure 9a: 1,213 nodes, 6,212 GPUs, pods to 130% of them, default workload\n"
    yield f"Allocated GPUs in percent, mean of {FGD_SEEDS} draws (theirs: 10); limit {FGD_LIMIT_POINTS} points.\n"
    yield "| rule | published | ours | off |"
    yield "|---|---|---|---|"
    for rule in RULES:
        found = [allocated_percent(*read(folder), rule, seed) for seed in range(FGD_SEEDS)]
        ours = sum(found) / len(found)
        beside = Beside(ours, published[rule], ours - published[rule], FGD_LIMIT_POINTS)
        kept.append(beside.kept)
        yield f"| {rule} | {beside.published:.2f} | {beside.ours:.2f} | {beside.off:+.2f} |"


def shockwave_lines(folder: Path) -> Iterator[str]:
    """The canonical run."""
    published = json.loads((folder / "results/shockwave_tacc32.json").read_text("utf-8"))["policies"]
    yield "\n## Shockwave (NSDI 2023), canonical run: 120 jobs, 32 GPUs in nodes of 4, rounds of 120 s\n"
    yield (
        f"Mean JCT and makespan in seconds, no limit. A restart costs {SHOCKWAVE_RESTART_S:.0f} s of GPU time or "
        "nothing; the first is our guess at theirs: of 0, 20 and 60 s it comes nearest. Jobs have the run times that "
        "they were charged, changes of batch size included, of which policies are not told. The makespan program knows "
        "run times.\n"
    )
    yield "| policy | restart | JCT published | ours | off | makespan published | ours | off |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = (("Gavel max-min (agnostic LAS)", max_min), ("OSSP (makespan LP)", least_makespan))
    for name, shares in rows:
        for restart_s in (SHOCKWAVE_RESTART_S, 0.0):
            policy = Gavel(name, shares, SHOCKWAVE_ROUND_S)
            mean_s, makespan_s = flows_of(folder / "shockwave/jobs120.csv", 32, 4, policy, restart_s)
            jct = percent_off(mean_s, published[name]["mean_jct_s"])
            makespan = percent_off(makespan_s, published[name]["makespan_s"])
            yield (
                f"| {name} | {restart_s:.0f} s | {jct.published:,.0f} | {jct.ours:,.0f} | {jct.off:+.1f}% | "
                f"{makespan.published:,.0f} | {makespan.ours:,.0f} | {makespan.off:+.1f}% |"
            )


def head_lines() -> Iterator[str]:
    """What the report is and where it was made."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    yield "# Published results beside the simulator's\n"
    yield "Written by `make bench-published`. The numbers and traces are those of the papers' public repositories.\n"
    yield f"{time.strftime('%Y-%m-%d')}, commit {commit.stdout.strip()}, Python {platform.python_version()}."


def main() -> int:
    """Print the report, and write it when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the traces")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    asked = parser.parse_args()
    lines: list[str] = []
    kept: list[bool] = []
    folder = asked.folder
    for part in (head_lines(), muri_lines(folder, kept), fgd_lines(folder, kept), shockwave_lines(folder)):
        for line in part:
            print(line, flush=True)
            lines.append(line)
    print(f"\n{sum(kept)} of {len(kept)} numbers within their limits")
    if asked.write:
        write_part("published", "\n".join(lines))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
