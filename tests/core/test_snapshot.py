"""The state as bytes and back."""

from __future__ import annotations

import msgspec
import pytest

from gpuq.core import snapshot
from gpuq.core.events import AttemptEnded, StrayFound
from gpuq.core.invariants import check_invariants
from gpuq.core.model import (
    AttemptId,
    Dependencies,
    Dependency,
    DependencyKind,
    Exit,
    GpuUuid,
    Hold,
    JobId,
    NodeName,
)
from gpuq.core.requests import Cancel, HoldJobs, Requeue, Submit
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from tests.builders import WALL_S, cluster, drain, finish, node, place, remember, spec, submit, tell
from tests.core.machine_step import ANNA, ROOT, ask


def busy() -> ClusterState:
    """A state with something of everything: arrays, dependencies, holds, ends, strays, given-up attempts, keys."""
    state = cluster(node("mill", "A100:4", links="nvlink"), node("attic", "V100:2"))
    array = submit(state, tasks=5, array_limit=2)
    place(state, f"{array}_0", "mill")
    place(state, f"{array}_1", "mill")
    finish(state, f"{array}_1")
    parent = submit(state)
    for kind in (DependencyKind.AFTER_OK, DependencyKind.SINGLETON):
        term = Dependency(kind=kind, job=JobId("" if kind is DependencyKind.SINGLETON else parent))
        submit(state, dependencies=Dependencies(terms=(term,)))
    ask(state, Submit(spec=spec(name="held"), by=ANNA, key="key", held=True))
    ask(state, HoldJobs(jobs=(parent,), by=ROOT))
    dead = submit(state)
    attempt = place(state, dead, "attic")
    given_up = AttemptEnded(
        job=dead, attempt=attempt, state=JobState.NODE_FAIL, reason=Reason.NODE_DECLARED_DEAD, exit=Exit(),
        ended_at=WALL_S,
    )  # fmt: skip
    tell(state, given_up, StrayFound(attempt=AttemptId("s"), node=NodeName("mill"), gpus=(GpuUuid("GPU-mill-3"),)))
    remember(state, "train", 60.0, 61.5)
    drain(state, "attic")
    return state


INDEXES = ("attempts", "owners", "array_active", "unmet", "children", "used_cpus", "used_memory_mib")
RECORDS = ("jobs", "nodes", "strays", "given_up", "keys", "next_id", "next_order", "tasks")


def test_a_state_comes_back_as_it_was() -> None:
    """Records, indexes, the order of ends and of the queues are the same, and so are the bytes."""
    state = busy()
    data = snapshot.to_bytes(state)
    back = snapshot.from_bytes(data)
    check_invariants(back)
    assert vars(back.memory) == vars(state.memory)
    for name in (*RECORDS, *INDEXES):
        kept, found = getattr(state, name), getattr(back, name)
        if name in ("used_cpus", "used_memory_mib", "array_active"):
            kept, found = ({key: value for key, value in each.items() if value} for each in (kept, found))
        assert found == kept, name
    assert list(back.ended) == list(state.ended)
    assert {shape: list(queue) for shape, queue in back.waiting.items()} == {
        shape: list(queue) for shape, queue in state.waiting.items()
    }
    assert snapshot.to_bytes(back) == data


def test_tasks_of_an_array_share_one_spec() -> None:
    """Ten thousand tasks must not cost ten thousand specs, on disk or in memory."""
    state = cluster(node("mill", "A100"))
    array = submit(state, tasks=2)
    small = len(snapshot.to_bytes(state))
    submit(state, tasks=400, comment="x" * 500)
    data = snapshot.to_bytes(state)
    assert len(data) < small + 400 * 300
    back = snapshot.from_bytes(data)
    specs = {id(job.spec) for job in back.jobs.values()}
    assert len(specs) == 2
    assert back.jobs[JobId(f"{array}_0")].spec is back.jobs[JobId(f"{array}_1")].spec


def test_a_state_goes_on_after_a_restart_as_it_would_have() -> None:
    """The same requests lead to the same state with and without a restart in between."""
    one, other = busy(), snapshot.from_bytes(snapshot.to_bytes(busy()))
    for state in (one, other):
        ask(state, Cancel(jobs=(JobId("1"),), by=ANNA))
        ask(state, Requeue(jobs=(JobId("1_1"),), by=ANNA, hold=True))
        ask(state, Submit(spec=spec(name="held"), by=ANNA, key="key"))
    assert snapshot.to_bytes(one) == snapshot.to_bytes(other)
    assert one.jobs[JobId("1_1")].held is Hold.USER


def test_foreign_bytes_are_refused() -> None:
    """Damage is an error, never an empty state."""
    data = snapshot.to_bytes(busy())
    for damaged in (b"", b"nonsense", data[: len(data) // 2]):
        with pytest.raises(msgspec.DecodeError):
            snapshot.from_bytes(damaged)


def test_an_empty_state_comes_back_empty() -> None:
    """The first snapshot of a new queue."""
    back = snapshot.from_bytes(snapshot.to_bytes(ClusterState()))
    assert (back.jobs, back.nodes, back.next_id, back.next_order) == ({}, {}, 1, 1)
