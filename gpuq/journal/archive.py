"""Ended jobs as rows: stored, asked for, forgotten. Imports core, msgspec and sqlite3.

Columns hold what people filter by; the record itself is JSON in `body`. One thing to know: the spec is a row of
its own, named by its SHA-256 and shared by all tasks of an array, since a sweep's spec holds the values of every task.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gpuq.core.model import BlobId, GpuUuid, Job, JobId, JobSpec, Record
from gpuq.core.states import JobState
from gpuq.errors import JournalError
from gpuq.journal.codec import CODEC_VERSION, check_row, checksum, decode_checked, encode_checked
from gpuq.journal.problems import DAMAGE_HINT, JournalBroken


class ArchivedGpu(Record, frozen=True, kw_only=True):
    """A GPU a job ran on, described so that it can be named after the node is gone."""

    uuid: GpuUuid
    index: int
    type: str


class ArchivedJob(Record, frozen=True, kw_only=True):
    """An ended job with what the rest of the state knew about it."""

    job: Job
    gpus: tuple[ArchivedGpu, ...] = ()


class HistoryQuery(Record, frozen=True, kw_only=True):
    """Which ended jobs to list; what is left out does not restrict.

    since, until: ended in [since, until), seconds since the epoch. ids: jobs, tasks or whole arrays.
    before: only jobs whose `order` is smaller, to page on from the last one of a page.
    """

    user: str | None = None
    states: tuple[JobState, ...] = ()
    name: str | None = None
    since: float | None = None
    until: float | None = None
    ids: tuple[JobId, ...] = ()
    limit: int | None = None
    before: int | None = None


_NO_SPEC: Final = JobSpec(name="", argv=(), cwd="", environment=BlobId(""))
_job_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(ArchivedJob)
_spec_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(JobSpec)

_PUT: Final = """INSERT OR REPLACE INTO archive
    (id, array_id, position, user, uid, name, state, node, submitted_at, started_at, ended_at, gpus, spec, v, body, crc)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_COLUMNS: Final = (
    "archive.id, archive.array_id, archive.position, archive.user, archive.uid, archive.name, archive.state,"
    " archive.node, archive.submitted_at, archive.started_at, archive.ended_at, archive.gpus, archive.spec, archive.v,"
    " archive.body, archive.crc"
)
_SELECT: Final = f"SELECT {_COLUMNS}, spec.v, spec.body FROM archive LEFT JOIN spec ON spec.id = archive.spec"  # noqa: S608 - literals of this module
_NAMED: Final = (
    "(archive.id IN (SELECT value FROM json_each(:ids)) OR archive.array_id IN (SELECT value FROM json_each(:ids)))"
)
_STATES: Final = f"SELECT {_COLUMNS} FROM archive WHERE {_NAMED}"  # noqa: S608 - as above
_FORGET: Final = "DELETE FROM archive WHERE " + _NAMED  # noqa: S608 - as above


def put_jobs(connection: sqlite3.Connection, jobs: Iterable[ArchivedJob]) -> None:
    """Store ended jobs; one that was stored before (and ran again since) is replaced."""
    seen: dict[int, str] = {}  # tasks of an array share one spec object: encode it once
    for archived in jobs:
        spec = archived.job.spec
        digest = seen.get(id(spec))
        if digest is None:
            digest = seen[id(spec)] = _put_spec(connection, spec)
        connection.execute(_PUT, _row(archived, digest))


def _put_spec(connection: sqlite3.Connection, spec: JobSpec) -> str:
    body = encode_checked(spec, _spec_decoder)
    digest = hashlib.sha256(body).hexdigest()
    connection.execute("INSERT OR IGNORE INTO spec (id, v, body) VALUES (?, ?, ?)", (digest, CODEC_VERSION, body))
    return digest


