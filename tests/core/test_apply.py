"""What each event does to the records and indexes, and which actions follow."""

from __future__ import annotations

import typing
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gpuq.core import apply as apply_module
from gpuq.core import memory as memory_module
from gpuq.core.apply import apply
from gpuq.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptEnding,
    AttemptStarted,
    IdsSkipped,
    JobHeld,
    JobPlaced,
    JobReleased,
    JobRequeued,
    JobsForgotten,
    JobSignalled,
    JobUpdated,
    NodeChanged,
    ReleaseAttempt,
    SetLimit,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
    StopOrdered,
    StrayFound,
    StrayGone,
)
from gpuq.core.invariants import check_invariants
from gpuq.core.model import AttemptId, Exit, GpuUuid, Hold, JobId, NodeName, StopKind, StopOrder
from gpuq.core.snapshot import to_bytes
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.errors import IllegalTransition, InternalError, InvariantBroken
from tests.builders import WALL_S, cluster, drain, finish, job, node, place, spec, stamp, submit, tell

MILL = NodeName("mill")
GPU_0, GPU_1 = GpuUuid("GPU-mill-0"), GpuUuid("GPU-mill-1")


def queue() -> ClusterState:
    """A node with two GPUs."""
    return cluster(node("mill", "A100:2"))


def ended(id_: JobId, attempt: AttemptId, **fields: typing.Any) -> AttemptEnded:
    """A good end, unless fields say otherwise."""
    given: dict[str, typing.Any] = {
        "state": JobState.COMPLETED, "reason": Reason.NONE, "exit": Exit(code=0, run_s=60.0), "ended_at": WALL_S,
    }  # fmt: skip
    return AttemptEnded(job=id_, attempt=attempt, **(given | fields))


def test_every_event_has_a_rule() -> None:
    """A kind of event that apply does not know would make a journal that cannot be replayed."""
    assert set(apply_module._APPLY) == set(typing.get_args(AnyEvent))


def test_what_is_no_event_is_a_fault() -> None:
    """Anything else is refused as a fault of gpuq itself."""
    with pytest.raises(InternalError):
        apply(queue(), StartAttempt(node=MILL, attempt=AttemptId("a"), job=JobId("1")), stamp())  # type: ignore[arg-type]


def test_a_submit_makes_one_job_per_task_and_shares_the_spec() -> None:
    """Ids and order rise, and ten thousand tasks would keep one spec."""
    state = queue()
    first = submit(state)
    array = submit(state, tasks=3)
    tasks = [job(state, id_) for id_ in state.tasks[array]]
    assert [each.id for each in tasks] == [f"{array}_{task}" for task in range(3)]
    assert [each.order for each in tasks] == [job(state, first).order + 1 + task for task in range(3)]
    assert all(each.spec is tasks[0].spec for each in tasks)
    assert state.next_id == int(array) + 1


def test_skipped_ids_are_never_given_out() -> None:
    """The next job gets at least the named id, and a smaller number changes nothing."""
    state = queue()
    tell(state, IdsSkipped(next_id=40), IdsSkipped(next_id=7))
    assert submit(state) == "40"


def test_a_placement_takes_gpus_and_starts_the_attempt() -> None:
    """From the event on the GPUs belong to the attempt; attempts are numbered from 0."""
    state = queue()
    id_ = submit(state)
    event = JobPlaced(job=id_, attempt=AttemptId("a"), node=MILL, gpus=(GPU_1,))
    assert apply(state, event, stamp(5)) == [StartAttempt(node=MILL, attempt=AttemptId("a"), job=id_)]
    placed = job(state, id_)
    assert placed.attempt is not None
    assert (placed.state, placed.attempt.number, placed.attempt.placed_steady_s) == (JobState.CONFIGURING, 0, 5)
    assert state.owners == {GPU_1: "a"}
    assert not state.waiting


