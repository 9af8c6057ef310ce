"""One policy on one trace, and what came of it. Imports the rest of sim.

    max slow-down    the largest of (completion - submission) / max(shortest run time, 600 s)
    Impact Factor    sum d* / sum (completion - submission), all weights 1: 1.00 when nobody waits

One thing to know: everything follows from trace, cluster, load and seed, so two runs of the same are equal to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Final, NamedTuple

from gpuq.errors import UsageError
from gpuq.sim.bounds import BoundJob, lower_bound_s
from gpuq.sim.cluster import Cluster
from gpuq.sim.learnt import Learnt
from gpuq.sim.policies.registry import find_policy
from gpuq.sim.power import energy_joules
from gpuq.sim.predictions import predict_all
from gpuq.sim.sharing import MOST_JOINT_SPEED, utilisation_of
from gpuq.sim.speeds import Speeds, Table, on_reference
from gpuq.sim.trace import Trace, TraceJob, load_of, scaled_to_load
from gpuq.sim.world import Run, SimJob, Sleep, World

SHORT_S: Final = 600.0


class Setting(NamedTuple):
    """A trace made ready for a cluster."""

    trace: Trace  # without the jobs that fit nowhere, at the load asked for
    cluster: Cluster
    speeds: tuple[tuple[float, ...], ...]  # per job and GPU type
    load: float | None  # of the cluster's mean speed; None when all jobs arrive at once
    dropped: int
    lower_bound_s: float
    sharing: bool = False  # two jobs may share GPUs


class Row(NamedTuple):
    """What one run of one policy gave; times in seconds. energy_joules: None, no power model was asked for."""

    policy: str
    seed: int
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    max_slowdown: float
    impact_factor: float
    lower_bound_s: float
    energy_joules: float | None
    restarts: int
    dropped: int


class Outcome(NamedTuple):
    """A row with what pictures need."""

    row: Row
    jct_s: tuple[float, ...]  # ascending
    runs: tuple[Run, ...]


def prepare(
    trace: Trace, cluster: Cluster, load: float | None, table: Table | None = None, sharing: bool = False
) -> Setting:
    """Leave out what can run nowhere, and scale the submissions to the load. Raises UsageError when nothing is left.

    Run times recorded on a GPU type that the catalogue knows are brought to the reference first.
    """
    trace = on_reference(trace, cluster)
    speeds = Speeds(cluster, table)
    kept = [(job, able) for job in trace.jobs for able in (_able(cluster, job, speeds.of(job)),) if any(able)]
    if not kept:
        least = min(job.gpus for job in trace.jobs)
        raise UsageError(
            f"No job of {trace.name} fits: the smallest asks for {least} GPUs of one type.", "Give more --gpus."
        )
    ready = trace._replace(jobs=tuple(job for job, _ in kept))
    types = range(len(cluster.types))
    mean = [sum(able[type_] for _, able in kept) / len(kept) for type_ in types]
    worth = sum(cluster.gpus_of(type_) * mean[type_] for type_ in types)  # in reference GPUs
    if load is not None:
        ready = scaled_to_load(ready, worth, load)
    bound_jobs = [
        BoundJob(job.submit_s, job.gpus, tuple(job.duration_s / speed if speed else inf for speed in able))
        for job, (_, able) in zip(ready.jobs, kept, strict=True)
    ]
    joint = MOST_JOINT_SPEED if sharing else 1.0
    return Setting(
        trace=ready,
        cluster=cluster,
        speeds=tuple(able for _, able in kept),
        load=load_of(ready, worth),
        dropped=len(trace.jobs) - len(kept),
        lower_bound_s=lower_bound_s(bound_jobs, [cluster.gpus_of(type_) for type_ in types], joint),
        sharing=sharing,
    )


def _able(cluster: Cluster, job: TraceJob, speeds: tuple[float, ...]) -> tuple[float, ...]:
    """The speeds, 0 on types that have no room for a job of that size."""
    return tuple(
        speed if speed and cluster.has_room(job.gpus, type_) else 0.0 for type_, speed in enumerate(speeds)
    )


def preemptible_jobs(jobs: Sequence[TraceJob], share: float | None, seed: int) -> list[bool]:
    """Which jobs may be stopped: as the trace says, or this share of them, 0 to 1, drawn by the seed.

    A larger share takes the same jobs and more, so that two shares of a seed can be compared.
    """
    if share is None:
        return [job.preemptible for job in jobs]
    random = Random(f"preemptible {seed}")  # noqa: S311 (a simulation)
    drawn = sorted((random.random(), order) for order in range(len(jobs)))
    chosen = {order for _, order in drawn[: round(share * len(jobs))]}
    return [order in chosen for order in range(len(jobs))]


def simulate(
    setting: Setting,
    policy: str,
    seed: int = 0,
    predictions: str = "helios",
    restart_s: float = 60.0,
    keep_runs: bool = False,
    fixed: bool = False,
    energy: bool = False,
    preemptible: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Run one policy; equal arguments give equal outcomes. fixed: what runs may not be stopped.

    preemptible: the share of the jobs that may be stopped, 0 to 1; None: those of which the trace says no other.
    energy: fill energy_joules; raises UserError for GPU types whose draw nobody knows.
    """
    entry = find_policy(policy)
    trace, cluster = setting.trace, setting.cluster
    model = "perfect" if entry.perfect else predictions
    told = predict_all(trace.jobs, model, seed)
    jobs = [
        SimJob(job, order, each.run_s, each.limit_s, speeds)
        for order, (job, each, speeds) in enumerate(zip(trace.jobs, told, setting.speeds, strict=True))
    ]
    for job, may in zip(jobs, preemptible_jobs(trace.jobs, 0.0 if fixed else preemptible, seed), strict=True):
        job.preemptible = may
    none_stops = not any(job.preemptible for job in jobs)
    sleep = Sleep() if entry.sleeps else None
    learner = Learnt() if model == "learnt" else None
    if setting.sharing:
        for each in jobs:
            each.utilisation = utilisation_of(each.id, each.model, seed)
    world = World(cluster, jobs, restart_s, keep_runs or energy, learner, sleep, setting.sharing)
    world.run(entry.make_fixed() if none_stops and entry.make_fixed else entry.make(), on_progress)
    jct_s = sorted(_flow_s(job) for job in world.ended)
    row = Row(
        policy=policy,
        seed=seed,
        mean_jct_s=sum(jct_s) / len(jct_s),
        p50_jct_s=quantile(jct_s, 0.5),
        p99_jct_s=quantile(jct_s, 0.99),
        max_slowdown=max(_flow_s(job) / max(job.best_run_s, SHORT_S) for job in world.ended),
        impact_factor=sum(job.best_run_s for job in world.ended) / sum(jct_s),
        lower_bound_s=setting.lower_bound_s,
        energy_joules=energy_joules(cluster, world.runs or (), sleep) if energy else None,
        restarts=world.restarts,
        dropped=setting.dropped,
    )
    return Outcome(row, tuple(jct_s), tuple(world.runs or ()) if keep_runs else ())


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def _flow_s(job: SimJob) -> float:
    assert job.end_s is not None
    return job.end_s - job.submit_s
