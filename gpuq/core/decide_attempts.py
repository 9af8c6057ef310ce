"""What becomes of attempts: placements to start, and agents' reports about them. Imports the core.

One thing to know: only evidence from the node ends an attempt (reliability: an exit record, or a free claim lock
with nothing left alive, or a fence). "Cannot reach" is never "dead", so no rule here looks at the link.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuq.core import fit
from gpuq.core.estimate import predict
from gpuq.core.events import (
    AnyAction,
    AnyEvent,
    AttemptEnded,
    AttemptEnding,
    AttemptStarted,
    FenceAttempt,
    JobPlaced,
    ProgressMade,
    ReleaseAttempt,
    StartAttempt,
    StopAttempt,
    StrayFound,
    StrayGone,
)
from gpuq.core.model import Attempt, AttemptId, Exit, Hold, Job, NodeName, Stamp, StopKind, StopOrder
from gpuq.core.progress import is_fraction, is_news
from gpuq.core.requests import AttemptReport, Place
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState as S
from gpuq.core.states import Reason

Found = tuple[list[AnyEvent], list[AnyAction], list[str]]

FIRST_BACK_OFF_S = 1.0  # before a retry of a failed job; doubles with each failure
LAST_BACK_OFF_S = 60.0
ALIVE = ("starting", "running", "ending")
_STOP_KINDS: Final[dict[str | None, StopKind]] = {kind.value: kind for kind in StopKind}


def place(state: ClusterState, request: Place, now: Stamp) -> Found:
    """Start a placement if it still fits; one that no longer does is dropped and named in the notes."""
    placement = request.placement
    obstacle = fit.check(state, placement, now)
    if obstacle is not None:
        return [], [], [f"job {placement.job} was not started: {obstacle.message}"]
    job = state.jobs[placement.job]
    speed = state.speed_for(job, placement.node, placement.gpus)
    placed = JobPlaced(
        job=placement.job,
        attempt=request.attempt,
        node=placement.node,
        gpus=placement.gpus,
        predicted_s=predict(state, job).quantiles_on(speed),
    )
    return [placed], [], []


def report(state: ClusterState, request: AttemptReport, now: Stamp) -> Found:
    """An agent's word about an attempt; words about an attempt that is over are answered with its release."""
    id_ = state.attempts.get(request.attempt)
    if id_ is None:
        return _unknown(state, request)
    job = state.jobs[id_]
    attempt = job.attempt
    assert attempt is not None
    if attempt.node != request.node:
        return [], [], [f"node {request.node} reports attempt {attempt.id}, which runs on {attempt.node}: ignored"]
    if request.phase == "running":
        return _running(job, attempt, request, now)
    if request.phase == "ending":
        return _ending(job, attempt, request)
    if request.phase in ("ended", "lost", "fenced"):
        return [_ended(job, attempt, request, now)], [], []
    return _not_begun(job, attempt, request)


def _unknown(state: ClusterState, request: AttemptReport) -> Found:
    """An attempt no job owns: over (release it), given up (end it), or a stray of an older state (keep its GPUs)."""
    known = request.attempt in state.strays or request.attempt in state.given_up
    fence = FenceAttempt(node=request.node, attempt=request.attempt)
    if request.phase == "absent":
        return [], [fence] if known else [], []  # without a directory only the fence proves that nothing lives
    if request.phase not in ALIVE:
        if known:
            return [StrayGone(attempt=request.attempt)], [], []
        return [], [ReleaseAttempt(node=request.node, attempt=request.attempt)], []
    if known:
        return [], [], []
    stray = StrayFound(attempt=request.attempt, node=request.node, job=request.job, gpus=request.gpus)
    note = f"attempt {request.attempt} (job {request.job}) runs on {request.node}, but no job here owns it"
    return [stray], [fence], [note]  # the answer to the fence tells whether this report was a late one


