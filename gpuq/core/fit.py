"""Can a job run there now, and if not, why. Imports match, possible, topology, dependencies and the records.

Two kinds of answer: an Obstacle is one sentence about one node or GPU (it may go away: "later", or not: "never"); a
Refusal (core.possible, offered here as well) says that no node, however empty, could take the request. core.explain
makes the answers to `why` from these.

One thing to know: what cannot be seen counts as busy. A GPU is free only while its node answers, its health is sound,
its use is known, nobody outside gpuq computes on it, and no attempt, not even a stray one, owns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuq.core import topology
from gpuq.core.caps import Cap
from gpuq.core.dependencies import Verdict, verdict
from gpuq.core.match import Obstacle as Obstacle
from gpuq.core.match import When as When
from gpuq.core.match import best_speed as best_speed
from gpuq.core.match import by_type as by_type
from gpuq.core.match import gpu_mismatch as gpu_mismatch
from gpuq.core.match import node_mismatch as node_mismatch
from gpuq.core.model import (
    Foreign,
    Gpu,
    GpuUuid,
    Health,
    Hold,
    Job,
    JobId,
    Node,
    Placement,
    Reach,
    Resources,
    Stamp,
)
from gpuq.core.possible import Refusal as Refusal
from gpuq.core.possible import never as never
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.units import format_mib, format_rough_duration

_HOLDS: Final = {
    Hold.USER: (Reason.JOB_HELD_USER, "held by its owner"),
    Hold.ADMIN: (Reason.JOB_HELD_ADMIN, "held by an administrator"),
    Hold.DEPENDENCY: (Reason.DEPENDENCY_NEVER_SATISFIED, "what it depends on can never happen"),
}

# --- the job itself -------------------------------------------------------------------------------------


def job_obstacle(state: ClusterState, job: Job, stamp: Stamp) -> Obstacle | None:
    """What keeps the job from starting anywhere: state, hold, dependency, begin time, limit of its array."""
    if job.state is not JobState.PENDING:
        return Obstacle(reason=Reason.NONE, message=f"job {job.id} is {job.state.value}", when=When.NEVER)
    if job.held is not None:
        reason, words = _HOLDS[job.held]
        return Obstacle(reason=reason, message=job.message or words)
    if job.spec.dependencies.terms:
        found = verdict(state, job)
        if found is Verdict.NEVER:
            return Obstacle(
                reason=Reason.DEPENDENCY_NEVER_SATISFIED,
                message=_HOLDS[Hold.DEPENDENCY][1],
                when=When.NEVER,
            )
        if found is Verdict.WAITING:
            return Obstacle(reason=Reason.DEPENDENCY, message=_dependency_text(state, job))
    if job.not_before_at is not None and job.not_before_at > stamp.wall_s:
        wait = format_rough_duration(job.not_before_at - stamp.wall_s)
        why = "its begin time" if job.failures == 0 else "another try"
        return Obstacle(reason=Reason.BEGIN_TIME, message=f"{wait} until {why}")
    limit = job.spec.array_limit
    if limit and state.array_active.get(job.array, 0) >= limit:
        message = f"at most {limit} of this array at once (%{limit})"
        return Obstacle(reason=Reason.JOB_ARRAY_TASK_LIMIT, message=message)
    return _cap_obstacle(state, job) if state.caps.any and job.spec.resources.gpus else None


def _cap_obstacle(state: ClusterState, job: Job) -> Obstacle | None:
    """The first cap of the owner under which so many more GPUs do not fit now."""
    for cap in state.caps.of(job.owner.name):
        held = held_under(state, cap, job.id)
        if held + job.spec.resources.gpus > cap.max_gpus:
            message = f"{cap.name} holds {held} of at most {cap.max_gpus} GPUs, {job.spec.resources.gpus} asked"
            return Obstacle(reason=cap.reason, message=message)
    return None


def held_under(state: ClusterState, cap: Cap, besides: JobId | None = None) -> int:
    """GPUs that count against a cap now: held by jobs, or kept for them; those kept for the job `besides` left out."""
    kept = sum(
        len(room.placement.gpus)
        for id_, room in state.rooms.items()
        if id_ != besides and state.jobs[id_].owner.name in cap.users
    )
    return kept + sum(state.used_gpus.get(user, 0) for user in cap.users)


def over_cap(state: ClusterState, user: str, gpus: int) -> Refusal | None:
    """The refusal of a job that asks for more GPUs than its owner's jobs may ever hold; None: it may wait its turn."""
    for cap in state.caps.of(user):
        if gpus > cap.max_gpus:
            message = f"Asked {gpus} GPUs; {cap.name} may hold at most {cap.max_gpus} at once ({cap.key})."
            return Refusal(message=message, hint=f"Ask for at most {cap.max_gpus}.")
    return None


