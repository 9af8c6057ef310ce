"""Whether the state contradicts itself. Imports state and its records.

`check_invariants` computes every index anew from the records and raises when the two differ, when a GPU has two
owners, or when a job breaks a limit. Tests and the simulator of the storm call it after each step, the daemon after
loading.
"""

from __future__ import annotations

from gpuq.core.model import AttemptId, GpuUuid, Job, JobId
from gpuq.core.state import ClusterState, Shape
from gpuq.core.states import JobState
from gpuq.errors import InvariantBroken


def check_invariants(state: ClusterState) -> None:
    """Raise InvariantBroken when the state contradicts itself: what tests and the simulator call after each step."""
    _check_owners(state)
    fresh = ClusterState()
    fresh.jobs = dict(state.jobs)
    fresh.tasks, fresh.rooms = state.tasks, state.rooms
    fresh.memory = state.memory
    for job in sorted(state.jobs.values(), key=lambda job: job.order):
        fresh.index(job)
    for name in ("attempts", "unmet", "children"):
        _same(name, getattr(state, name), getattr(fresh, name))
    _same("waiting", _ordered(state), _ordered(fresh))
    _same("ended", set(state.ended), set(fresh.ended))
    for name in ("used_cpus", "used_memory_mib", "used_gpus", "array_active"):
        kept, computed = getattr(state, name), getattr(fresh, name)
        _same(name, {k: v for k, v in kept.items() if v}, {k: v for k, v in computed.items() if v})
    _check_rooms(state)
    limits: dict[JobId, int] = {}  # tasks of one array may have been given limits of their own
    for job in state.jobs.values():
        _check_job(state, job)
        limits[job.array] = max(limits.get(job.array, 0), job.spec.array_limit)
    for array, limit in limits.items():
        if state.array_active.get(array, 0) > limit > 0:
            raise InvariantBroken(f"array {array} runs more than {limit} tasks at once")


def _check_rooms(state: ClusterState) -> None:
    """A room is a pending job's, and no GPU is kept for two."""
    kept: dict[GpuUuid, JobId] = {}
    for id_, room in state.rooms.items():
        job = state.jobs[id_]
        if job.state is not JobState.PENDING or job.held is not None:
            raise InvariantBroken(f"GPUs are kept for job {id_}, which is {job.state.value} or held")
        for uuid in room.placement.gpus:
            if uuid in kept:
                raise InvariantBroken(f"GPU {uuid} is kept for {kept[uuid]} and for {id_}")
            kept[uuid] = id_


def _ordered(state: ClusterState) -> dict[Shape, list[JobId]]:
    return {shape: list(queue) for shape, queue in state.waiting.items()}


def _same(name: str, kept: object, computed: object) -> None:
    if kept != computed:
        raise InvariantBroken(f"index '{name}' is {kept!r}, but the records say {computed!r}")


def _check_owners(state: ClusterState) -> None:
    expected: dict[GpuUuid, AttemptId] = {}
    claims = [(job.attempt.id, job.attempt.gpus) for job in state.active() if job.attempt]
    for attempt, gpus in claims:
        for uuid in gpus:
            if uuid in expected:
                raise InvariantBroken(f"GPU {uuid} belongs to {expected[uuid]} and to {attempt}")
            expected[uuid] = attempt
    for attempt, stray in state.strays.items():
        for uuid in stray.gpus:
            expected.setdefault(uuid, attempt)
    _same("owners", state.owners, expected)


def _check_job(state: ClusterState, job: Job) -> None:
    if job.state.holds_gpus and (job.attempt is None or job.attempt.exit is not None):
        raise InvariantBroken(f"job {job.id} is {job.state.value} without a living attempt")
    if job.state.holds_gpus and len(job.attempt.gpus if job.attempt else ()) != job.spec.resources.gpus:
        raise InvariantBroken(f"job {job.id} does not hold the {job.spec.resources.gpus} GPUs it asked for")
    if job.state.is_final and job.ended_at is None:
        raise InvariantBroken(f"job {job.id} is {job.state.value} without an end time")
