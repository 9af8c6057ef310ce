"""What evictions do to the state: rooms kept for jobs, and what a stopped job keeps. Imports state and its records.

One thing to know: a job with a room is in no queue. Its GPUs are as good as held by it until it is placed there, or
until the room is given up.
"""

from __future__ import annotations

from typing import Any

from gpuq.core.events import AnyAction, AttemptEnded, RoomGone, RoomMade
from gpuq.core.model import Job, JobSpec, Placement, Room, Stamp, StopKind
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState


def made(state: ClusterState, event: RoomMade, stamp: Stamp) -> list[AnyAction]:
    """Keep the GPUs for the job, and take it out of its queue."""
    state.rooms[event.job] = Room(
        placement=Placement(job=event.job, node=event.node, gpus=event.gpus),
        attempts=event.attempts,
        made_steady_s=stamp.steady_s,
        until_steady_s=stamp.steady_s + event.wait_s,
        gain_s=event.gain_s,
    )
    state.put(state.jobs[event.job])
    return []


def gone(state: ClusterState, event: RoomGone, stamp: Stamp) -> list[AnyAction]:
    """Give the room up; the job waits in its queue again."""
    state.rooms.pop(event.job, None)
    state.put(state.jobs[event.job])
    return []


def drop_unfit(state: ClusterState, job: Job, spec: JobSpec) -> None:
    """Give up the room of a job that asks for something else from now on."""
    if job.id in state.rooms and spec.resources != job.spec.resources:
        del state.rooms[job.id]


def kept_by(state: ClusterState, job: Job, event: AttemptEnded) -> dict[str, Any]:
    """The fields of a job that change when its attempt was stopped to make room and it is to go on later.

    A job that may be stopped is taken to go on from where it was (GPUQ_CHECKPOINT_DIR is there for that).
    """
    stop = job.attempt.stop if job.attempt is not None else None
    if stop is None or stop.kind is not StopKind.PREEMPT or event.state is not JobState.PENDING:
        return {}
    done_s = (event.exit.run_s or 0.0) * state.job_speed(job)
    return {"evictions": job.evictions + 1, "kept_s": job.kept_s + done_s}