def reminders(state: ClusterState, request: AttemptReport) -> list[AnyAction]:
    """What a node that said hello must be told about an attempt, since orders may have been lost with the old link.

    Only then: the agent answers every order with a report, so an order for every report would go on for ever.
    """
    id_ = state.attempts.get(request.attempt)
    if id_ is None:
        alive = request.attempt in state.given_up and request.phase in ALIVE
        return [end_given_up(request.node, request.attempt)] if alive else []
    job = state.jobs[id_]
    attempt = job.attempt
    if attempt is None or attempt.node != request.node:
        return []
    if attempt.stop is not None:
        return [_stop_again(attempt, attempt.stop)] if request.phase in ALIVE else []
    if request.phase in ("absent", "starting") and job.state is S.CONFIGURING:
        return [StartAttempt(node=attempt.node, attempt=attempt.id, job=job.id)]
    return []


def end_given_up(node: NodeName, attempt: AttemptId) -> StopAttempt:
    """The end of an attempt that was declared dead and may live after all."""
    return StopAttempt(node=node, attempt=attempt, reason=StopKind.CANCEL.value, grace_s=0.0)


def _started_event(job: Job, attempt: Attempt, request: AttemptReport) -> AttemptStarted:
    return AttemptStarted(
        job=job.id,
        attempt=attempt.id,
        started_at=request.started_at or attempt.placed_at,
        shim_pid=request.shim_pid,
    )


def _running(job: Job, attempt: Attempt, request: AttemptReport, now: Stamp) -> Found:
    events: list[AnyEvent] = []
    if job.state is S.CONFIGURING:
        events.append(_started_event(job, attempt, request))
    done = request.progress
    if done is not None and is_fraction(done) and is_news(attempt.progress, now.steady_s, done):
        events.append(ProgressMade(job=job.id, attempt=attempt.id, fraction=done))
    return events, [], []


def _stop_again(attempt: Attempt, stop: StopOrder) -> StopAttempt:
    return StopAttempt(node=attempt.node, attempt=attempt.id, reason=stop.kind.value, grace_s=stop.grace_s)


def _ending(job: Job, attempt: Attempt, request: AttemptReport) -> Found:
    events: list[AnyEvent] = []
    if job.state is S.CONFIGURING:
        events.append(_started_event(job, attempt, request))
    if job.state is not S.COMPLETING or request.unkillable != attempt.unkillable:
        events.append(AttemptEnding(job=job.id, attempt=attempt.id, unkillable=request.unkillable))
    return events, [], []


def _not_begun(job: Job, attempt: Attempt, request: AttemptReport) -> Found:
    """`starting` or `absent`: fence what is not to begin, or had begun and has lost its evidence."""
    if attempt.stop is not None or job.state is not S.CONFIGURING:
        return [], [FenceAttempt(node=attempt.node, attempt=attempt.id)], []
    return [], [], []


# --- the end of an attempt ------------------------------------------------------------------------------


class _End(NamedTuple):
    """How a job's attempt ended: the final state it gives, and whether the job may run again."""

    state: S
    reason: Reason
    message: str | None = None
    failed: bool = False  # the job's own fault: counts against its retries
    again: bool = False  # runs again without being asked anew


def _ended(job: Job, attempt: Attempt, request: AttemptReport, now: Stamp) -> AttemptEnded:
    end = _end_of(job, attempt, request)
    state, not_before_at = end.state, None
    stop = attempt.stop
    asked_again = stop is not None and stop.kind is StopKind.REQUEUE  # however it ended
    cancelled = stop is not None and stop.kind is StopKind.CANCEL
    if end.again or asked_again:
        state = S.PENDING
    elif end.failed and not cancelled and job.failures < job.spec.retries:
        state = S.PENDING
        not_before_at = now.wall_s + min(LAST_BACK_OFF_S, FIRST_BACK_OFF_S * 2**job.failures)
    return AttemptEnded(
        job=job.id,
        attempt=attempt.id,
        state=state,
        reason=end.reason,
        exit=request.exit or Exit(error=end.message),
        ended_at=request.ended_at or now.wall_s,
        message=end.message,
        failed=end.failed and not asked_again,
        not_before_at=not_before_at,
        held=Hold.USER if asked_again and stop is not None and stop.hold else None,
    )