def _dependency_text(state: ClusterState, job: Job) -> str:
    named = [term.job for term in job.spec.dependencies.terms if term.job]
    open_ = [id_ for id_ in named if any(not state.jobs[each].state.is_final for each in state.members(id_))]
    if not named:
        return f"another job named '{job.spec.name}' of {job.owner.name} comes first"
    return f"waits for {', '.join(open_ or named)}"


# --- nodes and GPUs -------------------------------------------------------------------------------------


def is_reachable(node: Node) -> bool:
    """Whether new work may go to the node: its agent answers and nobody drained it."""
    return node.reach is Reach.UP and node.drain is None


def is_sound(gpu: Gpu) -> bool:
    """Whether the GPU itself is fit for use: usable, healthy, seen, and without foreign processes."""
    return gpu.usable and gpu.health is Health.OK and gpu.seen and not gpu.foreign


def node_obstacle(state: ClusterState, node: Node, asked: Resources) -> Obstacle | None:
    """Why the node cannot take the request now, GPUs aside."""
    mismatch = node_mismatch(node, asked)
    if mismatch is not None:
        return mismatch
    reason, message = Reason.REQ_NODE_NOT_AVAIL, None
    free_cpus = node.cpus - state.used_cpus.get(node.name, 0)
    free_mib = node.memory_mib - state.used_memory_mib.get(node.name, 0)
    if node.reach is not Reach.UP:
        message = f"{node.name} does not answer"
    elif node.drain is not None:
        message = f"{node.name} is drained: {node.drain.reason}"
    elif asked.cpus and asked.cpus > free_cpus:
        reason, message = Reason.RESOURCES, f"{free_cpus} of {node.cpus} CPUs free, {asked.cpus} asked"
    elif asked.memory_mib and asked.memory_mib > free_mib:
        reason = Reason.RESOURCES
        message = f"{format_mib(max(free_mib, 0))} of memory free, {format_mib(asked.memory_mib)} asked"
    return None if message is None else Obstacle(reason=reason, message=message, node=node.name)


def holder(state: ClusterState, uuid: GpuUuid) -> JobId | None:
    """The job that owns the GPU; None when nobody does or only a stray attempt."""
    attempt = state.owners.get(uuid)
    if attempt is None:
        return None
    stray = state.strays.get(attempt)
    return stray.job if stray is not None else state.attempts.get(attempt)


def gpu_obstacle(state: ClusterState, gpu: Gpu, asked: Resources, of: JobId | None = None) -> Obstacle | None:
    """Why the GPU cannot serve the request (of this job, if it has one) now."""
    mismatch = gpu_mismatch(gpu, asked)
    if mismatch is not None:
        return mismatch
    reason, message = Reason.GPU_UNKNOWN, None
    if gpu.uuid in state.owners:
        by = holder(state, gpu.uuid)
        reason = Reason.RESOURCES
        message = f"{by} holds it" if by else "held by an attempt that no job here knows"
    elif state.rooms and state.kept_for(gpu.uuid) not in (None, of):
        reason, message = Reason.RESOURCES, f"kept for {state.kept_for(gpu.uuid)}, for which another job was stopped"
    elif not gpu.usable:
        reason, message = Reason.RESOURCES, gpu.reason or "not usable"
    elif gpu.health is not Health.OK:
        words = {Health.LOST: "the driver has lost it", Health.SUSPECT: "its health is in doubt"}
        message = gpu.reason or words[gpu.health]
    elif gpu.foreign:
        reason, message = Reason.GPU_FOREIGN_USE, foreign_text(gpu.foreign)
    elif not gpu.seen:
        message = "its use is not known yet"
    return None if message is None else Obstacle(reason=reason, message=message, gpu=gpu.index)


def foreign_text(found: Sequence[Foreign]) -> str:
    """"foreign process 8123 of tom (python, 11.2 GiB) and 1 more"."""
    first = max(found, key=lambda each: each.memory_mib or 0)
    owner = f" of {first.user}" if first.user else ""
    facts = [first.name, None if first.memory_mib is None else format_mib(first.memory_mib)]
    detail = ", ".join(fact for fact in facts if fact)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"foreign process {first.pid}{owner}{f' ({detail})' if detail else ''}{more}"


# --- placements -----------------------------------------------------------------------------------------


