"""The single writer: requests in, events committed, then answers and actions. Imports core, journal, ports.

Requests that arrive while a commit runs are taken together into the next one (group commit). Nobody is answered,
and no action handed out, before the events are durable.

One thing to know: the state is changed before the commit. Should the commit fail, the state is thrown away and
loaded from the journal again, every requester gets the error, and gpuq is degraded until writing works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuq.core import snapshot
from gpuq.core.apply import apply
from gpuq.core.decide import Outcome, decide, step
from gpuq.core.events import AnyAction, AnyEvent, AttemptEnded, JobDropped, JobsForgotten
from gpuq.core.invariants import check_invariants
from gpuq.core.model import BlobId, Job, JobId, Stamp
from gpuq.core.requests import AnyRequest
from gpuq.core.state import ClusterState
from gpuq.daemon.ports import Clock, Store
from gpuq.errors import JournalError, Refused, UserError
from gpuq.journal.archive import ArchivedGpu, ArchivedJob
from gpuq.journal.failpoints import mutant, reach
from gpuq.journal.problems import JournalBroken, JournalFull

log = logging.getLogger("gpuq.loop")

SNAPSHOT_EVERY = 20_000  # events between two snapshots
MAX_BATCH = 512  # requests in one commit
MUTANT_DELAY_S = 0.3
RETRY_S = 2.0  # between two tries to write while degraded


class Asked(NamedTuple):
    """One request on its way, the blobs it brings, and who waits for it."""

    requests: tuple[AnyRequest, ...]  # all of them are granted, or none
    blobs: dict[BlobId, bytes]
    answer: asyncio.Future[Outcome]


class Loop:
    """Owns the state; everything else reads `state` and asks through `ask`."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.state = ClusterState()
        self.degraded: str | None = None
        self.on_actions: Callable[[list[AnyAction]], None] = lambda actions: None
        self.on_change: Callable[[list[AnyEvent]], None] = lambda events: None
        self._asked: list[Asked] = []
        self._wake = asyncio.Event()
        self._committed = asyncio.Event()  # set, and replaced, by each commit
        self._since_snapshot = 0

    # --- loading -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Rebuild the state from the journal, and check it."""
        data, entries = self.store.load()
        state = snapshot.from_bytes(data) if data is not None else ClusterState()
        count = 0
        for entry in entries:
            apply(state, entry.event, entry.stamp)
            count += 1
        check_invariants(state)
        state.caps = self.state.caps  # of gpuq.toml, not of the journal
        self.state, self._since_snapshot = state, count

    # --- asking ------------------------------------------------------------------------------------------

    async def ask(self, request: AnyRequest, blobs: dict[BlobId, bytes] | None = None) -> Outcome:
        """Carry out a request; returns when it is durable. Raises UserError or JournalError."""
        return await self.ask_later(request, blobs)

    async def ask_all(self, requests: Sequence[AnyRequest], blobs: dict[BlobId, bytes] | None = None) -> Outcome:
        """Carry out several requests in one commit; when one is refused, none is carried out."""
        return await self._enqueue(tuple(requests), blobs or {})

    def ask_later(self, request: AnyRequest, blobs: dict[BlobId, bytes] | None = None) -> asyncio.Future[Outcome]:
        """As `ask`, without waiting: requests asked in one go are committed together, in order."""
        return self._enqueue((request,), blobs or {})

    def _enqueue(self, requests: tuple[AnyRequest, ...], blobs: dict[BlobId, bytes]) -> asyncio.Future[Outcome]:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._asked.append(Asked(requests, blobs, answer))
        self._wake.set()
        return answer

    def wake(self) -> None:
        """Let everybody who waits in `changed` look again."""
        committed, self._committed = self._committed, asyncio.Event()
        committed.set()

    async def changed(self, timeout_s: float) -> bool:
        """Wait for the next commit (or `wake`); False when none came in time."""
        committed = self._committed
        try:
            await asyncio.wait_for(committed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Serve requests until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._asked:
                batch, self._asked = self._asked[:MAX_BATCH], self._asked[MAX_BATCH:]
                self.commit(batch)
                await asyncio.sleep(0)
            if self.degraded:
                await self._recover()

    # --- committing --------------------------------------------------------------------------------------

    def commit(self, batch: list[Asked]) -> None:
        """Decide a batch, write it in one transaction, then answer and hand out the actions."""
        now = self.clock.now()
        outcomes: list[tuple[Asked, Outcome]] = []
        events: list[AnyEvent] = []
        blobs: dict[BlobId, bytes] = {}
        try:
            for asked in batch:
                outcome = self._step(asked, now)
                if outcome is not None:
                    outcomes.append((asked, outcome))
                    events.extend(outcome.events)
                    blobs.update(asked.blobs)
            reach("daemon.after_decide")
            if mutant("ack-before-commit"):
                asyncio.get_running_loop().call_later(MUTANT_DELAY_S, self._write, now, events, blobs)
            elif events:
                self._write(now, events, blobs)
        except (JournalFull, JournalBroken) as error:
            self._refuse(error, batch)
            return
        except Exception as error:
            self._isolate(error, batch)
            return
        reach("daemon.before_answer")  # what is durable now must not be decided again, whatever happens here
        _answer(outcomes)
        if events:
            self.wake()
            self.on_change(events)
        actions = [action for _, outcome in outcomes for action in outcome.actions]
        if actions:
            reach("daemon.before_actions")
            self.on_actions(actions)
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self.take_snapshot()

    def _step(self, asked: Asked, now: Stamp) -> Outcome | None:
        """The outcome of what was asked; a refusal is answered at once and changes nothing."""
        outcomes: list[Outcome] = []
        try:
            if len(asked.requests) > 1:
                for request in asked.requests:  # look before the first of them changes anything
                    decide(self.state, request, now)
            for request in asked.requests:
                outcomes.append(step(self.state, request, now))
        except UserError as refusal:
            if outcomes:
                raise  # some of it is carried out already: the state must be loaded again
            _fail([asked], refusal)
            return None
        return outcomes[0] if len(outcomes) == 1 else _joined(outcomes)

    def _write(self, now: Stamp, events: list[AnyEvent], blobs: dict[BlobId, bytes]) -> None:
        ended, pruned = _archive_of(self.state, events)
        entries = [(now, event) for event in events]
        self.store.append(entries, blobs=blobs, archive=ended, forget=pruned)
        self._since_snapshot += len(events)

    def take_snapshot(self) -> None:
        """Keep the whole state, so that the next start replays only what comes after; without one it replays more."""
        if not self._since_snapshot:
            return
        try:
            self.store.snapshot(snapshot.to_bytes(self.state), self.store.last_seq)
        except JournalError as error:
            log.warning("no snapshot was written: %s", error.message)
        self._since_snapshot = 0

    def _refuse(self, error: JournalError, batch: list[Asked]) -> None:
        """Nothing could be written: throw the state away, load it again, and tell every requester."""
        log.error("commit failed: %s", error.message)
        self.degraded = error.message
        hint = error.hint or "Free some space; gpuq tries again by itself."
        _fail(batch, Refused(f"Nothing was changed: {error.message}", hint))
        self.load()

    def _isolate(self, error: Exception, batch: list[Asked]) -> None:
        """One request cannot be carried out or stored: load the state again, and take the batch's one by one."""
        if not isinstance(error, UserError):
            log.error("a request failed inside the core", exc_info=error)
        try:
            self.load()
        except JournalError:
            _fail(batch, error)
            raise
        left = [asked for asked in batch if not asked.answer.done()]
        if len(left) <= 1:
            _fail(left, error)
            return
        for asked in left:
            self.commit([asked])

    async def _recover(self) -> None:
        """While degraded: try a small durable write now and then; requests meanwhile get a fresh error."""
        await asyncio.sleep(RETRY_S)
        if self.store.probe():
            log.warning("writing works again")
            self.degraded = None
        else:
            self._wake.set()


def _fail(batch: list[Asked], error: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(error)


def _joined(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        [event for outcome in outcomes for event in outcome.events],
        [action for outcome in outcomes for action in outcome.actions],
        [note for outcome in outcomes for note in outcome.notes],
    )


def _answer(outcomes: list[tuple[Asked, Outcome]]) -> None:
    for asked, outcome in outcomes:
        if not asked.answer.done():
            asked.answer.set_result(outcome)


def _archive_of(state: ClusterState, events: list[AnyEvent]) -> tuple[list[ArchivedJob], list[JobId]]:
    """The jobs that ended with these events, and those that are to be forgotten for good."""
    ended: dict[JobId, ArchivedJob] = {}
    pruned: list[JobId] = []
    for event in events:
        if isinstance(event, AttemptEnded | JobDropped):
            job = state.jobs.get(event.job)
            if job is not None and job.state.is_final:
                ended[job.id] = ArchivedJob(job=job, gpus=_gpus_of(state, job))
        elif isinstance(event, JobsForgotten) and event.pruned:
            pruned.extend(event.jobs)
    return list(ended.values()), pruned


def _gpus_of(state: ClusterState, job: Job) -> tuple[ArchivedGpu, ...]:
    node = state.nodes.get(job.attempt.node) if job.attempt else None
    if node is None or job.attempt is None:
        return ()
    known = {gpu.uuid: gpu for gpu in node.gpus}
    held = (known[uuid] for uuid in job.attempt.gpus if uuid in known)
    return tuple(ArchivedGpu(uuid=gpu.uuid, index=gpu.index, type=gpu.type) for gpu in held)
