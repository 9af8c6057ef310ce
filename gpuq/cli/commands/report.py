"""gpuq report: what can be said of the jobs that have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JSON, Command, Option, Values
from gpuq.errors import UsageError
from gpuq.units import moment_at

if TYPE_CHECKING:
    from gpuq.learn.bands import Coverage, Outcome

_PAGE = 1000
_SINCE = "30d"


def report(values: Values) -> int:
    """Say how often run times fell inside the bands that were predicted."""
    if not values.flag("predictions"):
        raise UsageError("report needs to know what of.", "Write: gpuq report --predictions")
    since = values.text("since") or _SINCE
    jobs = _completed(moment_at(since, time.time()), values.text("user"))
    outcomes = _outcomes(jobs)
    if values.flag("json"):
        output.write_json(_document(len(jobs), outcomes))
    else:
        output.write_lines(_lines(since, len(jobs), outcomes))
    return 0


def _completed(since_at: float, user: str | None) -> list[dict[str, Any]]:
    """Jobs that ended well since then, page by page."""
    daemon = connect()
    query: dict[str, Any] = {"states": "COMPLETED", "since": f"{since_at:.3f}", "limit": _PAGE}
    if user:
        query["user"] = user
    jobs: list[dict[str, Any]] = []
    while True:
        page = daemon.get("/v1/history", query)["jobs"]
        jobs += page
        if len(page) < _PAGE:
            return jobs
        query["before"] = page[-1]["order"]


def _outcomes(jobs: list[dict[str, Any]]) -> list[Outcome]:
    from gpuq.learn.bands import Outcome

    known = [job for job in jobs if job.get("run_s") is not None and len(job.get("predicted_s") or ()) == 5]
    return [Outcome((str(job["user"]), str(job["name"])), job["predicted_s"], job["run_s"]) for job in known]


def _document(completed: int, outcomes: list[Outcome]) -> dict[str, Any]:
    from gpuq.learn.bands import by_group, coverage

    groups = [{"user": user, "name": name, **_plain(found)} for (user, name), found in by_group(outcomes)]
    return {"predictions": {"completed": completed, **_plain(coverage(outcomes)), "groups": groups}}


def _plain(found: Coverage) -> dict[str, Any]:
    return {
        "jobs": found.jobs,
        "in_50": found.share(found.in_half),
        "in_90": found.share(found.in_most),
        "below_90": found.share(found.below),
        "above_90": found.share(found.above),
    }


def _lines(since: str, completed: int, outcomes: list[Outcome]) -> list[str]:
    from gpuq.cli.render.table import Cell, Column, table
    from gpuq.learn.bands import by_group, coverage

    columns = (
        Column("JOBS OF", shrinks=True), Column("JOBS", right=True), Column("IN 50% BAND", right=True),
        Column("IN 90% BAND", right=True), Column("SHORTER", right=True), Column("LONGER", right=True),
    )  # fmt: skip
    rows = [("all", coverage(outcomes)), *((f"{group[0]}:{group[1]}", found) for group, found in by_group(outcomes))]
    cells = [[Cell(text) for text in (name, str(found.jobs), *_shares(found))] for name, found in rows]
    width = output.width() if output.on_terminal() else None
    first = f"{len(outcomes)} of {completed} jobs that completed since {since} had been predicted from history"
    return [first, "", *table(columns, cells, colour=output.coloured(), width=width)]


def _shares(found: Coverage) -> list[str]:
    shares = (found.share(count) for count in (found.in_half, found.in_most, found.below, found.above))
    return ["-" if share is None else f"{100 * share:.0f}%" for share in shares]


COMMAND = Command(
    "With --predictions: how often jobs ran as long as gpuq predicted from history when it started them: inside the "
    "band for half of them, inside the band for 90%, shorter or longer than that. Good predictions show 50% and 90%. "
    "Jobs that did not complete, or had no history, do not count.",
    report,
    (
        Option(("--predictions",), "How good predictions of run times were."),
        Option(("--since",), "Jobs that ended at or after: 30d (ago; default), 2026-05-01.", "TIME"),
        Option(("-u", "--user"), "Only jobs of this user.", "USER"),
        JSON,
    ),
)
