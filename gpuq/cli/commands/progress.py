"""gpuq progress: what a job says of itself."""

from __future__ import annotations

import os

from gpuq.cli.client import connect
from gpuq.cli.options import JSON, Argument, Command, Values
from gpuq.cli.output import write_json
from gpuq.errors import UsageError


def progress(values: Values) -> int:
    """Tell the daemon how much is done of the job this runs in; prints nothing unless asked for JSON."""
    done = fraction(values.text("fraction") or "")
    job = os.environ.get("GPUQ_JOB_ID")
    if not job:
        raise UsageError(
            "gpuq progress is for commands inside a job: GPUQ_JOB_ID is not set here.",
            "See a job's progress with: gpuq show ID",
        )
    answer = connect().post("/v1/progress", {"id": job, "fraction": done})
    if values.flag("json"):
        write_json(answer)
    return 0


def fraction(text: str) -> float:
    """0.42 or 42% as 0.42; raises UsageError for anything else."""
    number = text.strip()
    try:
        value = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise UsageError(f"'{text}' is not a number.", "Write for example: gpuq progress 0.42") from None
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"Progress goes from 0 to 1, not to {text}.", "Write for example: gpuq progress 0.42")
    return value


COMMAND = Command(
    "Call this inside a job, as often as you like: from then on what is left of it is measured instead of predicted "
    "from earlier runs. A program may as well write the number into the file $GPUQ_PROGRESS_FILE, which is read once "
    "a second.",
    progress,
    (JSON,),
    Argument("fraction", "FRACTION", "How much of the work is done: from 0 to 1, or 42%."),
)
