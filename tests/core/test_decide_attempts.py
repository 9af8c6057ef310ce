"""What reports about attempts lead to: how each way to end is called, who runs again, what the node is told."""

from __future__ import annotations

from typing import Any

import pytest

from gpuq.core.events import (
    AttemptEnded,
    FenceAttempt,
    JobPlaced,
    ReleaseAttempt,
    StartAttempt,
    StopAttempt,
    StrayFound,
    StrayGone,
)
from gpuq.core.model import AttemptId, Exit, GpuUuid, Hold, JobId, NodeName, Placement, Reach
from gpuq.core.requests import AttemptReport, Cancel, DeclareDead, NodeReached, Place, Requeue, Tick
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from tests.builders import WALL_S, cluster, job, node, place, stamp, submit
from tests.core.machine_step import ANNA, ROOT, ask, attempt_of, reported

S, R = JobState, Reason
MILL = NodeName("mill")
STRAY = AttemptId("stray")


def running(**fields: Any) -> tuple[ClusterState, JobId]:
    """One node of two GPUs with one running job."""
    state = cluster(node("mill", "A100:2"))
    id_ = submit(state, **fields)
    place(state, id_, "mill")
    return state, id_


def stray_report(phase: str, **fields: Any) -> AttemptReport:
    """A word about an attempt that no job owns."""
    return AttemptReport(node=MILL, attempt=STRAY, phase=phase, **fields)


# --- how an end is called -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "state", "reason"),
    [
        ({"status": "exited", "exit": Exit(code=0)}, S.COMPLETED, R.NONE),
        ({"status": "exited", "exit": Exit(code=3)}, S.FAILED, R.NON_ZERO_EXIT_CODE),
        ({"status": "signaled", "exit": Exit(signal=11)}, S.FAILED, R.RAISED_SIGNAL),
        ({"status": "not_started", "exit": Exit(error="no such directory")}, S.FAILED, R.LAUNCH_FAILED),
        ({"status": "signaled", "reason": "timeout", "exit": Exit(signal=15)}, S.TIMEOUT, R.TIME_LIMIT),
        ({"status": "signaled", "reason": "out_of_memory", "exit": Exit(signal=9)}, S.OUT_OF_MEMORY, R.OUT_OF_MEMORY),
        ({"status": "signaled", "reason": "preempt", "exit": Exit(signal=15)}, S.PREEMPTED, R.PREEMPTED),
        ({"status": "signaled", "reason": "cancel", "exit": Exit(signal=15)}, S.CANCELLED, R.CANCELLED_BY_ADMIN),
        ({"status": "exited", "reason": "of a newer agent", "exit": Exit(code=0)}, S.COMPLETED, R.NONE),
        ({"status": "exited", "exit": Exit()}, S.NODE_FAIL, R.SHIM_LOST),
        ({"status": "exited"}, S.NODE_FAIL, R.SHIM_LOST),
    ],
)
def test_an_exit_record_names_the_final_state(report: dict[str, Any], state: JobState, reason: Reason) -> None:
    """The state follows from the record alone; what nobody saw is never a success."""
    queue, id_ = running()
    reported(queue, id_, "ended", **report)
    ended = job(queue, id_)
    assert (ended.state, ended.reason) == (state, reason)
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.signal) == (
        report.get("exit", Exit()).code, report.get("exit", Exit()).signal
    )  # fmt: skip
    assert not queue.owners


@pytest.mark.parametrize(
    ("phase", "fields", "reason"),
    [
        ("lost", {}, R.SHIM_LOST),
        ("lost", {"rebooted": True}, R.NODE_REBOOTED),
        ("fenced", {}, R.EVIDENCE_LOST),
    ],
)
def test_an_end_that_nobody_saw_is_unknown(phase: str, fields: dict[str, Any], reason: Reason) -> None:
    """The job ends as NODE_FAIL without an exit code, and does not run again unasked."""
    state, id_ = running(retries=3)
    reported(state, id_, phase, **fields)
    ended = job(state, id_)
    assert (ended.state, ended.reason) == (S.NODE_FAIL, reason)
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.signal) == (None, None)


