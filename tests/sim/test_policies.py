"""Peer policies on schedules that can be computed by hand."""

from __future__ import annotations

import pytest

from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import Outcome, prepare, simulate
from gpuq.sim.policies.gittins import LIMITS_GPU_S, GpuTimes, level_of
from gpuq.sim.trace import Trace, TraceJob


def outcome(policy: str, cluster: str, *jobs: tuple[float, float, int], restart_s: float = 60.0) -> Outcome:
    """Run jobs of (submit_s, duration_s, gpus) with true run times for predictions; owners' estimates are seed 0's."""
    listed = Trace("t", tuple(TraceJob(str(number), *job) for number, job in enumerate(jobs)), {})
    setting = prepare(listed, parse_cluster(cluster), None)
    return simulate(setting, policy, predictions="perfect", restart_s=restart_s, keep_runs=True)


def starts(found: Outcome) -> dict[str, float]:
    """Job -> start of its first run."""
    first: dict[str, float] = {}
    for run in found.runs:
        first[run.job] = min(run.start_s, first.get(run.job, run.start_s))
    return first


# --- conservative -----------------------------------------------------------------------------------------


def test_no_reservation_is_delayed_by_a_later_job() -> None:
    """The small job that would outlast the start of either waiting large job stays behind both."""
    jobs = ((0.0, 1000.0, 1), (1.0, 10.0, 2), (2.0, 10.0, 2), (3.0, 5000.0, 1))
    found = starts(outcome("conservative", "V100:2", *jobs))
    assert found["1"] == 1000.0
    assert found["2"] == 1010.0
    assert found["3"] == 1020.0


def test_reservations_move_up_when_a_job_ends_early() -> None:
    """Whatever the owner's estimate of the first job was, the next starts when it ends."""
    found = starts(outcome("conservative", "V100:1", *[(float(at), 100.0, 1) for at in range(5)]))
    assert [found[str(at)] for at in range(5)] == [0.0, 100.0, 200.0, 300.0, 400.0]


def test_a_short_job_fills_the_time_before_a_reservation() -> None:
    """One that ends before the large job's start, by any estimate, goes ahead."""
    found = starts(outcome("conservative", "V100:2", (0.0, 1000.0, 1), (1.0, 10.0, 2), (2.0, 20.0, 1)))
    assert found["2"] == 2.0
    assert found["1"] == 1000.0


# --- ranking and stopping ---------------------------------------------------------------------------------


def test_the_worst_by_rank_gives_way_first() -> None:
    """Of two full nodes the one with the longest job is cleared; the others run on."""
    jobs = ((0.0, 5000.0, 8), (0.0, 9000.0, 8), (10.0, 100.0, 4))
    found = outcome("srtf", "V100:16", *jobs)
    assert starts(found)["2"] == 10.0
    assert [run.job for run in found.runs if run.end_s == 10.0] == ["1"]
    assert found.row.restarts == 1


def test_nobody_is_stopped_while_there_is_room() -> None:
    """A short job takes the free half of the second node and leaves the long job on the first alone."""
    found = outcome("srtf", "V100:16", (0.0, 9000.0, 8), (0.0, 5000.0, 4), (10.0, 100.0, 4))
    assert found.row.restarts == 0


def test_nobody_is_stopped_for_a_job_that_would_not_fit_even_so() -> None:
    """The large job needs both nodes, the better-ranked small one stays on one of them, so the long one runs on."""
    jobs = ((0.0, 1000.0, 1), (0.0, 90000.0, 8), (10.0, 5000.0, 16))
    found = outcome("srtf", "V100:16", *jobs)
    assert [run for run in found.runs if run.end_s == 10.0] == []


# --- Gittins ----------------------------------------------------------------------------------------------


def test_gittins_is_least_attained_service_before_anything_has_ended() -> None:
    """With no history the index falls from level to level."""
    times = GpuTimes()
    indices = [times.index(level) for level in range(20)]
    assert indices == sorted(indices, reverse=True)


def test_gittins_prefers_the_level_where_jobs_end() -> None:
    """When all jobs took about two hours, one that has had an hour and a half goes before one that has had nothing."""
    times = GpuTimes()
    for _ in range(200):
        times.add(7200.0)
    assert times.index(level_of(5400.0)) > times.index(0)
    assert level_of(LIMITS_GPU_S[0]) == 1


def test_gittins_lets_new_jobs_in() -> None:
    """A long job gives way to a new one."""
    found = outcome("gittins2d", "V100:1", (0.0, 72000.0, 1), (20000.0, 300.0, 1), restart_s=0.0)
    assert starts(found)["1"] == 20000.0
    assert found.row.restarts == 1


# --- Gavel ------------------------------------------------------------------------------------------------


def test_max_min_shares_a_gpu_by_turns() -> None:
    """Two equal jobs on one GPU end within two rounds of each other, unlike under first come first served."""
    pytest.importorskip("ortools")
    found = outcome("gavel_maxmin", "V100:1", (0.0, 7200.0, 1), (0.0, 7200.0, 1), restart_s=0.0)
    assert max(found.jct_s) == pytest.approx(14400.0)
    assert max(found.jct_s) - min(found.jct_s) <= 720.0 + 1e-6


def test_least_makespan_lets_a_long_job_run_throughout() -> None:
    """One job of 4 h and four of 1 h on two GPUs: the best is 4 h, and a first round of each may cost it one."""
    pytest.importorskip("ortools")
    jobs = [(0.0, 3600.0, 1)] * 4 + [(0.0, 14400.0, 1)]
    found = outcome("gavel_makespan", "V100:2", *jobs, restart_s=0.0)
    assert max(found.jct_s) <= 14400.0 + 4 * 360.0


def test_gavel_sjf_gives_the_shortest_job_the_fastest_gpu() -> None:
    """The short job has the V100 from the next round on; the long one goes on where it is slower."""
    found = outcome("gavel_sjf", "V100:1,P100:1", (0.0, 36000.0, 1), (10.0, 3600.0, 1))
    short = [run for run in found.runs if run.job == "1"]
    assert short[-1].placement == ((0, 1),)
    assert short[-1].start_s == 360.0


def test_nobody_is_moved_when_wishes_are_as_before() -> None:
    """Jobs that all fit on their best GPUs run without a restart."""
    found = outcome("gavel_sjf", "V100:8", *[(float(at), 5000.0, 2) for at in range(4)])
    assert found.row.restarts == 0
