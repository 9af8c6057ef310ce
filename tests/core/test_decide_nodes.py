"""What follows when agents say hello, links come and go, GPUs change, and administrators speak of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from gpuq.core.events import AttemptEnding, FenceAttempt, NodeChanged, StartAttempt, StopAttempt
from gpuq.core.model import Exit, GpuUuid, Health, JobId, Node, NodeName, Reach
from gpuq.core.requests import (
    AttemptReport,
    Cancel,
    DeclareDead,
    DrainNode,
    GpusSeen,
    NodeReached,
    NodeReady,
    Requeue,
    ResumeNode,
)
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.errors import Forbidden, NotFound, Refused
from tests.builders import cluster, drain, job, node, place, submit
from tests.core.machine_step import ANNA, ROOT, ask, attempt_of, report, reported

MILL = NodeName("mill")


def mill(**fields: Any) -> Node:
    """The node of these tests."""
    return node("mill", "A100:2", **fields)


def with_job(started: bool = True, **fields: Any) -> tuple[ClusterState, JobId]:
    """A state with one placed job."""
    state = cluster(mill())
    id_ = submit(state, **fields)
    place(state, id_, "mill", started=started)
    return state, id_


def test_a_first_hello_makes_the_node_known() -> None:
    """It is described, and nothing else happens."""
    done = ask(ClusterState(), NodeReady(node=mill()))
    assert done.only(NodeChanged).node == mill()


def test_a_second_equal_hello_writes_nothing() -> None:
    """Agents come and go; the journal must not grow with them."""
    assert ask(cluster(mill()), NodeReady(node=mill())).kinds() == []


def test_an_attempt_whose_start_was_lost_is_started() -> None:
    """The same spool knows nothing of it: it never began, so it begins now, under the same id."""
    state, id_ = with_job(started=False)
    done = ask(state, NodeReady(node=mill()))
    assert done.only(StartAttempt).attempt == attempt_of(job(state, id_))


def test_an_attempt_that_was_asked_for_but_not_claimed_is_asked_for_again() -> None:
    """Its shim may have died with the old agent."""
    state, id_ = with_job(started=False)
    done = ask(state, NodeReady(node=mill(), attempts=(report(state, id_, "starting"),)))
    assert done.kinds() == ["StartAttempt"]


def test_a_lost_stop_order_is_repeated() -> None:
    """The same reason and grace as before."""
    state, id_ = with_job()
    ask(state, Cancel(jobs=(id_,), by=ANNA, grace_s=3.0))
    for phase in ("running", "ending"):
        done = ask(state, NodeReady(node=mill(), attempts=(report(state, id_, phase),)))
        assert (done.only(StopAttempt).reason, done.only(StopAttempt).grace_s) == ("cancel", 3.0)


def test_a_stopped_attempt_that_never_arrived_is_fenced() -> None:
    """It must not be started only to be ended."""
    state, id_ = with_job(started=False)
    ask(state, Requeue(jobs=(id_,), by=ANNA))
    assert ask(state, NodeReady(node=mill())).kinds() == ["FenceAttempt"]


def test_an_end_that_happened_meanwhile_is_taken() -> None:
    """Results produced without a daemon are complete afterwards."""
    state, id_ = with_job()
    ended = report(state, id_, "ended", status="exited", exit=Exit(code=0, run_s=9.0))
    assert ask(state, NodeReady(node=mill(), attempts=(ended,))).kinds() == ["AttemptEnded", "ReleaseAttempt"]
    assert job(state, id_).state is JobState.COMPLETED


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("boot", ["boot-mill", "another"])
def test_a_new_spool_is_never_proof_that_nothing_ran(started: bool, boot: str) -> None:
    """The attempt is fenced, also after a second hello, and ends with its exit unknown; it is never started again."""
    state, id_ = with_job(started=started, requeue=True)
    renewed = mill(spool_id="new", boot_id=boot)
    done = ask(state, NodeReady(node=renewed))
    assert done.only(FenceAttempt).attempt == attempt_of(job(state, id_))
    assert done.only(AttemptEnding).job == id_
    assert id_ in done.notes[0]
    assert state.owners
    assert ask(state, NodeReady(node=renewed)).kinds() == ["FenceAttempt"]
    reported(state, id_, "fenced")
    ended = job(state, id_)
    assert (ended.state, ended.reason) == (JobState.NODE_FAIL, Reason.EVIDENCE_LOST)
    assert not state.owners


def test_an_attempt_found_in_a_new_spool_goes_on() -> None:
    """What reports itself has its evidence with it."""
    state, id_ = with_job()
    done = ask(state, NodeReady(node=mill(spool_id="new"), attempts=(report(state, id_, "running"),)))
    assert done.kinds() == ["NodeChanged"]
    assert job(state, id_).state is JobState.RUNNING


def test_jobs_of_other_nodes_are_not_looked_for() -> None:
    """A hello speaks for one node only."""
    state = cluster(mill(), node("attic", "V100"))
    id_ = submit(state)
    place(state, id_, "mill")
    assert ask(state, NodeReady(node=node("attic", "V100"))).kinds() == []
    assert ask(state, NodeReady(node=node("attic", "V100", spool_id="new"))).kinds() == ["NodeChanged"]


@pytest.mark.parametrize("how", [Reach.SUSPECT, Reach.UNREACHABLE])
def test_cannot_reach_is_never_dead(how: Reach) -> None:
    """The job stays as it is and keeps its GPUs."""
    state, id_ = with_job(requeue=True)
    assert ask(state, NodeReached(node=MILL, reach=how)).kinds() == ["ReachChanged"]
    assert ask(state, NodeReached(node=MILL, reach=how)).kinds() == []
    assert job(state, id_).state is JobState.RUNNING
    assert state.owners


def test_a_link_to_an_unknown_node_is_no_news() -> None:
    """A node that was never seen has no record to change."""
    assert ask(ClusterState(), NodeReached(node=MILL, reach=Reach.UNREACHABLE)).kinds() == []


def test_only_an_administrator_declares_a_silent_node_dead() -> None:
    """Not anybody, and not while the node answers."""
    state, id_ = with_job()
    with pytest.raises(Refused) as caught:
        ask(state, DeclareDead(node=MILL, by=ROOT))
    assert "mill" in caught.value.message
    ask(state, NodeReached(node=MILL, reach=Reach.UNREACHABLE))
    with pytest.raises(Forbidden):
        ask(state, DeclareDead(node=MILL, by=ANNA))
    assert job(state, id_).state is JobState.RUNNING


@pytest.mark.parametrize(
    ("fields", "verb", "after"),
    [
        ({}, None, JobState.NODE_FAIL),
        ({"retries": 4}, None, JobState.NODE_FAIL),
        ({"requeue": True}, None, JobState.PENDING),
        ({"requeue": True}, Cancel, JobState.NODE_FAIL),
        ({}, Requeue, JobState.PENDING),
    ],
)
def test_a_dead_node_ends_its_jobs(fields: dict[str, Any], verb: Any, after: JobState) -> None:
    """Those that allow it, or were asked to, run again; a cancelled one does not. The word and its giver are kept."""
    state, id_ = with_job(**fields)
    if verb is not None:
        ask(state, verb(jobs=(id_,), by=ANNA))
    ask(state, NodeReached(node=MILL, reach=Reach.UNREACHABLE))
    ask(state, DeclareDead(node=MILL, by=ROOT))
    ended = job(state, id_)
    assert (ended.state, ended.reason) == (after, Reason.NODE_DECLARED_DEAD)
    assert ended.message is not None
    assert "root" in ended.message


@pytest.mark.parametrize(
    ("phase", "told"),
    [("running", "StopAttempt"), ("starting", "StopAttempt"), ("ended", "ReleaseAttempt"), (None, "FenceAttempt")],
)
def test_a_dead_node_that_comes_back_is_cleaned_before_it_is_used(phase: str | None, told: str) -> None:
    """Its GPUs stay taken until the node itself reports the end of each attempt that was given up."""
    state, id_ = with_job()
    attempt = attempt_of(job(state, id_))
    ask(state, NodeReached(node=MILL, reach=Reach.UNREACHABLE))
    ask(state, DeclareDead(node=MILL, by=ROOT))
    reports = (AttemptReport(node=MILL, attempt=attempt, phase=phase),) if phase else ()
    done = ask(state, NodeReady(node=mill(), attempts=reports))
    assert told in done.kinds()
    assert bool(state.owners) == (phase != "ended")
    ask(state, AttemptReport(node=MILL, attempt=attempt, phase="fenced"))
    assert (state.owners, state.strays, state.given_up) == ({}, {}, {})


def test_a_gpu_that_is_no_longer_listed_stays_as_lost() -> None:
    """Nobody should have to wonder where it went; the job that holds it is named."""
    state, id_ = with_job()
    done = ask(state, GpusSeen(node=MILL, gpus=mill().gpus[1:]))
    found = {gpu.uuid: gpu.health for gpu in state.nodes[MILL].gpus}
    assert found == {GpuUuid("GPU-mill-0"): Health.LOST, GpuUuid("GPU-mill-1"): Health.OK}
    assert id_ in done.notes[0]
    assert job(state, id_).state is JobState.RUNNING


def test_a_simulated_gpu_goes_with_the_configuration() -> None:
    """Unless an attempt holds it."""
    state = cluster(mill(driver="simulated"))
    place(state, submit(state), "mill", (GpuUuid("GPU-mill-0"),))
    ask(state, GpusSeen(node=MILL, gpus=()))
    assert [gpu.uuid for gpu in state.nodes[MILL].gpus] == ["GPU-mill-0"]


def test_equal_gpus_are_no_news() -> None:
    """Samples come every second; only changes are events."""
    state = cluster(mill())
    assert ask(state, GpusSeen(node=MILL, gpus=mill().gpus)).kinds() == []
    assert ask(state, GpusSeen(node=NodeName("unknown"), gpus=())).kinds() == []
    assert ask(state, GpusSeen(node=MILL, gpus=mill().gpus, driver_error="gone")).kinds() == ["GpusChanged"]


def test_a_drain_needs_a_reason_and_an_administrator() -> None:
    """And a node that exists; the error names those that do."""
    state = cluster(mill())
    with pytest.raises(Refused):
        ask(state, DrainNode(node=MILL, reason="  ", by=ROOT))
    with pytest.raises(Forbidden):
        ask(state, DrainNode(node=MILL, reason="fan", by=ANNA))
    with pytest.raises(NotFound) as caught:
        ask(state, DrainNode(node=NodeName("mull"), reason="fan", by=ROOT))
    assert "mill" in (caught.value.hint or "")
    assert state.nodes[MILL].drain is None


def test_a_drained_node_works_again_after_a_resume() -> None:
    """What runs there goes on meanwhile; a second resume is no news."""
    state, id_ = with_job()
    drain(state, "mill")
    assert job(state, id_).state is JobState.RUNNING
    assert ask(state, ResumeNode(node=MILL, by=ROOT)).kinds() == ["NodeResumed"]
    assert ask(state, ResumeNode(node=MILL, by=ROOT)).kinds() == []
