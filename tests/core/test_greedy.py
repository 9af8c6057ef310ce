"""The greedy planner: hand-made days, and what must hold of every plan."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuq.core import fit, greedy
from gpuq.core.events import NodeChanged
from gpuq.core.fit import Obstacle
from gpuq.core.model import Job, JobId, NodeName
from gpuq.core.plan import Plan, check_plan
from gpuq.core.problem import Problem
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState
from gpuq.core.survey import snapshot
from tests.builders import WALL_S, cluster, gpu, job, node, place, remember, stamp, submit, tell


def planned(state: ClusterState, at: float = 0.0, **options: Any) -> Plan:
    """A plan that was proved."""
    problem = snapshot(state, stamp(at), **options)
    plan = greedy.plan(problem)
    check_plan(problem, plan)
    return plan


def started(plan: Plan) -> dict[str, str]:
    """Job: node, of what starts now."""
    return {start.job: start.node for start in plan.starts}


# --- where ----------------------------------------------------------------------------------------------


def test_a_job_takes_the_fastest_free_gpu() -> None:
    """With both idle, the A100 and not the V100."""
    state = cluster(node("attic", "V100"), node("mill", "A100"))
    id_ = submit(state)
    plan = planned(state)
    assert started(plan) == {id_: "mill"}
    assert plan.planner == "fast"


def test_among_equals_the_fuller_node_is_taken() -> None:
    """A single GPU does not break the node that could still take a gang."""
    state = cluster(node("mill", "A100:4"), node("barn", "A100:4"))
    place(state, submit(state, gpus=3), "barn")
    small, gang = submit(state), submit(state, gpus=4, name="gang")
    assert started(planned(state)) == {small: "barn", gang: "mill"}


def test_equal_jobs_start_in_order_of_submission() -> None:
    """First come, first served when nothing else tells them apart, across owners and names."""
    state = cluster(node("mill", "A100:2"))
    ids = [submit(state, owner=owner, name=name) for owner, name in (("tom", "z"), ("anna", "a"), ("bob", "m"))]
    assert list(started(planned(state))) == ids[:2]


def test_a_priority_goes_before_an_older_job_of_the_same_owner() -> None:
    """Larger first, within one person's jobs."""
    state = cluster(node("mill", "A100"))
    submit(state, name="old")
    urgent = submit(state, name="new", priority=10)
    assert list(started(planned(state))) == [urgent]


def test_short_jobs_go_first() -> None:
    """Weighted shortest first, when predictions say so."""
    state = cluster(node("mill", "A100"))
    remember(state, "long", *[7200.0] * 3)
    remember(state, "short", *[60.0] * 3)
    long, short = submit(state, name="long"), submit(state, name="short")
    plan = planned(state)
    assert list(started(plan)) == [short]
    assert plan.estimates[long].start_s == 60.0


def test_a_long_wait_beats_a_short_job() -> None:
    """Age grows without limit, so that a long job is not passed over for ever."""
    state = cluster(node("mill", "A100"))
    remember(state, "long", *[7200.0] * 3)
    remember(state, "short", *[600.0] * 3)
    long = submit(state, name="long", at=0)
    submit(state, name="short", at=200_000)
    assert list(started(planned(state, at=200_000))) == [long]


def test_jobs_without_gpus_start_at_once_where_cpus_are_free() -> None:
    """They spread over the nodes, also while every GPU is taken."""
    state = cluster(node("mill", "A100", cpus=4), node("farm", cpus=4))
    place(state, submit(state), "mill")
    submit(state, name="waits")
    ids = [submit(state, gpus=0, cpus=2, name="cpu") for _ in range(5)]
    for plan in (planned(state), greedy.dispatch(state, stamp())):
        assert [start.job for start in plan.starts] == ids[:4]
        assert sorted(start.node for start in plan.starts) == ["farm", "farm", "mill", "mill"]


def test_gpus_named_by_hand_are_waited_for() -> None:
    """The named GPU is busy, so the job waits for it although others are free."""
    state = cluster(node("mill", "A100:3"))
    place(state, submit(state), "mill")
    id_ = submit(state, gpu_ids=("0",))
    plan = planned(state)
    assert plan.starts == ()
    assert plan.estimates[id_].gpus == ("GPU-mill-0",)


