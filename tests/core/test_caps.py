"""Caps on the GPUs of accounts and users: in plans, in their proof, at the start of a job, at submit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuq.core import fit, greedy
from gpuq.core.caps import AccountCap, Caps
from gpuq.core.decide import decide
from gpuq.core.explain import waiting_reason
from gpuq.core.model import AttemptId, Placement
from gpuq.core.plan import Plan, UnsoundPlan, check_plan, objective
from gpuq.core.problem import Problem
from gpuq.core.requests import Place, Submit
from gpuq.core.state import ClusterState
from gpuq.core.states import Reason
from gpuq.core.survey import snapshot
from gpuq.errors import Refused
from gpuq.solve.cpsat import CpSat
from tests.builders import cluster, finish, job, node, place, remember, spec, stamp, submit, user

VISION = Caps(accounts=(AccountCap("vision", ("anna", "tom"), 2),))


def capped(caps: Caps, *kinds: str) -> ClusterState:
    """One machine with these GPUs, under caps."""
    state = cluster(node("mill", *(kinds or ("A100:4",))))
    state.caps = caps
    return state


def planned(state: ClusterState, at: float = 0.0) -> tuple[Problem, Plan]:
    problem = snapshot(state, stamp(at))
    plan = greedy.plan(problem)
    check_plan(problem, plan)
    return problem, plan


def test_an_account_at_its_cap_waits_beside_free_gpus() -> None:
    """Two users share the cap; somebody else starts; the rest is planned for when GPUs are given back."""
    state = capped(VISION)
    place(state, submit(state, time_limit_s=3600.0), "mill")
    second, third = submit(state, "tom", time_limit_s=600.0), submit(state, "tom", time_limit_s=900.0)
    other = submit(state, "eve")
    _, plan = planned(state)
    assert {start.job for start in plan.starts} == {second, other}
    assert plan.estimates[third].start_s == pytest.approx(600.0)


def test_the_cap_of_users_holds_for_each_of_them() -> None:
    """One GPU each: the second job of a user waits for the first, users do not wait for one another."""
    state = capped(Caps(max_gpus_per_user=1))
    anna, again, tom = submit(state), submit(state), submit(state, "tom")
    _, plan = planned(state)
    assert {start.job for start in plan.starts} == {anna, tom}
    assert plan.estimates[again].start_s == pytest.approx(plan.estimates[anna].end_s)


def test_jobs_without_gpus_are_under_no_cap() -> None:
    """A job that asks for no GPU starts although its owner holds all it may."""
    state = capped(Caps(max_gpus_per_user=1))
    place(state, submit(state), "mill")
    light = submit(state, gpus=0)
    assert [start.job for start in planned(state)[1].starts] == [light]


@pytest.mark.parametrize(
    ("caps", "reason", "words"),
    [
        (VISION, Reason.ACCOUNT_GPU_LIMIT, "account vision holds 2 of at most 2 GPUs, 1 asked"),
        (Caps(max_gpus_per_user=2), Reason.USER_GPU_LIMIT, "user anna holds 2 of at most 2 GPUs, 1 asked"),
    ],
)
def test_a_job_that_waits_for_its_cap_says_so(caps: Caps, reason: Reason, words: str) -> None:
    """Reason and sentence name the cap; the placement is dropped if somebody asks for it all the same."""
    state = capped(caps)
    place(state, submit(state, gpus=2), "mill")
    id_ = submit(state)
    _, plan = planned(state)
    assert waiting_reason(state, job(state, id_), plan, stamp()) == (reason, words)
    placement = Placement(job=id_, node=state.nodes["mill"].name, gpus=(state.nodes["mill"].gpus[3].uuid,))
    done = decide(state, Place(placement=placement, attempt=AttemptId(f"{id_}.1")), stamp())
    assert not done.events
    assert words in done.notes[0]


def test_what_ends_is_given_back() -> None:
    """Once the running job has ended the next one starts."""
    state = capped(VISION)
    first = submit(state, gpus=2)
    place(state, first, "mill")
    second = submit(state, gpus=2)
    assert not planned(state)[1].starts
    finish(state, first, run_s=600.0)
    assert [start.job for start in planned(state, 600.0)[1].starts] == [second]


def test_a_job_larger_than_its_cap_is_refused() -> None:
    """At submit, with the cap, the setting and what to do; one of the size of the cap is taken."""
    state = capped(VISION)
    request: dict[str, Any] = {"key": "", "by": user("anna"), "gpus_given": True}
    with pytest.raises(Refused, match=r"Asked 3 GPUs; account vision may hold at most 2 at once \(\[accounts.vision\]"):
        decide(state, Submit(spec=spec(gpus=3), **request), stamp())
    assert decide(state, Submit(spec=spec(gpus=2), **request), stamp()).events


def test_a_lowered_cap_stops_nobody_and_lets_nobody_start() -> None:
    """What runs may hold more than the cap says; plans stay sound, and the next job waits for enough of it to end."""
    state = capped(Caps())
    place(state, submit(state, gpus=3, time_limit_s=600.0), "mill")
    waiting, too_large = submit(state, gpus=1), submit(state, gpus=3)
    state.caps = VISION
    _, plan = planned(state)
    assert plan.estimates[waiting].start_s == pytest.approx(600.0)
    assert too_large not in plan.estimates


def test_a_plan_over_a_cap_is_found_out() -> None:
    """The proof counts what runs and what is planned."""
    state = capped(VISION)
    for _ in range(3):
        submit(state)
    problem, plan = planned(state)
    late = next(start for start in plan.estimates.values() if start.start_s > 0.0)
    now = replace(
        late, start_s=0.0, end_s=late.end_s - late.start_s,
        gpus=(state.nodes["mill"].gpus[3].uuid,), node=state.nodes["mill"].name,
    )  # fmt: skip
    forged = replace(plan, starts=(*plan.starts, now), estimates={**plan.estimates, now.job: now})
    with pytest.raises(UnsoundPlan, match="account vision would hold more than 2 GPUs"):
        check_plan(problem, forged)


def test_the_first_account_that_names_a_user_counts() -> None:
    """A user who is named twice is under the cap of the first account alone, and counts against no other."""
    caps = Caps(accounts=(AccountCap("one", ("anna",), 0), AccountCap("two", ("anna", "tom"), 1)))
    assert caps.of("anna") == ()
    assert [cap.users for cap in caps.of("tom")] == [("tom",)]


JOB = st.tuples(st.sampled_from(["anna", "tom", "eve"]), st.integers(0, 3), st.sampled_from([60.0, 600.0, 7200.0]))
CAPS = st.builds(
    lambda account, each: Caps(accounts=(AccountCap("vision", ("anna", "tom"), account),), max_gpus_per_user=each),
    st.integers(0, 4),
    st.integers(0, 4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(JOB, max_size=10), CAPS, st.sampled_from([1, 256]))
def test_no_plan_and_no_start_exceeds_a_cap(jobs: list[tuple[str, int, float]], caps: Caps, window: int) -> None:
    """Plans pass the proof; each start passes the check of the core in turn; at no moment is more held than allowed."""
    state = cluster(node("mill", "A100:4"), node("barn", "V100:3"))
    state.caps = caps
    for owner, gpus, limit_s in jobs:
        submit(state, owner, gpus=gpus, time_limit_s=limit_s)
    at = 0.0
    for _ in range(4):
        for wide in (window, 0):
            problem = snapshot(state, stamp(at), window=wide)
            plan = greedy.plan(problem, estimates=wide > 0)
            check_plan(problem, plan)
        for placement in plan.placements():
            assert fit.check(state, placement, stamp(at)) is None
            place(state, placement.job, placement.node, placement.gpus, at=at)
        _assert_within(state, caps)
        at += 100.0
        running = [each.id for each in state.active()]
        if running:
            finish(state, running[0], run_s=100.0, at=at)


def _assert_within(state: ClusterState, caps: Caps) -> None:
    held: dict[str, int] = {}
    for each in state.active():
        held[each.owner.name] = held.get(each.owner.name, 0) + each.spec.resources.gpus
    account, most = caps.accounts[0].max_gpus, caps.max_gpus_per_user
    assert not account or held.get("anna", 0) + held.get("tom", 0) <= account
    assert not most or max(held.values(), default=0) <= most


def test_the_solver_keeps_caps() -> None:
    """Its plans are sound and no worse where jobs wait for their account."""
    state = capped(VISION)
    for number in range(6):
        remember(state, f"kind{number}", *[600.0 * (1 + number)] * 3)
        submit(state, name=f"kind{number}", gpus=1 + number % 2)
    problem, first = planned(state)
    plan = CpSat(budget=0.1).improve(problem, first)
    check_plan(problem, plan)
    assert plan.solve is not None
    assert "failed" not in plan.solve.status
    assert plan.estimates.keys() == first.estimates.keys()
    assert objective(problem, plan) <= objective(problem, first)
