"""The only function that changes the state. Imports state, events, model and states.

`apply(state, event, stamp)` may not refuse: what it is given is already (or in the same step) in the journal,
so replaying the journal needs no second interpreter. It returns what the shell is to do once the event is durable;
a replay drops these actions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from gpuq.core import apply_nodes, apply_rooms
from gpuq.core.accounts import usage_with
from gpuq.core.events import (
    AnyAction,
    AnyEvent,
    AttemptEnded,
    AttemptEnding,
    AttemptStarted,
    GpusChanged,
    IdsSkipped,
    JobDropped,
    JobHeld,
    JobPlaced,
    JobReleased,
    JobRequeued,
    JobsForgotten,
    JobSignalled,
    JobsSubmitted,
    JobUpdated,
    NodeChanged,
    NodeDrained,
    NodeResumed,
    ProgressMade,
    ReachChanged,
    ReleaseAttempt,
    RoomGone,
    RoomMade,
    SetLimit,
    SettingChanged,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
    StopOrdered,
    StrayFound,
    StrayGone,
)
from gpuq.core.model import Attempt, AttemptId, Change, Job, JobId, Setting, Stamp
from gpuq.core.progress import with_report
from gpuq.core.state import ClusterState, Stray
from gpuq.core.states import JobState as S
from gpuq.core.states import Reason, Step, check_transition
from gpuq.errors import InternalError, InvariantBroken

KEPT_KEYS = 10_000  # of the newest submits, so that a late repetition makes nothing new though its job is forgotten
KEPT_CHANGES = 200  # of the newest changes of settings


def apply(state: ClusterState, event: AnyEvent, stamp: Stamp) -> list[AnyAction]:
    """Carry an event into the state; the actions are to be done once the event is durable.

    Raises IllegalTransition before anything changed when the table forbids the step.
    """
    function = _APPLY.get(type(event))
    if function is None:
        raise InternalError(f"no rule to apply {type(event).__name__}")
    return function(state, event, stamp)


def _attempt_of(job: Job, attempt: AttemptId) -> Attempt:
    if job.attempt is None or job.attempt.id != attempt:
        raise InternalError(f"job {job.id} has no attempt {attempt}")
    return job.attempt


def _submitted(state: ClusterState, event: JobsSubmitted, stamp: Stamp) -> list[AnyAction]:
    spec = event.spec
    ids = [JobId(f"{event.id}_{task}") for task in event.tasks] or [event.id]
    for position, id_ in enumerate(ids):
        state.put(
            Job(
                id=id_,
                spec=spec,
                owner=event.owner,
                state=S.PENDING,
                submitted_at=stamp.wall_s,
                submitted_steady_s=stamp.steady_s,
                order=state.next_order + position,
                task=event.tasks[position] if event.tasks else None,
                held=event.held,
                not_before_at=spec.begin_at,
            )
        )
    if event.tasks:
        state.tasks[event.id] = tuple(ids)
    if event.key:
        state.keys[event.key] = event.id
    state.next_order += len(ids)
    state.next_id = max(state.next_id, int(event.id) + 1)
    return []


def _ids_skipped(state: ClusterState, event: IdsSkipped, stamp: Stamp) -> list[AnyAction]:
    state.next_id = max(state.next_id, event.next_id)
    return []


def _placed(state: ClusterState, event: JobPlaced, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    check_transition(job.id, job.state, Step.PLACED, S.CONFIGURING)
    taken = [uuid for uuid in event.gpus if uuid in state.owners]
    if taken:
        raise InvariantBroken(f"GPU {taken[0]} already belongs to attempt {state.owners[taken[0]]}")
    attempt = Attempt(
        id=event.attempt,
        number=job.attempt.number + 1 if job.attempt else 0,
        node=event.node,
        gpus=event.gpus,
        predicted_s=event.predicted_s,
        placed_at=stamp.wall_s,
        placed_steady_s=stamp.steady_s,
    )
    placed = replace(job, state=S.CONFIGURING, attempt=attempt, message=None, reason=Reason.NONE)
    state.put(placed)
    state.requeue_children(placed)
    return [StartAttempt(node=event.node, attempt=event.attempt, job=event.job)]


def _started(state: ClusterState, event: AttemptStarted, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    check_transition(job.id, job.state, Step.STARTED, S.RUNNING)
    attempt = replace(
        _attempt_of(job, event.attempt),
        started_at=event.started_at,
        started_steady_s=stamp.steady_s,
        shim_pid=event.shim_pid,
    )
    started = replace(job, state=S.RUNNING, attempt=attempt)
    state.put(started)
    state.requeue_children(started)
    return []


def _progress_made(state: ClusterState, event: ProgressMade, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    attempt = _attempt_of(job, event.attempt)
    reports = with_report(attempt.progress, stamp.steady_s, event.fraction)
    state.put(replace(job, attempt=replace(attempt, progress=reports)))
    return []


def _stop_ordered(state: ClusterState, event: StopOrdered, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    attempt = replace(_attempt_of(job, event.attempt), stop=event.stop)
    state.put(replace(job, attempt=attempt))
    return [
        StopAttempt(node=attempt.node, attempt=attempt.id, reason=event.stop.kind.value, grace_s=event.stop.grace_s)
    ]


def _ending(state: ClusterState, event: AttemptEnding, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    check_transition(job.id, job.state, Step.ENDING, S.COMPLETING)
    attempt = replace(_attempt_of(job, event.attempt), unkillable=event.unkillable)
    ending = replace(job, state=S.COMPLETING, attempt=attempt)
    state.put(ending)
    state.requeue_children(ending)
    return []


def _ended(state: ClusterState, event: AttemptEnded, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    again = event.state is S.PENDING
    check_transition(job.id, job.state, Step.RETRIED if again else Step.ENDED, event.state)
    attempt = replace(_attempt_of(job, event.attempt), ended_at=event.ended_at, exit=event.exit, unkillable=())
    if event.state is S.COMPLETED and event.exit.run_s is not None:
        state.remember_run(job, event.exit.run_s)
    if event.state is S.COMPLETED and event.exit.used is not None:
        state.remember_use(job, event.exit.used)
    ended = replace(
        job,
        state=event.state,
        attempt=attempt,
        restarts=job.restarts + again,
        failures=job.failures + event.failed,
        **apply_rooms.kept_by(state, job, event),
        held=event.held,
        not_before_at=event.not_before_at,
        reason=event.reason,
        message=event.message,
        ended_at=None if again else event.ended_at,
    )
    state.put(ended)
    state.requeue_children(ended)
    state.usage = usage_with(state.usage, job, attempt, stamp.steady_s)
    if event.reason is Reason.NODE_DECLARED_DEAD:
        # A person's word, not evidence: should the node come back, its GPUs wait until nothing of it lives there.
        state.given_up[attempt.id] = attempt.node
        state.add_stray(attempt.id, Stray(attempt.node, job.id, attempt.gpus))
        return []
    return [ReleaseAttempt(node=attempt.node, attempt=attempt.id)]


def _dropped(state: ClusterState, event: JobDropped, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    check_transition(job.id, job.state, Step.DROPPED, event.state)
    dropped = replace(
        job, state=event.state, reason=event.reason, message=event.message, ended_at=stamp.wall_s, held=None
    )
    state.put(dropped)
    state.requeue_children(dropped)
    return []


def _held(state: ClusterState, event: JobHeld, stamp: Stamp) -> list[AnyAction]:
    state.put(replace(state.jobs[event.job], held=event.hold, message=event.message))
    return []


def _released(state: ClusterState, event: JobReleased, stamp: Stamp) -> list[AnyAction]:
    state.put(replace(state.jobs[event.job], held=None, message=None))
    return []


def _requeued(state: ClusterState, event: JobRequeued, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    check_transition(job.id, job.state, Step.REQUEUED, S.PENDING)
    requeued = replace(
        job,
        state=S.PENDING,
        held=event.held,
        restarts=job.restarts + (job.attempt is not None),
        failures=0,
        kept_s=0.0,
        not_before_at=None,
        reason=Reason.NONE,
        message=None,
        ended_at=None,
    )
    state.put(requeued)
    state.requeue_children(requeued)
    return []


def _updated(state: ClusterState, event: JobUpdated, stamp: Stamp) -> list[AnyAction]:
    job = state.jobs[event.job]
    spec = job.spec if event.spec == job.spec else event.spec  # an equal one stays shared by the tasks of its array
    updated = replace(job, spec=spec, not_before_at=spec.begin_at)
    apply_rooms.drop_unfit(state, job, spec)
    state.put(updated)
    if event.spec.name != job.spec.name:  # jobs with a singleton dependency look at names
        state.requeue_children(job)
        state.requeue_children(updated)
    if job.attempt is None or not job.state.holds_gpus or event.spec.time_limit_s == job.spec.time_limit_s:
        return []
    return [SetLimit(node=job.attempt.node, attempt=job.attempt.id, time_limit_s=event.spec.time_limit_s)]


def _signalled(state: ClusterState, event: JobSignalled, stamp: Stamp) -> list[AnyAction]:
    attempt = _attempt_of(state.jobs[event.job], event.attempt)
    return [SignalAttempt(node=attempt.node, attempt=attempt.id, signal=event.signal)]


def _forgotten(state: ClusterState, event: JobsForgotten, stamp: Stamp) -> list[AnyAction]:
    gone = set(event.jobs)
    for id_ in event.jobs:
        state.ended.pop(id_, None)
        state.jobs.pop(id_, None)
    arrays = {JobId(id_.partition("_")[0]) for id_ in event.jobs if "_" in id_}
    for array in arrays:
        left = tuple(task for task in state.tasks.get(array, ()) if task not in gone)
        if left:
            state.tasks[array] = left
        else:
            state.tasks.pop(array, None)
            state.array_active.pop(array, None)
    for key in tuple(islice(state.keys, max(0, len(state.keys) - KEPT_KEYS))):
        if not state.members(state.keys[key]):
            del state.keys[key]
    return []


def _setting_changed(state: ClusterState, event: SettingChanged, stamp: Stamp) -> list[AnyAction]:
    if event.value is None:
        state.settings.pop(event.key, None)
    else:
        state.settings[event.key] = Setting(value=event.value, by=event.by, at=stamp.wall_s)
    change = Change(key=event.key, value=event.value, by=event.by, at=stamp.wall_s)
    state.setting_changes = (*state.setting_changes, change)[-KEPT_CHANGES:]
    return []


_APPLY: dict[type, Callable[[ClusterState, Any, Stamp], list[AnyAction]]] = {
    JobsSubmitted: _submitted, IdsSkipped: _ids_skipped, JobPlaced: _placed, AttemptStarted: _started,
    StopOrdered: _stop_ordered,
    AttemptEnding: _ending, AttemptEnded: _ended, JobDropped: _dropped, JobHeld: _held, JobReleased: _released,
    JobRequeued: _requeued, JobUpdated: _updated, JobSignalled: _signalled, JobsForgotten: _forgotten,
    NodeChanged: apply_nodes.node_changed, ReachChanged: apply_nodes.reach_changed,
    GpusChanged: apply_nodes.gpus_changed, NodeDrained: apply_nodes.drained, NodeResumed: apply_nodes.resumed,
    StrayFound: apply_nodes.stray_found, StrayGone: apply_nodes.stray_gone,
    SettingChanged: _setting_changed, ProgressMade: _progress_made,
    RoomMade: apply_rooms.made, RoomGone: apply_rooms.gone,
}  # fmt: skip
