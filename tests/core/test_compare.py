"""Two plans side by side: who changes place, and what becomes of the predicted Impact Factor."""

from __future__ import annotations

import pytest

from gpuq.core import greedy
from gpuq.core.compare import Comparison, compare
from gpuq.core.impact import Weights
from gpuq.core.model import JobId
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from tests.builders import cluster, node, place, stamp, submit

AT = 40_000.0


def full(state: ClusterState) -> None:
    """Every GPU is taken by a job with an hour left at AT."""
    place(state, submit(state, time_limit_s=AT + 3600.0), "mill")


def compared(state: ClusterState, before: Weights, after: Weights) -> Comparison:
    one, two = snapshot(state, stamp(AT), before), snapshot(state, stamp(AT), after)
    return compare(one, greedy.plan(one), two, greedy.plan(two))


def test_age_moves_an_old_long_job_before_a_short_one() -> None:
    """Without age the short job goes first; with it the long one that waits since long. Both are listed."""
    state = cluster(node("mill", "A100"))
    full(state)
    old = submit(state, time_limit_s=4000.0, at=0.0)
    short = submit(state, time_limit_s=600.0, at=AT)
    found = compared(state, Weights(age=0.0), Weights(age=1.0))
    moved = {each.job: (each.place_before, each.place_after) for each in found.moved}
    assert moved == {old: (2, 1), short: (1, 2)}
    assert [each.job for each in found.moved] == [short, old]
    by_id = {each.job: each for each in found.moved}
    assert by_id[short].before_s == by_id[old].after_s
    assert by_id[old].before_s == pytest.approx(by_id[short].before_s + 600.0)


def test_the_predicted_impact_factor_is_that_of_the_definition() -> None:
    """Sum of shortest run times over sum of waited plus time to the end, for the jobs of both plans."""
    state = cluster(node("mill", "A100"))
    full(state)
    submit(state, time_limit_s=4000.0, at=0.0)
    submit(state, time_limit_s=600.0, at=AT)
    found = compared(state, Weights(age=0.0), Weights(age=1.0))
    left_s = greedy.plan(snapshot(state, stamp(AT))).estimates[JobId("2")].start_s - AT
    assert found.jobs == 2
    assert found.factor_before == pytest.approx(4600.0 / ((left_s + 600.0) + (AT + left_s + 4600.0)))
    assert found.factor_after == pytest.approx(4600.0 / ((AT + left_s + 4000.0) + (left_s + 4600.0)))


def test_equal_weights_change_nothing() -> None:
    """No job is listed, and the factor stays."""
    state = cluster(node("mill", "A100:2"))
    for _ in range(5):
        submit(state, time_limit_s=600.0)
    found = compared(state, Weights(), Weights())
    assert found.moved == ()
    assert found.factor_before == found.factor_after


def test_nothing_waits() -> None:
    """Without waiting jobs there is no factor."""
    found = compared(cluster(node("mill", "A100")), Weights(), Weights(age=0.0))
    assert (found.moved, found.jobs, found.factor_before) == ((), 0, None)
