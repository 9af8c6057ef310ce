"""What the queue has promised, kept apart from the core's own records, for the state machine test.

Reads events and the world of machine_world, and raises AssertionError when a promise is broken. It computes nothing
with functions of gpuq.core. One thing to know: `granted` is what people allowed, the world is what is true; the core
may only act when both agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuq.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptEnding,
    AttemptStarted,
    JobDropped,
    JobHeld,
    JobPlaced,
    JobReleased,
    JobRequeued,
    JobsForgotten,
    JobsSubmitted,
    JobUpdated,
    RoomGone,
    RoomMade,
    StopOrdered,
)
from gpuq.core.model import AttemptId, DependencyKind, GpuUuid, Hold, JobId, JobSpec, NodeName, StopKind
from gpuq.core.states import JobState, Reason
from tests.core.machine_world import Life, World

UNSEEN = (Reason.SHIM_LOST, Reason.NODE_REBOOTED, Reason.EVIDENCE_LOST, Reason.NODE_DECLARED_DEAD)


@dataclass
class Promise:
    """One job: what its owner asked for and what came of it."""

    id: JobId
    spec: JobSpec
    owner: str
    order: int
    task: int | None
    attempts: list[AttemptId] = field(default_factory=list)
    first_counted: int = 0  # attempts from here on count against the retries
    active: bool = False
    started_s: float = 0.0
    started: bool = False  # its current attempt was seen running
    final: JobState | None = None
    cancelled: bool = False
    held: bool = False
    granted: bool = False  # one further attempt was asked for in so many words

    @property
    def array(self) -> str:
        """The number before the underscore."""
        return self.id.split("_")[0]


class Ledger:
    """All promises, and what is known of attempts and nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: dict[JobId, Promise] = {}
        self.forgotten: dict[JobId, Promise] = {}
        self.submitted = 0
        self.keys: dict[str, JobId] = {}
        self.owners: dict[AttemptId, JobId] = {}
        self.claims: dict[AttemptId, tuple[GpuUuid, ...]] = {}  # attempts that the core has placed and not ended
        self.stops: dict[AttemptId, str] = {}
        self.rooms: dict[JobId, tuple[GpuUuid, ...]] = {}  # GPUs that were promised to a job when others were stopped
        self.now_s = 0.0  # of the event that is observed
        self.declared: set[AttemptId] = set()
        self.drained: set[NodeName] = set()
        self._rules: dict[type, Callable[[Any], None]] = {
            JobsSubmitted: self._submitted, JobPlaced: self._placed, AttemptStarted: self._started,
            AttemptEnding: self._ending, AttemptEnded: self._ended, JobDropped: self._dropped, JobHeld: self._was_held,
            JobReleased: self._released, JobRequeued: self._requeued, JobUpdated: self._updated,
            JobsForgotten: self._forgotten, StopOrdered: self._stop_ordered, RoomMade: self._room_made,
            RoomGone: self._room_gone,
        }  # fmt: skip

    def observe(self, event: AnyEvent, now_s: float = 0.0) -> None:
        """Take one event to the books."""
        self.now_s = now_s
        rule = self._rules.get(type(event))
        if rule is not None:
            rule(event)

    def members(self, id_: str) -> list[Promise]:
        """The job, or all tasks of the array, forgotten ones included."""
        known = {**self.forgotten, **self.jobs}
        return [each for each in known.values() if id_ in (each.id, each.array)]

    # --- jobs --------------------------------------------------------------------------------------------

    def _submitted(self, event: JobsSubmitted) -> None:
        if event.key:
            assert event.key not in self.keys, f"one submit made jobs {self.keys[event.key]} and {event.id}"
            self.keys[event.key] = event.id
        for task in event.tasks or (None,):
            id_ = event.id if task is None else JobId(f"{event.id}_{task}")
            assert id_ not in self.jobs, f"job {id_} was submitted twice"
            held = event.held is not None
            self.submitted += 1
            self.jobs[id_] = Promise(id_, event.spec, event.owner.name, self.submitted, task, held=held)

    def _dropped(self, event: JobDropped) -> None:
        job = self.jobs[event.job]
        assert not job.active, f"job {job.id} was dropped while it ran"
        assert job.final is None, f"job {job.id} was dropped although it had ended"
        if event.reason is Reason.DEPENDENCY_NEVER_SATISFIED:
            assert job.spec.dependencies.terms, f"job {job.id} was dropped for a dependency it does not have"
        else:
            assert job.cancelled, f"job {job.id} was dropped though nobody cancelled it"
        job.final, job.held, job.granted = event.state, False, False
        self.rooms.pop(job.id, None)

    def _was_held(self, event: JobHeld) -> None:
        job = self.jobs[event.job]
        assert not job.active, f"job {job.id} was held while it ran"
        job.held = True
        self.rooms.pop(job.id, None)

    def _released(self, event: JobReleased) -> None:
        self.jobs[event.job].held = False

    def _requeued(self, event: JobRequeued) -> None:
        job = self.jobs[event.job]
        assert job.final is not None, f"job {job.id} was requeued before it had ended"
        assert job.granted, f"job {job.id} was requeued unasked"
        job.final, job.cancelled, job.held = None, False, event.held is not None
        job.first_counted = len(job.attempts)

    def _updated(self, event: JobUpdated) -> None:
        self.jobs[event.job].spec = event.spec

    def _forgotten(self, event: JobsForgotten) -> None:
        for id_ in event.jobs:
            job = self.jobs.pop(id_)
            assert job.final is not None, f"job {id_} was forgotten while {job}"
            if not event.pruned:  # what a person has pruned is as if it had never been
                self.forgotten[id_] = job

    # --- attempts ----------------------------------------------------------------------------------------

    def _placed(self, event: JobPlaced) -> None:
        job = self.jobs[event.job]
        assert not job.active, f"job {job.id} was placed while it ran"
        assert job.final is None, f"job {job.id} was placed although it had ended"
        assert not job.cancelled, f"job {job.id} was placed although it was cancelled"
        assert not job.held, f"job {job.id} was placed although it is held"
        assert event.node not in self.drained, f"job {job.id} was placed on {event.node}, which is drained"
        assert len(set(event.gpus)) == job.spec.resources.gpus
        self._check_gpus(event)
        self.rooms.pop(job.id, None)
        if job.attempts:
            self._check_again(job)
        self._check_dependencies(job)
        limit = job.spec.array_limit
        running = sum(1 for each in self.jobs.values() if each.active and each.array == job.array)
        assert not limit or running < limit, f"array {job.array} runs more than {limit} tasks"
        job.active, job.started, job.granted = True, False, False
        job.attempts.append(event.attempt)
        self.owners[event.attempt], self.claims[event.attempt] = job.id, event.gpus
        self.world.lives[event.attempt] = Life(event.attempt, job.id, event.node, event.gpus)

    def _check_gpus(self, event: JobPlaced) -> None:
        wanted = set(event.gpus)
        for id_, gpus in self.rooms.items():
            assert id_ == event.job or not wanted & set(gpus), f"{event.job} got GPUs that were emptied for {id_}"
        for attempt, gpus in self.claims.items():
            assert not wanted & set(gpus), f"{event.attempt} got GPUs of {attempt}, which has not ended"
        for life in self.world.living():
            assert not wanted & set(life.gpus), f"{event.attempt} got GPUs on which {life.attempt} lives"

    def _check_again(self, job: Promise) -> None:
        """A further attempt needs the death of the one before, and somebody's leave."""
        previous = job.attempts[-1]
        life = self.world.lives[previous]
        assert previous in self.declared or not life.alive, f"job {job.id} runs again while {previous} lives"
        if job.granted or (life.starts == 0 and life.cause == ""):
            return
        if life.failed_by_itself:
            # Of an attempt on a node that was declared dead, nobody heard how it ended.
            heard = [each for each in job.attempts[job.first_counted :] if each not in self.declared]
            counted = [self.world.lives[each] for each in heard]
            failures = sum(each.failed_by_itself for each in counted)
            allowed = failures <= job.spec.retries
        else:
            allowed = job.spec.requeue and life.cause in ("shim", "swept", "reboot", "stopped")
        allowed = allowed or (job.spec.requeue and previous in self.declared)
        allowed = allowed or (job.spec.preemptible and self.stops.get(previous) == "preempt")
        assert allowed, f"job {job.id} runs again unasked: {life}"

    def _check_dependencies(self, job: Promise) -> None:
        met = [self._is_met(job, term.kind, term.job) for term in job.spec.dependencies.terms]
        wanted = any if job.spec.dependencies.any_of else all
        assert not met or wanted(met) or len(job.attempts) > 0, f"job {job.id} was placed before its dependencies"

    def _is_met(self, job: Promise, kind: DependencyKind, parent: str) -> bool:
        if kind is DependencyKind.SINGLETON:
            key = (job.owner, job.spec.name)
            others = [each for each in self.jobs.values() if (each.owner, each.spec.name) == key and each is not job]
            return not any(each.active or (each.final is None and each.order < job.order) for each in others)
        if kind is DependencyKind.AFTER_CORR:
            parent = f"{parent}_{job.task}"
        finals = [each.final for each in self.members(parent)]
        if kind in (DependencyKind.AFTER_OK, DependencyKind.AFTER_CORR):
            return all(final is JobState.COMPLETED for final in finals)
        if kind is DependencyKind.AFTER_NOT_OK:
            return None not in finals and any(final is not JobState.COMPLETED for final in finals)
        if kind is DependencyKind.AFTER:
            return all(each.final is not None or (each.active and each.started) for each in self.members(parent))
        return None not in finals

    def _started(self, event: AttemptStarted) -> None:
        life = self.world.lives[event.attempt]
        assert life.starts == 1, f"{event.attempt} was reported as started, but it was not"
        self.jobs[event.job].started = True
        self.jobs[event.job].started_s = self.now_s

    def _ending(self, event: AttemptEnding) -> None:
        self.jobs[event.job].started = True  # or it is over without having begun: both satisfy an `after`

    def _stop_ordered(self, event: StopOrdered) -> None:
        self.stops[event.attempt] = event.stop.kind.value
        if event.stop.kind is StopKind.PREEMPT:
            job = self.jobs[event.job]
            assert job.spec.preemptible, f"job {job.id} was stopped to make room, which it never allowed"
            assert job.active, f"job {job.id} was stopped to make room while it did not run"
            assert self.now_s - job.started_s >= job.spec.min_runtime_s, f"job {job.id} was stopped too early"
            assert set(self.claims[event.attempt]) & set(self.rooms[event.stop.room_for or JobId("")])

    def _room_made(self, event: RoomMade) -> None:
        job = self.jobs[event.job]
        assert not job.active, f"room was made for job {job.id}, which runs"
        assert job.final is None, f"room was made for job {job.id}, which has ended"
        assert len(set(event.gpus)) == job.spec.resources.gpus
        self.rooms[event.job] = event.gpus

    def _room_gone(self, event: RoomGone) -> None:
        del self.rooms[event.job]

    def _ended(self, event: AttemptEnded) -> None:
        job, life = self.jobs[event.job], self.world.lives[event.attempt]
        declared = event.reason is Reason.NODE_DECLARED_DEAD
        assert self.claims.pop(event.attempt, None) is not None, f"{event.attempt} ended twice"
        assert declared == (event.attempt in self.declared), f"{event.attempt} was declared dead by nobody"
        assert declared or not life.alive, f"{event.attempt} was taken for dead while it lives"
        if not declared:
            self.world.over.add(event.attempt)
            self._check_exit(event, life)
        again = event.state is JobState.PENDING
        assert not (again and job.cancelled), f"job {job.id} was cancelled and is to run again"
        job.active, job.final, job.held = False, None if again else event.state, event.held is Hold.USER
        if not again:
            job.granted = False

    def _check_exit(self, event: AttemptEnded, life: Life) -> None:
        told = (event.exit.code, event.exit.signal)
        if told != (None, None):
            assert told == (life.code, life.signal), f"{life} was reported as ended with {told}"
        elif event.state is not JobState.PENDING:
            assert life.starts == 0 or event.reason in UNSEEN or life.attempt in self.stops, f"no exit of {life}"
        if event.state is JobState.COMPLETED:
            assert (life.cause, life.code, life.starts) == ("exited", 0, 1), f"{life} was called COMPLETED"
        if life.cause == "exited" and life.code == 0 and told == (0, None) and life.attempt not in self.stops:
            assert event.state is JobState.COMPLETED, f"{life} was called {event.state}"

    # --- what must hold at any time ----------------------------------------------------------------------

    def check(self, jobs: dict[JobId, Any]) -> None:
        """Every acknowledged job is there, as it was last promised."""
        assert set(jobs) == set(self.jobs), f"jobs {set(jobs) ^ set(self.jobs)} came or went unasked"
        for id_, promise in self.jobs.items():
            state: JobState = jobs[id_].state
            assert state.holds_gpus == promise.active, f"job {id_} is {state.value}, but {promise}"
            assert (state if state.is_final else None) == promise.final, f"job {id_} is {state.value}, but {promise}"
