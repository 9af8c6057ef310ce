"""What a planner answers, the proof that the answer is sound, and its exact worth. Imports problem, model, states.

A Plan says which jobs start now (`starts`) and, for those in the window, when and where the others are expected to
(`estimates`). Times in a plan are on the steady clock, as Stamp has it.

One thing to know: check_plan and objective trust nothing of a planner. They compute in whole milliseconds and exact
fractions, so that two plans compare the same on every machine, and a solver's plan is used only when it passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Protocol

from msgspec import field

from gpuq.core import costs
from gpuq.core.model import GpuUuid, JobId, NodeName, Placement, Record, Stamp
from gpuq.core.problem import Problem as Problem
from gpuq.core.problem import Queue, Site
from gpuq.errors import InternalError


class Start(Record, frozen=True, kw_only=True):
    """One job at one time on named GPUs. start_s equal to the plan's steady_s: now."""

    job: JobId
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    type: str  # "" for a job without GPUs
    start_s: float
    end_s: float
    impact: float
    informed: bool = False  # neither its run time nor the ends it waits for are guesses
    charge_s: float = 0.0  # what its costs count as, beyond its end (core.costs)
    passed_over: str | None = None  # the slower type it could have had now
    passed_over_end_s: float | None = None  # and when it would have ended there


class SolveRecord(Record, frozen=True, kw_only=True):
    """What a solver made of the greedy plan. Objectives are those of `objective`, in weighted seconds."""

    greedy_objective: float
    objective: float  # of the plan that was kept, never larger
    status: str  # for people: "better", "no better", or what went wrong
    time_s: float
    windows: int = 0  # groups of jobs that were looked at
    gap: float | None = None  # of the last window: how far its solution may be from the best, as a share; None: unknown


class Plan(Record, frozen=True, kw_only=True):
    """The answer of a planner."""

    planner: str  # "fast": everything that waits starts now; "greedy"; "cp-sat"
    stamp: Stamp
    starts: tuple[Start, ...] = ()  # in the order in which they were decided
    estimates: dict[JobId, Start] = field(default_factory=dict)  # of the planned window, starts included
    prices: dict[str, float] = field(default_factory=dict)  # by GPU type; empty when not asked for
    waiting: int = 0  # eligible jobs that do not start now
    solve: SolveRecord | None = None  # when a solver was asked

    def placements(self) -> tuple[Placement, ...]:
        """What to start now."""
        return tuple(Placement(job=start.job, node=start.node, gpus=start.gpus) for start in self.starts)


class Planner(Protocol):
    """Anything that answers a Problem. It may look at nothing else, and keeps no state between two calls."""

    def plan(self, problem: Problem) -> Plan:
        """A plan that passes check_plan."""


class UnsoundPlan(InternalError):
    """A planner promised what the problem does not allow."""

    kind = "unsound_plan"


# --- the proof ------------------------------------------------------------------------------------------

