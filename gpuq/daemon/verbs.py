"""Handlers that change something: each turns a body into one core request and asks the loop. Imports desk, intake."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from gpuq.core.events import (
    AnyEvent,
    JobDropped,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobsForgotten,
    JobSignalled,
    JobsSubmitted,
    JobUpdated,
    StopOrdered,
)
from gpuq.core.model import Job, JobId, NodeName, User
from gpuq.core.requests import (
    Cancel,
    DeclareDead,
    DrainNode,
    HoldJobs,
    Prune,
    ReleaseJobs,
    ReportProgress,
    Requeue,
    ResumeNode,
    Signal,
    Submit,
    Update,
)
from gpuq.core.states import parse_state
from gpuq.daemon import intake
from gpuq.daemon.desk import Call, Desk
from gpuq.daemon.queries import chosen_jobs, expand_ids
from gpuq.errors import Forbidden, Refused, UsageError
from gpuq.journal.archive import HistoryQuery

Json = dict[str, Any]

MAX_BATCH = 10_000

# --- submit ---------------------------------------------------------------------------------------------


async def submit(desk: Desk, call: Call) -> Json:
    """One job or one array."""
    parcel = intake.Parcel()
    request = intake.submit_of(call.body, call.by, parcel)
    existing = desk.state.keys.get(request.key) if request.key else None
    if existing is None:  # what is acknowledged already is answered even when no new work is taken
        await _ready_for_work(desk)
        request = _resolve(desk, request)
    outcome = await desk.loop.ask(request, parcel.blobs)
    made = next((event.id for event in outcome.events if isinstance(event, JobsSubmitted)), None)
    id_ = made or desk.state.keys[request.key]
    members = desk.state.members(id_)
    state = desk.state.jobs[members[0]].state.value if members else "PENDING"
    return {
        "id": id_,
        "tasks": len(desk.state.tasks.get(id_, ())),
        "state": state,
        "notes": outcome.notes,
        "existing": made is None,
    }


async def _ready_for_work(desk: Desk) -> None:
    """Wait for nodes never seen before; raise Refused when the disk cannot take new work."""
    if desk.journal.low_space and desk.trouble is not None:
        raise Refused(desk.trouble, "Free some space; gpuq takes new work by itself then.")
    await desk.fleet.first_contact(desk.state)


def _resolve(desk: Desk, request: Submit) -> Submit:
    """Fill in parents that only the archive knows."""
    unknown = [term.job for term in request.spec.dependencies.terms if term.job and not desk.state.members(term.job)]
    return intake.with_archived_parents(request, desk.archived_states(unknown)) if unknown else request


async def submit_batch(desk: Desk, call: Call) -> Json:
    """Many jobs in one commit: all of them, or none when one is refused before the commit."""
    submits = call.body.get("submits")
    if not isinstance(submits, list) or not submits or not all(isinstance(each, dict) for each in submits):
        raise UsageError("A batch needs 'submits': a list of submit objects.")
    if len(submits) > MAX_BATCH:
        raise UsageError(f"A batch has at most {MAX_BATCH} submits; this one has {len(submits)}.")
    parcel = intake.Parcel(call.body.get("blobs"))
    await _ready_for_work(desk)
    requests = [_resolve(desk, intake.submit_of(each, call.by, parcel)) for each in submits]
    outcome = await desk.loop.ask_all(requests, parcel.blobs)
    return {"ids": _ids_of_batch(desk, requests, outcome.events), "notes": outcome.notes}


def _ids_of_batch(desk: Desk, requests: list[Submit], events: list[AnyEvent]) -> list[JobId]:
    """One id for each submit, in order: a key that was known makes no event, and has its id in the state."""
    made = [event for event in events if isinstance(event, JobsSubmitted)]
    without_key = iter([event.id for event in made if not event.key])
    return [desk.state.keys[request.key] if request.key else next(without_key) for request in requests]


async def dry_run(desk: Desk, call: Call) -> Json:
    """Where and when a job would start, without making it."""
    parcel = intake.Parcel()
    await desk.fleet.first_contact(desk.state)
    request = _resolve(desk, intake.submit_of(call.body, call.by, parcel))
    return desk.planner.rehearse(request)


# --- verbs on jobs --------------------------------------------------------------------------------------


async def cancel(desk: Desk, call: Call) -> Json:
    """End jobs; those that have ended are named apart."""
    ids = expand_ids(desk, call.by, intake.ids_of(call.body))
    before = {member: desk.state.jobs[member] for id_ in ids for member in desk.state.members(id_)}
    grace_s = call.body.get("grace_s")
    if grace_s is not None and (not isinstance(grace_s, int | float) or grace_s < 0):
        raise UsageError("grace_s must be a number of seconds from 0 on.")
    await desk.loop.ask(Cancel(jobs=ids, by=call.by, grace_s=grace_s))
    ended = [id_ for id_, job in before.items() if job.state.is_final]
    return {"cancelled": [id_ for id_ in before if id_ not in set(ended)], "already_ended": ended}


async def signal(desk: Desk, call: Call) -> Json:
    """Send a signal to running jobs."""
    number = call.body.get("signal")
    if not isinstance(number, int) or not 1 <= number <= 64:
        raise UsageError("'signal' must be a signal number from 1 to 64.")
    ids = expand_ids(desk, call.by, intake.ids_of(call.body))
    outcome = await desk.loop.ask(Signal(jobs=ids, by=call.by, signal=number))
    return {"signalled": _touched(outcome.events)}


async def progress(desk: Desk, call: Call) -> Json:
    """How much of its work a running job has done; what says much the same as before is not kept."""
    id_, fraction = call.body.get("id"), call.body.get("fraction")
    if not isinstance(id_, str) or isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise UsageError("Progress needs 'id', a job's, and 'fraction', a number from 0 to 1.")
    outcome = await desk.loop.ask(ReportProgress(job=JobId(id_), by=call.by, fraction=float(fraction)))
    return {"id": id_, "fraction": fraction, "kept": bool(outcome.events)}


async def hold(desk: Desk, call: Call) -> Json:
    """Keep pending jobs from starting."""
    ids = expand_ids(desk, call.by, intake.ids_of(call.body))
    outcome = await desk.loop.ask(HoldJobs(jobs=ids, by=call.by))
    return {"changed": _touched(outcome.events)}


async def release(desk: Desk, call: Call) -> Json:
    """Let held jobs start."""
    ids = expand_ids(desk, call.by, intake.ids_of(call.body))
    outcome = await desk.loop.ask(ReleaseJobs(jobs=ids, by=call.by))
    return {"changed": _touched(outcome.events)}


async def requeue(desk: Desk, call: Call) -> Json:
    """Run jobs again under the same id."""
    ids = expand_ids(desk, call.by, intake.ids_of(call.body))
    outcome = await desk.loop.ask(Requeue(jobs=ids, by=call.by, hold=bool(call.body.get("hold"))))
    return {"changed": _touched(outcome.events)}


async def update(desk: Desk, call: Call) -> Json:
    """Change waiting jobs, or the time limit of running ones."""
    ids = expand_ids(desk, call.by, intake.ids_of(call.body))
    changes = call.body.get("changes")
    if not isinstance(changes, dict) or not changes:
        raise UsageError("The request needs 'changes': what to set.")
    outcome = await desk.loop.ask(Update(jobs=ids, by=call.by, changes=changes))
    return {"changed": _touched(outcome.events), "notes": outcome.notes}


def _touched(events: list[AnyEvent]) -> list[JobId]:
    kinds = (JobDropped, JobHeld, JobReleased, JobRequeued, JobSignalled, JobUpdated, StopOrdered)
    return list(dict.fromkeys(event.job for event in events if isinstance(event, kinds)))


async def prune(desk: Desk, call: Call) -> Json:
    """Forget ended jobs, in the state and in the archive; those still needed are kept and named."""
    filters = intake.prune_filters(call.body)
    before = filters.ended_before
    chosen = chosen_jobs(desk, call.by, {"ids": filters.ids, "states": filters.states, "user": filters.user})
    ended = [job for job in chosen if job.state.is_final and (before is None or (job.ended_at or 0.0) < before)]
    pruned, kept = await _prune_state(desk, call.by, [job for job in ended if job.id in desk.state.jobs])
    ids = tuple(job.id for job in ended) if filters.ids else None
    pruned += _prune_archive(desk, filters, ids, {each["id"] for each in kept})
    return {"pruned": list(dict.fromkeys(pruned)), "kept": kept}


async def forget_ended_before(desk: Desk, wall_s: float) -> None:
    """The upkeep that `[prune] forget_after` asks for."""
    by = User(name="gpuq", uid=0, is_admin=True)
    ended = [job for job in desk.state.jobs.values() if job.ended_at is not None and job.ended_at < wall_s]
    await _prune_state(desk, by, ended)
    _prune_archive(desk, intake.PruneFilters(ended_before=wall_s), None, set(desk.state.jobs))


async def _prune_state(desk: Desk, by: User, ended: list[Job]) -> tuple[list[JobId], list[Json]]:
    """Ask for each job by itself, all in one go: one that must stay keeps none of the others."""
    pruned: list[JobId] = []
    kept: list[Json] = []
    asked = [desk.loop.ask_later(Prune(jobs=(job.id,), by=by)) for job in ended]
    for job, outcome in zip(ended, await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(outcome, Refused | Forbidden):
            kept.append({"id": job.id, "reason": outcome.message})
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            pruned += [id_ for event in outcome.events if isinstance(event, JobsForgotten) for id_ in event.jobs]
    return pruned, kept


def _prune_archive(
    desk: Desk, filters: intake.PruneFilters, ids: tuple[JobId, ...] | None, kept: set[JobId]
) -> list[JobId]:
    """Forget those that only the archive knows; `ids`: among these only."""
    if ids == ():
        return []
    wanted = HistoryQuery(
        user=filters.user,
        states=tuple(parse_state(each) for each in filters.states or ()),
        until=filters.ended_before,
        ids=ids or (),
    )
    found = desk.journal.history(wanted)
    gone = [each.job.id for each in found if each.job.id not in desk.state.jobs and each.job.id not in kept]
    if gone:
        desk.journal.forget(gone)
    return gone


# --- verbs on nodes -------------------------------------------------------------------------------------


async def drain(desk: Desk, call: Call) -> Json:
    """No new work on a node."""
    name = NodeName(call.path["name"])
    await desk.loop.ask(DrainNode(node=name, reason=str(call.body.get("reason") or ""), by=call.by))
    return {"node": name}


async def resume(desk: Desk, call: Call) -> Json:
    """A drained node takes work again."""
    name = NodeName(call.path["name"])
    await desk.loop.ask(ResumeNode(node=name, by=call.by))
    return {"node": name}


async def declare_dead(desk: Desk, call: Call) -> Json:
    """Give up what ran on a node that does not answer."""
    name = NodeName(call.path["name"])
    jobs = [job.id for job in desk.state.active() if job.attempt is not None and job.attempt.node == name]
    await desk.loop.ask(DeclareDead(node=name, by=call.by))
    return {"node": name, "jobs": jobs}


async def shutdown(desk: Desk, call: Call) -> Json:
    """Stop the daemon; jobs go on."""
    if call.by.uid not in (0, os.getuid()):
        raise Forbidden("Only the daemon's own user may stop it.")
    asyncio.get_running_loop().call_later(0.05, desk.stopping.set)
    return {"stopping": True}
