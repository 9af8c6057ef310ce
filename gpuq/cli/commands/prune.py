"""gpuq prune: forget jobs that ended long ago."""

from __future__ import annotations

import time
from typing import Any

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JSON, MAYBE_JOBS, QUIET, YES, Command, Option, Values
from gpuq.cli.selectors import expanded_ids, own_name, states
from gpuq.errors import Refused, UsageError
from gpuq.units import duration_s, format_rough_duration


def prune(values: Values) -> int:
    """Ask, then let the daemon forget the jobs; the kept ones are named with the reason."""
    older, ids = values.text("older_than"), expanded_ids(values.words("jobs"))
    if older is None and not ids:
        raise UsageError("prune needs --older-than or job ids.", "Write: gpuq prune --older-than 30d")
    age_s = 0.0 if older is None else duration_s(older, "age")
    body: dict[str, Any] = {"ended_before": None if older is None else time.time() - age_s, "ids": ids}
    body["user"] = None if values.flag("all_users") else values.text("user") or own_name()
    if values.text("states"):
        body["states"] = states(values.text("states") or "").split(",")
    what = f"jobs that ended more than {format_rough_duration(age_s)} ago" if older else f"{len(ids)} jobs"
    if not values.flag("yes") and not output.confirmed(f"Forget {what}? Their ids are not used again."):
        raise Refused("Nothing was forgotten.", "To go without the question: add -y")
    answer = connect().post("/v1/prune", {name: value for name, value in body.items() if value is not None})
    for kept in answer.get("kept", ()):
        output.note(f"job {kept['id']} is kept: {kept['reason']}")
    output.say_changed(values.flag("json"), values.flag("quiet"), "Forgot", answer["pruned"], answer)
    return 0


COMMAND = Command(
    "Forget ended jobs: they leave status and history. Asks first. Output files and jobs that others still wait for "
    "are kept.",
    prune,
    (
        Option(("--older-than",), "Those that ended longer ago than this: 30d, 12h.", "TIME"),
        Option(("-t", "--states", "--state"), "Only those that ended in these states.", "STATE,..."),
        Option(("-u", "--user"), "Jobs of this user instead of your own.", "USER"),
        Option(("--all-users",), "Jobs of all users (administrators)."),
        YES,
        QUIET,
        JSON,
    ),
    MAYBE_JOBS,
)
