"""How much faster or slower a kind of job is on a GPU type than the catalogue says. Imports nothing of gpuq.

Kept is, for each type that a kind of job (owner and name) has run on, the logarithm of its run times as they would have
been on the reference GPU by the catalogue. Were the catalogue right, all types would have the same mean. A type's
difference d from the mean of all counts as far as it is not noise:

    factor = exp(d x T^2 / (T^2 + noise))      noise = V (1/n + 1/N)

T: how far speeds of one job typically stray from the catalogue; V: the variance of the job's run times within a type;
n and N: runs on the type and in all.

One thing to know: with runs on one type only nothing can be told apart, and all factors are 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Final, NamedTuple

STRAY: Final = 0.5  # T: a factor of 1.6
PRIOR_VARIANCE: Final = 0.25  # counts as one run
MOST_RUNS: Final = 20.0  # beyond it, each new run makes the older ones fade


class Runs(NamedTuple):
    """Runs on one GPU type: how many, sum and sum of squares of log(run time on the reference GPU [s])."""

    runs: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, reference_s: float) -> Runs:
        """With one run more; reference_s > 0."""
        kept = min(1.0, (MOST_RUNS - 1.0) / self.runs) if self.runs else 0.0
        value = log(reference_s)
        return Runs(self.runs * kept + 1.0, self.total * kept + value, self.squares * kept + value * value)


def speed_factors(by_type: Mapping[str, Runs]) -> dict[str, float]:
    """By GPU type, what to multiply the catalogue's speed with; types that it ran on only."""
    if len(by_type) < 2:
        return {}
    count = sum(kind.runs for kind in by_type.values())
    mean = sum(kind.total for kind in by_type.values()) / count
    scatter = sum(max(0.0, kind.squares - kind.total**2 / kind.runs) for kind in by_type.values())
    variance = (scatter + PRIOR_VARIANCE) / (count - len(by_type) + 1.0)
    found = {}
    for gpu_type, kind in by_type.items():
        noise = variance * (1.0 / kind.runs + 1.0 / count)
        found[gpu_type] = exp((mean - kind.total / kind.runs) * STRAY**2 / (STRAY**2 + noise))
    return found
