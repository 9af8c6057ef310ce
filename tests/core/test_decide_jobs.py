"""What people may ask of jobs, what follows, and what is refused without changing anything."""

from __future__ import annotations

from typing import Any

import pytest

from gpuq.core import decide
from gpuq.core.events import JobsSubmitted, StopAttempt
from gpuq.core.model import Dependencies, Dependency, DependencyKind, Exit, Hold, JobId, StopKind
from gpuq.core.requests import (
    Cancel,
    HoldJobs,
    Prune,
    ReleaseJobs,
    Requeue,
    Signal,
    SkipIds,
    Submit,
    Tick,
    Update,
)
from gpuq.core.snapshot import to_bytes
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.errors import Forbidden, NotFound, Refused, UsageError, UserError
from tests.builders import WALL_S, cluster, finish, job, node, place, spec, submit
from tests.core.machine_step import ANNA, ROOT, TOM, ask, reported


def queue() -> ClusterState:
    """A node with four GPUs."""
    return cluster(node("mill", "A100:4"))


def after_ok(*jobs: str) -> Dependencies:
    """A dependency on the success of each job."""
    return Dependencies(terms=tuple(Dependency(kind=DependencyKind.AFTER_OK, job=JobId(id_)) for id_ in jobs))


def refused(state: ClusterState, request: Any, error: type[UserError]) -> UserError:
    """The refusal; the state must be as before, to the byte."""
    before = to_bytes(state)
    with pytest.raises(error) as caught:
        ask(state, request)
    assert to_bytes(state) == before
    assert "\n" not in caught.value.message
    return caught.value


# --- submit ---------------------------------------------------------------------------------------------


def test_a_repeated_submit_makes_one_job() -> None:
    """The same key again, after a reply was lost, finds the first job."""
    state = queue()
    request = Submit(spec=spec(), by=ANNA, key="k")
    assert ask(state, request).kinds() == ["JobsSubmitted"]
    assert ask(state, request).kinds() == []
    assert (list(state.jobs), state.keys) == (["1"], {"k": "1"})
    assert ask(state, Submit(spec=spec(), by=ANNA, key="other")).kinds() == ["JobsSubmitted"]


def test_an_array_becomes_one_job_per_task() -> None:
    """Ids carry the index; a held submit holds them all."""
    state = queue()
    ask(state, Submit(spec=spec(), by=ANNA, tasks=(3, 5), held=True))
    assert [(each.id, each.task, each.held) for each in state.jobs.values()] == [
        ("1_3", 3, Hold.USER), ("1_5", 5, Hold.USER),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "submit_fields", "error"),
    [
        ({"argv": ()}, {}, UsageError),
        ({"name": "x" * 2000}, {}, UsageError),
        ({}, {"tasks": (1, 1)}, UsageError),
        ({}, {"tasks": (-1,)}, UsageError),
        ({}, {"tasks": tuple(range(100_001))}, UsageError),
        ({"gpus": -1}, {}, UsageError),
        ({"memory_mib": -5}, {}, UsageError),
        ({"gpus": 3, "gpu_ids": ("0", "1")}, {}, UsageError),
        ({"values": (("lr", ("1", "2")),)}, {"tasks": (0, 1, 2)}, UsageError),
        ({"gpus": 5}, {}, Refused),
        ({"gpu_type": "H100"}, {}, Refused),
        ({"dependencies": after_ok("404")}, {}, NotFound),
    ],
)
def test_a_submit_that_cannot_be_meant_is_refused(
    fields: dict[str, Any], submit_fields: dict[str, Any], error: type[UserError]
) -> None:
    """Nothing is made, and the error says which part is wrong."""
    refused(queue(), Submit(spec=spec(**fields), by=ANNA, **submit_fields), error)


def test_a_request_that_can_never_be_met_names_the_largest_that_can() -> None:
    """So that the person knows what to type instead."""
    assert "4" in refused(queue(), Submit(spec=spec(gpus=5), by=ANNA), Refused).message


