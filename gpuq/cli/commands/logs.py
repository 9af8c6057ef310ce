"""gpuq logs: a job's output."""

from __future__ import annotations

import os
from typing import Any

from gpuq.cli import output
from gpuq.cli.client import connect, job_path
from gpuq.cli.options import JSON, Argument, Command, Option, Values
from gpuq.cli.selectors import expanded_ids
from gpuq.errors import UsageError

_MOST_JSON_BYTES = 64 << 20


def logs(values: Values) -> int:
    """Show the output of jobs, or follow one and exit with its code."""
    from gpuq.cli.following import follow
    from gpuq.cli.requests import whole_number

    daemon = connect()
    tail, attempt = values.text("tail"), values.text("attempt")
    lines = None if tail is None else whole_number("--tail", tail)
    number = None if attempt is None else whole_number("--attempt", attempt)
    ids = expanded_ids(values.words("jobs"))
    if values.flag("follow") and (len(ids) > 1 or values.flag("json") or number is not None):
        raise UsageError("--follow shows one job's present attempt, as text.", "Name one id; no --attempt, no --json.")
    jobs = [_one_job(daemon.get(job_path(identity)), identity) for identity in ids]
    if values.flag("follow"):
        return follow(daemon, jobs[0], errors=values.flag("stderr"), tail=lines)
    if values.flag("json"):
        documents = [_document(job, values.flag("stderr"), number, lines) for job in jobs]
        output.write_json(documents[0] if len(documents) == 1 else {"logs": documents})
        return 0
    for job in jobs:
        if len(jobs) > 1:
            output.note(f"job {job['id']}:")
        _show(job, values.flag("stderr"), number, lines)
    return 0


def _one_job(answer: dict[str, Any], identity: str) -> dict[str, Any]:
    tasks = list(answer.get("tasks") or [])
    if len(tasks) > 1 and "_" not in identity:
        raise UsageError(
            f"Job {identity} is an array of {len(tasks)} tasks.", f"Name one, such as: gpuq logs {tasks[0]['id']}"
        )
    job: dict[str, Any] = answer["job"]
    return job


def _show(job: dict[str, Any], errors: bool, attempt: int | None, lines: int | None) -> None:
    from gpuq.cli.following import Screen, log_file, open_log
    from gpuq.cli.logfile import copy, tail_offset

    descriptor = open_log(job, log_file(job, errors, attempt))
    try:
        screen = Screen()
        start = 0 if lines is None else tail_offset(descriptor, lines)
        copy(descriptor, start, screen.write, bool(job.get("log_dropped_bytes")))
        screen.write(b"", final=True)
    finally:
        os.close(descriptor)


def _document(job: dict[str, Any], errors: bool, attempt: int | None, lines: int | None) -> dict[str, Any]:
    from gpuq.cli.following import log_file, open_log
    from gpuq.cli.logfile import pieces, tail_offset

    path = log_file(job, errors, attempt)
    descriptor = open_log(job, path)
    try:
        size = os.fstat(descriptor).st_size
        start = 0 if lines is None else tail_offset(descriptor, lines)
        if size - start > _MOST_JSON_BYTES and not job.get("log_dropped_bytes"):
            raise UsageError(f"The log of job {job['id']} is too large for one JSON document.", "Add --tail N.")
        found = list(pieces(descriptor, start, size, bool(job.get("log_dropped_bytes"))))
    finally:
        os.close(descriptor)
    text = b"".join(piece for piece in found if isinstance(piece, bytes)).decode("utf-8", "replace")
    left_out = sum(piece for piece in found if isinstance(piece, int))
    return {"id": job["id"], "path": path, "log_bytes": size, "left_out_bytes": left_out, "text": text}


COMMAND = Command(
    "A job's output. To a pipe its bytes go unchanged; on a terminal only text and colours are shown.",
    logs,
    (
        Option(("-f", "--follow"), "Show what comes until the job ends; exit with its code. Ctrl-C leaves it running."),
        Option(("--tail",), "Only the last N lines.", "N"),
        Option(("-e", "--stderr"), "The error output, where it has a file of its own."),
        Option(("--attempt",), "An earlier attempt; 0 is the first.", "N"),
        JSON,
    ),
    Argument("jobs", "JOB...", "Job ids, such as 12, 12_3 or last.", many=True, completes="jobs"),
)
