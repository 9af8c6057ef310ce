"""Questions and verbs over the socket: ids, waiting for every end, batches, lists, history and prune."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuq.core.apply import apply
from gpuq.core.events import JobDropped
from gpuq.core.model import JobId
from gpuq.core.requests import Submit
from gpuq.core.states import FINAL, JobState, Reason
from gpuq.daemon import verbs
from gpuq.daemon.desk import Call
from gpuq.journal.store import Journal
from tests.builders import spec, user
from tests.daemon.stage import Json, Stage, base64_of, played, submit_body
from tests.fakes import until

NEVER: dict[str, Any] = {"begin_at": 2e9}  # a job that waits for years


@asynccontextmanager
async def with_journal(directory: Path, **fields: Any) -> AsyncIterator[Stage]:
    """A stage on the real journal."""
    journal = Journal.open(directory)
    try:
        async with Stage(directory, store=journal, **fields) as stage:
            yield stage
    finally:
        journal.close()


async def submit_as(stage: Stage, name: str) -> str:
    """A job of another user; its id."""
    outcome = await stage.loop.ask(Submit(spec=spec(gpus=0, begin_at=2e9), by=user(name)))
    return str(outcome.events[0].id)  # type: ignore[union-attr]


def ids(answer: Json) -> list[str]:
    return [job["id"] for job in answer["jobs"]]


# --- ids ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["last", "@"])
@played
async def test_last_is_the_callers_newest(tmp_path: Path, word: str) -> None:
    """`last` and `@` mean the newest job of whoever asks, everywhere an id is taken; for an array all of it."""
    async with Stage(tmp_path) as stage:
        refusal = await stage.refusal("GET", "/v1/jobs", ids=word)
        assert (refusal.kind, refusal.message) == ("not_found", "You have no job yet.")
        mine = await stage.submit({"gpus": 0}, **NEVER)
        assert int(await submit_as(stage, "tom")) > int(mine)
        assert ids(await stage.get("/v1/jobs", ids=word)) == [mine]
        assert (await stage.get(f"/v1/jobs/{word}"))["job"]["id"] == mine
        assert (await stage.get("/v1/wait", ids=word, timeout_s=0))["jobs"][0]["id"] == mine
        assert (await stage.post("/v1/hold", {"ids": [word]}))["changed"] == [mine]
        body = submit_body({"gpus": 0}, array_size=2, array_max=1, **NEVER) | {"tasks": [0, 1]}
        array = (await stage.post("/v1/jobs", body))["id"]
        assert (await stage.post("/v1/cancel", {"ids": [word]}))["cancelled"] == [f"{array}_0", f"{array}_1"]
        assert stage.job(mine).state is JobState.PENDING


@played
async def test_unknown_ids_are_named(tmp_path: Path) -> None:
    """An id that does not exist is an error that names it, and nothing is done for the others."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit({"gpus": 0}, **NEVER)
        for verb in ("cancel", "hold", "release", "requeue"):
            refusal = await stage.refusal("POST", f"/v1/{verb}", {"ids": [id_, "99"]})
            assert (refusal.status, refusal.message) == (404, "There is no job 99."), verb
        assert (await stage.refusal("GET", "/v1/jobs/99")).message == "There is no job 99."
        assert (await stage.refusal("GET", "/v1/jobs", ids=f"{id_},99")).message == "There is no job 99."
        assert (await stage.refusal("GET", "/v1/wait", ids="99")).message == "There is no job 99."
        assert stage.job(id_).held is None
        assert stage.job(id_).state is JobState.PENDING


@played
async def test_an_array_is_all_its_tasks(tmp_path: Path) -> None:
    """A plain array id means every task, an id with a task one; asked for, the array lists its tasks."""
    async with Stage(tmp_path) as stage:
        body = submit_body({"gpus": 0}, array_size=3, array_max=2, **NEVER) | {"tasks": [0, 1, 2]}
        made = await stage.post("/v1/jobs", body)
        array = made["id"]
        assert made["tasks"] == 3
        assert ids(await stage.get("/v1/jobs", ids=array)) == [f"{array}_{task}" for task in range(3)]
        answer = await stage.get(f"/v1/jobs/{array}")
        assert [task["id"] for task in answer["tasks"]] == [f"{array}_{task}" for task in range(3)]
        assert "tasks" not in await stage.get(f"/v1/jobs/{array}_1")
        assert (await stage.post("/v1/hold", {"ids": [f"{array}_1"]}))["changed"] == [f"{array}_1"]
        held = [job["id"] for job in (await stage.get("/v1/jobs"))["jobs"] if job["held"]]
        assert held == [f"{array}_1"]


