"""Weights, impact, prices, the Impact Factor, and the predictions they rest on."""

from __future__ import annotations

import pytest

from gpuq.core import greedy, impact
from gpuq.core.estimate import predict, remaining
from gpuq.core.events import StopOrdered
from gpuq.core.impact import Costs, Outcome, Weights
from gpuq.core.model import StopKind, StopOrder
from gpuq.core.survey import snapshot
from tests.builders import WALL_S, cluster, finish, job, node, place, remember, stamp, submit, tell

WEIGHTS = Weights()


def test_ten_points_of_priority_double_a_weight_and_nice_takes_them_back() -> None:
    """Larger priority counts more, larger nice less; no number overflows."""
    assert impact.priority_ratio(10, 0, WEIGHTS) == 2.0
    assert impact.priority_ratio(10, 10, WEIGHTS) == 1.0
    assert impact.priority_ratio(0, 20, WEIGHTS) == 0.25
    assert 0.0 < impact.priority_ratio(-(10**9), 0, WEIGHTS) < impact.priority_ratio(10**9, 0, WEIGHTS) < 1e10


def test_calling_everything_urgent_gains_nothing() -> None:
    """Each owner's mean is 1 after division, whatever the priorities."""
    state = cluster(node("mill", "A100"))
    for priority in (50, 50, 50):
        submit(state, owner="tom", priority=priority, name=f"p{priority}")
    submit(state, owner="anna", priority=0)
    submit(state, owner="anna", priority=10, name="urgent")
    means = impact.mean_ratios(state.waiting, WEIGHTS)
    assert means == {"tom": 32.0, "anna": 1.5}


def test_age_raises_a_weight_without_limit() -> None:
    """Waiting ten times the run time makes a job eleven times as heavy."""
    assert impact.weight(1.0, 0.0, 600.0) == 1.0
    assert impact.weight(1.0, 6000.0, 600.0) == 11.0


def test_impact_is_completions_per_gpu_hour() -> None:
    """Half an hour on two GPUs is one GPU-hour; costs are taken off the weight first."""
    assert impact.impact(1.0, 2, 1800.0, WEIGHTS) == 1.0
    assert impact.impact(1.0, 0, 3600.0, WEIGHTS) == 1.0
    priced = Weights(energy=0.1, restart=0.2, fragmentation=0.05)
    costs = Costs(energy_kwh=2.0, restarts=1.0, stranded_gpus=2.0)
    assert impact.impact(1.0, 1, 3600.0, priced, costs) == pytest.approx(0.5)
    assert impact.impact(1.0, 1, 3600.0, WEIGHTS, costs) == 1.0


def test_a_price_is_the_least_impact_that_holds_a_wanted_type() -> None:
    """A type that nobody waits for costs nothing."""
    holding = [("A100", 2.0), ("A100", 1.1), ("V100", 0.6)]
    assert impact.prices(holding, ["A100"]) == {"A100": 1.1, "V100": 0.0}


def test_the_impact_factor_is_one_when_nobody_waited() -> None:
    """And falls as jobs wait or run on slow GPUs; with no jobs it is unknown."""
    assert impact.impact_factor([]) is None
    assert impact.impact_factor([Outcome("a", 1.0, 60.0, 60.0)]) == 1.0
    assert impact.impact_factor([Outcome("a", 1.0, 60.0, 60.0), Outcome("b", 1.0, 60.0, 180.0)]) == 0.5


def test_the_impact_factor_counts_priorities_within_one_owner_only() -> None:
    """The same priority on all of an owner's jobs changes nothing; a higher one on the job that waited lowers it."""
    plain = [Outcome("a", 1.0, 60.0, 60.0), Outcome("a", 1.0, 60.0, 300.0), Outcome("b", 1.0, 60.0, 60.0)]
    loud = [each._replace(ratio=8.0) if each.user == "a" else each for each in plain]
    assert impact.impact_factor(loud) == impact.impact_factor(plain)
    worse = [plain[0], plain[1]._replace(ratio=8.0), plain[2]]
    before, after = impact.impact_factor(plain), impact.impact_factor(worse)
    assert before is not None
    assert after is not None
    assert after < before


def test_an_outcome_tells_waiting_and_slow_gpus() -> None:
    """A job that waited 100 s and ran 200 s on a V100 would have needed 100 s on the A100."""
    state = cluster(node("attic", "V100"), node("mill", "A100"))
    id_ = submit(state)
    place(state, id_, "attic", at=100)
    running = impact.outcome(state, job(state, id_), stamp(200), best_speed=1.0)
    assert running == Outcome("anna", 1.0, 50.0, 200.0)
    finish(state, id_, at=300, run_s=200)
    assert impact.outcome(state, job(state, id_), stamp(900), best_speed=1.0) == Outcome("anna", 1.0, 100.0, 300.0)


def test_a_job_that_never_ran_has_no_outcome() -> None:
    """It is left out of the sums instead of counting as 0."""
    state = cluster(node("mill", "A100"))
    assert impact.outcome(state, job(state, submit(state)), stamp(50)) is None


