"""Runs in which some jobs may be stopped and others may not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import Setting, preemptible_jobs, prepare, simulate
from gpuq.sim.policies.registry import POLICIES
from gpuq.sim.speeds import read_table
from gpuq.sim.trace import Trace, TraceJob, parse_trace, read_shipped
from gpuq.sim.world import SimJob, World

STOPPING = sorted(name for name, entry in POLICIES.items() if entry.stops_jobs and not entry.perfect)


def mixed(load: float = 0.9, sharing: bool = False) -> Setting:
    return prepare(read_shipped("mixed"), parse_cluster("V100:8,P100:8,K80:8"), load, read_table(), sharing)


@pytest.mark.parametrize("name", [name for name in STOPPING if not name.startswith("gavel_m")])
def test_a_fixed_job_runs_once_in_one_place(name: str) -> None:
    """Under every policy that stops jobs a fixed one has a single stay, and some of the others are stopped."""
    setting = prepare(read_shipped("small"), parse_cluster("V100:8", 4), 0.95)
    trace = setting.trace  # without the jobs that fit nowhere
    found = simulate(setting, name, preemptible=0.5, keep_runs=True)
    may = preemptible_jobs(trace.jobs, 0.5, 0)
    stays = {job.id: 0 for job in trace.jobs}
    for run in found.runs:
        stays[run.job] += 1
    assert all(stays[job.id] == 1 for job, stoppable in zip(trace.jobs, may, strict=True) if not stoppable)
    assert found.row.restarts > 0
    assert found == simulate(setting, name, preemptible=0.5, keep_runs=True)


@pytest.mark.parametrize(
    ("name", "sharing"), [("impact", False), ("impact", True), ("srsf", False), ("gavel_sjf", False)]
)
def test_fixed_jobs_keep_their_gpus_on_several_types_and_shared(name: str, sharing: bool) -> None:
    """With three GPU types, and with partners on the same GPUs, a fixed job stays where it began."""
    setting = mixed(sharing=sharing)
    found = simulate(setting, name, preemptible=0.4, keep_runs=True)
    may = preemptible_jobs(setting.trace.jobs, 0.4, 0)
    fixed = {job.id for job, stoppable in zip(setting.trace.jobs, may, strict=True) if not stoppable}
    spans: dict[str, list[tuple[float, float]]] = {}
    where: dict[str, set[object]] = {}
    for run in found.runs:
        if run.job in fixed:
            spans.setdefault(run.job, []).append((run.start_s, run.end_s))
            where.setdefault(run.job, set()).add(run.placement)
    assert fixed == set(spans)
    assert all(len(places) == 1 for places in where.values())
    for each in spans.values():
        each.sort()
        assert all(end == start for (_, end), (start, _) in pairwise(each))


def test_the_world_refuses_to_stop_a_fixed_job() -> None:
    """A policy that tries has a fault, and the run ends with the job's name."""
    job = SimJob(TraceJob("7", 0.0, 100.0, 1, preemptible=False), 0, 100.0, 100.0, (1.0,))

    class Rude:
        name = "rude"

        def schedule(self, world: World) -> None:
            for each in list(world.waiting.values()):
                world.start(each, ((0, 1),))
                world.stop(each)

        def wake_s(self, world: World) -> float:
            return float("inf")

    with pytest.raises(AssertionError, match="job 7 may not be stopped"):
        World(parse_cluster("V100:1"), [job]).run(Rude())


def test_the_column_is_read_and_a_wrong_cell_is_a_named_reason() -> None:
    """1, true and an empty cell: it may be stopped; 0 and false: not; anything else is left out and counted."""
    cells = ("1", "TRUE", "", "0", "false", "x")
    trace = parse_trace(["submit_s,duration_s,gpus,preemptible", *(f"0,60,1,{cell}" for cell in cells)], "t")
    assert [job.preemptible for job in trace.jobs] == [True, True, True, False, False]
    assert trace.left_out == {"with a preemptible that is neither 1 nor 0": 1}


def test_a_share_is_exact_nested_and_goes_before_the_column() -> None:
    """Of ten jobs 0.3 are three, among the five of 0.5, and 1 is every job whatever the trace says."""
    jobs = tuple(TraceJob(str(at), 0.0, 60.0, 1, preemptible=False) for at in range(10))
    few, more, all_ = (preemptible_jobs(jobs, share, 3) for share in (0.3, 0.5, 1.0))
    assert (sum(few), sum(more), sum(all_)) == (3, 5, 10)
    assert all(one <= other for one, other in zip(few, more, strict=True))
    assert not any(preemptible_jobs(jobs, None, 3))
    assert few == preemptible_jobs(jobs, 0.3, 3) != preemptible_jobs(jobs, 0.3, 4)


def test_shares_0_and_1_are_the_runs_of_before() -> None:
    """Share 0 is --fixed, share 1 is no share at all, and a column of zeros is --fixed too."""
    setting = prepare(read_shipped("small"), parse_cluster("V100:8"), 0.9)
    assert simulate(setting, "greedy", preemptible=0.0) == simulate(setting, "greedy", fixed=True)
    assert simulate(setting, "greedy", preemptible=1.0) == simulate(setting, "greedy")
    zeros = Trace("small", tuple(job._replace(preemptible=False) for job in setting.trace.jobs), {})
    column = simulate(prepare(zeros, setting.cluster, None), "greedy")
    assert column.row._replace(dropped=0) == simulate(setting, "greedy", fixed=True).row._replace(dropped=0)