def test_a_gpu_has_one_owner() -> None:
    """A placement on a GPU that is taken is a fault, and changes nothing."""
    state = queue()
    first, second = submit(state), submit(state)
    place(state, first, "mill", (GPU_0,))
    before = to_bytes(state)
    with pytest.raises(InvariantBroken):
        apply(state, JobPlaced(job=second, attempt=AttemptId("b"), node=MILL, gpus=(GPU_0,)), stamp())
    assert to_bytes(state) == before


def test_an_illegal_step_changes_nothing() -> None:
    """What the table forbids raises before anything is written."""
    state = queue()
    id_ = submit(state)
    attempt = place(state, id_, "mill")
    before = to_bytes(state)
    for event in (
        JobPlaced(job=id_, attempt=AttemptId("b"), node=MILL, gpus=(GPU_1,)),
        AttemptStarted(job=id_, attempt=attempt, started_at=WALL_S),
        JobRequeued(job=id_),
    ):
        with pytest.raises(IllegalTransition):
            apply(state, event, stamp())
        assert to_bytes(state) == before


def test_a_stop_order_keeps_the_gpus() -> None:
    """Telling an attempt to end frees nothing; the node is told, with the grace."""
    state = queue()
    id_ = submit(state)
    attempt = place(state, id_, "mill")
    order = StopOrder(kind=StopKind.CANCEL, by="anna", at=WALL_S, grace_s=4.0)
    actions = apply(state, StopOrdered(job=id_, attempt=attempt, stop=order), stamp())
    assert actions == [StopAttempt(node=MILL, attempt=attempt, reason="cancel", grace_s=4.0)]
    tell(state, AttemptEnding(job=id_, attempt=attempt, unkillable=(99,)))
    assert job(state, id_).state is JobState.COMPLETING
    assert set(state.owners.values()) == {attempt}


def test_an_end_frees_the_gpus_and_lets_the_spool_go() -> None:
    """The job has its final state and exit, the GPUs are free, the run time is remembered."""
    state = queue()
    id_ = submit(state)
    attempt = place(state, id_, "mill")
    assert apply(state, ended(id_, attempt), stamp()) == [ReleaseAttempt(node=MILL, attempt=attempt)]
    check_invariants(state)
    assert (job(state, id_).state, job(state, id_).exit) == (JobState.COMPLETED, Exit(code=0, run_s=60.0))
    assert not state.owners
    assert state.memory.history == {("anna", "train"): (60.0,)}


def test_run_times_are_kept_as_on_the_reference_gpu() -> None:
    """An hour on a GPU of half the speed counts as half an hour; only so many are kept."""
    state = cluster(node("attic", "V100:1"))
    for run in range(25):
        id_ = submit(state)
        place(state, id_, "attic")
        finish(state, id_, run_s=100.0 + run)
    kept = state.memory.history[("anna", "train")]
    assert len(kept) == 20
    assert kept[-1] == (100.0 + 24) * 0.5