# --- wait -----------------------------------------------------------------------------------------------

LOST: Json = {"phase": "lost", "rebooted": False, "error": "its shim is gone"}
ENDS: dict[JobState, Json] = {
    JobState.COMPLETED: {"exit_code": 0},
    JobState.FAILED: {"exit_code": 3},
    JobState.CANCELLED: {"exit_code": None, "signal": 15, "status": "signaled", "reason": "cancel"},
    JobState.TIMEOUT: {"exit_code": None, "signal": 9, "status": "signaled", "reason": "timeout"},
    JobState.OUT_OF_MEMORY: {"exit_code": None, "signal": 9, "status": "signaled", "reason": "out_of_memory"},
    JobState.PREEMPTED: {"exit_code": None, "signal": 15, "status": "signaled", "reason": "preempt"},
    JobState.NODE_FAIL: LOST,
}


@pytest.mark.parametrize("final", sorted(FINAL, key=str), ids=str)
@played
async def test_wait_ends_with_every_final_state(tmp_path: Path, final: JobState) -> None:
    """Whatever its final state, a job's end answers the wait at once; only COMPLETED gives exit code 0."""
    async with Stage(tmp_path) as stage:
        id_ = await (stage.submit({"gpus": 0}, **NEVER) if final is JobState.DEADLINE else stage.run_job())
        waiting = asyncio.create_task(stage.get("/v1/wait", ids=id_, timeout_s=20))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        if final is JobState.DEADLINE:  # no request leads there yet; the wait must know it all the same
            event = JobDropped(job=JobId(id_), state=final, reason=Reason.NONE)
            apply(stage.loop.state, event, stage.clock.now())
            await stage.submit({"gpus": 0}, **NEVER)
        else:
            stage.agent.link.say(stage.agent.exit_record(stage.attempt(id_), **ENDS[final]))
        answer = await asyncio.wait_for(waiting, 5.0)
        (job,) = answer["jobs"]
        assert answer["done"] is True
        assert job["state"] == final.value
        assert (job["wait_exit_code"] == 0) is (final is JobState.COMPLETED)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"exit_code": 3}, 3),
        ({"exit_code": None, "signal": 11, "status": "signaled"}, 139),
        ({"exit_code": None, "status": "not_started", "error": "no such directory"}, 1),
        ({"exit_code": 0, "reason": "timeout"}, 1),
        (LOST, 1),
    ],
)
@played
async def test_exit_codes_of_a_wait(tmp_path: Path, fields: Json, code: int) -> None:
    """The job's own code, 128 + signal, and 1 when nobody saw a code or it did not end by itself."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        stage.agent.link.say(stage.agent.exit_record(stage.attempt(id_), **fields))
        answer = await stage.get("/v1/wait", ids=id_, timeout_s=5)
        assert answer["jobs"][0]["wait_exit_code"] == code


@played
async def test_wait_for_all_or_any(tmp_path: Path) -> None:
    """Without `any` the last end counts, with it the first; a job that has ended already counts at once."""
    async with Stage(tmp_path) as stage:
        one, two = await stage.run_job(), await stage.run_job()
        both = asyncio.create_task(stage.get("/v1/wait", ids=f"{one},{two}", timeout_s=20))
        either = asyncio.create_task(stage.get("/v1/wait", ids=f"{one},{two}", timeout_s=20, any=1))
        await stage.end_job(one)
        assert (await asyncio.wait_for(either, 5.0))["done"] is True
        assert not both.done()
        await stage.end_job(two)
        assert (await asyncio.wait_for(both, 5.0))["done"] is True
        assert (await stage.get("/v1/wait", ids=one, timeout_s=20))["done"] is True


@played
async def test_wait_says_when_the_time_is_over(tmp_path: Path) -> None:
    """After timeout_s the answer says that it is not done; commits of others in between do not matter."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit({"gpus": 0}, **NEVER)
        assert (await stage.get("/v1/wait", ids=id_, timeout_s=0))["done"] is False
        waiting = asyncio.create_task(stage.get("/v1/wait", ids=id_, timeout_s=0.05))
        await stage.submit({"gpus": 0}, **NEVER)
        answer = await asyncio.wait_for(waiting, 5.0)
        assert (answer["done"], answer["jobs"][0]["state"]) == (False, "PENDING")


