"""From a request to events, or a refusal. Imports the rest of the core.

`step` is what the daemon's loop, the tests and the simulator all call: decide, apply, and carry the consequences
(dependencies that can never hold any more) until nothing follows. It is one transaction: either all its events
are written, or none is.

One thing to know: a refusal is a UserError and leaves the state untouched; any other exception means a fault in
the core, and the caller must throw the state away and load it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuq.core import decide_attempts, decide_jobs, decide_nodes
from gpuq.core.apply import apply
from gpuq.core.dependencies import Verdict, singleton_key, verdict
from gpuq.core.events import (
    AnyAction,
    AnyEvent,
    AttemptEnded,
    JobDropped,
    JobHeld,
    JobsForgotten,
    JobsSubmitted,
)
from gpuq.core.model import Hold, JobId, Stamp
from gpuq.core.requests import (
    AnyRequest,
    AttemptReport,
    Cancel,
    DeclareDead,
    DrainNode,
    GpusSeen,
    HoldJobs,
    NodeReached,
    NodeReady,
    Place,
    Prune,
    ReleaseJobs,
    Requeue,
    ResumeNode,
    Signal,
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
    pending = deque(decision.events)
    while pending:
        event = pending.popleft()
        actions.extend(apply(state, event, now))
        done.append(event)
        pending.extend(consequences(state, event))
    return Outcome(done, actions, decision.notes)


def consequences(state: ClusterState, event: AnyEvent) -> list[AnyEvent]:
    """What follows at once from an event: children whose dependency can never hold are dropped or held."""
    if isinstance(event, JobsSubmitted):
        candidates = {id_ for id_ in state.members(event.id) if id_ in state.unmet}
    elif isinstance(event, AttemptEnded | JobDropped):
        job = state.jobs[event.job]
        candidates = set()
        for parent in (job.id, job.array, singleton_key(job)):
            candidates |= state.children.get(parent, set())
    else:
        return []
    found: list[AnyEvent] = []
    for id_ in sorted(candidates, key=lambda id_: state.jobs[id_].order):
        child = state.jobs[id_]
        if child.held is Hold.DEPENDENCY or verdict(state, child) is not Verdict.NEVER:
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


def _dead_parent(state: ClusterState, id_: JobId) -> str:
    terms = state.jobs[id_].spec.dependencies.terms
    return ", ".join(f"{term.kind.value}:{term.job}" for term in terms if term.job) or "other jobs"


def _tick(state: ClusterState, request: Tick, now: Stamp) -> Decision:
    """Let the oldest ended jobs go when there are many; those that pending jobs depend on stay."""
    surplus = len(state.ended) - KEEP_ENDED
    if surplus <= 0:
        return Decision([])
    gone = []
    for id_ in state.ended:
        if surplus <= 0:
            break
        surplus -= 1
        if id_ not in state.children and state.jobs[id_].array not in state.children:
            gone.append(id_)
    return Decision([JobsForgotten(jobs=tuple(gone))] if gone else [])


_RULES: dict[type, Callable[[ClusterState, Any, Stamp], Any]] = {
    Submit: decide_jobs.submit,
    Cancel: decide_jobs.cancel,
    HoldJobs: decide_jobs.hold,
    ReleaseJobs: decide_jobs.release,
    Requeue: decide_jobs.requeue,
    Update: decide_jobs.update,
    Signal: decide_jobs.signal,
    Prune: decide_jobs.prune,
    Place: decide_attempts.place,
    AttemptReport: decide_attempts.report,
    NodeReady: decide_nodes.ready,
    NodeReached: decide_nodes.reached,
    GpusSeen: decide_nodes.gpus_seen,
    DrainNode: decide_nodes.drain,
    ResumeNode: decide_nodes.resume,
    DeclareDead: decide_nodes.declare_dead,
    Tick: _tick,
}
