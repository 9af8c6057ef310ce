"""What energy costs, and how that moves a job to another GPU."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpuq.core import greedy
from gpuq.core.costs import MOST_RUNS, charge_s, costs_of
from gpuq.core.impact import FREE, Weights, impact
from gpuq.core.model import Node
from gpuq.core.plan import Plan, UnsoundPlan, check_plan, objective
from gpuq.core.problem import Problem
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from gpuq.solve.cpsat import CpSat
from tests.builders import cluster, node, remember, stamp, submit

POWER_W = {"A100": 400.0, "RTX3090": 150.0, "V100": 300.0}


def powered(name: str, *kinds: str) -> Node:
    """A node whose GPUs have the limits of POWER_W."""
    made = node(name, *kinds)
    return replace(made, gpus=tuple(replace(gpu, power_limit_w=POWER_W[gpu.type]) for gpu in made.gpus))


def planned(state: ClusterState, **parameters: Any) -> tuple[Problem, Plan]:
    problem = snapshot(state, stamp(), Weights(**parameters))
    plan = greedy.plan(problem)
    check_plan(problem, plan)
    return problem, plan


def two_types() -> ClusterState:
    """An A100 (1.0, 400 W) and an RTX 3090 (0.6, 150 W), and one job of an hour on the A100."""
    state = cluster(powered("mill", "A100"), powered("barn", "RTX3090"))
    remember(state, "fit", *[3600.0] * 3)
    submit(state, name="fit")
    return state


def test_the_charge_is_the_run_of_equal_impact_without_costs() -> None:
    """Impact with costs over the run time is the impact without over run time and charge."""
    problem, _ = planned(two_types(), energy=0.5)
    queue, weights = problem.queues[0], problem.weights
    site = queue.sites[0]
    costs = costs_of(queue, site, 3600.0, weights)
    assert costs.energy_kwh == pytest.approx(0.4)
    charged_s = 3600.0 + charge_s(queue, 0, site, 3600.0, weights)
    assert queue.impact(0, 3600.0, weights, costs) == pytest.approx(impact(queue.weight(0), 1, charged_s, weights))


@pytest.mark.parametrize(("energy", "type_"), [(0.0, "A100"), (0.1, "A100"), (2.2, "RTX3090")])
def test_dear_energy_moves_a_job_to_the_thriftier_gpu(energy: float, type_: str) -> None:
    """At 0.4 kWh against 0.25 kWh a high price of energy outweighs the longer run, a low one does not."""
    _, plan = planned(two_types(), energy=energy)
    assert [start.type for start in plan.starts] == [type_]


def test_a_job_that_only_dear_gpus_can_run_still_runs() -> None:
    """The costs exceed the weight: it is charged nine runs, and starts as nobody else wants the GPU."""
    state = cluster(powered("mill", "A100"))
    remember(state, "fit", *[3600.0] * 3)
    submit(state, name="fit")
    problem, plan = planned(state, energy=1000.0)
    assert len(plan.starts) == 1
    assert plan.starts[0].charge_s == pytest.approx(MOST_RUNS * 3600.0)
    assert plan.starts[0].impact < 0.0
    assert costs_of(problem.queues[0], problem.queues[0].sites[0], 3600.0, Weights()) is FREE


def test_a_wrong_charge_is_found_out() -> None:
    """The proof recomputes what a planner says costs count as."""
    problem, plan = planned(two_types(), energy=0.5)
    start = replace(plan.starts[0], charge_s=0.0)
    forged = replace(plan, starts=(start,), estimates={start.job: start})
    with pytest.raises(UnsoundPlan, match="is charged 0 s"):
        check_plan(problem, forged)
    assert objective(problem, forged) < objective(problem, plan)


def test_the_solver_counts_costs_as_the_objective_does() -> None:
    """With energy dear and many jobs its plans are sound and no worse."""
    state = cluster(powered("mill", "A100:2"), powered("barn", "RTX3090:2"))
    for number in range(8):
        remember(state, f"kind{number}", *[600.0 * (1 + number)] * 3)
        submit(state, name=f"kind{number}", gpus=1 + number % 2)
    problem, first = planned(state, energy=1.5)
    plan = CpSat(budget=0.1).improve(problem, first)
    check_plan(problem, plan)
    assert objective(problem, plan) <= objective(problem, first)
