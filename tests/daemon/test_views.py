"""Records as the objects people and scripts read: unknown is null, states in Slurm's words, no secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuq.core.events import AttemptEnding, StrayFound
from gpuq.core.model import (
    AttemptId,
    Dependencies,
    Dependency,
    DependencyKind,
    Foreign,
    GpuUuid,
    Health,
    Hold,
    JobId,
    JobSpec,
    NodeName,
    Reach,
    Resources,
)
from gpuq.core.plan import Plan, Start
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.daemon import launch, views
from tests.builders import (
    WALL_S,
    change_gpu,
    cluster,
    drain,
    finish,
    gpu,
    job,
    node,
    place,
    reach,
    stamp,
    submit,
    tell,
)
from tests.fakes import sample

PLACES = launch.Places(home=Path("/h"), logs=Path("/h/logs"), log_limit_bytes=None)


def mill(gpus: str = "A100:2") -> ClusterState:
    return cluster(node("mill", gpus))


def brief(state: ClusterState, id_: str, at: float = 0.0) -> dict[str, Any]:
    return views.job_brief(job(state, id_), at, views.gpus_by_uuid(state))


def full(state: ClusterState, id_: str, at: float = 0.0) -> dict[str, Any]:
    return views.job_full(job(state, id_), at, views.gpus_by_uuid(state), PLACES)


# --- jobs -----------------------------------------------------------------------------------------------


def test_a_waiting_job_has_no_run() -> None:
    """Before it runs, everything about the run is null, not 0."""
    state = mill()
    found = full(state, submit(state, gpus=2))
    for field in ("node", "started_at", "ended_at", "elapsed_s", "exit_code", "exit_signal", "wait_exit_code", "run_s",
                  "cpu_s", "max_rss_mib", "log_bytes", "attempt", "attempt_number", "placed_at", "task", "array",
                  "array_size", "array_limit", "stopping", "held", "cpus", "memory_mib", "gpu_memory_mib", "comment",
                  "expected_start_at", "expected_end_at", "dependency", "begin_at"):  # fmt: skip
        assert found[field] is None, field
    assert (found["state"], found["code"], found["gpus"], found["gpus_asked"]) == ("PENDING", "PD", [], 2)


def test_a_running_job() -> None:
    """Where it runs, since when, and how long so far by the steady clock."""
    state = mill()
    id_ = submit(state, gpus=2, name="eval", time_limit_s=60.0)
    place(state, id_, "mill", at=10.0)
    found = brief(state, id_, at=25.0)
    assert (found["state"], found["node"]) == ("RUNNING", "mill")
    assert (found["elapsed_s"], found["started_at"]) == (15.0, WALL_S + 10)
    assert found["gpus"] == [{"uuid": f"GPU-mill-{index}", "index": index, "type": "A100"} for index in (0, 1)]
    assert found["wait_exit_code"] is None


def test_elapsed_never_goes_back() -> None:
    """A run whose end is earlier than its start on the wall clock took 0 s, unless the node measured it."""
    state = mill()
    id_ = submit(state)
    place(state, id_, "mill", at=50.0)
    finish(state, id_, at=20.0, run_s=7.0)
    assert views.elapsed_s(job(state, id_), 99.0) == 7.0
    attempt = job(state, id_).attempt
    assert attempt is not None
    assert attempt.exit is not None
    unmeasured = replace(attempt, exit=replace(attempt.exit, run_s=None))
    assert views.elapsed_s(replace(job(state, id_), attempt=unmeasured), 99.0) == 0.0
    assert views.elapsed_s(replace(job(state, id_), attempt=None), 99.0) is None


def test_a_requeued_job_hides_its_last_run() -> None:
    """While a job waits again its list entry shows no node, times or exit of the attempt before."""
    state = mill()
    id_ = submit(state)
    place(state, id_, "mill")
    finish(state, id_, code=1, to=JobState.PENDING)
    found = brief(state, id_)
    assert (found["restarts"], found["node"], found["gpus"], found["exit_code"]) == (1, None, [], None)
    assert full(state, id_)["attempt_number"] == 0


def test_gpus_of_a_node_that_is_gone() -> None:
    """A GPU that no node lists any more is still named by its UUID; index and type are null."""
    state = mill()
    id_ = submit(state)
    place(state, id_, "mill")
    assert views.job_brief(job(state, id_), 0.0, {})["gpus"] == [{"uuid": "GPU-mill-0", "index": None, "type": None}]


@pytest.mark.parametrize(
    ("code", "signal", "final", "shown"),
    [(0, None, JobState.COMPLETED, 0), (7, None, JobState.FAILED, 7), (None, 9, JobState.TIMEOUT, 137),
     (0, None, JobState.TIMEOUT, 1), (0, None, JobState.CANCELLED, 1), (None, None, JobState.NODE_FAIL, 1),
     (None, None, JobState.COMPLETED, 0)],
)  # fmt: skip
def test_wait_exit_codes(code: int | None, signal: int | None, final: JobState, shown: int) -> None:
    """0 only for a job that completed; a code of 0 in any other end is shown as 1, like an unknown one."""
    state = mill()
    id_ = submit(state)
    place(state, id_, "mill")
    finish(state, id_, to=final)
    record = job(state, id_)
    assert record.attempt is not None
    assert record.attempt.exit is not None
    ended = replace(record.attempt.exit, code=code, signal=signal)
    assert views.wait_exit_code(replace(record, attempt=replace(record.attempt, exit=ended))) == shown


def test_dependencies_in_slurms_grammar() -> None:
    """Commas for all, question marks for any, no id for singleton, null for none."""
    after = Dependency(kind=DependencyKind.AFTER_OK, job=JobId("1"))
    other = Dependency(kind=DependencyKind.AFTER_ANY, job=JobId("2_3"))
    alone = Dependency(kind=DependencyKind.SINGLETON)
    assert views.dependency_text(Dependencies()) is None
    assert views.dependency_text(Dependencies(terms=(after, other, alone))) == "afterok:1,afterany:2_3,singleton"
    assert views.dependency_text(Dependencies(terms=(after, other), any_of=True)) == "afterok:1?afterany:2_3"


def test_no_secret_in_a_job_object() -> None:
    """The spec for resubmission has every field but environment, script, dependencies and begin time."""
    state = mill()
    id_ = submit(state, argv=("echo", "it's"), script=None, priority=4)
    found = full(state, id_)
    assert found["command"] == "echo 'it'\"'\"'s'"
    assert {"environment", "script", "dependencies", "begin_at"} & set(found["spec"]) == set()
    again = msgspec.convert(found["spec"] | {"environment": "e"}, JobSpec)
    assert (again.priority, again.argv, again.resources) == (4, ("echo", "it's"), Resources(gpus=1))


def test_stopping_and_held_are_said() -> None:
    """A held job says by whom; an array's task says its array, index and limit."""
    state = mill()
    id_ = submit(state, tasks=3, held=Hold.USER, array_limit=2)
    found = brief(state, f"{id_}_1")
    assert (found["held"], found["array"], found["task"], found["array_limit"]) == ("user", id_, 1, 2)
    assert full(state, f"{id_}_1")["array_size"] == 3


