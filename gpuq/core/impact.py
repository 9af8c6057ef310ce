"""What a job is worth, what its placement is worth, and the Impact Factor. Imports model and state.

    weight       w = standing x (1 + age x waited / max(shortest run, 600 s))     [1]
    standing     (priority within the owner's own jobs) x account balance x deadline rise, see core.accounts  [1]
    impact       rho = 3600 (w - costs) / (GPUs x run time)                   [weighted completions per GPU-hour]
    costs        energy x kWh + restart x restarts + fragmentation x GPUs made unusable + interference x slowed [1]
    GPU price    impact of the least job that holds a type while another wants it; 0 when none does
    Impact Factor of a period   sum w d* / sum w (C - r), in (0, 1]: 1 when nobody waited and all ran on the best GPUs

One thing to know: priority is a ratio between one owner's own jobs. It is divided by the owner's mean, so that calling
everything urgent gains nothing against other people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gpuq.core.model import Job, JobId, Record, Stamp
from gpuq.core.state import ClusterState, Shape

_WIDEST: Final = 300  # priority points that count in either direction: keeps the ratio far from overflow


class Account(Record, frozen=True, kw_only=True):
    """Users that share one balance, and their part of the GPUs relative to other accounts; a table of gpuq.toml."""

    name: str
    users: tuple[str, ...]
    share: float = 1.0


class Weights(Record, frozen=True, kw_only=True):
    """The parameters of the formula; the `impact` table of gpuq.toml. Costs are 0 until they are measured."""

    priority_step: float = 10.0  # points that double a job's weight
    age_floor_s: float = 600.0  # a shorter job ages as if it ran this long
    default_run_s: float = 3600.0  # run time assumed of a job without history and time limit
    informed_runs: int = 3  # ended runs from which a prediction is trusted
    informed_spread: float = 4.0  # and only when the middle half differs by less than this factor
    outlived_factor: float = 1.5  # growth of a prediction that a job outlived
    restart_s: float = 60.0  # run time that a stopped job loses when it goes on
    worth_waiting: float = 0.05  # share of the run time a faster GPU must save, all in all, to be waited for
    age: float = 1.0  # how fast waiting adds weight; 0: not at all
    balance: float = 0.0  # how strongly an account's past use counts; 0: not at all
    deadline: float = 1.0  # how strongly a near deadline counts; 0: not at all
    energy: float = 0.0  # per kWh
    restart: float = 0.0  # per restart
    fragmentation: float = 0.0  # per GPU made unusable for the waiting mix
    interference: float = 0.0  # per weighted completion that partners lose
    accounts: tuple[Account, ...] = ()  # users in none have an account of their own


class Costs(NamedTuple):
    """What one placement costs besides GPU time."""

    energy_kwh: float = 0.0
    restarts: float = 0.0
    stranded_gpus: float = 0.0
    slowed: float = 0.0  # sum over partners of weight x slow-down / run time


FREE: Final = Costs()
COSTS: Final = ("energy", "restart", "fragmentation", "interference")  # parameters of Weights
# Those whose amounts the planner knows.
MEASURED_COSTS: Final[frozenset[str]] = frozenset({"energy", "restart", "fragmentation"})


def priority_ratio(priority: int, nice: int, weights: Weights) -> float:
    """How much a job counts among its owner's jobs, before division by their mean: priority minus nice."""
    points = max(-_WIDEST, min(_WIDEST, priority - nice))
    return float(2.0 ** (points / weights.priority_step))


def mean_ratios(waiting: Mapping[Shape, Mapping[JobId, None]], weights: Weights) -> dict[str, float]:
    """Per owner, the mean priority ratio of all the owner's waiting jobs."""
    sums: dict[str, tuple[float, int]] = {}
    for shape, queue in waiting.items():
        total, count = sums.get(shape.user, (0.0, 0))
        ratio = priority_ratio(shape.priority, shape.nice, weights)
        sums[shape.user] = (total + ratio * len(queue), count + len(queue))
    return {user: total / count for user, (total, count) in sums.items() if count}


