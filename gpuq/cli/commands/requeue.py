"""gpuq requeue: jobs run again under the same id."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JOBS, JSON, QUIET, Command, Option, Values
from gpuq.cli.selectors import expanded_ids


def requeue(values: Values) -> int:
    """Queue the named jobs again."""
    body = {"ids": expanded_ids(values.words("jobs")), "hold": values.flag("hold")}
    # Not repeated after a lost answer: a job that ended meanwhile would run once more than asked.
    answer = connect().post("/v1/requeue", body, repeatable=False)
    output.say_changed(values.flag("json"), values.flag("quiet"), "Requeued", answer["changed"], answer)
    return 0


COMMAND = Command(
    "Run jobs again under the same id; a running one is ended first. Its earlier logs stay: see logs --attempt.",
    requeue,
    (
        Option(("-H", "--hold"), "Hold them, so that they start only after gpuq release."),
        QUIET,
        JSON,
    ),
    JOBS,
)
