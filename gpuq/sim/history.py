"""Ended jobs of gpuq's own history as a trace. Imports trace.

One thing to know: of a job that ran several times only the last run is known here, and a job that was to begin later
counts as submitted at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuq.sim.trace import LONGEST_S, Trace, TraceJob, from_zero


def from_history(jobs: Iterable[Mapping[str, Any]], name: str = "history") -> Trace:
    """The jobs of /v1/history as docs/api.md describes them. Raises TraceError when none can be simulated."""
    found: list[TraceJob] = []
    left_out: dict[str, int] = {}
    for each in jobs:
        job = _job(each)
        if isinstance(job, str):
            left_out[job] = left_out.get(job, 0) + 1
        else:
            found.append(job)
    return from_zero(name, found, left_out)


def _type(gpus: Iterable[Any]) -> str:
    """The GPU type all of them have; empty where they differ or none is recorded."""
    types = {str(gpu.get("type") or "") for gpu in gpus if isinstance(gpu, Mapping)}
    return types.pop() if len(types) == 1 else ""


def _job(job: Mapping[str, Any]) -> TraceJob | str:
    """The job, or why it is left out."""
    run_s, gpus = job.get("elapsed_s"), len(job.get("gpus") or ())
    if job.get("started_at") is None:
        return "of jobs that never started"
    if gpus == 0:
        return "of jobs without GPUs"
    if run_s is None or run_s <= 0:
        return "without run time"
    if run_s > LONGEST_S:
        return "longer than ten years"
    submit_s = max(float(job["submitted_at"]), float(job.get("begin_at") or 0.0))
    return TraceJob(
        str(job["id"]), submit_s, float(run_s), gpus, str(job.get("user") or ""), name=str(job.get("name") or ""),
        limit_s=job.get("time_limit_s") or None, ran_on=_type(job["gpus"]),
    )  # fmt: skip