def test_estimates_are_on_the_wall_clock() -> None:
    """A plan's steady times become wall times; a job without an estimate, or no longer pending, gets none."""
    state = mill()
    id_ = submit(state)
    start = Start(job=JobId(id_), node=NodeName("mill"), gpus=(), type="A100", start_s=20.0, end_s=50.0, impact=1.0)
    plan = Plan(planner="greedy", stamp=stamp(), estimates={JobId(id_): start})
    found = views.with_estimates(brief(state, id_), job(state, id_), plan, WALL_S)
    assert (found["expected_start_at"], found["expected_end_at"]) == (WALL_S + 20, WALL_S + 50)
    assert views.with_estimates(brief(state, id_), job(state, id_), None, WALL_S)["expected_start_at"] is None
    place(state, id_, "mill")
    assert views.with_estimates(brief(state, id_), job(state, id_), plan, WALL_S)["expected_start_at"] is None


# --- nodes ----------------------------------------------------------------------------------------------


def test_words_for_nodes() -> None:
    """Slurm's words, with * while the node does not answer; a drained one says so first."""
    state = mill()
    where = NodeName("mill")

    def word() -> str:
        return str(views.node_view(state, state.nodes[where], 1.0, None)["state"])

    assert word() == "idle"
    one, two = submit(state), submit(state)
    place(state, one, "mill")
    assert word() == "mixed"
    place(state, two, "mill")
    assert word() == "allocated"
    reach(state, "mill", Reach.SUSPECT)
    assert word() == "allocated*"
    reach(state, "mill", Reach.UNREACHABLE)
    assert word() == "down*"
    drain(state, "mill")
    assert word() == "draining*"
    reach(state, "mill", Reach.UP)
    finish(state, one)
    finish(state, two)
    assert word() == "drained"


