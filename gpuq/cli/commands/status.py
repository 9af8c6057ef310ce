"""gpuq status: what runs, what waits and why."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from gpuq.cli import output
from gpuq.cli.client import Daemon, connect
from gpuq.cli.options import JSON, MAYBE_JOBS, WHOSE, Command, Option, Values
from gpuq.cli.selectors import expanded_ids, filters, own_name

if TYPE_CHECKING:
    from gpuq.cli.render.fields import Field

_MOST_ON_TERMINAL = 200  # more rows than this are counted, not drawn


def status(values: Values) -> int:
    """List jobs as tables on a terminal, as squeue's lines on a pipe, or as JSON; one id shows that job."""
    words = values.words("jobs")
    ids = expanded_ids(words)
    if len(ids) == 1 and not values.text("format") and not values.flag("long"):
        from gpuq.cli.commands.show import show_job

        return show_job(connect(), ids[0], values.flag("json"))
    daemon = connect()
    query = filters(values)
    if ids:
        query["ids"] = ",".join(ids)
    if values.flag("all"):
        query["all"] = 1
    drawn = output.on_terminal() and not values.flag("json") and not _asks_for_lines(values)
    if values.text("limit"):
        from gpuq.cli.requests import whole_number

        query["limit"] = whole_number("--limit", values.text("limit") or "", 1)
    if not drawn and not values.flag("json"):
        from gpuq.cli.render.fields import needs_of

        query["fields"] = needs_of(_columns(values), values.text("sort") or "")
    answer = daemon.get("/v1/jobs", query)
    jobs = answer["jobs"]
    if "fields" in query:
        names = query["fields"].split(",")
        jobs = [dict(zip(names, row, strict=True)) for row in jobs]
    if values.text("sort"):
        from gpuq.cli.render.fields import sorted_jobs

        jobs = sorted_jobs(jobs, values.text("sort") or "")
    if values.flag("json"):
        summary = {name: value for name, value in daemon.get("/v1/status").items() if name != "schema"}
        output.write_json({"summary": summary, "jobs": jobs, "more": answer.get("more", 0)})
    elif drawn:
        _draw(daemon, jobs, answer.get("more", 0))
    else:
        _list(values, jobs, answer.get("more", 0))
    return 0


def _asks_for_lines(values: Values) -> bool:
    return bool(values.text("format") or values.flag("long") or values.flag("noheader"))


def _columns(values: Values) -> list[Field]:
    from gpuq.cli.render.fields import DEFAULT, LONG, named_fields

    wanted = values.text("format") or (LONG if values.flag("long") else os.environ.get("GPUQ_FORMAT") or DEFAULT)
    return named_fields(wanted)


def _list(values: Values, jobs: list[dict[str, Any]], more: int) -> None:
    from gpuq.cli.render.fields import plain_lines
    from gpuq.cli.render.jobs import collapsed

    output.write_lines(plain_lines(collapsed(jobs), _columns(values), heads=not values.flag("noheader")))
    if more:
        output.note(f"{more} more jobs are not listed; raise --limit")


def _draw(daemon: Daemon, jobs: list[dict[str, Any]], more: int) -> None:
    from gpuq.cli.render.jobs import RUNNING, collapsed, terminal_view

    summary = daemon.get("/v1/status")
    running = [job for job in jobs if job["state"] in RUNNING]
    others = collapsed(job for job in jobs if job["state"] not in RUNNING)
    shown = [*running, *others][:_MOST_ON_TERMINAL]
    left_out = more + len(running) + len(others) - len(shown)
    use = _use_by_job(daemon) if running else {}
    output.write_lines(
        terminal_view(
            shown, summary, use, own=own_name(), now=time.time(), colour=output.coloured(), width=output.width()
        )
    )
    for warning in (summary.get("degraded"), *summary.get("warnings", ())):
        if warning:
            output.note(warning)
    if left_out:
        output.note(f"{left_out} more; all of them: gpuq status | less, or use --me, -u or -t")


def _use_by_job(daemon: Daemon) -> dict[str, float]:
    """Mean use of the GPUs of each job; jobs without a sample are left out."""
    samples: dict[str, list[float]] = {}
    for gpu in daemon.get("/v1/gpus")["gpus"]:
        if gpu.get("job") and gpu.get("utilization") is not None:
            samples.setdefault(gpu["job"], []).append(gpu["utilization"])
    return {job: sum(shares) / len(shares) for job, shares in samples.items()}


COMMAND = Command(
    "What runs, what waits and why. On a pipe: one full line per job with squeue's columns. With one id: that job.",
    status,
    (
        *WHOSE,
        Option(("-a", "--all"), "Ended jobs too."),
        Option(("-l", "--long"), "More columns."),
        Option(("-o", "--format"), "Fields to list, with commas, such as jobid,name,state.", "FIELDS"),
        Option(("-S", "--sort"), "Sort by fields; -FIELD is downward.", "FIELDS"),
        Option(("--noheader",), "No line of headings."),
        Option(("--limit",), "At most this many jobs.", "N"),
        JSON,
    ),
    MAYBE_JOBS,
    epilog="GPUQ_FORMAT sets the default of --format. As in squeue, -n is a name, not 'no header'.",
)