def place_now(
    state: ClusterState, job: Job, node: Node, stamp: Stamp
) -> tuple[GpuUuid, ...] | Obstacle:
    """The GPUs the job would get on this node now, or the obstacle.

    Among types: least sufficient memory, then fewest GPUs left over, then the lowest index; within a type, the best
    connected ones.
    """
    asked = job.spec.resources
    obstacle = job_obstacle(state, job, stamp) or node_obstacle(state, node, asked)
    if obstacle is not None:
        return obstacle
    if asked.gpus == 0:
        return ()
    obstacles = {gpu.uuid: gpu_obstacle(state, gpu, asked) for gpu in node.gpus}
    groups = by_type((gpu for gpu in node.gpus if obstacles[gpu.uuid] is None), asked)
    enough = [group for group in groups if len(group) >= asked.gpus]
    if not enough:
        return shortage(state, node, asked, max(map(len, groups), default=0))
    group = min(enough, key=lambda each: (each[0].memory_mib or 0, len(each), each[0].index))
    return tuple(group[position].uuid for position in topology.choose(group, asked.gpus))


def shortage(state: ClusterState, node: Node, asked: Resources, free: int) -> Obstacle:
    """Why a node with `free` fitting GPUs cannot take the job now: who holds the others."""
    fitting = [gpu for gpu in node.gpus if gpu_mismatch(gpu, asked) is None]
    possible = max(map(len, by_type(fitting, asked)), default=0)
    if possible == 0 and node.gpus:
        first = gpu_mismatch(node.gpus[0], asked)
        assert first is not None
        return Obstacle(reason=first.reason, message=first.message, when=When.NEVER, node=node.name)
    if not node.gpus and node.driver_error is not None:
        message = f"{node.name} shows no GPU: {node.driver_error}"
        return Obstacle(reason=Reason.GPU_UNKNOWN, message=message, node=node.name)
    if possible < asked.gpus:
        message = f"needs {asked.gpus} on one node; {node.name} has {possible}"
        return Obstacle(reason=Reason.BAD_CONSTRAINTS, message=message, when=When.NEVER, node=node.name)
    found = [each for gpu in fitting if (each := gpu_obstacle(state, gpu, asked)) is not None]
    held: dict[JobId, int] = {}
    for gpu in fitting:
        by = holder(state, gpu.uuid)
        if by is not None:
            held[by] = held.get(by, 0) + 1
    if held:
        parts = [f"{by} holds {count}" for by, count in list(held.items())[:3]]
        others = "another job" if len(held) == 4 else f"{len(held) - 3} more jobs"
        more = f" and {others} the rest" if len(held) > 3 else ""
        need = f"needs {asked.gpus} on one node" if asked.gpus > 1 else f"needs a GPU of {node.name}"
        message = f"{need}; {', '.join(parts)}{more}"
        return Obstacle(reason=Reason.RESOURCES, message=message, node=node.name)
    worst = max(found, key=lambda each: sum(1 for other in found if other.reason is each.reason))
    message = f"{node.name} GPU {worst.gpu}: {worst.message}"
    if asked.gpus > 1:
        message = f"needs {asked.gpus} on one node; {node.name} has {free} free; GPU {worst.gpu}: {worst.message}"
    return Obstacle(reason=worst.reason, message=message, node=node.name, gpu=worst.gpu)


def check(state: ClusterState, placement: Placement, stamp: Stamp) -> Obstacle | None:
    """Whether this very placement may start now; None: it may."""
    job = state.jobs.get(placement.job)
    node = state.nodes.get(placement.node)
    if job is None or node is None:
        missing = f"job {placement.job}" if job is None else f"node {placement.node}"
        return Obstacle(reason=Reason.BAD_CONSTRAINTS, message=f"there is no {missing}", when=When.NEVER)
    asked = job.spec.resources
    obstacle = job_obstacle(state, job, stamp) or node_obstacle(state, node, asked)
    if obstacle is not None:
        return obstacle
    gpus = [gpu for gpu in node.gpus if gpu.uuid in placement.gpus]
    message = None
    if len(placement.gpus) != asked.gpus:
        message = f"{asked.gpus} GPUs asked, {len(placement.gpus)} given"
    elif len(gpus) != asked.gpus:
        message = f"not all of the GPUs given are on {node.name}"
    elif len({gpu.type for gpu in gpus}) > 1 and not asked.gpu_ids:
        message = "GPUs of different types for one job"
    if message is not None:
        return Obstacle(reason=Reason.BAD_CONSTRAINTS, message=message, when=When.NEVER, node=node.name)
    for gpu in gpus:
        found = gpu_obstacle(state, gpu, asked, job.id)
        if found is not None:
            message = f"{node.name} GPU {gpu.index}: {found.message}"
            return Obstacle(
                reason=found.reason, message=message, when=found.when, node=node.name, gpu=gpu.index
            )
    return None
