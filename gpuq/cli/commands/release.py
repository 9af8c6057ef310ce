"""gpuq release: held jobs may start again."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JOBS, JSON, QUIET, Command, Values
from gpuq.cli.selectors import expanded_ids


def release(values: Values) -> int:
    """Release the named jobs."""
    answer = connect().post("/v1/release", {"ids": expanded_ids(values.words("jobs"))})
    output.say_changed(values.flag("json"), values.flag("quiet"), "Released", answer["changed"], answer)
    return 0


COMMAND = Command(
    "Let held jobs start again, in their old place in the queue.",
    release,
    (QUIET, JSON),
    JOBS,
)