@played
async def test_wait_for_a_job_that_only_the_archive_knows(tmp_path: Path) -> None:
    """A job that left the state long ago has ended: the wait answers from the archive."""
    async with with_journal(tmp_path) as stage:
        id_ = await stage.run_job()
        await stage.end_job(id_, 4)
        del stage.loop.state.jobs[JobId(id_)]
        answer = await stage.get("/v1/wait", ids=id_, timeout_s=5)
        assert (answer["done"], answer["jobs"][0]["wait_exit_code"]) == (True, 4)
        assert ids(await stage.get("/v1/jobs", ids=id_)) == [id_]


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/v1/wait", {}, "'ids'"), ("/v1/wait", {"ids": ","}, "'ids'"),
        ("/v1/wait", {"ids": "1", "timeout_s": "x"}, "'timeout_s'"),
        ("/v1/wait", {"ids": "1", "timeout_s": "nan"}, "'timeout_s'"), ("/v1/jobs", {"limit": "x"}, "'limit'"),
        ("/v1/jobs", {"limit": "inf"}, "'limit'"), ("/v1/jobs", {"limit": "-1"}, "'limit'"),
        ("/v1/jobs", {"states": "NOPE"}, "'NOPE'"), ("/v1/history", {"since": "monday"}, "'since'"),
        ("/v1/history", {"states": "R,ZZ"}, "'ZZ'"), ("/v1/events", {"since": "nan"}, "'since'"),
    ],
)  # fmt: skip
@played
async def test_bad_queries(tmp_path: Path, path: str, query: Json, words: str) -> None:
    """What cannot be read in a query is a `usage` error that names it."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        refusal = await stage.refusal("GET", path, **query)
        assert (refusal.status, refusal.kind) == (400, "usage")
        assert words in refusal.message


# --- lists ----------------------------------------------------------------------------------------------


@played
async def test_filters_of_the_list(tmp_path: Path) -> None:
    """Ended jobs only on request; by state, user, name, node and ids; a limit says how many it left out."""
    async with Stage(tmp_path) as stage:
        ended = await stage.run_job(name="early")
        await stage.end_job(ended)
        running = await stage.run_job(name="now")
        waiting = await stage.submit({"gpus": 0}, name="later", **NEVER)
        toms = await submit_as(stage, "tom")
        assert ids(await stage.get("/v1/jobs")) == [running, waiting, toms]
        assert ids(await stage.get("/v1/jobs", all=1)) == [ended, running, waiting, toms]
        assert ids(await stage.get("/v1/jobs", states="cd,RUNNING")) == [ended, running]
        assert ids(await stage.get("/v1/jobs", user="tom")) == [toms]
        assert ids(await stage.get("/v1/jobs", name="later")) == [waiting]
        assert ids(await stage.get("/v1/jobs", node="local")) == [running]
        assert ids(await stage.get("/v1/jobs", ids=f"{waiting},{ended}")) == [waiting, ended]
        answer = await stage.get("/v1/jobs", limit=2)
        assert (ids(answer), answer["more"]) == ([running, waiting], 1)


@played
async def test_counts_of_the_status(tmp_path: Path) -> None:
    """Jobs by state, GPUs in all and busy, and today's failures."""
    async with Stage(tmp_path) as stage:
        failed = await stage.run_job()
        await stage.end_job(failed, 1)
        await stage.run_job()
        await stage.submit({"gpus": 0}, **NEVER)
        answer = await stage.get("/v1/status")
        assert answer["counts"] == {"FAILED": 1, "RUNNING": 1, "PENDING": 1}
        assert (answer["gpus_total"], answer["gpus_busy"], answer["failed_today"]) == (2, 1, 1)


