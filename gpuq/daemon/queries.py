"""Handlers that only read: the state, the newest samples, the archive and the journal. Imports desk, views.

One thing to know: `wait` is a long poll; it looks again after every commit, so it answers as soon as the last job ends
whatever its final state is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import gpuq
from gpuq.core import explain
from gpuq.core.model import Job, JobId, User
from gpuq.core.states import JobState, parse_state
from gpuq.daemon import views
from gpuq.daemon.desk import Call, Desk
from gpuq.errors import NotFound, UsageError
from gpuq.journal.archive import ArchivedJob, HistoryQuery

Json = dict[str, Any]

MAX_WAIT_S = 30.0
DEFAULT_LIMIT = 1000
DAY_S = 86400.0

# --- ids ------------------------------------------------------------------------------------------------


def expand_ids(desk: Desk, by: User, ids: Iterable[str]) -> tuple[JobId, ...]:
    """Ids as the state knows them: `last` and `@` mean the caller's newest job."""
    return tuple(_newest(desk, by) if each in ("last", "@") else JobId(each) for each in ids)


def _newest(desk: Desk, by: User) -> JobId:
    mine = (job for job in desk.state.jobs.values() if job.owner.uid == by.uid)
    newest = max(mine, key=lambda job: job.order, default=None)
    if newest is None:
        raise NotFound("You have no job yet.", "Submit one: gpuq submit -- python train.py")
    return newest.array


def jobs_by_ids(desk: Desk, by: User, ids: Iterable[str]) -> list[Job]:
    """The jobs behind ids (tasks of arrays one by one), from the state or the archive; raises NotFound."""
    found: dict[JobId, Job] = {}
    for id_ in expand_ids(desk, by, ids):
        members = desk.state.members(id_)
        jobs = [desk.state.jobs[member] for member in members]
        if not jobs or "_" not in id_:
            known = {job.id for job in jobs}
            jobs += [each.job for each in _archived(desk, id_) if each.job.id not in known]
        if not jobs:
            raise NotFound(f"There is no job {id_}.", "List the jobs with: gpuq status --all")
        found.update({job.id: job for job in sorted(jobs, key=lambda job: job.order)})
    return list(found.values())


def _archived(desk: Desk, id_: JobId) -> list[ArchivedJob]:
    """What only the archive knows of a job or array; nothing when all of it is in the state."""
    if id_ in desk.state.jobs:
        return []
    tasks = desk.state.tasks.get(id_)
    if tasks and len(tasks) == desk.state.jobs[tasks[0]].spec.array_size:
        return []
    return desk.journal.history(HistoryQuery(ids=(id_,)))


def chosen_jobs(desk: Desk, by: User, filters: Json) -> list[Job]:
    """The jobs that `ids`, `states`, `user`, `name` and `node` leave, in order of submission."""
    ids = filters.get("ids")
    jobs = jobs_by_ids(desk, by, ids) if ids else list(desk.state.jobs.values())
    states = {parse_state(each) for each in filters.get("states") or ()}
    user, name, node = filters.get("user"), filters.get("name"), filters.get("node")
    return [
        job
        for job in jobs
        if (not states or job.state in states)
        and (user is None or job.owner.name == user)
        and (name is None or job.spec.name == name)
        and (node is None or (job.attempt is not None and job.attempt.node == node))
    ]


def _filters(query: dict[str, str]) -> Json:
    found: Json = {key: query[key] for key in ("user", "name", "node") if query.get(key)}
    for key in ("ids", "states"):
        if query.get(key):
            found[key] = [each for each in query[key].split(",") if each]
    return found


def _number(query: dict[str, str], key: str, default: float | None = None) -> float | None:
    text = query.get(key)
    if text is None or text == "":
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"'{key}' must be a number from 0 on, not '{text}'.")
    return number


# --- handlers -------------------------------------------------------------------------------------------


