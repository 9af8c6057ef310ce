"""Small builders for nodes, jobs and states. They drive real events through core.apply, and check the invariants.

    state = cluster(node("mill", "A100-80G:4"), node("attic", "V100-32G:2"))
    big = submit(state, gpus=4, name="eval")
    place(state, big, "mill")
    finish(state, big, run_s=600)

Every function that moves time takes `at`, seconds on the steady clock; the wall clock is WALL_S ahead of it.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gpuq.core.apply import apply
from gpuq.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    GpusChanged,
    JobPlaced,
    JobsSubmitted,
    NodeChanged,
    NodeDrained,
    ReachChanged,
)
from gpuq.core.invariants import check_invariants
from gpuq.core.model import (
    AttemptId,
    BlobId,
    Containment,
    Drain,
    Exit,
    Gpu,
    GpuUuid,
    Hold,
    Job,
    JobId,
    JobSpec,
    Node,
    NodeName,
    Reach,
    Resources,
    Stamp,
    User,
)
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason

WALL_S = 1_700_000_000.0  # wall clock when the steady clock shows 0
GIB = 1024  # MiB

SPEEDS = {"H100": 2.0, "A100": 1.0, "V100": 0.5, "RTX3090": 0.6, "T4": 0.2}
MEMORY_GIB = {"A100": 40, "V100": 16, "RTX3090": 24, "H100": 80, "T4": 16}
RESOURCES = frozenset(Resources.__struct_fields__)


def stamp(at: float = 0.0) -> Stamp:
    """The moment `at` seconds after the beginning, on both clocks."""
    return Stamp(wall_s=WALL_S + at, steady_s=at)


def user(name: str = "anna", admin: bool = False) -> User:
    """A person; the uid follows from the name."""
    return User(name=name, uid=1000 + sum(name.encode()) % 1000, is_admin=admin)


def gpu(name: str, index: int, kind: str, **fields: Any) -> Gpu:
    """One GPU of node `name`: uuid "GPU-mill-0"; memory from the label ("-80G") or the usual one; speed by family."""
    family, _, size = kind.partition("-")
    memory_gib = int(size[:-1]) if size[:-1].isdigit() and size.endswith("G") else MEMORY_GIB.get(family)
    given: dict[str, Any] = {
        "uuid": GpuUuid(f"GPU-{name}-{index}"),
        "index": index,
        "type": kind,
        "name": f"NVIDIA {kind}",
        "memory_mib": None if memory_gib is None else memory_gib * GIB,
        "speed": SPEEDS.get(family, 1.0),
    }
    return Gpu(**(given | fields))


def node(name: str, *kinds: str, cpus: int = 64, memory_gib: int = 256, links: str = "", **fields: Any) -> Node:
    """A node; each of `kinds` is "A100-80G:4" or "A100-80G". links: how all its GPUs are connected ("nvlink")."""
    labels: list[str] = []
    for kind in kinds:
        label, _, count = kind.partition(":")
        labels += [label] * int(count or 1)
    gpus = [gpu(name, index, label) for index, label in enumerate(labels)]
    if links:
        gpus = [
            replace(one, peers=tuple((other.uuid, links) for other in gpus if other is not one)) for one in gpus
        ]
    given: dict[str, Any] = {
        "name": NodeName(name),
        "hostname": f"{name}.example",
        "reach": Reach.UP,
        "boot_id": f"boot-{name}",
        "spool_id": f"spool-{name}",
        "cpus": cpus,
        "memory_mib": memory_gib * GIB,
        "containment": Containment.PROCESS_TREE,
        "gpus": tuple(gpus),
    }
    return Node(**(given | fields))


def tell(state: ClusterState, *events: AnyEvent, at: float = 0.0) -> None:
    """Apply events and check the invariants."""
    for event in events:
        apply(state, event, stamp(at))
    check_invariants(state)


def cluster(*nodes: Node) -> ClusterState:
    """A state that knows these nodes."""
    state = ClusterState()
    tell(state, *(NodeChanged(node=each) for each in nodes))
    return state


def spec(**fields: Any) -> JobSpec:
    """A JobSpec; fields of Resources may be given directly (gpus=2, gpu_type="A100")."""
    asked = {key: fields.pop(key) for key in list(fields) if key in RESOURCES}
    given: dict[str, Any] = {
        "name": "train",
        "argv": ("python", "train.py"),
        "cwd": "/home/anna",
        "environment": BlobId("environment"),
        "resources": Resources(**({"gpus": 1} | asked)),
    }
    return JobSpec(**(given | fields))


def submit(
    state: ClusterState, owner: str = "anna", at: float = 0.0, tasks: int = 0, held: Hold | None = None, **fields: Any
) -> JobId:
    """Submit a job (or an array of `tasks` tasks) with the given fields of JobSpec and Resources; its id."""
    id_ = JobId(str(state.next_id))
    if tasks:
        fields = {"array_size": tasks, "array_max": tasks - 1, **fields}
    event = JobsSubmitted(
        id=id_, spec=spec(**fields), owner=user(owner), tasks=tuple(range(tasks)), held=held
    )
    tell(state, event, at=at)
    return id_


def job(state: ClusterState, id_: JobId | str) -> Job:
    """The job's record."""
    return state.jobs[JobId(id_)]


