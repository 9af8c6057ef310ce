"""What a job reports of its progress: what is kept, what it measures, who may say it."""

from __future__ import annotations

import pytest

from gpuq.core.estimate import remaining
from gpuq.core.progress import KEPT_REPORTS, is_news, measured_left_s, with_report
from gpuq.core.requests import Cancel, ReportProgress
from gpuq.core.state import ClusterState
from gpuq.errors import Forbidden, Refused, UsageError
from tests.builders import cluster, job, node, place, remember, stamp, submit
from tests.core.machine_step import ANNA, TOM, ask, reported


def running() -> tuple[ClusterState, str]:
    """A job that has run since 0, of a name that has taken 1000 s three times."""
    state = cluster(node("mill", "A100:2"))
    remember(state, "train", 1000.0, 1000.0, 1000.0)
    id_ = submit(state)
    place(state, id_, "mill")
    return state, id_


def test_two_reports_measure_the_slope() -> None:
    """What came before the first of them, such as loading data, does not count."""
    assert measured_left_s(((100.0, 0.0), (200.0, 0.25)), 0.0, 200.0) == 300.0
    assert measured_left_s(((100.0, 0.0), (200.0, 0.25)), 0.0, 250.0) == 250.0


def test_one_report_measures_from_the_start() -> None:
    """Elapsed x (1 - f) / f; of nothing done yet it says nothing."""
    assert measured_left_s(((100.0, 0.25),), 0.0, 100.0) == 300.0
    assert measured_left_s(((100.0, 0.0),), 0.0, 100.0) is None
    assert measured_left_s((), 0.0, 100.0) is None


def test_silence_adds_time() -> None:
    """A job that stops reporting is not about to end for ever."""
    reports = ((0.0, 0.0), (100.0, 0.5))
    left = [measured_left_s(reports, 0.0, 100.0 + silent) for silent in (0.0, 60.0, 100.0, 1000.0)]
    assert left == [100.0, 40.0, 50.0, 500.0]


def test_a_fraction_that_falls_begins_anew() -> None:
    """And only so many are kept."""
    assert with_report(((1.0, 0.2), (2.0, 0.9)), 3.0, 0.1) == ((3.0, 0.1),)
    reports: tuple[tuple[float, float], ...] = ()
    for second in range(50):
        reports = with_report(reports, float(second), second / 50)
    assert len(reports) == KEPT_REPORTS
    assert reports[-1] == (49.0, 0.98)


@pytest.mark.parametrize(
    ("at", "fraction", "news"),
    [(0.5, 0.9, False), (1.0, 0.505, False), (1.0, 0.51, True), (10.0, 0.501, True), (99.0, 0.5, False)],
)
def test_a_chatty_job_is_news_now_and_then(at: float, fraction: float, news: bool) -> None:
    """One change per hundredth and second, smaller ones every ten seconds, the same again never."""
    assert is_news(((0.0, 0.5),), at, fraction) is news


def test_progress_beats_history() -> None:
    """What is left is measured and informs, by the verb and by the file alike."""
    state, id_ = running()
    assert remaining(state, job(state, id_), stamp(100)).left_s == 900.0
    assert ask(state, ReportProgress(job=job(state, id_).id, by=ANNA, fraction=0.5), at=100).kinds() == ["ProgressMade"]
    assert remaining(state, job(state, id_), stamp(100)).left_s == 100.0
    assert reported(state, id_, "running", progress=0.5).kinds() == []
    assert reported(state, id_, "running", progress=7.0).kinds() == []
    assert reported(state, id_, "running").kinds() == []
    assert job(state, id_).attempt.progress == ((100.0, 0.5),)  # type: ignore[union-attr]


def test_a_new_attempt_begins_without_progress() -> None:
    """What an earlier one had done is gone."""
    state, id_ = running()
    ask(state, ReportProgress(job=job(state, id_).id, by=ANNA, fraction=0.5), at=100)
    reported(state, id_, "lost", rebooted=True)
    place(state, submit(state), "mill")
    assert [each.attempt.progress for each in state.active() if each.attempt] == [()]


def test_only_the_owner_of_a_running_job_may_say() -> None:
    """And nothing but a fraction."""
    state, id_ = running()
    mine = job(state, id_).id
    for value in (-0.1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="from 0 to 1"):
            ask(state, ReportProgress(job=mine, by=ANNA, fraction=value))
    with pytest.raises(Forbidden):
        ask(state, ReportProgress(job=mine, by=TOM, fraction=0.5))
    waiting = submit(state)
    with pytest.raises(Refused, match="PENDING: only a running job"):
        ask(state, ReportProgress(job=waiting, by=ANNA, fraction=0.5))
    array = submit(state, tasks=2)
    with pytest.raises(UsageError, match="array"):
        ask(state, ReportProgress(job=array, by=ANNA, fraction=0.5))
    ask(state, Cancel(jobs=(waiting,), by=ANNA))
