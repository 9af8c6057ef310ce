"""What becomes of nodes: agents that say hello, links that come and go, GPUs that change, drains. Imports the core.

One thing to know: a new spool on a node (its id differs from the one known) holds no evidence about attempts
placed before, so those are fenced and end with their exit unknown; none is started again by itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from gpuq.core import decide_attempts
from gpuq.core.events import (
    AnyAction,
    AnyEvent,
    AttemptEnding,
    FenceAttempt,
    GpusChanged,
    NodeChanged,
    NodeDrained,
    NodeResumed,
    ReachChanged,
)
from gpuq.core.model import Drain, Gpu, Health, Job, Node, NodeName, Reach, Stamp, User
from gpuq.core.requests import (
    AttemptReport,
    DeclareDead,
    DrainNode,
    GpusSeen,
    NodeReached,
    NodeReady,
    ResumeNode,
)
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState
from gpuq.errors import Forbidden, NotFound, Refused

Found = tuple[list[AnyEvent], list[AnyAction], list[str]]


def ready(state: ClusterState, request: NodeReady, now: Stamp) -> Found:
    """Take the node's description, then every attempt: those in its spool, and those that should be there."""
    node = request.node
    known = state.nodes.get(node.name)
    events: list[AnyEvent] = []
    actions: list[AnyAction] = []
    notes: list[str] = []
    described = replace(node, drain=known.drain if known else None)
    if known is not None:
        described = replace(described, gpus=_with_missing(state, known, node.gpus))
    if described != known:
        events.append(NodeChanged(node=described))
    new_spool = known is not None and known.spool_id != node.spool_id
    rebooted = known is not None and known.boot_id != node.boot_id
    reported = {report.attempt: report for report in request.attempts}
    for job in list(state.active()):
        assert job.attempt is not None
        if job.attempt.node == node.name and job.attempt.id not in reported:
            absent = AttemptReport(node=node.name, attempt=job.attempt.id, phase="absent")
            reported[job.attempt.id] = absent
            if new_spool:
                events.extend(_evidence_lost(job))
                actions.append(FenceAttempt(node=node.name, attempt=job.attempt.id))
                reported.pop(job.attempt.id)
                notes.append(_evidence_note(job, node.name, rebooted))
    for attempt, stray in state.strays.items():
        if stray.node == node.name and attempt not in reported:
            reported[attempt] = AttemptReport(node=node.name, attempt=attempt, phase="absent")
    for report in reported.values():
        more_events, more_actions, more_notes = decide_attempts.report(state, report, now)
        events.extend(more_events)
        actions.extend(more_actions)
        actions.extend(decide_attempts.reminders(state, report))
        notes.extend(more_notes)
    return events, actions, notes


def _evidence_lost(job: Job) -> list[AnyEvent]:
    """Mark an attempt whose spool is gone as begun, so that its fence is never taken for proof that it was not."""
    assert job.attempt is not None
    if job.state is JobState.COMPLETING:
        return []
    return [AttemptEnding(job=job.id, attempt=job.attempt.id)]


def _evidence_note(job: Job, node: NodeName, rebooted: bool) -> str:
    after = " after a reboot" if rebooted else ""
    return f"job {job.id}: node {node} has a new spool{after}, so the evidence of its attempt is gone"


def _with_missing(state: ClusterState, known: Node, seen: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """A GPU that is no longer counted stays listed, as lost, so that nobody wonders where it went.

    Simulated ones only while an attempt holds them: they go when the configuration changes.
    """
    uuids = {gpu.uuid for gpu in seen}
    simulated = known.driver == "simulated"
    missing = [
        replace(gpu, usable=False, health=Health.LOST, reason="no longer listed by the driver")
        for gpu in known.gpus
        if gpu.uuid not in uuids and (not simulated or gpu.uuid in state.owners)
    ]
    return (*seen, *missing)


def reached(state: ClusterState, request: NodeReached, now: Stamp) -> Found:
    """The link changed. What runs there stays as it is, except for attempts given up meanwhile."""
    node = state.nodes.get(request.node)
    if node is None or node.reach is request.reach:
        return [], [], []
    actions: list[AnyAction] = []
    if request.reach is Reach.UP:
        given_up = (attempt for attempt, name in state.given_up.items() if name == node.name)
        actions.extend(decide_attempts.end_given_up(node.name, attempt) for attempt in given_up)
    return [ReachChanged(node=request.node, reach=request.reach)], actions, []


def gpus_seen(state: ClusterState, request: GpusSeen, now: Stamp) -> Found:
    """The GPUs of a node, their health or their users changed; a job on a lost GPU is named."""
    node = state.nodes.get(request.node)
    if node is None:
        return [], [], []
    gpus = _with_missing(state, node, request.gpus)
    if gpus == node.gpus and request.driver_error == node.driver_error:
        return [], [], []
    notes = _lost_notes(state, node, gpus)
    return [GpusChanged(node=node.name, gpus=gpus, driver_error=request.driver_error)], [], notes


def _lost_notes(state: ClusterState, node: Node, gpus: tuple[Gpu, ...]) -> list[str]:
    before = {gpu.uuid: gpu.health for gpu in node.gpus}
    notes = []
    for gpu in gpus:
        attempt = state.owners.get(gpu.uuid)
        if gpu.health is Health.LOST and before.get(gpu.uuid) is not Health.LOST and attempt is not None:
            job = state.attempts.get(attempt, "unknown")
            notes.append(f"GPU {gpu.index} of {node.name} is lost while job {job} holds it")
    return notes


def drain(state: ClusterState, request: DrainNode, now: Stamp) -> Found:
    """No new work on a node; what runs there goes on."""
    node = _node(state, request.node, request.by)
    if not request.reason.strip():
        raise Refused(f"Draining {node.name} needs a reason.", f'Type: gpuq drain {node.name} --reason "…"')
    wanted = Drain(reason=request.reason, by=request.by.name, at=now.wall_s)
    return [NodeDrained(node=node.name, drain=wanted)], [], []


def resume(state: ClusterState, request: ResumeNode, now: Stamp) -> Found:
    """A drained node takes work again."""
    node = _node(state, request.node, request.by)
    return ([NodeResumed(node=node.name)] if node.drain else []), [], []


def declare_dead(state: ClusterState, request: DeclareDead, now: Stamp) -> Found:
    """Give up every attempt on a node that does not answer; should one turn up again, it is ended."""
    node = _node(state, request.node, request.by)
    if node.reach is Reach.UP:
        raise Refused(f"Node {node.name} answers: it is not dead.", "Cancel its jobs instead, or drain it.")
    events: list[AnyEvent] = [
        decide_attempts.give_up(job, request.by.name, now)
        for job in list(state.active())
        if job.attempt is not None and job.attempt.node == node.name
    ]
    return events, [], []


def _node(state: ClusterState, name: NodeName, by: User) -> Node:
    node = state.nodes.get(name)
    if node is None:
        known = ", ".join(sorted(state.nodes)) or "none yet"
        raise NotFound(f"There is no node '{name}'.", f"Known nodes: {known}.")
    if not by.is_admin:
        raise Forbidden(f"Only an administrator may change node {name}.")
    return node
