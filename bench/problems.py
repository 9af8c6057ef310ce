"""Recorded planning problems: who waited, who ran and until when, at moments of simulated days.

A line of data/problems.jsonl is one problem: `gpus` is a list of [type, node, seconds until free], `jobs` of [GPUs,
seconds waited, {type: seconds it would run}].

One thing to know: they were recorded from suite FT of bench.policies under the list planner, so they are what it meets,
and not what makes a solver look good. `python -m bench.problems TRACES` records them anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from bench.policies import LOADS, TYPES
from gpuq.core.estimate import Prediction
from gpuq.core.greedy import Greedy
from gpuq.core.impact import Weights
from gpuq.core.model import Gpu, GpuUuid, JobId, NodeName, Resources, Stamp
from gpuq.core.problem import Machine, Problem, Queue, Site, Slot, Waiting
from gpuq.core.state import Shape
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import prepare
from gpuq.sim.policies.planned import Planned
from gpuq.sim.predictions import predict_all
from gpuq.sim.speeds import read_table
from gpuq.sim.trace import read_trace
from gpuq.sim.world import SimJob, World

DATA = Path(__file__).resolve().parent / "data/problems.jsonl"
NUMBER = 200
WAITING = (8, 60)  # jobs that wait in a problem worth keeping, at least and at most
AGE_FLOOR_S = 600.0


def read(path: Path = DATA) -> list[Problem]:
    """All recorded problems."""
    return [build(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def build(row: dict[str, Any]) -> Problem:
    """The problem of one line."""
    nodes = sorted({node for _, node, _ in row["gpus"]})
    slots = tuple(
        Slot(node, Gpu(uuid=GpuUuid(f"g{at}"), index=at, type=type_, name=type_), free_at_s, True)
        for at, (type_, node, free_at_s) in enumerate(row["gpus"])
    )
    of: dict[int, list[int]] = {}
    for at, slot in enumerate(slots):
        of.setdefault(slot.machine, []).append(at)
    queues = tuple(_queue(number, job, slots, of) for number, job in enumerate(row["jobs"]))
    return Problem(
        stamp=Stamp(wall_s=0.0, steady_s=0.0),
        weights=Weights(),
        window=256,
        machines=tuple(Machine(NodeName(f"n{node}"), 0, 0, (), 0) for node in nodes),
        slots=slots,
        queues=queues,
        waiting=len(queues),
    )


def _queue(number: int, job: list[Any], slots: tuple[Slot, ...], of: dict[int, list[int]]) -> Queue:
    gpus, waited_s, runs = job
    best_run_s = min(runs.values())
    sites = [
        Site(node, slots[found[0]].gpu.type, tuple(found), best_run_s / runs[slots[found[0]].gpu.type], 0)
        for node, found in of.items()
        if slots[found[0]].gpu.type in runs and len(found) >= gpus
    ]
    return Queue(
        shape=Shape("user", str(number), Resources(gpus=gpus), None, 0, 0, False, None, None),
        heads=(Waiting(JobId(str(number)), waited_s, number),),
        count=1,
        sites=tuple(sorted(sites, key=lambda site: (-site.speed, site.machine))),
        prediction=Prediction(run_s=best_run_s, low_s=best_run_s, high_s=best_run_s, basis="recorded", informed=True),
        standing=1.0,
        best_run_s=best_run_s,
        age_s=max(best_run_s, AGE_FLOOR_S) if best_run_s < inf else inf,
        release_s=0.0,
    )


# --- recording --------------------------------------------------------------------------------------------


class _Recording(Planned):
    """The list planner, which notes what it is asked."""

    def __init__(self) -> None:
        super().__init__("recording", Greedy())
        self.found: list[str] = []

    def schedule(self, world: World) -> None:
        if WAITING[0] <= len(world.waiting) <= WAITING[1] and any(world.board.left):
            problem = self.problem(world)
            if all(not site.spans for queue in problem.queues for site in queue.sites):
                self.found.append(json.dumps(_row(problem), separators=(",", ":")))
        super().schedule(world)


def _row(problem: Problem) -> dict[str, Any]:
    return {
        "gpus": [[slot.gpu.type, slot.machine, round(slot.free_at_s)] for slot in problem.slots],
        "jobs": [
            [
                queue.gpus, round(queue.heads[0].waited_s),
                {site.type: max(1, round(queue.prediction.on(site.speed))) for site in queue.sites},
            ]
            for queue in problem.queues
        ],
    }  # fmt: skip


def record(folder: Path) -> Iterator[str]:
    """An equal number of problems from every setting of suite FT, drawn with a fixed seed."""
    settings = [(trace, gpus, load) for trace, gpus in TYPES.items() for load in LOADS]
    random = Random(1)
    for number, (trace, gpus, load) in enumerate(settings):
        setting = prepare(read_trace(folder / f"{trace}.csv"), parse_cluster(gpus), load, read_table())
        told = predict_all(setting.trace.jobs, "helios", 0)
        jobs = [
            SimJob(job, order, each.run_s, each.limit_s, speeds)
            for order, (job, each, speeds) in enumerate(zip(setting.trace.jobs, told, setting.speeds, strict=True))
        ]
        policy = _Recording()
        World(setting.cluster, jobs).run(policy)
        share = NUMBER * (number + 1) // len(settings) - NUMBER * number // len(settings)
        yield from random.sample(policy.found, min(share, len(policy.found)))


if __name__ == "__main__":
    DATA.write_text("\n".join(record(Path(sys.argv[1]))) + "\n", encoding="utf-8")