def test_names_without_history_share_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a name that has run times gets a queue of its own, and shares again when its run times are forgotten."""
    monkeypatch.setattr(memory_module, "HISTORY_NAMES", 2)
    state = cluster(node("mill", "A100:8"))
    ids = [submit(state, name=name) for name in ("vit", "bert", "vit", "unet")]
    assert list(map(list, state.waiting.values())) == [ids]
    state.set_history(("anna", "vit"), (60.0,))
    check_invariants(state)
    assert sorted(map(list, state.waiting.values())) == sorted([[ids[1], ids[3]], [ids[0], ids[2]]])
    state.set_history(("anna", "bert"), (60.0,))
    state.set_history(("anna", "vit"), (60.0, 61.0))
    state.set_history(("anna", "unet"), (60.0,))
    check_invariants(state)
    assert list(state.memory.history) == [("anna", "vit"), ("anna", "unet")]
    assert sorted(map(list, state.waiting.values())) == sorted([[ids[1]], [ids[0], ids[2]], [ids[3]]])


def test_an_end_that_runs_again_counts() -> None:
    """Restarts and failures rise, the back-off and the hold are kept, and there is no end time."""
    state = queue()
    id_ = submit(state)
    event = ended(
        id_, place(state, id_, "mill"), state=JobState.PENDING, failed=True, not_before_at=WALL_S + 9, held=Hold.USER
    )
    tell(state, event)
    again = job(state, id_)
    assert (again.restarts, again.failures, again.not_before_at, again.held) == (1, 1, WALL_S + 9, Hold.USER)
    assert again.ended_at is None
    tell(state, JobReleased(job=id_))
    place(state, id_, "mill", at=20)
    attempt = job(state, id_).attempt
    assert attempt is not None
    assert attempt.number == 1


def test_a_requeue_starts_the_count_of_failures_anew() -> None:
    """A person asked, so the job has all its retries again."""
    state = queue()
    id_ = submit(state)
    tell(state, ended(id_, place(state, id_, "mill"), state=JobState.FAILED, failed=True))
    tell(state, JobRequeued(job=id_, held=Hold.USER))
    again = job(state, id_)
    assert (again.state, again.failures, again.restarts, again.held) == (JobState.PENDING, 0, 1, Hold.USER)
    assert id_ not in state.ended


def test_gpus_of_a_dead_node_stay_with_what_may_live_there() -> None:
    """The job ends, but nothing is released or free until the node itself says so."""
    state = queue()
    id_ = submit(state)
    attempt = place(state, id_, "mill", (GPU_0,))
    event = ended(id_, attempt, state=JobState.NODE_FAIL, reason=Reason.NODE_DECLARED_DEAD, exit=Exit(error="dead"))
    assert apply(state, event, stamp()) == []
    check_invariants(state)
    assert state.owners == {GPU_0: attempt}
    assert state.given_up == {attempt: MILL}
    assert apply(state, StrayGone(attempt=attempt), stamp()) == [ReleaseAttempt(node=MILL, attempt=attempt)]
    check_invariants(state)
    assert (state.owners, state.strays, state.given_up) == ({}, {}, {})


def test_a_stray_waits_for_the_gpu_of_a_job() -> None:
    """A stray on a GPU that a job owns gets it when the job ends, and two strays pass it on."""
    state = queue()
    id_ = submit(state)
    attempt = place(state, id_, "mill", (GPU_0,))
    for stray in ("s1", "s2"):
        tell(state, StrayFound(attempt=AttemptId(stray), node=MILL, gpus=(GPU_0,)))
    assert state.owners == {GPU_0: attempt}
    finish(state, id_)
    assert state.owners == {GPU_0: "s1"}
    tell(state, StrayGone(attempt=AttemptId("s1")))
    assert state.owners == {GPU_0: "s2"}
    tell(state, StrayGone(attempt=AttemptId("s2")))
    assert state.owners == {}


def test_an_unknown_stray_is_gone_without_trace() -> None:
    """The end of a stray that nobody knows changes nothing."""
    assert apply(queue(), StrayGone(attempt=AttemptId("x")), stamp()) == []


def test_a_new_time_limit_is_sent_only_to_what_runs() -> None:
    """A waiting job has no attempt to tell; a running one is told once, and only of a change."""
    state = queue()
    waiting, running = submit(state, time_limit_s=60.0), submit(state, time_limit_s=60.0)
    attempt = place(state, running, "mill")
    longer = spec(time_limit_s=90.0)
    assert apply(state, JobUpdated(job=waiting, spec=longer), stamp()) == []
    told = apply(state, JobUpdated(job=running, spec=longer), stamp())
    assert told == [SetLimit(node=MILL, attempt=attempt, time_limit_s=90.0)]
    assert apply(state, JobUpdated(job=running, spec=replace(longer, comment="x")), stamp()) == []
    check_invariants(state)


def test_an_update_moves_a_job_to_another_queue() -> None:
    """The planner's queue follows the spec, and a back-off is over."""
    state = queue()
    id_ = submit(state)
    tell(state, JobUpdated(job=id_, spec=spec(priority=7)))
    assert [shape.priority for shape in state.waiting] == [7]