def _row(archived: ArchivedJob, digest: str) -> tuple[object, ...]:
    job = archived.job
    if not job.state.is_final:
        raise JournalError(f"Job {job.id} is {job.state.value} and cannot be archived before it has ended.")
    attempt = job.attempt
    body = encode_checked(replace(archived, job=replace(job, spec=_NO_SPEC)), _job_decoder)
    columns = (
        job.id, job.array, job.order, job.owner.name, job.owner.uid, job.spec.name, job.state.value,
        attempt.node if attempt else None, float(job.submitted_at), _float(attempt.started_at if attempt else None),
        _float(job.ended_at), len(attempt.gpus) if attempt else 0, digest, CODEC_VERSION,
    )  # fmt: skip
    return (*columns, body, checksum(columns, body))


def _float(number: float | None) -> float | None:
    return None if number is None else float(number)  # as SQLite gives it back, for the checksum


def _archived(row: tuple[Any, ...], specs: dict[str, JobSpec]) -> ArchivedJob:
    *columns, spec_v, spec_body = row
    id_, digest, v, body = columns[0], *columns[12:15]
    check_row(columns, f"The archive's record of job {id_}")
    spec = specs.get(digest)
    if spec is None:
        if spec_body is None or hashlib.sha256(spec_body).hexdigest() != digest:
            raise JournalBroken(f"What was submitted as job {id_} is damaged in the archive.", DAMAGE_HINT)
        spec = specs[digest] = decode_checked(spec_body, spec_v, _spec_decoder, f"spec of job {id_}")
    archived: ArchivedJob = decode_checked(body, v, _job_decoder, f"record of job {id_}")
    return replace(archived, job=replace(archived.job, spec=spec))


def get_job(connection: sqlite3.Connection, id_: JobId) -> ArchivedJob | None:
    """One ended job (or one task), or None."""
    row = connection.execute(_SELECT + " WHERE archive.id = ?", (id_,)).fetchone()
    return None if row is None else _archived(row, {})


def query_jobs(connection: sqlite3.Connection, query: HistoryQuery) -> list[ArchivedJob]:
    """Ended jobs that match, newest submit first."""
    conditions = {
        "archive.user = :user": query.user is not None,
        "archive.name = :name": query.name is not None,
        "archive.state IN (SELECT value FROM json_each(:states))": bool(query.states),
        "archive.ended_at >= :since": query.since is not None,
        "archive.ended_at < :until": query.until is not None,
        "archive.position < :before": query.before is not None,
        _NAMED: bool(query.ids),
    }
    chosen = [text for text, is_used in conditions.items() if is_used]
    where = " WHERE " + " AND ".join(chosen) if chosen else ""
    values = {
        "user": query.user, "name": query.name, "since": query.since, "until": query.until, "before": query.before,
        "states": json.dumps([state.value for state in query.states]), "ids": json.dumps(query.ids),
        "limit": -1 if query.limit is None else query.limit,
    }  # fmt: skip
    specs: dict[str, JobSpec] = {}
    rows = connection.execute(_SELECT + where + " ORDER BY archive.position DESC LIMIT :limit", values)
    return [_archived(row, specs) for row in rows]


def states_of(connection: sqlite3.Connection, ids: Collection[JobId]) -> dict[JobId, JobState]:
    """The final states of the named jobs (of all tasks when an array is named), without decoding their records."""
    states: dict[JobId, JobState] = {}
    for row in connection.execute(_STATES, {"ids": json.dumps(list(ids))}):
        check_row(row, f"The archive's record of job {row[0]}")
        states[JobId(row[0])] = JobState(row[6])
    return states


def forget_jobs(connection: sqlite3.Connection, ids: Collection[JobId]) -> int:
    """Delete records of jobs (an array's id deletes its tasks); returns how many went."""
    named = {"ids": json.dumps(list(ids))}
    return connection.execute(_FORGET, named).rowcount


def collect_specs(connection: sqlite3.Connection) -> int:
    """Delete specs that no archived job names any more; returns how many went."""
    unused = "DELETE FROM spec WHERE NOT EXISTS (SELECT 1 FROM archive WHERE archive.spec = spec.id)"
    return connection.execute(unused).rowcount
