"""Predictions learnt from the jobs that have ended so far. Imports world.

A job is predicted, when it is submitted, the weighted median of the run times of the most specific history that holds
at least three jobs:

    the same user, name and GPUs;  the same user and name;  the same user;  everyone

A run time weighs half as much as one twenty jobs of that history later; at most the last 64 count. What its owner asked
for is an upper limit, and the prediction while nobody has ended. Digits in names are passed over, so that run12 and
run13 are one history; a job without a name goes by its model.

One thing to know: nothing else is looked at, so a trace without users and names gives everyone the same prediction.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable
from typing import Final

from gpuq.sim.world import SimJob

LEAST_JOBS: Final = 3
KEPT_JOBS: Final = 64
HALF_LIFE_JOBS: Final = 20
QUANTILE: Final = 0.5
SHORTEST_S: Final = 1.0
_DIGITS: Final = re.compile(r"\d+")


class Learnt:
    """The histories, and what follows from them."""

    def __init__(self) -> None:
        self._run_s: dict[Hashable, deque[float]] = {}

    def ended(self, job: SimJob) -> None:
        """Its work [s on the reference GPU] is known from now on."""
        for key in _keys(job):
            self._run_s.setdefault(key, deque(maxlen=KEPT_JOBS)).append(job.done_s)

    def estimate_s(self, job: SimJob) -> float:
        """The predicted work of a job that is submitted now [s on the reference GPU]."""
        for key in _keys(job):
            known = self._run_s.get(key, ())
            if len(known) >= LEAST_JOBS or (known and key == ()):
                return max(min(weighted_quantile(known, QUANTILE), job.limit_s), SHORTEST_S)
        return job.limit_s


def weighted_quantile(oldest_first: deque[float] | tuple[float, ...], share: float) -> float:
    """The least value at which `share` of the weight is reached; a value weighs 2^(-age / 20 values)."""
    last = len(oldest_first) - 1
    weighted = sorted((value, 0.5 ** ((last - at) / HALF_LIFE_JOBS)) for at, value in enumerate(oldest_first))
    left = share * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        left -= weight
        if left <= 0:
            return value
    return weighted[-1][0]


def _keys(job: SimJob) -> tuple[Hashable, ...]:
    name = _DIGITS.sub("", job.name) or job.model
    named = ((job.user, name, job.gpus), (job.user, name)) if name else ()
    return (*named, *(((job.user,),) if job.user else ()), ())
