"""A prior that gives way to measurements, on a logarithmic scale. Imports nothing of gpuq.

The estimate is the weighted geometric mean of the prior, which counts as PRIOR_SAMPLES measurements, and of what was
measured: with few samples it stays near the prior, with many it is their mean.

One thing to know: only the number of samples and the sum of their logarithms are kept, so what is learnt of a pair
costs two numbers.
"""

from __future__ import annotations

from math import exp, isfinite, log
from typing import Final, NamedTuple

PRIOR_SAMPLES: Final = 4.0


class Measured(NamedTuple):
    """Samples of one ratio: how many, and the sum of their natural logarithms."""

    samples: int = 0
    log_sum: float = 0.0

    def plus(self, ratio: float) -> Measured:
        """With one sample more; ValueError unless it is a number above 0."""
        if not (isfinite(ratio) and ratio > 0.0):
            raise ValueError(f"a ratio must be above 0, not {ratio}")
        return Measured(self.samples + 1, self.log_sum + log(ratio))


def shrunk(prior: float, measured: Measured) -> float:
    """The ratio to expect; prior > 0."""
    return exp((PRIOR_SAMPLES * log(prior) + measured.log_sum) / (PRIOR_SAMPLES + measured.samples))
