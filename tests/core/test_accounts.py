"""Account balance: what was used, how it decays, whose jobs it makes lighter; one user alone sees none of it."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest

from gpuq.core.accounts import BUCKET_S, HALF_LIFE_S, WINDOW_S, balance, charged, decayed, decayed_span_s, standings
from gpuq.core.impact import Account, Weights
from gpuq.core.snapshot import from_bytes, to_bytes
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from tests.builders import cluster, finish, gpu, node, place, stamp, submit

FAIR = Weights(balance=1.0)
DAY_S = 86400.0


def standing_of(state: ClusterState, user: str, at: float, weights: Weights = FAIR) -> float:
    """What the planner multiplies the jobs of a user with."""
    queues = snapshot(state, stamp(at), weights).queues
    return next(queue.standing for queue in queues if queue.shape.user == user)


def used(owner: str = "anna", hours: float = 24.0, **fields: Any) -> ClusterState:
    """A state of four GPUs in which a user has held all of them for some hours; both users have a job waiting."""
    state = cluster(node("mill", "A100:4"))
    id_ = submit(state, owner=owner, gpus=4, **fields)
    place(state, id_, "mill", at=0.0)
    finish(state, id_, at=hours * 3600, run_s=hours * 3600)
    for user in ("anna", "tom"):
        submit(state, owner=user, at=hours * 3600)
    return state


def test_balance_is_one_at_its_share_and_bounded() -> None:
    """exp(k (share - usage) / share): 1 when usage is the share, never beyond 8 or 1/8."""
    assert balance(0.5, 0.5, 1.0) == 1.0
    assert balance(0.5, 0.0, 1.0) == pytest.approx(exp(1.0))
    assert balance(0.5, 0.75, 2.0) == pytest.approx(exp(-1.0))
    assert balance(0.1, 1.0, 10.0) == pytest.approx(1 / 8)
    assert balance(0.5, 0.0, 10.0) == pytest.approx(8.0)
    usages = [balance(0.3, each / 100, 1.0) for each in range(100)]
    assert usages == sorted(usages, reverse=True)


def test_held_gpus_are_kept_by_quarter_of_a_day() -> None:
    """The amounts add up, each in the quarter it fell into."""
    found = charged((), 2, BUCKET_S - 100.0, BUCKET_S + 50.0)
    assert found == ((0, 200.0), (1, 100.0))
    assert charged(found, 1, BUCKET_S + 50.0, BUCKET_S + 60.0) == ((0, 200.0), (1, 110.0))


@pytest.mark.parametrize("days", [1, 8, 400])
def test_the_buckets_stay_few(days: int) -> None:
    """However long something ran, only the window is kept."""
    found = charged((), 1, 0.0, days * DAY_S)
    assert len(found) <= WINDOW_S / BUCKET_S + 1
    assert sum(amount for _, amount in found) == pytest.approx(min(days * DAY_S, WINDOW_S), rel=0.04)


def test_usage_halves_with_the_half_life_and_ends_with_the_window() -> None:
    """From the middle of its quarter on; after seven days nothing is left."""
    middle_s = 100.5 * BUCKET_S
    found = ((100, 1000.0),)
    assert decayed(found, middle_s) == 1000.0
    assert decayed(found, middle_s + HALF_LIFE_S) == pytest.approx(500.0)
    assert decayed(found, middle_s + WINDOW_S + BUCKET_S) == 0.0
    assert decayed_span_s(60.0) == pytest.approx(60.0, rel=1e-3)
    assert decayed_span_s(WINDOW_S) == decayed_span_s(2 * WINDOW_S) < WINDOW_S


def test_who_used_much_weighs_less_until_it_is_forgotten() -> None:
    """The one without use goes first by exp(k usage / share); days later both are equal again."""
    state = used(hours=24.0)
    at = DAY_S
    found = standings(state, stamp(at), FAIR)
    assert found["tom"].usage == 0.0
    assert 0.2 < found["anna"].usage < 0.4
    ratio = standing_of(state, "tom", at) / standing_of(state, "anna", at)
    assert ratio == pytest.approx(exp(found["anna"].usage / 0.5))
    later = at + WINDOW_S + BUCKET_S
    assert standing_of(state, "tom", later) == standing_of(state, "anna", later)


def test_one_user_alone_is_never_touched() -> None:
    """With one active account the factor is exactly 1, whatever it used and however strong the balance."""
    state = cluster(node("mill", "A100:4"))
    place(state, submit(state, gpus=4, time_limit_s=WINDOW_S), "mill")
    submit(state, at=DAY_S)
    assert standing_of(state, "anna", DAY_S, Weights(balance=10.0)) == 1.0
    assert standing_of(state, "anna", DAY_S, Weights(balance=0.0)) == 1.0


def test_balance_zero_turns_it_off() -> None:
    """Then use counts for nothing, also among several users."""
    state = used()
    assert standing_of(state, "anna", DAY_S, Weights()) == standing_of(state, "tom", DAY_S, Weights()) == 1.0


def test_a_burst_of_starts_is_charged_at_once() -> None:
    """What a fixed job is predicted to take counts from its first second; so do minimum run times."""
    state = cluster(node("mill", "A100:4"))
    for owner in ("anna", "tom"):
        submit(state, owner=owner, name="later")
    before = standings(state, stamp(0.0), FAIR)["anna"].usage
    place(state, submit(state, gpus=2, time_limit_s=DAY_S), "mill")
    fixed = standings(state, stamp(0.0), FAIR)["anna"].usage
    place(state, submit(state, gpus=2, preemptible=True, min_runtime_s=DAY_S), "mill")
    both = standings(state, stamp(0.0), FAIR)["anna"].usage
    assert before == 0.0 < fixed
    assert both == pytest.approx(2 * fixed)


def test_free_time_is_not_charged() -> None:
    """A preemptible job without minimum run time costs nothing, while it runs and after."""
    state = cluster(node("mill", "A100:4"))
    for owner in ("anna", "tom"):
        submit(state, owner=owner, name="later")
    id_ = submit(state, gpus=4, preemptible=True)
    place(state, id_, "mill")
    assert standings(state, stamp(DAY_S), FAIR)["anna"].usage == 0.0
    finish(state, id_, at=DAY_S)
    assert state.usage == {}


def test_users_of_one_account_share_its_balance_and_shares_are_relative() -> None:
    """[accounts] names members and weight: two thirds for the pair, one for the other; use of one counts for both."""
    state = used(owner="anna")
    submit(state, owner="eve", at=DAY_S)
    weights = Weights(balance=1.0, accounts=(Account(name="vision", users=("anna", "eve"), share=2.0),))
    found = standings(state, stamp(DAY_S), weights)
    assert found["anna"] == found["eve"]
    assert (found["anna"].account, found["anna"].share) == ("vision", pytest.approx(2 / 3))
    assert (found["tom"].account, found["tom"].share) == ("tom", pytest.approx(1 / 3))
    assert found["eve"].usage > 0.0
    assert standing_of(state, "eve", DAY_S, weights) < standing_of(state, "tom", DAY_S, weights)


def test_usage_survives_a_snapshot_and_is_bounded_by_users_in_the_window() -> None:
    """The state that is loaded is the one that was written; users without use in the window are let go."""
    state = used(hours=30.0)
    assert from_bytes(to_bytes(state)).usage == state.usage != {}
    late = 2 * WINDOW_S
    id_ = submit(state, owner="tom", at=late)
    place(state, id_, "mill", at=late)
    finish(state, id_, at=late + 100)
    assert set(state.usage) == {"tom"}


def test_a_gpu_cut_into_slices_counts_as_its_slices() -> None:
    """Usage is of what can be given out: seven slices of one GPU are seven, an uncut GPU beside it is one."""
    whole, other = gpu("mill", 0, "A100"), gpu("mill", 1, "A100")
    slices = [gpu("mill", 2 + number, "A100", parent=whole.uuid) for number in range(7)]
    usages = []
    for gpus in ((whole, other), (whole, *slices, other)):
        state = cluster(node("mill", gpus=gpus))
        submit(state, owner="tom", name="later")
        place(state, submit(state, time_limit_s=DAY_S), "mill", gpus=(other.uuid,))
        usages.append(standings(state, stamp(0.0), FAIR)["anna"].usage)
    assert usages[0] / usages[1] == pytest.approx(8 / 2)
