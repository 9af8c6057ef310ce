"""When the daemon plans and what becomes of it: starts after changes, faults that stop nothing, plans kept a while."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from gpuq.config import AccountConfig, ImpactConfig, PlannerConfig
from gpuq.core import greedy
from gpuq.core.model import JobId
from gpuq.core.plan import Plan
from gpuq.core.problem import Problem
from gpuq.core.requests import DrainNode, Place
from gpuq.core.snapshot import to_bytes
from gpuq.core.states import JobState
from gpuq.daemon import loop as loop_module
from gpuq.daemon.planner import DaemonPlanner
from gpuq.errors import InternalError
from gpuq.journal.problems import JournalFull
from tests.builders import user
from tests.daemon.stage import Stage, played, submit_body
from tests.fakes import FakeAgent, turns, until

NEVER: dict[str, Any] = {"begin_at": 2e9}


@played
async def test_a_change_lets_the_next_job_start(tmp_path: Path) -> None:
    """Jobs start when they are submitted, when a GPU comes free and when they are released, first come first served."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        first, second, third = [await stage.submit() for _ in range(3)]
        await stage.reaches(first, "RUNNING")
        await stage.post("/v1/hold", {"ids": [second]})
        await stage.end_job(first)
        await stage.reaches(third, "RUNNING")
        assert stage.job(second).state is JobState.PENDING
        await stage.end_job(third)
        await stage.post("/v1/release", {"ids": [second]})
        await stage.reaches(second, "RUNNING")


@played
async def test_time_lets_a_job_start(tmp_path: Path) -> None:
    """A begin time that has come is seen with the next tick, without any other event."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit(begin_at=stage.clock.wall_s + 60)
        await turns()
        assert stage.job(id_).state is JobState.PENDING
        stage.clock.advance(61)
        stage.planner.time_passed()
        await stage.reaches(id_, "RUNNING")


@played
async def test_placements_of_one_plan_are_one_commit(tmp_path: Path) -> None:
    """All jobs that one plan starts are placed in one transaction."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=4)) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        commits = len(stage.store.commits)
        body = {"submits": [submit_body() for _ in range(4)]}
        ids = (await stage.post("/v1/jobs/batch", body))["ids"]
        for id_ in ids:
            await stage.reaches(id_, "RUNNING")
        kinds = [{type(event).__name__ for event in commit} for commit in stage.store.commits[commits:]]
        assert kinds[:2] == [{"JobsSubmitted"}, {"JobPlaced"}]
        assert len(stage.store.commits[commits + 1]) == 4


@pytest.mark.parametrize("fault", [ZeroDivisionError("a fault"), InternalError("a fault")])
@played
async def test_a_failing_planner_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """A planner that fails is logged and starts nothing in that pass; the next change tries again."""
    real, faults = greedy.dispatch, [fault]

    def dispatch(*arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return real(*arguments)

    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        monkeypatch.setattr(greedy, "dispatch", dispatch)
        first = await stage.submit()
        await until(lambda: not faults, "the planner has failed")
        assert stage.job(first).state is JobState.PENDING
        second = await stage.submit()
        await stage.reaches(first, "RUNNING")
        await stage.reaches(second, "RUNNING")
        assert any("a fault" in record.getMessage() or record.exc_info for record in caplog.records)


@played
async def test_a_full_disk_does_not_stop_the_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Placements that cannot be written are dropped, each requester's error is taken note of, and later all start."""
    monkeypatch.setattr(loop_module, "RETRY_S", 0.005)
    strays: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: strays.append(found))
    async with Stage(tmp_path, agent=FakeAgent(gpus=2)) as stage:
        body = {"submits": [submit_body(**NEVER), submit_body(**NEVER)]}
        ids = (await stage.post("/v1/jobs/batch", body))["ids"]
        stage.store.failing = JournalFull("The disk is full.")
        stage.clock.wall_s = 3e9
        stage.planner.time_passed()
        await until(lambda: stage.loop.degraded, "the daemon is degraded")
        await turns()
        assert [stage.job(id_).state.value for id_ in ids] == ["PENDING", "PENDING"]
        assert stage.agent.sent("start") == []
        stage.store.failing = None
        await until(lambda: stage.loop.degraded is None, "the daemon has recovered")
        stage.planner.time_passed()
        for id_ in ids:
            await stage.reaches(id_, "RUNNING")
        assert sum("was not started" in record.getMessage() for record in caplog.records) == 2
    assert strays == []


@played
async def test_no_planning_while_degraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be written, nothing is planned either."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        calls: list[int] = []
        monkeypatch.setattr(greedy, "dispatch", lambda *arguments: calls.append(1))
        stage.loop.degraded = "The disk is full."
        stage.planner.time_passed()
        await turns()
        assert calls == []
        stage.loop.degraded = None


