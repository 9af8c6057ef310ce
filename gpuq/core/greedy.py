"""The earliest-finish list plan: the planner that is always there. Imports problem, places, plan, impact.

Jobs are taken in order of impact on their best GPUs, then of submission. Each takes the site where it is predicted to
finish first, waiting for a faster GPU included, and its GPUs are promised to it from then on. So large jobs get
reservations, and a job further back starts now only where it ends before the promise, or on other GPUs.

No GPU idles on a guess: a job passes over a GPU that is free now for a faster one only when its own run time and the
ends it waits for are informed, and when that saves enough.

One thing to know: equal jobs share a queue, and without estimates a queue is left as soon as its next job cannot start,
after one promise to that job. A pass costs what it starts, plus one look at each queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpuq.core import costs, impact
from gpuq.core.impact import Weights
from gpuq.core.model import JobId, Stamp
from gpuq.core.places import Choice, Search
from gpuq.core.plan import Plan, Start
from gpuq.core.problem import Problem, Queue, Waiting
from gpuq.core.profile import ArrayProfile
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot


class Directed(NamedTuple):
    """A job that is planned before the order of impact has its say, and where it may go."""

    queue: int  # position in Problem.queues
    sites: frozenset[int]  # positions in Queue.sites


class Greedy:
    """The Planner."""

    def plan(self, problem: Problem) -> Plan:
        """A plan with estimates for the problem's window."""
        return plan(problem)


def plan(problem: Problem, estimates: bool = True) -> Plan:
    """Which jobs start now; with estimates also when and where the others of the window will."""
    return _Pass(problem, problem.window if estimates else 0).plan()


def plan_directed(problem: Problem, first: Iterable[Directed]) -> Plan:
    """A plan with estimates that takes the heads of these queues first, in this order, each at its earliest there."""
    return _Pass(problem, problem.window).plan(first)


def fast(problem: Problem) -> Plan | None:
    """The plan when every waiting job starts at once on idle GPUs, so that no solver has anything to add."""
    asked = sum(queue.gpus * queue.count for queue in problem.queues)
    if asked > problem.free_slots or any(queue.count > len(queue.heads) for queue in problem.queues):
        return None
    found = plan(problem, estimates=False)
    return found if found.waiting == 0 else None


def dispatch(state: ClusterState, stamp: Stamp, weights: Weights | None = None) -> Plan:
    """Only what starts now, reading as little of the state as that needs."""
    return plan(snapshot(state, stamp, weights, window=0), estimates=False)


class _Entry(NamedTuple):
    """The head of a queue, in the order of planning."""

    later: bool  # it may not start now whatever is free: begin time, limit of its array
    rank: float  # negative impact on its best GPUs
    order: int
    queue: int
    position: int


