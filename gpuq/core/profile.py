"""When which GPUs, CPUs and array places are free, as a plan grows. Imports problem.

A GPU has a tail (free from then on for good) and holes (free between two promises). A Pool is a set of GPUs any of
which can serve a request; it keeps its tails in order, so that the usual question costs one look.

One thing to know: `informed` goes with every gap. A gap that opens when a guess comes true is itself a guess.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import NamedTuple

from gpuq.core.problem import ArrayRoom, CapRoom, Machine, Problem, Site


class Hole(NamedTuple):
    """A GPU's free time between two promises."""

    start_s: float
    end_s: float
    slot: int
    informed: bool


class Pool:
    """GPUs any of which can serve a request, in the order in which they become free for good."""

    __slots__ = ("first_s", "holes", "ranked", "slots", "stale", "tails", "widest_s")

    def __init__(self, slots: tuple[int, ...]) -> None:
        self.slots = slots
        self.stale = True
        self.ranked: list[int] = []  # slots by tail
        self.tails: list[float] = []  # their tails, ascending
        self.holes: list[Hole] = []
        self.widest_s = 0.0  # length of the longest hole
        self.first_s = inf  # when the first of them is free, if only for a while


class GpuProfile:
    """The free time of every GPU of a problem."""

    def __init__(self, problem: Problem) -> None:
        self._tails = [slot.free_at_s for slot in problem.slots]
        self._informed = [slot.informed for slot in problem.slots]
        self._holes: dict[int, list[Hole]] = {}
        self._pools: dict[tuple[int, ...], Pool] = {}
        self._pools_of_sites: dict[int, list[Pool]] = {}
        self._pools_of: list[list[Pool]] = [[] for _ in problem.slots]
        self.free_now = sum(1 for tail in self._tails if tail == 0.0)

    def pool(self, slots: tuple[int, ...]) -> Pool:
        """The pool of these GPUs, up to date."""
        pool = self._pools.get(slots)
        if pool is None:
            pool = self._pools[slots] = Pool(slots)
            for slot in slots:
                self._pools_of[slot].append(pool)
        if pool.stale:
            self._refresh(pool)
        return pool

    def pools(self, sites: tuple[Site, ...]) -> list[Pool]:
        """The pools of sites that offer GPUs, in their order, up to date."""
        # Known by the tuple's identity: queues that ask for the same share it, and hashing it would cost more.
        found = self._pools_of_sites.get(id(sites))
        if found is None:
            found = self._pools_of_sites[id(sites)] = [self.pool(site.slots) for site in sites]
        for pool in found:
            if pool.stale:
                self._refresh(pool)
        return found

    def _refresh(self, pool: Pool) -> None:
        pool.ranked = sorted(pool.slots, key=self._tails.__getitem__)
        pool.tails = [self._tails[slot] for slot in pool.ranked]
        pool.first_s = pool.tails[0]
        pool.holes = sorted(hole for slot in pool.slots if slot in self._holes for hole in self._holes[slot])
        pool.widest_s = max((hole.end_s - hole.start_s for hole in pool.holes), default=0.0)
        if pool.holes and pool.holes[0].start_s < pool.first_s:
            pool.first_s = pool.holes[0].start_s
        pool.stale = False

    def earliest_s(self, pool: Pool, count: int, run_s: float, after_s: float) -> float:
        """The first time from after_s at which `count` GPUs of the pool are free together for run_s."""
        surely_s = pool.tails[count - 1]
        if surely_s < after_s:
            surely_s = after_s
        if run_s > pool.widest_s or surely_s == after_s:
            return surely_s
        fitting = [
            hole for hole in pool.holes if (hole[0] if hole[0] > after_s else after_s) + run_s <= hole[1]
        ]
        if not fitting:
            return surely_s
        times = {max(hole.start_s, after_s) for hole in fitting}
        times.update(max(tail, after_s) for tail in pool.tails[: count - 1])
        for time_s in sorted(times):
            if time_s >= surely_s:
                break
            open_ = sum(1 for hole in fitting if hole.start_s <= time_s and _fits(hole, time_s, run_s))
            if open_ + bisect_right(pool.tails, time_s) >= count:
                return time_s
        return surely_s

    def open_at(self, pool: Pool, start_s: float, run_s: float) -> tuple[list[int], list[int]]:
        """GPUs free from start_s for run_s: those with a hole, tightest first, and those with a tail, latest first."""
        holes = [hole for hole in pool.holes if hole.start_s <= start_s and _fits(hole, start_s, run_s)]
        holes.sort(key=lambda hole: (hole.end_s, hole.slot))
        number = bisect_right(pool.tails, start_s)
        tails = sorted(pool.ranked[:number])
        tails.sort(key=self._tails.__getitem__, reverse=True)  # among equal ones the order of the slots stays
        return [hole.slot for hole in holes], tails

    def whole_machines(self, spans: tuple[tuple[int, ...], ...], count: int, after_s: float) -> tuple[float, list[int]]:
        """When machines with `count` GPUs together are free for good, and those GPUs; holes are left to others."""
        free = sorted((max(self._tails[slot] for slot in slots), -len(slots), slots) for slots in spans)
        taken: list[int] = []
        for tail_s, _, slots in free:
            taken += slots
            if len(taken) >= count:
                return max(tail_s, after_s), taken[:count]
        return inf, []

    def is_informed(self, slots: list[int], start_s: float) -> bool:
        """Whether the gaps these GPUs offer at start_s open by prediction and not by a guess; now is no guess."""
        return start_s == 0.0 or all(self._gap_informed(slot, start_s) for slot in slots)

    def _gap_informed(self, slot: int, start_s: float) -> bool:
        if start_s >= self._tails[slot]:
            return self._informed[slot]
        return any(
            hole.informed for hole in self._holes.get(slot, ()) if hole.start_s <= start_s < hole.end_s
        )

    def take(self, slots: list[int], start_s: float, end_s: float, informed: bool) -> None:
        """Promise these GPUs from start_s to end_s."""
        for slot in slots:
            if start_s >= self._tails[slot]:
                if start_s > self._tails[slot]:
                    hole = Hole(self._tails[slot], start_s, slot, self._informed[slot])
                    self._holes.setdefault(slot, []).append(hole)
                self._tails[slot], self._informed[slot] = end_s, informed
            else:
                self._split(slot, start_s, end_s, informed)
            for pool in self._pools_of[slot]:
                pool.stale = True
        if start_s == 0.0:
            self.free_now -= len(slots)

    def _split(self, slot: int, start_s: float, end_s: float, informed: bool) -> None:
        left: list[Hole] = []
        for hole in self._holes[slot]:
            if not hole.start_s <= start_s < hole.end_s:
                left.append(hole)
                continue
            if start_s > hole.start_s:
                left.append(Hole(hole.start_s, start_s, slot, hole.informed))
            if end_s < hole.end_s:
                left.append(Hole(end_s, hole.end_s, slot, informed))
        self._holes[slot] = left