@played
async def test_a_placement_that_no_longer_fits_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Between plan and commit the job may be gone: the placement is dropped with a note, and nothing breaks."""
    caplog.set_level(logging.INFO)
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        real = stage.loop.ask_later

        def ask_later(request: Any, blobs: Any = None) -> Any:
            if isinstance(request, Place):
                del stage.loop.ask_later
                hold = next(iter(stage.loop.state.nodes))
                real(DrainNode(node=hold, reason="now", by=user("root", admin=True)))
            return real(request, blobs)

        stage.loop.ask_later = ask_later  # type: ignore[method-assign]
        id_ = await stage.submit()
        await until(lambda: "is drained" in caplog.text, "the note is logged")
        assert stage.job(id_).state is JobState.PENDING
        assert stage.loop.state.owners == {}


# --- the full plan --------------------------------------------------------------------------------------


@played
async def test_the_full_plan_is_kept_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again, the same plan answers; after a change a new one, but not more often than min_gap."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        await stage.run_job()
        await stage.submit()
        calls: list[int] = []
        real = greedy.plan

        def plan(problem: Problem) -> Plan:
            calls.append(1)
            return real(problem)

        monkeypatch.setattr(greedy, "plan", plan)
        stage.clock.advance(10)
        first = stage.planner.estimates()
        assert stage.planner.estimates() is first
        waiting = await stage.submit()
        assert stage.planner.estimates() is first, "younger than min_gap"
        stage.clock.advance(2)
        second = stage.planner.estimates()
        assert JobId(waiting) in second.estimates
        assert len(calls) == 2
        stage.clock.advance(31)
        stage.planner.time_passed()
        assert stage.planner.estimates() is not second, "an old plan is made anew although nothing changed"


@played
async def test_a_waiting_job_says_why_and_when(tmp_path: Path) -> None:
    """The list, the job and `why` agree about the reason, and name when it is expected to start."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        running = await stage.run_job(time_limit_s=600.0)
        waiting = await stage.submit()
        stage.clock.advance(5)
        (job,) = (await stage.get("/v1/jobs", states="PD"))["jobs"]
        why = (await stage.get(f"/v1/jobs/{waiting}/why"))["why"]
        assert job["id"] == why["id"] == waiting
        assert job["reason"] == why["reason"] == "Resources"
        assert f"{running} holds" in why["message"]
        assert why["planned"]["start_at"] >= stage.clock.wall_s
        assert job["expected_start_at"] is not None
        assert [each["id"] for each in why["blockers"]] == [running]
        assert [(each["type"], each["node"]) for each in why["options"]] == [("A100-40G", "local")]


@played
async def test_why_has_every_term_of_the_impact(tmp_path: Path) -> None:
    """Weight is the product of its factors; each option's impact follows from it; the running job's is its price."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        running = await stage.run_job(name="busy", time_limit_s=90_000.0)
        waiting = await stage.submit(name="vit", time_limit_s=7200.0, priority=10)
        await stage.submit(name="other", time_limit_s=7200.0)
        stage.clock.advance(3600)
        why = (await stage.get(f"/v1/jobs/{waiting}/why"))["why"]
        weight = why["weight"]
        assert (weight["priority"], weight["waited_s"], weight["age_base_s"]) == (pytest.approx(4 / 3), 3600.0, 7200.0)
        assert weight["age"] == 1.5
        assert weight["value"] == pytest.approx(weight["priority"] * weight["age"])
        assert (weight["balance"], weight["deadline"], weight["deadline_at"]) == (1.0, 1.0, None)
        (option,) = why["options"]
        assert option["run_s"] == 7200.0
        assert option["impact"] == why["impact"] == pytest.approx(weight["value"] * 3600 / 7200.0)
        assert option["price"] == why["prices"]["A100-40G"]
        assert option["price"] == (await stage.get(f"/v1/jobs/{running}/why"))["why"]["impact"]
        assert {each["name"]: each["parameter"] for each in why["costs"]} == {
            "energy": 0.0, "restart": 0.0, "fragmentation": 0.0, "interference": 0.0,
        }  # fmt: skip
        assert (why["planner"], why["solve"]) == ("greedy", None)


@played
async def test_why_tells_of_deadline_and_account(tmp_path: Path) -> None:
    """Slack and rise while the deadline can be met; afterwards the loss of the rise; and whose account pays."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        await stage.run_job(time_limit_s=600.0)
        waiting = await stage.submit(time_limit_s=600.0, deadline_at=stage.clock.wall_s + 1200)
        weight = (await stage.get(f"/v1/jobs/{waiting}/why"))["why"]["weight"]
        assert (weight["slack_s"], weight["deadline"]) == (pytest.approx(600.0), pytest.approx(4.5))
        assert weight["deadline_at"] == stage.clock.wall_s + 1200
        assert weight["account"]["account"] == stage.job(waiting).owner.name
        assert (weight["account"]["share"], weight["balance"]) == (1.0, 1.0)
        stage.clock.advance(601)
        await stage.submit()
        weight = (await stage.get(f"/v1/jobs/{waiting}/why"))["why"]["weight"]
        assert (weight["slack_s"], weight["deadline"]) == (pytest.approx(-1.0), 1.0)
        late = await stage.post("/v1/jobs", submit_body(deadline_at=stage.clock.wall_s - 5))
        assert any("the deadline is already past" in note for note in late["notes"])


