"""How fast a job runs on each GPU type. Imports cluster, trace and the GPU catalogue.

A job with a model takes its speeds from a throughput table (columns gpu_type, placement, model, batch_size, gpus,
steps_per_s), against the V100 on which its run time was recorded. Any other job takes the catalogue's ratio against the
fastest type of the cluster.

One thing to know: speed 0 means that the job cannot run on that type, as when the table says that it does not fit.
"""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path
from typing import Final

from gpuq.errors import UsageError, UserError
from gpuq.hardware.catalogue import relative_speed
from gpuq.sim.cluster import Cluster
from gpuq.sim.trace import Trace, TraceJob

REFERENCE: Final = "v100"
Table = dict[tuple[str, str], dict[int, float]]  # (type, "model|batch") -> GPUs -> steps per second

_COLUMNS: Final = ("gpu_type", "placement", "model", "batch_size", "gpus", "steps_per_s")


def read_table(path: Path | None = None) -> Table:
    """The throughput table of a file; None: the one that comes with gpuq. Raises UserError."""
    try:
        if path is None:
            text = resources.files("gpuq.sim").joinpath("data/throughput.csv").read_text("utf-8")
        else:
            text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"The speeds in {path} cannot be read: {reason}.", "Give the path of a CSV file.") from None
    rows = csv.DictReader(text.splitlines())
    missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise UsageError(
            f"The speeds in {path} have no column {', '.join(missing)}.",
            f"The first line must name {', '.join(_COLUMNS)}.",
        )
    table: Table = {}
    for row in rows:
        if row["placement"] != "consolidated":
            continue
        try:
            gpus, steps_per_s = int(row["gpus"]), float(row["steps_per_s"])
        except (TypeError, ValueError):
            raise UsageError(f"The speeds in {path} hold a row with no number: {row}.", "Correct the row.") from None
        table.setdefault((row["gpu_type"].lower(), f"{row['model']}|{row['batch_size']}"), {})[gpus] = steps_per_s
    return table


class Speeds:
    """Speeds of jobs on the types of one cluster."""

    def __init__(self, cluster: Cluster, table: Table | None = None) -> None:
        self._names = cluster.types
        self._table = table or {}
        self._catalogued: tuple[float, ...] | None = None

    def of(self, job: TraceJob) -> tuple[float, ...]:
        """Speed per type of the cluster, relative to the GPU of the trace. Raises UserError for a type nobody knows."""
        reference = self._steps_per_s(REFERENCE, job)
        steps = [self._steps_per_s(name.lower(), job) for name in self._names]
        if reference is None or any(found is None for found in steps):
            self._catalogued = self._catalogued or _catalogued(self._names)
            return self._catalogued
        return tuple((found or 0.0) / reference for found in steps)

    def _steps_per_s(self, type_: str, job: TraceJob) -> float | None:
        """At the job's number of GPUs, else at the nearest smaller one that was measured."""
        by_gpus = self._table.get((type_, job.model))
        if not by_gpus:
            return None
        measured = [gpus for gpus in by_gpus if gpus <= job.gpus]
        return by_gpus[max(measured)] if measured else None


def on_reference(trace: Trace, cluster: Cluster) -> Trace:
    """The trace with run times and limits as on the fastest type of the cluster, where it says what a job ran on.

    run time there = recorded run time x speed of the recorded type / speed of the fastest type of the cluster

    A job whose type the catalogue does not know keeps its run time, and so does every job when a type of the cluster
    is unknown. Jobs count as scaled where the recorded type was known, also when it is the fastest one itself.
    """
    known = [relative_speed(name) for name in cluster.types]
    speeds = {name: relative_speed(name) for name in {job.ran_on for job in trace.jobs} if name}
    if None in known or not any(speeds.values()):
        return trace
    fastest = max(speed for speed in known if speed)
    factors = {name: speed / fastest for name, speed in speeds.items() if speed}
    jobs = tuple(_scaled(job, factors[job.ran_on]) if job.ran_on in factors else job for job in trace.jobs)
    return trace._replace(jobs=jobs, scaled=sum(job.ran_on in factors for job in trace.jobs))


def _scaled(job: TraceJob, factor: float) -> TraceJob:
    limit_s = None if job.limit_s is None else job.limit_s * factor
    return job._replace(duration_s=job.duration_s * factor, limit_s=limit_s, ran_on="")


def _catalogued(names: tuple[str, ...]) -> tuple[float, ...]:
    """The catalogue's speeds against the fastest of these types."""
    if len(names) == 1:
        return (1.0,)
    known = [relative_speed(name) for name in names]
    if None in known:
        raise UserError(
            f"Nobody knows how fast a job without a model runs on {names[known.index(None)]}.",
            "Leave that type out, or give --speeds and a trace with models.",
        )
    fastest = max(speed for speed in known if speed)
    return tuple((speed or 0.0) / fastest for speed in known)