def _fits(hole: Hole, start_s: float, run_s: float) -> bool:
    return start_s + run_s <= hole.end_s


class MachineProfile:
    """The CPUs and memory of one machine over time. Only jobs that ask for some are counted."""

    def __init__(self, machine: Machine) -> None:
        self.cpus = machine.cpus
        self.memory_mib = machine.memory_mib
        self.attempts = machine.attempts
        self._loads = [(0.0, each.end_s, each.cpus, each.memory_mib) for each in machine.promises]

    def blocked_until_s(self, start_s: float, run_s: float, cpus: int, memory_mib: int) -> float | None:
        """None when it can give that much from start_s for run_s; else the next time worth a try (inf: none)."""
        end_s = start_s + run_s
        overlapping = [load for load in self._loads if load[0] < end_s and load[1] > start_s]
        moments = [start_s, *(load[0] for load in overlapping if load[0] > start_s)]
        for moment_s in moments:
            active = [load for load in overlapping if load[0] <= moment_s < load[1]]
            used_cpus = sum(load[2] for load in active)
            used_mib = sum(load[3] for load in active)
            if used_cpus + cpus > self.cpus or used_mib + memory_mib > self.memory_mib:
                return min((load[1] for load in overlapping), default=inf)
        return None

    def take(self, start_s: float, end_s: float, cpus: int, memory_mib: int) -> None:
        """Promise that much from start_s to end_s."""
        if cpus or memory_mib:
            self._loads.append((start_s, end_s, cpus, memory_mib))
        self.attempts += 1


class ArrayProfile:
    """The places of an array that may run so many tasks at once."""

    def __init__(self, room: ArrayRoom) -> None:
        self._limit = room.limit
        self._ends_s = sorted(room.ends_s)

    def free_from_s(self) -> float:
        """From when on a further task may run, counting every promised one until its end."""
        if len(self._ends_s) < self._limit:
            return 0.0
        return self._ends_s[-self._limit]

    def take(self, end_s: float) -> None:
        """One more task until end_s."""
        self._ends_s.append(end_s)
        self._ends_s.sort()


class CapProfile:
    """The GPUs that the jobs under one cap hold over time."""

    def __init__(self, room: CapRoom) -> None:
        self._max_gpus = room.max_gpus
        self._loads = [(0.0, end_s, gpus) for end_s, gpus in room.held]

    def blocked_until_s(self, start_s: float, run_s: float, gpus: int) -> float | None:
        """None when so many more fit from start_s for run_s; else the next time worth a try (inf: none)."""
        end_s = start_s + run_s
        overlapping = [load for load in self._loads if load[0] < end_s and load[1] > start_s]
        for moment_s in (start_s, *(load[0] for load in overlapping if load[0] > start_s)):
            if sum(load[2] for load in overlapping if load[0] <= moment_s < load[1]) + gpus > self._max_gpus:
                return min((load[1] for load in overlapping), default=inf)
        return None

    def take(self, start_s: float, end_s: float, gpus: int) -> None:
        """Promise so many from start_s to end_s."""
        self._loads.append((start_s, end_s, gpus))
