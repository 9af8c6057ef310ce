"""Does a GPU or a node match a request at all, whoever uses it now. Imports model, state, states, gpu_types and units.

Owns Obstacle, the one sentence that names what is in the way. One thing to know: nothing here depends on who runs
what; that half is core.fit, and whether any node matches is core.possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gpuq.core.gpu_types import is_any, type_matches
from gpuq.core.model import Gpu, Node, NodeName, Record, Resources
from gpuq.core.state import ClusterState
from gpuq.core.states import Reason
from gpuq.units import format_mib


class When(str, Enum):
    """Whether an obstacle may go away."""

    LATER = "later"
    NEVER = "never"


class Obstacle(Record, frozen=True, kw_only=True):
    """What keeps a job from starting, in one sentence that names it."""

    reason: Reason
    message: str
    when: When = When.LATER
    node: NodeName | None = None
    gpu: int | None = None  # node-local index


def named(gpu: Gpu, ids: Iterable[str]) -> bool:
    """Whether the GPU is among those given by hand: node-local index, UUID, or the beginning of a UUID."""
    return any(
        each == str(gpu.index) or each == gpu.uuid or (len(each) > 7 and gpu.uuid.startswith(each)) for each in ids
    )


def node_mismatch(node: Node, asked: Resources) -> Obstacle | None:
    """Why the node can never take the request, GPUs aside."""
    message = None
    if asked.nodes and node.name not in asked.nodes:
        message = "not among the nodes asked for"
    elif node.name in asked.exclude:
        message = "excluded by the job"
    elif asked.cpus > node.cpus:
        message = f"{node.cpus} CPUs, {asked.cpus} asked"
    elif (asked.memory_mib or 0) > node.memory_mib:
        message = f"{format_mib(node.memory_mib)} of memory, {format_mib(asked.memory_mib)} asked"
    if message is None:
        return None
    return Obstacle(reason=Reason.BAD_CONSTRAINTS, message=message, when=When.NEVER, node=node.name)


def gpu_mismatch(gpu: Gpu, asked: Resources) -> Obstacle | None:
    """Why the GPU can never serve the request: not named, wrong type, too little memory."""
    reason = Reason.BAD_CONSTRAINTS
    if asked.gpu_ids and not named(gpu, asked.gpu_ids):
        message = "not among the GPUs asked for"
    elif not is_any(asked.gpu_type) and not type_matches(
        asked.gpu_type or "", gpu.type, gpu.name, gpu.parent is not None
    ):
        message = f"{gpu.type}, {asked.gpu_type} asked"
    elif asked.gpu_memory_mib and gpu.memory_mib is not None and gpu.memory_mib < asked.gpu_memory_mib:
        reason = Reason.GPU_MEMORY
        message = f"{format_mib(gpu.memory_mib)}, {format_mib(asked.gpu_memory_mib)} asked"
    elif asked.gpu_memory_mib and gpu.memory_mib is None:
        reason = Reason.GPU_UNKNOWN
        message = f"memory unknown, {format_mib(asked.gpu_memory_mib)} asked"
    else:
        return None
    return Obstacle(reason=reason, message=message, when=When.NEVER, gpu=gpu.index)


def by_type(gpus: Iterable[Gpu], asked: Resources) -> list[list[Gpu]]:
    """GPUs in the sets one job may be spread over: of one type each; those named by hand stay together as they are."""
    groups: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault("" if asked.gpu_ids else gpu.type, []).append(gpu)
    return list(groups.values())


def best_speed(state: ClusterState, asked: Resources) -> float:
    """Speed of the fastest GPU the request could use on an empty cluster; 1 without GPUs."""
    if asked.gpus == 0:
        return 1.0
    speeds = (
        gpu.speed
        for node in state.nodes.values()
        if node_mismatch(node, asked) is None
        for gpu in node.gpus
        if gpu_mismatch(gpu, asked) is None
    )
    return max(speeds, default=1.0)
