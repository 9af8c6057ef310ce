"""What people ask of jobs: submit, cancel, hold, release, requeue, update, signal, prune. Imports the core.

One thing to know: every verb checks all its ids and the caller's right to them before the first event, so a
refused request changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from gpuq.core import fit
from gpuq.core.dependencies import Verdict, singleton_key, verdict, without_settled
from gpuq.core.events import (
    AnyAction,
    AnyEvent,
    JobDropped,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobsForgotten,
    JobSignalled,
    JobsSubmitted,
    JobUpdated,
    ProgressMade,
    StopOrdered,
)
from gpuq.core.model import (
    DependencyKind,
    Hold,
    Job,
    JobId,
    JobSpec,
    Resources,
    Stamp,
    StopKind,
    StopOrder,
    User,
)
from gpuq.core.progress import is_fraction, is_news
from gpuq.core.requests import (
    Cancel,
    HoldJobs,
    Prune,
    ReleaseJobs,
    ReportProgress,
    Requeue,
    Signal,
    Submit,
    Update,
)
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState as S
from gpuq.core.states import Reason
from gpuq.errors import Forbidden, NotFound, Refused, UsageError

MAX_ARRAY_TASKS = 100_000
MAX_NAME_LENGTH = 1024

Found = tuple[list[AnyEvent], list[AnyAction], list[str]]

# --- submit ---------------------------------------------------------------------------------------------


def submit(state: ClusterState, request: Submit, now: Stamp) -> Found:
    """One job or one array; a known key makes nothing new; what can never run is refused."""
    if request.key and request.key in state.keys:
        return [], [], []
    notes: list[str] = []
    spec = _with_default_gpus(state, request, notes)
    _check_spec(spec, request)
    spec, impossible = _with_dependencies(state, spec, request)
    refusal = fit.over_cap(state, request.by.name, spec.resources.gpus) or fit.never(state, spec)
    if refusal is not None:
        raise Refused(refusal.message, refusal.hint)
    if spec.begin_at is not None and spec.begin_at <= now.wall_s:
        notes.append("the begin time is already past: the job may start at once")
    if spec.deadline_at is not None and spec.deadline_at <= now.wall_s:
        notes.append("the deadline is already past: it does not count")
    id_ = JobId(str(state.next_id))
    held = Hold.USER if request.held else None
    events: list[AnyEvent] = [
        JobsSubmitted(id=id_, spec=spec, owner=request.by, key=request.key, tasks=request.tasks, held=held)
    ]
    if impossible:
        events.extend(_dead_on_arrival(spec, id_, request.tasks))
    return events, [], notes


def _with_default_gpus(state: ClusterState, request: Submit, notes: list[str]) -> JobSpec:
    """Without a word about GPUs a job gets one, or none where no node has any."""
    spec = request.spec
    if request.gpus_given or not state.nodes or any(node.gpus for node in state.nodes.values()):
        return spec
    notes.append("no node has a GPU: the job gets none (say --gpus 0 to silence this)")
    return replace(spec, resources=replace(spec.resources, gpus=0))


def _check_spec(spec: JobSpec, request: Submit) -> None:
    if not spec.argv and spec.script is None:
        raise UsageError("There is no command to run.", "Type: gpuq submit -- python train.py")
    if len(spec.name) > MAX_NAME_LENGTH:
        raise UsageError(f"The job name has {len(spec.name)} characters; at most {MAX_NAME_LENGTH} are kept.")
    if len(request.tasks) > MAX_ARRAY_TASKS:
        raise UsageError(f"The array has {len(request.tasks)} tasks; at most {MAX_ARRAY_TASKS} are allowed.")
    if len(set(request.tasks)) != len(request.tasks) or any(task < 0 for task in request.tasks):
        raise UsageError("Array indices must be different whole numbers from 0 on.")
    asked = spec.resources
    if min(asked.gpus, asked.cpus, asked.memory_mib or 0, asked.gpu_memory_mib or 0) < 0:
        raise UsageError("Amounts of GPUs, CPUs and memory cannot be negative.")
    if asked.gpu_ids and len(set(asked.gpu_ids)) != asked.gpus:
        raise UsageError(
            f"--gpu-ids names {len(set(asked.gpu_ids))} different GPUs, but --gpus asks for {asked.gpus}.",
            "Leave out --gpus, or name as many GPUs as it asks for.",
        )
    if any(len(values) != len(request.tasks) for _, values in spec.values):
        raise UsageError("A sweep must have one value per array task.")
    _check_values(spec)


def _check_values(spec: JobSpec) -> None:
    """Raise UsageError for what no node could carry out, whoever asks: the command line is not the only client."""
    texts = (spec.name, spec.cwd, spec.stdout or "", spec.stderr or "", *spec.argv)
    if any("\0" in text for text in texts):
        raise UsageError("A name, path or argument contains a NUL character, which no program can be given.")
    if not spec.cwd.startswith("/"):
        raise UsageError(f"The working directory '{spec.cwd}' is not an absolute path.")
    durations = (spec.time_limit_s or 0.0, spec.grace_s, spec.warn_before_s, spec.min_runtime_s)
    if min(*durations, spec.retries, spec.array_limit) < 0:
        raise UsageError("Durations, retries and limits cannot be negative.")
    if spec.warn_signal is not None and not 1 <= spec.warn_signal <= 64:
        raise UsageError(f"There is no signal {spec.warn_signal}; signals are numbered from 1 to 64.")
    if not 0 <= spec.umask <= 0o777:
        raise UsageError("The umask must be from 000 to 777.")


def _with_dependencies(state: ClusterState, spec: JobSpec, request: Submit) -> tuple[JobSpec, bool]:
    """Check that every parent is known and settle those that only the archive knows."""
    ended = dict(request.ended_elsewhere)
    for term in spec.dependencies.terms:
        if term.kind is DependencyKind.SINGLETON:
            continue
        if not state.members(term.job) and term.job not in ended:
            raise NotFound(f"The dependency names job {term.job}, which does not exist.")
        if term.kind is DependencyKind.AFTER_CORR and not request.tasks:
            raise UsageError("aftercorr needs an array: it pairs tasks of the same index.", "Use afterok.")
    gone = {id_: final for id_, final in ended.items() if not state.members(id_)}
    rest, found = without_settled(spec.dependencies, gone)
    return replace(spec, dependencies=rest), found is Verdict.NEVER


def _dead_on_arrival(spec: JobSpec, id_: JobId, tasks: tuple[int, ...]) -> list[AnyEvent]:
    message = "its dependency ended in a way that can never satisfy it"
    ids = [JobId(f"{id_}_{task}") for task in tasks] or [id_]
    if spec.dependencies.keep_on_failed:
        return [JobHeld(job=each, hold=Hold.DEPENDENCY, message=message) for each in ids]
    reason = Reason.DEPENDENCY_NEVER_SATISFIED
    return [JobDropped(job=each, state=S.CANCELLED, reason=reason, message=message) for each in ids]


# --- cancel, signal -------------------------------------------------------------------------------------


def cancel(state: ClusterState, request: Cancel, now: Stamp) -> Found:
    """Waiting jobs end at once, running ones are told to; a job that is being ended for a retry ends for good."""
    events: list[AnyEvent] = []
    for job in _mine(state, request.jobs, request.by):
        own = job.owner.uid == request.by.uid
        reason = Reason.CANCELLED_BY_USER if own else Reason.CANCELLED_BY_ADMIN
        if job.state is S.PENDING:
            events.append(
                JobDropped(job=job.id, state=S.CANCELLED, reason=reason, message=f"cancelled by {request.by.name}")
            )
        elif job.state.holds_gpus:
            grace_s = job.spec.grace_s if request.grace_s is None else request.grace_s
            events.extend(_stop(job, StopKind.CANCEL, request.by.name, now, grace_s))
    return events, [], []


def _stop(job: Job, kind: StopKind, by: str, now: Stamp, grace_s: float, hold: bool = False) -> list[AnyEvent]:
    attempt = job.attempt
    assert attempt is not None
    known = attempt.stop
    if known is not None and known.kind in (kind, StopKind.CANCEL) and known.grace_s <= grace_s and known.hold == hold:
        return []
    order = StopOrder(kind=kind, by=by, at=now.wall_s, grace_s=grace_s, hold=hold)
    return [StopOrdered(job=job.id, attempt=attempt.id, stop=order)]


def signal(state: ClusterState, request: Signal, now: Stamp) -> Found:
    """Send a signal to running jobs; refuses when one of them is not running."""
    events: list[AnyEvent] = []
    for job in _mine(state, request.jobs, request.by):
        if job.state not in (S.RUNNING, S.COMPLETING) or job.attempt is None:
            raise Refused(f"Job {job.id} is {job.state.value}: only a running job can be sent a signal.")
        events.append(
            JobSignalled(job=job.id, attempt=job.attempt.id, signal=request.signal, by=request.by.name)
        )
    return events, [], []


def progress(state: ClusterState, request: ReportProgress, now: Stamp) -> Found:
    """Keep what a running job says of itself, unless it says much the same all the time."""
    if not is_fraction(request.fraction):
        raise UsageError(f"Progress is a number from 0 to 1, not {request.fraction:g}.")
    jobs = _mine(state, (request.job,), request.by)
    if len(jobs) > 1:
        raise UsageError(f"{request.job} is an array: progress is of one of its tasks.", f"Name it: {jobs[0].id}")
    job = jobs[0]
    if job.state is not S.RUNNING or job.attempt is None:
        raise Refused(f"Job {job.id} is {job.state.value}: only a running job makes progress.")
    if not is_news(job.attempt.progress, now.steady_s, request.fraction):
        return [], [], []
    return [ProgressMade(job=job.id, attempt=job.attempt.id, fraction=request.fraction)], [], []


# --- hold, release, requeue, update, prune --------------------------------------------------------------


def hold(state: ClusterState, request: HoldJobs, now: Stamp) -> Found:
    """Keep pending jobs from starting."""
    events: list[AnyEvent] = []
    for job in _mine(state, request.jobs, request.by):
        if job.state is not S.PENDING:
            raise Refused(f"Job {job.id} is {job.state.value}: only a pending job can be held.")
        kind = Hold.USER if job.owner.uid == request.by.uid else Hold.ADMIN
        if job.held is None or (kind is Hold.ADMIN and job.held is Hold.USER):
            events.append(JobHeld(job=job.id, hold=kind, message=f"held by {request.by.name}"))
    return events, [], []


def release(state: ClusterState, request: ReleaseJobs, now: Stamp) -> Found:
    """Let held jobs start; an administrator's hold needs an administrator."""
    events: list[AnyEvent] = []
    for job in _mine(state, request.jobs, request.by):
        if job.state is not S.PENDING:
            raise Refused(f"Job {job.id} is {job.state.value}: only a held job can be released.")
        if job.held is Hold.ADMIN and not request.by.is_admin:
            raise Forbidden(f"Job {job.id} is held by an administrator.", "Ask them to release it.")
        if job.held is Hold.DEPENDENCY and verdict(state, job) is Verdict.NEVER:
            raise Refused(
                f"Job {job.id} is held because its dependency can never be satisfied.",
                f"Drop the dependency first: gpuq update {job.id} dependency=",
            )
        if job.held is not None:
            events.append(JobReleased(job=job.id))
    return events, [], []


