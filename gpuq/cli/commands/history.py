"""gpuq history: jobs that have ended."""

from __future__ import annotations

import os
import time
from typing import Any

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JSON, MAYBE_JOBS, WHOSE, Command, Option, Values
from gpuq.cli.selectors import expanded_ids, filters, own_name
from gpuq.units import moment_at

_PLAIN = "jobid,name,user,state,time,gpus,node,exit,start,end"


def history(values: Values) -> int:
    """List ended jobs, the newest first."""
    from gpuq.cli.requests import whole_number

    now = time.time()
    query: dict[str, Any] = filters(values)
    node = query.pop("node", None)
    limit = values.text("limit")
    query["limit"] = whole_number("--limit", limit, 1) if limit else 100
    for option in ("since", "until"):
        text = values.text(option)
        if text is not None:
            query[option] = f"{moment_at(text, now):.3f}"
    if values.words("jobs"):
        query["ids"] = ",".join(expanded_ids(values.words("jobs")))
    jobs = [job for job in connect().get("/v1/history", query)["jobs"] if node is None or job.get("node") == node]
    if values.flag("json"):
        output.write_json({"jobs": jobs})
    elif output.on_terminal() and not values.text("format"):
        _draw(jobs, now)
    else:
        from gpuq.cli.render.fields import named_fields, plain_lines

        wanted = values.text("format") or os.environ.get("GPUQ_FORMAT") or _PLAIN
        output.write_lines(plain_lines(jobs, named_fields(wanted), heads=not values.flag("noheader")))
    return 0


def _draw(jobs: list[dict[str, Any]], now: float) -> None:
    from gpuq.cli.render.jobs import ended_table

    if not jobs:
        output.write("no ended jobs fit; what runs and waits: gpuq status")
        return
    output.write_lines(
        ended_table(jobs, own=own_name(), now=now, colour=output.coloured(), width=output.width())
    )


COMMAND = Command(
    "Jobs that have ended, the newest first: how long they ran, where, and how they ended.",
    history,
    (
        *WHOSE,
        Option(("--since",), "Ended at or after: 2h (ago), 08:00, yesterday, 2026-05-01.", "TIME"),
        Option(("--until",), "Ended before.", "TIME"),
        Option(("--limit",), "At most this many jobs; default 100.", "N"),
        Option(("-o", "--format"), "Fields to list, with commas.", "FIELDS"),
        Option(("--noheader",), "No line of headings."),
        JSON,
    ),
    MAYBE_JOBS,
)
