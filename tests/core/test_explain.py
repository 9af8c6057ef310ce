"""What `why` and `status` say about a waiting job."""

from __future__ import annotations

from gpuq.core import explain, greedy
from gpuq.core.model import Foreign, Hold, JobId, Reach
from gpuq.core.state import ClusterState
from gpuq.core.states import Reason
from gpuq.core.survey import snapshot
from tests.builders import change_gpu, cluster, drain, job, node, place, reach, remember, stamp, submit


def reason(state: ClusterState, id_: str, at: float = 0.0) -> tuple[Reason, str]:
    plan = greedy.plan(snapshot(state, stamp(at)))
    return explain.waiting_reason(state, job(state, id_), plan, stamp(at))


def test_the_job_itself_comes_first() -> None:
    """A held job on a full cluster is held, and says nothing of resources."""
    state = cluster(node("mill", "A100"))
    place(state, submit(state), "mill")
    assert reason(state, submit(state, held=Hold.USER)) == (Reason.JOB_HELD_USER, "held by its owner")


def test_a_full_cluster_is_resources_for_the_first_and_priority_for_the_rest() -> None:
    """As Slurm does: the job at the front waits for GPUs, those behind it for their turn."""
    state = cluster(node("mill", "A100:2"))
    holder = submit(state, gpus=2)
    place(state, holder, "mill")
    array = submit(state, gpus=2, tasks=6)
    assert reason(state, f"{array}_0") == (Reason.RESOURCES, f"needs 2 on one node; {holder} holds 2")
    assert reason(state, f"{array}_1") == (Reason.PRIORITY, f"{array}_0 is ahead of it")
    ahead = f"{array}_0, {array}_1, {array}_2 and 2 more are ahead of it"
    assert reason(state, f"{array}_5") == (Reason.PRIORITY, ahead)


def test_a_job_held_back_by_a_reservation_names_it() -> None:
    """A GPU is free, but it is kept for the gang ahead."""
    state = cluster(node("mill", "A100:2"))
    place(state, submit(state, time_limit_s=60.0), "mill")
    gang = submit(state, gpus=2, priority=50)
    small = submit(state, time_limit_s=86400.0)
    assert reason(state, small) == (Reason.PRIORITY, f"{gang} is ahead of it")


def test_a_job_that_waits_for_a_faster_gpu_says_what_it_gains() -> None:
    """Both types, the wait and the time saved are in the sentence."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    remember(state, "llama", *[600.0] * 3)
    remember(state, "vit", *[3600.0] * 3)
    place(state, submit(state, name="llama"), "mill")
    id_ = submit(state, name="vit")
    assert reason(state, id_) == (
        Reason.FASTER_GPU_SOON,
        "a faster GPU frees soon: A100 in 10 min; V100 now would end 50 min later",
    )


def test_the_cluster_is_named_when_it_is_in_the_way() -> None:
    """Foreign use, unknown use, nodes that are away or drained, no node at all."""
    state = cluster(node("den", "RTX3090"))
    id_ = submit(state)
    change_gpu(state, "den", 0, foreign=(Foreign(pid=8123, user="tom", name="python"),))
    assert reason(state, id_) == (
        Reason.GPU_FOREIGN_USE,
        "den GPU 0: foreign process 8123 of tom (python)",
    )
    change_gpu(state, "den", 0, foreign=(), seen=False)
    assert reason(state, id_) == (Reason.GPU_UNKNOWN, "den GPU 0: its use is not known yet")
    reach(state, "den", Reach.UNREACHABLE)
    assert reason(state, id_) == (Reason.REQ_NODE_NOT_AVAIL, "den does not answer")
    reach(state, "den", Reach.UP)
    drain(state, "den", "new fan")
    assert reason(state, id_) == (Reason.REQ_NODE_NOT_AVAIL, "den is drained: new fan")
    empty = ClusterState()
    assert reason(empty, submit(empty)) == (Reason.REQ_NODE_NOT_AVAIL, "no node is known yet")


def test_what_no_longer_fits_anywhere_says_what_is_missing() -> None:
    """A node came back with less: the reason is the memory, not the queue."""
    state = cluster(node("mill", "V100-16G"))
    id_ = submit(state, gpu_memory_mib=40 * 1024)
    assert reason(state, id_) == (Reason.GPU_MEMORY, "16 GiB, 40 GiB asked")


def test_a_job_that_fits_is_about_to_start() -> None:
    """Before the first plan, and in the plan that starts it."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state)
    assert reason(state, id_) == (Reason.NONE, "it starts in a moment")
    assert explain.waiting_reason(state, job(state, id_), None, stamp()) == (Reason.NONE, "it starts in a moment")


