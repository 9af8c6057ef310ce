"""Making room: stop running jobs that allow it, keep their GPUs for one that waits. Imports fit, contract, state.

Who is to be stopped for whom is worked out by core.evictions; here it is checked, against the state of this moment,
that the contract of each job allows it, and both halves go into one transaction.

One thing to know: a room is given up when it is of no use: long after those that were stopped should be gone.
"""

from __future__ import annotations

from typing import Final

from gpuq.core import fit
from gpuq.core.contract import may_be_stopped
from gpuq.core.events import AnyAction, AnyEvent, RoomGone, RoomMade, StopOrdered
from gpuq.core.model import GpuUuid, Job, Stamp, StopKind, StopOrder
from gpuq.core.requests import Evict
from gpuq.core.state import ClusterState

IN_VAIN_S: Final = 120.0  # after the last grace period: GPUs that are not free by then will not be soon

Found = tuple[list[AnyEvent], list[AnyAction], list[str]]


def evict(state: ClusterState, request: Evict, now: Stamp) -> Found:
    """The room and the orders to end, or a note why not."""
    id_ = request.placement.job
    obstacle = _obstacle(state, request, now)
    if obstacle is not None:
        return [], [], [f"nothing was stopped for job {id_}: {obstacle}"]
    stopped = [state.jobs[state.attempts[attempt]] for attempt in request.attempts]
    room = RoomMade(
        job=id_,
        node=request.placement.node,
        gpus=request.placement.gpus,
        attempts=request.attempts,
        wait_s=max(job.spec.grace_s for job in stopped),
        gain_s=request.gain_s,
    )
    ids = ", ".join(job.id for job in stopped)
    return [room, *(_stop(job, request, now) for job in stopped)], [], [f"job {ids} makes room for job {id_}"]


def vain_rooms(state: ClusterState, now: Stamp) -> list[AnyEvent]:
    """The end of rooms whose GPUs did not become free in time."""
    return [
        RoomGone(job=id_) for id_, room in state.rooms.items() if now.steady_s > room.until_steady_s + IN_VAIN_S
    ]


def _stop(job: Job, request: Evict, now: Stamp) -> StopOrdered:
    assert job.attempt is not None
    order = StopOrder(
        kind=StopKind.PREEMPT, by="gpuq", at=now.wall_s, grace_s=job.spec.grace_s, room_for=request.placement.job
    )
    return StopOrdered(job=job.id, attempt=job.attempt.id, stop=order)


def _obstacle(state: ClusterState, request: Evict, now: Stamp) -> str | None:
    placement = request.placement
    job, node = state.jobs.get(placement.job), state.nodes.get(placement.node)
    if job is None or node is None or not request.attempts:
        return "it or the node is gone"
    if job.id in state.rooms:
        return "it has a room already"
    found = fit.job_obstacle(state, job, now)
    if found is not None:
        return found.message
    held: set[GpuUuid] = set()
    for attempt in request.attempts:
        other = state.jobs.get(state.attempts.get(attempt, placement.job))
        if other is None or other.attempt is None or other.attempt.id != attempt:
            return "a job that was to be stopped has ended"
        if other.attempt.node != node.name or not may_be_stopped(other, now):
            return f"job {other.id} may not be stopped"
        if set(placement.gpus).isdisjoint(other.attempt.gpus):
            return f"job {other.id} holds none of its GPUs"
        held.update(other.attempt.gpus)
    asked = job.spec.resources
    if len(placement.gpus) != asked.gpus or len(set(placement.gpus)) != asked.gpus:
        return f"{asked.gpus} GPUs asked, {len(set(placement.gpus))} given"
    by_uuid = {gpu.uuid: gpu for gpu in node.gpus}
    for uuid in placement.gpus:
        if uuid not in by_uuid:
            return f"GPU {uuid} is not on {node.name}"
        if state.kept_for(uuid) is not None:
            return f"GPU {by_uuid[uuid].index} is kept for job {state.kept_for(uuid)}"
        obstacle = None if uuid in held else fit.gpu_obstacle(state, by_uuid[uuid], asked)
        if obstacle is not None:
            return f"GPU {by_uuid[uuid].index}: {obstacle.message}"
    return None
