"""The daemon's own decisions in the simulator: sound, repeatable, and the same core that serves people."""

from __future__ import annotations

import pytest

from gpuq.core import evictions
from gpuq.errors import UsageError
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import Setting, prepare, simulate
from gpuq.sim.speeds import read_table
from gpuq.sim.trace import read_shipped


def setting(name: str, gpus: str, load: float = 0.9, nodes_of: int = 8) -> Setting:
    """A shipped trace on a cluster."""
    return prepare(read_shipped(name), parse_cluster(gpus, nodes_of), load, read_table())


def test_runs_do_not_overlap_and_repeat() -> None:
    """All jobs end, no GPU place serves two at once (the world checks), jobs are stopped, and two runs are equal."""
    small = setting("small", "V100:8")
    first, again = (simulate(small, "daemon", 1) for _ in range(2))
    assert first.row == again.row
    assert first.row.restarts > 0
    assert first.row.mean_jct_s >= first.row.lower_bound_s


def test_without_permission_nobody_is_stopped() -> None:
    """With --fixed the same planner runs and no job restarts."""
    assert simulate(setting("small", "V100:8"), "daemon", 1, fixed=True).row.restarts == 0


def test_stopping_jobs_is_worth_it() -> None:
    """On the shipped trace the mean completion time is shorter when jobs may give way than when they may not."""
    small = setting("small", "V100:8")
    with_, without = (
        [simulate(small, "daemon", seed, fixed=fixed).row for seed in range(3)] for fixed in (False, True)
    )
    assert sum(row.mean_jct_s for row in with_) < sum(row.mean_jct_s for row in without)


def test_gpu_types_have_the_speeds_of_the_trace() -> None:
    """On three GPU types jobs run, and faster GPUs are preferred: the mean is below that of first come first served."""
    mixed = setting("mixed", "V100:4,P100:4,K80:4", 0.7)
    ours, fifo = (simulate(mixed, policy, 0).row.mean_jct_s for policy in ("daemon", "fifo"))
    assert ours < fifo


def test_a_job_larger_than_a_machine_is_refused() -> None:
    """The daemon keeps a job inside one machine, so such a trace gets one clear sentence."""
    with pytest.raises(UsageError, match="keeps a job inside one machine"):
        simulate(setting("small", "V100:8", nodes_of=1), "daemon", 0)


def test_no_eviction_is_made_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing is worth a restart, nobody is stopped."""
    monkeypatch.setattr(evictions, "WORTH", float("inf"))
    assert simulate(setting("small", "V100:8"), "daemon", 1).row.restarts == 0
