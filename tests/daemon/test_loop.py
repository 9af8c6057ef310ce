"""The single writer: group commit, refusals, faults in a batch, failing writes, and durable before anybody hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuq.core import decide
from gpuq.core.events import AnyAction, JobDropped, JobsSubmitted, ReleaseAttempt, StartAttempt
from gpuq.core.invariants import check_invariants
from gpuq.core.model import BlobId, Foreign, JobId, NodeName, Placement
from gpuq.core.requests import (
    AnyRequest,
    AttemptReport,
    Cancel,
    DrainNode,
    GpusSeen,
    HoldJobs,
    NodeReady,
    Place,
    Prune,
    Submit,
    Tick,
)
from gpuq.core.snapshot import to_bytes
from gpuq.core.states import JobState
from gpuq.daemon import loop as loop_module
from gpuq.daemon.loop import Asked, Loop
from gpuq.errors import GpuqError, JournalError, NotFound, Refused
from gpuq.journal.problems import JournalBroken, JournalFull
from tests.builders import gpu, node, spec, user
from tests.daemon.stage import played
from tests.fakes import FakeClock, FakeStore, turns, until

FULL = JournalFull("The disk that holds /h is full, so nothing new can be recorded.", "Free some space there.")


@asynccontextmanager
async def running(store: FakeStore | None = None, clock: FakeClock | None = None) -> AsyncIterator[Loop]:
    """A loop that serves, loaded from its store."""
    loop = Loop(store or FakeStore(), clock or FakeClock())
    loop.load()
    serving = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def store_of(loop: Loop) -> FakeStore:
    assert isinstance(loop.store, FakeStore)
    return loop.store


def submission(name: str = "train", **fields: Any) -> Submit:
    return Submit(spec=spec(name=name, **fields), by=user())


def cancel(*ids: str) -> Cancel:
    return Cancel(jobs=tuple(JobId(id_) for id_ in ids), by=user())


@pytest.fixture
def quick_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """While degraded, writing is tried again at once."""
    monkeypatch.setattr(loop_module, "RETRY_S", 0.01)


# --- group commit ---------------------------------------------------------------------------------------


@played
async def test_requests_asked_together_are_one_append() -> None:
    """A hundred requests that wait at the same time are written in one transaction, in their order."""
    async with running() as loop:
        answers = [loop.ask_later(submission(f"n{number}")) for number in range(100)]
        outcomes = await asyncio.gather(*answers)
        assert len(store_of(loop).commits) == 1
        made = [event.id for outcome in outcomes for event in outcome.events if isinstance(event, JobsSubmitted)]
        assert made == [str(number) for number in range(1, 101)]
        assert [job.spec.name for job in loop.state.jobs.values()] == [f"n{number}" for number in range(100)]


@played
async def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than MAX_BATCH are spread over several commits, and none is lost or taken out of turn."""
    monkeypatch.setattr(loop_module, "MAX_BATCH", 8)
    async with running() as loop:
        await asyncio.gather(*[loop.ask_later(submission(f"n{number}")) for number in range(20)])
        assert [len(commit) for commit in store_of(loop).commits] == [8, 8, 4]
        assert [job.spec.name for job in loop.state.jobs.values()] == [f"n{number}" for number in range(20)]


@played
async def test_requests_during_a_commit_go_into_the_next_one() -> None:
    """What is asked while a commit is written is not part of it, and is committed right after."""
    async with running() as loop:
        later: list[asyncio.Future[Any]] = []
        store_of(loop).on_append = lambda: later.append(loop.ask_later(submission("later"))) if not later else None
        await loop.ask(submission("first"))
        await later[0]
        names = [[event.spec.name for event in commit] for commit in store_of(loop).commits]  # type: ignore[union-attr]
        assert names == [["first"], ["later"]]


@played
async def test_a_request_without_events_writes_nothing() -> None:
    """A tick that changes nothing is answered without touching the disk."""
    async with running() as loop:
        assert (await loop.ask(Tick())).events == []
        assert store_of(loop).commits == []


@played
async def test_all_of_one_commit_have_one_moment() -> None:
    """All events of a commit carry the time at which it was decided."""
    async with running() as loop:
        await asyncio.gather(loop.ask_later(submission()), loop.ask_later(submission()))
        assert {entry.stamp for entry in store_of(loop).events()} == {loop.clock.now()}


# --- durable before anybody hears of it -----------------------------------------------------------------


