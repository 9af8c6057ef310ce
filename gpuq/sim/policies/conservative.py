"""Conservative backfilling: every waiting job has a reservation. Imports ranked, cluster and world.

A job that arrives is given the earliest slot that delays no earlier reservation. When a job ends, each reservation in
order of submission is moved as early as it goes (compression); its own old slot is always among the choices, so nobody
is moved back. Estimates are the owners', as for EASY; one that is outlived grows by half, and all slots are found anew.

One thing to know: only the first `depth` waiting jobs have reservations, for speed. Those behind them start at once
when that delays no reservation, and wait without one otherwise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, NamedTuple

from gpuq.sim.cluster import Board, Cluster, Placement
from gpuq.sim.policies.ranked import types_by_speed
from gpuq.sim.world import SimJob, World

DEPTH: Final = 16  # waiting jobs with a reservation
OUTLIVED_FACTOR: Final = 1.5


class Slot(NamedTuple):
    """GPUs of one job from one time to another."""

    start_s: float
    end_s: float
    placement: Placement


class Timetable:
    """Free GPUs per node over time, in segments; the last one lasts for ever."""

    def __init__(self, cluster: Cluster, now_s: float) -> None:
        self._starts_s = [now_s]
        self._free = [list(cluster.node_gpus)]
        self._room: list[list[tuple[int, int]] | None] = [None]  # per segment, see _room_at; None: to be counted
        self._scratch = Board(cluster)
        self._most = [max(cluster.node_gpus[node] for node in nodes) for nodes in self._scratch.by_type]

    def advance(self, now_s: float) -> None:
        """Forget what lies before now, and join segments that are alike."""
        first = bisect_right(self._starts_s, now_s) - 1
        starts_s, all_free, room = [now_s], [self._free[first]], [self._room[first]]
        for at in range(first + 1, len(self._starts_s)):
            if self._free[at] != all_free[-1]:
                starts_s.append(self._starts_s[at])
                all_free.append(self._free[at])
                room.append(self._room[at])
        self._starts_s, self._free, self._room = starts_s, all_free, room

    def take(self, slot: Slot, sign: int = -1) -> None:
        """These GPUs are no longer free in the slot; sign 1 gives them back."""
        first, last = self._cut(slot.start_s), self._cut(slot.end_s)
        for free in self._free[first:last]:
            for node, count in slot.placement:
                free[node] += sign * count
        self._room[first:last] = [None] * (last - first)

    def has_room_now(self) -> bool:
        """Whether any GPU is free in the first segment."""
        return any(self._free[0])

    def earliest(self, gpus: int, run_s: dict[int, float], before_s: float) -> Slot | None:
        """The first slot that begins before `before_s`; run_s: GPU type -> how long it would be, best type first."""
        for at, start_s in enumerate(self._starts_s):
            if start_s >= before_s:
                return None
            room = self._room[at] or self._room_at(at)
            for type_, long_s in run_s.items():
                most, total = room[type_]
                if total < gpus or (most < gpus <= self._most[type_]):
                    continue
                placement = self._fits(at, gpus, type_, start_s + long_s)
                if placement is not None:
                    return Slot(start_s, start_s + long_s, placement)
        return None

    def _room_at(self, at: int) -> list[tuple[int, int]]:
        """Of each GPU type the most that are free on one node in this segment, and on all."""
        free, by_type = self._free[at], self._scratch.by_type
        found = [(max(of_type), sum(of_type)) for of_type in ([free[node] for node in nodes] for nodes in by_type)]
        self._room[at] = found
        return found

    def _fits(self, at: int, gpus: int, type_: int, end_s: float) -> Placement | None:
        """A place that is free from segment `at` to `end_s`."""
        nodes = self._scratch.by_type[type_]
        free = [self._free[at][node] for node in nodes]
        on_one_node = gpus <= self._most[type_]
        if not on_one_node and self._find(free, gpus, type_) is None:
            return None
        for later in self._free[at + 1 : bisect_right(self._starts_s, end_s - 1e-9)]:
            free = [here if here < later[node] else later[node] for here, node in zip(free, nodes, strict=True)]
            # GPUs only become fewer from here to the end of the slot: what does not fit now never will.
            if (max(free) if on_one_node else sum(free)) < gpus:
                return None
        return self._find(free, gpus, type_)

    def _find(self, free: list[int], gpus: int, type_: int) -> Placement | None:
        """A place on nodes of the type, of which these GPUs are free."""
        board = self._scratch
        for node, count in zip(board.by_type[type_], free, strict=True):
            board.free[node] = count
        board.left[type_] = sum(free)
        return board.find(gpus, type_)

    def _cut(self, time_s: float) -> int:
        """The segment that starts at this time, made if there is none."""
        at = bisect_right(self._starts_s, time_s)
        if at and self._starts_s[at - 1] == time_s:
            return at - 1
        if time_s == inf or at == 0:
            return at
        self._starts_s.insert(at, time_s)
        self._free.insert(at, self._free[at - 1].copy())
        self._room.insert(at, self._room[at - 1])
        return at


class Conservative:
    """Conservative backfilling with a choice of estimate [work s]."""

    def __init__(self, name: str, estimate_s: Callable[[SimJob], float], depth: int = DEPTH) -> None:
        self.name = name
        self._estimate_s = estimate_s
        self._depth = depth
        self._timetable: Timetable | None = None
        self._run_s: dict[int, dict[int, float]] = {}  # of each job on each of its GPU types, by the estimate
        self._runs: dict[int, Slot] = {}  # of running jobs
        self._reserved: dict[int, Slot] = {}  # of waiting jobs, in order of submission

    def wake_s(self, world: World) -> float:
        """When the next reservation begins."""
        return min((slot.start_s for slot in self._reserved.values()), default=inf)

    def schedule(self, world: World) -> None:
        """Bring the reservations up to date, then start those whose time has come."""
        if self._timetable is None or self._outlived(world):
            self._timetable = self._renew(world)
        table = self._timetable
        table.advance(world.now_s)
        for job in world.just_ended:
            slot = self._runs.pop(job.order, None)
            if slot is not None and slot.end_s > world.now_s:
                table.take(slot._replace(start_s=world.now_s), 1)
        if world.just_ended:
            self._compress(world, table)
        self._reserve(world, table)
        self._fill(world, table)
        for order, slot in list(self._reserved.items()):
            if slot.start_s <= world.now_s:
                self._runs[order] = self._reserved.pop(order)
                world.start(world.waiting[order], slot.placement)

    def _outlived(self, world: World) -> bool:
        """Whether a running job holds GPUs beyond its slot."""
        return any(self._runs[order].end_s <= world.now_s for order in world.running)

    def _renew(self, world: World) -> Timetable:
        """From what runs alone, with the estimates that were outlived made longer."""
        table = Timetable(world.cluster, world.now_s)
        self._reserved = {}
        ended = {job.order for job in world.just_ended}
        self._runs = {order: slot for order, slot in self._runs.items() if order not in ended}
        for order, job in world.running.items():
            slot = self._runs[order]
            while slot.end_s <= world.now_s:
                slot = slot._replace(end_s=job.ran_since_s + (slot.end_s - job.ran_since_s) * OUTLIVED_FACTOR)
            self._runs[order] = slot
            table.take(slot._replace(start_s=world.now_s))
        return table

    def _compress(self, world: World, table: Timetable) -> None:
        for order, slot in self._reserved.items():
            table.take(slot, 1)
            earlier = self._find(table, world.waiting[order], slot.start_s)
            self._reserved[order] = earlier or slot
            table.take(earlier or slot)

    def _reserve(self, world: World, table: Timetable) -> None:
        """A slot for each of the first waiting jobs that has none."""
        for order, job in self._first_waiting(world):
            slot = self._find(table, job, inf)
            assert slot is not None, f"job {job.id} does not fit on the empty cluster"
            table.take(slot)
            self._reserved[order] = slot

    def _fill(self, world: World, table: Timetable) -> None:
        """Those without a reservation that can start at once."""
        for order, job in world.waiting.items():
            if not table.has_room_now():
                return
            if order not in self._reserved:
                slot = self._find(table, job, world.now_s + 1e-6)
                if slot is not None:
                    table.take(slot)
                    self._reserved[order] = slot

    def _first_waiting(self, world: World) -> Iterable[tuple[int, SimJob]]:
        room = self._depth - len(self._reserved)
        without = ((order, job) for order, job in world.waiting.items() if order not in self._reserved)
        return [pair for _, pair in zip(range(room), without, strict=False)]

    def _find(self, table: Timetable, job: SimJob, before_s: float) -> Slot | None:
        run_s = self._run_s.get(job.order)
        if run_s is None:
            estimate_s = self._estimate_s(job)
            run_s = {type_: estimate_s / job.speeds[type_] for type_ in types_by_speed(job)}
            self._run_s[job.order] = run_s
        return table.earliest(job.gpus, run_s, before_s)
