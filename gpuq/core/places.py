"""Where one waiting job could run, and the best place for it. Imports problem, profile, costs, topology.

A Choice is a site and the first time at which the job finds room there. The best ends first, costs included; GPUs that
are free now are left idle for it only when nothing about that is a guess (core.greedy).

One thing to know: a Search reads the profiles of a plan as it grows. It promises nothing itself: `gpus` and `machines`
are changed by the pass that owns them.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import NamedTuple

from gpuq.core import costs, topology
from gpuq.core.problem import Problem, Queue, Site
from gpuq.core.profile import CapProfile, GpuProfile, MachineProfile, Pool


class Choice(NamedTuple):
    """Where a job could run; the least is the best. The order of the fields is the order of preference."""

    worth_end_s: float  # the end, and what the costs count as
    start_s: float
    slowness: float  # negative speed
    left_over: int  # free GPUs of the site that it would not use
    load: float  # attempts per CPU of the machine, for jobs without GPUs
    memory_mib: int
    position: int  # of the site among the queue's
    site: Site
    run_s: float

    @property
    def end_s(self) -> float:
        """When it would end."""
        return self.start_s + self.run_s


class Search:
    """Finds places for one job after the other, in a plan as it grows."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.gpus = GpuProfile(problem)
        self.machines = [MachineProfile(machine) for machine in problem.machines]
        self.caps = [CapProfile(room) for room in problem.caps]
        self.stranding = costs.Stranding(problem)
        self.priced = bool(problem.weights.energy) or self.stranding.counts
        self.position = 0  # of the job in its queue that is being placed

    def best(self, queue: Queue, after_s: float) -> tuple[Choice | None, Choice | None]:
        """The site to take, and the one free now that is passed over for it."""
        best, now = self._search(queue, after_s)
        if best is None or now is None or best is now:
            return best, None
        return (best, now) if self._may_wait(queue, best, now) else (now, None)

    def best_of(self, queue: Queue, after_s: float, sites: frozenset[int]) -> tuple[Choice | None, Choice | None]:
        """The same where a solver chose the sites. It has weighed what waiting saves, but not what is a guess."""
        best, now = self._search(queue, after_s, sites)
        if best is None:
            return self.best(queue, after_s)
        if best.start_s == 0.0:
            return now, None
        _, now = self._search(queue, after_s)
        if now is None:
            return best, None
        return (best, now) if self._is_no_guess(queue, best) else (now, None)

    def _search(
        self, queue: Queue, after_s: float, sites: frozenset[int] | None = None
    ) -> tuple[Choice | None, Choice | None]:
        """Where it would finish first, and where of the sites free now."""
        now: Choice | None = None
        best: Choice | None = None
        asks_more = bool(queue.caps or queue.shape.resources.cpus or queue.shape.resources.memory_mib)
        count, prediction = queue.gpus, queue.prediction
        pools = self.gpus.pools(queue.sites) if count else [None] * len(queue.sites)
        speed, run_s = 0.0, prediction.on(0.0)
        worth_s = now_worth_s = run_s
        for position, (site, pool) in enumerate(zip(queue.sites, pools, strict=True)):
            if sites is not None and position not in sites:
                continue
            if site.speed != speed:
                speed = site.speed
                run_s = worth_s = now_worth_s = prediction.on(speed)
            if self.priced:
                worth_s, now_worth_s = self._worths_s(queue, site, run_s)
            if pool is not None:
                first_s = pool.first_s if pool.first_s > after_s else after_s
                rival = now if first_s == 0.0 else best
                # worth_s is the lesser of the two: it may turn out that the job could not start at first_s.
                if rival is not None and first_s + worth_s > rival.worth_end_s:
                    continue
            if pool is None or asks_more or site.spans:
                start_s = self._earliest_s(queue, site, run_s, after_s)
            else:
                start_s = self.gpus.earliest_s(pool, count, run_s, after_s)
            rival = now if start_s == 0.0 else best
            counts_s = now_worth_s if start_s == 0.0 else worth_s
            if start_s == inf or (rival is not None and start_s + counts_s > rival.worth_end_s):
                continue
            choice = self._choice(site, pool, position, start_s, (run_s, counts_s), count)
            if start_s == 0.0 and (now is None or choice < now):
                now = choice
            if best is None or choice < best:
                best = choice
        return best, now

    def _worths_s(self, queue: Queue, site: Site, run_s: float) -> tuple[float, float]:
        """The run time with what the costs count as: when the job starts later, and when it starts now."""
        weights = self.problem.weights
        later_s = run_s + costs.charge_s(queue, self.position, site, run_s, weights)
        stranded = self.stranding.gpus(queue, site)
        if not stranded:
            return later_s, later_s
        return later_s, run_s + costs.charge_s(queue, self.position, site, run_s, weights, stranded)

    def _choice(
        self, site: Site, pool: Pool | None, position: int, start_s: float, lasts_s: tuple[float, float], count: int
    ) -> Choice:
        """lasts_s: run time, and the same with what the costs count as."""
        left_over = len(site.slots) - count
        load = 0.0
        if start_s == 0.0 and pool is not None:
            left_over = bisect_right(pool.tails, 0.0) - count
        elif pool is None:
            machine = self.machines[site.machine]
            load = machine.attempts / max(machine.cpus, 1)
        run_s, worth_s = lasts_s
        return Choice(start_s + worth_s, start_s, -site.speed, left_over, load, site.memory_mib, position, site, run_s)

    def _earliest_s(self, queue: Queue, site: Site, run_s: float, after_s: float) -> float:
        """The first time at which GPUs, CPUs and memory are all there, and no cap is in the way."""
        asked, machine = queue.shape.resources, self.machines[site.machine]
        while after_s < inf:
            start_s = after_s
            if site.spans:
                start_s, _ = self.gpus.whole_machines(site.spans, queue.gpus, after_s)
            elif queue.gpus:
                pool = self.gpus.pool(site.slots)
                start_s = self.gpus.earliest_s(pool, queue.gpus, run_s, after_s)
            until_s = machine.blocked_until_s(start_s, run_s, asked.cpus, asked.memory_mib or 0)
            if until_s is None:
                until_s = self._capped_until_s(queue, start_s, run_s)
            if until_s is None:
                return start_s
            after_s = until_s
        return inf

    def _capped_until_s(self, queue: Queue, start_s: float, run_s: float) -> float | None:
        """None when no cap is in the way; else the next time worth a try."""
        for number in queue.caps:
            until_s = self.caps[number].blocked_until_s(start_s, run_s, queue.gpus)
            if until_s is not None:
                return until_s
        return None

    def _may_wait(self, queue: Queue, best: Choice, now: Choice) -> bool:
        """Whether to leave a GPU idle for a faster one: not on a guess, and not for next to nothing."""
        if best.worth_end_s > now.worth_end_s - self.problem.weights.worth_waiting * now.run_s:
            return False
        return self._is_no_guess(queue, best)

    def _is_no_guess(self, queue: Queue, choice: Choice) -> bool:
        return queue.prediction.informed and self.gpus.is_informed(self.pick(queue, choice), choice.start_s)

    def pick(self, queue: Queue, choice: Choice) -> list[int]:
        """The GPUs to take. Now: the best connected; later: those that idle least until then."""
        count = queue.gpus
        if not count:
            return []
        if choice.site.spans:
            return self.gpus.whole_machines(choice.site.spans, count, choice.start_s)[1]
        pool = self.gpus.pool(choice.site.slots)
        holes, tails = self.gpus.open_at(pool, choice.start_s, choice.end_s - choice.start_s)
        if choice.start_s > 0.0 or holes or len(tails) == count:
            return [*holes, *tails][:count]
        slots = sorted(tails)
        gpus = [self.problem.slots[slot].gpu for slot in slots]
        return [slots[position] for position in topology.choose(gpus, count)]
