"""From a request to events, or a refusal. Imports the rest of the core.

`step` is what the daemon's loop, the tests and the simulator all call: decide, apply, and carry the consequences
(dependencies that can never hold any more) until nothing follows. It is one transaction: either all its events
are written, or none is.

One thing to know: a refusal is a UserError and leaves the state untouched; any other exception means a fault in
the core, and the caller must throw the state away and load it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from gpuq.core import decide_attempts, decide_evictions, decide_jobs, decide_nodes, decide_settings
from gpuq.core.apply import apply
from gpuq.core.dependencies import Verdict, singleton_key, verdict
from gpuq.core.events import (
    AnyAction,
    AnyEvent,
    AttemptEnded,
    IdsSkipped,
    JobDropped,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobsForgotten,
    JobsSubmitted,
    JobUpdated,
)
from gpuq.core.model import Hold, JobId, Stamp
from gpuq.core.requests import (
    AnyRequest,
    AttemptReport,
    Cancel,
    Configure,
    DeclareDead,
    DrainNode,
    Evict,
    GpusSeen,
    HoldJobs,
    NodeReached,
    NodeReady,
    Place,
    Prune,
    ReleaseJobs,
    ReportProgress,
    Requeue,
    ResumeNode,
    Signal,
    SkipIds,
    Submit,
    Tick,
    Update,
)
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.errors import InternalError

KEEP_ENDED = 2000  # ended jobs that stay in the state; older ones are in the archive only


class Decision(NamedTuple):
    """What follows from one request: events to write, actions that need no event, sentences for the person."""

    events: list[AnyEvent]
    actions: list[AnyAction] = []  # noqa: RUF012  (never changed in place)
    notes: list[str] = []  # noqa: RUF012


class Outcome(NamedTuple):
    """What `step` did: the events applied, in order, the actions to carry out, sentences for the person."""

    events: list[AnyEvent]
    actions: list[AnyAction]
    notes: list[str]


def decide(state: ClusterState, request: AnyRequest, now: Stamp) -> Decision:
    """The events a request leads to; raises UserError when it must be refused."""
    rule = _RULES.get(type(request))
    if rule is None:
        raise InternalError(f"no rule to decide {type(request).__name__}")
    found = rule(state, request, now)
    return found if isinstance(found, Decision) else Decision(*found)


def step(state: ClusterState, request: AnyRequest, now: Stamp) -> Outcome:
    """Decide a request, apply its events and all that follows from them."""
    decision = decide(state, request, now)
    done: list[AnyEvent] = []
    actions = list(decision.actions)
    fresh = decision.events
    while fresh:
        for event in fresh:
            actions.extend(apply(state, event, now))
        done.extend(fresh)
        fresh = consequences(state, fresh)
    return Outcome(done, actions, decision.notes)


def consequences(state: ClusterState, events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """What follows from events that are all applied: pending jobs whose dependency can never hold end or are held."""
    candidates: set[JobId] = set()
    for event in events:
        candidates |= _touched(state, event)
    found: list[AnyEvent] = []
    for id_ in sorted(candidates, key=lambda id_: state.jobs[id_].order):
        child = state.jobs[id_]
        if child.state is not JobState.PENDING or child.held is Hold.DEPENDENCY:
            continue
        if verdict(state, child) is not Verdict.NEVER:
            continue
        message = f"its dependency on {_dead_parent(state, id_)} can never be satisfied"
        if child.spec.dependencies.keep_on_failed:
            found.append(JobHeld(job=id_, hold=Hold.DEPENDENCY, message=message))
        else:
            found.append(
                JobDropped(
                    job=id_,
                    state=JobState.CANCELLED,
                    reason=Reason.DEPENDENCY_NEVER_SATISFIED,
                    message=message,
                )
            )
    return found


def _touched(state: ClusterState, event: AnyEvent) -> set[JobId]:
    """The jobs whose dependencies an event may have made impossible."""
    if isinstance(event, JobsSubmitted):
        return {id_ for id_ in state.members(event.id) if id_ in state.unmet}
    if isinstance(event, JobRequeued | JobReleased):
        return {event.job}
    if not isinstance(event, AttemptEnded | JobDropped | JobUpdated):
        return set()
    job = state.jobs[event.job]
    found = {job.id}
    for parent in (job.id, job.array, singleton_key(job)):
        found |= state.children.get(parent, set())
    return found


def _dead_parent(state: ClusterState, id_: JobId) -> str:
    terms = state.jobs[id_].spec.dependencies.terms
    return ", ".join(f"{term.kind.value}:{term.job}" for term in terms if term.job) or "other jobs"


def _skip_ids(state: ClusterState, request: SkipIds, now: Stamp) -> Decision:
    """A submit took one id and one entry, so that many ids may have been given out."""
    return Decision([IdsSkipped(next_id=state.next_id + request.count)])


def _tick(state: ClusterState, request: Tick, now: Stamp) -> Decision:
    """End back-offs that the wall clock has left behind and rooms kept in vain; let the oldest ended jobs go."""
    return Decision([*_stranded(state, now), *decide_evictions.vain_rooms(state, now), *_surplus(state)])


def _stranded(state: ClusterState, now: Stamp) -> list[AnyEvent]:
    """Jobs whose back-off is longer than any back-off: the wall clock was set back, and must not delay them."""
    latest = now.wall_s + decide_attempts.LAST_BACK_OFF_S
    return [
        JobUpdated(job=id_, spec=state.jobs[id_].spec, by="gpuq")
        for shape, queue in state.waiting.items()
        if shape.not_before_at is not None and shape.not_before_at > latest
        for id_ in queue
        if shape.not_before_at != state.jobs[id_].spec.begin_at
    ]


def _surplus(state: ClusterState) -> list[AnyEvent]:
    """The oldest ended jobs beyond those that are kept; the ones that pending jobs depend on stay.

    An array goes as a whole, since a dependency on it is about all its tasks.
    """
    oldest: dict[JobId, list[JobId]] = {}
    for id_ in islice(state.ended, max(0, len(state.ended) - KEEP_ENDED)):
        oldest.setdefault(state.jobs[id_].array, []).append(id_)
    gone: list[JobId] = []
    for array, ids in oldest.items():
        waited_for = array in state.children or any(id_ in state.children for id_ in ids)
        if not waited_for and len(ids) == len(state.members(array)):
            gone.extend(ids)
    return [JobsForgotten(jobs=tuple(gone))] if gone else []


_RULES: dict[type, Callable[[ClusterState, Any, Stamp], Any]] = {
    Submit: decide_jobs.submit,
    Cancel: decide_jobs.cancel,
    HoldJobs: decide_jobs.hold,
    ReleaseJobs: decide_jobs.release,
    Requeue: decide_jobs.requeue,
    Update: decide_jobs.update,
    Signal: decide_jobs.signal,
    ReportProgress: decide_jobs.progress,
    Prune: decide_jobs.prune,
    Place: decide_attempts.place,
    Evict: decide_evictions.evict,
    AttemptReport: decide_attempts.report,
    NodeReady: decide_nodes.ready,
    NodeReached: decide_nodes.reached,
    GpusSeen: decide_nodes.gpus_seen,
    DrainNode: decide_nodes.drain,
    ResumeNode: decide_nodes.resume,
    DeclareDead: decide_nodes.declare_dead,
    Configure: decide_settings.configure,
    SkipIds: _skip_ids,
    Tick: _tick,
}
