"""The proof of a plan, its exact worth, and the snapshot it answers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from gpuq.core import greedy
from gpuq.core.model import Foreign, JobId, NodeName, Reach
from gpuq.core.plan import Plan, Start, UnsoundPlan, check_plan, objective
from gpuq.core.problem import Problem
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from tests.builders import WALL_S, change_gpu, cluster, drain, node, place, reach, remember, stamp, submit


def problem_and_plan(state: ClusterState, at: float = 0.0) -> tuple[Problem, Plan]:
    problem = snapshot(state, stamp(at))
    return problem, greedy.plan(problem)


def changed(plan: Plan, id_: str, **fields: Any) -> Plan:
    """The plan with other fields in one job's start, kept consistent between starts and estimates."""
    start: Start = replace(plan.estimates[JobId(id_)], **fields)
    estimates = {**plan.estimates, JobId(id_): start}
    now = plan.stamp.steady_s
    starts = tuple(each for each in estimates.values() if each.start_s <= now)
    return replace(plan, estimates=estimates, starts=starts)


def two_by_two() -> ClusterState:
    """Two A100 and two V100 on one node, one more V100 on another; two jobs of two GPUs, one array with %1."""
    state = cluster(node("mill", "A100:2", "V100:2", cpus=8, memory_gib=8), node("den", "V100", cpus=4))
    submit(state, gpus=2, name="one")
    submit(state, gpus=2, name="two")
    submit(state, tasks=2, array_limit=1, name="three")
    submit(state, gpus=0, cpus=6, name="four")
    submit(state, gpus=0, cpus=6, name="five")
    return state


def test_a_greedy_plan_passes() -> None:
    """The plan that the broken ones below are made of is itself sound."""
    problem, plan = problem_and_plan(two_by_two())
    check_plan(problem, plan)
    assert len(plan.estimates) == 6


def test_a_gpu_given_twice_is_found() -> None:
    """Two jobs on one GPU at overlapping times."""
    problem, plan = problem_and_plan(two_by_two())
    stolen = plan.estimates[JobId("1")]
    same = {"gpus": stolen.gpus, "start_s": stolen.start_s, "end_s": stolen.end_s, "type": stolen.type}
    broken = changed(plan, "2", **same)
    with pytest.raises(UnsoundPlan, match="would serve 1 and 2 at once"):
        check_plan(problem, broken)


def test_one_millisecond_of_overlap_is_found_and_touching_is_fine() -> None:
    """A start at the very end of the job before is sound; a millisecond sooner is not."""
    state = cluster(node("mill", "A100"))
    place(state, submit(state, name="now"), "mill")
    id_ = submit(state, name="next")
    problem, plan = problem_and_plan(state, at=100.3)
    check_plan(problem, plan)
    start = plan.estimates[id_]
    early = changed(plan, id_, start_s=start.start_s - 0.001, end_s=start.end_s - 0.001)
    with pytest.raises(UnsoundPlan, match="at once"):
        check_plan(problem, early)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": ("GPU-mill-0",)}, "asked for 2 GPUs and gets 1"),
        ({"gpus": ("GPU-mill-0", "GPU-mill-0")}, "asked for 2 GPUs and gets 1"),
        ({"gpus": ("GPU-mill-0", "GPU-mill-2")}, "cannot use GPUs"),
        ({"gpus": ("GPU-mill-2", "GPU-den-0")}, "cannot use GPUs"),
        ({"node": NodeName("den")}, "cannot use GPUs"),
        ({"end_s": 5.0}, "would not run as long as predicted"),
    ],
)
def test_a_gang_is_whole_on_one_node_and_of_one_type(fields: dict[str, Any], words: str) -> None:
    """Split, mixed, doubled and shortened gangs are all found."""
    problem, plan = problem_and_plan(two_by_two())
    with pytest.raises(UnsoundPlan, match=words):
        check_plan(problem, changed(plan, "1", **fields))


def test_a_wrong_type_is_found() -> None:
    """A job that asked for an A100 does not get a V100."""
    state = cluster(node("mill", "A100", "V100"))
    id_ = submit(state, gpu_type="a100")
    problem, plan = problem_and_plan(state)
    with pytest.raises(UnsoundPlan, match="cannot use GPUs GPU-mill-1"):
        check_plan(problem, changed(plan, id_, gpus=("GPU-mill-1",)))


def test_promised_cpus_and_memory_are_summed() -> None:
    """Two jobs of 6 CPUs do not fit on a node of 8, at the same time."""
    problem, plan = problem_and_plan(two_by_two())
    later = plan.estimates[JobId("5")]
    assert later.start_s > 0
    with pytest.raises(UnsoundPlan, match="would have to give 12 CPUs"):
        check_plan(problem, changed(plan, "5", start_s=0.0, end_s=later.end_s - later.start_s))


