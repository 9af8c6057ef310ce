"""Whether a job can run there, now or ever, and the sentence that says why not."""

from __future__ import annotations

from typing import Any

import pytest

from gpuq.core import fit, topology
from gpuq.core.events import StrayFound
from gpuq.core.fit import Obstacle, When
from gpuq.core.model import AttemptId, Foreign, GpuUuid, Health, Hold, JobId, NodeName, Placement, Reach
from gpuq.core.state import ClusterState
from gpuq.core.states import Reason
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
    spec,
    stamp,
    submit,
    tell,
)


def placed(state: ClusterState, id_: JobId, name: str, at: float = 0.0) -> tuple[GpuUuid, ...] | Obstacle:
    return fit.place_now(state, job(state, id_), state.nodes[NodeName(name)], stamp(at))


def obstacle(state: ClusterState, id_: JobId, name: str, at: float = 0.0) -> Obstacle:
    found = placed(state, id_, name, at)
    assert isinstance(found, Obstacle)
    return found


# --- choosing GPUs --------------------------------------------------------------------------------------


def test_a_job_takes_free_gpus_of_one_type() -> None:
    """A gang never mixes types: with two of each free, three of one type are not there."""
    state = cluster(node("mill", "A100-80G:2", "V100-16G:2"))
    assert placed(state, submit(state, gpus=2), "mill") == ("GPU-mill-2", "GPU-mill-3")
    assert obstacle(state, submit(state, gpus=3), "mill").message == "needs 3 on one node; mill has 2"


def test_the_least_sufficient_memory_is_taken() -> None:
    """A job that asks for 20 GiB leaves the 80 GiB card alone and skips the one that is too small."""
    state = cluster(node("mill", "A100-80G", "V100-16G", "RTX3090-24G"))
    assert placed(state, submit(state, gpu_memory_mib=20 * 1024), "mill") == ("GPU-mill-2",)


def test_gpus_given_by_hand_are_the_ones_taken() -> None:
    """An index or a UUID names exactly one GPU, and GPUs named together may be of different types."""
    state = cluster(node("mill", "A100-80G:2", "V100-16G:2"))
    assert placed(state, submit(state, gpu_ids=("1",)), "mill") == ("GPU-mill-1",)
    both = submit(state, gpus=2, gpu_ids=("GPU-mill-0", "3"))
    assert placed(state, both, "mill") == ("GPU-mill-0", "GPU-mill-3")
    placement = Placement(job=both, node=NodeName("mill"), gpus=(GpuUuid("GPU-mill-0"), GpuUuid("GPU-mill-3")))
    assert fit.check(state, placement, stamp()) is None


def test_a_gang_gets_the_gpus_that_talk_fastest() -> None:
    """Of four GPUs in two NVLink pairs two of one pair are taken, and a single one comes from a broken pair."""
    pairs = {0: 2, 2: 0, 1: 3, 3: 1}
    gpus = [
        gpu("mill", index, "A100", peers=tuple(
            (GpuUuid(f"GPU-mill-{other}"), "nvlink" if pairs[index] == other else "sys")
            for other in range(4) if other != index
        ))
        for index in range(4)
    ]  # fmt: skip
    assert topology.choose(gpus, 2) == (0, 2)
    assert topology.choose(gpus[1:], 2) == (0, 2)  # 1 and 3
    assert topology.choose(gpus[1:], 1) == (1,)  # 2, whose partner is gone
    assert topology.choose(gpus, 4) == (0, 1, 2, 3)
    assert topology.choose(gpus, 0) == ()


def test_without_links_the_memory_node_decides() -> None:
    """GPUs of one NUMA node stay together when nothing better is known."""
    gpus = [gpu("mill", index, "A100", numa_node=index % 2) for index in range(4)]
    assert topology.choose(gpus, 2) == (0, 2)


# --- obstacles now --------------------------------------------------------------------------------------


def test_a_foreign_process_blocks_and_is_named() -> None:
    """The sentence gives process, user, program and memory."""
    state = cluster(node("den", "RTX3090"))
    who = Foreign(pid=8123, user="tom", name="python", memory_mib=11469)
    change_gpu(state, "den", 0, foreign=(who,))
    found = obstacle(state, submit(state), "den")
    assert found.reason is Reason.GPU_FOREIGN_USE
    assert found.message == "den GPU 0: foreign process 8123 of tom (python, 11.2 GiB)"
    assert found.when is When.LATER
    change_gpu(state, "den", 0, foreign=(who, Foreign(pid=9)))
    assert "8123 of tom (python, 11.2 GiB) and 1 more" in obstacle(state, submit(state), "den").message