# --- who runs again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "phase", "fields", "again"),
    [
        ({"retries": 1}, "ended", {"status": "exited", "exit": Exit(code=1)}, True),
        ({"retries": 1}, "ended", {"status": "not_started", "exit": Exit(error="x")}, True),
        ({"retries": 1}, "ended", {"reason": "out_of_memory", "exit": Exit(signal=9)}, True),
        ({"retries": 1}, "ended", {"status": "exited", "exit": Exit(code=0)}, False),
        ({"retries": 1}, "ended", {"reason": "timeout", "exit": Exit(signal=15)}, False),
        ({"retries": 1}, "lost", {}, False),
        ({"requeue": True}, "ended", {"status": "exited", "exit": Exit(code=1)}, False),
        ({"requeue": True}, "lost", {}, True),
        ({"requeue": True}, "lost", {"rebooted": True}, True),
        ({"requeue": True}, "fenced", {}, False),
        ({"requeue": True}, "ended", {"reason": "preempt", "exit": Exit(signal=15)}, True),
        ({}, "ended", {"status": "exited", "exit": Exit(code=1)}, False),
        ({}, "lost", {"rebooted": True}, False),
    ],
)
def test_only_what_was_allowed_runs_again(
    asked: dict[str, Any], phase: str, fields: dict[str, Any], again: bool
) -> None:
    """retries are for the job's own failures, requeue for lost nodes and evictions; neither is implied."""
    state, id_ = running(**asked)
    reported(state, id_, phase, **fields)
    assert (job(state, id_).state is S.PENDING) == again


@pytest.mark.parametrize("fields", [{"exit": Exit(code=1)}, {"reason": "out_of_memory", "exit": Exit(signal=9)}])
def test_a_cancelled_job_that_fails_first_is_not_retried(fields: dict[str, Any]) -> None:
    """It ended by itself before the order reached it, and the cancel still counts."""
    state, id_ = running(retries=5)
    ask(state, Cancel(jobs=(id_,), by=ANNA))
    reported(state, id_, "ended", **fields)
    assert job(state, id_).state.is_final


@pytest.mark.parametrize(
    ("phase", "fields"),
    [
        ("ended", {"status": "exited", "exit": Exit(code=0)}),
        ("ended", {"status": "exited", "exit": Exit(code=1)}),
        ("ended", {"reason": "requeue", "exit": Exit(signal=15)}),
        ("ended", {"reason": "timeout", "exit": Exit(signal=15)}),
        ("lost", {}),
        ("fenced", {}),
    ],
)
def test_a_requeued_running_job_runs_again_however_it_ends(phase: str, fields: dict[str, Any]) -> None:
    """A person asked for it, it is known dead, and none of its retries is used up; a wanted hold is kept."""
    state, id_ = running()
    ask(state, Requeue(jobs=(id_,), by=ANNA, hold=True))
    reported(state, id_, phase, **fields)
    again = job(state, id_)
    assert (again.state, again.failures, again.held) == (S.PENDING, 0, Hold.USER)


def test_retries_wait_longer_each_time_and_then_stop() -> None:
    """The back-off doubles, and after the last retry the failure is final."""
    state, id_ = running(retries=2)
    waits = []
    for at in (0.0, 1000.0):
        reported(state, id_, "ended", at=at, exit=Exit(code=1))
        not_before_at = job(state, id_).not_before_at
        assert not_before_at is not None
        waits.append(not_before_at - WALL_S - at)
        place(state, id_, "mill", at=at + 500)
    assert waits == [1.0, 2.0]
    reported(state, id_, "ended", exit=Exit(code=1))
    assert job(state, id_).state is S.FAILED


def test_a_clock_set_back_does_not_stretch_a_back_off() -> None:
    """A year back on the wall clock must not delay the retry by a year."""
    state, id_ = running(retries=1)
    reported(state, id_, "ended", at=3.2e7, exit=Exit(code=1))
    ask(state, Tick(), at=0.0)
    assert job(state, id_).not_before_at is None


