"""Settings of the running daemon over the socket: shown with their origin, changed at once, rehearsed, remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuq.core import greedy
from gpuq.core.model import Stamp
from gpuq.core.states import JobState
from tests.daemon.stage import Json, Stage, played
from tests.fakes import FakeAgent, FakeStore

NEVER: dict[str, Any] = {"begin_at": 2e9}


async def setting(stage: Stage, key: str) -> Json:
    """One row of GET /v1/config."""
    return next(each for each in (await stage.get("/v1/config"))["settings"] if each["key"] == key)


@played
async def test_a_setting_tells_its_value_and_where_it_comes_from(tmp_path: Path) -> None:
    """Default, file, or who set it and when; unset it is as before."""
    async with Stage(tmp_path) as stage:
        stage.desk.stated = frozenset({"planner.every_s"})
        assert (await setting(stage, "planner.every"))["source"] == "file"
        assert (await setting(stage, "impact.age"))["source"] == "default"
        answer = await stage.post("/v1/config", {"key": "impact.age", "value": "0.5"})
        assert (answer["before"]["value"], answer["setting"]["value"]) == (1.0, 0.5)
        found = await setting(stage, "impact.age")
        assert (found["source"], found["set_at"], found["otherwise"]) == ("set", stage.clock.wall_s, 1.0)
        assert found["by"]
        assert stage.planner.weights.age == 0.5
        await stage.post("/v1/config", {"key": "impact.age", "value": None})
        assert (await setting(stage, "impact.age"))["source"] == "default"
        assert stage.planner.weights.age == 1.0
        changes = (await stage.get("/v1/config/history"))["changes"]
        assert [(each["key"], each["value"], each["by"]) for each in changes] == [
            ("impact.age", 0.5, found["by"]), ("impact.age", None, found["by"]),
        ]  # fmt: skip


@played
async def test_what_was_set_survives_a_restart(tmp_path: Path) -> None:
    """A daemon that starts from the same journal plans with the same values."""
    store = FakeStore()
    async with Stage(tmp_path, store=store) as stage:
        await stage.post("/v1/config", {"key": "planner.every", "value": "5s"})
    async with Stage(tmp_path, store=store) as stage:
        assert (await setting(stage, "planner.every"))["value"] == 5.0


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"key": "impact.agee", "value": "1"}, "not_found", "'impact.agee' is not a setting"),
        ({"key": "impact.age", "value": "many"}, "usage", "impact.age must be a number from 0 to 100, not 'many'"),
        ({"key": "impact.age", "value": []}, "usage", "must be a number from 0 to 100"),
        ({"key": "planner.every", "value": "0s"}, "usage", "planner.every must be a duration from 1 s to"),
        ({"value": "1"}, "usage", "'key' must be a text"),
    ],
)
@played
async def test_what_cannot_be_set_is_refused(tmp_path: Path, body: Json, kind: str, words: str) -> None:
    """By the change and by its rehearsal alike; nothing is written."""
    async with Stage(tmp_path) as stage:
        for path in ("/v1/config", "/v1/config/dry-run"):
            refusal = await stage.refusal("POST", path, body)
            assert refusal.kind == kind
            assert words in refusal.message
        assert stage.loop.state.setting_changes == ()


async def queue_of_two(stage: Stage) -> tuple[str, str, str]:
    """One job runs; a long one waits since long, a short one since now."""
    running = await stage.run_job(name="busy", time_limit_s=90_000.0)
    old = await stage.submit(name="old", time_limit_s=4000.0)
    stage.clock.advance(40_000)
    return running, old, await stage.submit(name="short", time_limit_s=600.0)


@played
async def test_a_rehearsal_names_who_would_change_place_and_changes_nothing(tmp_path: Path) -> None:
    """Both waiting jobs swap when age no longer counts; the setting stays."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        _, old, short = await queue_of_two(stage)
        commits = len(stage.store.commits)
        found = await stage.post("/v1/config/dry-run", {"key": "impact.age", "value": "0"})
        places = {each["id"]: (each["place_before"], each["place_after"]) for each in found["jobs"]}
        assert places == {old: (1, 2), short: (2, 1)}
        assert (found["before"], found["value"], found["planned"]) == (1.0, 0.0, 2)
        assert found["impact_factor_after"] > found["impact_factor_before"]
        by_id = {each["id"]: each for each in found["jobs"]}
        assert by_id[old]["start_before_at"] == by_id[short]["start_after_at"] > stage.clock.wall_s
        same = await stage.post("/v1/config/dry-run", {"key": "impact.age", "value": "1"})
        assert same["jobs"] == []
        assert same["impact_factor_before"] == same["impact_factor_after"]
        assert len(stage.store.commits) == commits
        assert stage.planner.weights.age == 1.0


@played
async def test_the_next_start_follows_the_new_value(tmp_path: Path) -> None:
    """The job that the rehearsal put first starts first."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        running, old, short = await queue_of_two(stage)
        await stage.post("/v1/config", {"key": "impact.age", "value": "0"})
        await stage.end_job(running)
        await stage.reaches(short, "RUNNING")
        assert stage.job(old).state is JobState.PENDING


@played
async def test_a_change_makes_the_planner_look_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatch plan that follows the commit has the new weights already."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        ages: list[float] = []
        real = greedy.dispatch

        def dispatch(state: Any, stamp: Stamp, weights: Any) -> Any:
            ages.append(weights.age)
            return real(state, stamp, weights)

        monkeypatch.setattr(greedy, "dispatch", dispatch)
        await stage.post("/v1/config", {"key": "impact.age", "value": "3"})
        await stage.get("/v1/config")
        assert ages == [3.0]


@played
async def test_the_planners_pace_follows_its_settings(tmp_path: Path) -> None:
    """planner.min_gap and planner.every decide when the full plan is made anew."""
    async with Stage(tmp_path, agent=FakeAgent(gpus=1)) as stage:
        await stage.run_job()
        await stage.submit()
        await stage.post("/v1/config", {"key": "planner.min_gap", "value": "10s"})
        stage.clock.advance(20)
        first = stage.planner.estimates()
        await stage.submit()
        stage.clock.advance(5)
        assert stage.planner.estimates() is first, "younger than the new min_gap"
        stage.clock.advance(6)
        second = stage.planner.estimates()
        assert second is not first
        await stage.post("/v1/config", {"key": "planner.every", "value": "100s"})
        stage.clock.advance(11)
        third = stage.planner.estimates()
        stage.clock.advance(50)
        stage.planner.time_passed()
        assert stage.planner.estimates() is third, "younger than the new every"
        stage.clock.advance(51)
        stage.planner.time_passed()
        assert stage.planner.estimates() is not third
