"""Who is stopped for whom: contract, licence, worth, and that it comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuq.core import greedy
from gpuq.core.contract import may_be_stopped, protected_s
from gpuq.core.estimate import predict
from gpuq.core.evictions import Eviction, find_eviction, room_starts
from gpuq.core.fit import check
from gpuq.core.impact import Account, Weights
from gpuq.core.model import AttemptId, Exit, JobId, Placement
from gpuq.core.plan import check_plan
from gpuq.core.requests import Evict, HoldJobs, Place, Tick
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState
from gpuq.core.survey import snapshot
from tests.builders import cluster, finish, free_gpus, job, node, place, remember, stamp, submit
from tests.core.machine_step import ANNA, ask, reported

FREE = {"preemptible": True}
PAID = {"preemptible": True, "min_runtime_s": 60.0}


def found(state: ClusterState, at: float = 1000.0, weights: Weights | None = None) -> Eviction | None:
    """What the planner would do at that moment."""
    problem = snapshot(state, stamp(at), weights)
    plan = greedy.plan(problem)
    check_plan(problem, plan)
    return find_eviction(state, problem, plan)


def running(state: ClusterState, name: str = "long", on: str = "mill", **fields: object) -> JobId:
    """A job that has run since the beginning on the first free GPUs of a node."""
    id_ = submit(state, name=name, **fields)
    place(state, id_, on)
    reported(state, id_, "running", started_at=1.0)
    return id_


def carry_out(state: ClusterState, eviction: Eviction, at: float = 1000.0) -> None:
    """Ask for an eviction."""
    ask(state, Evict(placement=eviction.placement, attempts=eviction.attempts, gain_s=eviction.gain_s), at)


def stopped(state: ClusterState, eviction: Eviction | None) -> set[JobId]:
    """The jobs that an eviction stops."""
    return {state.attempts[each] for each in eviction.attempts} if eviction else set()


def test_a_fixed_job_is_never_stopped() -> None:
    """However urgent a job is, one that did not allow it runs on."""
    state = cluster(node("mill", "A100"))
    running(state)
    submit(state, priority=200)
    assert found(state) is None


@pytest.mark.parametrize(("at", "left_s"), [(30.0, 30.0), (61.0, -1.0)])
def test_minimum_run_time_protects(at: float, left_s: float) -> None:
    """A preemptible job is left alone until its --min-runtime has passed since its start, and not longer."""
    state = cluster(node("mill", "A100"))
    kept = running(state, **PAID)
    submit(state, priority=200)
    assert protected_s(job(state, kept), stamp(at)) == left_s
    assert (found(state, at) is None) == (left_s > 0)


def test_free_time_gives_way_to_what_is_charged() -> None:
    """A job that is charged takes GPUs from free time even where nothing is known of either, and not the reverse."""
    state = cluster(node("mill", "A100"))
    free = running(state, **FREE)
    charged = submit(state)
    assert stopped(state, found(state)) == {free}
    other = cluster(node("mill", "A100"))
    running(other, **PAID)
    submit(other, **FREE)
    assert found(other) is None
    assert charged in state.jobs


def test_guesses_stop_nobody() -> None:
    """Between equals of unknown run times nobody is stopped; of known ones a much shorter job goes first."""
    state = cluster(node("mill", "A100"))
    long = running(state, **PAID)
    submit(state, name="short")
    assert found(state) is None
    remember(state, "long", *[90_000.0] * 4)
    remember(state, "short", *[600.0] * 4)
    assert stopped(state, found(state)) == {long}


def test_age_and_deadline_are_no_licence() -> None:
    """A job that has waited for weeks, or must start now, is ahead of others, but stops nobody."""
    state = cluster(node("mill", "A100"))
    running(state, **PAID)
    submit(state, name="old", deadline_at=stamp(3_000_000.0 + 3700.0).wall_s)
    assert found(state, 3_000_000.0) is None


def test_balance_is_a_licence() -> None:
    """Someone who has used nothing may stop the preemptible job of someone who has used far more than a fair share."""
    weights = Weights(balance=1.0, accounts=(Account(name="lab", users=("anna",)),))
    state = cluster(node("mill", "A100"))
    for _ in range(3):
        past = submit(state)
        place(state, past, "mill")
        finish(state, past, at=200_000.0)
    greedy_one = submit(state, name="long", **PAID)
    place(state, greedy_one, "mill", at=200_000.0)
    reported(state, greedy_one, "running", at=200_000.0, started_at=1.0)
    submit(state, owner="tom")
    assert stopped(state, found(state, 210_000.0, weights)) == {greedy_one}
    assert found(state, 210_000.0, replace(weights, balance=0.0)) is None


def test_nothing_is_stopped_for_a_small_gain() -> None:
    """What ends by itself in less than ten times the cost of a restart is waited for."""
    state = cluster(node("mill", "A100"))
    running(state, **PAID)
    remember(state, "short", *[10.0] * 4)
    remember(state, "long", *[1300.0] * 4)
    submit(state, name="short")
    assert found(state, 1000.0) is None
    remember(state, "long", *[9000.0] * 4)
    assert found(state, 1000.0) is not None


def test_each_stop_makes_the_next_one_dearer() -> None:
    """A priority that suffices the first time does not after the job was stopped often."""
    state = cluster(node("mill", "A100"))
    victim = running(state, **PAID)
    submit(state, priority=15)
    assert stopped(state, found(state)) == {victim}
    state.jobs[victim] = replace(state.jobs[victim], evictions=4)
    assert found(state) is None


def test_a_gang_gets_the_cheapest_whole_room() -> None:
    """Four GPUs of one machine are emptied by stopping as little as possible; free ones there are used."""
    state = cluster(node("mill", "A100", "A100", "A100", "A100"), node("attic", "A100", "A100"))
    for _ in range(3):
        running(state, **FREE)
    running(state, on="attic", **FREE)
    gang = submit(state, gpus=4)
    eviction = found(state)
    assert eviction is not None
    assert eviction.placement.node == "mill"
    assert len(eviction.attempts) == 3
    assert set(eviction.placement.gpus) == {gpu.uuid for gpu in state.nodes[eviction.placement.node].gpus}
    assert eviction.placement.job == gang


def test_the_room_is_kept() -> None:
    """From the order to end until the job is placed, its GPUs go to nobody else, and it is planned nowhere else."""
    state = cluster(node("mill", "A100"))
    free = running(state, **FREE)
    urgent = submit(state)
    eviction = found(state)
    assert eviction is not None
    carry_out(state, eviction)
    rival = submit(state, priority=200)
    plan = greedy.plan(snapshot(state, stamp(1001.0)))
    assert urgent not in plan.estimates
    assert room_starts(state, stamp(1001.0), Weights())[urgent].start_s == 1030.0
    assert plan.estimates[rival].start_s > 1001.0 + 3000.0
    reported(state, free, "ended", 1002.0, status="signaled", reason="preempt")
    assert job(state, free).state is JobState.PENDING
    gpus = free_gpus(state, "mill")
    obstacle = check(state, Placement(job=rival, node=node("mill").name, gpus=gpus), stamp(1003.0))
    assert obstacle is not None
    assert f"kept for {urgent}" in obstacle.message
    assert greedy.dispatch(state, stamp(1003.0)).starts == ()
    ask(state, Place(placement=eviction.placement, attempt=AttemptId("b")), 1003.0)
    assert job(state, urgent).state is JobState.CONFIGURING
    assert state.rooms == {}


def test_a_room_ends_with_its_purpose() -> None:
    """A held job gives its room up, and one whose GPUs do not come free loses it after a while and waits again."""
    for end in ("hold", "time"):
        state = cluster(node("mill", "A100"))
        running(state, **FREE)
        urgent = submit(state)
        eviction = found(state)
        assert eviction is not None
        carry_out(state, eviction)
        assert state.rooms.keys() == {urgent}
        ask(state, Tick(), 1100.0)
        assert state.rooms.keys() == {urgent}
        if end == "hold":
            ask(state, HoldJobs(jobs=(urgent,), by=ANNA), 1100.0)
        else:
            ask(state, Tick(), 1300.0)
            assert state.waiting_count() == 1
        assert state.rooms == {}


def test_a_stopped_job_goes_on_from_where_it_was() -> None:
    """What it has done counts: less is left by prediction, with the cost of the restart added."""
    state = cluster(node("mill", "A100"))
    remember(state, "long", *[5000.0] * 4)
    free = running(state, **FREE)
    submit(state)
    eviction = found(state)
    assert eviction is not None
    carry_out(state, eviction)
    reported(state, free, "ended", 1030.0, status="signaled", reason="preempt", exit=finished(1000.0))
    assert job(state, free).evictions == 1
    assert predict(state, job(state, free)).run_s == pytest.approx(5000.0 - 1000.0 + 60.0)
    assert not may_be_stopped(job(state, free), stamp(2000.0))


def finished(run_s: float) -> Exit:
    """The exit of a program that was told to end."""
    return Exit(signal=15, run_s=run_s)


CONTRACTS = st.sampled_from((FREE, PAID, {}))
JOBS = st.lists(
    st.tuples(st.sampled_from((1, 1, 2, 4)), CONTRACTS, st.sampled_from((0, 0, 10, 30)), st.sampled_from("abc")),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(before=JOBS, after=JOBS, runs=st.tuples(*[st.sampled_from((60.0, 4000.0, 90_000.0))] * 3))
def test_making_room_is_sound_and_comes_to_an_end(
    before: list[tuple[int, dict[str, object], int, str]],
    after: list[tuple[int, dict[str, object], int, str]],
    runs: tuple[float, float, float],
) -> None:
    """Only who may be stopped is, the job fits where room was made, and no two jobs ever stop each other."""
    state = cluster(node("mill", "A100", "A100", "A100", "A100"), node("attic", "V100", "V100"))
    for name, run_s in zip("abc", runs, strict=True):
        remember(state, name, *[run_s] * 4)
    for gpus, contract, priority, name in before:
        id_ = submit(state, gpus=gpus, priority=priority, name=name, **contract)
        for where in ("mill", "attic"):
            if len(free_gpus(state, where)) >= gpus and job(state, id_).state is JobState.PENDING:
                place(state, id_, where)
                reported(state, id_, "running", started_at=1.0)
    for gpus, contract, priority, name in after:
        submit(state, gpus=gpus, priority=priority, name=name, **contract)
    now_s, pairs = 1000.0, set()
    for _ in range(40):
        eviction = found(state, now_s)
        if eviction is None:
            break
        gone = stopped(state, eviction)
        assert all(may_be_stopped(job(state, each), stamp(now_s)) for each in gone)
        mine = eviction.placement.job
        pairs |= {(mine, each) for each in gone}
        carry_out(state, eviction, now_s)
        assert mine in state.rooms
        for each in gone:
            reported(state, each, "ended", now_s, status="signaled", reason="preempt", exit=finished(100.0))
        ask(state, Place(placement=eviction.placement, attempt=AttemptId(f"n{now_s}")), now_s)
        assert job(state, mine).state is JobState.CONFIGURING
        reported(state, mine, "running", now_s, started_at=1.0)
        now_s += 100.0
    else:
        pytest.fail(f"jobs stop each other without end: {pairs}")
    assert not {(b, a) for a, b in pairs} & pairs


def test_tasks_of_a_limited_array_give_way() -> None:
    """A running task of an array that runs only so many at once is stopped like any other job."""
    state = cluster(node("mill", "A100"))
    array = submit(state, tasks=2, array_limit=1, **FREE)
    first = state.members(array)[0]
    place(state, first, "mill")
    urgent = submit(state)
    eviction = found(state)
    assert stopped(state, eviction) == {first}
    assert eviction is not None
    assert eviction.placement.job == urgent