@played
async def test_events_of_a_job(tmp_path: Path) -> None:
    """The journal's entries, with numbers to go on from."""
    async with with_journal(tmp_path) as stage:
        id_ = await stage.run_job()
        await stage.submit({"gpus": 0}, **NEVER)
        found = (await stage.get("/v1/events", job=id_))["events"]
        assert [each["event"]["type"] for each in found] == ["JobsSubmitted", "JobPlaced", "AttemptStarted"]
        later = (await stage.get("/v1/events", since=found[-1]["seq"], limit=5))["events"]
        assert [each["event"]["type"] for each in later] == ["JobsSubmitted"]


# --- submit and batch -----------------------------------------------------------------------------------


@played
async def test_the_same_key_is_the_same_job(tmp_path: Path) -> None:
    """A submit repeated with its key, also at the same moment, makes one job; only the first one made it."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        body = submit_body({"gpus": 0}, **NEVER)
        answers = await asyncio.gather(*[stage.post("/v1/jobs", body) for _ in range(6)])
        assert {answer["id"] for answer in answers} == {"2"}
        assert sorted(answer["existing"] for answer in answers) == [False] + [True] * 5
        call = Call(user(), {}, {}, submit_body({"gpus": 0}, **NEVER))
        twice = await asyncio.gather(verbs.submit(stage.desk, call), verbs.submit(stage.desk, call))
        assert [(answer["id"], answer["existing"]) for answer in twice] == [("3", False), ("3", True)]
        assert len(stage.loop.state.jobs) == 3


@played
async def test_what_can_never_run_is_refused(tmp_path: Path) -> None:
    """The first submit waits for the node, so that an impossible wish is refused with the largest possible value."""
    async with Stage(tmp_path) as stage:
        refusal = await stage.refusal("POST", "/v1/jobs", submit_body({"gpus": 3}))
        assert (refusal.status, refusal.kind) == (409, "refused")
        assert "has 2" in refusal.message
        assert stage.loop.state.jobs == {}


@played
async def test_a_batch_is_one_commit(tmp_path: Path) -> None:
    """All submits of a batch are written together, with the environment they share kept once; ids are in order."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        commits, blobs = len(stage.store.commits), len(stage.store.blobs)
        submits = [submit_body({"gpus": 0}, name=f"n{number}", **NEVER) | {"environment": {"blob": "e"}}
                   for number in range(50)]  # fmt: skip
        answer = await stage.post("/v1/jobs/batch", {"submits": submits, "blobs": {"e": base64_of(b"A=1")}})
        assert answer["ids"] == [str(number) for number in range(2, 52)]
        assert len(stage.store.commits) == commits + 1
        assert len(stage.store.blobs) == blobs + 1
        assert [stage.job(id_).spec.name for id_ in answer["ids"]] == [f"n{number}" for number in range(50)]


@pytest.mark.parametrize(
    ("bad", "status"),
    [(submit_body({"gpus": 99}), 409), (submit_body(argv=[]), 400), (submit_body(name=7), 400), ({"spec": 1}, 400)],
)
@played
async def test_a_batch_is_all_or_nothing(tmp_path: Path, bad: Json, status: int) -> None:
    """One bad submit in the middle, and none of the batch is made: no job, no event, no blob."""
    async with Stage(tmp_path) as stage:
        await stage.submit({"gpus": 0}, **NEVER)
        commits, blobs = len(stage.store.commits), dict(stage.store.blobs)
        good = submit_body({"gpus": 0}, environment=b"NEW=1", **NEVER)
        refusal = await stage.refusal("POST", "/v1/jobs/batch", {"submits": [good, bad, good | {"key": "other"}]})
        assert refusal.status == status
        assert list(stage.loop.state.jobs) == ["1"]
        assert (len(stage.store.commits), stage.store.blobs) == (commits, blobs)