def test_a_begin_time_is_not_taken_for_a_back_off() -> None:
    """What a person asked for stays, however far away."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, begin_at=WALL_S + 1e6)
    ask(state, Tick())
    assert job(state, id_).not_before_at == WALL_S + 1e6


def test_a_fence_proves_that_a_job_never_began() -> None:
    """Told to stop before it was begun: it ends as the order says; fenced without an order, it waits again."""
    state = cluster(node("mill", "A100:2"))
    stopped, other = submit(state), submit(state)
    for id_ in (stopped, other):
        place(state, id_, "mill", started=False)
    ask(state, Cancel(jobs=(stopped,), by=ROOT))
    reported(state, stopped, "fenced")
    assert (job(state, stopped).state, job(state, stopped).reason) == (S.CANCELLED, R.CANCELLED_BY_ADMIN)
    reported(state, other, "fenced")
    assert job(state, other).state is S.PENDING


# --- reports about what lives ---------------------------------------------------------------------------


def test_a_report_of_running_starts_the_job_once() -> None:
    """The second one changes nothing, and no report is answered with an order that would bring another report."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state)
    place(state, id_, "mill", started=False)
    assert reported(state, id_, "running", started_at=WALL_S + 5, shim_pid=7).kinds() == ["AttemptStarted"]
    attempt = job(state, id_).attempt
    assert attempt is not None
    assert (attempt.started_at, attempt.shim_pid) == (WALL_S + 5, 7)
    assert reported(state, id_, "running").kinds() == []
    ask(state, Cancel(jobs=(id_,), by=ANNA))
    assert reported(state, id_, "running").kinds() == []


def test_an_ending_attempt_keeps_its_gpus() -> None:
    """Until nothing of it lives; processes that cannot be killed are named."""
    state, id_ = running()
    assert reported(state, id_, "ending").kinds() == ["AttemptEnding"]
    assert reported(state, id_, "ending").kinds() == []
    assert reported(state, id_, "ending", unkillable=(66,)).kinds() == ["AttemptEnding"]
    ended = job(state, id_)
    assert ended.attempt is not None
    assert (ended.state, ended.attempt.unkillable) == (S.COMPLETING, (66,))
    assert len(state.owners) == 1


def test_an_attempt_first_heard_of_while_ending_counts_as_started() -> None:
    """The report of its start was lost: both events follow."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state)
    place(state, id_, "mill", started=False)
    assert reported(state, id_, "ending").kinds() == ["AttemptStarted", "AttemptEnding"]


@pytest.mark.parametrize("phase", ["absent", "starting"])
def test_a_running_attempt_that_the_spool_has_lost_is_fenced(phase: str) -> None:
    """It is never started again; the answer to the fence will tell that nothing of it lives."""
    state, id_ = running()
    done = reported(state, id_, phase)
    assert done.kinds() == ["FenceAttempt"]
    assert job(state, id_).state is S.RUNNING


@pytest.mark.parametrize("phase", ["absent", "starting"])
def test_an_attempt_that_is_being_started_is_left_alone(phase: str) -> None:
    """The agent sees to it; a second order for each report would go on for ever."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state)
    place(state, id_, "mill", started=False)
    assert reported(state, id_, phase).kinds() == []
    ask(state, Cancel(jobs=(id_,), by=ANNA))
    assert reported(state, id_, phase).kinds() == ["FenceAttempt"]