def test_a_graphics_process_below_the_threshold_does_not_block() -> None:
    """A GPU on which the node reports nothing foreign that counts is free, desktop or not."""
    state = cluster(node("desk", "RTX3090"))
    change_gpu(state, "desk", 0, foreign=(), seen=True)
    assert placed(state, submit(state), "desk") == ("GPU-desk-0",)


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"seen": False}, Reason.GPU_UNKNOWN, "its use is not known yet"),
        ({"health": Health.LOST}, Reason.GPU_UNKNOWN, "the driver has lost it"),
        ({"health": Health.SUSPECT}, Reason.GPU_UNKNOWN, "its health is in doubt"),
        ({"usable": False, "reason": "in MIG mode"}, Reason.RESOURCES, "in MIG mode"),
    ],
)
def test_a_gpu_that_is_not_sound_counts_as_busy(fields: dict[str, Any], reason: Reason, words: str) -> None:
    """Unknown and unhealthy GPUs get no jobs, and the reason says which it is."""
    state = cluster(node("mill", "A100"))
    change_gpu(state, "mill", 0, **fields)
    found = obstacle(state, submit(state), "mill")
    assert (found.reason, found.message) == (reason, f"mill GPU 0: {words}")


def test_a_full_node_names_who_holds_it() -> None:
    """The sentence of `status`: needs 8 on one node; 41 holds 4."""
    state = cluster(node("mill", "A100:8"))
    holder = submit(state, gpus=4)
    place(state, holder, "mill")
    found = obstacle(state, submit(state, gpus=8), "mill")
    assert (found.reason, found.message) == (Reason.RESOURCES, f"needs 8 on one node; {holder} holds 4")


def test_a_stray_attempt_keeps_its_gpu() -> None:
    """A GPU that an attempt of an older state uses is not given away."""
    state = cluster(node("mill", "A100"))
    tell(state, StrayFound(attempt=AttemptId("s"), node=NodeName("mill"), gpus=(GpuUuid("GPU-mill-0"),)))
    assert "no job here knows" in obstacle(state, submit(state), "mill").message


@pytest.mark.parametrize("how", [Reach.SUSPECT, Reach.UNREACHABLE])
def test_a_node_that_does_not_answer_gets_nothing(how: Reach) -> None:
    """No new work goes where nobody answers; the obstacle may pass."""
    state = cluster(node("mill", "A100"))
    reach(state, "mill", how)
    found = obstacle(state, submit(state), "mill")
    assert (found.reason, found.message) == (Reason.REQ_NODE_NOT_AVAIL, "mill does not answer")
    assert found.when is When.LATER


def test_a_drained_node_says_why() -> None:
    """The word of the person who drained it is repeated."""
    state = cluster(node("mill", "A100"))
    drain(state, "mill", "new fan")
    assert obstacle(state, submit(state), "mill").message == "mill is drained: new fan"


def test_cpus_and_memory_are_counted_only_when_asked_for() -> None:
    """A job that names no CPUs starts beside one that took them all; one that names some does not."""
    state = cluster(node("mill", "A100:2", cpus=8, memory_gib=16))
    place(state, submit(state, gpus=0, cpus=8, memory_mib=10 * 1024), "mill")
    assert placed(state, submit(state), "mill") == ("GPU-mill-0",)
    assert obstacle(state, submit(state, cpus=1), "mill").message == "0 of 8 CPUs free, 1 asked"
    assert obstacle(state, submit(state, memory_mib=8192), "mill").message == "6 GiB of memory free, 8 GiB asked"


def test_nodes_asked_for_and_excluded_are_obeyed() -> None:
    """A node outside the list, or on the excluded one, never takes the job."""
    state = cluster(node("mill", "A100"), node("den", "A100"))
    asked = submit(state, nodes=("den",))
    excluded = submit(state, exclude=("mill",))
    for each in (asked, excluded):
        assert obstacle(state, each, "mill").when is When.NEVER
        assert placed(state, each, "den") == ("GPU-den-0",)