# --- predictions ----------------------------------------------------------------------------------------


def test_a_prediction_is_the_median_of_the_history() -> None:
    """Three runs that are alike inform; it names how many there were; the newest counts a little more."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, name="vit")
    remember(state, "vit", 100.0, 300.0, 200.0)
    found = predict(state, job(state, id_))
    assert (found.basis, found.informed) == ("3 runs of 'vit'", True)
    assert found.run_s == pytest.approx(200.0, rel=0.01)
    assert found.on(2.0) == found.run_s / 2
    assert found.on(0.5) == found.run_s * 2


def test_few_or_unlike_runs_are_a_guess() -> None:
    """One run, or runs that differ by an order of magnitude, do not keep a GPU idle."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, name="vit")
    remember(state, "vit", 100.0)
    assert predict(state, job(state, id_)).basis == "1 run of 'vit'"
    assert not predict(state, job(state, id_)).informed
    remember(state, "vit", 10.0, 10.0, 100.0, 5000.0, 5000.0, 5000.0, 5000.0)
    assert not predict(state, job(state, id_)).informed


def test_a_time_limit_caps_the_history_and_replaces_it_when_there_is_none() -> None:
    """A limit alone is the same on every GPU and no prediction; nothing at all means the default."""
    state = cluster(node("mill", "A100"))
    limited = job(state, submit(state, name="a", time_limit_s=500.0))
    found = predict(state, limited)
    assert (found.run_s, found.basis, found.informed, found.on(4.0)) == (500.0, "its time limit", False, 500.0)
    remember(state, "a", 900.0, 900.0, 900.0)
    assert predict(state, limited).on(1.0) == 500.0
    assert predict(state, limited).on(3.0) == 300.0
    unknown = predict(state, job(state, submit(state, name="b")))
    assert (unknown.run_s, unknown.basis, unknown.informed) == (3600.0, "no history: 1 h assumed", False)


def test_the_remaining_time_shrinks_and_grows_again_when_outlived() -> None:
    """Never 0: a job that outlives its prediction gets half as much again, on the word of its history."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, name="vit")
    remember(state, "vit", 100.0, 100.0, 100.0)
    place(state, id_, "mill", at=0)
    early = remaining(state, job(state, id_), stamp(40))
    assert (early.left_s, early.informed) == (60.0, True)
    late = remaining(state, job(state, id_), stamp(120))
    assert (late.left_s, late.informed) == (30.0, True)
    assert all(remaining(state, job(state, id_), stamp(float(at))).left_s >= 1.0 for at in range(0, 5000, 7))


def test_a_job_that_was_told_to_end_needs_its_grace_at_most() -> None:
    """What remains is bounded by the grace time, whatever the prediction says."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state)
    attempt = place(state, id_, "mill")
    order = StopOrder(kind=StopKind.CANCEL, by="anna", at=WALL_S + 10, grace_s=30.0)
    tell(state, StopOrdered(job=id_, attempt=attempt, stop=order), at=10)
    assert remaining(state, job(state, id_), stamp(15)).left_s == 25.0
    assert remaining(state, job(state, id_), stamp(500)).left_s == 1.0


def test_the_remaining_time_ends_with_the_time_limit() -> None:
    """A job with a limit is over when limit and grace are, even if it outlives its prediction."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, time_limit_s=100.0, grace_s=5.0)
    place(state, id_, "mill")
    assert remaining(state, job(state, id_), stamp(60)).left_s == 40.0
    assert remaining(state, job(state, id_), stamp(101)).left_s == 5.0


# --- deadlines ------------------------------------------------------------------------------------------


def test_a_deadline_raises_a_weight_as_slack_shrinks_and_not_after() -> None:
    """1 far off, 8 when the job must start now, 1 again when it cannot be met; parameter 0 turns it off."""
    rises = [impact.deadline_rise(slack_s, 600.0, WEIGHTS) for slack_s in (1e9, 6000.0, 600.0, 60.0, 0.0)]
    assert rises == sorted(rises)
    assert rises[0] == pytest.approx(1.0, abs=1e-5)
    assert (rises[2], rises[-1]) == (4.5, 8.0)
    assert impact.deadline_rise(-0.001, 600.0, WEIGHTS) == 1.0
    assert impact.deadline_rise(None, 600.0, WEIGHTS) == 1.0
    assert impact.deadline_rise(0.0, 600.0, Weights(deadline=0.0)) == 1.0


def test_the_planner_sees_deadlines() -> None:
    """Of two equal jobs the one with the near deadline goes first; one that is missed stays behind the older."""
    state = cluster(node("mill", "A100"))
    place(state, submit(state, time_limit_s=600.0), "mill")
    plain = submit(state, time_limit_s=600.0)
    near = submit(state, time_limit_s=600.0, deadline_at=WALL_S + 1300)
    missed = submit(state, time_limit_s=600.0, deadline_at=WALL_S + 100)
    plan = greedy.plan(snapshot(state, stamp(0), WEIGHTS))
    assert sorted(plan.estimates, key=lambda id_: plan.estimates[id_].start_s) == [near, plain, missed]
