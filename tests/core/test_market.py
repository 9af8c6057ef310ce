"""Prices of GPU types, and who is served where."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuq.core.market import Bid, clearing_prices, preferred_types, urgency


def test_the_price_lies_between_the_last_served_and_the_first_left_out() -> None:
    """Three bids for two GPUs: the price is between the second and the third."""
    assert clearing_prices([Bid(1, (5.0,)), Bid(1, (3.0,)), Bid(1, (2.0,))], [2]) == [2.5]


def test_what_is_left_over_costs_nothing() -> None:
    """Where GPUs stay idle nobody pays."""
    assert clearing_prices([Bid(1, (5.0,))], [2]) == [0.0]


def test_the_fast_gpu_goes_to_the_job_that_gains_most_from_it() -> None:
    """The more urgent job runs nearly as well on the old GPU, and leaves the new one to the other."""
    first, second = Bid(1, (10.0, 9.0)), Bid(1, (8.0, 1.0))
    prices = clearing_prices([first, second, Bid(1, (0.5, 0.5))], [1, 1])
    assert preferred_types(first, prices)[0] == 1
    assert preferred_types(second, prices)[0] == 0


def test_a_type_that_a_job_cannot_use_is_never_offered() -> None:
    """A value of 0 means it does not run there."""
    assert preferred_types(Bid(1, (0.0, 1.0)), [0.0, 5.0]) == [1]
    assert urgency(Bid(1, (0.0, 6.0)), [0.0, 2.0]) == 3.0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.builds(Bid, st.integers(1, 4), st.tuples(st.floats(0.0, 9.0), st.floats(0.0, 9.0))), max_size=12
    ),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_prices_are_never_negative_and_never_above_every_bid(bids: list[Bid], capacity: tuple[int, int]) -> None:
    """A price lies between nothing and the highest value anybody has for the type."""
    for type_, price in enumerate(clearing_prices(bids, capacity)):
        assert 0.0 <= price <= max((bid.values[type_] for bid in bids), default=0.0)
