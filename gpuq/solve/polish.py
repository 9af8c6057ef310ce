"""Small changes to the order of a plan, kept while they help. Imports core.greedy and core.plan.

A plan of the list planner follows from the order in which it takes the jobs, and the GPUs each may take. One job is
moved to another place in the order, or bound to GPUs of one type, or set free again; the planner plans anew, and the
change is kept when the sum of weight x end is no larger. This is the neighbourhood that exact windows do not reach: one
change moves every job behind it.

One thing to know: the number of tries is given and the draws are seeded, so equal problems get equal plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from time import perf_counter
from typing import Final, NamedTuple

from gpuq.core import greedy
from gpuq.core.greedy import Directed
from gpuq.core.model import JobId
from gpuq.core.plan import Plan
from gpuq.core.problem import Problem

STEPS: Final = (-8, -5, -3, -2, -1, 1, 2, 3, 5)
REORDERING: Final = 0.7  # share of the tries


class Polished(NamedTuple):
    """The best order found, as directions, and its plan; None when nothing helped."""

    plan: Plan | None
    tries: int


def polish(
    problem: Problem, plan: Plan, jobs: int, tries: int, until_s: float = inf, seed: int = 1
) -> Polished:
    """Change the order of the first `jobs` jobs that the plan decided on; until_s: on time.perf_counter."""
    number = {head.job: at for at, queue in enumerate(problem.queues) for head in queue.heads}
    weights = {
        head.job: queue.weight(position) for queue in problem.queues for position, head in enumerate(queue.heads)
    }
    current = [Directed(number[id_], frozenset(_all(problem, number[id_]))) for id_ in list(plan.estimates)[:jobs]]
    worth, best = _worth(plan, weights), None
    random = Random(seed)  # noqa: S311 (a search, not a secret)
    for _ in range(tries if len(current) > 1 else 0):
        if until_s < inf and perf_counter() > until_s:
            break
        changed = _changed(problem, current, random)
        found = greedy.plan_directed(problem, changed)
        value = _worth(found, weights)
        if value <= worth and len(found.estimates) >= len(plan.estimates):
            if value < worth:
                best = found
            current, worth = changed, value
    return Polished(best, tries)


def _worth(plan: Plan, weights: dict[JobId, float]) -> float:
    return sum(weights[id_] * (start.end_s + start.charge_s) for id_, start in plan.estimates.items())


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
