"""What a row of run times says about the next one."""

from __future__ import annotations

import random

import pytest

from gpuq.core.quantiles import mean_left_s, quantiles


def test_one_run_gives_a_band_around_it() -> None:
    """The middle is the run itself, and the 90% band reaches to about a third and three times of it."""
    found = quantiles((100.0,))
    assert found.middle_s == pytest.approx(100.0)
    assert (found.lowest_s, found.highest_s) == pytest.approx((31.6, 316.2), rel=0.01)
    assert found.lowest_s < found.low_s < found.middle_s < found.high_s < found.highest_s


def test_quantiles_rise_whatever_the_runs() -> None:
    """Equal runs included."""
    chance = random.Random(5)
    for count in range(1, 41):
        row = tuple(chance.choice((10.0, 50.0, chance.uniform(1.0, 1e5))) for _ in range(count))
        found = quantiles(row)
        assert list(found) == sorted(found), row


@pytest.mark.parametrize(("count", "seed"), [(3, 1), (8, 2), (20, 3)])
def test_bands_hold_what_they_say(count: int, seed: int) -> None:
    """The next of log-normal runs lies in the 50% band half of the time, in the 90% band nine times of ten."""
    chance = random.Random(seed)
    inner = outer = 0
    rounds = 1500
    for _ in range(rounds):
        *before, after = (chance.lognormvariate(6.0, 0.8) for _ in range(count + 1))
        found = quantiles(tuple(before))
        inner += found.low_s <= after <= found.high_s
        outer += found.lowest_s <= after <= found.highest_s
    assert inner / rounds == pytest.approx(0.5, abs=0.06)
    assert outer / rounds == pytest.approx(0.9, abs=0.06)


def test_newer_runs_count_more() -> None:
    """A job that has become slower is predicted slower before half of its runs are slow."""
    assert quantiles((100.0,) * 22 + (200.0,) * 18).middle_s > quantiles((200.0,) * 18 + (100.0,) * 22).middle_s


def test_what_is_left_is_the_mean_of_the_longer_runs() -> None:
    """Runs that were over by now no longer count; without a longer one nothing is known."""
    assert mean_left_s((100.0, 100.0, 100.0), 40.0) == 60.0
    assert mean_left_s((10.0, 100.0), 50.0) == 50.0
    assert mean_left_s((10.0, 100.0), 100.0) is None
    assert mean_left_s((), 0.0) is None


def test_no_run_is_refused() -> None:
    """Nothing is predicted from nothing."""
    with pytest.raises(ValueError, match="no run"):
        quantiles(())
