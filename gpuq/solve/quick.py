"""The worth of an order of jobs, without the plan: what a search asks thousands of times. Imports core and gaps.

The same rules as core.greedy.plan_directed, to the last tie, for problems in which jobs ask for GPUs of one machine and
nothing else that runs out: the ends are equal, and so is their sum. What a GPU's promises leave free is kept per pool
and never changed in place, so that the places of the jobs ahead of a change in the order are used again.

One thing to know: whatever a search finds here is planned by the list planner in the end, and proved there. A
difference between the two would cost a gain and never a sound plan; tests/solve/test_quick.py holds them together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from gpuq.core import topology
from gpuq.core.greedy import Directed
from gpuq.core.problem import Problem, Queue
from gpuq.solve.gaps import Choice, Free, Place, is_informed, search, taken_from

_State = tuple[list[Free], float]  # the pools after some jobs, and the sum of weight x end of those


def covers(problem: Problem) -> bool:
    """Whether `Quick` knows all that matters in the problem."""
    if problem.arrays or problem.caps or problem.waiting > problem.window:
        return False
    if problem.weights.energy or problem.weights.fragmentation:
        return False
    pool_of: dict[int, tuple[int, ...]] = {}
    for queue in problem.queues:
        asked = queue.shape.resources
        if not queue.gpus or asked.cpus or asked.memory_mib or queue.release_s > 0.0:
            return False
        if queue.count > len(queue.heads):
            return False
        for site in queue.sites:
            if site.spans or any(pool_of.setdefault(slot, site.slots) != site.slots for slot in site.slots):
                return False
    return all(list(slots) == sorted(slots) for slots in pool_of.values())


class Quick:
    """The sum of weight x end for orders of the same jobs; ask `covers` first."""

    def __init__(self, problem: Problem, first: Sequence[Directed]) -> None:
        """first: the jobs whose order will be changed, as often as each is in it."""
        self._problem = problem
        self._worth_waiting = problem.weights.worth_waiting
        self._picks: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._sites: dict[tuple[int, frozenset[int] | None], list[Place]] = {}
        pools = list(dict.fromkeys(site.slots for queue in problem.queues for site in queue.sites))
        self._numbers = {slots: number for number, slots in enumerate(pools)}
        self._informed = all(slot.informed for slot in problem.slots) and all(
            queue.prediction.informed for queue in problem.queues
        )
        self._weights = [[queue.weight(position) for position in range(len(queue.heads))] for queue in problem.queues]
        self._rest = self._order_behind(first)
        self._order: list[Directed] = []
        self._states: list[_State] = [([self._at_first(slots) for slots in pools], 0.0)]
        self._total = inf
        self._tried = (self._order, self._states, self._total)
        self.worth(first)
        self.keep()

    def worth(self, order: Sequence[Directed]) -> float:
        """Sum of weight x time to the end [weighted s] when the list planner takes the jobs in this order first."""
        same, until = self._difference(order)
        taken: dict[int, int] = {}
        for each in order[:same]:
            taken[each.queue] = taken.get(each.queue, 0) + 1
        states = self._states[: same + 1]
        pools, total = states[-1]
        for at in range(same, len(order)):
            if at >= until and pools == self._states[at][0]:
                return self._as_before(order, states, at)
            each = order[at]
            position = taken.get(each.queue, 0)
            taken[each.queue] = position + 1
            pools = pools.copy()
            total += self._weights[each.queue][position] * self._settle(pools, each.queue, each.sites)
            states.append((pools, total))
        pools = pools.copy()
        for number, position in self._rest:
            total += self._weights[number][position] * self._settle(pools, number, None)
        self._tried = (list(order), states, total)
        return total

    def keep(self) -> None:
        """The order asked for last is the one that the next ones are changes of."""
        self._order, self._states, self._total = self._tried

    def _difference(self, order: Sequence[Directed]) -> tuple[int, int]:
        """Between which places the order differs from the one kept."""
        most = len(self._order)
        if most != len(order):
            return 0, len(order)
        first, last = 0, most
        while first < most and order[first] is self._order[first]:
            first += 1
        while last > first and order[last - 1] is self._order[last - 1]:
            last -= 1
        return first, last

    def _as_before(self, order: Sequence[Directed], states: list[_State], at: int) -> float:
        """From here on every job has its place in the order kept."""
        gained = self._states[at][1] - states[-1][1]
        states += [(pools, total - gained) for pools, total in self._states[at + 1 :]]
        self._tried = (list(order), states, self._total - gained)
        return self._total - gained

    def _at_first(self, slots: tuple[int, ...]) -> Free:
        known = self._problem.slots
        ranked = sorted(slots, key=lambda slot: known[slot].free_at_s)
        tails = [known[slot].free_at_s for slot in ranked]
        return Free(tails, ranked, frozenset(slot for slot in slots if known[slot].informed), [], 0.0, tails[0])

    def _order_behind(self, first: Sequence[Directed]) -> list[tuple[int, int]]:
        """The other jobs, as (queue, position), in the order of impact."""
        heads = [0] * len(self._problem.queues)
        for each in first:
            heads[each.queue] += 1
        entries = [self._entry(number, position) for number, position in enumerate(heads)]
        left = [entry for entry in entries if entry is not None]
        heapify(left)
        found: list[tuple[int, int]] = []
        while left:
            _, _, number, position = heappop(left)
            found.append((number, position))
            behind = self._entry(number, position + 1)
            if behind is not None:
                heappush(left, behind)
        return found

    def _entry(self, number: int, position: int) -> tuple[float, int, int, int] | None:
        queue = self._problem.queues[number]
        if not queue.sites or position >= len(queue.heads):
            return None
        value = queue.impact(position, queue.best_run_s, self._problem.weights)
        return -value, queue.heads[position].order, number, position

    def _sites_of(self, number: int, chosen: frozenset[int] | None) -> list[Place]:
        known = self._sites.get((number, chosen))
        if known is None:
            queue: Queue = self._problem.queues[number]
            known = self._sites[number, chosen] = [
                Place(
                    self._numbers[site.slots], queue.prediction.on(site.speed), -site.speed, len(site.slots),
                    site.memory_mib, position,
                )
                for position, site in enumerate(queue.sites)
                if chosen is None or position in chosen
            ]  # fmt: skip
        return known

    def _settle(self, pools: list[Free], number: int, chosen: frozenset[int] | None) -> float:
        """Give the next job of the queue its place in `pools`; its end [s from now]."""
        queue = self._problem.queues[number]
        best, now = search(pools, self._sites_of(number, chosen), queue.gpus)
        assert best is not None
        if best[1] > 0.0:
            if chosen is not None and not self._informed:
                _, now = search(pools, self._sites_of(number, None), queue.gpus)
            if now is not None and not self._is_worth_it(pools, queue, best, now, chosen is not None):
                best = now
        end_s, start_s, _, _, _, _, site = best
        free = pools[site.pool]
        slots = self._pick(free, queue.gpus, start_s, end_s)
        informed = self._informed or (queue.prediction.informed and is_informed(free, slots, start_s))
        pools[site.pool] = taken_from(free, slots, start_s, end_s, informed)
        return end_s

    def _is_worth_it(self, pools: list[Free], queue: Queue, best: Choice, now: Choice, directed: bool) -> bool:
        """Whether the job waits for its best GPUs though others are free now."""
        if not directed and best[0] > now[0] - self._worth_waiting * now[6].run_s:
            return False
        if self._informed:
            return True
        free = pools[best[6].pool]
        slots = self._pick(free, queue.gpus, best[1], best[0])
        return queue.prediction.informed and is_informed(free, slots, best[1])

    def _pick(self, free: Free, count: int, start_s: float, end_s: float) -> list[int]:
        holes: list[tuple[float, int]] = []
        if free.holes:
            last_s = start_s + (end_s - start_s)  # as the list planner rounds it
            holes = sorted((hole[1], hole[2]) for hole in free.holes if hole[0] <= start_s and last_s <= hole[1])
        number = bisect_right(free.tails, start_s)
        if start_s == 0.0 and not holes and number > count:
            return self._connected(tuple(sorted(free.ranked[:number])), count)
        found = [slot for _, slot in holes[:count]]
        if len(found) < count:
            behind = sorted(zip(free.tails[:number], free.ranked, strict=False), key=_latest_first)
            found += [slot for _, slot in behind[: count - len(found)]]
        return found

    def _connected(self, slots: tuple[int, ...], count: int) -> list[int]:
        known = self._picks.get((slots, count))
        if known is None:
            gpus = [self._problem.slots[slot].gpu for slot in slots]
            known = self._picks[slots, count] = [slots[at] for at in topology.choose(gpus, count)]
        return known


def _latest_first(tail: tuple[float, int]) -> tuple[float, int]:
    return -tail[0], tail[1]
