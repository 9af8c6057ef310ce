"""What events about nodes and strays do to the state. Imports state and its records; core.apply calls it."""

from __future__ import annotations

from msgspec.structs import replace

from gpuq.core.events import (
    AnyAction,
    GpusChanged,
    NodeChanged,
    NodeDrained,
    NodeResumed,
    ReachChanged,
    ReleaseAttempt,
    StrayFound,
    StrayGone,
)
from gpuq.core.model import Stamp
from gpuq.core.state import ClusterState, Stray


def node_changed(state: ClusterState, event: NodeChanged, stamp: Stamp) -> list[AnyAction]:
    """A node appeared or is described anew; its drain is kept."""
    known = state.nodes.get(event.node.name)
    drain = known.drain if known else event.node.drain
    state.nodes[event.node.name] = replace(event.node, drain=drain)
    return []


def reach_changed(state: ClusterState, event: ReachChanged, stamp: Stamp) -> list[AnyAction]:
    """The link to a node changed."""
    state.nodes[event.node] = replace(state.nodes[event.node], reach=event.reach)
    return []


def gpus_changed(state: ClusterState, event: GpusChanged, stamp: Stamp) -> list[AnyAction]:
    """The GPUs of a node are described anew."""
    state.nodes[event.node] = replace(state.nodes[event.node], gpus=event.gpus, driver_error=event.driver_error)
    return []


def drained(state: ClusterState, event: NodeDrained, stamp: Stamp) -> list[AnyAction]:
    """No new work on a node."""
    state.nodes[event.node] = replace(state.nodes[event.node], drain=event.drain)
    return []


def resumed(state: ClusterState, event: NodeResumed, stamp: Stamp) -> list[AnyAction]:
    """A node takes work again."""
    state.nodes[event.node] = replace(state.nodes[event.node], drain=None)
    return []


def stray_found(state: ClusterState, event: StrayFound, stamp: Stamp) -> list[AnyAction]:
    """An attempt that no job owns keeps its GPUs."""
    state.add_stray(event.attempt, Stray(event.node, event.job, event.gpus))
    return []


def stray_gone(state: ClusterState, event: StrayGone, stamp: Stamp) -> list[AnyAction]:
    """Nothing of a stray attempt lives any more."""
    stray = state.strays.pop(event.attempt, None)
    given_up = state.given_up.pop(event.attempt, None)
    if stray is not None:
        state.free(event.attempt, stray.gpus)
    node = stray.node if stray else given_up
    return [ReleaseAttempt(node=node, attempt=event.attempt)] if node else []