def test_without_a_word_about_gpus_a_job_gets_none_where_there_are_none() -> None:
    """And is told so; where there are GPUs it gets its one."""
    bare = cluster(node("desk"))
    done = ask(bare, Submit(spec=spec(), by=ANNA, gpus_given=False))
    assert (done.only(JobsSubmitted).spec.resources.gpus, len(done.notes)) == (0, 1)
    done = ask(queue(), Submit(spec=spec(), by=ANNA, gpus_given=False))
    assert (done.only(JobsSubmitted).spec.resources.gpus, done.notes) == (1, [])


def test_a_begin_time_in_the_past_is_noted() -> None:
    """The job is made all the same."""
    done = ask(queue(), Submit(spec=spec(begin_at=WALL_S - 1), by=ANNA))
    assert (done.kinds(), len(done.notes)) == (["JobsSubmitted"], 1)


def test_ids_that_may_have_been_given_out_are_skipped() -> None:
    """After a restored state the next id is beyond all that were lost."""
    state = queue()
    submit(state)
    ask(state, SkipIds(count=10))
    assert submit(state) == "12"


# --- cancel and signal ----------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_told() -> None:
    """An ended one is left as it is, and a second cancel changes nothing."""
    state = queue()
    waiting, running, ended = submit(state), submit(state, grace_s=12.0), submit(state)
    place(state, running, "mill")
    place(state, ended, "mill")
    finish(state, ended)
    request = Cancel(jobs=(waiting, running, ended), by=ANNA)
    done = ask(state, request)
    assert done.kinds() == ["JobDropped", "StopOrdered", "StopAttempt"]
    assert done.only(StopAttempt).grace_s == 12.0
    assert [job(state, id_).state for id_ in request.jobs] == [
        JobState.CANCELLED, JobState.RUNNING, JobState.COMPLETED,
    ]  # fmt: skip
    assert ask(state, request).kinds() == []


def test_a_second_cancel_may_shorten_the_grace_but_not_lengthen_it() -> None:
    """`cancel --now` after a plain cancel is passed on."""
    state = queue()
    id_ = submit(state)
    place(state, id_, "mill")
    ask(state, Cancel(jobs=(id_,), by=ANNA, grace_s=10.0))
    assert ask(state, Cancel(jobs=(id_,), by=ANNA, grace_s=60.0)).kinds() == []
    assert ask(state, Cancel(jobs=(id_,), by=ANNA, grace_s=0.0)).only(StopAttempt).grace_s == 0.0


def test_a_cancel_overrides_a_requeue() -> None:
    """A job that is being ended for another run ends for good."""
    state = queue()
    id_ = submit(state)
    place(state, id_, "mill")
    ask(state, Requeue(jobs=(id_,), by=ANNA))
    ask(state, Cancel(jobs=(id_,), by=ANNA, grace_s=60.0))
    reported(state, id_, "ended", reason="requeue", exit=Exit(signal=15))
    assert job(state, id_).state is JobState.CANCELLED


def test_the_reason_of_a_cancel_is_told_for_each_job_by_itself() -> None:
    """An administrator who cancels one job of their own and one of another's is an administrator for the second."""
    state = queue()
    own, other = submit(state, owner="root"), submit(state)
    ask(state, Cancel(jobs=(own, other), by=ROOT))
    assert [job(state, id_).reason for id_ in (own, other)] == [Reason.CANCELLED_BY_USER, Reason.CANCELLED_BY_ADMIN]


def test_an_array_id_means_all_its_tasks() -> None:
    """Each of them once, even if it is named as well."""
    state = queue()
    array = submit(state, tasks=3)
    done = ask(state, Cancel(jobs=(array, JobId(f"{array}_1")), by=ANNA))
    assert done.kinds() == ["JobDropped"] * 3


