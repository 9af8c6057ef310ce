"""gpuq run: queue a command, show its output, exit with its code."""

from __future__ import annotations

import sys

from gpuq.cli import output
from gpuq.cli.client import Daemon, ensure_daemon, job_path
from gpuq.cli.options import Command, Option, Values
from gpuq.cli.submission import submission
from gpuq.cli.submit_options import COMMAND_WORDS, JOB_OPTIONS
from gpuq.errors import GpuqError, UsageError

_INTERRUPTED = 130


def run(values: Values) -> int:
    """Submit, follow, and return the job's exit code; Ctrl-C cancels the job."""
    from gpuq.cli.following import follow

    asked = submission(values, COMMAND)
    quiet = asked.values.flag("quiet")
    if asked.body["tasks"]:
        raise UsageError("run shows one job; this is an array.", "Use gpuq submit, then gpuq wait.")
    daemon = ensure_daemon()
    answer = daemon.post("/v1/jobs", asked.body)
    identity = answer["id"]
    if not quiet:
        for text in (*asked.remarks, *answer.get("notes", ())):
            output.note(text)
        output.note(f"job {identity}")
    try:
        return follow(daemon, daemon.get(job_path(identity))["job"])
    except KeyboardInterrupt:
        return _interrupted(daemon, identity)


def _interrupted(daemon: Daemon, identity: str) -> int:
    """Cancel the job and see its end; a second Ctrl-C leaves at once, the job being ended by the daemon."""
    from gpuq.cli.waiting import wait_for

    sys.stderr.write(f"\nending job {identity} (Ctrl-C again to leave it to the daemon)\n")
    try:
        daemon.post("/v1/cancel", {"ids": [identity]})
        wait_for(daemon, [identity])
    except KeyboardInterrupt:
        output.note(f"job {identity} is being ended; see: gpuq status {identity}")
    except GpuqError as error:
        output.note(f"job {identity} could not be ended: {error.message}")
    return _INTERRUPTED


COMMAND = Command(
    "Queue a command and stay with it: its output is shown and its exit code is this one's. Ctrl-C ends the job "
    "(exit code 130). Options are those of submit, before the command.",
    run,
    (*JOB_OPTIONS, Option(("-q", "--quiet"), "Only the job's own output.")),
    COMMAND_WORDS,
    epilog="Example:  gpuq run --gpus 1 -- python eval.py",
    stops_at_word=True,
)
