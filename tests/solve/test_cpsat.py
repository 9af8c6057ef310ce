"""The solver's planner: never worse than greedy, always sound, best on what can be counted out by hand."""

from __future__ import annotations

import random
from itertools import permutations, product
from typing import Any

import pytest

from gpuq.core import greedy
from gpuq.core.plan import check_plan, objective
from gpuq.core.problem import Problem
from gpuq.core.survey import snapshot
from gpuq.solve import cpsat
from gpuq.solve.cpsat import CpSat
from gpuq.solve.model import Capacity, Choice, Option, Window, WindowJob, hint, solve
from tests.builders import cluster, node, place, remember, stamp, submit


def crowd(seed: int, jobs: int = 14) -> Problem:
    """More jobs with known run times than GPUs, some GPUs busy."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    state = cluster(node("mill", "A100:2", "V100:2"), node("barn", "V100:4"), node("attic", "T4:2"))
    for number in range(jobs):
        name = f"kind{number % 7}"
        if number < 7:
            remember(state, name, *[chance.choice([300.0, 1800.0, 7200.0, 40000.0])] * 3)
        submit(state, name=name, gpus=chance.choice([1, 1, 2, 4] if number % 3 else [1, 2]), at=float(number))
    place(state, submit(state, gpus=2, name="kind0", at=20.0), "mill", at=20.0)
    return snapshot(state, stamp(600.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_sound_and_never_worse_than_greedy(seed: int) -> None:
    """The exact objective falls or stays, the proof holds, and the record says the same in seconds."""
    problem = crowd(seed)
    first = greedy.plan(problem)
    plan = CpSat(budget=0.2).improve(problem, first)
    check_plan(problem, plan)
    assert objective(problem, plan) <= objective(problem, first)
    assert plan.solve is not None
    assert plan.solve.objective == pytest.approx(float(objective(problem, plan)) / 1000)
    assert plan.solve.greedy_objective == pytest.approx(float(objective(problem, first)) / 1000)
    assert plan.planner == ("cp-sat" if plan.solve.objective < plan.solve.greedy_objective else first.planner)


def test_equal_problems_get_equal_plans() -> None:
    """The budget is counted in work, not in time."""
    one, other = (CpSat(budget=0.1).plan(crowd(9)) for _ in range(2))
    assert (one.starts, one.estimates) == (other.starts, other.estimates)


def test_something_is_gained_on_a_crowded_cluster() -> None:
    """Over a few problems the sum of objectives is smaller than greedy's, so the search does look."""
    plans = [CpSat(budget=0.2).plan(crowd(seed)) for seed in range(4)]
    records = [plan.solve for plan in plans if plan.solve is not None]
    assert sum(record.objective for record in records) < sum(record.greedy_objective for record in records)


def test_when_everything_starts_at_once_nothing_is_solved() -> None:
    """The fast path needs no solver."""
    state = cluster(node("mill", "A100:2"))
    submit(state)
    plan = CpSat().plan(snapshot(state, stamp()))
    assert (plan.planner, plan.solve) == ("fast", None)


def test_a_solver_that_breaks_leaves_the_plan_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash inside is named in the record, and nothing is lost by it."""

    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(cpsat, "solve", broken)
    problem = crowd(1)
    plan = CpSat(budget=0.001).plan(problem)
    check_plan(problem, plan)
    assert plan.solve is not None
    assert plan.solve.status == "the solver failed: MemoryError: no room"


# --- the model alone --------------------------------------------------------------------------------------


def small_window(seed: int) -> Window:
    """Five jobs, two lanes of two and one GPUs."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    jobs = tuple(
        WindowJob(
            weight=chance.choice([1.0, 2.0, 5.0]),
            gpus=gpus,
            release_s=0,
            options=tuple(
                Option(lane, chance.randint(1, 9), 0.0) for lane, amount in enumerate((2, 1)) if gpus <= amount
            ),
            chosen=0,
            after=None,
            array=None,
        )
        for gpus in (1, 2, 1, 1, 2)
    )
    return Window(jobs, (Capacity(2, ((0, 3, 1),)), Capacity(1, ())), ())


def worth(window: Window, choices: tuple[Choice, ...]) -> float:
    return sum(
        job.weight * (choice.start_s + job.options[choice.option].run_s)
        for job, choice in zip(window.jobs, choices, strict=True)
    )


def best_by_counting(window: Window) -> float:
    """The least worth over all orders and options, each job at its earliest: contains an optimum."""
    least = float("inf")
    numbers = range(len(window.jobs))
    for order in permutations(numbers):
        for options in product(*(range(len(window.jobs[number].options)) for number in order)):
            jobs = tuple(
                window.jobs[number]._replace(chosen=option) for number, option in zip(order, options, strict=True)
            )
            tried = window._replace(jobs=jobs)
            least = min(least, worth(tried, hint(tried)))
    return least


@pytest.mark.parametrize("seed", range(3))
def test_small_windows_are_solved_to_the_best(seed: int) -> None:
    """On five jobs the solver finds what counting all of them out finds."""
    window = small_window(seed)
    solution = solve(window, 2.0)
    assert solution.status == "optimal"
    assert worth(window, solution.choices) == pytest.approx(best_by_counting(window))


def test_the_hint_keeps_capacities_queues_and_arrays() -> None:
    """One place in the array: the second of its jobs waits although a GPU is free."""
    job = WindowJob(1.0, 1, 0, (Option(0, 10, 0.0),), 0, None, 0)
    window = Window((job, job._replace(after=0)), (Capacity(2, ()),), (Capacity(1, ((0, 4, 1),)),))
    assert [choice.start_s for choice in hint(window)] == [4, 14]
    assert [choice.start_s for choice in solve(window, 1.0).choices] == [4, 14]


def test_hint_and_model_keep_caps() -> None:
    """Two GPUs for the account, one of them held until 4: a job of two waits for it, the next one for that job."""
    job = WindowJob(1.0, 2, 0, (Option(0, 10, 0.0),), 0, None, None, (0,))
    free = WindowJob(1.0, 1, 0, (Option(0, 10, 0.0),), 0, None, None)
    window = Window((job, job._replace(after=0), free), (Capacity(5, ()),), (), (Capacity(2, ((0, 4, 1),)),))
    assert [choice.start_s for choice in hint(window)] == [4, 14, 0]
    assert [choice.start_s for choice in solve(window, 1.0).choices] == [4, 14, 0]