def test_many_reasons_are_those_of_each() -> None:
    """Finding what equal jobs share only once changes no answer."""
    state = cluster(node("mill", "A100:2"))
    place(state, submit(state, gpus=2), "mill")
    submit(state, tasks=20)
    submit(state, gpus=2, tasks=5, array_limit=1)
    plan = greedy.plan(snapshot(state, stamp(), window=8))
    many = explain.Reasons(state, plan, stamp())
    waiting = [each for queue in state.waiting.values() for each in queue]
    assert len(waiting) == 25
    for id_ in waiting:
        assert many.of(job(state, id_)) == explain.waiting_reason(state, job(state, id_), plan, stamp())


# --- nodes ----------------------------------------------------------------------------------------------


def test_each_gpu_has_its_verdict() -> None:
    """The list under "Cannot use": type, memory, foreign use, holder, and what is free."""
    state = cluster(node("den", "RTX3090:2"), node("mill", "A100-80G:2"), node("barn", "A100-80G"))
    change_gpu(state, "den", 1, memory_mib=80 * 1024, foreign=(Foreign(pid=8, user="tom"),))
    holder = submit(state)
    place(state, holder, "mill")
    drain(state, "barn", "moved")
    verdicts = explain.why_nodes(state, job(state, submit(state, gpu_memory_mib=40 * 1024)), stamp())
    found = [(each.node, each.gpu, each.ok, each.when, each.message) for each in verdicts]
    assert found == [
        ("den", 0, False, "never", "24 GiB, 40 GiB asked"),
        ("den", 1, False, "later", "foreign process 8 of tom"),
        ("mill", 0, False, "later", f"{holder} holds it"),
        ("mill", 1, True, "now", ""),
        ("barn", None, False, "later", "barn is drained: moved"),
    ]


def test_a_gang_also_has_a_verdict_on_the_node() -> None:
    """Free GPUs that are too few do not make the node fit."""
    state = cluster(node("mill", "A100:2"), node("den", "A100"))
    holder = submit(state)
    place(state, holder, "mill")
    verdicts = explain.why_nodes(state, job(state, submit(state, gpus=2)), stamp())
    whole = [(each.node, each.when, each.message) for each in verdicts if each.gpu is None]
    assert whole == [
        ("mill", "later", f"needs 2 on one node; {holder} holds 1"),
        ("den", "never", "needs 2 on one node; den has 1"),
    ]


def test_a_job_without_gpus_has_one_verdict_per_node() -> None:
    """Only CPUs and memory count for it."""
    state = cluster(node("mill", "A100", cpus=4))
    verdicts = explain.why_nodes(state, job(state, submit(state, gpus=0, cpus=8)), stamp())
    assert [(each.gpu, each.ok, each.message) for each in verdicts] == [(None, False, "4 CPUs, 8 asked")]


def test_blockers_hold_gpus_the_job_could_use() -> None:
    """Those with the most GPUs first; a job on GPUs of another type is none."""
    state = cluster(node("mill", "A100:4"), node("attic", "V100"))
    one, three, other = submit(state), submit(state, gpus=3), submit(state, gpu_type="v100")
    place(state, one, "mill")
    place(state, three, "mill")
    place(state, other, "attic")
    found = explain.blockers(state, job(state, submit(state, gpus=4, gpu_type="a100")))
    assert [(each.job, each.gpus) for each in found] == [(three, 3), (one, 1)]


def test_ahead_are_only_jobs_on_the_same_gpus() -> None:
    """A job that waits for another type is not ahead."""
    state = cluster(node("mill", "A100"), node("attic", "V100"))
    place(state, submit(state), "mill")
    place(state, submit(state), "attic")
    first, _other = submit(state, gpu_type="a100"), submit(state, gpu_type="v100")
    last = submit(state, gpu_type="a100", name="last")
    plan = greedy.plan(snapshot(state, stamp()))
    assert [start.job for start in explain.ahead_of(state, job(state, last), plan)] == [first]
    assert explain.ahead_of(state, job(state, JobId(first)), plan) == []