@played
async def test_durable_before_the_answer_and_before_any_action() -> None:
    """While the write runs nobody has been answered and no action was handed out; afterwards both happen."""
    async with running() as loop:
        actions: list[AnyAction] = []
        loop.on_actions = actions.extend
        await loop.ask(NodeReady(node=node("mill", "A100")))
        id_ = str(loop.state.next_id)
        await loop.ask(submission())
        seen: list[tuple[bool, int, bool]] = []
        changed = asyncio.create_task(loop.changed(5.0))
        await turns()
        placement = Placement(job=JobId(id_), node=NodeName("mill"), gpus=(gpu("mill", 0, "A100").uuid,))
        answer = loop.ask_later(Place(placement=placement, attempt="a1"))  # type: ignore[arg-type]
        store_of(loop).on_append = lambda: seen.append((answer.done(), len(actions), changed.done()))
        await answer
        assert seen == [(False, 0, False)]
        assert [type(action) for action in actions] == [StartAttempt]
        assert await changed is True


@played
async def test_changed_says_when_nothing_came() -> None:
    """`changed` is false when its time passes without a commit, and a refused request is none."""
    async with running() as loop:
        waiting = asyncio.create_task(loop.changed(0.03))
        with pytest.raises(NotFound):
            await loop.ask(cancel("7"))
        assert await waiting is False


@played
async def test_blobs_come_with_their_job() -> None:
    """The environment is written in the same transaction as the job that names it, and not for a refused one."""
    async with running() as loop:
        await loop.ask(submission(), {BlobId("good"): b"A=1"})
        with pytest.raises(GpuqError):
            await loop.ask(submission(argv=()), {BlobId("bad"): b"A=2"})
        assert store_of(loop).blobs == {"good": b"A=1"}


@played
async def test_an_ended_job_is_archived_with_its_end() -> None:
    """The commit that ends a job archives it; the one that prunes it takes it out of the archive."""
    async with running() as loop:
        await loop.ask(submission())
        await loop.ask(cancel("1"))
        assert store_of(loop).archived_states([JobId("1")]) == {"1": JobState.CANCELLED}
        await loop.ask(Prune(jobs=(JobId("1"),), by=user()))
        assert store_of(loop).archived_states([JobId("1")]) == {}


# --- refusals -------------------------------------------------------------------------------------------


@played
async def test_a_refusal_changes_nothing() -> None:
    """A request that is refused leaves the state as it was and writes nothing."""
    async with running() as loop:
        await loop.ask(submission())
        before, commits = to_bytes(loop.state), len(store_of(loop).commits)
        with pytest.raises(NotFound, match="job 99"):
            await loop.ask(cancel("1", "99"))
        assert to_bytes(loop.state) == before
        assert len(store_of(loop).commits) == commits


@played
async def test_a_refused_request_leaves_its_batch_alone() -> None:
    """Of requests committed together the refused one is told so, and the others are carried out."""
    async with running() as loop:
        answers = [loop.ask_later(each) for each in (submission("a"), cancel("99"), submission("b"))]
        first, refused, last = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(refused, NotFound)
        assert not isinstance(first, BaseException)
        assert not isinstance(last, BaseException)
        assert [job.spec.name for job in loop.state.jobs.values()] == ["a", "b"]
        assert len(store_of(loop).commits) == 1


@played
async def test_several_requests_are_all_or_nothing() -> None:
    """One that must be refused takes the others of its group with it; nothing of the group is written."""
    async with running() as loop:
        with pytest.raises(NotFound):
            await loop.ask_all([submission("a"), cancel("99"), submission("b")])
        assert loop.state.jobs == {}
        assert store_of(loop).commits == []
        await loop.ask_all([submission("a"), submission("b")])
        assert len(loop.state.jobs) == 2
        assert len(store_of(loop).commits) == 1


@played
async def test_all_or_nothing_when_the_first_makes_the_second_impossible() -> None:
    """A group whose second request only its first one rules out is refused, and the first one is undone."""
    async with running() as loop:
        await loop.ask(submission("kept"))
        group = loop.ask_all([cancel("1"), HoldJobs(jobs=(JobId("1"),), by=user())])
        _, refused = await asyncio.gather(loop.ask(submission("other")), group, return_exceptions=True)
        assert isinstance(refused, Refused)
        assert "only a pending job can be held" in refused.message
        assert loop.state.jobs[JobId("1")].state is JobState.PENDING
        assert [job.spec.name for job in loop.state.jobs.values()] == ["kept", "other"]
        assert not any(isinstance(event, JobDropped) for event in store_of(loop).all_events())
        check_invariants(loop.state)