def test_a_signal_goes_to_running_jobs_only() -> None:
    """One that waits among them refuses the whole request."""
    state = queue()
    waiting, running = submit(state), submit(state)
    place(state, running, "mill")
    assert ask(state, Signal(jobs=(running,), by=ANNA, signal=10)).kinds() == ["JobSignalled", "SignalAttempt"]
    refused(state, Signal(jobs=(running, waiting), by=ANNA, signal=10), Refused)


# --- whose job it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [
        lambda ids, by: Cancel(jobs=ids, by=by),
        lambda ids, by: HoldJobs(jobs=ids, by=by),
        lambda ids, by: ReleaseJobs(jobs=ids, by=by),
        lambda ids, by: Requeue(jobs=ids, by=by),
        lambda ids, by: Update(jobs=ids, by=by, changes={"priority": 9}),
        lambda ids, by: Signal(jobs=ids, by=by, signal=9),
        lambda ids, by: Prune(jobs=ids, by=by),
    ],
)
def test_every_verb_checks_owner_and_ids_before_it_acts(verb: Any) -> None:
    """One foreign or unknown id among good ones refuses all."""
    state = queue()
    own, foreign = submit(state), submit(state, owner="tom")
    refused(state, verb((own, foreign), ANNA), Forbidden)
    refused(state, verb((own, JobId("99")), ANNA), NotFound)


# --- hold, release, requeue -----------------------------------------------------------------------------


def test_a_held_job_waits_until_it_is_released() -> None:
    """The planner does not see it meanwhile; holding it twice is no news."""
    state = queue()
    id_ = submit(state)
    ask(state, HoldJobs(jobs=(id_,), by=ANNA))
    assert ask(state, HoldJobs(jobs=(id_,), by=ANNA)).kinds() == []
    assert state.waiting_count() == 0
    ask(state, ReleaseJobs(jobs=(id_,), by=ANNA))
    assert ask(state, ReleaseJobs(jobs=(id_,), by=ANNA)).kinds() == []
    assert state.waiting_count() == 1


def test_an_administrators_hold_needs_an_administrator() -> None:
    """It also replaces the owner's own hold."""
    state = queue()
    id_ = submit(state, held=Hold.USER)
    ask(state, HoldJobs(jobs=(id_,), by=ROOT))
    refused(state, ReleaseJobs(jobs=(id_,), by=ANNA), Forbidden)
    ask(state, ReleaseJobs(jobs=(id_,), by=ROOT))
    assert job(state, id_).held is None


def test_only_a_pending_job_can_be_held_or_released() -> None:
    """A running one is refused, and says what it is."""
    state = queue()
    id_ = submit(state)
    place(state, id_, "mill")
    for request in (HoldJobs(jobs=(id_,), by=ANNA), ReleaseJobs(jobs=(id_,), by=ANNA)):
        assert "RUNNING" in refused(state, request, Refused).message


def test_an_ended_job_may_run_again_under_its_id() -> None:
    """Held, if that is wanted; a waiting one is refused."""
    state = queue()
    id_ = submit(state)
    refused(state, Requeue(jobs=(id_,), by=ANNA), Refused)
    place(state, id_, "mill")
    finish(state, id_, code=1)
    ask(state, Requeue(jobs=(id_,), by=ANNA, hold=True))
    again = job(state, id_)
    assert (again.state, again.held, again.restarts) == (JobState.PENDING, Hold.USER, 1)


def test_a_running_job_is_ended_before_it_runs_again() -> None:
    """The order is given once, and a later wish to hold it is still heard."""
    state = queue()
    id_ = submit(state)
    place(state, id_, "mill")
    assert ask(state, Requeue(jobs=(id_,), by=ANNA)).only(StopAttempt).reason == StopKind.REQUEUE.value
    assert job(state, id_).state is JobState.RUNNING
    assert ask(state, Requeue(jobs=(id_,), by=ANNA)).kinds() == []
    ask(state, Requeue(jobs=(id_,), by=ANNA, hold=True))
    reported(state, id_, "ended", reason="requeue", exit=Exit(signal=15))
    assert (job(state, id_).state, job(state, id_).held) == (JobState.PENDING, Hold.USER)


