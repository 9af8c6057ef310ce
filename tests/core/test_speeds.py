"""Speeds of a kind of job by GPU type, learnt where runs on several types differ from the catalogue."""

from __future__ import annotations

import random

import pytest

from gpuq.core import greedy, snapshot
from gpuq.core import memory as memory_module
from gpuq.core.plan import check_plan
from gpuq.core.speeds import MOST_RUNS, Runs, speed_factors
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot as survey_snapshot
from tests.builders import cluster, finish, job, node, place, remember, stamp, submit


def runs(*reference_s: float) -> Runs:
    """These runs."""
    found = Runs()
    for each in reference_s:
        found = found.plus(each)
    return found


def test_one_type_tells_nothing() -> None:
    """There is nothing to compare with."""
    assert speed_factors({}) == {}
    assert speed_factors({"V100": runs(*[100.0] * 9)}) == {}


def test_a_catalogue_that_is_right_stays() -> None:
    """Equal reference times on all types: factors of 1."""
    found = speed_factors({"V100": runs(100.0, 110.0), "A100": runs(110.0, 100.0)})
    assert found == pytest.approx({"V100": 1.0, "A100": 1.0})


def test_many_steady_runs_take_over() -> None:
    """Ten times as long on a V100 as the catalogue says, against an A100: the ratio of the two is learnt."""
    found = speed_factors({"V100": runs(*[1000.0] * 15), "A100": runs(*[100.0] * 15)})
    assert found["A100"] / found["V100"] == pytest.approx(10.0, rel=0.1)


def test_few_or_scattered_runs_stay_near_the_catalogue() -> None:
    """One run each may differ by chance, and so may many of a name that stands for all kinds of jobs."""
    few = speed_factors({"V100": runs(200.0), "A100": runs(100.0)})
    assert 1.0 < few["A100"] / few["V100"] < 1.8
    scattered = speed_factors({"V100": runs(20.0, 20_000.0), "A100": runs(10.0, 10_000.0)})
    assert scattered["A100"] / scattered["V100"] < 1.2


def test_older_runs_fade() -> None:
    """However many there were, they never count for more than so many."""
    found = runs(*[100.0] * 100)
    assert found.runs <= MOST_RUNS
    assert runs(*[100.0] * 100, *[200.0] * 60).total / MOST_RUNS == pytest.approx(runs(200.0).total, rel=0.02)


def learnt() -> ClusterState:
    """A name that ran ten times on each type, and on the V100 four times as long as the catalogue says (0.5)."""
    state = cluster(node("mill", "A100:1"), node("attic", "V100:1"))
    for _ in range(10):
        for name, run_s in (("mill", 100.0), ("attic", 800.0)):
            id_ = submit(state, name="vit")
            place(state, id_, name)
            finish(state, id_, run_s=run_s)
    return state


def test_the_planner_sees_learnt_speeds() -> None:
    """The sites of the job's queue have the speeds that it has there; other jobs keep the catalogue's."""
    state = learnt()
    submit(state, name="vit")
    submit(state, name="new")
    by_name = {queue.shape.name: queue for queue in survey_snapshot(state, stamp()).queues}
    run_s = {site.type: by_name["vit"].prediction.on(site.speed) for site in by_name["vit"].sites}
    assert run_s == pytest.approx({"A100": 100.0, "V100": 800.0}, rel=0.15)
    assert {site.type: site.speed for site in by_name[""].sites} == {"A100": 1.0, "V100": 0.5}


def test_a_running_job_counts_at_its_learnt_speed() -> None:
    """And a restart forgets nothing."""
    state = learnt()
    id_ = submit(state, name="vit")
    place(state, id_, "attic")
    assert state.job_speed(job(state, id_)) < 0.26
    back = snapshot.from_bytes(snapshot.to_bytes(state))
    assert back.memory.type_runs == state.memory.type_runs
    assert back.job_speed(job(back, id_)) == state.job_speed(job(state, id_))


@pytest.mark.parametrize("seed", range(4))
def test_plans_with_learnt_speeds_are_proved(seed: int) -> None:
    """Names that disagree about which GPU type is the faster one still get a plan that check_plan accepts."""
    chance = random.Random(seed)
    state = cluster(node("mill", "A100:4"), node("attic", "V100:4", "T4:2"))
    for name in ("vit", "bert", "unet"):
        remember(state, name, *[chance.uniform(50.0, 5000.0)] * 3)
        by_type = {kind: runs(*[chance.uniform(10.0, 9000.0)] * 5) for kind in ("A100", "V100", "T4")}
        state.memory.set_type_runs(("anna", name), by_type)
    for _ in range(30):
        submit(state, name=chance.choice(("vit", "bert", "unet", "new")), gpus=chance.choice((1, 1, 2, 4)))
    problem = survey_snapshot(state, stamp())
    found = greedy.plan(problem)
    check_plan(problem, found)
    assert len(found.estimates) == 30


def test_only_so_many_names_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ran longest ago is forgotten, factors and all."""
    monkeypatch.setattr(memory_module, "HISTORY_NAMES", 1)
    state = learnt()
    assert state.memory.factors("anna", "vit")
    id_ = submit(state, name="bert")
    place(state, id_, "mill")
    finish(state, id_, run_s=50.0)
    assert list(state.memory.type_runs) == [("anna", "bert")]
    assert state.memory.factors("anna", "vit") == {}
