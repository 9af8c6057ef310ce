"""Ranking by expected benefit per GPU-hour, with calibrated predictions and age. Imports calibration and ranked.

    rank = GPUs x effective time left / (1 + (time since submission / age)^3)       less is better

The effective time left comes from learn.calibration, which learns how good the predictions are from the jobs that have
ended so far. The age term bounds the tail: after `age_s` a job counts twice as much, after twice that nine times. A
running job counts somewhat more than its rank says, so that nobody is stopped for next to nothing.

One thing to know: this is the preemptive half of the Impact Factor's order, and it never looks into the future. What
may not be stopped is planned by core.greedy and solve.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gpuq.learn.calibration import Calibration
from gpuq.sim.policies.ranked import let_run
from gpuq.sim.world import SimJob, World

AGE_S: Final = 300 * 3600.0
AGE_POWER: Final = 3.0
KEEPING: Final = 1.3  # factor on the impact of a job that runs already


class Index:
    """The policy; age_s inf: no age term."""

    name = "index"

    def __init__(self, age_s: float = AGE_S) -> None:
        self._age_s = age_s
        self._calibration = Calibration()

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Learn from what has ended, then let the first by rank run."""
        for job in world.just_ended:
            self._calibration.add(job.estimate_s, job.done_s)
        for job in world.running.values():
            job.advance(world.now_s)
        active = [*world.running.values(), *world.waiting.values()]
        let_run(world, sorted(active, key=lambda job: (self._rank(job, world.now_s), job.order)))

    def _rank(self, job: SimJob, now_s: float) -> float:
        left_s = self._calibration.effective_left_s(job.estimate_s, job.done_s) / max(job.speeds)
        age = float(((now_s - job.submit_s) / self._age_s) ** AGE_POWER)
        keeping = KEEPING if job.placement is not None else 1.0
        return job.gpus * left_s / ((1.0 + age) * keeping)
