"""Settings for people: all in force and where each comes from, what a change did or would do, who changed what.

Imports config, units and render.table.

One thing to know: a setting is shown by its field, whose name has the unit ("every_s = 30"); the key that gpuq.toml
and `config set` take has none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from gpuq.cli.render.table import Cell, Column, table
from gpuq.config import Config
from gpuq.units import format_clock

Json = dict[str, Any]

_MOST: Final = 20  # jobs shown of those that would change place


def document_of(settings: Config) -> Json:
    """The settings as JSON has them: by section and field."""
    apart = ("file", "nodes", "accounts", "stated")
    sections = {name: value._asdict() for name, value in settings._asdict().items() if name not in apart}
    return {"file": settings.file, **sections, "nodes": [node._asdict() for node in settings.nodes],
            "accounts": [account._asdict() for account in settings.accounts]}  # fmt: skip


def sources_of(settings: Config, document: Json) -> dict[str, Json]:
    """Where each field comes from, as far as the file tells."""
    fields = [f"{name}.{key}" for name, keys in document.items() if isinstance(keys, dict) for key in keys]
    return {
        field: {"source": "file" if field in settings.stated else "default", "by": None, "set_at": None}
        for field in fields
    }


def moment(at: float) -> str:
    """A moment of a change: date and time, local."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def origin(source: Json) -> str:
    """Where a value comes from: "default", "gpuq.toml", "set by ana on 2026-12-01 10:12"."""
    if source["source"] == "set":
        return f"set by {source['by']} on {moment(source['set_at'])}"
    return "gpuq.toml" if source["source"] == "file" else "default"


def section_lines(name: str, fields: Mapping[str, Any], sources: Mapping[str, Json]) -> list[str]:
    """`[section]`, then each field with its value and, in a comment, where it comes from."""
    shown = {key: f"{key} = {value_text(value)}" for key, value in fields.items()}
    width = max((len(text) for text in shown.values() if len(text) <= 40), default=0)
    lines = []
    for key, text in shown.items():
        source = sources.get(f"{name}.{key}")
        lines.append(f"{text:<{width}}  # {origin(source)}" if source else text)
    return ["", f"[{name}]", *lines]


def value_text(value: Any) -> str:
    """A value as TOML would have it; numbers without needless digits."""
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) else f"{value:.1f}"
    return "(not set)" if value is None else json.dumps(value)


def changed_line(before: Json, now: Json) -> str:
    """What `set` or `unset` did, in a line."""
    text = f"{now['field']} = {now['value']:g} ({origin(now)})"
    return text if before["value"] == now["value"] else f"{text}; it was {before['value']:g} ({origin(before)})"


def history_lines(changes: list[Json], width: int | None = None, colour: bool = False) -> list[str]:
    """One line per change, oldest first."""
    if not changes:
        return ["no setting was changed"]
    heads = (Column("WHEN"), Column("WHO"), Column("SETTING"), Column("VALUE"))
    rows = [
        [Cell(moment(each["changed_at"])), Cell(each["by"]), Cell(each["field"]),
         Cell("unset" if each["value"] is None else f"{each['value']:g}")]
        for each in changes
    ]  # fmt: skip
    return table(heads, rows, width=width, colour=colour)


def rehearsal_lines(found: Json, now: float, width: int | None = None, colour: bool = False) -> list[str]:
    """Who would change place, and what becomes of the predicted Impact Factor."""
    head = f"{found['key']}: {found['before']:g} -> {found['value']:g}, not carried out"
    jobs = found["jobs"]
    if not jobs:
        return [f"{head}: nothing would change for the {_counted(found['planned'])} with a start estimate"]
    heads = (Column("JOB"), Column("NAME"), Column("USER"), Column("PLACE"), Column("START"), Column("NODE"))
    rows = [
        [Cell(job["id"]), Cell(job["name"]), Cell(job["user"]), Cell(_both(job, "place_before", "place_after")),
         Cell(_starts(job, now)), Cell(_both(job, "node_before", "node_after"))]
        for job in jobs[:_MOST]
    ]  # fmt: skip
    more = [f"and {len(jobs) - _MOST} more; all of them: --json"] if len(jobs) > _MOST else []
    shown = table(heads, rows, width=width, colour=colour)
    lines = [f"{head}: {_counted(len(jobs))} would change place", *shown, *more]
    factors = found["impact_factor_before"], found["impact_factor_after"]
    if None not in factors:
        lines.append(f"predicted Impact Factor of {_counted(found['planned'])}: {factors[0]:.3f} -> {factors[1]:.3f}")
    return lines


def _both(job: Json, one: str, two: str) -> str:
    return _arrow("-" if job[one] is None else str(job[one]), "-" if job[two] is None else str(job[two]))


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _starts(job: Json, now: float) -> str:
    return _arrow(*(_clock(job[key], now) for key in ("start_before_at", "start_after_at")))


def _clock(at: float | None, now: float) -> str:
    if at is None:
        return "-"
    return "now" if at <= now + 1 else f"~{format_clock(at, now)}"


def _counted(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"
