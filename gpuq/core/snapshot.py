"""The state as bytes and back, so that a restart need not replay everything. Imports state, speeds, used and model.

Only records are written; indexes are computed again. Specs are written once, however many tasks share one.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gpuq.core.model import AttemptId, Change, GpuUuid, Job, JobId, JobSpec, Node, NodeName, Record, Room, Setting
from gpuq.core.speeds import Runs
from gpuq.core.state import ClusterState, Stray
from gpuq.core.used import Use

_NO_SPEC = JobSpec(name="", argv=(), cwd="", environment="")  # type: ignore[arg-type]


class _StrayRow(Record, frozen=True, kw_only=True):
    node: NodeName
    job: JobId | None
    gpus: tuple[GpuUuid, ...]


class _Snapshot(Record, frozen=True, kw_only=True):
    specs: tuple[JobSpec, ...]
    jobs: tuple[tuple[int, Job], ...]  # (position in specs, the job without its spec)
    tasks: dict[JobId, tuple[JobId, ...]]
    nodes: dict[NodeName, Node]
    strays: dict[AttemptId, _StrayRow]
    given_up: dict[AttemptId, NodeName]
    keys: dict[str, JobId]
    history: tuple[tuple[str, str, tuple[float, ...]], ...]
    ended: tuple[JobId, ...]
    next_id: int
    next_order: int
    settings: dict[str, Setting] = msgspec.field(default_factory=dict)
    setting_changes: tuple[Change, ...] = ()
    usage: dict[str, tuple[tuple[int, float], ...]] = msgspec.field(default_factory=dict)
    type_runs: tuple[tuple[str, str, dict[str, Runs]], ...] = ()
    commands: tuple[tuple[str, str, tuple[float, ...]], ...] = ()
    general: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    rooms: dict[JobId, Room] = msgspec.field(default_factory=dict)
    used: tuple[tuple[str, str, Use], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)


def to_bytes(state: ClusterState) -> bytes:
    """The records of the state."""
    places: dict[int, int] = {}
    specs: list[JobSpec] = []
    jobs = []
    for job in state.jobs.values():
        place = places.get(id(job.spec))
        if place is None:
            place = places[id(job.spec)] = len(specs)
            specs.append(job.spec)
        jobs.append((place, replace(job, spec=_NO_SPEC)))
    document = _Snapshot(
        specs=tuple(specs),
        jobs=tuple(jobs),
        tasks=state.tasks,
        nodes=state.nodes,
        strays={id_: _StrayRow(node=s.node, job=s.job, gpus=s.gpus) for id_, s in state.strays.items()},
        given_up=state.given_up,
        keys=state.keys,
        history=tuple((user, name, runs) for (user, name), runs in state.memory.history.items()),
        ended=tuple(state.ended),
        next_id=state.next_id,
        next_order=state.next_order,
        settings=state.settings,
        setting_changes=state.setting_changes,
        usage=state.usage,
        type_runs=tuple((user, name, by_type) for (user, name), by_type in state.memory.type_runs.items()),
        commands=tuple((user, command, runs) for (user, command), runs in state.memory.commands.items()),
        general=state.memory.general,
        used=tuple((user, name, use) for (user, name), use in state.memory.uses.items()),
        rooms=state.rooms,
    )
    return _encoder.encode(document)


def from_bytes(data: bytes) -> ClusterState:
    """The state that `to_bytes` wrote, indexes and all; raises msgspec.DecodeError on foreign bytes."""
    document = _decoder.decode(data)
    state = ClusterState()
    state.nodes = document.nodes
    state.given_up = document.given_up
    state.keys = document.keys
    memory = state.memory
    memory.history = {(user, name): runs for user, name, runs in document.history}
    for user, name, by_type in document.type_runs:
        memory.set_type_runs((user, name), by_type)
    memory.commands = {(user, command): runs for user, command, runs in document.commands}
    memory.general = document.general
    memory.uses = {(user, name): use for user, name, use in document.used}
    state.next_id, state.next_order = document.next_id, document.next_order
    state.settings = document.settings
    state.setting_changes = document.setting_changes
    state.usage = document.usage
    state.rooms = document.rooms
    state.tasks = document.tasks
    jobs = [replace(job, spec=document.specs[place]) for place, job in document.jobs]
    # Dependencies are looked up while indexing, so every record must be there before the first is indexed.
    state.jobs = {job.id: job for job in jobs}
    for job in sorted(jobs, key=lambda job: job.order):
        state.index(job)
    state.ended = dict.fromkeys(document.ended)
    for id_, row in document.strays.items():
        state.add_stray(id_, Stray(row.node, row.job, row.gpus))
    return state
