"""The planner that improves the greedy plan with CP-SAT. Imports core.greedy, core.plan and model.

First `polish` tries small changes of the order. Then the jobs that the plan starts first form a window; `model` chooses
their GPUs and times anew. What it answers is read as an order of jobs and the GPUs each may take, and the greedy
planner plans with those first and all others behind them. So every plan is sound by construction, and the whole of it,
jobs outside the window included, is compared by the exact objective of core.plan: the better one is kept. The next
window begins half a window later.

One thing to know: a solver that fails, or finds nothing better, changes nothing. The record says which.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import inf
from time import perf_counter
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuq.core import greedy
from gpuq.core.costs import charge_s
from gpuq.core.greedy import Directed
from gpuq.core.model import JobId
from gpuq.core.plan import Plan, SolveRecord, Start, check_plan, objective
from gpuq.core.problem import Problem, Queue
from gpuq.solve.lanes import Lanes
from gpuq.solve.model import Capacity, Load, Option, Window, WindowJob, solve, whole_s
from gpuq.solve.polish import polish

POLISHING: Final = 0.6  # share of the budget for small changes
PLACES_PER_S: Final = 15_000  # jobs that the list planner places in a second of one core, roughly
POLISHED_JOBS: Final = 30


class CpSat:
    """The Planner.

    budget: about how many seconds of one core it may take; equal budgets give equal plans. limit_s: of the wall clock,
    for those who wait for the answer; on a busy machine it may cut a search short, and then plans may differ.
    """

    def __init__(
        self, budget: float = 1.0, limit_s: float = inf, window: int = 10, windows: int = 3, outside: float = 1.0
    ) -> None:
        self._budget = budget
        self._limit_s = limit_s
        self._window = window
        self._windows = windows
        self._outside = outside

    def plan(self, problem: Problem) -> Plan:
        """The greedy plan, or a better one."""
        return self.improve(problem, greedy.plan(problem))

    def improve(self, problem: Problem, first: Plan) -> Plan:
        """The better of `first` and what the solver makes of it, with the record of the attempt."""
        if first.waiting == 0 or len(first.estimates) < 2:
            return first
        began_s = perf_counter()
        before = best_worth = objective(problem, first)
        best, looked, gap, trouble = first, 0, None, ""
        until_s = began_s + self._limit_s
        found = self._polished(problem, first, began_s + self._limit_s * POLISHING)
        if found is not None and (worth := objective(problem, found)) < best_worth:
            best, best_worth = found, worth
        for number in range(self._windows):
            skipped = number * self._window // 2
            if number and (skipped + self._window // 2 >= len(best.estimates) or perf_counter() > until_s):
                break
            try:
                found, gap = self._try(problem, best, skipped, until_s - perf_counter())
            except Exception as error:  # whatever a solver does, the plan it was given stands
                trouble = f"the solver failed: {type(error).__name__}: {error}"
                break
            looked += 1
            worth = objective(problem, found)
            if worth < best_worth:
                best, best_worth = found, worth
        record = SolveRecord(
            greedy_objective=_seconds(before),
            objective=_seconds(best_worth),
            status=trouble or ("better" if best_worth < before else "no better"),
            time_s=perf_counter() - began_s,
            windows=looked,
            gap=gap,
        )
        return replace(best, planner="cp-sat" if best_worth < before else first.planner, solve=record)

    def _polished(self, problem: Problem, first: Plan, until_s: float) -> Plan | None:
        places = int(self._budget * POLISHING * PLACES_PER_S)
        found = polish(problem, first, POLISHED_JOBS, places, until_s).plan
        if found is not None:
            check_plan(problem, found)
        return found

    def _try(self, problem: Problem, plan: Plan, skipped: int, limit_s: float) -> tuple[Plan, float | None]:
        """A plan whose window was solved anew, checked; and how far the window may be from its best."""
        draft = _Draft(problem, plan, skipped, self._window, self._outside)
        window = draft.window()
        if len(window.jobs) < 2:
            return plan, None
        solution = solve(window, self._budget * (1 - POLISHING) / self._windows, limit_s)
        directed = [*draft.before(), *draft.directed(solution.choices)]
        found = greedy.plan_directed(problem, directed)
        check_plan(problem, found)
        gap = 1 - solution.bound / solution.objective if solution.objective > 0 else None
        return found, gap


def _seconds(worth: Fraction) -> float:
    return float(worth / 1000)


class _Planned(NamedTuple):
    """One job of the plan, and where it comes from."""

    start: Start
    queue: int
    position: int


class _Draft:
    """One window of a plan, on its way into the model and back."""

    def __init__(self, problem: Problem, plan: Plan, skipped: int, size: int, outside: float) -> None:
        self.problem = problem
        self._base_s = plan.stamp.steady_s
        places = {
            head.job: (number, position)
            for number, queue in enumerate(problem.queues)
            for position, head in enumerate(queue.heads)
        }
        planned = [
            _Planned(start, *places[id_]) for id_, start in plan.estimates.items() if start.gpus
        ]
        planned.sort(key=lambda each: (each.start.start_s, each.queue, each.position))
        self._earlier = planned[:skipped]
        self._inside = planned[skipped : skipped + size]
        self._later = planned[skipped + size :]
        self._lanes = Lanes(problem, [problem.queues[each.queue] for each in (*self._earlier, *self._inside)])
        self._outside = outside * sum(problem.queues[each.queue].weight(each.position) for each in self._later)

    def before(self) -> Iterable[Directed]:
        """The jobs ahead of the window, as they were planned."""
        for each in self._earlier:
            yield Directed(each.queue, frozenset({self._site_of(each)}))

    def directed(self, choices: Iterable[tuple[int, int]]) -> list[Directed]:
        """The window's jobs in the order of their new starts; jobs of one queue in the queue's order."""
        ordered = sorted(zip(choices, self._inside, strict=True), key=lambda pair: (pair[0][1], pair[1].position))
        return [
            Directed(each.queue, self._lanes.sites_of(self.problem.queues[each.queue], option))
            for (option, _), each in ordered
        ]

    def window(self) -> Window:
        """The model's input."""
        arrays = sorted({array for each in self._inside if (array := self._array(each)) is not None})
        caps = sorted({number for each in self._inside for number in self.problem.queues[each.queue].caps})
        last: dict[int, int] = {}
        jobs: list[WindowJob] = []
        for at, each in enumerate(self._inside):
            queue = self.problem.queues[each.queue]
            array = self._array(each)
            lanes = self._lanes.of(queue)
            jobs.append(
                WindowJob(
                    weight=queue.weight(each.position),
                    gpus=queue.gpus,
                    release_s=whole_s(queue.release_s),
                    options=tuple(self._option(queue, each.position, lane) for lane in lanes),
                    chosen=lanes.index(self._lanes.lane(queue.sites[self._site_of(each)])),
                    after=last.get(each.queue),
                    array=None if array is None else arrays.index(array),
                    caps=tuple(caps.index(number) for number in queue.caps),
                )
            )
            last[each.queue] = at
        rooms = tuple(self._array_room(array) for array in arrays)
        return Window(tuple(jobs), self._capacities(), rooms, tuple(self._cap_room(number) for number in caps))

    def _array(self, each: _Planned) -> JobId | None:
        return self.problem.queues[each.queue].shape.array

    def _option(self, queue: Queue, position: int, lane: int) -> Option:
        site = next(site for site in queue.sites if self._lanes.lane(site) == lane)
        run_s = whole_s(queue.prediction.on(site.speed))
        outside = self._outside * queue.gpus * run_s * self._lanes.share_of_speed(lane)
        costs_s = charge_s(queue, position, site, run_s, self.problem.weights)
        return Option(lane, run_s, outside + queue.weight(position) * costs_s)

    def _site_of(self, each: _Planned) -> int:
        """The site on which the plan has it."""
        queue, start = self.problem.queues[each.queue], each.start
        return next(at for at, site in enumerate(queue.sites) if self._lanes.holds(site, start.node, start.gpus))

    def _capacities(self) -> tuple[Capacity, ...]:
        loads: list[list[Load]] = [[] for _ in self._lanes.slots]
        for lane, slots in enumerate(self._lanes.slots):
            for slot in slots:
                free_at_s = self.problem.slots[slot].free_at_s
                if free_at_s > 0.0:
                    loads[lane].append((0, whole_s(free_at_s), 1))
        for each in self._earlier:
            lane = self._lanes.lane(self.problem.queues[each.queue].sites[self._site_of(each)])
            loads[lane].append((*self._span(each), len(each.start.gpus)))
        return tuple(
            Capacity(len(slots), tuple(found)) for slots, found in zip(self._lanes.slots, loads, strict=True)
        )

    def _span(self, each: _Planned) -> tuple[int, int]:
        """Whole seconds that overlap with no neighbour that the exact times do not overlap with."""
        return int(each.start.start_s - self._base_s), max(1, int(each.start.end_s - self._base_s))

    def _array_room(self, array: JobId) -> Capacity:
        room = self.problem.arrays[array]
        held = [(0, whole_s(end_s), 1) for end_s in room.ends_s if end_s > 0]
        held += [(*self._span(each), 1) for each in self._earlier if self._array(each) == array]
        return Capacity(room.limit, tuple(held))

    def _cap_room(self, number: int) -> Capacity:
        cap = self.problem.caps[number]
        held = [(0, whole_s(end_s), gpus) for end_s, gpus in cap.held if 0 < end_s < inf]
        held += [
            (*self._span(each), len(each.start.gpus))
            for each in self._earlier
            if number in self.problem.queues[each.queue].caps
        ]
        for_ever = sum(gpus for end_s, gpus in cap.held if end_s == inf)
        # More may be held than a lowered cap allows; the model has no plan at all unless it fits.
        most_held = max((sum(load[2] for load in held if load[0] <= at < load[1]) for at, _, _ in held), default=0)
        return Capacity(max(cap.max_gpus - for_ever, most_held), tuple(held))