def test_a_report_from_another_node_is_ignored() -> None:
    """It is noted, and ends nothing."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    id_ = submit(state)
    place(state, id_, "mill")
    done = reported(state, id_, "lost", node=NodeName("attic"))
    assert done.kinds() == []
    assert "attic" in done.notes[0]
    assert job(state, id_).state is S.RUNNING


# --- reports about what no job owns ---------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["ended", "lost", "fenced"])
def test_what_is_over_is_released(phase: str) -> None:
    """The end is known here, or of no interest: the spool entry may go."""
    done = ask(cluster(node("mill", "A100")), stray_report(phase))
    assert done.kinds() == ["ReleaseAttempt"]


def test_what_is_absent_needs_no_release() -> None:
    """The agent answers a release with 'absent', so an answer to that would never end."""
    assert ask(cluster(node("mill", "A100")), stray_report("absent")).kinds() == []


def test_a_living_stray_keeps_its_gpus_until_it_ends() -> None:
    """It is noted, left running, asked about once, and released when it has ended."""
    state = cluster(node("mill", "A100:2"))
    gpus = (GpuUuid("GPU-mill-1"),)
    done = ask(state, stray_report("running", job=JobId("9"), gpus=gpus))
    assert done.only(StrayFound).gpus == gpus
    assert done.only(FenceAttempt).attempt == STRAY
    assert "9" in done.notes[0]
    assert state.owners == dict.fromkeys(gpus, STRAY)
    assert ask(state, stray_report("running", gpus=gpus)).kinds() == []
    done = ask(state, stray_report("ended"))
    assert done.only(StrayGone)
    assert done.only(ReleaseAttempt).attempt == STRAY
    assert not state.owners


def test_a_late_report_of_an_ended_attempt_does_not_keep_gpus() -> None:
    """It looks like a stray; the fence that asks about it finds nothing, and that ends it."""
    state, id_ = running()
    attempt = attempt_of(job(state, id_))
    reported(state, id_, "ended", exit=Exit(code=0))
    late = AttemptReport(node=MILL, attempt=attempt, phase="running")
    assert ask(state, late).only(FenceAttempt).attempt == attempt
    ask(state, AttemptReport(node=MILL, attempt=attempt, phase="fenced"))
    assert (state.strays, state.owners) == ({}, {})
    assert job(state, id_).state is S.COMPLETED


def test_a_stray_without_a_directory_is_fenced_before_its_gpus_are_free() -> None:
    """A spool that was emptied proves nothing about processes."""
    state = cluster(node("mill", "A100"))
    ask(state, stray_report("running", gpus=(GpuUuid("GPU-mill-0"),)))
    assert ask(state, stray_report("absent")).kinds() == ["FenceAttempt"]
    assert state.owners


def test_an_attempt_given_up_is_ended_when_its_node_answers_again() -> None:
    """Its GPUs are free only when the node has said that nothing of it lives."""
    state, id_ = running(requeue=True)
    attempt = attempt_of(job(state, id_))
    ask(state, NodeReached(node=MILL, reach=Reach.SUSPECT))
    ask(state, DeclareDead(node=MILL, by=ROOT))
    assert job(state, id_).state is S.PENDING
    stop = ask(state, NodeReached(node=MILL, reach=Reach.UP)).only(StopAttempt)
    assert (stop.attempt, stop.grace_s) == (attempt, 0.0)
    assert set(state.owners.values()) == {attempt}
    ask(state, AttemptReport(node=MILL, attempt=attempt, phase="running"))
    assert ask(state, AttemptReport(node=MILL, attempt=attempt, phase="ended")).only(ReleaseAttempt)
    assert (state.owners, state.given_up) == ({}, {})


# --- placements -----------------------------------------------------------------------------------------


def test_a_placement_that_fits_is_started() -> None:
    """The event names the attempt and its GPUs, and the node is told."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state)
    wanted = Placement(job=id_, node=MILL, gpus=(GpuUuid("GPU-mill-0"),))
    done = ask(state, Place(placement=wanted, attempt=AttemptId("a")))
    assert done.only(JobPlaced).gpus == wanted.gpus
    assert done.only(StartAttempt).attempt == "a"


def test_a_placement_that_no_longer_fits_is_dropped_with_a_note() -> None:
    """Plans are made off the loop: the job may be gone, held or running, or the GPU taken."""
    state, id_ = running()
    wanted = Placement(job=id_, node=MILL, gpus=(GpuUuid("GPU-mill-1"),))
    gone = Placement(job=JobId("99"), node=MILL)
    taken = Placement(job=submit(state), node=MILL, gpus=(GpuUuid("GPU-mill-0"),))
    for each in (wanted, gone, taken):
        done = ask(state, Place(placement=each, attempt=AttemptId("b")))
        assert done.kinds() == []
        assert each.job in done.notes[0]


def test_an_end_is_dated_by_the_node_or_else_by_now() -> None:
    """The node's word about the time is kept when there is one."""
    state, id_ = running()
    done = reported(state, id_, "ended", exit=Exit(code=0), ended_at=WALL_S - 7)
    assert done.only(AttemptEnded).ended_at == WALL_S - 7
    state, id_ = running()
    assert reported(state, id_, "lost", at=9.0).only(AttemptEnded).ended_at == stamp(9.0).wall_s
