"""Whether a request could be met by any node when empty; if not, the largest that could. Imports match, model.

One thing to know: doubt speaks for the job. A node that has never told what it holds may be the one that fits, so
nothing is refused while there is such a node among those the job may use; a lost GPU may come back and counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuq.core.gpu_types import is_any, type_matches
from gpuq.core.match import by_type, gpu_mismatch, named
from gpuq.core.model import Gpu, JobSpec, Node, NodeName, Reach, Record, Resources
from gpuq.core.state import ClusterState
from gpuq.units import format_mib


class Refusal(Record, frozen=True, kw_only=True):
    """Why no node could ever run it: what was asked and the largest possible value, and what to do next."""

    message: str
    hint: str


def never(state: ClusterState, spec: JobSpec) -> Refusal | None:
    """The refusal of a request that no known node could ever meet; None: it may be met, now or later."""
    asked = spec.resources
    if not state.nodes:
        return None
    unknown_names = [name for name in asked.nodes if name not in state.nodes]
    if unknown_names:
        known = ", ".join(sorted(state.nodes))
        return Refusal(message=f"There is no node '{unknown_names[0]}'; there are {known}.", hint="See: gpuq nodes")
    nodes = [
        node
        for node in state.nodes.values()
        if (not asked.nodes or node.name in asked.nodes) and node.name not in asked.exclude
    ]
    if not nodes:
        return Refusal(message="The job excludes every node.", hint="Leave some out of --exclude.")
    if any(_is_unknown(node, asked) for node in nodes):
        return None
    return _cpu_refusal(nodes, asked) or _memory_refusal(nodes, asked) or _gpu_refusal(nodes, asked)


def _is_unknown(node: Node, asked: Resources) -> bool:
    """Whether the node has not told yet what it holds: never answered, or its driver does not."""
    if node.reach is not Reach.UP and node.cpus == 0:
        return True
    return asked.gpus > 0 and not node.gpus and (node.reach is not Reach.UP or node.driver_error is not None)


def _cpu_refusal(nodes: Sequence[Node], asked: Resources) -> Refusal | None:
    largest = max(nodes, key=lambda node: node.cpus)
    if asked.cpus <= largest.cpus:
        return None
    message = f"Asked {asked.cpus} CPUs on one node; the largest node, {largest.name}, has {largest.cpus}."
    return Refusal(message=message, hint=f"Ask for at most {largest.cpus} CPUs.")


def _memory_refusal(nodes: Sequence[Node], asked: Resources) -> Refusal | None:
    largest = max(nodes, key=lambda node: node.memory_mib)
    if (asked.memory_mib or 0) <= largest.memory_mib:
        return None
    most = format_mib(largest.memory_mib)
    message = (
        f"Asked {format_mib(asked.memory_mib)} of memory on one node; the largest node, {largest.name}, has {most}."
    )
    return Refusal(message=message, hint=f"Ask for at most {most}.")


def _gpu_refusal(nodes: Sequence[Node], asked: Resources) -> Refusal | None:
    if asked.gpus == 0:
        return None
    gpus = [(node, gpu) for node in nodes for gpu in _whole(node)]
    if not gpus:
        where = "no node has a GPU" if len(nodes) > 1 else f"{nodes[0].name} has no GPU"
        return Refusal(message=f"Asked {_count(asked.gpus)}; {where}.", hint="Ask for none: --gpus 0")
    return (
        _name_refusal(gpus, asked)
        or _type_refusal(gpus, asked)
        or _gpu_memory_refusal(gpus, asked)
        or _count_refusal(nodes, asked)
    )


def _whole(node: Node) -> list[Gpu]:
    """The GPUs of a node without the cards that are cut into slices: only the slices take jobs."""
    cut = {gpu.parent for gpu in node.gpus if gpu.parent is not None}
    return [gpu for gpu in node.gpus if gpu.uuid not in cut]


def _count(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def _name_refusal(gpus: Sequence[tuple[Node, Gpu]], asked: Resources) -> Refusal | None:
    missing = [each for each in asked.gpu_ids if not any(named(gpu, (each,)) for _, gpu in gpus)]
    if not missing:
        return None
    return Refusal(message=f"There is no GPU '{missing[0]}'.", hint="See: gpuq gpus")


def _type_refusal(gpus: Sequence[tuple[Node, Gpu]], asked: Resources) -> Refusal | None:
    wanted = asked.gpu_type or ""
    if is_any(wanted) or any(type_matches(wanted, gpu.type, gpu.name, gpu.parent is not None) for _, gpu in gpus):
        return None
    known = ", ".join(sorted({gpu.type for _, gpu in gpus}))
    return Refusal(message=f"No GPU of type {wanted}; there are {known}.", hint="Ask for one of these, or any.")


def _gpu_memory_refusal(gpus: Sequence[tuple[Node, Gpu]], asked: Resources) -> Refusal | None:
    typed = Resources(gpu_type=asked.gpu_type, gpu_ids=asked.gpu_ids)
    fitting = [(node, gpu) for node, gpu in gpus if gpu_mismatch(gpu, typed) is None]
    if any(gpu.memory_mib is None or gpu.memory_mib >= (asked.gpu_memory_mib or 0) for _, gpu in fitting):
        return None
    if not fitting:
        return Refusal(
            message=f"GPU '{asked.gpu_ids[0]}' is not of type {asked.gpu_type}.", hint="See: gpuq gpus"
        )
    node, gpu = max(fitting, key=lambda each: each[1].memory_mib or 0)
    most = format_mib(gpu.memory_mib)
    message = (
        f"Asked {format_mib(asked.gpu_memory_mib)} on one GPU; "
        f"the largest, {gpu.type} on {node.name}, has {most}."
    )
    return Refusal(message=message, hint=f"Ask for at most {most} per GPU.")


def _count_refusal(nodes: Sequence[Node], asked: Resources) -> Refusal | None:
    """Too many GPUs on one node, or no node that has all at once: GPUs, CPUs and memory."""
    most, where, kind = 0, nodes[0].name, ""
    narrow = 0
    for node in nodes:
        fitting = [gpu for gpu in _whole(node) if _may_serve(gpu, asked)]
        largest = max(by_type(fitting, asked), key=len, default=[])
        if len(largest) > most:
            most, where, kind = len(largest), node.name, largest[0].type
        if asked.cpus <= node.cpus and (asked.memory_mib or 0) <= node.memory_mib:
            narrow = max(narrow, len(largest))
    if asked.gpus > most:
        return _too_many(asked, most, where, kind)
    if asked.gpus <= narrow:
        return None
    also = f"{asked.cpus} CPUs" if asked.cpus else ""
    if asked.memory_mib:
        also += f"{' and ' if also else ''}{format_mib(asked.memory_mib)} of memory"
    message = f"No node has {_count(asked.gpus)} together with {also}; the largest possible is {_count(narrow)}."
    return Refusal(message=message, hint="Ask for fewer GPUs, or for less beside them.")


def _may_serve(gpu: Gpu, asked: Resources) -> bool:
    """As gpu_mismatch, but unknown memory may turn out to be enough."""
    if gpu.memory_mib is None:
        asked = Resources(gpu_type=asked.gpu_type, gpu_ids=asked.gpu_ids)
    return gpu_mismatch(gpu, asked) is None


def _too_many(asked: Resources, most: int, where: NodeName, kind: str) -> Refusal:
    of_type = "" if is_any(asked.gpu_type) else f" of type {asked.gpu_type}"
    with_memory = f" with {format_mib(asked.gpu_memory_mib)}" if asked.gpu_memory_mib else ""
    if asked.gpu_ids:
        message = f"Asked {_count(asked.gpus)}, but only {most} of those named are on one node, {where}."
    else:
        message = (
            f"Asked {_count(asked.gpus)}{of_type}{with_memory} on one node; "
            f"the largest node, {where}, has {most}{f' {kind}' if kind else ''}."
        )
    return Refusal(message=message, hint=f"Ask for at most {most} of one type.")