def test_a_hold_takes_a_job_out_of_the_queue_and_back_to_its_place() -> None:
    """After the release the older job is first again."""
    state = queue()
    first, second = submit(state), submit(state)
    tell(state, JobHeld(job=first, hold=Hold.USER))
    assert [list(each) for each in state.waiting.values()] == [[second]]
    tell(state, JobReleased(job=first))
    assert [list(each) for each in state.waiting.values()] == [[first, second]]


def test_a_signal_goes_to_the_node() -> None:
    """The attempt is named, so that a later one cannot be hit."""
    state = queue()
    id_ = submit(state)
    attempt = place(state, id_, "mill")
    event = JobSignalled(job=id_, attempt=attempt, signal=10, by="anna")
    assert apply(state, event, stamp()) == [SignalAttempt(node=MILL, attempt=attempt, signal=10)]


def test_forgotten_jobs_leave_nothing_behind() -> None:
    """Records, array and the order of ends are gone; the rest of an array stays."""
    state = queue()
    array = submit(state, tasks=2, array_limit=1)
    for task in (f"{array}_0", f"{array}_1"):
        place(state, task, "mill")
        finish(state, task)
    tell(state, JobsForgotten(jobs=(JobId(f"{array}_0"),)))
    assert state.members(array) == (f"{array}_1",)
    tell(state, JobsForgotten(jobs=(JobId(f"{array}_1"),)))
    assert (state.jobs, state.tasks, state.ended) == ({}, {}, {})


def test_keys_outlive_their_jobs_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit repeated after its job was forgotten must not make another; only old keys of forgotten jobs go."""
    monkeypatch.setattr(apply_module, "KEPT_KEYS", 2)
    state = queue()
    ids = []
    for key in ("living", "gone", "newer", "newest"):
        ids.append(submit(state))
        state.keys[key] = ids[-1]
        if key != "living":
            place(state, ids[-1], "mill")
            finish(state, ids[-1])
    tell(state, JobsForgotten(jobs=tuple(ids[1:])))
    assert list(state.keys) == ["living", "newer", "newest"]


def test_a_drain_outlives_a_new_description_of_the_node() -> None:
    """Only a resume ends a drain."""
    state = queue()
    drain(state, "mill")
    tell(state, NodeChanged(node=node("mill", "A100:2", cpus=8)))
    assert state.nodes[MILL].cpus == 8
    assert state.nodes[MILL].drain is not None


def test_tasks_of_one_array_may_have_limits_of_their_own() -> None:
    """Lowering the limit of a waiting task while others run is no contradiction; one task too many is."""
    state = queue()
    array = submit(state, tasks=3, array_limit=2, gpus=0)
    place(state, f"{array}_0", "mill")
    place(state, f"{array}_1", "mill")
    waiting = job(state, f"{array}_2")
    tell(state, JobUpdated(job=waiting.id, spec=replace(waiting.spec, array_limit=1)))
    tell(state, JobUpdated(job=waiting.id, spec=waiting.spec))
    with pytest.raises(InvariantBroken):
        place(state, waiting.id, "mill")


def test_the_invariants_notice_a_wrong_index() -> None:
    """Each index is computed anew; the check must not pass on a damaged one."""
    damages: tuple[Callable[[ClusterState], object], ...] = (
        lambda state: state.owners.clear(),
        lambda state: state.attempts.clear(),
        lambda state: state.waiting.clear(),
        lambda state: state.used_cpus.update({MILL: 5}),
        lambda state: state.ended.update({JobId("9"): None}),
        lambda state: state.unmet.add(JobId("9")),
        lambda state: state.children.update({JobId("9"): {JobId("1")}}),
    )
    for damage in damages:
        state = queue()
        submit(state)
        place(state, submit(state), "mill")
        check_invariants(state)
        damage(state)
        with pytest.raises(InvariantBroken):
            check_invariants(state)