def test_a_job_that_is_being_cancelled_cannot_be_requeued_yet() -> None:
    """Cancel and requeue would contradict each other."""
    state = queue()
    id_ = submit(state)
    place(state, id_, "mill")
    ask(state, Cancel(jobs=(id_,), by=ANNA))
    refused(state, Requeue(jobs=(id_,), by=ANNA), Refused)


# --- update ---------------------------------------------------------------------------------------------


def test_a_waiting_job_can_be_changed() -> None:
    """Fields of the spec and of its resources; an update that changes nothing writes nothing."""
    state = queue()
    id_ = submit(state)
    changes = {"priority": 5, "resources": {"gpus": 2}}
    assert ask(state, Update(jobs=(id_,), by=ANNA, changes=changes)).kinds() == ["JobUpdated"]
    assert (job(state, id_).spec.priority, job(state, id_).spec.resources.gpus) == (5, 2)
    assert ask(state, Update(jobs=(id_,), by=ANNA, changes=changes)).kinds() == []


def test_a_running_job_can_get_a_new_limit_name_or_comment() -> None:
    """The limit is sent to the node; anything else is refused."""
    state = queue()
    id_ = submit(state)
    place(state, id_, "mill")
    changes: dict[str, object] = {"time_limit_s": 60.0, "name": "x", "comment": "y"}
    assert ask(state, Update(jobs=(id_,), by=ANNA, changes=changes)).kinds() == ["JobUpdated", "SetLimit"]
    assert "priority" in refused(state, Update(jobs=(id_,), by=ANNA, changes={"priority": 1}), Refused).message


@pytest.mark.parametrize(
    "changes",
    [{"colour": "red"}, {"priority": "high"}, {"environment": "x"}, {"resources": {"wheels": 4}}, {"resources": 7}],
)
def test_a_change_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    """Unknown fields, wrong types and fields that are not for changing."""
    state = queue()
    refused(state, Update(jobs=(submit(state),), by=ANNA, changes=changes), UsageError)


def test_a_change_to_what_can_never_run_is_refused() -> None:
    """As at submission."""
    state = queue()
    refused(state, Update(jobs=(submit(state),), by=ANNA, changes={"resources": {"gpus": 9}}), Refused)


def test_an_ended_job_cannot_be_changed() -> None:
    """Its spec is history."""
    state = queue()
    id_ = submit(state)
    ask(state, Cancel(jobs=(id_,), by=ANNA))
    refused(state, Update(jobs=(id_,), by=ANNA, changes={"priority": 1}), Refused)


def depend(kind: str, id_: str = "") -> dict[str, object]:
    """A change of the dependencies."""
    return {"dependencies": {"terms": [{"kind": kind, "job": id_}]}}


def test_a_job_cannot_come_to_wait_for_itself() -> None:
    """Neither directly, nor through others, nor through its array."""
    state = queue()
    first = submit(state)
    second = submit(state, dependencies=after_ok(first))
    array = submit(state, tasks=2, dependencies=after_ok(second))
    for each in (first, second, array):
        refused(state, Update(jobs=(first,), by=ANNA, changes=depend("afterok", each)), Refused)
    refused(state, Update(jobs=(JobId(f"{array}_0"),), by=ANNA, changes=depend("afterany", array)), Refused)
    refused(state, Update(jobs=(first,), by=ANNA, changes=depend("afterok", "77")), NotFound)


def test_a_job_cannot_come_to_wait_for_itself_through_a_singleton() -> None:
    """A later singleton of the same name waits for it: neither a dependency on that one nor its name is taken."""
    state = queue()
    alone = Dependencies(terms=(Dependency(kind=DependencyKind.SINGLETON),))
    first = submit(state)
    second = submit(state, dependencies=alone)
    refused(state, Update(jobs=(first,), by=ANNA, changes=depend("afterok", second)), Refused)
    other = submit(state, name="other", dependencies=after_ok(second))
    assert ask(state, Update(jobs=(other,), by=ANNA, changes={"name": "train"})).kinds() == ["JobUpdated"]
    ask(state, Update(jobs=(first,), by=ANNA, changes={"name": "free"}))
    ask(state, Update(jobs=(first,), by=ANNA, changes=depend("afterok", second)))
    refused(state, Update(jobs=(first,), by=ANNA, changes={"name": "train"}), Refused)


