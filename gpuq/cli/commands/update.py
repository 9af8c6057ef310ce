"""gpuq update: change waiting jobs, or the time limit of running ones."""

from __future__ import annotations

import os
from typing import Any

from gpuq.cli import output, requests
from gpuq.cli.client import connect
from gpuq.cli.options import JSON, QUIET, Argument, Command, Values
from gpuq.cli.selectors import expanded_ids
from gpuq.cli.submit_options import ORDER_OPTIONS, OTHER_OPTIONS, RESOURCE_OPTIONS, TIME_OPTIONS
from gpuq.errors import UsageError

_LEFT_OUT = ("hold", "wrap", "like", "signal", "preemptible")  # of submit's options: there are other verbs, or none


def update(values: Values) -> int:
    """Send what is to be changed."""
    words = values.words("words")
    settings = [word for word in words if "=" in word]
    ids = expanded_ids([word for word in words if "=" not in word])
    if not ids:
        raise UsageError("update needs a job id.", "Write: gpuq update 12 --time 2h")
    changes = _changes(values.merged(_from_settings(settings)))
    if not changes:
        raise UsageError("There is nothing to change.", "Write: gpuq update 12 --time 2h, or gpuq update 12 time=2h")
    answer = connect().post("/v1/update", {"ids": ids, "changes": changes})
    output.say_changed(values.flag("json"), values.flag("quiet"), "Updated", answer["changed"], answer)
    return 0


def _from_settings(settings: list[str]) -> dict[str, Any]:
    """`time=2h` as the option --time, by any of its spellings."""
    by_name = {flag.lstrip("-").replace("-", "_"): option for option in COMMAND.options for flag in option.flags}
    found: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        option = by_name.get(key.lower().lstrip("-").replace("-", "_"))
        if option is None or (option.is_flag and option.name != "requeue"):
            from difflib import get_close_matches

            near = get_close_matches(key, by_name, 1)
            raise UsageError(f"update has no key '{key}'.", f"Did you mean {near[0]}?" if near else None)
        found[option.name] = value if not option.is_flag else value.lower() in ("1", "yes", "true")
    return found


def _changes(values: Values) -> dict[str, Any]:
    """The JobSpec fields to set."""
    changes: dict[str, Any] = {**requests.times(values), **requests.order(values)}
    resources = requests.resources(values)
    if resources:
        changes["resources"] = resources
    if values.text("begin") is not None:
        import time

        from gpuq.units import begin_at

        changes["begin_at"] = begin_at(values.text("begin") or "", time.time())
    for option, field in (("job_name", "name"), ("comment", "comment")):
        if values.text(option) is not None:
            requests.check_utf8(os.fspath(values.text(option) or ""), f"--{option}")
            changes[field] = values.text(option)
    return changes


COMMAND = Command(
    "Change a waiting job: resources, times, order, name. Of a running job only the time limit can be changed.",
    update,
    (
        *(
            option
            for option in (*RESOURCE_OPTIONS, *TIME_OPTIONS, *ORDER_OPTIONS, *OTHER_OPTIONS)
            if option.name not in _LEFT_OUT
        ),
        QUIET,
        JSON,
    ),
    Argument("words", "JOB... [KEY=VALUE...]", "Job ids, and changes such as time=2h.", many=True, completes="jobs"),
)
