"""Requests against a state in tests: `ask` carries one out as the daemon does and checks what must hold after each.

    events, actions = ask(state, Cancel(jobs=(id_,), by=ANNA))
    reported(state, id_, "ended", status="exited", exit=Exit(code=0))
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from gpuq.core import decide, snapshot
from gpuq.core.apply import apply
from gpuq.core.events import AnyAction, AnyEvent
from gpuq.core.invariants import check_invariants
from gpuq.core.model import AttemptId, Job, JobId
from gpuq.core.requests import AnyRequest, AttemptReport
from gpuq.core.state import ClusterState
from tests.builders import stamp, user

ANNA, TOM, ROOT = user("anna"), user("tom"), user("root", admin=True)

Kind = TypeVar("Kind")


class Done(NamedTuple):
    """What a request led to."""

    events: list[AnyEvent]
    actions: list[AnyAction]
    notes: list[str]

    def only(self, kind: type[Kind]) -> Kind:
        """The one event or action of this kind."""
        found = [each for each in (*self.events, *self.actions) if isinstance(each, kind)]
        assert len(found) == 1, f"expected one {kind.__name__}, got {self.events} and {self.actions}"
        return found[0]

    def kinds(self) -> list[str]:
        """The names of all events, then of all actions."""
        return [type(each).__name__ for each in (*self.events, *self.actions)]


def ask(state: ClusterState, request: AnyRequest, at: float = 0.0) -> Done:
    """Carry out a request; replaying its events on the state before must give the state after."""
    before = snapshot.from_bytes(snapshot.to_bytes(state))
    outcome = decide.step(state, request, stamp(at))
    check_invariants(state)
    for event in outcome.events:
        apply(before, event, stamp(at))
    assert before.jobs == state.jobs
    assert before.owners == state.owners
    return Done(*outcome)


def report(state: ClusterState, id_: JobId | str, phase: str, **fields: Any) -> AttemptReport:
    """An agent's word about the current attempt of a job."""
    attempt = state.jobs[JobId(id_)].attempt
    assert attempt is not None
    given: dict[str, Any] = {"node": attempt.node, "attempt": attempt.id, "phase": phase}
    return AttemptReport(**(given | fields))


def reported(state: ClusterState, id_: JobId | str, phase: str, at: float = 0.0, **fields: Any) -> Done:
    """Ask with `report`."""
    return ask(state, report(state, id_, phase, **fields), at=at)


def attempt_of(job: Job) -> AttemptId:
    """The id of the current attempt."""
    assert job.attempt is not None
    return job.attempt.id