async def status(desk: Desk, call: Call) -> Json:
    """The daemon in a few figures."""
    state = desk.state
    counts: dict[str, int] = {}
    for job in state.jobs.values():
        counts[job.state.value] = counts.get(job.state.value, 0) + 1
    gpus = [(node, gpu) for node in state.nodes.values() for gpu in node.gpus]
    now = desk.loop.clock.now()
    return {
        "version": gpuq.__version__,
        "pid": os.getpid(),
        "home": str(desk.home),
        "socket": str(desk.socket),
        "started_at": desk.started_at,
        "degraded": desk.trouble,
        "warnings": [*desk.warnings, *(text for node in state.nodes.values() for text in node.warnings)],
        "strays": len(state.strays),
        "counts": counts,
        "failed_today": _failed_today(state.jobs.values(), now.wall_s),
        "gpus_total": len(gpus),
        "gpus_busy": sum(1 for _, gpu in gpus if gpu.uuid in state.owners),
        "impact_factor_today": desk.planner.impact_factor_of_period(now.wall_s - DAY_S),
    }


def _failed_today(jobs: Iterable[Job], wall_s: float) -> int:
    bad = (JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL)
    return sum(1 for job in jobs if job.state in bad and job.ended_at is not None and wall_s - job.ended_at < DAY_S)


async def jobs(desk: Desk, call: Call) -> Json:
    """The list that `status` shows."""
    filters = _filters(call.query)
    found = chosen_jobs(desk, call.by, filters)
    if not call.query.get("all") and not filters.get("states") and not filters.get("ids"):
        found = [job for job in found if not job.state.is_final]
    limit = int(_number(call.query, "limit", 0) or 0)
    left_out = max(0, len(found) - limit) if limit else 0
    fields = [name for name in call.query.get("fields", "").split(",") if name]
    return {"jobs": _listed(desk, found[:limit] if limit else found, fields), "more": left_out}


def _listed(desk: Desk, jobs: list[Job], fields: list[str]) -> list[Any]:
    """The jobs in the list form, or, when fields are named, the values of those as rows (null for unknown names)."""
    found = _briefs(desk, jobs)
    if not fields or not found:
        return found
    if not found[0].keys() >= set(fields):
        found = [dict.fromkeys(fields) | full for full in _full(desk, jobs)]
    values = itemgetter(*fields)
    return [values(job) for job in found] if len(fields) > 1 else [(job[fields[0]],) for job in found]


def _briefs(desk: Desk, jobs: list[Job]) -> list[Json]:
    now = desk.loop.clock.now()
    gpus = views.gpus_by_uuid(desk.state)
    offset_s = now.wall_s - now.steady_s
    waits = any(job.state is JobState.PENDING for job in jobs)
    plan = desk.planner.estimates() if waits else None
    reasons = explain.Reasons(desk.state, plan, now) if waits else None
    found = []
    for job in jobs:
        brief = views.job_brief(job, now.steady_s, gpus)
        if reasons is not None and job.state is JobState.PENDING:
            reason, brief["message"] = reasons.of(job)
            brief["reason"] = reason.value
            views.with_estimates(brief, job, plan, offset_s)
        elif job.state.holds_gpus:
            brief["expected_end_at"] = desk.planner.expected_end_at(job)
        found.append(brief)
    return found


def _full(desk: Desk, jobs: list[Job]) -> list[Json]:
    gpus = views.gpus_by_uuid(desk.state)
    return [
        views.job_full(job, desk.steady_s, gpus, desk.places)
        | {key: value for key, value in brief.items() if value is not None}
        for job, brief in zip(jobs, _briefs(desk, jobs), strict=True)
    ]


async def job(desk: Desk, call: Call) -> Json:
    """One job in full; for an array also its tasks."""
    found = jobs_by_ids(desk, call.by, [call.path["id"]])
    answer: Json = {"job": _full(desk, found[:1])[0]}
    if len(found) > 1 or (found[0].task is not None and "_" not in call.path["id"]):
        answer["tasks"] = _briefs(desk, found)
    return answer


async def why(desk: Desk, call: Call) -> Json:
    """Why a job waits, where it could run, and what is ahead of it."""
    found = jobs_by_ids(desk, call.by, [call.path["id"]])
    pending = [job for job in found if job.state is JobState.PENDING]
    return {"why": desk.planner.explain(pending[0] if pending else found[0])}


