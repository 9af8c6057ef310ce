"""What running jobs allow: the contract. Imports the records only.

    fixed          runs to its end; nothing stops it but its owner or an administrator
    preemptible    may be stopped once its --min-runtime has passed since it started, and waits again then
    free time      preemptible without --min-runtime: charged to nobody, may be stopped at any moment

One thing to know: a job that is still being started, or is told to end already, is never stopped to make room.
"""

from __future__ import annotations

from math import inf

from gpuq.core.model import Job, Stamp
from gpuq.core.states import JobState


def is_free_time(job: Job) -> bool:
    """Whether what the job holds is charged to nobody, since it may be stopped at any moment."""
    return job.spec.preemptible and job.spec.min_runtime_s <= 0


def may_be_stopped(job: Job, now: Stamp) -> bool:
    """Whether the contract of a running job lets gpuq stop it now to make room."""
    return protected_s(job, now) <= 0.0


def protected_s(job: Job, now: Stamp) -> float:
    """How long from now a job is left alone; inf: to its end."""
    attempt = job.attempt
    if not job.spec.preemptible or job.state is not JobState.RUNNING or attempt is None or attempt.stop is not None:
        return inf
    if attempt.started_steady_s is None:
        return inf
    return attempt.started_steady_s + job.spec.min_runtime_s - now.steady_s
