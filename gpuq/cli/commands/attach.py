"""gpuq attach: a running job's output, live."""

from __future__ import annotations

import sys

from gpuq.cli.client import connect, job_path
from gpuq.cli.options import Argument, Command, Option, Values
from gpuq.cli.selectors import one_id
from gpuq.errors import Refused


def attach(values: Values) -> int:
    """Follow a job from its last lines on; with --signal send Ctrl-C on to it."""
    from gpuq.cli.following import follow

    daemon = connect()
    identity = one_id([values.text("job") or ""])
    job = daemon.get(job_path(identity))["job"]
    if job.get("ended_at") is not None:
        raise Refused(f"Job {identity} has ended ({job['state']}).", f"Read its output with: gpuq logs {identity}")
    while True:
        try:
            return follow(daemon, job, tail=20)
        except KeyboardInterrupt:
            if not values.flag("signal"):
                sys.stderr.write(f"\ndetached; job {identity} runs on\n")
                raise
            daemon.post("/v1/signal", {"ids": [job["id"]], "signal": 2}, repeatable=False)
            sys.stderr.write(f"\nsent SIGINT to job {identity}\n")


COMMAND = Command(
    "Follow a running job's output. Ctrl-C detaches (exit code 130) and the job runs on; when it ends, its code is "
    "the exit code. A job's input is always empty, so there is nothing to type.",
    attach,
    (Option(("--signal",), "Send Ctrl-C on to the job as SIGINT instead of detaching."),),
    Argument("job", "JOB", "A job id, such as 12 or last.", completes="jobs"),
)
