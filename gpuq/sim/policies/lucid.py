"""Lucid (Hu et al., ASPLOS 2023): nothing is stopped, light jobs share GPUs. Imports ranked, sharing and world.

Waiting jobs are taken by predicted GPU time, least first, passing over what does not fit. One that finds no free GPUs
joins a running job that has no partner, as many GPUs, at least half its predicted GPU time, and together with it a
weight of at most 2 (light 0, medium 1, heavy 2). Of several the one it slows least is taken.

One thing to know: Lucid's profiling run before the queue is left out, and GPU memory is taken to suffice for two.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gpuq.sim.policies.ordered import gpu_time_s
from gpuq.sim.policies.ranked import find_fastest
from gpuq.sim.sharing import weight_of
from gpuq.sim.world import SimJob, World

MOST_WEIGHT: Final = 2
MOST_RATIO: Final = 2.0  # of predicted GPU times, newcomer to host


class Lucid:
    """The policy; where sharing is off it is least predicted GPU time first."""

    name = "lucid"

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Start what fits, and let others share."""
        for job in sorted(world.waiting.values(), key=lambda job: (gpu_time_s(job), job.order)):
            placement = find_fastest(world.board, job) if any(world.board.left) else None
            if placement is not None:
                world.start(job, placement)
            elif world.sharing:
                host = self._host(world, job)
                if host is not None and host.placement is not None:
                    world.start(job, host.placement, partner=host)

    def _host(self, world: World, job: SimJob) -> SimJob | None:
        fitting = [
            host
            for host in world.running.values()
            if host.partner is None
            and host.gpus == job.gpus
            and job.speeds[host.type] > 0
            and weight_of(host.utilisation) + weight_of(job.utilisation) <= MOST_WEIGHT
            and gpu_time_s(job) <= MOST_RATIO * gpu_time_s(host)
        ]
        return min(fitting, key=lambda host: (host.utilisation, host.order), default=None)