async def wait(desk: Desk, call: Call) -> Json:
    """Answer when all named jobs have ended, or when the time is over."""
    timeout_s = min(MAX_WAIT_S, max(0.0, _number(call.query, "timeout_s", MAX_WAIT_S) or 0.0))
    ids = [each for each in call.query.get("ids", "").split(",") if each]
    if not ids:
        raise UsageError("'ids' must name at least one job.")
    any_of = call.query.get("any") in ("1", "true")
    waited_for = [job.id for job in jobs_by_ids(desk, call.by, ids)]
    unended = list(waited_for)
    deadline_s = desk.steady_s + timeout_s
    while True:
        # Between two commits only the last unended job is looked at, whatever the number of jobs.
        while unended and _has_ended(desk, unended[-1]):
            unended.pop()
        left_s = deadline_s - desk.steady_s
        done = any(_has_ended(desk, id_) for id_ in waited_for) if any_of else not unended
        if done or left_s <= 0 or desk.stopping.is_set() or not await desk.loop.changed(left_s):
            found = jobs_by_ids(desk, call.by, waited_for)
            unended = [job.id for job in found if not job.state.is_final]
            if any_of or not (done and unended):  # one that had ended may have been requeued
                return {"done": done, "jobs": _full(desk, found)}


def _has_ended(desk: Desk, id_: JobId) -> bool:
    """Whether a known job is in a final state; only ended ones leave the state."""
    job = desk.state.jobs.get(id_)
    return job is None or job.state.is_final


async def nodes(desk: Desk, call: Call) -> Json:
    """Every node."""
    found = []
    for node in desk.state.nodes.values():
        connection = desk.fleet.connections.get(node.name)
        seen_s = connection.last_seen_steady_s if connection else None
        silent_s = desk.steady_s - seen_s if seen_s is not None else None
        found.append(views.node_view(desk.state, node, silent_s, connection.last_error if connection else None))
    for name, connection in desk.fleet.connections.items():
        if name not in desk.state.nodes:
            unseen = {"name": name, "state": "unknown*", "reach": "connecting", "link_error": connection.last_error}
            found.append(unseen)
    return {"nodes": found}


async def gpus(desk: Desk, call: Call) -> Json:
    """Every GPU with its newest sample."""
    found = [
        views.gpu_view(
            desk.state, node, gpu, desk.fleet.latest_sample(gpu.uuid), desk.fleet.utilization_history(gpu.uuid)
        )
        for node in desk.state.nodes.values()
        for gpu in node.gpus
    ]
    return {"gpus": found}


async def history(desk: Desk, call: Call) -> Json:
    """Ended jobs, newest first."""
    filters = _filters(call.query)
    before = _number(call.query, "before")
    wanted = HistoryQuery(
        user=filters.get("user"),
        states=tuple(parse_state(each) for each in filters.get("states", ())),
        name=filters.get("name"),
        since=_number(call.query, "since"),
        until=_number(call.query, "until"),
        ids=tuple(JobId(each) for each in filters.get("ids", ())),
        limit=int(_number(call.query, "limit", DEFAULT_LIMIT) or DEFAULT_LIMIT),
        before=int(before) if before is not None else None,
    )
    found = desk.journal.history(wanted)
    return {"jobs": [_archived_view(desk, each) for each in found]}


def _archived_view(desk: Desk, archived: ArchivedJob) -> Json:
    view = views.job_full(archived.job, desk.steady_s, {}, desk.places)
    view["gpus"] = [{"uuid": gpu.uuid, "index": gpu.index, "type": gpu.type} for gpu in archived.gpus]
    view["order"] = archived.job.order
    return view


async def events(desk: Desk, call: Call) -> Json:
    """The journal's entries, of one job or of all."""
    import msgspec

    since = int(_number(call.query, "since", 0) or 0)
    limit = int(_number(call.query, "limit", DEFAULT_LIMIT) or DEFAULT_LIMIT)
    found = desk.journal.events(since, call.query.get("job"), limit)
    return {
        "events": [
            {"seq": entry.seq, "at": entry.stamp.wall_s, "event": msgspec.to_builtins(entry.event)} for entry in found
        ]
    }
