"""What energy and fragmentation cost, and how that moves a job to another GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuq.core import greedy
from gpuq.core.compare import compare
from gpuq.core.costs import MOST_RUNS, Stranding, charge_s, costs_of
from gpuq.core.impact import FREE, Weights, impact
from gpuq.core.model import JobId, Node
from gpuq.core.plan import Plan, UnsoundPlan, check_plan, objective
from gpuq.core.problem import Problem
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from gpuq.solve.cpsat import CpSat
from tests.builders import cluster, node, place, remember, stamp, submit

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


# --- fragmentation --------------------------------------------------------------------------------------


def four_and_five() -> ClusterState:
    """Machines with 4 and 5 free GPUs, a short job of one GPU and a job of four."""
    state = cluster(node("mill", "A100:4"), node("barn", "A100:5"))
    submit(state, gpus=1, time_limit_s=600.0)
    submit(state, gpus=4, time_limit_s=7200.0)
    return state


def test_stranded_gpus_are_those_the_waiting_sizes_leave_over() -> None:
    """4 free: a job of one leaves 3 that half of the jobs cannot use. 5 free: it leaves 4, a gain, not charged."""
    problem, _ = planned(four_and_five(), fragmentation=1.0)
    one = next(queue for queue in problem.queues if queue.gpus == 1)
    found = Stranding(problem)
    amounts = {problem.machines[site.machine].node: found.gpus(one, site) for site in one.sites}
    assert amounts == {"mill": pytest.approx(1.5), "barn": 0.0}


@pytest.mark.parametrize(("fragmentation", "places"), [(0.0, ["mill", "barn"]), (0.2, ["barn", "mill"])])
def test_a_job_takes_the_machine_where_it_strands_less(fragmentation: float, places: list[str]) -> None:
    """Best fit takes the machine with 4; with a cost of fragmentation the job leaves it whole for the job of four."""
    _, plan = planned(four_and_five(), fragmentation=fragmentation)
    assert [start.node for start in plan.starts] == places


def test_a_comparison_shows_who_moves_for_fragmentation() -> None:
    """What `config set impact.fragmentation 0.2 --dry-run` compares: both jobs change machine, none its time."""
    state = four_and_five()
    before, after = planned(state), planned(state, fragmentation=0.2)
    moved = {each.job: (each.node_before, each.node_after) for each in compare(*before, *after).moved}
    assert moved == {"1": ("mill", "barn"), "2": ("barn", "mill")}


def test_stranding_where_nothing_else_is_free_is_charged_and_proved() -> None:
    """One machine only: the job starts and is charged, its impact is lower, and a forged charge is found out."""
    state = cluster(node("mill", "A100:4"))
    submit(state, gpus=1, time_limit_s=600.0)
    submit(state, gpus=4, time_limit_s=7200.0)
    _, free = planned(state)
    problem, plan = planned(state, fragmentation=0.2)
    mine = plan.starts[0]
    assert mine.job == "1"
    weight = problem.queues[0].weight(0)
    assert mine.charge_s == pytest.approx((mine.end_s - mine.start_s) * 0.3 / (weight - 0.3))
    assert mine.impact < free.starts[0].impact
    later = plan.estimates[JobId("2")]
    assert later.start_s > plan.stamp.steady_s
    assert later.charge_s == 0.0
    forged = replace(mine, charge_s=0.0)
    with pytest.raises(UnsoundPlan, match="is charged 0 s"):
        check_plan(problem, replace(plan, starts=(forged,), estimates={**plan.estimates, mine.job: forged}))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([1, 1, 2, 3, 4]), max_size=8), st.sampled_from([0.05, 0.3, 5.0]), st.integers(0, 3))
def test_plans_with_a_cost_of_fragmentation_are_sound(sizes: list[int], fragmentation: float, running: int) -> None:
    """Whatever waits and runs: the proof agrees with the planner, with and without estimates, and twice the same."""
    state = cluster(node("mill", "A100:4"), node("barn", "A100:3", "V100:2"))
    for _ in range(running):
        place(state, submit(state, time_limit_s=900.0), "mill")
    for number, size in enumerate(sizes):
        submit(state, gpus=size, time_limit_s=600.0 * (1 + number % 3))
    _, plan = planned(state, fragmentation=fragmentation)
    assert planned(state, fragmentation=fragmentation)[1] == plan
    now = greedy.dispatch(state, stamp(), Weights(fragmentation=fragmentation))
    assert {start.job for start in now.starts} <= {job for queue in state.waiting.values() for job in queue}
