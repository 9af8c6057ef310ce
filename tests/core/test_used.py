"""What jobs of a kind use of GPUs, learnt from completed runs, and what the planner makes of it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from gpuq.core import memory as memory_module
from gpuq.core import snapshot
from gpuq.core.costs import costs_of
from gpuq.core.events import AttemptEnded
from gpuq.core.impact import Weights
from gpuq.core.model import AttemptId, Exit, JobId, Node, Used
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.core.survey import snapshot as survey_snapshot
from gpuq.core.used import PEAKS, PRIOR_UTILIZATION, Use
from tests.builders import cluster, finish, node, place, stamp, submit

LONG = 100_000  # samples of a run that counts in full


def use(*runs: Used, gpu_type: str = "A100", limit_w: float | None = 400.0) -> Use:
    """These runs, one after the other."""
    found = Use()
    for each in runs:
        found = found.plus(each, gpu_type, limit_w)
    return found


def drawing(power_w: float, samples: int = LONG) -> Used:
    """A run with this draw and nothing else measured."""
    return Used(power_w=power_w, samples=samples)


def test_nothing_measured_is_unknown() -> None:
    """Without runs, without samples, and for the counters that no run had."""
    for empty in (Use(), use(Used(utilization=0.5, power_w=100.0, memory_mib=1.0, samples=0)), use(Used(samples=9))):
        assert empty.expected_utilization() is None
        assert empty.expected_memory_mib() is None
        assert empty.expected_power_w("A100", 400.0) is None


def test_few_samples_stay_near_what_is_usual() -> None:
    """A short run moves the estimate a little, many long runs take it over."""
    short = use(Used(utilization=1.0, samples=2)).expected_utilization()
    many = use(*[Used(utilization=1.0, samples=LONG)] * 30).expected_utilization()
    assert short is not None
    assert many is not None
    assert PRIOR_UTILIZATION < short < 0.7
    assert many > 0.97


def test_newer_runs_weigh_more() -> None:
    """After twenty runs of another kind the old ones hardly count; of memory only the newest runs do."""
    turned = use(*[drawing(100.0)] * 20, *[drawing(300.0)] * 20)
    assert turned.expected_power_w("A100", 400.0) == pytest.approx(270.0, rel=0.1)
    grown = use(*[Used(memory_mib=size, samples=LONG) for size in (9000.0, *[500.0] * PEAKS)])
    assert grown.expected_memory_mib() == 500.0


def test_a_type_without_runs_gets_the_share_of_its_limit() -> None:
    """A job that draws a quarter of the limit on one type is expected to do so on another; unknown limits tell less."""
    found = use(*[drawing(100.0)] * 40)
    other_w = found.expected_power_w("V100", 300.0)
    assert other_w == pytest.approx(75.0, rel=0.1)
    assert found.expected_power_w("V100", None) is None
    assert use(drawing(90.0), limit_w=None).expected_power_w("A100", 400.0) == pytest.approx(90.0)


def powered(name: str, kind: str, limit_w: float) -> Node:
    """A node whose GPUs have a power limit."""
    made = node(name, kind)
    return replace(made, gpus=tuple(replace(gpu, power_limit_w=limit_w) for gpu in made.gpus))


def learnt(code: int = 0, runs: int = 20) -> ClusterState:
    """`fit` ran so often on an A100 with 160 of its 400 W."""
    state = cluster(powered("mill", "A100", 400.0), powered("attic", "V100", 300.0))
    for _ in range(runs):
        id_ = submit(state, name="fit")
        place(state, id_, "mill")
        used = Used(utilization=0.4, power_w=160.0, memory_mib=5000.0, samples=LONG)
        finish(state, id_, exit_=Exit(code=code, run_s=60.0, used=used))
    return state


def test_the_energy_of_a_placement_is_the_learnt_draw() -> None:
    """On the type it ran on and, by share, on the other one; jobs of other names count with the limit."""
    state = learnt()
    submit(state, name="fit")
    submit(state, name="new")
    weights = Weights(energy=1.0)
    by_name = {queue.shape.name: queue for queue in survey_snapshot(state, stamp(), weights).queues}
    draws_w = {site.type: site.power_w for site in by_name["fit"].sites}
    assert draws_w == pytest.approx({"A100": 160.0, "V100": 120.0}, rel=0.05)
    assert {site.type: site.power_w for site in by_name[""].sites} == {"A100": 400.0, "V100": 300.0}
    site = next(site for site in by_name["fit"].sites if site.type == "A100")
    assert costs_of(by_name["fit"], site, 3600.0, weights).energy_kwh == pytest.approx(0.16, rel=0.05)


def test_a_restart_forgets_nothing() -> None:
    """The snapshot brings back what was learnt, to the bit."""
    state = learnt()
    back = snapshot.from_bytes(snapshot.to_bytes(state))
    assert back.memory.uses == state.memory.uses
    assert list(back.memory.uses) == [("anna", "fit")]


def test_an_end_comes_back_from_the_journal_with_what_was_used() -> None:
    """The event keeps every measure, and one that was written without any is read as not measured."""
    used = Used(utilization=0.4, power_w=160.0, memory_mib=None, samples=7)
    ended = AttemptEnded(
        job=JobId("1"), attempt=AttemptId("a"), state=JobState.COMPLETED, reason=Reason.NONE,
        exit=Exit(code=0, used=used), ended_at=1.0,
    )  # fmt: skip
    written = msgspec.json.encode(ended)
    assert msgspec.json.decode(written, type=AttemptEnded) == ended
    plain = msgspec.to_builtins(ended)
    del plain["exit"]["used"]
    assert msgspec.convert(plain, AttemptEnded).exit == Exit(code=0)


def test_only_completed_runs_teach() -> None:
    """A run that failed says nothing about those that do not, but keeps what it used."""
    state = learnt(code=1, runs=1)
    assert state.memory.uses == {}
    (record,) = state.jobs.values()
    assert record.state is JobState.FAILED
    assert record.exit is not None
    assert record.exit.used is not None


def test_only_so_many_names_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ran longest ago is forgotten."""
    monkeypatch.setattr(memory_module, "HISTORY_NAMES", 1)
    state = learnt()
    state.memory.add_use(("anna", "new"), drawing(100.0), "A100", 400.0)
    assert list(state.memory.uses) == [("anna", "new")]