@played
async def test_a_batch_repeated_with_its_keys(tmp_path: Path) -> None:
    """A batch whose reply was lost can be sent again: the same ids come back, also when only some keys are known."""
    async with Stage(tmp_path) as stage:
        submits = [submit_body({"gpus": 0}, **NEVER) for _ in range(3)]
        first = await stage.post("/v1/jobs/batch", {"submits": submits})
        assert (await stage.post("/v1/jobs/batch", {"submits": submits}))["ids"] == first["ids"] == ["1", "2", "3"]
        keyless = submit_body({"gpus": 0}, **NEVER) | {"key": ""}
        mixed = [keyless, submits[1], submit_body({"gpus": 0}, **NEVER), keyless]
        assert (await stage.post("/v1/jobs/batch", {"submits": mixed}))["ids"] == ["4", "2", "5", "6"]
        assert len(stage.loop.state.jobs) == 6


@pytest.mark.parametrize(
    ("body", "words"),
    [({}, "'submits'"), ({"submits": []}, "'submits'"), ({"submits": {}}, "'submits'"), ({"submits": [7]}, "'submits'"),
     ({"submits": [{}], "blobs": []}, "'blobs'")],
)  # fmt: skip
@played
async def test_bad_batches(tmp_path: Path, body: Json, words: str) -> None:
    """A batch needs a list of submit objects, and blobs need an object."""
    async with Stage(tmp_path, no_node=True) as stage:
        assert words in (await stage.refusal("POST", "/v1/jobs/batch", body)).message


@played
async def test_a_batch_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One submit too many is refused with both numbers."""
    monkeypatch.setattr(verbs, "MAX_BATCH", 2)
    async with Stage(tmp_path, no_node=True) as stage:
        body = {"submits": [submit_body({"gpus": 0}) for _ in range(3)]}
        refusal = await stage.refusal("POST", "/v1/jobs/batch", body)
        assert refusal.message == "A batch has at most 2 submits; this one has 3."


# --- verbs ----------------------------------------------------------------------------------------------


@played
async def test_cancel_tells_the_ended_apart(tmp_path: Path) -> None:
    """Ended jobs are left alone and named; a bad grace is refused."""
    async with Stage(tmp_path) as stage:
        ended = await stage.run_job()
        await stage.end_job(ended)
        running, waiting = await stage.run_job(), await stage.submit({"gpus": 0}, **NEVER)
        for grace_s in (-1, "5", ["5"]):
            body = {"ids": [running], "grace_s": grace_s}
            assert "grace_s" in (await stage.refusal("POST", "/v1/cancel", body)).message
        answer = await stage.post("/v1/cancel", {"ids": [ended, running, waiting]})
        assert answer["cancelled"] == [running, waiting]
        assert answer["already_ended"] == [ended]
        assert stage.job(ended).state is JobState.COMPLETED


@pytest.mark.parametrize("number", [0, 65, -9, "9", None, 9.5])
@played
async def test_bad_signals(tmp_path: Path, number: object) -> None:
    """A signal is a number from 1 to 64."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        assert "'signal'" in (await stage.refusal("POST", "/v1/signal", {"ids": [id_], "signal": number})).message