def test_a_change_to_a_dead_dependency_ends_the_job() -> None:
    """It does not wait for ever; and one that was kept for its dependency is free with a better one."""
    state = queue()
    dead = submit(state)
    ask(state, Cancel(jobs=(dead,), by=ANNA))
    id_ = submit(state)
    ask(state, Update(jobs=(id_,), by=ANNA, changes=depend("afterok", dead)))
    assert job(state, id_).reason is Reason.DEPENDENCY_NEVER_SATISFIED
    kept = submit(state)
    terms = [{"kind": "afterok", "job": dead}]
    changes: dict[str, object] = {"dependencies": {"terms": terms, "keep_on_failed": True}}
    ask(state, Update(jobs=(kept,), by=ANNA, changes=changes))
    assert job(state, kept).held is Hold.DEPENDENCY
    ask(state, Update(jobs=(kept,), by=ANNA, changes={"dependencies": {}}))
    assert job(state, kept).held is None


def test_a_change_of_something_else_does_not_ask_for_parents_again() -> None:
    """A parent that was forgotten after it let the job go must not block a new priority."""
    state = queue()
    parent = submit(state)
    child = submit(state, dependencies=after_ok(parent), retries=1)
    for id_ in (parent, child):
        place(state, id_, "mill")
        if id_ == parent:
            finish(state, parent)
    ask(state, Prune(jobs=(parent,), by=ANNA))
    reported(state, child, "ended", exit=Exit(code=1))
    assert ask(state, Update(jobs=(child,), by=ANNA, changes={"priority": 3})).kinds() == ["JobUpdated"]


# --- prune and forgetting -------------------------------------------------------------------------------


def test_only_ended_jobs_that_nobody_waits_for_can_be_forgotten() -> None:
    """A waiting child is named in the refusal."""
    state = queue()
    parent = submit(state)
    refused(state, Prune(jobs=(parent,), by=ANNA), Refused)
    place(state, parent, "mill")
    finish(state, parent)
    child = submit(state, dependencies=after_ok(parent), held=Hold.USER)
    assert child in refused(state, Prune(jobs=(parent,), by=ANNA), Refused).message
    ask(state, Cancel(jobs=(child,), by=ANNA))
    ask(state, Prune(jobs=(parent, child), by=ANNA))
    assert not state.jobs
    refused(state, Prune(jobs=(parent,), by=TOM), NotFound)


def test_the_oldest_ended_jobs_leave_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only beyond the number kept, and never one that a waiting job depends on."""
    monkeypatch.setattr(decide, "KEEP_ENDED", 2)
    state = queue()
    ended = [submit(state) for _ in range(5)]
    for id_ in ended:
        place(state, id_, "mill")
        finish(state, id_)
    submit(state, dependencies=after_ok(ended[0]), held=Hold.USER)
    done = ask(state, Tick())
    assert done.kinds() == ["JobsForgotten"]
    assert [id_ for id_ in ended if id_ in state.jobs] == [ended[0], *ended[3:]]


def test_an_array_leaves_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a dependency on the array would not see the failure of a task that has left."""
    monkeypatch.setattr(decide, "KEEP_ENDED", 2)
    state = queue()
    array = submit(state, tasks=4)
    for task in range(4):
        place(state, f"{array}_{task}", "mill")
        finish(state, f"{array}_{task}", code=1 if task == 0 else 0)
    assert ask(state, Tick()).kinds() == []
    for _ in range(2):
        single = submit(state)
        place(state, single, "mill")
        finish(state, single)
    assert ask(state, Tick()).kinds() == ["JobsForgotten"]
    assert state.members(array) == ()
    assert len(state.jobs) == 2
