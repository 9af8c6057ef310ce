"""gpuq wait: until jobs end."""

from __future__ import annotations

import time

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JOBS, JSON, QUIET, Command, Option, Values
from gpuq.cli.selectors import expanded_ids
from gpuq.cli.waiting import TIME_OVER, exit_code, wait_for
from gpuq.units import duration_s


def wait(values: Values) -> int:
    """Wait for all (or any) of the jobs; the largest exit code, or 124 when the time is over."""
    ids = expanded_ids(values.words("jobs"))
    limit = values.text("timeout")
    until = None if limit is None else time.monotonic() + duration_s(limit, "timeout")
    jobs = wait_for(connect(), ids, until, any_of=values.flag("any"))
    ended = [job for job in jobs if job.get("ended_at") is not None]
    if values.flag("json"):
        output.write_json({"done": bool(jobs), "jobs": jobs})
    if not jobs:
        if not values.flag("quiet"):
            output.note(f"the time is over before {'one' if values.flag('any') else 'all'} of {', '.join(ids)} ended")
        return TIME_OVER
    if not values.flag("quiet") and not values.flag("json"):
        for job in ended:
            _say(job)
    return exit_code(ended if values.flag("any") else jobs)


def _say(job: dict[str, object]) -> None:
    from gpuq.cli.render.jobs import exit_text, reason_text
    from gpuq.cli.render.text import plain

    if job.get("wait_exit_code"):
        why = reason_text(job)
        output.note(plain(f"job {job['id']} {job['state']}, exit code {exit_text(job)}{f': {why}' if why else ''}"))


COMMAND = Command(
    "Wait until jobs have ended, whatever way. The exit code is the largest of theirs (128 + N for a signal, 1 when "
    "it is not known); 124 when --timeout comes first; Ctrl-C gives 130 and the jobs run on.",
    wait,
    (
        Option(("--timeout",), "Wait at most this long: 90s, 30 (minutes), 2h.", "TIME"),
        Option(("--any",), "Until the first of them has ended."),
        QUIET,
        JSON,
    ),
    JOBS,
)