_Span = tuple[int, int, str]  # (start ms, end ms, whose)


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise UnsoundPlan unless every start and estimate fits the problem and all of them fit together."""
    _check_starts(problem, plan)
    _check_jobs(problem, plan)
    _check_gpus(problem, plan)
    _check_machines(problem, plan)
    _check_arrays(problem, plan)
    _check_caps(problem, plan)


def _fail(message: str) -> UnsoundPlan:
    return UnsoundPlan(f"The plan is unsound: {message}.", "Keep the plan before it, and report this.")


def _ms(plan: Plan, moment_s: float) -> int:
    return round((moment_s - plan.stamp.steady_s) * 1000)


def _offset_ms(plan: Plan, offset_s: float) -> int:
    """The same rounding as _ms, so that a start at the very end of another job is seen as such."""
    return 1 << 62 if offset_s == inf else _ms(plan, plan.stamp.steady_s + offset_s)


def _check_starts(problem: Problem, plan: Plan) -> None:
    """The starts are exactly the estimates that begin now."""
    now = [id_ for id_, start in plan.estimates.items() if start.start_s <= plan.stamp.steady_s]
    started = [start.job for start in plan.starts]
    if sorted(now) != sorted(started):
        raise _fail(f"it starts {started} now, but its estimates say {now}")
    if any(plan.estimates[start.job] != start for start in plan.starts):
        raise _fail("a start differs from the estimate of the same job")
    if plan.stamp != problem.stamp:
        raise _fail("it answers a problem of another moment")


def _queues(problem: Problem) -> dict[JobId, Queue]:
    return {head.job: queue for queue in problem.queues for head in queue.heads}


def _check_jobs(problem: Problem, plan: Plan) -> None:
    """Each job waits, begins no sooner than it may, takes all its GPUs on one site, and runs as long as predicted."""
    queues = _queues(problem)
    stranding = costs.Stranding(problem)
    for id_, start in plan.estimates.items():
        queue = queues.get(id_)
        if queue is None or start.job != id_:
            raise _fail(f"job {id_} does not wait")
        if _ms(plan, start.start_s) < _offset_ms(plan, queue.release_s):
            raise _fail(f"job {id_} would start before it may")
        if len(start.gpus) != queue.gpus or len(set(start.gpus)) != queue.gpus:
            raise _fail(f"job {id_} asked for {queue.gpus} GPUs and gets {len(set(start.gpus))}")
        _check_site(problem, plan, queue, start, stranding)


def _check_site(problem: Problem, plan: Plan, queue: Queue, start: Start, stranding: costs.Stranding) -> None:
    for site in queue.sites:
        uuids = {problem.slots[slot].gpu.uuid for slot in site.slots}
        nodes = {problem.machines[problem.slots[slot].machine].node for slot in site.slots} or {
            problem.machines[site.machine].node
        }
        if start.node in nodes and uuids.issuperset(start.gpus):
            run_ms = _ms(plan, start.end_s) - _ms(plan, start.start_s)
            if abs(run_ms - _offset_ms(plan, queue.prediction.on(site.speed))) > 1:
                raise _fail(f"job {start.job} would not run as long as predicted")
            stranded = stranding.gpus(queue, site) if start.start_s <= plan.stamp.steady_s else 0.0
            charge_s = _charge_s(problem, queue, start.job, site, stranded)
            if abs(_offset_ms(plan, start.charge_s) - _offset_ms(plan, charge_s)) > 1:
                raise _fail(f"job {start.job} is charged {start.charge_s:g} s for its costs instead of {charge_s:g} s")
            return
    raise _fail(f"job {start.job} cannot use GPUs {', '.join(start.gpus) or '(none)'} of {start.node} together")


def _charge_s(problem: Problem, queue: Queue, job: JobId, site: Site, stranded_gpus: float) -> float:
    if not problem.weights.energy and not stranded_gpus:
        return 0.0
    position = next(at for at, head in enumerate(queue.heads) if head.job == job)
    return costs.charge_s(queue, position, site, queue.prediction.on(site.speed), problem.weights, stranded_gpus)


def _check_gpus(problem: Problem, plan: Plan) -> None:
    """No GPU serves two at once, and none before it is free."""
    spans: dict[GpuUuid, list[_Span]] = {
        slot.gpu.uuid: [(-1, _offset_ms(plan, slot.free_at_s), "the job that holds it")]
        for slot in problem.slots
        if slot.free_at_s > 0
    }
    for start in plan.estimates.values():
        for uuid in start.gpus:
            spans.setdefault(uuid, []).append((_ms(plan, start.start_s), _ms(plan, start.end_s), start.job))
    for uuid, found in spans.items():
        found.sort()
        for (_, end, one), (begin, _, other) in pairwise(found):
            if begin < end:
                raise _fail(f"GPU {uuid} would serve {one} and {other} at once")


def _check_machines(problem: Problem, plan: Plan) -> None:
    """At no time are more CPUs or memory of a node promised than it has."""
    queues = _queues(problem)
    loads: dict[str, list[tuple[int, int, int, int]]] = {}
    for start in plan.estimates.values():
        asked = queues[start.job].shape.resources
        if asked.cpus or asked.memory_mib:
            load = (_ms(plan, start.start_s), _ms(plan, start.end_s), asked.cpus, asked.memory_mib or 0)
            loads.setdefault(start.node, []).append(load)
    for machine in problem.machines:
        found = loads.get(machine.node)
        if not found:
            continue
        held = [(0, _offset_ms(plan, each.end_s), each.cpus, each.memory_mib) for each in machine.promises]
        cpus = _peak((begin, end, amount) for begin, end, amount, _ in [*held, *found])
        memory_mib = _peak((begin, end, amount) for begin, end, _, amount in [*held, *found])
        if cpus > machine.cpus or memory_mib > machine.memory_mib:
            raise _fail(f"{machine.node} would have to give {cpus} CPUs and {memory_mib} MiB of memory")


def _peak(loads: Iterable[tuple[int, int, int]]) -> int:
    changes: list[tuple[int, int]] = []
    for begin, end, amount in loads:
        changes += [(begin, amount), (end, -amount)]
    level = most = 0
    for _, change in sorted(changes):
        level += change
        most = max(most, level)
    return most


def _check_arrays(problem: Problem, plan: Plan) -> None:
    queues = _queues(problem)
    spans: dict[JobId, list[tuple[int, int, int]]] = {
        array: [(0, _offset_ms(plan, end_s), 1) for end_s in room.ends_s] for array, room in problem.arrays.items()
    }
    for start in plan.estimates.values():
        array = queues[start.job].shape.array
        if array is not None:
            spans[array].append((_ms(plan, start.start_s), _ms(plan, start.end_s), 1))
    for array, found in spans.items():
        if _peak(found) > problem.arrays[array].limit:
            raise _fail(f"array {array} would run more than {problem.arrays[array].limit} tasks at once")


def _check_caps(problem: Problem, plan: Plan) -> None:
    """While a planned job runs, the jobs under its caps hold no more GPUs than those say.

    What runs already may hold more, after a cap was lowered: then nothing may start under it.
    """
    queues = _queues(problem)
    planned: list[list[tuple[int, int, int]]] = [[] for _ in problem.caps]
    for start in plan.estimates.values():
        for number in queues[start.job].caps:
            planned[number].append((_ms(plan, start.start_s), _ms(plan, start.end_s), len(start.gpus)))
    for cap, spans in zip(problem.caps, planned, strict=True):
        loads = [*spans, *((0, _offset_ms(plan, end_s), gpus) for end_s, gpus in cap.held)]
        for at, _, _ in spans:
            if sum(gpus for begin, end, gpus in loads if begin <= at < end) > cap.max_gpus:
                raise _fail(f"{cap.name} would hold more than {cap.max_gpus} GPUs at once")


# --- the worth ------------------------------------------------------------------------------------------


def objective(problem: Problem, plan: Plan) -> Fraction:
    """Sum of weight x (waited + time to the planned end + what its costs count as) [weighted ms]; smaller is better.

    A waiting job of the problem without an estimate is charged the horizon, so leaving one out never pays.
    """
    horizon_ms = _offset_ms(plan, horizon_s(problem))
    total = Fraction(0)
    for queue in problem.queues:
        for position, head in enumerate(queue.heads):
            start = plan.estimates.get(head.job)
            end_ms = horizon_ms if start is None else _ms(plan, start.end_s + start.charge_s)
            total += Fraction(queue.weight(position)) * (round(head.waited_s * 1000) + end_ms)
    return total


def horizon_s(problem: Problem) -> float:
    """A time from now by which everything has ended, even one job after the other on its slowest site."""
    last_s = max((slot.free_at_s for slot in problem.slots), default=0.0)
    promised_s = (each.end_s for machine in problem.machines for each in machine.promises)
    last_s = max([last_s, *(end_s for end_s in promised_s if end_s < inf)])
    for queue in problem.queues:
        speed = queue.sites[-1].speed if queue.sites else 1.0
        last_s = max(last_s, queue.release_s) + len(queue.heads) * queue.prediction.on(speed)
    return last_s
