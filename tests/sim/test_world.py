"""The virtual world: capacity, conservation of work, and schedules that can be computed by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuq.errors import UserError
from gpuq.sim.bounds import BoundJob, lower_bound_s
from gpuq.sim.cluster import Board, Cluster, parse_cluster
from gpuq.sim.experiment import Outcome, prepare, simulate
from gpuq.sim.picture import rows_of
from gpuq.sim.policies.registry import POLICIES, find_policy
from gpuq.sim.speeds import Speeds, read_table
from gpuq.sim.trace import Trace, TraceJob, read_shipped


def trace(*jobs: tuple[float, float, int]) -> Trace:
    """(submit_s, duration_s, gpus) of each job."""
    return Trace("t", tuple(TraceJob(str(number), *job) for number, job in enumerate(jobs)), {})


def outcome(policy: str, cluster: str, *jobs: tuple[float, float, int], restart_s: float = 60.0) -> Outcome:
    setting = prepare(trace(*jobs), parse_cluster(cluster), None)
    return simulate(setting, policy, predictions="perfect", restart_s=restart_s, keep_runs=True)


def ends(found: Outcome) -> dict[str, float]:
    """Job -> end of its last run."""
    last: dict[str, float] = {}
    for run in found.runs:
        last[run.job] = max(run.end_s, last.get(run.job, 0.0))
    return last


# --- by hand ----------------------------------------------------------------------------------------------


def test_fifo_blocks_behind_its_head() -> None:
    """The two-GPU job waits for both GPUs, and the small one behind it waits although a GPU is idle."""
    jobs = ((0.0, 100.0, 1), (1.0, 100.0, 2), (2.0, 10.0, 1))
    assert ends(outcome("fifo", "V100:2", *jobs)) == {"0": 100.0, "1": 200.0, "2": 210.0}
    assert ends(outcome("fifo_firstfit", "V100:2", *jobs)) == {"0": 100.0, "1": 200.0, "2": 12.0}


def test_easy_fills_only_what_delays_no_head() -> None:
    """A short job goes ahead of the head's promise; one that would outlast it does not."""
    jobs = ((0.0, 100.0, 1), (1.0, 100.0, 2), (2.0, 200.0, 1), (3.0, 50.0, 1))
    assert ends(outcome("easy_perfect", "V100:2", *jobs)) == {"0": 100.0, "1": 200.0, "2": 400.0, "3": 53.0}


def test_sjf_takes_the_shortest_that_waits() -> None:
    """Among waiting jobs the shortest goes first; the running one is left alone."""
    jobs = ((0.0, 100.0, 1), (1.0, 50.0, 1), (2.0, 10.0, 1))
    assert ends(outcome("sjf", "V100:1", *jobs)) == {"0": 100.0, "2": 110.0, "1": 160.0}


def test_srtf_stops_the_longer_job_and_charges_the_restart() -> None:
    """The short job runs at once; the long one pays 60 s without progress when it comes back."""
    found = outcome("srtf", "V100:1", (0.0, 1000.0, 1), (100.0, 50.0, 1))
    assert ends(found) == {"1": 150.0, "0": 150.0 + 60.0 + 900.0}
    assert found.row.restarts == 1


def test_least_attained_service_lets_new_jobs_in() -> None:
    """A job past the first limit gives way to one that has had nothing."""
    found = outcome("las2d", "V100:1", (0.0, 7200.0, 1), (4000.0, 600.0, 1), restart_s=0.0)
    assert ends(found) == {"1": 4600.0, "0": 7800.0}


def test_a_large_job_takes_whole_nodes() -> None:
    """Sixteen GPUs are two empty nodes; a job on one of them keeps it waiting."""
    found = outcome("fifo", "V100:24", (0.0, 100.0, 1), (0.0, 50.0, 16), (0.0, 30.0, 16))
    assert ends(found) == {"0": 100.0, "1": 50.0, "2": 80.0}
    board = Board(parse_cluster("V100:16"))
    board.take(((0, 1),))
    assert board.find(16, 0) is None
    assert board.find(1, 0) == ((0, 1),)


# --- always -----------------------------------------------------------------------------------------------

