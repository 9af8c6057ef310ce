"""What a row of run times says about the next one. Imports model.

The next run is taken to be one more draw of the same kind: it lies below the i-th smallest of n equally likely runs
with probability i / (n + 1), whatever they are distributed like. Newer runs count more: a run's weight halves with
every HALF_LIFE_RUNS runs that came after it, and probabilities follow the weights.

One thing to know: beyond the smallest and the largest run the quantiles go on as a power law (TAIL), so that a single
run still gives a band. Rows are tuples, oldest first, and the results are cached by them: planning asks for
thousands of predictions and few rows differ.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

HALF_LIFE_RUNS: Final = 20
TAIL: Final = 0.5  # a run outside all earlier ones is twice as far away with half the chance, to this power
_FRESHNESS: Final = 0.5 ** (1.0 / HALF_LIFE_RUNS)


class Quantiles(NamedTuple):
    """Run times [s] below which the next one lies with 5, 25, 50, 75 and 95% probability."""

    lowest_s: float
    low_s: float
    middle_s: float
    high_s: float
    highest_s: float


LEVELS: Final = Quantiles(0.05, 0.25, 0.50, 0.75, 0.95)


@lru_cache(maxsize=16_384)
def quantiles(runs_s: tuple[float, ...]) -> Quantiles:
    """The quantiles of the next run after these [s], oldest first; ValueError without any."""
    if not runs_s:
        raise ValueError("no run, no quantiles")
    points = _points(runs_s)
    return Quantiles(*(_at(points, level) for level in LEVELS))


@lru_cache(maxsize=16_384)
def _weighted(runs_s: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """(run time, weight), smallest first."""
    last = len(runs_s) - 1
    return tuple(sorted((run_s, _FRESHNESS ** (last - position)) for position, run_s in enumerate(runs_s)))


def _points(runs_s: tuple[float, ...]) -> list[tuple[float, float]]:
    """(probability that the next run is below, run time), rising."""
    weighted = _weighted(runs_s)
    total = sum(weight for _, weight in weighted)
    one = total / len(weighted)  # the weight of the run to come, as of any other
    points, below = [], one / 2
    for run_s, weight in weighted:
        points.append(((below + weight / 2) / (total + one), run_s))
        below += weight
    return points


def _at(points: list[tuple[float, float]], level: float) -> float:
    (first, smallest_s), (last, largest_s) = points[0], points[-1]
    if level <= first:
        return float(smallest_s * (level / first) ** TAIL)
    if level >= last:
        return float(largest_s * ((1.0 - last) / (1.0 - level)) ** TAIL)
    for (before, low_s), (after, high_s) in pairwise(points):
        if level <= after:
            return low_s + (high_s - low_s) * (level - before) / (after - before)
    return largest_s


def mean_left_s(runs_s: tuple[float, ...], done_s: float) -> float | None:
    """E[S - done | S > done] over the weighted runs [s]; None when none of them took longer than done_s."""
    longer = [(run_s, weight) for run_s, weight in _weighted(runs_s) if run_s > done_s]
    if not longer:
        return None
    shortest_s = longer[0][0]
    beyond_s = sum((run_s - shortest_s) * weight for run_s, weight in longer) / sum(weight for _, weight in longer)
    return shortest_s - done_s + beyond_s