def requeue(state: ClusterState, request: Requeue, now: Stamp) -> Found:
    """Ended jobs wait again; running ones are told to end first and then wait again."""
    events: list[AnyEvent] = []
    for job in _mine(state, request.jobs, request.by):
        if job.state is S.PENDING:
            raise Refused(f"Job {job.id} is already waiting.")
        if job.state.is_final:
            events.append(JobRequeued(job=job.id, held=Hold.USER if request.hold else None))
        elif job.attempt is not None and job.attempt.stop is not None and job.attempt.stop.kind is StopKind.CANCEL:
            raise Refused(f"Job {job.id} is being cancelled.", "Requeue it when it has ended.")
        else:
            events.extend(_stop(job, StopKind.REQUEUE, request.by.name, now, job.spec.grace_s, request.hold))
    return events, [], []


_FREE_WHILE_RUNNING = {"time_limit_s", "comment", "name"}


def update(state: ClusterState, request: Update, now: Stamp) -> Found:
    """Change pending jobs; of a running one only its name, comment and time limit."""
    events: list[AnyEvent] = []
    for job in _mine(state, request.jobs, request.by):
        if job.state.is_final:
            raise Refused(f"Job {job.id} has ended ({job.state.value}): nothing can be changed.")
        locked = sorted(set(request.changes) - _FREE_WHILE_RUNNING)
        if job.state is not S.PENDING and locked:
            raise Refused(f"Job {job.id} is {job.state.value}: {locked[0]} can only be changed while it waits.")
        spec = _changed(job.spec, request.changes)
        if job.state is S.PENDING:
            _check_changed(state, job, spec)
        if spec == job.spec:
            continue
        events.append(JobUpdated(job=job.id, spec=spec, by=request.by.name))
        if job.held is Hold.DEPENDENCY and spec.dependencies != job.spec.dependencies:
            events.append(JobReleased(job=job.id))
    return events, [], []