# --- obstacles of the job -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hold", "reason"),
    [
        (Hold.USER, Reason.JOB_HELD_USER),
        (Hold.ADMIN, Reason.JOB_HELD_ADMIN),
        (Hold.DEPENDENCY, Reason.DEPENDENCY_NEVER_SATISFIED),
    ],
)
def test_a_held_job_does_not_start(hold: Hold, reason: Reason) -> None:
    """Each kind of hold has its own reason."""
    state = cluster(node("mill", "A100"))
    assert obstacle(state, submit(state, held=hold), "mill").reason is reason


def test_a_dependency_holds_until_it_is_met() -> None:
    """The waiting job names the other one, and is free to start when that has ended well."""
    from gpuq.core.model import Dependencies, Dependency, DependencyKind

    state = cluster(node("mill", "A100"))
    first = submit(state)
    terms = (Dependency(kind=DependencyKind.AFTER_OK, job=first),)
    second = submit(state, dependencies=Dependencies(terms=terms))
    found = obstacle(state, second, "mill")
    assert (found.reason, found.message) == (Reason.DEPENDENCY, f"waits for {first}")
    place(state, first, "mill")
    finish(state, first)
    assert placed(state, second, "mill") == ("GPU-mill-0",)


def test_a_begin_time_is_waited_for() -> None:
    """One second before it the job waits, at it it starts."""
    state = cluster(node("mill", "A100"))
    later = submit(state, begin_at=WALL_S + 100)
    found = obstacle(state, later, "mill", at=99)
    assert (found.reason, found.message) == (Reason.BEGIN_TIME, "1 s until its begin time")
    assert placed(state, later, "mill", at=100) == ("GPU-mill-0",)


def test_an_array_runs_no_more_tasks_than_its_limit() -> None:
    """With %1 the second task waits for the first although GPUs are free."""
    state = cluster(node("mill", "A100:4"))
    array = submit(state, tasks=3, array_limit=1)
    place(state, f"{array}_0", "mill")
    found = obstacle(state, JobId(f"{array}_1"), "mill")
    assert found.reason is Reason.JOB_ARRAY_TASK_LIMIT
    assert found.message == "at most 1 of this array at once (%1)"


# --- check ----------------------------------------------------------------------------------------------


def checked(state: ClusterState, id_: str, name: str, *gpus: str) -> str | None:
    placement = Placement(job=JobId(id_), node=NodeName(name), gpus=tuple(map(GpuUuid, gpus)))
    found = fit.check(state, placement, stamp())
    return found.message if found else None


def test_check_takes_what_place_now_gives() -> None:
    """What one says is free the other lets through."""
    state = cluster(node("mill", "A100:4", cpus=16))
    id_ = submit(state, gpus=2, cpus=4, memory_mib=1024)
    gpus = placed(state, id_, "mill")
    assert not isinstance(gpus, Obstacle)
    assert fit.check(state, Placement(job=id_, node=NodeName("mill"), gpus=gpus), stamp()) is None


def test_check_refuses_what_no_longer_fits() -> None:
    """Each way in which a placement can have gone stale has its sentence."""
    state = cluster(node("mill", "A100:2", "V100:2"), node("den", "A100"))
    first, second = submit(state), submit(state, gpus=2)
    place(state, first, "mill")
    assert checked(state, first, "mill", "GPU-mill-1") == f"job {first} is RUNNING"
    assert checked(state, second, "mill", "GPU-mill-0", "GPU-mill-1") == f"mill GPU 0: {first} holds it"
    assert checked(state, second, "mill", "GPU-mill-1") == "2 GPUs asked, 1 given"
    assert checked(state, second, "mill", "GPU-mill-1", "GPU-mill-1") == "not all of the GPUs given are on mill"
    assert checked(state, second, "mill", "GPU-mill-1", "GPU-den-0") == "not all of the GPUs given are on mill"
    assert checked(state, second, "mill", "GPU-mill-1", "GPU-mill-2") == "GPUs of different types for one job"
    assert checked(state, "99", "mill", "GPU-mill-1") == "there is no job 99"
    assert checked(state, second, "barn", "GPU-mill-1") == "there is no node barn"
    assert checked(state, second, "mill", "GPU-mill-2", "GPU-mill-3") is None


