"""Priors for shared GPUs and power limits, and how they give way to measurements."""

from __future__ import annotations

import pytest

from gpuq.learn import interference, power
from gpuq.learn.shrinkage import Measured, shrunk


def measured(*ratios: float) -> Measured:
    """These samples."""
    found = Measured()
    for ratio in ratios:
        found = found.plus(ratio)
    return found


@pytest.mark.parametrize(
    ("own", "other", "speed"), [(0.0, 1.0, 1.0), (0.1, 0.2, 1.0), (1.0, 1.0, 0.62), (0.5, 0.8, 0.86)]
)
def test_two_jobs_on_one_gpu(own: float, other: float, speed: float) -> None:
    """1.02 - 0.40 u1 u2, never above 1, whichever of them is asked about."""
    assert interference.prior_speed(own, other) == pytest.approx(speed)
    assert interference.prior_speed(other, own) == pytest.approx(speed)


@pytest.mark.parametrize(("limit_w", "speed"), [(500.0, 1.0), (424.0, 1.0), (400.0, 0.99487), (260.0, 0.76053)])
def test_a_job_of_400_w_under_a_limit(limit_w: float, speed: float) -> None:
    """No loss from 1.06 of its draw on; a quarter at the lowest limit."""
    assert power.prior_speed(limit_w, 400.0) == pytest.approx(speed, abs=1e-4)


def test_no_limit_below_the_known_range() -> None:
    """The curve is not carried on where nobody measured."""
    assert power.prior_speed(power.least_limit_w(400.0), 400.0) > 0.7
    for limit_w, draw_w in ((259.0, 400.0), (100.0, 0.0), (float("nan"), 400.0)):
        with pytest.raises(ValueError, match="draw"):
            power.prior_speed(limit_w, draw_w)
    with pytest.raises(ValueError, match="utilisation"):
        interference.prior_speed(1.2, 0.5)


def test_measurements_take_over() -> None:
    """None: the prior. Four: half way on the logarithmic scale. Very many: what was measured."""
    assert shrunk(0.9, measured()) == pytest.approx(0.9)
    assert shrunk(0.9, measured(*[0.4] * 4)) == pytest.approx(0.6)
    assert interference.pair_speed(1.0, 1.0, measured(*[0.9] * 1000)) == pytest.approx(0.9, abs=0.01)
    assert power.limited_speed(400.0, 400.0, measured(*[1.5] * 50)) == 1.0


def test_only_ratios_are_measurements() -> None:
    """A speed of 0, or none at all, would take over for ever."""
    for ratio in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="above 0"):
            measured(ratio)
