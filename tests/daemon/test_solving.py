"""When the daemon asks the solver, and what becomes of its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuq.core import greedy
from gpuq.core.plan import Plan, SolveRecord
from gpuq.core.problem import Problem
from gpuq.core.survey import snapshot
from gpuq.daemon.solving import Solving
from gpuq.solve import cpsat
from tests.builders import cluster, node, remember, stamp, submit
from tests.daemon.stage import Stage, played
from tests.fakes import FakeAgent


def contended(run_s: float, informed: bool = True, jobs: int = 4) -> tuple[Problem, Plan]:
    """One GPU and so many equal jobs."""
    state = cluster(node("mill", "A100"))
    remember(state, "fit", *[run_s] * (3 if informed else 1))
    for _ in range(jobs):
        submit(state, name="fit")
    problem = snapshot(state, stamp())
    return problem, greedy.plan(problem)


@pytest.mark.parametrize(
    ("run_s", "informed", "jobs", "expected_s"),
    [
        (36000.0, True, 100, 1.0),  # all of the budget
        (36000.0, True, 4, 0.2),  # a short queue
        (20.0, True, 100, 0.2),  # a hundredth of the run that waits for it
        (1.5, True, 100, 0.0),  # not worth a thread
        (36000.0, False, 100, 0.0),  # nothing but guesses
        (36000.0, True, 1, 0.0),  # nobody competes
    ],
)
def test_the_time_given_is_worth_its_cost(run_s: float, informed: bool, jobs: int, expected_s: float) -> None:
    """GPUs idle while the solver thinks, so it gets little where little can be won."""
    assert Solving().budget_s(*contended(run_s, informed, jobs), most_s=1.0) == pytest.approx(expected_s)


async def crowded(stage: Stage) -> list[str]:
    """Three known long runs, then one job that runs and three that wait for its GPU."""
    for _ in range(3):
        await stage.end_job(await stage.run_job(name="fit"), run_s=36000.0)
    blocker = await stage.run_job(name="fit")
    return [blocker, *[await stage.submit(name="fit") for _ in range(3)]]


@played
async def test_the_solver_is_asked_when_jobs_compete_and_why_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU comes free with three jobs waiting: the solver looks, the first starts, and `why` has the record."""
    asked: list[float] = []

    def improve(self: Any, problem: Problem, plan: Plan) -> Plan:
        asked.append(self._budget)
        record = SolveRecord(greedy_objective=9.0, objective=8.0, status="better", time_s=0.1)
        return replace(plan, planner="cp-sat", solve=record)

    monkeypatch.setattr(cpsat.CpSat, "improve", improve)
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        ids = await crowded(stage)
        await stage.end_job(ids[0], run_s=36000.0)
        await stage.reaches(ids[1], "RUNNING")
        assert asked == [pytest.approx(0.15)]
        why = stage.planner.explain(stage.job(ids[2]))
        assert (why["solve"]["status"], why["solve"]["objective"]) == ("better", 8.0)


@pytest.mark.parametrize("fault", [RuntimeError("crash"), ImportError("no ortools")])
@played
async def test_without_a_working_solver_the_list_plan_starts_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """A solver that crashes or is not installed is logged, and the next job starts all the same."""

    def improve(self: Any, problem: Problem, plan: Plan) -> Plan:
        raise fault

    monkeypatch.setattr(cpsat.CpSat, "improve", improve)
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        ids = await crowded(stage)
        await stage.end_job(ids[0], run_s=36000.0)
        await stage.reaches(ids[1], "RUNNING")
    assert "solver" in caplog.text
