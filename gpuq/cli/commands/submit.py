"""gpuq submit: queue a command or a script."""

from __future__ import annotations

import sys
from typing import Any

from gpuq.cli import output
from gpuq.cli.client import Daemon, connect, ensure_daemon
from gpuq.cli.options import JSON, QUIET, Command, Option, Values
from gpuq.cli.submission import Submission, submission, time_limit_note
from gpuq.cli.submit_options import COMMAND_WORDS, JOB_OPTIONS


def submit(values: Values) -> int:
    """Submit, say the id, and with --wait return the job's exit code."""
    asked = submission(values, COMMAND)
    quiet = asked.values.flag("quiet")
    if asked.values.flag("dry_run"):
        return _dry_run(asked)
    daemon = ensure_daemon()
    answer = daemon.post("/v1/jobs", asked.body)
    waits = asked.values.flag("wait")
    if not quiet:
        _say_notes([*asked.remarks, *answer.get("notes", ())])
    if not asked.values.flag("json"):
        _say_id(answer["id"], asked, quiet)
    elif not waits:
        output.write_json({"remarks": asked.remarks, **answer})
    return _wait(daemon, answer, asked.values) if waits else 0


def _say_id(identity: str, asked: Submission, quiet: bool) -> None:
    if asked.values.flag("parsable"):
        output.write(identity)
    elif not quiet:
        output.write(f"Submitted batch job {identity}")
        limit = time_limit_note(asked.body["spec"])
        if limit and sys.stderr.isatty():
            output.note(limit)
    sys.stdout.flush()


def _say_notes(notes: list[str]) -> None:
    for text in notes:
        output.note(text)


def _dry_run(asked: Submission) -> int:
    """Say where and when it would start; nothing is queued and no daemon is started for it."""
    answer = connect().post("/v1/jobs/dry-run", asked.body)
    if asked.values.flag("json"):
        output.write_json({"remarks": asked.remarks, **answer})
        return 0
    _say_notes([*asked.remarks, *answer.get("notes", ())])
    output.write(_start_sentence(answer["start"]))
    return 0


def _start_sentence(start: dict[str, Any]) -> str:
    from time import time

    from gpuq.cli.render.text import plain
    from gpuq.units import format_clock

    where = f" on {start['node']}" if start.get("node") else ""
    if start.get("now"):
        return plain(f"It would start now{where}.")
    reason = start.get("message") or start.get("reason") or "no free GPU fits"
    if start.get("at") is not None:
        return plain(f"It would start about {format_clock(start['at'], time())}{where}: {reason}")
    return plain(f"It would wait{where}: {reason}")


def _wait(daemon: Daemon, answer: dict[str, Any], values: Values) -> int:
    from gpuq.cli.waiting import exit_code, wait_for

    jobs = wait_for(daemon, [answer["id"]])
    if values.flag("json"):
        output.write_json({**answer, "jobs": jobs})
    return exit_code(jobs)


COMMAND = Command(
    "Queue a command or a script; it starts when its GPUs are free. Options come before the command: everything "
    "from its first word on (or after --) is the job's own. A file that begins with #! or has #GPUQ or #SBATCH "
    "lines is a script: its text is taken now, and those lines are read as options.",
    submit,
    (
        *JOB_OPTIONS,
        Option(("-W", "--wait"), "Wait until the job has ended and exit with its code."),
        Option(("--dry-run", "--test-only"), "Queue nothing; say where and when it would start."),
        Option(("--parsable",), "Print the id only."),
        QUIET,
        JSON,
    ),
    COMMAND_WORDS,
    epilog="Examples:  gpuq submit --gpus 2 -t 8h -- python train.py --lr 3e-4;  gpuq submit train.sh;  "
    "gpuq submit --sweep lr=1e-3,1e-4 -- python train.py --lr {lr}",
    stops_at_word=True,
)
