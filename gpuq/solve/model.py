"""A few jobs of a plan as a CP-SAT model: which GPUs, and when. Imports core.problem; loads ortools when solving.

    variables      start of each job [s, whole]; one presence per option
    Option         a Lane and the run time there; exactly one is present
    Lane           GPUs of one machine and type, or of one type when there are too many machines: a cumulative capacity,
                   with what is held and what was decided before as fixed intervals
    minimise       sum of weight x end  +  sum of weight outside x share of all speed that a job takes up

The last term stands for the jobs that the window leaves out: each GPU-second taken delays them all, by that second
divided by the speed of the whole cluster.

One thing to know: the hint is complete. It is computed here, in the model's own whole seconds, by taking the jobs one
after the other; a hint in which one variable is missing or one second off leaves the solver without a first answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Load = tuple[int, int, int]  # (start, end, amount)
WEIGHT_SCALE = 10_000  # of the heaviest job


class Option(NamedTuple):
    """One way to run a job."""

    lane: int
    run_s: int
    charge: float  # weight of the jobs outside x seconds it delays them, and weight x what its costs count as


class WindowJob(NamedTuple):
    """One job of the window, in the order in which the hint takes it."""

    weight: float
    gpus: int
    release_s: int
    options: tuple[Option, ...]
    chosen: int  # position of the hint's option
    after: int | None  # position of the job of the same queue before it
    array: int | None  # position in Window.arrays
    caps: tuple[int, ...] = ()  # positions in Window.caps


class Capacity(NamedTuple):
    """So much at any time, of which these loads are taken."""

    amount: int
    loads: tuple[Load, ...]


class Window(NamedTuple):
    """Everything the solver gets."""

    jobs: tuple[WindowJob, ...]
    lanes: tuple[Capacity, ...]
    arrays: tuple[Capacity, ...]
    caps: tuple[Capacity, ...] = ()  # GPUs that an account or user may hold


class Choice(NamedTuple):
    """What was chosen for a job."""

    option: int
    start_s: int


class Solution(NamedTuple):
    """The solver's answer."""

    choices: tuple[Choice, ...]
    objective: float
    bound: float
    status: str


# --- the hint ---------------------------------------------------------------------------------------------


def hint(window: Window) -> tuple[Choice, ...]:
    """Each job at its earliest on the option it was planned for, in order."""
    lanes = [list(lane.loads) for lane in window.lanes]
    arrays = [list(array.loads) for array in window.arrays]
    caps = [list(cap.loads) for cap in window.caps]
    found: list[Choice] = []
    for job in window.jobs:
        option = job.options[job.chosen]
        limits = [(window.lanes[option.lane].amount, lanes[option.lane], job.gpus)]
        if job.array is not None:
            limits.append((window.arrays[job.array].amount, arrays[job.array], 1))
        limits += [(window.caps[number].amount, caps[number], job.gpus) for number in job.caps]
        start_s = job.release_s if job.after is None else max(job.release_s, found[job.after].start_s)
        start_s = _earliest_s(limits, start_s, option.run_s)
        for _, loads, amount in limits:
            loads.append((start_s, start_s + option.run_s, amount))
        found.append(Choice(job.chosen, start_s))
    return tuple(found)


def _earliest_s(limits: Sequence[tuple[int, list[Load], int]], after_s: int, run_s: int) -> int:
    """The first start from after_s at which every limit holds for run_s."""
    ends = sorted({load[1] for _, loads, _ in limits for load in loads if load[1] > after_s})
    for start_s in (after_s, *ends):
        if all(_most(loads, start_s, start_s + run_s) + amount <= limit for limit, loads, amount in limits):
            return start_s
    return ends[-1] if ends else after_s


def _most(loads: list[Load], start_s: int, end_s: int) -> int:
    """The largest sum of loads at any time between."""
    inside = [load for load in loads if load[0] < end_s and load[1] > start_s]
    moments = {start_s, *(load[0] for load in inside if load[0] > start_s)}
    return max(sum(load[2] for load in inside if load[0] <= at < load[1]) for at in moments)


# --- the model --------------------------------------------------------------------------------------------