# --- faults ---------------------------------------------------------------------------------------------


@pytest.fixture
def faulty_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the core: draining a node raises what no rule may raise, after it changed the state."""
    real = decide.step

    def step(state: Any, request: Any, now: Any) -> Any:
        if isinstance(request, DrainNode):
            real(state, submission("half done"), now)
            raise ZeroDivisionError("a fault")
        return real(state, request, now)

    monkeypatch.setattr(loop_module, "step", step)


@played
async def test_a_failing_request_does_not_hurt_the_others(faulty_drain: None) -> None:
    """A fault in one request of a batch reaches its requester alone; the others are carried out, in order."""
    async with running() as loop:
        drain = DrainNode(node=NodeName("mill"), reason="r", by=user())
        asked: list[AnyRequest] = [submission("a"), drain, submission("b")]
        first, failed, last = await asyncio.gather(*map(loop.ask_later, asked), return_exceptions=True)
        assert isinstance(failed, ZeroDivisionError)
        assert not isinstance(first, BaseException)
        assert not isinstance(last, BaseException)
        assert [job.spec.name for job in loop.state.jobs.values()] == ["a", "b"], "nothing of the fault is left"
        assert loop.degraded is None
        check_invariants(loop.state)


@played
async def test_the_loop_outlives_a_fault(faulty_drain: None) -> None:
    """After a single failing request the loop serves on, from the state as it was written."""
    async with running() as loop:
        with pytest.raises(ZeroDivisionError):
            await loop.ask(DrainNode(node=NodeName("mill"), reason="r", by=user()))
        assert loop.state.jobs == {}
        await loop.ask(submission("after"))
        assert [job.spec.name for job in loop.state.jobs.values()] == ["after"]


@played
async def test_a_record_that_cannot_be_stored_is_one_requests_fault() -> None:
    """What no journal could read back fails its own request; the disk is not blamed and the others are written."""
    async with running() as loop:
        await loop.ask(NodeReady(node=node("mill", "A100")))
        odd = gpu("mill", 0, "A100", foreign=(Foreign(pid=1, name="\udcff"),))
        seen = loop.ask_later(GpusSeen(node=NodeName("mill"), gpus=(odd,)))
        made = loop.ask_later(submission("made"))
        with pytest.raises(JournalError, match="cannot be stored"):
            await seen
        await made
        assert loop.degraded is None
        assert loop.state.nodes[NodeName("mill")].gpus[0].foreign == ()
        assert [job.spec.name for job in loop.state.jobs.values()] == ["made"]


@played
async def test_a_requester_who_left_does_not_matter() -> None:
    """A request whose asker is gone is still carried out, and its batch is answered."""
    async with running() as loop:
        gone, stays = loop.ask_later(submission("gone")), loop.ask_later(submission("stays"))
        gone.cancel()
        await stays
        assert [job.spec.name for job in loop.state.jobs.values()] == ["gone", "stays"]


# --- failing writes -------------------------------------------------------------------------------------


@played
async def test_a_failed_commit_tells_everyone_and_changes_nothing(quick_retry: None) -> None:
    """When the write fails the state is the written one again, and every requester of the batch hears the reason."""
    async with running() as loop:
        await loop.ask(submission("before"))
        before = to_bytes(loop.state)
        actions: list[AnyAction] = []
        loop.on_actions = actions.extend
        store_of(loop).failing = FULL
        answers = await asyncio.gather(
            *[loop.ask_later(submission(f"n{number}")) for number in range(5)], return_exceptions=True
        )
        assert all(isinstance(answer, Refused) for answer in answers)
        assert {str(answer) for answer in answers} == {f"Nothing was changed: {FULL.message}"}
        assert {answer.hint for answer in answers if isinstance(answer, Refused)} == {FULL.hint}
        assert to_bytes(loop.state) == before
        assert actions == []
        assert loop.degraded == FULL.message


@played
async def test_degraded_until_writing_works_again(quick_retry: None) -> None:
    """While writes fail each request is refused with the reason; as soon as one works, gpuq goes on by itself."""
    async with running() as loop:
        store = store_of(loop)
        store.failing = FULL
        for _ in range(2):
            with pytest.raises(Refused, match="is full"):
                await loop.ask(submission("lost"))
        store.failing = JournalBroken("The journal in /h cannot be used: I/O error.")
        with pytest.raises(Refused, match="I/O error"):
            await loop.ask(submission("lost"))
        assert loop.degraded == store.failing.message
        store.failing = None
        await until(lambda: loop.degraded is None, "the loop has recovered")
        await loop.ask(submission("kept"))
        assert [job.spec.name for job in loop.state.jobs.values()] == ["kept"]
        assert loop.state.jobs[JobId("1")].spec.name == "kept", "ids of what was refused are not skipped"


@played
async def test_degraded_does_not_turn_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    """While degraded and idle, writing is tried once per RETRY_S and no more."""
    monkeypatch.setattr(loop_module, "RETRY_S", 0.05)
    async with running() as loop:
        store_of(loop).failing = FULL
        with pytest.raises(Refused):
            await loop.ask(submission())
        await until(lambda: store_of(loop).probes >= 2, "writing is tried again")
        assert store_of(loop).probes <= 3


@played
async def test_a_state_that_cannot_be_loaded_again_ends_the_loop_but_not_in_silence() -> None:
    """If the journal cannot even be read any more, requesters are told and the loop ends: nothing can be promised."""
    store = FakeStore()
    loop = Loop(store, FakeClock())
    loop.load()
    serving = asyncio.create_task(loop.run())
    store.failing, store.broken_load = FULL, JournalBroken("The journal is damaged.")
    with pytest.raises(Refused, match="is full"):
        await asyncio.wait_for(loop.ask(submission()), 5.0)
    with pytest.raises(JournalBroken, match="damaged"):
        await asyncio.wait_for(serving, 5.0)


@played
async def test_a_fault_with_a_journal_that_cannot_be_read(faulty_drain: None) -> None:
    """The same holds when a fault in the core is what the state had to be loaded again for."""
    store = FakeStore()
    loop = Loop(store, FakeClock())
    loop.load()
    serving = asyncio.create_task(loop.run())
    store.broken_load = JournalBroken("The journal is damaged.")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(loop.ask(DrainNode(node=NodeName("mill"), reason="r", by=user())), 5.0)
    with pytest.raises(JournalBroken, match="damaged"):
        await asyncio.wait_for(serving, 5.0)


# --- loading and snapshots ------------------------------------------------------------------------------


@played
async def test_a_restart_knows_everything() -> None:
    """A second loop on the same store has the same state, and goes on numbering where the first one was."""
    store = FakeStore()
    async with running(store) as loop:
        await loop.ask(NodeReady(node=node("mill", "A100:2")))
        await loop.ask_all([submission("a"), submission("b", priority=3)])
        await loop.ask(cancel("1"))
        before = to_bytes(loop.state)
    async with running(store) as loop:
        assert to_bytes(loop.state) == before
        await loop.ask(submission("c"))
        assert list(loop.state.jobs) == ["1", "2", "3"]


@played
async def test_a_snapshot_bounds_what_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After SNAPSHOT_EVERY events the state is kept whole, and a restart from it equals a full replay."""
    monkeypatch.setattr(loop_module, "SNAPSHOT_EVERY", 5)
    store = FakeStore()
    async with running(store) as loop:
        for number in range(7):
            await loop.ask(submission(f"n{number}"))
        assert [seq for seq, _ in store.snapshots] == [5]
        before = to_bytes(loop.state)
        loop.take_snapshot()
        loop.take_snapshot()
        assert [seq for seq, _ in store.snapshots] == [5, 7], "nothing new, no snapshot"
    async with running(store) as loop:
        assert to_bytes(loop.state) == before
    store.snapshots.clear()
    async with running(store) as loop:
        assert to_bytes(loop.state) == before


@played
async def test_a_report_commits_and_is_released() -> None:
    """The release of an ended attempt is handed out only with the commit that records its end."""
    async with running() as loop:
        actions: list[AnyAction] = []
        loop.on_actions = actions.extend
        await loop.ask(NodeReady(node=node("mill", "A100")))
        await loop.ask(submission())
        placement = Placement(job=JobId("1"), node=NodeName("mill"), gpus=(gpu("mill", 0, "A100").uuid,))
        await loop.ask(Place(placement=placement, attempt="a1"))  # type: ignore[arg-type]
        actions.clear()
        report = AttemptReport(node=NodeName("mill"), attempt="a1", phase="fenced")  # type: ignore[arg-type]
        store_of(loop).failing = FULL
        with pytest.raises(Refused):
            await loop.ask(report)
        assert actions == []
        store_of(loop).failing = None
        loop.commit([Asked((report,), {}, asyncio.get_running_loop().create_future())])
        assert [type(action) for action in actions] == [ReleaseAttempt]
        assert loop.state.owners == {}