@played
async def test_why_tells_when_the_plan_was_made(tmp_path: Path) -> None:
    """An unchanged state keeps its plan and its moment; a change, also of a setting, makes a new one."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        await stage.run_job(time_limit_s=600.0)
        waiting = await stage.submit()

        async def planned_at() -> float:
            return float((await stage.get(f"/v1/jobs/{waiting}/why"))["why"]["planned_at"])

        first = await planned_at()
        stage.clock.advance(7)
        assert await planned_at() == first == stage.clock.wall_s - 7
        await stage.post("/v1/config", {"key": "impact.age", "value": "2"})
        assert await planned_at() == stage.clock.wall_s


@played
async def test_why_of_a_running_and_of_an_ended_job(tmp_path: Path) -> None:
    """A running job says where it runs; an ended one how it ended, with nothing planned."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        why = (await stage.get(f"/v1/jobs/{id_}/why"))["why"]
        assert (why["state"], why["message"], why["planned"]) == ("RUNNING", "it is running on local", None)
        await stage.end_job(id_, 3)
        why = (await stage.get(f"/v1/jobs/{id_}/why"))["why"]
        assert (why["state"], why["reason"], why["options"]) == ("FAILED", "NonZeroExitCode", [])


@played
async def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    """It tells where and when, refuses what a submit would refuse, and leaves no trace, also with a known key."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        body = submit_body()
        start = (await stage.post("/v1/jobs/dry-run", body))["start"]
        assert (start["now"], start["node"], start["reason"]) == (True, "local", None)
        assert [gpu["uuid"] for gpu in start["gpus"]] == ["GPU-0"]
        assert stage.loop.state.jobs == {}
        await stage.post("/v1/jobs", body)
        await stage.reaches("1", "RUNNING")
        before, commits = to_bytes(stage.loop.state), len(stage.store.commits)
        start = (await stage.post("/v1/jobs/dry-run", body))["start"]
        assert (start["now"], start["reason"]) == (False, "Resources")
        assert start["at"] > stage.clock.wall_s
        assert (await stage.refusal("POST", "/v1/jobs/dry-run", submit_body({"gpus": 5}))).kind == "refused"
        assert (to_bytes(stage.loop.state), len(stage.store.commits)) == (before, commits)


@played
async def test_caps_of_the_settings_hold_in_the_daemon(tmp_path: Path) -> None:
    """A job waits for its cap beside a free GPU and says so; a larger one is refused; loading anew keeps the cap."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=2)) as stage:
        DaemonPlanner(stage.loop, PlannerConfig(max_gpus_per_user=1), ImpactConfig(), (AccountConfig("lab", ("eve",)),))
        await stage.post("/v1/jobs", submit_body())
        await stage.reaches("1", "RUNNING")
        await stage.post("/v1/jobs", submit_body())
        for _ in range(2):
            why = (await stage.get("/v1/jobs/2/why"))["why"]
            assert (why["state"], why["reason"]) == ("PENDING", "UserGpuLimit")
            assert why["planned"]["start_at"] > stage.clock.wall_s
            assert [option["start_at"] for option in why["options"]] == [pytest.approx(why["planned"]["start_at"])]
            refusal = await stage.refusal("POST", "/v1/jobs", submit_body({"gpus": 2}))
            assert "[planner] max_gpus_per_user" in refusal.message
            stage.loop.load()


@played
async def test_expected_end_of_a_running_job(tmp_path: Path) -> None:
    """Null while it is a guess; after earlier runs of the same name it is a time."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        first = await stage.run_job(name="same")
        assert stage.planner.expected_end_at(stage.job(first)) is None
        await stage.end_job(first)
        for _ in range(2):
            await stage.end_job(await stage.run_job(name="same"))
        id_ = await stage.run_job(name="same")
        end_at = stage.planner.expected_end_at(stage.job(id_))
        assert end_at is not None
        assert stage.clock.wall_s < end_at < stage.clock.wall_s + 3600
        assert (await stage.get(f"/v1/jobs/{id_}"))["job"]["expected_end_at"] == pytest.approx(end_at)


@played
async def test_the_impact_factor_of_today(tmp_path: Path) -> None:
    """Null before anything ran; a number afterwards."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        assert (await stage.get("/v1/status"))["impact_factor_today"] is None
        id_ = await stage.run_job()
        stage.clock.advance(60)
        await stage.end_job(id_, ended_at=stage.clock.wall_s)
        assert (await stage.get("/v1/status"))["impact_factor_today"] > 0