def free_gpus(state: ClusterState, name: str) -> tuple[GpuUuid, ...]:
    """GPUs of a node that no attempt owns, in index order."""
    return tuple(each.uuid for each in state.nodes[NodeName(name)].gpus if each.uuid not in state.owners)


def place(
    state: ClusterState,
    id_: JobId | str,
    name: str,
    gpus: tuple[GpuUuid, ...] | None = None,
    at: float = 0.0,
    started: bool = True,
) -> AttemptId:
    """Place a job on a node, by default on its first free GPUs, and report it as started; the attempt's id."""
    record = job(state, id_)
    if gpus is None:
        gpus = free_gpus(state, name)[: record.spec.resources.gpus]
    number = record.attempt.number + 1 if record.attempt else 0
    attempt = AttemptId(f"attempt-{id_}-{number}")
    tell(state, JobPlaced(job=record.id, attempt=attempt, node=NodeName(name), gpus=gpus), at=at)
    if started:
        tell(state, AttemptStarted(job=record.id, attempt=attempt, started_at=WALL_S + at), at=at)
    return attempt


def finish(
    state: ClusterState,
    id_: JobId | str,
    at: float = 0.0,
    code: int = 0,
    run_s: float = 60.0,
    to: JobState | None = None,
    exit_: Exit | None = None,
) -> None:
    """Report that a running job ended with an exit code, or as `exit_` says."""
    record = job(state, id_)
    assert record.attempt is not None
    exit_ = exit_ or Exit(code=code, run_s=run_s)
    code = exit_.code or 0
    end = to or (JobState.COMPLETED if code == 0 else JobState.FAILED)
    reason = Reason.NONE if code == 0 else Reason.NON_ZERO_EXIT_CODE
    ended = AttemptEnded(
        job=record.id, attempt=record.attempt.id, state=end, reason=reason,
        exit=exit_, ended_at=WALL_S + at,
    )  # fmt: skip
    tell(state, ended, at=at)


def remember(state: ClusterState, name: str, *runs_s: float, owner: str = "anna") -> None:
    """Earlier run times of a job name [s on the reference GPU], as completed jobs would have left them."""
    state.set_history((owner, name), runs_s)


def change_gpu(state: ClusterState, name: str, index: int, **fields: Any) -> None:
    """Report one GPU of a node anew, with some fields changed."""
    known = state.nodes[NodeName(name)].gpus
    gpus = tuple(replace(each, **fields) if each.index == index else each for each in known)
    tell(state, GpusChanged(node=NodeName(name), gpus=gpus))


def reach(state: ClusterState, name: str, how: Reach) -> None:
    """Report the link to a node."""
    tell(state, ReachChanged(node=NodeName(name), reach=how))


def drain(state: ClusterState, name: str, reason: str = "new fan") -> None:
    """Drain a node."""
    tell(state, NodeDrained(node=NodeName(name), drain=Drain(reason=reason, by="root", at=WALL_S)))