@played
async def test_progress(tmp_path: Path) -> None:
    """It shows in the job and in why; much the same again is not kept, and what is no fraction is refused."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        assert (await stage.get(f"/v1/jobs/{id_}"))["job"]["progress"] is None
        answer = await stage.post("/v1/progress", {"id": id_, "fraction": 0.25})
        assert (answer["fraction"], answer["kept"]) == (0.25, True)
        assert (await stage.post("/v1/progress", {"id": id_, "fraction": 0.251}))["kept"] is False
        assert (await stage.get(f"/v1/jobs/{id_}"))["job"]["progress"] == 0.25
        assert (await stage.get(f"/v1/jobs/{id_}/why"))["why"]["progress"] == 0.25
        for body in ({"id": id_}, {"id": id_, "fraction": "0.5"}, {"id": id_, "fraction": True}, {"fraction": 0.5}):
            assert "'fraction'" in (await stage.refusal("POST", "/v1/progress", body)).message
        assert "from 0 to 1" in (await stage.refusal("POST", "/v1/progress", {"id": id_, "fraction": 7})).message


@played
async def test_hold_release_requeue_update(tmp_path: Path) -> None:
    """Each verb answers with the ids that it changed, and leaves out those that were so already."""
    async with Stage(tmp_path) as stage:
        one, two = [await stage.submit({"gpus": 0}, **NEVER) for _ in range(2)]
        assert (await stage.post("/v1/hold", {"ids": [one]}))["changed"] == [one]
        assert (await stage.post("/v1/hold", {"ids": [one, two]}))["changed"] == [two]
        assert (await stage.post("/v1/release", {"ids": [one, two]}))["changed"] == [one, two]
        answer = await stage.post("/v1/update", {"ids": [one], "changes": {"resources": {"cpus": 2}, "priority": 5}})
        assert answer["changed"] == [one]
        assert (stage.job(one).spec.resources.cpus, stage.job(one).spec.priority) == (2, 5)
        assert "'changes'" in (await stage.refusal("POST", "/v1/update", {"ids": [one], "changes": []})).message
        await stage.post("/v1/cancel", {"ids": [one]})
        assert (await stage.post("/v1/requeue", {"ids": [one], "hold": True}))["changed"] == [one]
        assert stage.job(one).held is not None


@played
async def test_drain_resume_and_declare_dead(tmp_path: Path) -> None:
    """Verbs on nodes, and their refusals: no reason, no such node, a node that answers."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        assert "needs a reason" in (await stage.refusal("POST", "/v1/nodes/local/drain", {})).message
        assert (await stage.refusal("POST", "/v1/nodes/attic/drain", {"reason": "x"})).status == 404
        await stage.post("/v1/nodes/local/drain", {"reason": "new fan"})
        (node,) = (await stage.get("/v1/nodes"))["nodes"]
        assert (node["state"], node["drain"]["reason"]) == ("draining", "new fan")
        await stage.post("/v1/nodes/local/resume")
        assert (await stage.get("/v1/nodes"))["nodes"][0]["drain"] is None
        assert "is not dead" in (await stage.refusal("POST", "/v1/nodes/local/declare-dead")).message
        assert stage.job(id_).state is JobState.RUNNING


# --- history and prune ----------------------------------------------------------------------------------


async def ended_jobs(stage: Stage, *names: str) -> list[str]:
    """Jobs of these names that completed one after the other, a minute apart; their ids."""
    found = []
    for name in names:
        id_ = await stage.run_job(name=name)
        await stage.end_job(id_, ended_at=stage.clock.wall_s)
        stage.clock.advance(60)
        found.append(id_)
    return found


@played
async def test_history_is_newest_first(tmp_path: Path) -> None:
    """Ended jobs, newest first, by pages; GPUs are named although the node may be gone."""
    async with with_journal(tmp_path) as stage:
        made = await ended_jobs(stage, "a", "b", "c")
        answer = await stage.get("/v1/history")
        assert ids(answer) == made[::-1]
        assert answer["jobs"][0]["gpus"][0]["type"] == "A100-40G"
        first = await stage.get("/v1/history", limit=2)
        assert ids(await stage.get("/v1/history", limit=2, before=first["jobs"][-1]["order"])) == made[:1]
        assert ids(await stage.get("/v1/history", name="b")) == [made[1]]
        assert ids(await stage.get("/v1/history", states="F")) == []


@played
async def test_prune_forgets_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    """By id or by age, in the state and in the archive alike; living jobs and the rest stay."""
    async with with_journal(tmp_path) as stage:
        a, b, c, d = await ended_jobs(stage, "a", "b", "c", "d")
        living = await stage.run_job()
        for gone in (a, b):  # these two only the archive knows
            stage.loop.state.jobs.pop(JobId(gone))
            stage.loop.state.ended.pop(JobId(gone))
        assert (await stage.post("/v1/prune", {"ids": [a]}))["pruned"] == [a]
        assert ids(await stage.get("/v1/history")) == [d, c, b]
        before = stage.clock.wall_s - 90
        answer = await stage.post("/v1/prune", {"ended_before": before, "ids": []})
        assert sorted(answer["pruned"]) == [b, c]
        assert ids(await stage.get("/v1/history")) == [d]
        assert (await stage.refusal("GET", f"/v1/jobs/{c}")).status == 404
        assert stage.job(living).state is JobState.RUNNING
        assert (await stage.post("/v1/prune", {"ids": [living]}))["pruned"] == []


