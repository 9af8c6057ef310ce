"""Policies that only order the queue and never stop a job. Imports ranked and world.

    fifo            strict: the head of the queue blocks
    fifo_firstfit   in order of submission, passing over what does not fit
    sjf             predicted run time, least first, passing over what does not fit
    saf             predicted GPU time, least first, passing over what does not fit
    qssf            predicted GPU time, least first, the head blocks (Helios)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gpuq.sim.policies.ranked import find_fastest
from gpuq.sim.world import SimJob, World


class Ordered:
    """Starts waiting jobs in the order of `rank`; `strict`: the first that does not fit blocks the rest."""

    def __init__(self, name: str, rank: Callable[[SimJob], float], strict: bool = False) -> None:
        self.name = name
        self._rank = rank
        self._strict = strict

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Start what fits."""
        rank = self._rank
        for job in sorted(world.waiting.values(), key=lambda job: (rank(job), job.order)):
            if not any(world.board.left):
                return
            placement = find_fastest(world.board, job)
            if placement is not None:
                world.start(job, placement)
            elif self._strict:
                return


def submitted_s(job: SimJob) -> float:
    """Order of submission."""
    return job.submit_s


def run_s(job: SimJob) -> float:
    """Predicted run time on the fastest GPUs [s]."""
    return job.estimate_s / max(job.speeds)


def gpu_time_s(job: SimJob) -> float:
    """Predicted GPU time on the fastest GPUs [s]."""
    return job.gpus * job.estimate_s / max(job.speeds)
