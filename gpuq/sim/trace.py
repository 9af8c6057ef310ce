"""Job traces: the normalised CSV columns read and checked. Imports errors.

A trace is a list of rigid jobs: each wants `gpus` GPUs at once and runs `duration_s` on the reference GPU once started.
Of further columns `name`, `limit_s`, what the owner asked for, and `preemptible`, whether it may be stopped once it
runs (1 or 0, true or false), are read; an empty cell means unknown, and a job of which that is unknown may be stopped.

One thing to know: a row that cannot be simulated is left out under a named reason and counted; a file that is not a
trace at all is an error.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

from gpuq.errors import UserError

NEEDED: Final = ("submit_s", "duration_s", "gpus")
LONGEST_S: Final = 10 * 365 * 86400.0  # a longer run time is taken for a mistake in the trace
MOST_GPUS: Final = 100_000
_YES_OR_NO: Final = {"": True, "1": True, "true": True, "0": False, "false": False}


class TraceJob(NamedTuple):
    """One job of a trace."""

    id: str
    submit_s: float
    duration_s: float  # on the reference GPU
    gpus: int
    user: str = ""
    model: str = ""  # "ResNet-18|64": name and batch size, the key of the throughput table
    name: str = ""
    limit_s: float | None = None  # what its owner asked for, on the GPUs it ran on
    preemptible: bool = True  # it may be stopped once it runs
    ran_on: str = ""  # GPU type on which its run time was recorded; empty: unknown, taken for the reference


class Trace(NamedTuple):
    """Jobs in order of submission, and how many rows were left out, by reason."""

    name: str
    jobs: tuple[TraceJob, ...]
    left_out: dict[str, int]
    scaled: int = 0  # run times brought from the GPU type that was recorded to the reference

    @property
    def gpu_seconds(self) -> float:
        """GPU time of all jobs on the reference GPU [s]."""
        return sum(job.gpus * job.duration_s for job in self.jobs)


class TraceError(UserError):
    """The file cannot be read as a trace."""

    kind = "bad_trace"
    exit_code = 2


def read_trace(path: Path, name: str | None = None) -> Trace:
    """Read the normalised columns of a CSV file. Raises TraceError naming the file and the column."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return parse_trace(lines, name or path.stem)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise TraceError(f"The trace {path} cannot be read: {reason}.", "Give the path of a CSV file.") from None


def parse_trace(lines: Iterable[str], name: str) -> Trace:
    """The same from lines of text."""
    rows = csv.DictReader(lines)
    missing = [column for column in NEEDED if column not in (rows.fieldnames or ())]
    if missing:
        raise TraceError(
            f"The trace {name} has no column {', '.join(missing)}.",
            f"The first line must name the columns {', '.join(NEEDED)}.",
        )
    jobs: list[TraceJob] = []
    left_out: dict[str, int] = {}
    for number, row in enumerate(rows):
        found = _job(row, number)
        if isinstance(found, str):
            left_out[found] = left_out.get(found, 0) + 1
        else:
            jobs.append(found)
    if not jobs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "it has no rows"
        raise TraceError(f"The trace {name} holds no job that could be simulated ({reasons}).", "Give another trace.")
    jobs.sort(key=lambda job: job.submit_s)
    return Trace(name, tuple(jobs), left_out)


def _job(row: dict[str, str | None], number: int) -> TraceJob | str:
    """The job of a row, or why it is left out."""
    values: list[float] = []
    for column in NEEDED:
        try:
            value = float(row.get(column) or "nan")
        except ValueError:
            return f"with a {column} that is no number"
        if not isfinite(value):
            return f"without {column}"
        values.append(value)
    submit_s, duration_s, gpus = values
    if submit_s < 0:
        return "submitted before time zero"
    if duration_s <= 0:
        return "without run time"
    if duration_s > LONGEST_S or submit_s > LONGEST_S:
        return "longer than ten years"
    if gpus < 1 or gpus != int(gpus):
        return "without whole GPUs"
    if gpus > MOST_GPUS:
        return f"with more than {MOST_GPUS:,} GPUs"
    preemptible = _YES_OR_NO.get((row.get("preemptible") or "").strip().lower())
    if preemptible is None:
        return "with a preemptible that is neither 1 nor 0"
    limit_s = _positive(row.get("limit_s"))
    model, batch = row.get("model") or "", row.get("batch_size") or ""
    return TraceJob(
        row.get("job_id") or str(number), submit_s, duration_s, int(gpus), row.get("user") or "",
        f"{model}|{batch}" if model else "", row.get("name") or "", limit_s,
        preemptible,
    )  # fmt: skip


def _positive(text: str | None) -> float | None:
    """The number, or None where there is none above 0."""
    try:
        value = float(text or 0)
    except ValueError:
        return None
    return value if 0 < value <= LONGEST_S else None


def from_zero(name: str, jobs: list[TraceJob], left_out: dict[str, int]) -> Trace:
    """A trace in order of submission whose first job is submitted at 0. Raises TraceError when there is no job."""
    if not jobs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "it is empty"
        raise TraceError(f"{name} holds no job that could be simulated ({reasons}).", "Give a longer period.")
    jobs.sort(key=lambda job: job.submit_s)
    first_s = jobs[0].submit_s
    return Trace(name, tuple(job._replace(submit_s=job.submit_s - first_s) for job in jobs), left_out)


def scaled_to_load(trace: Trace, gpus: float, load: float) -> Trace:
    """The trace with its submissions stretched or pressed so that it offers `load` of `gpus` reference GPUs.

    load = GPU seconds of all jobs / (GPUs x time from the first to the last submission).
    """
    first_s, last_s = trace.jobs[0].submit_s, trace.jobs[-1].submit_s
    if last_s <= first_s:
        return trace
    factor = trace.gpu_seconds / (gpus * load) / (last_s - first_s)
    jobs = tuple(job._replace(submit_s=(job.submit_s - first_s) * factor) for job in trace.jobs)
    return trace._replace(jobs=jobs)


def load_of(trace: Trace, gpus: float) -> float | None:
    """The load the trace offers as it is; None when all jobs arrive at once."""
    span_s = trace.jobs[-1].submit_s - trace.jobs[0].submit_s
    return trace.gpu_seconds / (gpus * span_s) if span_s > 0 else None


def read_shipped(name: str) -> Trace:
    """A trace that comes with gpuq: small or mixed."""
    text = resources.files("gpuq.sim").joinpath(f"data/{name}.csv").read_text("utf-8")
    return parse_trace(text.splitlines(), name)