@pytest.mark.parametrize("body", [{"ids": "1"}, {"ids": []}, {"name": "a"}, {"ended_before": "1"}, {"states": "CD"}])
@played
async def test_a_slip_in_a_prune_forgets_nothing(tmp_path: Path, body: Json) -> None:
    """A body that does not fit is refused, and every job is still there."""
    async with with_journal(tmp_path) as stage:
        made = await ended_jobs(stage, "a", "b")
        assert (await stage.refusal("POST", "/v1/prune", body)).kind == "usage"
        assert ids(await stage.get("/v1/history")) == made[::-1]
        assert len(stage.loop.state.jobs) == 2


@played
async def test_prune_keeps_what_others_wait_for(tmp_path: Path) -> None:
    """A parent of a waiting job is kept and named with the reason; the others of the same prune go, in one commit."""
    async with Stage(tmp_path) as stage:
        parent, other, third = await ended_jobs(stage, "a", "b", "c")
        later = await stage.submit({"gpus": 0}, **NEVER)
        terms = [{"kind": "afternotok", "job": parent}, {"kind": "after", "job": later}]
        child = await stage.submit({"gpus": 0}, dependencies={"terms": terms, "any_of": True})
        commits = len(stage.store.commits)
        answer = await stage.post("/v1/prune", {"ids": [parent, other, third]})
        assert answer["pruned"] == [other, third]
        assert [each["id"] for each in answer["kept"]] == [parent]
        assert child in answer["kept"][0]["reason"]
        assert len(stage.store.commits) == commits + 1


@played
async def test_the_configured_upkeep_forgets_by_age(tmp_path: Path) -> None:
    """`[prune] forget_after` forgets what ended before a moment, in the archive too, and nothing newer."""
    async with with_journal(tmp_path) as stage:
        a, b, c = await ended_jobs(stage, "a", "b", "c")
        await verbs.forget_ended_before(stage.desk, stage.clock.wall_s - 90)
        assert ids(await stage.get("/v1/history")) == [c]
        assert JobId(a) not in stage.loop.state.jobs
        assert JobId(b) not in stage.loop.state.jobs


@played
async def test_a_parent_that_only_the_archive_knows(tmp_path: Path) -> None:
    """A dependency on a job that left the state is settled by the archive: it starts, or is cancelled."""
    async with with_journal(tmp_path) as stage:
        (parent,) = await ended_jobs(stage, "a")
        stage.loop.state.jobs.pop(JobId(parent))
        stage.loop.state.ended.pop(JobId(parent))
        good = await stage.submit(dependencies={"terms": [{"kind": "afterok", "job": parent}]})
        await stage.reaches(good, "RUNNING")
        bad = await stage.submit(dependencies={"terms": [{"kind": "afternotok", "job": parent}]})
        assert stage.job(bad).state is JobState.CANCELLED
        refusal = await stage.refusal("POST", "/v1/jobs", submit_body(
            dependencies={"terms": [{"kind": "afterok", "job": "77"}]}))  # fmt: skip
        assert refusal.message == "The dependency names job 77, which does not exist."


@played
async def test_who_may_stop_the_daemon(tmp_path: Path) -> None:
    """Its own user: the answer comes first, the stop right after."""
    async with Stage(tmp_path) as stage:
        assert (await stage.post("/v1/shutdown"))["stopping"] is True
        await until(stage.desk.stopping.is_set, "the daemon is told to stop")


@played
async def test_only_the_named_fields(tmp_path: Path) -> None:
    """`fields` brings rows of just those fields, also ones that the list form leaves out; an unknown name is null."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit({"gpus": 0, "cpus": 2}, **NEVER)
        assert (await stage.get("/v1/jobs", fields="id,code"))["jobs"] == [[id_, "PD"]]
        assert (await stage.get("/v1/jobs", fields="id"))["jobs"] == [[id_]]
        wide = (await stage.get("/v1/jobs", fields="id,cpus,cwd,nonsense"))["jobs"]
        assert wide == [[id_, 2, stage.job(id_).spec.cwd, None]]