class _Pass:
    """One run of the planner over one problem."""

    def __init__(self, problem: Problem, window: int) -> None:
        self.problem = problem
        self.window = window
        self.search = Search(problem)
        self.gpus, self.machines = self.search.gpus, self.search.machines
        self.arrays = {id_: ArrayProfile(room) for id_, room in problem.arrays.items()}
        self.priced = self.search.priced
        self.starts: list[Start] = []
        self.estimates: dict[JobId, Start] = {}
        self.holding = [(each.type, each.impact) for each in problem.running]
        # A GPU job that asks for no CPUs or memory cannot stand in the way of one without GPUs.
        self.cpu_jobs = any(queue.gpus == 0 for queue in problem.queues)

    def plan(self, first: Iterable[Directed] = ()) -> Plan:
        """Take the heads of the queues in order until nothing more can be said."""
        heads = [0] * len(self.problem.queues)
        for number, sites in first:
            queue = self.problem.queues[number]
            self._settle(queue, heads[number], self._after_s(queue), sites)
            heads[number] += 1
        entries = [
            self._entry(number, position)
            for number, position in enumerate(heads)
            if position < len(self.problem.queues[number].heads)
        ]
        heapify(entries)
        while entries:
            entry = heappop(entries)
            queue = self.problem.queues[entry.queue]
            after_s = self._after_s(queue)
            if after_s > 0.0 and not entry.later:
                heappush(entries, entry._replace(later=True))
                continue
            more = self._settle(queue, entry.position, after_s)
            if more and entry.position + 1 < len(queue.heads):
                heappush(entries, self._entry(entry.queue, entry.position + 1))
        return self._answer()

    def _entry(self, number: int, position: int) -> _Entry:
        queue = self.problem.queues[number]
        weights, run_s = self.problem.weights, queue.best_run_s
        spent = costs.costs_of(queue, queue.sites[0], run_s, weights) if self.priced and queue.sites else impact.FREE
        value = queue.impact(position, run_s, weights, spent)
        return _Entry(queue.release_s > 0.0, -value, queue.heads[position].order, number, position)

    def _after_s(self, queue: Queue) -> float:
        array = queue.shape.array
        if array is None:
            return queue.release_s
        return max(queue.release_s, self.arrays[array].free_from_s())

    def _settle(self, queue: Queue, position: int, after_s: float, sites: frozenset[int] | None = None) -> bool:
        """Give the job its place; False when nothing can be said of the jobs behind it in its queue."""
        full = len(self.estimates) >= self.window
        if full and (after_s > 0.0 or self._is_hopeless(queue)):
            return False
        self.search.position = position
        choice, passed_over = (
            self.search.best(queue, after_s) if sites is None else self.search.best_of(queue, after_s, sites)
        )
        if choice is None:
            return False
        start = self._take(queue, position, choice, passed_over)
        self.estimates[start.job] = start
        if choice.start_s == 0.0:
            self.starts.append(start)
            self.holding.append((start.type, start.impact))
            return True
        return not full

    def _is_hopeless(self, queue: Queue) -> bool:
        """Whether no job of the queue can start now, and no free GPU needs to be kept for one."""
        if queue.gpus == 0 or self.gpus.free_now > 0:
            return False
        asked = queue.shape.resources
        return not (self.cpu_jobs and (asked.cpus or asked.memory_mib))

    # --- promising --------------------------------------------------------------------------------------

    def _take(self, queue: Queue, position: int, choice: Choice, passed_over: Choice | None) -> Start:
        slots = self.search.pick(queue, choice)
        informed = queue.prediction.informed and self.gpus.is_informed(slots, choice.start_s)
        asked = queue.shape.resources
        self.gpus.take(slots, choice.start_s, choice.end_s, informed)
        self.machines[choice.site.machine].take(choice.start_s, choice.end_s, asked.cpus, asked.memory_mib or 0)
        if queue.shape.array is not None:
            self.arrays[queue.shape.array].take(choice.end_s)
        for number in queue.caps:
            self.search.caps[number].take(choice.start_s, choice.end_s, queue.gpus)
        head: Waiting = queue.heads[position]
        base_s = self.problem.stamp.steady_s
        weights = self.problem.weights
        stranded = self.search.stranding.gpus(queue, choice.site) if choice.start_s == 0.0 else 0.0
        spent = costs.costs_of(queue, choice.site, choice.run_s, weights, stranded)
        return Start(
            job=head.job,
            node=self.problem.machines[self._machine(choice, slots)].node,
            gpus=tuple(self.problem.slots[slot].gpu.uuid for slot in slots),
            type=choice.site.type,
            start_s=base_s + choice.start_s,
            end_s=base_s + choice.end_s,
            impact=queue.impact(position, choice.run_s, weights, spent),
            informed=informed,
            charge_s=choice.worth_end_s - choice.end_s if self.priced else 0.0,
            passed_over=passed_over.site.type if passed_over else None,
            passed_over_end_s=base_s + passed_over.end_s if passed_over else None,
        )

    def _machine(self, choice: Choice, slots: list[int]) -> int:
        return self.problem.slots[slots[0]].machine if choice.site.spans else choice.site.machine

    def _answer(self) -> Plan:
        waiting = self.problem.waiting - len(self.starts)
        return Plan(
            planner="greedy" if waiting else "fast",
            stamp=self.problem.stamp,
            starts=tuple(self.starts),
            estimates=self.estimates,
            prices=impact.prices(self.holding, self._wanted_types()) if self.window else {},
            waiting=waiting,
        )

    def _wanted_types(self) -> set[str]:
        """Types that a job which does not start now could use."""
        started = {start.job for start in self.starts}
        return {
            site.type
            for queue in self.problem.queues
            if queue.count > sum(1 for head in queue.heads if head.job in started)
            for site in queue.sites
        }
