"""gpuq cancel: end jobs, or send them a signal."""

from __future__ import annotations

from typing import Any

from gpuq.cli import output
from gpuq.cli.client import Daemon, connect
from gpuq.cli.options import JSON, MAYBE_JOBS, QUIET, WHOSE, YES, Command, Option, Values
from gpuq.cli.selectors import expanded_ids, filters, has_filters, own_name
from gpuq.errors import Refused, UsageError
from gpuq.units import duration_s, signal_number


def cancel(values: Values) -> int:
    """End (or signal) the jobs named by id or by filters."""
    daemon = connect()
    ids = _chosen(daemon, values)
    if not ids:
        if not values.flag("quiet"):
            output.note("no job fits; nothing was done")
        if values.flag("json"):
            output.write_json({"cancelled": [], "already_ended": []})
        return 0
    if values.text("signal") is not None:
        number = signal_number(values.text("signal") or "")
        answer = daemon.post("/v1/signal", {"ids": ids, "signal": number}, repeatable=False)
        output.say_changed(values.flag("json"), True, "", answer["signalled"], answer)
        return 0
    body: dict[str, Any] = {"ids": ids}
    if values.text("grace") is not None:
        body["grace_s"] = duration_s(values.text("grace") or "", "grace time")
    return _say(values, daemon.post("/v1/cancel", body))


def _say(values: Values, answer: dict[str, Any]) -> int:
    ended = answer.get("already_ended") or []
    if ended and not values.flag("quiet"):
        output.note(f"already ended: {', '.join(ended[:10])}{' …' if len(ended) > 10 else ''}")
    output.say_changed(values.flag("json"), values.flag("quiet"), "Cancelled", answer["cancelled"], answer)
    return 1 if ended and values.flag("strict") else 0


def _chosen(daemon: Daemon, values: Values) -> list[str]:
    """The ids to act on: those named, those that fit the filters, or with --all all of the caller's."""
    named = expanded_ids(values.words("jobs"))
    filtered, everything = has_filters(values), values.flag("all")
    if not named and not filtered and not everything:
        raise UsageError("cancel needs a job id, a filter or --all.", "See: gpuq cancel --help")
    if not filtered and not everything:
        return named
    query = filters(values)
    if everything and not query.get("user"):
        query["user"] = own_name()
    if named:
        query["ids"] = ",".join(named)
    ids = [job["id"] for job in daemon.get("/v1/jobs", query)["jobs"]]
    asks = everything and bool(ids) and not values.flag("yes")
    if asks and not output.confirmed(f"End {len(ids)} jobs of {query['user']}?"):
        raise Refused("Nothing was cancelled.", "To go without the question: gpuq cancel --all -y")
    return ids


COMMAND = Command(
    "End jobs: waiting ones at once; running ones get TERM, and after their grace time KILL, down to the last process. "
    "With -s only that signal is sent.",
    cancel,
    (
        *WHOSE,
        Option(("--all",), "All your jobs; asks first."),
        YES,
        Option(("-s", "--signal"), "Send this signal and do nothing else.", "SIGNAL"),
        Option(("--grace",), "Time between TERM and KILL for this once.", "TIME"),
        Option(("--strict",), "A job that has already ended makes the exit code 1."),
        QUIET,
        JSON,
    ),
    MAYBE_JOBS,
)