JOBS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(1, 3000), st.sampled_from((1, 1, 2, 4, 8, 16))), min_size=1, max_size=25
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(jobs=JOBS, policy=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 3))
def test_no_gpu_serves_two_and_all_work_is_done(jobs: list[tuple[int, int, int]], policy: str, seed: int) -> None:
    """For every policy: stays on a GPU do not overlap, every job does its work, and none beats the bound."""
    found_trace = trace(*((float(at), float(run), gpus) for at, run, gpus in sorted(jobs)))
    cluster = parse_cluster("V100:12,P100:16")
    setting = prepare(found_trace, cluster, None)
    found = simulate(setting, policy, seed, "helios", 60.0, keep_runs=True)
    rows: dict[int, list[tuple[float, float]]] = {}
    held: dict[str, float] = {}
    for number, run in rows_of(cluster, found.runs):
        rows.setdefault(number, []).append((run.start_s, run.end_s))
    for run in found.runs:
        held[run.job] = held.get(run.job, 0.0) + run.end_s - run.start_s
    for spans in rows.values():
        assert all(first[1] <= second[0] + 1e-3 for first, second in pairwise(sorted(spans)))
    for job, speeds in zip(setting.trace.jobs, setting.speeds, strict=True):
        assert held[job.id] >= job.duration_s / max(speeds) - 1e-3
    assert len(found.jct_s) == len(setting.trace.jobs)
    assert found.row.mean_jct_s >= setting.lower_bound_s - 1e-3
    assert 0 < found.row.impact_factor <= 1 + 1e-9


def test_equal_seeds_give_equal_rows() -> None:
    """A seed fixes everything; another one draws other errors."""
    setting = prepare(read_shipped("small"), parse_cluster("V100:8"), 0.9)
    one, again, other = (simulate(setting, "greedy", seed) for seed in (3, 3, 4))
    assert one == again
    assert one.row.mean_jct_s != other.row.mean_jct_s


def test_calibrated_ranking_beats_backfilling_by_far() -> None:
    """On the shipped trace gpuq's order halves EASY's mean completion time with erring predictions."""
    setting = prepare(read_shipped("small"), parse_cluster("V100:8"), 0.9)
    found = [simulate(setting, "greedy", seed).row.mean_jct_s for seed in range(3)]
    easy = [simulate(setting, "easy", seed).row.mean_jct_s for seed in range(3)]
    assert sum(found) < 0.6 * sum(easy)


def test_jobs_that_fit_nowhere_are_dropped_and_counted() -> None:
    """A job larger than every type is left out; when nothing is left, that is an error."""
    setting = prepare(trace((0.0, 10.0, 4), (0.0, 10.0, 9)), parse_cluster("V100:4,P100:8"), None)
    assert (len(setting.trace.jobs), setting.dropped) == (1, 1)
    with pytest.raises(UserError, match="No job of t fits"):
        prepare(trace((0.0, 10.0, 9)), parse_cluster("V100:4,P100:8"), None)


def test_speeds_come_from_the_measured_table() -> None:
    """Against the V100, ResNet-50 of batch 16 on four GPUs runs at 30.80 / 23.20 on P100s and 7.70 / 23.20 on K80s."""
    speeds = Speeds(parse_cluster("V100:8,P100:8,K80:8"), read_table())
    job = TraceJob("1", 0.0, 100.0, 4, "", "ResNet-50|16")
    assert speeds.of(job) == pytest.approx((1.0, 1.3278, 0.3321), abs=1e-4)


def test_a_job_without_a_model_runs_at_the_catalogued_ratio() -> None:
    """The fastest type has speed 1; a type that is not in the catalogue is refused by name."""
    job = TraceJob("1", 0.0, 100.0, 1)
    assert Speeds(parse_cluster("A100:8")).of(job) == (1.0,)
    a100, v100 = Speeds(parse_cluster("A100:8,V100:8"), read_table()).of(job)
    assert a100 == 1.0
    assert 0.3 < v100 < 0.7
    with pytest.raises(UserError, match="K80"):
        Speeds(parse_cluster("V100:8,K80:8"), read_table()).of(job)


def test_bound_of_one_machine_is_its_optimum() -> None:
    """With one GPU and shortest first by hand, the bound is met exactly."""
    jobs = [BoundJob(0.0, 1, (30.0,)), BoundJob(0.0, 1, (10.0,)), BoundJob(5.0, 1, (1.0,))]
    assert lower_bound_s(jobs, [1]) == pytest.approx((41.0 + 11.0 + 1.0) / 3)


@pytest.mark.parametrize("text", ["V100", "V100:0", "V100:-1", ":3", "V100:4,V100:4", "", "V100:4x", "V 100:1"])
def test_impossible_clusters_are_refused(text: str) -> None:
    """One sentence with a form that would do."""
    with pytest.raises(UserError, match="--gpus"):
        parse_cluster(text)


def test_node_sizes() -> None:
    """The last node of a type takes what is left over."""
    assert parse_cluster("A100:10,V100:3", 4) == Cluster(("A100", "V100"), (0, 0, 0, 1), (4, 4, 2, 3))


def test_unknown_policies_are_named_with_those_there_are() -> None:
    """The hint lists the known ones."""
    with pytest.raises(UserError) as caught:
        find_policy("magic")
    assert "srsf" in (caught.value.hint or "")
