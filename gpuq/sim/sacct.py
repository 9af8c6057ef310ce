"""Exports of Slurm's accounting as traces: `sacct -P` with a line of headings. Imports trace, errors and units.

Wanted columns, in any order: JobIDRaw or JobID, Submit, AllocTRES or ReqTRES, and ElapsedRaw or Elapsed, or Start with
End; User, JobName, State, Start and Timelimit are used where they are there. Steps of jobs (12.batch, 12.0) are passed
over: they ran inside their job's allocation.

One thing to know: moments without a zone are read as they stand, so a change to summer time shifts submissions by one
hour; run times come from Elapsed and are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from gpuq.errors import UserError
from gpuq.sim.trace import LONGEST_S, MOST_GPUS, Trace, TraceError, TraceJob, from_zero, read_trace
from gpuq.units import duration_s

_IDS: Final = ("jobidraw", "jobid")
_TRES: Final = ("alloctres", "reqtres")
_GPUS: Final = re.compile(r"(?:^|,)gres/gpu(:[^=,]+)?=(\d+)")
_NEVER: Final = frozenset(("", "unknown", "none", "n/a"))
_NO_LIMIT: Final = frozenset(("", "unlimited", "partition_limit", "invalid"))
_UNFINISHED: Final = frozenset(("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING", "CONFIGURING", "COMPLETING"))


def read_file(path: Path) -> Trace:
    """A trace in either form, told apart by the first line. Raises TraceError."""
    try:
        with path.open(encoding="utf-8") as lines:
            if is_sacct(lines.readline()):
                lines.seek(0)
                return parse_sacct(lines, path.stem)
    except (OSError, UnicodeDecodeError):
        pass  # read_trace says what is wrong with it
    return read_trace(path)


def is_sacct(header: str) -> bool:
    """Whether the first line of a file is the headings of `sacct -P`."""
    names = _names(header)
    return "|" in header and any(name in names for name in _IDS)


def parse_sacct(lines: Iterable[str], name: str) -> Trace:
    """The jobs of an export; submit_s counts from the first submission. Raises TraceError naming what is missing."""
    rows = iter(lines)
    names = _names(next(rows, ""))
    missing = _missing(names)
    if missing:
        raise TraceError(
            f"The sacct export {name} has no column {', '.join(missing)}.",
            "Write it with: sacct -aP -o JobIDRaw,Submit,Start,End,ElapsedRaw,AllocTRES,User,JobName,State,Timelimit.",
        )
    jobs: list[TraceJob] = []
    left_out: dict[str, int] = {}
    for line in rows:
        if not line.strip():
            continue
        cells = line.rstrip("\r\n").split("|")
        found = _job(dict(zip(names, cells, strict=True))) if len(cells) == len(names) else "with other columns"
        if isinstance(found, str):
            left_out[found] = left_out.get(found, 0) + 1
        elif found is not None:
            jobs.append(found)
    return from_zero(name, jobs, left_out)


def _names(header: str) -> list[str]:
    return [name.strip().lower() for name in header.lstrip("\ufeff").strip().split("|")]


def _missing(names: list[str]) -> list[str]:
    found = []
    if not any(name in names for name in _IDS):
        found.append("JobIDRaw")
    if "submit" not in names:
        found.append("Submit")
    if not any(name in names for name in _TRES):
        found.append("AllocTRES")
    if "elapsedraw" not in names and "elapsed" not in names and not ("start" in names and "end" in names):
        found.append("ElapsedRaw")
    return found


def _job(row: dict[str, str]) -> TraceJob | str | None:
    """The job of a row, why it is left out, or None for a step."""
    id_ = row.get("jobidraw") or row.get("jobid") or ""
    if "." in id_:
        return None
    state = (row.get("state") or "").partition(" ")[0].upper()
    if state in _UNFINISHED:
        return "of jobs that have not ended"
    if "start" in row and _moment_s(row["start"]) is None:
        return "of jobs that never started"
    gpus = next((count for count in (_gpus(row.get(column) or "") for column in _TRES) if count), 0)
    if gpus == 0:
        return "of jobs without GPUs"
    if gpus > MOST_GPUS:
        return f"with more than {MOST_GPUS:,} GPUs"
    submit_s, run_s = _moment_s(row.get("submit") or ""), _run_s(row)
    if submit_s is None:
        return "without a time of submission"
    if run_s is None or run_s <= 0:
        return "without run time"
    if run_s > LONGEST_S:
        return "longer than ten years"
    return TraceJob(
        id_, submit_s, run_s, gpus, row.get("user") or "", name=row.get("jobname") or "", limit_s=_limit_s(row),
        ran_on=_type(row.get("alloctres") or ""),
    )  # fmt: skip


def _gpus(tres: str) -> int:
    """gres/gpu=4, or the sum over gres/gpu:a100=2,gres/gpu:v100=2 where the total is not written."""
    found = _GPUS.findall(tres)
    total = [int(count) for kind, count in found if not kind]
    return total[0] if total else sum(int(count) for _, count in found)


def _type(tres: str) -> str:
    """a100 of gres/gpu:a100=4; empty where no type is written, or more than one."""
    types = {kind[1:] for kind, _ in _GPUS.findall(tres) if kind}
    return types.pop() if len(types) == 1 else ""


def _moment_s(text: str) -> float | None:
    """Seconds of 2026-05-01T08:00:00 or of a plain number (SLURM_TIME_FORMAT=%s); None: it did not happen."""
    if text.strip().lower() in _NEVER:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _run_s(row: dict[str, str]) -> float | None:
    if (row.get("elapsedraw") or "").isdecimal():
        return float(row["elapsedraw"])
    if row.get("elapsed"):
        return _duration_s(row["elapsed"])
    start_s, end_s = _moment_s(row.get("start") or ""), _moment_s(row.get("end") or "")
    return None if start_s is None or end_s is None else end_s - start_s


def _limit_s(row: dict[str, str]) -> float | None:
    if (row.get("timelimitraw") or "").isdecimal():
        return float(row["timelimitraw"]) * 60 or None
    text = (row.get("timelimit") or "").strip()
    return None if text.lower() in _NO_LIMIT else _duration_s(text) or None


def _duration_s(text: str) -> float | None:
    try:
        return duration_s(text)
    except UserError:
        return None