def test_a_node_object() -> None:
    """What is used, which types there are, who drained it, and why it cannot be reached."""
    state = cluster(node("mill", "A100:2", "V100", cpus=8))
    place(state, submit(state, cpus=3, memory_mib=100), "mill")
    drain(state, "mill", "new fan")
    found = views.node_view(state, state.nodes[NodeName("mill")], None, "the line is cut")
    assert (found["cpus_used"], found["memory_used_mib"], found["gpus_busy"], found["gpus_total"]) == (3, 100, 1, 3)
    assert found["types"] == {"A100": 2, "V100": 1}
    assert found["drain"] == {"reason": "new fan", "by": "root", "at": WALL_S}
    assert (found["last_seen_s"], found["link_error"]) == (None, "the line is cut")


# --- GPUs -----------------------------------------------------------------------------------------------


def gpu_state(state: ClusterState, index: int = 0) -> tuple[str, str | None]:
    where = state.nodes[NodeName("mill")]
    return views.gpu_state(state, where, where.gpus[index])


def test_words_for_gpus() -> None:
    """Each state of a GPU with the reason that people read."""
    state = mill("A100:1")
    assert gpu_state(state) == ("free", None)
    change_gpu(state, "mill", 0, seen=False)
    assert gpu_state(state) == ("unknown", "its use is not known yet")
    change_gpu(state, "mill", 0, seen=True, foreign=(Foreign(pid=7, user="tom", name="python"), Foreign(pid=9)))
    assert gpu_state(state) == ("foreign", "foreign: tom python 7, 9")
    change_gpu(state, "mill", 0, foreign=(), usable=False, reason="MIG card")
    assert gpu_state(state) == ("unusable", "MIG card")
    change_gpu(state, "mill", 0, usable=True, reason=None, health=Health.LOST)
    assert gpu_state(state) == ("lost", "the driver has lost it")
    change_gpu(state, "mill", 0, health=Health.OK)
    reach(state, "mill", Reach.UNREACHABLE)
    assert gpu_state(state)[0] == "unknown"


def test_a_gpu_that_is_held() -> None:
    """Busy with a job; quarantined while a process cannot be killed; held by an attempt that no job owns."""
    state = mill("A100:2")
    id_ = submit(state)
    attempt = place(state, id_, "mill")
    assert gpu_state(state) == ("busy", None)
    tell(state, AttemptEnding(job=JobId(id_), attempt=attempt, unkillable=(42, 43)))
    assert gpu_state(state) == ("quarantined", f"processes 42, 43 of job {id_} cannot be killed")
    stray = StrayFound(attempt=AttemptId("x"), node=NodeName("mill"), gpus=(GpuUuid("GPU-mill-1"),))
    tell(state, stray)
    word, reason = gpu_state(state, 1)
    assert word == "busy"
    assert "no job here owns" in str(reason)


def test_a_gpu_object_without_a_sample() -> None:
    """Every measure is null until there is a sample; limits known from the inventory are shown."""
    state = cluster(node("mill", gpus=(gpu("mill", 0, "A100", power_limit_w=400.0),)))
    where = state.nodes[NodeName("mill")]
    found = views.gpu_view(state, where, where.gpus[0], None, [])
    for field in ("utilization", "memory_used_mib", "power_w", "energy_j", "temperature_c", "processes", "job", "user"):
        assert found[field] is None, field
    assert (found["memory_total_mib"], found["power_limit_w"], found["utilization_history"]) == (40960, 400.0, [])


def test_a_gpu_object_with_a_sample() -> None:
    """A sample's values are shown, a 0 as 0 and a null as null."""
    state = mill()
    id_ = submit(state, name="eval", owner="tom")
    place(state, id_, "mill")
    where = state.nodes[NodeName("mill")]
    seen = sample(0, utilization=0.0, temperature_c=None)
    found = views.gpu_view(state, where, where.gpus[0], seen, [None, 0.5])
    assert (found["utilization"], found["temperature_c"], found["power_w"]) == (0.0, None, 55.0)
    assert found["utilization_history"] == [None, 0.5]
    assert (found["job"], found["job_name"], found["user"], found["state"]) == (id_, "eval", "tom", "busy")


def test_reasons_of_final_states_are_shown() -> None:
    """A job that failed says why, in a word and in a sentence."""
    state = mill()
    id_ = submit(state)
    place(state, id_, "mill")
    finish(state, id_, code=3)
    found = brief(state, id_)
    assert (found["reason"], found["exit_code"], found["code"]) == (Reason.NON_ZERO_EXIT_CODE.value, 3, "F")
