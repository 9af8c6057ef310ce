"""Prices of GPU types at which the jobs that want them fit. Imports nothing.

When jobs may be stopped, what runs is chosen anew at every change. Each job bids for each GPU type what one GPU of it
is worth to the job: weight x speed there / (GPUs x work left), the impact of running it there. The price of a type is
where its GPUs run out, when every job goes where its bid exceeds the price by most. So a job that runs
nearly as fast on an old GPU leaves the new one to a job that does not, which taking types one job at a time cannot do.

    price of k = halfway between the last bid that is served and the first that is not
    bid for k  = value_k - max(0, max over other types q of value_q - price_q)

One thing to know: prices are found by setting each type's in turn (coordinate descent on the dual of the assignment
linear program). A few rounds from the prices of the moment before are enough; jobs are whole, so no prices are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ROUNDS: Final = 3


class Bid(NamedTuple):
    """What one GPU of each type is worth to a job; 0 where it cannot run."""

    gpus: int
    values: tuple[float, ...]


def clearing_prices(
    bids: Sequence[Bid], capacity: Sequence[int], start: Sequence[float] | None = None, rounds: int = ROUNDS
) -> list[float]:
    """One price per type, 0 where GPUs are left over. start: prices to begin with, as of the moment before."""
    prices = list(start) if start else [0.0] * len(capacity)
    for _ in range(rounds):
        for type_, gpus in enumerate(capacity):
            prices[type_] = _price(bids, type_, gpus, prices)
    return prices


def _price(bids: Sequence[Bid], type_: int, capacity: int, prices: Sequence[float]) -> float:
    """Halfway between the last bid that finds GPUs of this type and the first that does not.

    At the first one's bid itself that job would not care which type it gets, and a tie would decide.
    """
    others = [other for other in range(len(prices)) if other != type_]
    offers: list[tuple[float, int]] = []
    for gpus, values in bids:
        value = values[type_]
        if value > 0.0:
            for other in others:
                spare = values[other] - prices[other]
                if spare > 0.0 and values[type_] - spare < value:
                    value = values[type_] - spare
            if value > 0.0:
                offers.append((value, gpus))
    offers.sort(reverse=True)
    served = offers[0][0] if offers else 0.0
    for value, gpus in offers:
        capacity -= gpus
        if capacity < 0:
            return (served + value) / 2
        served = value
    return 0.0


def preferred_types(bid: Bid, prices: Sequence[float]) -> list[int]:
    """The types the job can use, the one with the largest surplus over its price first."""
    able = [type_ for type_, value in enumerate(bid.values) if value > 0.0]
    return sorted(able, key=lambda type_: prices[type_] - bid.values[type_])


def urgency(bid: Bid, prices: Sequence[float]) -> float:
    """How many times the price the job would pay where that is most; the order in which jobs are served."""
    return max(
        (value / max(price, 1e-300) for value, price in zip(bid.values, prices, strict=True) if value > 0.0),
        default=0.0,
    )