def test_a_gang_starting_now_is_well_connected() -> None:
    """One GPU of an NVLink pair is taken: the gang gets the whole pair, not two halves."""
    pairs = {0: 1, 1: 0, 2: 3, 3: 2}
    gpus = tuple(gpu("mill", i, "A100", peers=((f"GPU-mill-{pairs[i]}", "nvlink"),)) for i in range(4))
    state = cluster(node("mill", gpus=gpus))
    place(state, submit(state), "mill")  # on GPU 0
    id_ = submit(state, gpus=2)
    assert planned(state).estimates[id_].gpus == ("GPU-mill-2", "GPU-mill-3")


# --- waiting for a faster GPU ---------------------------------------------------------------------------


def faster_soon(own_runs: int, holder_runs: int) -> tuple[ClusterState, JobId]:
    """looks.md: an A100 frees in 10 min, a V100 at half the speed is free now; the job needs 1 h on an A100."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    remember(state, "llama", *[1200.0] * holder_runs)
    remember(state, "vit", *[3600.0] * own_runs)
    place(state, submit(state, name="llama"), "mill")
    return state, submit(state, name="vit", at=600)


def test_an_informed_job_waits_for_a_faster_gpu_that_frees_soon() -> None:
    """It would end 50 min sooner, and both times are known: the V100 stays idle."""
    state, id_ = faster_soon(3, 3)
    plan = planned(state, at=600)
    start = plan.estimates[id_]
    assert plan.starts == ()
    assert (start.type, start.start_s, start.end_s) == ("A100", 1200.0, 4800.0)
    assert (start.passed_over, start.passed_over_end_s, start.informed) == ("V100", 7800.0, True)
    assert greedy.dispatch(state, stamp(600)).starts == ()


@pytest.mark.parametrize(("own_runs", "holder_runs"), [(0, 3), (3, 0), (1, 3), (3, 1)])
def test_no_gpu_idles_on_a_guess(own_runs: int, holder_runs: int) -> None:
    """Unless both its own run time and the end it waits for are informed, the job starts on what is free."""
    state, id_ = faster_soon(own_runs, holder_runs)
    assert started(planned(state, at=600)) == {id_: "attic"}
    assert [start.job for start in greedy.dispatch(state, stamp(600)).starts] == [id_]


def test_an_end_that_was_outlived_is_waited_for_a_while() -> None:
    """The job on the A100 should have ended: it is waited for, but not much longer than waiting can save."""
    state, id_ = faster_soon(3, 3)
    assert started(planned(state, at=1900)) == {}
    saves_s = 3600.0
    began = next(at for at in range(1900, 60_000, 50) if started(planned(state, at=at)) == {id_: "attic"})
    assert began < 1800.0 + 2.5 * saves_s


def test_next_to_nothing_is_not_waited_for() -> None:
    """A faster GPU that would end the job a few seconds sooner does not keep the slow one idle."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    remember(state, "llama", *[3590.0] * 3)
    remember(state, "vit", *[3600.0] * 3)
    place(state, submit(state, name="llama"), "mill")
    id_ = submit(state, name="vit")
    assert started(planned(state)) == {id_: "attic"}


# --- reservations ---------------------------------------------------------------------------------------


def reserved(small_s: float) -> tuple[ClusterState, JobId, JobId]:
    """Two of four GPUs are held for 1000 s more; a gang of four waits, older than a small job of small_s."""
    state = cluster(node("mill", "A100:4"))
    remember(state, "holder", *[1000.0] * 3)
    remember(state, "gang", *[100.0] * 3)
    remember(state, "small", *[small_s] * 3)
    place(state, submit(state, name="holder", gpus=2), "mill")
    return state, submit(state, name="gang", gpus=4, priority=50), submit(state, name="small", owner="anna")


@pytest.mark.parametrize(("small_s", "fills"), [(900.0, True), (1000.0, True), (1001.0, False)])
def test_small_jobs_fill_the_time_before_a_reservation(small_s: float, fills: bool) -> None:
    """A job that is over when the gang can start goes first; one a second longer does not."""
    state, gang, small = reserved(small_s)
    for plan in (planned(state), greedy.dispatch(state, stamp())):
        assert (small in started(plan)) is fills
        assert gang not in started(plan)
    plan = planned(state)
    assert plan.estimates[gang].start_s == 1000.0
    assert plan.estimates[small].start_s == (0.0 if fills else 1100.0)


def test_a_reservation_holds_no_other_gpus_back() -> None:
    """The small job that may not delay the gang starts on another node."""
    state, gang, _small = reserved(5000.0)
    tell(state, NodeChanged(node=node("den", "A100")))
    plan = planned(state)
    assert list(started(plan).values()) == ["den"]
    assert plan.estimates[gang].start_s == 1000.0