def _end_of(job: Job, attempt: Attempt, request: AttemptReport) -> _End:
    stop = attempt.stop
    if request.phase == "lost":
        return _lost(job, request)
    if request.phase == "fenced":
        return _fenced(job, attempt)
    if request.reason == "timeout":
        return _End(S.TIMEOUT, Reason.TIME_LIMIT, "it reached its time limit")
    if request.reason == "out_of_memory":
        return _End(S.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY, "it went over its memory limit", failed=True)
    if request.reason in _STOP_KINDS:
        return _stopped(job, stop.kind, stop.by) if stop else _stopped(job, _STOP_KINDS[request.reason], "gpuq")
    error = request.exit.error if request.exit else None
    if request.status == "not_started":
        return _End(S.FAILED, Reason.LAUNCH_FAILED, error or "it could not be started", failed=True)
    return _own_end(request.exit or Exit(), error)


def _own_end(exit_: Exit, error: str | None) -> _End:
    """The program ended by itself."""
    if exit_.code == 0:
        return _End(S.COMPLETED, Reason.NONE)
    if exit_.signal is not None:
        return _End(S.FAILED, Reason.RAISED_SIGNAL, error or f"it was ended by signal {exit_.signal}", failed=True)
    if exit_.code is None:
        return _End(S.NODE_FAIL, Reason.SHIM_LOST, error or "nobody saw its exit code")
    return _End(S.FAILED, Reason.NON_ZERO_EXIT_CODE, error, failed=True)


def _stopped(job: Job, kind: StopKind, by: str) -> _End:
    if kind is StopKind.CANCEL:
        own = by == job.owner.name
        return _End(S.CANCELLED, Reason.CANCELLED_BY_USER if own else Reason.CANCELLED_BY_ADMIN, f"cancelled by {by}")
    if kind is StopKind.TIMEOUT:
        return _End(S.TIMEOUT, Reason.TIME_LIMIT, "it reached its time limit")
    if kind is StopKind.REQUEUE:
        return _End(S.PREEMPTED, Reason.NONE, f"requeued by {by}", again=True)
    other = job.attempt.stop.room_for if job.attempt is not None and job.attempt.stop is not None else None
    message = f"stopped to make room for job {other}" if other else f"preempted by {by}"
    return _End(S.PREEMPTED, Reason.PREEMPTED, message, again=job.spec.requeue or job.spec.preemptible)


def _lost(job: Job, request: AttemptReport) -> _End:
    """The shim is gone without a record, and nothing of the attempt lives: the exit status is unknown."""
    stop = job.attempt.stop if job.attempt is not None else None
    if stop is not None and stop.kind in (StopKind.CANCEL, StopKind.PREEMPT):
        return _stopped(job, stop.kind, stop.by)
    if request.rebooted:
        message = f"node {request.node} was rebooted while it ran; its exit code is unknown"
        return _End(S.NODE_FAIL, Reason.NODE_REBOOTED, message, again=job.spec.requeue)
    message = "its shim was lost and its processes were ended; its exit code is unknown"
    return _End(S.NODE_FAIL, Reason.SHIM_LOST, message, again=job.spec.requeue)


def _fenced(job: Job, attempt: Attempt) -> _End:
    """It never started and never will (or, once begun, all trace of it is gone and nothing of it lives)."""
    if attempt.stop is not None:
        return _stopped(job, attempt.stop.kind, attempt.stop.by)
    if job.state is S.CONFIGURING and attempt.started_at is None:
        return _End(S.PREEMPTED, Reason.NONE, "it was not started", again=True)
    message = f"its directory in the spool of {attempt.node} is gone; what became of it cannot be proved"
    return _End(S.NODE_FAIL, Reason.EVIDENCE_LOST, message)


def give_up(job: Job, by: str, now: Stamp) -> AttemptEnded:
    """The end of an attempt whose node was declared dead."""
    assert job.attempt is not None
    message = f"node {job.attempt.node} was declared dead by {by}; its exit code is unknown"
    stop = job.attempt.stop
    asked_again = stop is not None and stop.kind is StopKind.REQUEUE
    cancelled = stop is not None and stop.kind is StopKind.CANCEL
    again = asked_again or (job.spec.requeue and not cancelled)
    return AttemptEnded(
        job=job.id,
        attempt=job.attempt.id,
        state=S.PENDING if again else S.NODE_FAIL,
        reason=Reason.NODE_DECLARED_DEAD,
        exit=Exit(error=message),
        ended_at=now.wall_s,
        message=message,
        held=Hold.USER if asked_again and stop is not None and stop.hold else None,
    )
