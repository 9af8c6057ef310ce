"""2D-Gittins: the jobs most likely to end soon for the GPU time they have had. Imports ranked and world.

    index = max over d of  P(S - w <= d | S > w) / E[min(S - w, d) | S > w]          highest first (Tiresias)

w is a job's attained GPU time, S the GPU time of a job, distributed as that of the jobs that have ended so far. Both w
and w + d are taken from limits that double, so a job's index changes only when it passes a limit. Inside a level
running jobs go first, then those submitted first.

One thing to know: no prediction is used. Half a job per level, one in the first, is counted beforehand, by which the
index falls with attained service: before anything has ended this is least attained service.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Final

from gpuq.sim.policies.ranked import let_run
from gpuq.sim.world import SimJob, World

LIMITS_GPU_S: Final = tuple(600.0 * 2.0**step for step in range(26))  # up to six hundred GPU years
_PRIOR: Final = 0.5  # jobs per level


class GpuTimes:
    """GPU times of ended jobs by level, and the Gittins index of each level."""

    def __init__(self) -> None:
        self._floors = (0.0, *LIMITS_GPU_S)
        self._counts = [2 * _PRIOR, *[_PRIOR] * len(LIMITS_GPU_S)]
        self._sums = [2 * _PRIOR * LIMITS_GPU_S[0] / 2, *[_PRIOR * 1.5 * floor for floor in LIMITS_GPU_S]]
        self._known: dict[int, float] = {}

    def add(self, gpu_s: float) -> None:
        """A job has ended that took this GPU time."""
        level = level_of(gpu_s)
        self._counts[level] += 1.0
        self._sums[level] += gpu_s
        self._known.clear()

    def index(self, level: int) -> float:
        """Of a job that has just reached this level [1 / GPU s]."""
        known = self._known.get(level)
        if known is None:
            known = self._known[level] = self._index(level)
        return known

    def _index(self, level: int) -> float:
        floor = self._floors[level]
        beyond = sum(self._counts[level:])
        best = ended = spent_s = 0.0
        for at, limit in enumerate(self._floors[level + 1 :], level):
            ended += self._counts[at]
            spent_s += self._sums[at] - floor * self._counts[at]
            best = max(best, ended / (spent_s + (limit - floor) * (beyond - ended)))
        return best


def level_of(gpu_s: float) -> int:
    """How many limits have been passed."""
    return bisect_right(LIMITS_GPU_S, gpu_s)


class Gittins:
    """The policy."""

    name = "gittins2d"

    def __init__(self) -> None:
        self._times = GpuTimes()

    def schedule(self, world: World) -> None:
        """Learn from what has ended, then let the highest by index run."""
        for job in world.just_ended:
            self._times.add(job.attained_s * job.gpus)
        for job in world.running.values():
            job.advance(world.now_s)
        active = [*world.running.values(), *world.waiting.values()]
        let_run(world, sorted(active, key=self._order))

    def _order(self, job: SimJob) -> tuple[float, bool, int]:
        return -self._times.index(level_of(job.attained_s * job.gpus)), job.placement is None, job.order

    def wake_s(self, world: World) -> float:
        """When a running job passes a limit while others wait."""
        if not world.waiting:
            return inf
        soonest_s = inf
        for job in world.running.values():
            attained = (job.attained_s + world.now_s - job.updated_s) * job.gpus
            level = level_of(attained + 1e-6)
            if level < len(LIMITS_GPU_S):
                soonest_s = min(soonest_s, world.now_s + (LIMITS_GPU_S[level] - attained) / job.gpus)
        return soonest_s