def _changed(spec: JobSpec, changes: dict[str, Any]) -> JobSpec:
    """The spec with the changes applied; values are checked against the field's type."""
    plain = msgspec.to_builtins(spec)
    fields = {field.encode_name for field in msgspec.structs.fields(JobSpec)}
    resources = {field.encode_name for field in msgspec.structs.fields(Resources)}
    for key, value in changes.items():
        if key == "resources" and isinstance(value, dict):
            unknown = sorted(set(value) - resources)
            if unknown:
                raise UsageError(f"'{unknown[0]}' is not something a job asks for.")
            plain["resources"] = {**plain.get("resources", {}), **value}
        elif key in fields and key not in ("environment", "script", "values"):
            plain[key] = value
        else:
            raise UsageError(f"'{key}' cannot be changed.")
    try:
        changed = msgspec.convert(plain, JobSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"The change does not fit: {error}.") from None
    _check_values(changed)
    return changed


def _check_changed(state: ClusterState, job: Job, spec: JobSpec) -> None:
    terms = spec.dependencies.terms if spec.dependencies != job.spec.dependencies else ()
    for term in terms:
        if term.kind is not DependencyKind.SINGLETON and not state.members(term.job):
            raise NotFound(f"The dependency names job {term.job}, which does not exist.")
        if term.job in (job.id, job.array):
            raise Refused(f"Job {job.id} cannot depend on itself.")
    if (spec.dependencies, spec.name) != (job.spec.dependencies, job.spec.name) and _waits_for_itself(
        state, replace(job, spec=spec)
    ):
        raise Refused(f"Job {job.id} would wait for itself through its dependencies.")
    refusal = fit.over_cap(state, job.owner.name, spec.resources.gpus) or fit.never(state, spec)
    if refusal is not None:
        raise Refused(refusal.message, refusal.hint)


