"""Two plans for the same moment, side by side: who would change place, and what it does. Imports plan, problem, model.

    place           1 + number of jobs that start sooner by the same plan [1]
    Impact Factor   sum s d* / sum s (C - r) over the jobs in both plans, with C by the plan [1]

One thing to know: both plans are measured with the standing s of the first problem (its weights without age). A
yardstick that changed with the weights in question would say nothing about them.
"""

from __future__ import annotations

from bisect import bisect_left

from gpuq.core.model import JobId, Record
from gpuq.core.plan import Plan, Start
from gpuq.core.problem import Problem

SAME_WITHIN_S = 1.0  # starts that differ by less are one


class Moved(Record, frozen=True, kw_only=True):
    """A job that the second plan starts at another time, elsewhere, or behind others. Offsets from the plans' stamp."""

    job: JobId
    before_s: float | None  # None: not among the jobs with an estimate
    after_s: float | None
    place_before: int | None
    place_after: int | None
    node_before: str | None
    node_after: str | None


class Comparison(Record, frozen=True, kw_only=True):
    """What the second plan does differently."""

    moved: tuple[Moved, ...]  # in the order of the first plan
    jobs: int  # that have an estimate in both
    factor_before: float | None  # predicted Impact Factor; None without jobs
    factor_after: float | None


def compare(problem: Problem, before: Plan, other: Problem, after: Plan) -> Comparison:
    """The plan `before` of `problem` against `after` of `other`, which asks the same with other weights."""
    both = before.estimates.keys() & after.estimates.keys()
    places_before, places_after = _places(before), _places(after)
    moved = []
    soonest_first = sorted(before.estimates.values(), key=lambda start: start.start_s)
    new = [id_ for id_ in after.estimates if id_ not in before.estimates]
    for id_ in [*(start.job for start in soonest_first), *new]:
        one, two = before.estimates.get(id_), after.estimates.get(id_)
        if not _is_same(one, two) or places_before.get(id_) != places_after.get(id_):
            moved.append(
                Moved(
                    job=id_,
                    before_s=_offset_s(before, one),
                    after_s=_offset_s(after, two),
                    place_before=places_before.get(id_),
                    place_after=places_after.get(id_),
                    node_before=one.node if one else None,
                    node_after=two.node if two else None,
                )
            )
    standings = {head.job: queue.standing for queue in problem.queues for head in queue.heads}
    return Comparison(
        moved=tuple(moved),
        jobs=len(both),
        factor_before=_factor(problem, before, both, standings),
        factor_after=_factor(other, after, both, standings),
    )


def _places(plan: Plan) -> dict[JobId, int]:
    starts = sorted(start.start_s for start in plan.estimates.values())
    return {id_: 1 + bisect_left(starts, start.start_s - SAME_WITHIN_S) for id_, start in plan.estimates.items()}


def _is_same(one: Start | None, two: Start | None) -> bool:
    if one is None or two is None:
        return one is two
    return abs(one.start_s - two.start_s) < SAME_WITHIN_S and (one.node, one.type) == (two.node, two.type)


def _offset_s(plan: Plan, start: Start | None) -> float | None:
    return None if start is None else start.start_s - plan.stamp.steady_s


def _factor(problem: Problem, plan: Plan, jobs: set[JobId], standings: dict[JobId, float]) -> float | None:
    best = taken = 0.0
    for queue in problem.queues:
        for head in queue.heads:
            if head.job in jobs and head.job in standings:
                end_s = plan.estimates[head.job].end_s - plan.stamp.steady_s - queue.release_s
                best += standings[head.job] * queue.best_run_s
                taken += standings[head.job] * (head.waited_s + end_s)
    return best / taken if taken > 0 else None
