"""gpuq's choice among jobs that may be stopped: types, gangs, partners."""

from __future__ import annotations

import pytest

from gpuq.core.greedy import Greedy
from gpuq.core.plan import Plan, Planner, check_plan
from gpuq.core.problem import Problem
from gpuq.learn.interference import prior_speed
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import Outcome, Setting, prepare, simulate
from gpuq.sim.policies.planned import Planned
from gpuq.sim.policies.registry import find_policy
from gpuq.sim.trace import Trace, TraceJob, read_shipped
from gpuq.sim.world import SimJob, World
from gpuq.solve.cpsat import CpSat


def setting(cluster: str, *jobs: tuple[float, float, int], nodes_of: int = 8) -> Setting:
    """(submit_s, duration_s, gpus) of each job."""
    trace = Trace("t", tuple(TraceJob(str(number), *job) for number, job in enumerate(jobs)), {})
    return prepare(trace, parse_cluster(cluster, nodes_of), None)


def placements(found: Outcome, job: str) -> list[tuple[tuple[int, int], ...]]:
    return [run.placement for run in found.runs if run.job == job]


def test_small_jobs_are_moved_together_for_a_gang() -> None:
    """Three jobs on each of two nodes of four, then two of them end: the gang of four gets a node at once."""
    small = [(0.0, 50_000.0, 1)] * 6
    jobs = [*small, (10.0, 40.0, 1), (10.0, 40.0, 1), (100.0, 3000.0, 4)]
    jobs[0] = jobs[5] = (0.0, 90.0, 1)
    found = simulate(setting("V100:8", *jobs, nodes_of=4), "greedy", predictions="perfect", keep_runs=True)
    first = min(run.start_s for run in found.runs if run.job == "8")
    assert first == pytest.approx(100.0)
    assert placements(found, "8")[0] in (((0, 4),), ((1, 4),))


def test_the_job_that_gains_least_leaves_the_fast_type() -> None:
    """Two jobs, one V100 and one K80: the one that is hardly slower on the K80 runs there, whoever is shorter."""
    cluster = parse_cluster("V100:1,K80:1", 1)
    jobs = [
        SimJob(TraceJob("flexible", 0.0, 1000.0, 1), 0, 1000.0, 1000.0, (1.0, 0.9)),
        SimJob(TraceJob("picky", 0.0, 1500.0, 1), 1, 1500.0, 1500.0, (1.0, 0.1)),
        SimJob(TraceJob("late", 0.0, 90_000.0, 1), 2, 90_000.0, 90_000.0, (1.0, 0.5)),
    ]
    world = World(cluster, jobs, keep_runs=True)
    world.run(find_policy("greedy").make())
    assert {run.job: run.placement[0][0] for run in world.runs or () if run.start_s == 0.0} == {
        "picky": 0, "flexible": 1
    }  # fmt: skip


def test_nobody_waits_for_a_gpu_that_could_be_shared_and_nobody_is_slowed_too_much() -> None:
    """With sharing the mean falls, and no two partners slow each other below 0.6."""
    trace = read_shipped("small")
    cluster = parse_cluster("V100:8")
    alone, shared = (prepare(trace, cluster, 0.9, sharing=sharing) for sharing in (False, True))
    one = simulate(alone, "greedy").row
    other = simulate(shared, "greedy", keep_runs=True)
    assert other.row.mean_jct_s < one.mean_jct_s
    assert any(run.partner for run in other.runs)
    assert prior_speed(1.0, 1.0) >= 0.6


@pytest.mark.parametrize("policy", ["greedy", "impact"])
def test_where_nothing_may_be_stopped_the_planner_stops_nothing(policy: str) -> None:
    """With fixed jobs every job has one stay, a gang over two nodes included, and all of them end."""
    jobs = [(10.0 * number, 300.0 * (1 + number % 4), (1, 2, 1, 6)[number % 4]) for number in range(16)]
    found = simulate(
        setting("V100:8,P100:4", *jobs, nodes_of=4), policy, predictions="perfect", fixed=True, keep_runs=True
    )
    assert found.row.restarts == 0
    assert sorted(run.job for run in found.runs) == sorted(str(number) for number in range(16))
    assert all(sum(count for _, count in run.placement) == jobs[int(run.job)][2] for run in found.runs)


def test_a_short_job_waits_for_nothing_behind_a_reservation_it_does_not_delay() -> None:
    """The list planner's promise in the simulator: the gang keeps its start, the short job fills the gap."""
    jobs = ((0.0, 1000.0, 1), (1.0, 500.0, 2), (2.0, 100.0, 1))
    found = simulate(setting("V100:2", *jobs), "greedy", predictions="perfect", fixed=True, keep_runs=True)
    starts = {run.job: run.start_s for run in found.runs}
    assert starts["2"] == 2.0
    assert starts["1"] == pytest.approx(1000.0)


class Checked:
    """A planner whose every plan is proved."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.plans = 0

    def plan(self, problem: Problem) -> Plan:
        """The planner's plan."""
        found = self.planner.plan(problem)
        check_plan(problem, found)
        self.plans += 1
        return found


@pytest.mark.parametrize("planner", [Greedy(), CpSat(budget=0.02)])
def test_every_plan_of_a_simulated_day_is_sound(planner: Planner) -> None:
    """Gangs over several nodes, several types, early and late ends: each decision's plan passes the proof."""
    shape = setting(
        "V100:8,P100:4", *[(20.0 * at, 100.0 * (1 + at % 7), (1, 2, 6, 1, 4)[at % 5]) for at in range(25)], nodes_of=4
    )
    jobs = [
        SimJob(job, order, job.duration_s * (0.5 + order % 3), job.duration_s, speeds)
        for order, (job, speeds) in enumerate(zip(shape.trace.jobs, shape.speeds, strict=True))
    ]
    checked = Checked(planner)
    world = World(shape.cluster, jobs)
    world.run(Planned("checked", checked))
    assert len(world.ended) == 25
    assert checked.plans > 10