def test_a_job_that_may_not_start_yet_holds_nothing_back() -> None:
    """Neither a begin time tomorrow nor the limit of an array keeps a GPU from a long job of today."""
    state = cluster(node("mill", "A100:2"))
    array = submit(state, tasks=4, array_limit=1, priority=50)
    begins = submit(state, begin_at=WALL_S + 600, gpus=2, priority=50)
    today = submit(state, time_limit_s=10 * 86400.0, name="today")
    for plan in (planned(state), greedy.dispatch(state, stamp())):
        assert sorted(started(plan)) == sorted([f"{array}_0", today])
    assert planned(state).estimates[begins].start_s >= 600.0


def test_the_limit_of_an_array_keeps_no_fast_gpu_idle() -> None:
    """The next task of a %1 array would like the free A100, but may not start yet: a long job of today gets it."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    array = submit(state, tasks=2, array_limit=1, priority=50)
    place(state, f"{array}_0", "attic")
    today = submit(state, time_limit_s=10 * 86400.0, name="today")
    assert started(planned(state)) == {today: "mill"}


def test_a_hole_is_filled_by_one_job_after_another() -> None:
    """Before the gang at 1000 s two GPUs take two jobs of 400 s each, one behind the other."""
    state, gang, _small = reserved(400.0)
    ids = [submit(state, name="small") for _ in range(3)]
    plan = planned(state)
    assert plan.estimates[gang].start_s == 1000.0
    assert [plan.estimates[id_].start_s for id_ in ids] == [0.0, 400.0, 400.0]


def test_a_gpu_that_frees_after_a_guess_is_not_waited_for() -> None:
    """The A100 is promised to a job that nobody can predict: its end is a guess, however sure the end before it is."""
    state, id_ = faster_soon(3, 3)
    ahead = submit(state, name="unknown", gpu_type="a100", time_limit_s=60.0, priority=100)
    plan = planned(state, at=600)
    assert plan.estimates[ahead].start_s == 1200.0
    assert started(plan) == {id_: "attic"}


def test_without_estimates_a_queue_keeps_one_place() -> None:
    """Of ten gangs that cannot start only the first is promised its GPUs."""
    state = cluster(node("mill", "A100:4"))
    place(state, submit(state), "mill")
    gangs = submit(state, gpus=4, tasks=10)
    for window in (0, 256):
        plan = greedy.plan(snapshot(state, stamp(), window=window), estimates=False)
        assert list(plan.estimates) == [f"{gangs}_0"]


def test_a_gpu_job_keeps_its_cpus_against_a_job_without_gpus() -> None:
    """It waits for a GPU and eight CPUs for 100 s; a day-long job may not take two of them before that."""
    state = cluster(node("mill", "A100", cpus=8))
    place(state, submit(state, cpus=4, time_limit_s=100.0), "mill")
    submit(state, cpus=8, priority=50, name="first")
    long = submit(state, gpus=0, cpus=2, time_limit_s=86400.0, name="long")
    short = submit(state, gpus=0, cpus=2, time_limit_s=100.0, name="short")
    for plan in (planned(state), greedy.dispatch(state, stamp())):
        assert started(plan) == {short: "mill"}
    assert planned(state).estimates[long].start_s > 100.0


def test_an_array_is_planned_at_most_so_many_at_once() -> None:
    """%2: two start, the others follow each other."""
    state = cluster(node("mill", "A100:8"))
    remember(state, "train", *[100.0] * 3)
    submit(state, tasks=6, array_limit=2)
    plan = planned(state)
    assert [start.start_s for start in plan.estimates.values()] == [0.0, 0.0, 100.0, 100.0, 200.0, 200.0]


def test_estimates_end_with_the_window() -> None:
    """Of a hundred jobs the first ten have an estimate; the rest is counted."""
    state = cluster(node("mill", "A100:2"))
    submit(state, tasks=100)
    plan = planned(state, window=10)
    assert (len(plan.starts), len(plan.estimates), plan.waiting) == (2, 10, 98)


def test_what_could_start_now_starts_although_it_is_beyond_the_window() -> None:
    """The window limits estimates, not starts."""
    state = cluster(node("mill", "A100"), node("den", "T4"))
    place(state, submit(state), "mill")
    submit(state, tasks=50, gpu_type="a100", priority=50)
    last = submit(state, gpu_type="t4", name="last")
    assert started(planned(state, window=5)) == {last: "den"}


def test_a_job_that_fits_nowhere_has_no_estimate() -> None:
    """With its node away a job is not planned, and stands in nobody's way."""
    state = cluster(node("mill", "A100"))
    lost = submit(state, gpu_type="h100", priority=50)
    id_ = submit(state)
    plan = planned(state)
    assert started(plan) == {id_: "mill"}
    assert lost not in plan.estimates