def test_the_limit_of_an_array_is_kept() -> None:
    """A second task of a %1 array at the same time is found, on GPUs that are free."""
    state = cluster(node("mill", "A100:4"))
    submit(state, tasks=2, array_limit=1)
    problem, plan = problem_and_plan(state)
    first = plan.estimates[JobId("1_0")]
    both = changed(plan, "1_1", start_s=0.0, end_s=first.end_s, gpus=("GPU-mill-3",))
    with pytest.raises(UnsoundPlan, match="more than 1 tasks at once"):
        check_plan(problem, both)


def test_begin_times_unknown_jobs_and_forgotten_starts_are_found() -> None:
    """What may not start yet, what does not wait, and a start that is missing from the list."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, begin_at=WALL_S + 50)
    problem, plan = problem_and_plan(state)
    start = plan.estimates[id_]
    with pytest.raises(UnsoundPlan, match="before it may"):
        check_plan(problem, changed(plan, id_, start_s=0.0, end_s=start.end_s - start.start_s))
    stranger = replace(plan, estimates={JobId("9"): replace(start, job=JobId("9"))})
    with pytest.raises(UnsoundPlan, match="job 9 does not wait"):
        check_plan(problem, stranger)
    ready, good = problem_and_plan(state, at=50)
    with pytest.raises(UnsoundPlan, match="its estimates say"):
        check_plan(ready, replace(good, starts=()))
    with pytest.raises(UnsoundPlan, match="another moment"):
        check_plan(ready, replace(good, stamp=stamp(50.5), starts=(), estimates={}))


# --- the objective --------------------------------------------------------------------------------------


def test_the_objective_is_exact() -> None:
    """Two jobs of 100 s one after the other, the second of which waited 10 s: 100 s + 200 s + 10 s, times weight."""
    state = cluster(node("mill", "A100"))
    remember(state, "train", 100.0, 100.0, 100.0)
    submit(state, at=0)
    submit(state, at=10)
    problem, plan = problem_and_plan(state, at=10)
    weights = [problem.queues[0].weight(position) for position in (0, 1)]
    assert objective(problem, plan) == Fraction(weights[0]) * 110_000 + Fraction(weights[1]) * 200_000


def test_leaving_a_job_out_never_pays() -> None:
    """A plan without one of the estimates is worth less than the whole."""
    problem, plan = problem_and_plan(two_by_two())
    whole = objective(problem, plan)
    for id_ in plan.estimates:
        rest = {key: start for key, start in plan.estimates.items() if key != id_}
        assert objective(problem, replace(plan, estimates=rest)) > whole


# --- the snapshot ---------------------------------------------------------------------------------------


def test_gpus_nobody_can_promise_are_left_out() -> None:
    """Foreign use, unknown use, nodes that are drained or do not answer."""
    state = cluster(node("mill", "A100:3"), node("den", "A100"), node("barn", "A100"))
    change_gpu(state, "mill", 1, foreign=(Foreign(pid=1),))
    change_gpu(state, "mill", 2, seen=False)
    drain(state, "den")
    reach(state, "barn", Reach.SUSPECT)
    submit(state)
    assert [slot.gpu.uuid for slot in snapshot(state, stamp()).slots] == ["GPU-mill-0"]


def test_a_busy_gpu_is_promised_for_its_predicted_end() -> None:
    """100 s predicted, 30 s run: free in 70 s, by prediction and not by guess."""
    state = cluster(node("mill", "A100"))
    remember(state, "train", 100.0, 100.0, 100.0)
    place(state, submit(state), "mill")
    submit(state)
    (slot,) = snapshot(state, stamp(30)).slots
    assert (slot.free_at_s, slot.informed) == (70.0, True)


def test_equal_jobs_are_one_queue_and_no_more_than_needed_is_read() -> None:
    """A thousand tasks are one queue; without a window only those that could start, and one more."""
    state = cluster(node("mill", "A100:8"))
    submit(state, tasks=1000)
    (queue,) = snapshot(state, stamp(), window=0).queues
    assert (queue.count, len(queue.heads)) == (1000, 9)
    (queue,) = snapshot(state, stamp(), window=256).queues
    assert (queue.count, len(queue.heads)) == (1000, 256)


def test_a_full_cluster_is_not_even_looked_at() -> None:
    """Without a window and without a free GPU there is nothing to plan, and all jobs are still counted."""
    state = cluster(node("mill", "A100"))
    place(state, submit(state), "mill")
    submit(state, tasks=5)
    problem = snapshot(state, stamp(), window=0)
    assert (problem.queues, problem.slots, problem.waiting) == ((), (), 5)


def test_waiting_before_the_begin_time_does_not_count() -> None:
    """A job that may start since 10 s waited 10 s, whenever it was submitted."""
    state = cluster(node("mill", "A100"))
    submit(state, at=0, begin_at=WALL_S + 90)
    (queue,) = snapshot(state, stamp(100)).queues
    assert queue.heads[0].waited_s == 10.0