def deadline_rise(slack_s: float | None, best_run_s: float, weights: Weights) -> float:
    """What a deadline multiplies the weight with: 1 far off, 1 + 7 x parameter when the job must start now.

    slack_s: from now to the deadline, less the shortest run; None: no deadline. Below 0 it cannot be made: 1.
    """
    if slack_s is None or slack_s < 0:
        return 1.0
    return 1.0 + weights.deadline * 7.0 / (1.0 + slack_s / max(best_run_s, weights.age_floor_s))


def deadline_slack_s(shape: Shape, wall_s: float, best_run_s: float) -> float | None:
    """Time to spare until the deadline if the job started now on its fastest GPUs; None without a deadline."""
    return None if shape.deadline_at is None else shape.deadline_at - wall_s - best_run_s


def share_of(shape: Shape, wall_s: float, best_run_s: float, weights: Weights) -> float:
    """Priority ratio x deadline rise: what is divided by the owner's mean (and by the inverse of the balance)."""
    rise = deadline_rise(deadline_slack_s(shape, wall_s, best_run_s), best_run_s, weights)
    return priority_ratio(shape.priority, shape.nice, weights) * rise


def weight(standing: float, waited_s: float, age_s: float) -> float:
    """Weight of a job: its standing among the owner's jobs times its age; age_s is max(shortest run, floor)."""
    return standing * (1.0 + waited_s / age_s)


def total(costs: Costs, weights: Weights) -> float:
    """All costs as a share of one weighted completion."""
    return (
        weights.energy * costs.energy_kwh
        + weights.restart * costs.restarts
        + weights.fragmentation * costs.stranded_gpus
        + weights.interference * costs.slowed
    )


def impact(weight: float, gpus: int, run_s: float, weights: Weights, costs: Costs = FREE) -> float:
    """Weighted completions per GPU-hour of one placement; a job without GPUs counts as one."""
    if costs is not FREE:
        weight -= total(costs, weights)
    return 3600.0 * weight / (max(gpus, 1) * run_s)


def prices(holding: Iterable[tuple[str, float]], wanted: Iterable[str]) -> dict[str, float]:
    """Price per GPU type: the least impact among those that hold it, 0 for a type no waiting job could use."""
    least: dict[str, float] = {}
    for gpu_type, value in holding:
        least[gpu_type] = min(value, least.get(gpu_type, value))
    wanted = set(wanted)
    return {gpu_type: value if gpu_type in wanted else 0.0 for gpu_type, value in sorted(least.items())}


# --- the Impact Factor ----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How one job fared: all that the Impact Factor needs of it."""

    user: str
    ratio: float  # priority_ratio
    best_run_s: float  # d*: the same run on the best GPUs, without waiting
    flow_s: float  # C - r: from submission (or begin time) to the end


def outcome(
    state: ClusterState, job: Job, stamp: Stamp, best_speed: float = 1.0, weights: Weights | None = None
) -> Outcome | None:
    """The outcome of a job that ran; one that still runs counts as ended now. None: it never ran, or nobody knows.

    best_speed: of the fastest GPU the job could use (fit.best_speed). Times are wall clock, as the records keep them.
    """
    attempt = job.attempt
    if attempt is None or attempt.started_at is None:
        return None
    if job.state.holds_gpus:
        run_s: float | None = stamp.wall_s - attempt.started_at
        end_at: float | None = stamp.wall_s
    else:
        run_s, end_at = (job.exit.run_s if job.exit else None), job.ended_at
    if run_s is None or end_at is None or run_s <= 0:
        return None
    released_at = max(job.submitted_at, job.spec.begin_at or job.submitted_at)
    best_run_s = run_s * min(1.0, state.attempt_speed(job) / best_speed)
    ratio = priority_ratio(job.spec.priority, job.spec.nice, weights or Weights())
    return Outcome(job.owner.name, ratio, best_run_s, max(end_at - released_at, run_s))


def impact_factor(outcomes: Iterable[Outcome]) -> float | None:
    """Sum w d* / sum w (C - r) over the jobs of a period; None when there are none."""
    known = list(outcomes)
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for each in known:
        sums[each.user] = sums.get(each.user, 0.0) + each.ratio
        counts[each.user] = counts.get(each.user, 0) + 1
    best = taken = 0.0
    for each in known:
        standing = each.ratio * counts[each.user] / sums[each.user]
        best += standing * each.best_run_s
        taken += standing * each.flow_s
    return best / taken if taken > 0 else None