def _waits_for_itself(state: ClusterState, changed: Job) -> bool:
    """Whether following the dependencies of a changed pending job leads back to it."""
    jobs = {**state.jobs, changed.id: changed}
    seen: set[JobId] = set()
    pending = _waited_for(jobs, changed)
    while pending:
        id_ = pending.pop()
        if id_ in (changed.id, changed.array):
            return True
        if id_ not in seen:
            seen.add(id_)
            for member in state.members(id_):
                pending.extend(_waited_for(jobs, jobs[member]))
    return False


def _waited_for(jobs: dict[JobId, Job], job: Job) -> list[JobId]:
    """The jobs or arrays that must end, or at least start, before this one."""
    terms = job.spec.dependencies.terms
    found = [term.job for term in terms if term.job]
    if any(term.kind is DependencyKind.SINGLETON for term in terms):
        key = singleton_key(job)
        found.extend(
            other.id
            for other in jobs.values()
            if other.order < job.order and not other.state.is_final and singleton_key(other) == key
        )
    return found


def prune(state: ClusterState, request: Prune, now: Stamp) -> Found:
    """Forget ended jobs; one that a pending job depends on cannot go."""
    gone = []
    for job in _mine(state, request.jobs, request.by):
        if not job.state.is_final:
            raise Refused(f"Job {job.id} is {job.state.value}: only ended jobs can be forgotten.", "Cancel it first.")
        for parent in (job.id, job.array):
            if state.children.get(parent):
                child = min(state.children[parent], key=lambda id_: state.jobs[id_].order)
                raise Refused(f"Job {job.id} cannot be forgotten: job {child} depends on it.")
        gone.append(job.id)
    return ([JobsForgotten(jobs=tuple(gone), pruned=True)] if gone else []), [], []


def _mine(state: ClusterState, ids: Iterable[JobId], by: User) -> list[Job]:
    """The jobs behind the ids, once each, in order; raises when one is unknown or another user's."""
    found: dict[JobId, Job] = {}
    for id_ in ids:
        members = state.members(id_)
        if not members:
            raise NotFound(f"There is no job {id_}.", "List the jobs with: gpuq status --all")
        for member in members:
            job = state.jobs[member]
            if job.owner.uid != by.uid and not by.is_admin:
                raise Forbidden(f"Job {id_} belongs to {job.owner.name}.")
            found[member] = job
    return list(found.values())
