"""gpuq hold: waiting jobs that are not to start."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JOBS, JSON, QUIET, Command, Values
from gpuq.cli.selectors import expanded_ids


def hold(values: Values) -> int:
    """Hold the named jobs."""
    answer = connect().post("/v1/hold", {"ids": expanded_ids(values.words("jobs"))})
    output.say_changed(values.flag("json"), values.flag("quiet"), "Held", answer["changed"], answer)
    return 0


COMMAND = Command(
    "Keep waiting jobs from starting until they are released. A running job is not touched.",
    hold,
    (QUIET, JSON),
    JOBS,
)
