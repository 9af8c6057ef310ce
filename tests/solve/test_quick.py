"""The quick worth of an order: the list planner's, to the last tie, whatever was asked before."""

from __future__ import annotations

import random

import pytest

from gpuq.core import greedy
from gpuq.core.greedy import Directed
from gpuq.core.problem import Problem
from gpuq.core.survey import snapshot
from gpuq.solve.polish import polish
from gpuq.solve.quick import Quick, covers
from tests.builders import cluster, node, place, remember, stamp, submit


def crowd(seed: int, known_kinds: int = 7) -> Problem:
    """Jobs of seven kinds on ten GPUs of three types, some busy; of the first kinds the run times are known."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    state = cluster(node("mill", "A100:2", "V100:2"), node("barn", "V100:4"), node("attic", "T4:2"))
    for number in range(16):
        name = f"kind{number % 7}"
        if number < known_kinds:
            remember(state, name, *[chance.choice([300.0, 1800.0, 7200.0, 40000.0])] * 3)
        submit(state, name=name, gpus=chance.choice([1, 1, 2, 4] if number % 3 else [1, 2]), at=float(number))
    place(state, submit(state, gpus=2, name="kind0", at=20.0), "mill", at=20.0)
    return snapshot(state, stamp(600.0))


def first_jobs(problem: Problem, jobs: int) -> list[Directed]:
    """The first jobs of the list plan, bound to nothing."""
    number = {head.job: at for at, queue in enumerate(problem.queues) for head in queue.heads}
    planned = [number[id_] for id_ in list(greedy.plan(problem).estimates)[:jobs]]
    return [Directed(at, frozenset(range(len(problem.queues[at].sites)))) for at in planned]


def listed_worth(problem: Problem, order: list[Directed]) -> float:
    """The same sum from the list planner's own plan."""
    weights = {
        head.job: queue.weight(position) for queue in problem.queues for position, head in enumerate(queue.heads)
    }
    found = greedy.plan_directed(problem, order).estimates
    return sum(weights[id_] * (start.end_s - problem.stamp.steady_s) for id_, start in found.items())


@pytest.mark.parametrize("known_kinds", [7, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_worth_is_that_of_the_list_plan(seed: int, known_kinds: int) -> None:
    """Over a walk of moves and bindings, kept and not kept, both sums agree; with guesses among the run times too."""
    problem = crowd(seed, known_kinds)
    assert covers(problem)
    order = first_jobs(problem, 10)
    quick = Quick(problem, order)
    chance = random.Random(seed)
    for _ in range(60):
        changed = order.copy()
        moved = changed.pop(chance.randrange(len(changed)))
        if chance.random() < 0.4:
            sites = range(len(problem.queues[moved.queue].sites))
            moved = Directed(moved.queue, frozenset(chance.sample(sites, chance.randint(1, len(sites)))))
        changed.insert(chance.randint(0, len(changed)), moved)
        assert quick.worth(changed) == pytest.approx(listed_worth(problem, changed), rel=1e-12)
        if chance.random() < 0.5:
            quick.keep()
            order = changed


def test_what_else_runs_out_is_left_to_the_list_planner() -> None:
    """Where jobs ask for CPUs the problem is not covered; its order is searched all the same."""
    state = cluster(node("mill", "A100:2", cpus=8))
    for number in range(6):
        submit(state, gpus=1, cpus=4, at=float(number))
    problem = snapshot(state, stamp(600.0))
    assert not covers(problem)
    assert polish(problem, greedy.plan(problem), 6, 600).tries > 0