class _Built(NamedTuple):
    model: cp_model.CpModel
    starts: list[Any]
    presences: list[list[Any]]


def solve(window: Window, budget: float, limit_s: float = inf) -> Solution:
    """Improve on the hint within `budget` units of deterministic time (about seconds); equal input, equal answer.

    limit_s: wall clock, for those who wait for the answer on a busy machine.
    """
    from ortools.sat.python import cp_model

    first = hint(window)
    built = _build(window, first)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = budget
    if limit_s < inf:
        solver.parameters.max_time_in_seconds = max(limit_s, 0.001)
    solver.parameters.random_seed = 1
    solver.parameters.linearization_level = 0
    status = solver.solve(built.model)
    name = solver.status_name(status).lower()
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solution(first, 0.0, 0.0, name)
    choices = tuple(
        Choice(next(at for at, presence in enumerate(row) if solver.boolean_value(presence)), solver.value(start))
        for start, row in zip(built.starts, built.presences, strict=True)
    )
    return Solution(choices, solver.objective_value, solver.best_objective_bound, name)


def _build(window: Window, first: tuple[Choice, ...]) -> _Built:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon_s = _horizon_s(window, first)
    starts = [model.new_int_var(job.release_s, horizon_s, "") for job in window.jobs]
    presences = [[model.new_bool_var("") for _ in job.options] for job in window.jobs]
    in_lane: list[list[tuple[Any, int]]] = [[] for _ in window.lanes]
    in_array: list[list[tuple[Any, int]]] = [[] for _ in window.arrays]
    in_cap: list[list[tuple[Any, int]]] = [[] for _ in window.caps]
    for job, start, row in zip(window.jobs, starts, presences, strict=True):
        model.add_exactly_one(row)
        for option, presence in zip(job.options, row, strict=True):
            interval = model.new_optional_fixed_size_interval_var(start, option.run_s, presence, "")
            in_lane[option.lane].append((interval, job.gpus))
            if job.array is not None:
                in_array[job.array].append((interval, 1))
            for number in job.caps:
                in_cap[number].append((interval, job.gpus))
        if job.after is not None:
            model.add(start >= starts[job.after])
    for capacities, members in ((window.lanes, in_lane), (window.arrays, in_array), (window.caps, in_cap)):
        for capacity, found in zip(capacities, members, strict=True):
            _limit(model, capacity, found)
    model.minimize(_objective(window, starts, presences))
    for choice, start, row in zip(first, starts, presences, strict=True):
        model.add_hint(start, choice.start_s)
        for at, presence in enumerate(row):
            model.add_hint(presence, at == choice.option)
    return _Built(model, starts, presences)


def _limit(model: cp_model.CpModel, capacity: Capacity, found: list[tuple[Any, int]]) -> None:
    if not found:
        return
    held = [
        (model.new_fixed_size_interval_var(start, end - start, ""), amount) for start, end, amount in capacity.loads
    ]
    model.add_cumulative(
        [interval for interval, _ in (*held, *found)], [amount for _, amount in (*held, *found)], capacity.amount
    )


def _objective(window: Window, starts: list[Any], presences: list[list[Any]]) -> Any:
    scale = WEIGHT_SCALE / max(job.weight for job in window.jobs)
    terms: list[Any] = []
    for job, start, row in zip(window.jobs, starts, presences, strict=True):
        weight = max(1, round(job.weight * scale))
        terms.append(weight * start)
        terms += [
            (weight * option.run_s + round(option.charge * scale)) * presence
            for option, presence in zip(job.options, row, strict=True)
        ]
    return sum(terms)


def _horizon_s(window: Window, first: tuple[Choice, ...]) -> int:
    """Late enough for the hint, and for the longest job behind all that is held."""
    ends = [c.start_s + job.options[c.option].run_s for job, c in zip(window.jobs, first, strict=True)]
    held = [load[1] for capacity in (*window.lanes, *window.caps) for load in capacity.loads]
    return max(*ends, *held, 1) + 1


def whole_s(seconds: float) -> int:
    """Rounded up, and at least 1 for what takes any time."""
    return ceil(seconds)