# --- never ----------------------------------------------------------------------------------------------


def refused(state: ClusterState, **fields: Any) -> str | None:
    found = fit.never(state, spec(**fields))
    return found.message if found else None


def test_a_request_larger_than_any_node_is_refused_with_the_largest() -> None:
    """Too many GPUs, too much GPU memory, an unknown type: each answer gives what there is."""
    state = cluster(node("mill", "A100-80G:2"), node("den", "V100-32G"))
    assert refused(state, gpus=5) == "Asked 5 GPUs on one node; the largest node, mill, has 2 A100-80G."
    assert refused(state, gpus=2, gpu_type="v100") == (
        "Asked 2 GPUs of type v100 on one node; the largest node, den, has 1 V100-32G."
    )
    assert refused(state, gpu_memory_mib=999 * 1024) == (
        "Asked 999 GiB on one GPU; the largest, A100-80G on mill, has 80 GiB."
    )
    assert refused(state, gpu_type="H100") == "No GPU of type H100; there are A100-80G, V100-32G."
    assert refused(state, gpus=2, gpu_memory_mib=40 * 1024) is None


def test_cpus_and_memory_beyond_any_node_are_refused() -> None:
    """Alone, and together with GPUs that only a smaller node has."""
    state = cluster(node("mill", "A100:2", cpus=8, memory_gib=32), node("farm", cpus=128, memory_gib=512))
    assert refused(state, gpus=0, cpus=200) == "Asked 200 CPUs on one node; the largest node, farm, has 128."
    assert refused(state, gpus=0, memory_mib=1024 * 1024) == (
        "Asked 1 TiB of memory on one node; the largest node, farm, has 512 GiB."
    )
    assert refused(state, gpus=2, cpus=64) == (
        "No node has 2 GPUs together with 64 CPUs; the largest possible is 0 GPUs."
    )
    assert refused(state, gpus=0, cpus=64) is None


def test_no_gpus_anywhere_is_said_so() -> None:
    """On a cluster without GPUs a GPU job is refused."""
    assert refused(cluster(node("farm"))) == "Asked 1 GPU; farm has no GPU."


def test_names_that_do_not_exist_are_refused() -> None:
    """Nodes and GPUs given by hand must exist."""
    state = cluster(node("mill", "A100:2"))
    assert refused(state, nodes=("barn",)) == "There is no node 'barn'; there are mill."
    assert refused(state, exclude=("mill",)) == "The job excludes every node."
    assert refused(state, gpu_ids=("7",)) == "There is no GPU '7'."
    assert refused(state, gpu_ids=("1",)) is None


def test_what_is_away_may_come_back() -> None:
    """Unreachable, drained, lost and busy: the request waits instead of being refused."""
    state = cluster(node("mill", "A100:2"))
    place(state, submit(state), "mill")
    change_gpu(state, "mill", 1, health=Health.LOST)
    drain(state, "mill")
    reach(state, "mill", Reach.UNREACHABLE)
    assert refused(state, gpus=2, gpu_type="a100") is None
    assert refused(state, gpus=3) is not None


def test_what_was_never_seen_is_not_refused() -> None:
    """Before any node is known, and while one has not told what it holds, everything may be possible."""
    assert refused(ClusterState(), gpus=64) is None
    quiet = node("barn", cpus=0, memory_gib=0, reach=Reach.UNREACHABLE)
    assert refused(cluster(node("mill", "A100"), quiet), gpus=8, cpus=999) is None
    broken = node("barn", driver_error="driver not loaded")
    assert refused(cluster(node("mill", "A100"), broken), gpus=8) is None


def test_a_card_cut_into_slices_counts_only_by_its_slices() -> None:
    """The parent of MIG slices is not a GPU that a job could get."""
    card = gpu("mill", 0, "A100-80G", usable=False, reason="in MIG mode")
    slices = tuple(
        gpu("mill", index, "A100-80G-MIG-1g.10gb", parent=card.uuid, memory_mib=10240) for index in (1, 2)
    )
    state = cluster(node("mill", gpus=(card, *slices)))
    assert refused(state, gpu_type="a100") == "No GPU of type a100; there are A100-80G-MIG-1g.10gb."
    assert refused(state, gpus=3) is not None
    assert refused(state, gpus=2, gpu_type="1g.10gb") is None
