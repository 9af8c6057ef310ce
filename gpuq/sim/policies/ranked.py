"""Policies that rank all jobs and let the first run, stopping others for them. Imports world and cluster.

    srtf       predicted time left, least first
    srsf       predicted GPU time left, least first
    las2d      two-dimensional least attained service (Tiresias): queues by GPU time received, running jobs
               first and then first come inside

One thing to know: a job is stopped only when one of better rank finds no other room, the worst by rank first; one that
stays among the chosen keeps its GPUs unless a chosen job cannot be placed otherwise. A running job that may not be
stopped is chosen before all others, where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from gpuq.sim.cluster import Board, Placement
from gpuq.sim.world import SimJob, World, held_first

Rank = Callable[[SimJob], float]  # less is better
SLOWEST_SHARE: Final = 1 / 3  # of a job's best speed: slower GPUs are refused


class Ranked:
    """A preemptive policy given by the rank of a job."""

    def __init__(self, name: str, rank: Rank) -> None:
        self.name = name
        self._rank = rank

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Let the first by rank run."""
        for job in world.running.values():
            job.advance(world.now_s)
        rank = self._rank
        active = [*world.running.values(), *world.waiting.values()]
        ranked = sorted(active, key=lambda job: (rank(job), job.order))
        let_run(world, ranked)


def types_by_speed(job: SimJob) -> list[int]:
    """GPU types the job may use, fastest first, without those much slower than its best."""
    least = max(job.speeds) * SLOWEST_SHARE
    able = [type_ for type_, speed in enumerate(job.speeds) if speed > 0 and speed >= least]
    return sorted(able, key=lambda type_: -job.speeds[type_])


def find_fastest(board: Board, job: SimJob) -> Placement | None:
    """A place on the fastest type that has room."""
    for type_ in types_by_speed(job) if len(job.speeds) > 1 else (0,):
        placement = board.find(job.gpus, type_)
        if placement is not None:
            return placement
    return None


def let_run(world: World, ranked: Iterable[SimJob]) -> None:
    """Run the first jobs in this order as far as GPUs go; those that run and are not among them are stopped."""
    if not world.waiting:
        return
    ranked = held_first(ranked)
    chosen, trial = _choose(world, ranked)
    board = Board(world.cluster)
    for job in chosen:
        if job.placement is not None:
            board.take(job.placement)
    placed: dict[int, Placement] = {}
    for job in chosen:
        if job.placement is None:
            placement = find_fastest(board, job)
            if placement is None:
                placed = {}
                break
            board.take(placement)
            placed[job.order] = placement
    if any(job.placement is None for job in chosen) and not placed:
        placed = trial  # packing around those that stay fails: as in the trial, where some may move
    keep = {job.order for job in chosen if job.placement is not None and placed.get(job.order) in (None, job.placement)}
    for job in list(world.running.values()):
        if job.order not in keep:
            world.stop(job)
    for job in chosen:
        if job.order not in keep:
            world.start(job, placed[job.order])


def _choose(world: World, ranked: list[SimJob]) -> tuple[list[SimJob], dict[int, Placement]]:
    """The jobs to run, and one way to place them all."""
    trial = _Trial(world, ranked)
    chosen: list[SimJob] = []
    placed: dict[int, Placement] = {}
    left = world.cluster.gpus
    for job in ranked:
        if job.gpus > left:
            continue
        placement = trial.place(job)
        if placement is None:
            continue
        placed[job.order] = placement
        chosen.append(job)
        left -= job.gpus
        if left == 0:
            break
    return chosen, placed


class _Trial:
    """Running jobs hold their GPUs until one of better rank finds no other room; then the worst gives way first."""

    def __init__(self, world: World, ranked: list[SimJob]) -> None:
        self._board = world.board.copy()
        self._holding = {job.order: job for job in ranked if job.placement is not None}  # best rank first

    def place(self, job: SimJob) -> Placement | None:
        """Where the next job by rank goes: where it runs, or its fastest GPU type that can be had."""
        own = job.placement
        if own is not None:
            if self._holding.pop(job.order, None) is not None:
                return own
            if self._board.fits(own):
                self._board.take(own)
                return own
        for type_ in types_by_speed(job) if len(job.speeds) > 1 else (0,):
            found = self._board.find(job.gpus, type_) or self._clear(job.gpus, type_)
            if found is not None:
                self._board.take(found)
                return found
        return None

    def _clear(self, gpus: int, type_: int) -> Placement | None:
        """Let jobs go from this type, worst rank first, until that many GPUs fit; nobody goes when they never do."""
        gone: list[SimJob] = []
        for other in reversed(self._holding.values()):
            if other.type != type_:
                continue
            assert other.placement is not None
            self._board.give(other.placement)
            gone.append(other)
            found = self._board.find(gpus, type_)
            if found is not None:
                for each in gone:
                    del self._holding[each.order]
                return found
        for each in gone:
            assert each.placement is not None
            self._board.take(each.placement)
        return None


def time_left_s(job: SimJob) -> float:
    """Predicted time left on the fastest GPUs [s]."""
    return job.left_s() / max(job.speeds)


def gpu_time_left_s(job: SimJob) -> float:
    """Predicted GPU time left on the fastest GPUs [s]."""
    return job.gpus * job.left_s() / max(job.speeds)


class LeastAttained:
    """2D-LAS: the queue of a job is the number of limits its attained GPU time has passed."""

    name = "las2d"

    def __init__(self, limits_gpu_s: tuple[float, ...] = (3600.0, 36000.0)) -> None:
        self._limits = limits_gpu_s

    def _queue(self, job: SimJob) -> int:
        attained = job.attained_s * job.gpus
        return sum(1 for limit in self._limits if attained >= limit)

    def schedule(self, world: World) -> None:
        """Lower queues first; inside a queue running jobs, then those submitted first."""
        for job in world.running.values():
            job.advance(world.now_s)
        active = [*world.running.values(), *world.waiting.values()]
        ranked = sorted(active, key=self._order)
        let_run(world, ranked)

    def _order(self, job: SimJob) -> tuple[int, bool, int]:
        return self._queue(job), job.placement is None, job.order

    def wake_s(self, world: World) -> float:
        """When a running job passes a limit while others wait."""
        if not world.waiting:
            return inf
        soonest_s = inf
        for job in world.running.values():
            attained = (job.attained_s + world.now_s - job.updated_s) * job.gpus
            for limit in self._limits:
                if attained < limit:
                    soonest_s = min(soonest_s, world.now_s + (limit - attained) / job.gpus)
                    break
        return soonest_s
