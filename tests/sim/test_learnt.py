"""Predictions learnt while a trace runs."""

from __future__ import annotations

import pytest

from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import prepare, simulate
from gpuq.sim.learnt import Learnt, weighted_quantile
from gpuq.sim.trace import Trace, TraceJob, read_shipped
from gpuq.sim.world import SimJob, World


def job(user: str, name: str, gpus: int = 1, run_s: float = 100.0, limit_s: float = 1e6) -> SimJob:
    found = SimJob(TraceJob("1", 0.0, run_s, gpus, user, name=name), 0, limit_s, limit_s, (1.0,))
    found.done_s = run_s
    return found


def learnt(*ended: SimJob) -> Learnt:
    found = Learnt()
    for each in ended:
        found.ended(each)
    return found


def test_the_most_specific_history_decides() -> None:
    """User, name and GPUs before user and name, before the user, before everyone; three jobs make a history."""
    known = learnt(
        *[job("anna", f"train{number}", 2, 10.0) for number in range(3)],
        *[job("anna", "train", 1, 20.0) for _ in range(9)],
        *[job("anna", "test", 1, 30.0) for _ in range(30)],
        *[job("ben", "x", 1, 40.0) for _ in range(60)],
    )
    assert known.estimate_s(job("anna", "train99", 2)) == 10.0
    assert known.estimate_s(job("anna", "train99", 4)) == 20.0
    assert known.estimate_s(job("anna", "new")) == 30.0
    assert known.estimate_s(job("cleo", "new")) == 40.0


def test_what_was_asked_for_is_an_upper_limit_and_the_first_guess() -> None:
    """Nobody ended: the owner's estimate; later never more than it."""
    assert learnt().estimate_s(job("anna", "train", limit_s=500.0)) == 500.0
    assert learnt(job("anna", "train", run_s=900.0)).estimate_s(job("anna", "train", limit_s=500.0)) == 500.0


def test_later_jobs_weigh_more() -> None:
    """Thirty short runs after thirty long ones move the median; equal weights give the plain one."""
    assert weighted_quantile((100.0,) * 30 + (5.0,) * 30, 0.5) == 5.0
    assert weighted_quantile((5.0,) * 30 + (100.0,) * 30, 0.5) == 100.0
    assert weighted_quantile((3.0,), 0.5) == 3.0


def test_a_prediction_knows_only_what_has_ended() -> None:
    """A job submitted before the first end gets its owner's estimate, one submitted at that moment the run time."""
    jobs = [TraceJob(str(at), float(at), 100.0, 1, "anna", name="train", limit_s=1000.0) for at in (0, 99, 100)]
    made = [SimJob(each, order, 1000.0, 1000.0, (1.0,)) for order, each in enumerate(jobs)]

    class Greedy:
        name = "greedy"

        def schedule(self, world: World) -> None:
            for each in list(world.waiting.values()):
                world.start(each, world.board.find(each.gpus, 0) or ())

        def wake_s(self, world: World) -> float:
            return float("inf")

    World(parse_cluster("V100:4"), made, learner=Learnt()).run(Greedy())
    assert [each.estimate_s for each in made] == [1000.0, 1000.0, 100.0]


@pytest.mark.parametrize("policy", ["sjf", "srsf", "easypp"])
def test_learnt_predictions_help_where_history_repeats(policy: str) -> None:
    """Users whose jobs always run equally long: learnt predictions come close to perfect ones."""
    jobs = tuple(
        TraceJob(str(at), at * 60.0, (20.0, 100.0, 900.0)[at % 3], 1, "abc"[at % 3], name="run", limit_s=86400.0)
        for at in range(200)
    )
    setting = prepare(Trace("t", jobs, {}), parse_cluster("V100:8"), None)
    known, perfect = (simulate(setting, policy, 0, kind).row.mean_jct_s for kind in ("learnt", "perfect"))
    assert known < 1.15 * perfect


def test_equal_runs_are_equal() -> None:
    """Learning keeps nothing from one run to the next."""
    setting = prepare(read_shipped("small"), parse_cluster("V100:8"), 0.9)
    assert simulate(setting, "sjf", 1, "learnt") == simulate(setting, "sjf", 1, "learnt")
