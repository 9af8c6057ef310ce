"""EASY backfilling, as Slurm's and Maui's users know it. Imports ranked and world.

The head of the queue gets a promise: the earliest time at which it fits, node by node, if every running job ends when
its estimate says. Others may start now if they end before that time or leave the head its room.

    easy            first come first served, estimates by the jobs' owners
    easy_perfect    the same with true run times
    easypp          first come first served at the head, predictions instead of estimates, shortest first behind it
                    (Tsafrir, Etsion, Feitelson: Backfilling using system-generated predictions, TPDS 2007)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from gpuq.sim.cluster import Board, Placement
from gpuq.sim.policies.ranked import find_fastest, types_by_speed
from gpuq.sim.world import SimJob, World

OUTLIVED_FACTOR = 1.5  # growth of an estimate that a running job has outlived


class _Promise(NamedTuple):
    start_s: float
    board: Board  # free GPUs at that time, the jobs of now still on theirs until they end
    type: int


class Easy:
    """EASY with a choice of estimate [work s] and of the order behind the head."""

    def __init__(
        self, name: str, estimate_s: Callable[[SimJob], float], behind: Callable[[SimJob], float] | None = None
    ) -> None:
        self.name = name
        self._estimate_s = estimate_s
        self._behind = behind

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Start the head while it fits, then backfill behind its promise."""
        queue = list(world.waiting.values())
        while queue:
            placement = find_fastest(world.board, queue[0])
            if placement is None:
                break
            world.start(queue.pop(0), placement)
        if len(queue) < 2 or not any(world.board.left):
            return
        head, rest = queue[0], queue[1:]
        if self._behind is not None:
            behind = self._behind
            rest.sort(key=lambda job: (behind(job), job.order))
        promise = self._promise(world, head)
        for job in rest:
            if not any(world.board.left):
                return
            placement = find_fastest(world.board, job)
            if placement is not None:
                self._backfill(world, head, promise, job, placement)

    def _backfill(
        self, world: World, head: SimJob, promise: _Promise, job: SimJob, placement: Placement
    ) -> None:
        type_ = world.cluster.node_types[placement[0][0]]
        if world.now_s + self._estimate_s(job) / job.speeds[type_] > promise.start_s:
            if not promise.board.fits(placement):
                return
            promise.board.take(placement)
            if promise.board.find(head.gpus, promise.type) is None:
                promise.board.give(placement)
                return
        world.start(job, placement)

    def _promise(self, world: World, head: SimJob) -> _Promise:
        board = world.board.copy()
        ends = sorted((self._expected_end_s(world, job), order) for order, job in world.running.items())
        types = types_by_speed(head)
        for end_s, order in ends:
            placement = world.running[order].placement
            assert placement is not None
            board.give(placement)
            for type_ in types:
                if board.find(head.gpus, type_) is not None:
                    return _Promise(end_s, board, type_)
        raise AssertionError(f"job {head.id} does not fit on the empty cluster")

    def _expected_end_s(self, world: World, job: SimJob) -> float:
        run_s = self._estimate_s(job) / job.speed
        while job.ran_since_s + run_s <= world.now_s:
            run_s *= OUTLIVED_FACTOR
        return job.ran_since_s + run_s