# --- the fast path and prices ---------------------------------------------------------------------------


def test_the_fast_path_takes_everything_or_nothing() -> None:
    """When all fit, all start; when one does not, there is no fast plan."""
    state = cluster(node("mill", "A100:4"))
    submit(state, tasks=3)
    found = greedy.fast(snapshot(state, stamp()))
    assert found is not None
    assert (len(found.starts), found.planner) == (3, "fast")
    submit(state, gpus=2, name="more")
    assert greedy.fast(snapshot(state, stamp())) is None


def test_a_type_has_a_price_while_somebody_waits_for_it() -> None:
    """The A100 that a waiting job could use costs the impact of who holds it; the idle V100 costs nothing."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    place(state, submit(state, time_limit_s=1800.0), "mill")
    place(state, submit(state, time_limit_s=7200.0), "attic")
    submit(state, gpu_type="a100")
    assert planned(state).prices == {"A100": 2.0, "V100": 0.0}


# --- properties -----------------------------------------------------------------------------------------

NODES = [
    node("mill", "A100-80G:4", cpus=16, memory_gib=64),
    node("attic", "V100-16G:2", "V100-32G:2", cpus=8, memory_gib=32),
    node("den", "RTX3090:2", "A100-40G:1", cpus=4, memory_gib=16),
    node("farm", cpus=32, memory_gib=64),
]
JOBS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([0, 1, 1, 1, 2, 3, 4]),
        "gpu_type": st.sampled_from([None, None, None, "a100", "v100", "3090"]),
        "gpu_memory_mib": st.sampled_from([None, None, 20 * 1024, 40 * 1024]),
        "cpus": st.sampled_from([0, 0, 1, 4, 8]),
        "memory_mib": st.sampled_from([None, None, 8 * 1024, 32 * 1024]),
        "time_limit_s": st.sampled_from([None, 60.0, 600.0, 86400.0]),
        "priority": st.sampled_from([0, 0, 10, -20]),
        "name": st.sampled_from(["a", "b", "c"]),
        "owner": st.sampled_from(["anna", "tom"]),
        "begin_at": st.sampled_from([None, None, None, WALL_S + 1500.25]),
        "tasks": st.sampled_from([0, 0, 0, 2, 5]),
        "array_limit": st.sampled_from([0, 0, 1, 2]),
    }
)
HISTORY = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.05, 20_000.0), max_size=3)


def build(jobs: list[dict[str, Any]], history: dict[str, float], seed: int) -> ClusterState:
    """A cluster in the middle of a day: each job submitted at its time, some of them running where they fit."""
    state = cluster(*NODES)
    for name, run_s in history.items():
        for owner in ("anna", "tom"):
            remember(state, name, *[run_s] * 3, owner=owner)
    chance = random.Random(seed)
    for number, fields in enumerate(jobs):
        limit = fields["array_limit"] if fields["tasks"] else 0
        id_ = submit(state, at=number * 100.5, **{**fields, "array_limit": limit})
        member = state.members(id_)[0]
        if chance.random() < 0.4:
            _start_somewhere(state, member, number * 100.5, chance)
    return state


def _start_somewhere(state: ClusterState, id_: JobId, at: float, chance: random.Random) -> None:
    names = list(state.nodes)
    chance.shuffle(names)
    for name in names:
        gpus = fit.place_now(state, job(state, id_), state.nodes[name], stamp(at))
        if not isinstance(gpus, Obstacle):
            place(state, id_, name, gpus, at=at, started=chance.random() < 0.8)
            return


def carry_out(state: ClusterState, plan: Plan) -> None:
    """Start what the plan starts, one after the other, each checked again as decide does."""
    for start, placement in zip(plan.starts, plan.placements(), strict=True):
        assert fit.check(state, placement, plan.stamp) is None
        place(state, start.job, start.node, start.gpus, at=plan.stamp.steady_s, started=False)


def fits_somewhere(state: ClusterState, record: Job, plan: Plan) -> bool:
    return any(
        not isinstance(fit.place_now(state, record, each, plan.stamp), Obstacle) for each in state.nodes.values()
    )


def problems(state: ClusterState, at: float, window: int) -> list[Problem]:
    return [snapshot(state, stamp(at), window=window), snapshot(state, stamp(at), window=0)]


@settings(max_examples=60, deadline=None)
@given(st.lists(JOBS, max_size=12), HISTORY, st.integers(0, 99), st.sampled_from([1, 4, 256]))
def test_every_plan_is_sound_and_repeatable(
    jobs: list[dict[str, Any]], history: dict[str, float], seed: int, window: int
) -> None:
    """Every plan passes check_plan, its starts pass the check of decide in turn, equal inputs give equal plans."""
    state = build(jobs, history, seed)
    at = len(jobs) * 100.5 + 7.25
    for problem in problems(state, at, window):
        plan = greedy.plan(problem)
        check_plan(problem, plan)
        assert plan == greedy.plan(problem)
    again = snapshot(build(jobs, history, seed), stamp(at), window=0)
    assert greedy.plan(again) == plan
    carry_out(state, plan)


@settings(max_examples=60, deadline=None)
@given(st.lists(JOBS, max_size=12), st.integers(0, 99), st.booleans())
def test_the_first_job_that_waits_does_not_fit(jobs: list[dict[str, Any]], seed: int, dispatched: bool) -> None:
    """Without history, the job with nothing ahead of it starts whenever it fits somewhere."""
    state = build(jobs, {}, seed)
    at = len(jobs) * 100.5
    problem = snapshot(state, stamp(at), window=0 if dispatched else 256)
    plan = greedy.plan(problem)
    carry_out(state, plan)
    waits = [start for start in plan.estimates.values() if start.start_s > at]
    if waits:
        assert not fits_somewhere(state, job(state, waits[0].job), plan)
    unplanned = [each for each in state.jobs.values() if each.state is JobState.PENDING]
    if not waits:
        assert not any(fits_somewhere(state, each, plan) for each in unplanned)


@settings(max_examples=60, deadline=None)
@given(st.lists(JOBS, max_size=14), st.integers(0, 99), st.booleans())
def test_single_gpus_never_idle(jobs: list[dict[str, Any]], seed: int, dispatched: bool) -> None:
    """Without history and gangs nothing needs a reservation: after the starts no waiting job fits anywhere."""
    plain = {"cpus": 0, "memory_mib": None}
    state = build([{**each, **plain, "gpus": min(each["gpus"], 1)} for each in jobs], {}, seed)
    plan = greedy.plan(snapshot(state, stamp(5000), window=0 if dispatched else 256))
    carry_out(state, plan)
    left = [each for each in state.jobs.values() if each.state is JobState.PENDING]
    assert not any(fits_somewhere(state, each, plan) for each in left)


def test_the_planner_protocol_is_kept() -> None:
    """The object that the daemon holds gives the same plan as the function."""
    state = cluster(node("mill", "A100"))
    submit(state)
    problem = snapshot(state, stamp())
    assert greedy.Greedy().plan(problem) == greedy.plan(problem)
    assert problem.machines[0].node == NodeName("mill")


# --- what a solver asks of it -----------------------------------------------------------------------------


def test_directed_jobs_go_first_and_where_they_may() -> None:
    """The long job is directed to the V100 ahead of the short one, which then gets the A100."""
    state = cluster(node("mill", "A100"), node("barn", "V100"))
    remember(state, "long", *[7200.0] * 3)
    remember(state, "short", *[60.0] * 3)
    long, short = submit(state, name="long"), submit(state, name="short")
    problem = snapshot(state, stamp())
    number = {queue.heads[0].job: at for at, queue in enumerate(problem.queues)}
    slow = next(at for at, site in enumerate(problem.queues[number[long]].sites) if site.type.startswith("V100"))
    plan = greedy.plan_directed(problem, [greedy.Directed(number[long], frozenset({slow}))])
    check_plan(problem, plan)
    assert started(plan) == {long: "barn", short: "mill"}
    assert list(plan.estimates) == [long, short]


def test_a_direction_makes_no_gpu_idle_on_a_guess() -> None:
    """A job of unknown length is directed to a GPU that frees later: it takes the one that is free now."""
    state = cluster(node("mill", "A100"), node("barn", "V100"))
    place(state, submit(state, name="holder"), "mill")
    unknown = submit(state, name="unknown")
    problem = snapshot(state, stamp(1.0))
    fast = next(at for at, site in enumerate(problem.queues[0].sites) if site.type.startswith("A100"))
    plan = greedy.plan_directed(problem, [greedy.Directed(0, frozenset({fast}))])
    check_plan(problem, plan)
    assert started(plan) == {unknown: "barn"}
