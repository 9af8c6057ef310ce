"""gpuq why: why a job waits, and what would start it sooner."""

from __future__ import annotations

import time

from gpuq.cli import output
from gpuq.cli.client import connect, job_path
from gpuq.cli.options import JOBS, JSON, Command, Values
from gpuq.cli.selectors import expanded_ids


def why(values: Values) -> int:
    """Explain each of the jobs."""
    daemon = connect()
    answers = [daemon.get(job_path(identity, "/why")) for identity in expanded_ids(values.words("jobs"))]
    found = [answer["why"] for answer in answers]
    if values.flag("json"):
        output.write_json({"why": found[0]} if len(found) == 1 else {"whys": found})
        return 0
    from gpuq.cli.render.why import why_lines

    width = output.width() if output.on_terminal() else None
    for number, each in enumerate(found):
        if number:
            output.write("")
        output.write_lines(why_lines(each, time.time(), width, output.coloured()))
    return 0


COMMAND = Command(
    "Why a job waits: what is planned for it, where it cannot run and why, what is ahead of it, what would help.",
    why,
    (JSON,),
    JOBS,
)
