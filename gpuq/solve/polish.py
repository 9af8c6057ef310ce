"""Small changes to the order of a plan, kept while they help. Imports core.greedy, core.plan and quick.

A plan of the list planner follows from the order in which it takes the jobs, and the GPUs each may take. One job is
moved to another place in the order, or bound to GPUs of one type, or set free again; the planner plans anew, and the
change is kept when the sum of weight x end is no larger. This is the neighbourhood that exact windows do not reach: one
change moves every job behind it. Where `quick` covers the problem it tells the sum, about ten times as fast; the
order that is best is planned by the list planner all the same.

One thing to know: the number of tries is given and the draws are seeded, so equal problems get equal plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from time import perf_counter
from typing import Final, NamedTuple, Protocol

from gpuq.core import greedy
from gpuq.core.greedy import Directed
from gpuq.core.model import JobId
from gpuq.core.plan import Plan
from gpuq.core.problem import Problem
from gpuq.solve.quick import Quick, covers

STEPS: Final = (-8, -5, -3, -2, -1, 1, 2, 3, 5)
REORDERING: Final = 0.7  # share of the tries
QUICK_FACTOR: Final = 8  # how many times faster than the list planner `quick` is taken to be, at least


class Polished(NamedTuple):
    """The plan of the best order found; None when nothing helped."""

    plan: Plan | None
    tries: int


class Evaluator(Protocol):
    """What tells the worth of an order."""

    def worth(self, order: Sequence[Directed]) -> float:
        """Sum of weight x time to the end, costs included [weighted s]; inf: not every job found a place."""

    def keep(self) -> None:
        """The next orders are changes of the one asked for last."""


class _Listed:
    """By planning with the list planner: any problem."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem = problem
        self._weights = _weights(problem)
        self._planned = len(plan.estimates)

    def worth(self, order: Sequence[Directed]) -> float:
        """As Evaluator has it."""
        found = greedy.plan_directed(self._problem, order)
        return _worth(found, self._weights) if len(found.estimates) >= self._planned else inf

    def keep(self) -> None:
        """Nothing of an earlier order is used again."""


def polish(problem: Problem, plan: Plan, jobs: int, places: int, until_s: float = inf, seed: int = 1) -> Polished:
    """Change the order of the first `jobs` jobs that the plan decided on.

    places: how many jobs the list planner may place in all; where `quick` does it, QUICK_FACTOR times as many. until_s:
    on time.perf_counter.
    """
    number = {head.job: at for at, queue in enumerate(problem.queues) for head in queue.heads}
    current = [Directed(number[id_], frozenset(_all(problem, number[id_]))) for id_ in list(plan.estimates)[:jobs]]
    if len(current) < 2:
        return Polished(None, 0)
    is_quick = covers(problem)
    evaluator: Evaluator = Quick(problem, current) if is_quick else _Listed(problem, plan)
    tries = places * (QUICK_FACTOR if is_quick else 1) // len(plan.estimates)
    worth, best = _worth(plan, _weights(problem)), None
    random = Random(seed)  # noqa: S311 (a search, not a secret)
    for done in range(tries):
        if until_s < inf and perf_counter() > until_s:
            tries = done
            break
        changed = _changed(problem, current, random)
        value = evaluator.worth(changed)
        if value <= worth:
            evaluator.keep()
            if value < worth:
                best = changed
            current, worth = changed, value
    return Polished(None if best is None else greedy.plan_directed(problem, best), tries)


def _weights(problem: Problem) -> dict[JobId, float]:
    return {head.job: queue.weight(position) for queue in problem.queues for position, head in enumerate(queue.heads)}


def _worth(plan: Plan, weights: dict[JobId, float]) -> float:
    now_s = plan.stamp.steady_s
    return sum(weights[id_] * (start.end_s - now_s + start.charge_s) for id_, start in plan.estimates.items())


def _all(problem: Problem, queue: int) -> range:
    return range(len(problem.queues[queue].sites))


def _changed(problem: Problem, order: Sequence[Directed], random: Random) -> list[Directed]:
    """One job elsewhere in the order, or bound to other GPUs."""
    found = list(order)
    at = random.randrange(len(found))
    if random.random() < REORDERING:
        moved = found.pop(at)
        found.insert(max(0, min(len(found), at + random.choice(STEPS))), moved)
        return found
    sites = problem.queues[found[at].queue].sites
    types = sorted({site.type for site in sites})
    chosen = random.randrange(len(types) + 1)
    free = chosen == len(types)
    bound = frozenset(at for at, site in enumerate(sites) if free or site.type == types[chosen])
    found[at] = Directed(found[at].queue, bound)
    return found
